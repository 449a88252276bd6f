"""Float32 operator times from measured tables: GEMMs, convolutions, memory-bound operators.

Tables are NeuSight's (V100, P100, T4, A100 as PCIe cards, MI100, MI210; PyTorch 2.1, float32 without TF32) and, for
convolutions, DeepBench's and the bundled traces'. A GPU without a table uses its nearest sibling's times, scaled by the
ratio of the two rooflines (data sheets) at that shape, with evidence ``transferred``. Times cover kernels, without
NeuSight's launch; every kernel takes at least 3 us. For errors on held-out shapes see ``trine validate operators``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.evidence import ASSUMED, EVIDENCE, INTERPOLATED, MEASURED, MODELLED, TRANSFERRED
from trine.compute.cost import Work
from trine.compute.roofline import least_time_s, peak
from trine.compute.tables import convolutions as conv
from trine.compute.tables.fp32_rows import ELEMENTWISE, NEUSIGHT, measured
from trine.compute.tables.fp32_surface import KERNEL_US, surface
from trine.compute.tables.machine import generation_of
from trine.errors import InputError, nearest

#: Table for GPUs of a generation without their own: another board of it, else the nearest generation of the vendor.
SIBLINGS = {
    "pascal": "p100-pcie", "volta": "v100-pcie", "turing": "t4",
    **dict.fromkeys(("ampere", "ampere-gddr", "ada", "hopper", "blackwell", "blackwell-gddr"), "a100-pcie-40gb"),
    **dict.fromkeys(("cdna", "cdna3", "cdna4"), "mi210"),
}  # fmt: skip
_BENCH_SIBLINGS = {"v100-pcie": "v100", "p100": "p100-pcie"}
#: GPU of the traces with TF32 convolutions.
_TRACED = "h100-sxm"
#: Beyond this distance in the variables from every measurement: the roofline, fitted to the others.
_FAR = 1.5
_WIDTH = 1024
_UNARY = ELEMENTWISE.index("addu")


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of an operator. ``us``: microseconds of its kernels. ``evidence``: a kind in trine.common.evidence."""

    us: float
    evidence: str


def table_of(gpu: GpuSpec, table: str = "bmm") -> str | None:
    """Return the GPU of the NeuSight table for ``gpu``: itself, a sibling, or None."""
    known = measured(NEUSIGHT, table).times_us
    name = gpu.name if gpu.name in known else SIBLINGS.get(generation_of(gpu.name))
    return name if name in known else None


def product(gpu: GpuSpec, m: int, n: int, k: int, batch: int = 1) -> KernelTime | None:
    """Return the time of ``batch`` products of m x k and k x n matrices in float32; None without a table."""
    if min(m, n, k, batch) < 1:
        raise InputError(f"sizes of a product must be at least 1, got {batch} x {m} x {n} x {k}", field="product")
    table, shape = ("linear", (m, n, k)) if batch == 1 else ("bmm", (batch, m, n, k))
    amount = Work(2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n))
    return _by_table(gpu, table, shape, amount)


def on_rows(gpu: GpuSpec, table: str, rows: int, width: int) -> KernelTime | None:
    """Return the time of ``layer_norm`` or ``softmax`` over (rows, width) in float32; None without a table."""
    if table not in ("layer_norm", "softmax"):
        raise InputError(f"no table of {table!r}{nearest(table, ('layer_norm', 'softmax'))}", field="table")
    return _by_table(gpu, table, (max(1, rows), max(1, width)), Work(0, 8 * rows * width))


def moving(gpu: GpuSpec, num_bytes: int) -> KernelTime | None:
    """Return the time of an elementwise operator that moves ``num_bytes`` in all; None without a table."""
    rows = max(1, round(num_bytes / (8 * _WIDTH)))
    found = _by_table(gpu, "elementwise", (_UNARY, rows, _WIDTH), Work(0, num_bytes))
    if found is None or num_bytes >= 8 * _WIDTH:
        return found
    return KernelTime(KERNEL_US + (found.us - KERNEL_US) * num_bytes / (8 * _WIDTH), found.evidence)


@lru_cache(maxsize=65536)
def _asked(name: str, table: str, shape: tuple[int, ...]) -> tuple[float, str]:
    times, distance = surface(name, table).kernel_us(np.array([shape], np.int64))
    known = distance[0] == 0.0
    return float(times[0]), MEASURED if known else INTERPOLATED if distance[0] <= _FAR else MODELLED


def _by_table(gpu: GpuSpec, table: str, shape: tuple[int, ...], amount: Work) -> KernelTime | None:
    name = table_of(gpu, table)
    if name is None:
        return None
    us, evidence = _asked(name, table, shape)
    if name == gpu.name:
        return KernelTime(us, evidence)
    ratio = least_time_s(gpu, amount, "float32") / least_time_s(load_gpu(name), amount, "float32")
    return KernelTime(KERNEL_US + (us - KERNEL_US) * ratio, TRANSFERRED)


def convolution(
    gpu: GpuSpec, layer: conv.Convolution, dtype: str = "float32", direction: int = conv.FORWARD
) -> KernelTime:
    """Return the time of a convolution on ``gpu`` in one direction: FORWARD, INPUT or WEIGHT (its gradients).

    dtype: of the arithmetic: 'float32', 'tfloat32', 'float16' or 'bfloat16' (amp, with float32 sums). Measurements
    cover float32 on V100, P100 and T4, float16 on V100 and T4, and TF32 on H100. Other GPUs scale the V100's float32 by
    the ratio of NeuSight's tables at that shape (3 x 3, stride 1) or of the rooflines. TF32, and 16 bits on a GPU with
    TF32, scale the H100's TF32 by the ratio of the rooflines.

    Raises InputError: a dtype without a peak on the GPU, or an unknown direction.
    """
    if direction not in (conv.FORWARD, conv.INPUT, conv.WEIGHT):
        raise InputError(f"must be 0 (forward), 1 (input) or 2 (weight), got {direction!r}", field="direction")
    peak(gpu, dtype)
    if dtype == "tfloat32" and "tfloat32" not in gpu.flop_per_s:
        dtype = "float32"
    whose, kept = _measured_for(gpu, dtype)
    if whose != gpu.name and dtype == "float32" and layer.is_plain:
        found = _by_both_tables(gpu, layer, direction)
        if found is not None:
            return found
    us = _traced_us(layer, direction) if kept == "tfloat32" else _bench_us(whose, kept, direction, layer)
    if whose == gpu.name and kept == ("float16" if dtype in conv.HALVES else dtype):
        return KernelTime(us, INTERPOLATED if layer.groups == 1 else MODELLED)
    ratio = _roofline_s(gpu, layer, dtype) / _roofline_s(load_gpu(whose), layer, kept)
    word = TRANSFERRED if layer.groups == 1 else ASSUMED
    return KernelTime(KERNEL_US + max(0.0, us - KERNEL_US) * ratio, word)


def _measured_for(gpu: GpuSpec, dtype: str) -> tuple[str, str]:
    """Return the GPU and the precision of the convolution measurements for a GPU."""
    if dtype != "float32" and "tfloat32" in gpu.flop_per_s:
        return _TRACED, "tfloat32"
    whose = gpu.name if gpu.name in conv.bench_gpus() else _BENCH_SIBLINGS.get(gpu.name, "v100")
    has_halves = bool(conv.bench_rows(whose, "float16", conv.FORWARD)[0])
    return whose, "float16" if dtype in conv.HALVES and has_halves else "float32"


def _traced_us(layer: conv.Convolution, direction: int) -> float:
    """Return the H100's TF32 time; its combined gradients are split as the V100's in float16."""
    if direction == conv.FORWARD or (direction == conv.WEIGHT and layer.channels // layer.groups < conv.FEW_CHANNELS):
        return _bench_us(_TRACED, "tfloat32", direction, layer)
    parts = {part: _bench_us("v100", "float16", part, layer) for part in (conv.INPUT, conv.WEIGHT)}
    return _bench_us(_TRACED, "tfloat32", conv.BOTH, layer) * parts[direction] / sum(parts.values())


def _by_both_tables(gpu: GpuSpec, layer: conv.Convolution, direction: int) -> KernelTime | None:
    """Return the V100's DeepBench time, scaled by the ratio of NeuSight's times on ``gpu`` and the V100."""
    shape = (layer.batch, layer.channels, layer.out, layer.filter[0], layer.size[0], layer.stride[0], layer.padding[0])
    amount = Work(*(int(x) for x in layer.work(4)))
    here, there = _by_table(gpu, "conv", shape, amount), _by_table(load_gpu("v100"), "conv", shape, amount)
    if here is None or there is None:
        return None
    return KernelTime(_bench_us("v100", "float32", direction, layer) * here.us / there.us, TRANSFERRED)


@lru_cache(maxsize=65536)
def _bench_us(gpu: str, dtype: str, direction: int, layer: conv.Convolution) -> float:
    return float(conv.bench(gpu, dtype, direction).us([layer])[0])


def _roofline_s(gpu: GpuSpec, layer: conv.Convolution, dtype: str) -> float:
    flops, num_bytes = layer.work(2 if dtype in conv.HALVES else 4)
    return max(flops / peak(gpu, dtype), num_bytes / gpu.memory_bytes_per_s)


def less_sure(one: str, other: str) -> str:
    """Return the less certain of two kinds of evidence."""
    return max(one, other, key=EVIDENCE.index)
