"""Analytical results of a GPU model: the latency of a single load in an idle GPU."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from trine.common.units import transfer_ps
from trine.gpu.layout import CHANNEL, CU, GpuLayout, Hop, layout_of
from trine.gpu.model import GpuModel


def local_load_ps(model: GpuModel, *, hit: bool) -> int:
    """Return the latency of a load of one local line, mean over CUs and channels; ``hit``: in the L2.

    From the queue of the CU's link to the answer's arrival (docs/design/gpu-model.md).
    """
    layout = layout_of(model)
    cus, channels = _samples(model.num_cus), _samples(model.memory.num_channels)
    total = sum(_round(layout, cu, channel) for cu in cus for channel in channels)
    return int(Fraction(total, len(cus) * len(channels))) + _memory_ps(model, hit)


def flag_read_ps(model: GpuModel, *, uncached: bool) -> int:
    """Return the round trip of a local acquire, mean over CUs and channels; ``uncached``: past the L2.

    Plus ``poll_ps`` and ``poll_turn_ps``, it is the interval between a waiting wavefront's reads of its semaphore.
    """
    layout = layout_of(model)
    cus, channels = _samples(model.num_cus), _samples(model.memory.num_channels)
    total = sum(
        _path_ps(layout, layout.path(*ends), model.header_bytes)
        for cu in cus
        for channel in channels
        for ends in ((CU, cu, CHANNEL, channel), (CHANNEL, channel, CU, cu))
    )
    stop = model.memory if uncached or model.l2 is None else model.l2
    memory_ps = transfer_ps(model.header_bytes, stop.bytes_per_s) + stop.latency_ps
    return int(Fraction(total, len(cus) * len(channels))) + memory_ps


def _samples(count: int) -> Sequence[int]:
    """Return all indices up to 128, else about 64 evenly spaced ones: the routers of a mesh repeat."""
    return range(count) if count <= 128 else range(0, count, count // 64)


def _round(layout: GpuLayout, cu: int, channel: int) -> int:
    """Return the time of the request one way, and of the answer with its line the other way."""
    model = layout.model
    out, back = layout.path(CU, cu, CHANNEL, channel), layout.path(CHANNEL, channel, CU, cu)
    return _path_ps(layout, out, model.header_bytes) + _path_ps(layout, back, model.header_bytes + model.line_bytes)


def _path_ps(layout: GpuLayout, path: Sequence[Hop], num_bytes: int) -> int:
    rates = layout.bytes_per_s
    return sum(transfer_ps(num_bytes, int(rates[hop.resource])) + hop.after_ps for hop in path)


def _memory_ps(model: GpuModel, hit: bool) -> int:
    line, memory, l2 = model.line_bytes, model.memory, model.l2
    total = 0 if l2 is None else transfer_ps(line, l2.bytes_per_s) + l2.latency_ps
    if hit:
        return total
    return total + transfer_ps(line, memory.bytes_per_s) + memory.latency_ps
