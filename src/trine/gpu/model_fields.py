"""The numbers of a GPU model: where each stands in a file, in :class:`GpuModel`, and what it is."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from trine.gpu.model import GpuModel
from trine.units import format_bandwidth, format_bytes, format_clock, format_time


class ModelField(NamedTuple):
    """``path``: in files, errors, evidence and sources; ``attribute``: of :class:`GpuModel`; ``unit``: time, bytes,
    rate, clock, or empty for plain values."""

    path: str
    attribute: str
    unit: str
    meaning: str


FIELDS = (
    ModelField("clock", "cycle_ps", "clock", "of the compute units"),
    ModelField("line", "line_bytes", "bytes", "a request of a wavefront"),
    ModelField("header", "header_bytes", "bytes", "of each message; all there is of one without data"),
    ModelField("cus.count", "num_cus", "", "compute units (SMs)"),
    ModelField("cus.workgroups", "workgroups_per_cu", "", "room for workgroups (thread blocks) in each"),
    ModelField("cus.wavefronts", "wavefronts_per_cu", "", "room for wavefronts (warps) in each"),
    ModelField("cus.unroll", "unroll", "", "requests of a wavefront in flight, where the program does not say"),
    ModelField("cus.max_outstanding", "max_outstanding", "", "requests of a compute unit in flight"),
    ModelField("cus.issue_cycles", "issue_cycles", "", "cycles between requests of a compute unit"),
    ModelField("cus.reduce_per_cycle", "reduce_bytes_per_cycle", "bytes", "added up by a compute unit each cycle"),
    ModelField("cus.posted_stores", "posted_stores", "", "stores give their place back when they have left"),
    ModelField("noc.kind", "noc.kind", "", "what joins compute units, memory and ports"),
    ModelField("noc.rows", "noc.rows", "", "of routers"),
    ModelField("noc.cols", "noc.cols", "", "of routers"),
    ModelField("noc.bandwidth", "noc.bytes_per_s", "rate", "of each link, one direction"),
    ModelField("noc.hop", "noc.hop_ps", "time", "a router and its wire, or once through the crossbar"),
    ModelField("memory.channels", "memory.num_channels", "", "of the memory"),
    ModelField("memory.bandwidth", "memory.bytes_per_s", "rate", "of each channel"),
    ModelField("memory.latency", "memory.latency_ps", "time", "of an access, beside its bytes"),
    ModelField("memory.interleave", "memory.interleave_bytes", "bytes", "then the next channel"),
    ModelField("l2.capacity", "l2.capacity_bytes", "bytes", "of all slices, one a channel"),
    ModelField("l2.ways", "l2.ways", "", "lines of a set"),
    ModelField("l2.bandwidth", "l2.bytes_per_s", "rate", "of each slice"),
    ModelField("l2.latency", "l2.latency_ps", "time", "of a hit, beside its bytes"),
    ModelField("ports.count", "ports.count", "", "to the fabric"),
    ModelField("ports.latency", "ports.latency_ps", "time", "each passage, out or in"),
    ModelField("ports.interleave", "ports.interleave_bytes", "bytes", "then the next port"),
    ModelField("ports.choice", "ports.choice", "", "of the port, from the address"),
    ModelField("ports.arbitration", "ports.arbitration", "", "between control and data that wait for a port"),
    ModelField("kernels.launch", "launch_ps", "time", "until the first workgroup of a kernel"),
    ModelField("kernels.dispatch", "dispatch_ps", "time", "between workgroups that the GPU starts"),
    ModelField("kernels.barrier", "barrier_ps", "time", "of the wavefronts of a workgroup"),
    ModelField("kernels.poll", "poll_ps", "time", "until a semaphore is read again; none: the memory answers"),
    ModelField("monitor.capacity", "monitor.capacity", "", "wavefronts that sleep at a time until a flag is written"),
    ModelField("monitor.wakeup", "monitor.wakeup_ps", "time", "from the write to the next request"),
    ModelField("dma.latency", "dma_ps", "time", "of a copy engine or NIC, to its first packet"),
    ModelField("dma.packet", "packet_bytes", "bytes", "of payload"),
    ModelField("dma.header", "packet_header_bytes", "bytes", "beside the payload"),
)
PATHS = tuple(field.path for field in FIELDS)
#: What a GPU may lack; ``none`` in a file.
OPTIONAL = ("l2", "monitor")
#: ``memory`` stands for all of ``memory.channels``, ``memory.bandwidth``, ...
GROUPS = tuple(dict.fromkeys(path.split(".")[0] for path in PATHS if "." in path))

_FORMATS = {"time": format_time, "bytes": format_bytes, "rate": format_bandwidth, "clock": format_clock}


def values(model: GpuModel) -> Iterator[tuple[ModelField, int | str | bool | None]]:
    """The fields that this model has, in order, with their values."""
    for field in FIELDS:
        group = field.path.partition(".")[0]
        if group in OPTIONAL and getattr(model, group) is None:
            continue
        if field.path in ("noc.rows", "noc.cols") and not attrgetter(field.attribute)(model):
            continue
        yield field, attrgetter(field.attribute)(model)


def shown(field: ModelField, value: int | str | bool | None) -> str:
    """A value for people, with its unit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMATS[field.unit](int(value)) if field.unit else str(value)
