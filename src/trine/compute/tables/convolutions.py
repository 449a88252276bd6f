"""Measured times of convolutions: forward and gradients, by precision and GPU.

DeepBench's 90 layers (1 x 1 to 20 x 5, strides 1 and 2; of ResNet, VGG, DeepSpeech, ...) in float32 on V100, P100 and
T4 and in float16 on V100 and T4: each alone, with cuDNN's fastest algorithm. The layers of the bundled traces
(VGG-13, ResNet-50 on an H100, in TF32): inside a step, as PyTorch runs them; both gradients together.

A convolution is treated as an implicit GEMM: positions x channels of the output x (channels x filter). Groups count
as one GEMM with more positions and fewer channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

import numpy as np

from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.arrays import Float64, Int64
from trine.common.evidence import ASSUMED, INTERPOLATED, MEASURED, MODELLED, TRANSFERRED
from trine.common.precision import HALVES
from trine.compute.cost import Work
from trine.compute.roofline import least_time_s, peak
from trine.compute.tables.files import TableTime
from trine.compute.tables.fp32 import BANDWIDTH, FASTEST, KERNEL_US, surface
from trine.compute.tables.fp32_files import DEEPBENCH, ELEMENTWISE, NEUSIGHT, TRACES, measured
from trine.compute.tables.kriging import Nearby
from trine.compute.tables.machine import generation_of
from trine.errors import InputError, nearest

#: Direction: the result, the gradient of the input or the weight, or both gradients.
FORWARD, INPUT, WEIGHT, BOTH = 0, 1, 2, 3
#: Indexed by the dtype number in the tables; columns: dtype, pass, w, h, c, n, k, filter, padding, stride.
BENCH_DTYPES = ("float32", "float16", "tfloat32")
#: Fewer channels than this keep tensor cores idle.
MIN_CHANNELS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """Sizes of a two-dimensional convolution. ``size``, ``filter``, ``stride``, ``padding``: height and width."""

    batch: int
    channels: int
    out: int
    size: tuple[int, int]
    filter: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = (self.batch, self.channels, self.out, *self.size, *self.filter, *self.stride, self.groups)
        if min(sizes) < 1 or min(self.padding) < 0 or self.channels % self.groups or self.out % self.groups:
            raise InputError("sizes must be at least 1, and channels multiples of the groups", field="convolution")
        if min(self.across) < 1:
            raise InputError("the filter is larger than the image with its padding", field="convolution")

    @property
    def across(self) -> tuple[int, int]:
        """Height and width of the output."""
        high, wide = (
            (size + 2 * padding - taps) // stride + 1
            for size, padding, taps, stride in zip(self.size, self.padding, self.filter, self.stride, strict=True)
        )
        return high, wide

    @property
    def product(self) -> tuple[int, int, int]:
        """m, n, k of the implicit GEMM."""
        positions = self.batch * prod(self.across) * self.groups
        return positions, self.out // self.groups, self.channels // self.groups * prod(self.filter)

    @property
    def is_plain(self) -> bool:
        """Whether NeuSight's table covers the layer: 3 x 3, stride 1, padding 1, a square image, no groups."""
        is_standard = self.filter == (3, 3) and self.stride == (1, 1) and self.padding == (1, 1)
        return is_standard and self.size[0] == self.size[1] and self.groups == 1

    def work(self, itemsize: int) -> tuple[float, float]:
        """Return FLOPs and bytes."""
        m, n, k = self.product
        read = self.batch * self.channels * prod(self.size) + n * k * self.groups
        return 2.0 * m * n * k, float(itemsize * (read + self.batch * self.out * prod(self.across)))


class BenchSurface:
    """Measured convolution times of one precision, pass and GPU, interpolated over shape. Made by :func:`bench`."""

    def __init__(self, gpu: GpuSpec, dtype: str, layers: list[Convolution], times_us: Float64) -> None:
        self._gpu, self._itemsize = gpu, 2 if dtype in HALVES else 4
        flops = np.array([layer.work(self._itemsize)[0] for layer in layers])
        self._rate = float(np.quantile(flops / times_us, FASTEST))
        variables, base = self._variables(layers)
        self._nearby = Nearby(variables, np.log(times_us) - base, nearest=30, nugget=0.1)

    def us(self, layers: list[Convolution]) -> Float64:
        """Return the microseconds of each layer."""
        variables, base = self._variables(layers)
        times: Float64 = np.exp(base + self._nearby.at(variables)[0])
        return times

    def _variables(self, layers: list[Convolution]) -> tuple[Float64, Float64]:
        m, n, k = np.array([layer.product for layer in layers], np.float64).T
        flops, num_bytes = np.array([layer.work(self._itemsize) for layer in layers]).T
        waves = np.ceil(m / 128) * np.ceil(n / 128) / self._gpu.num_compute_units
        bytes_per_us = self._gpu.memory_bytes_per_s * BANDWIDTH / 1e6
        base = np.log(KERNEL_US + np.maximum(flops / self._rate, num_bytes / bytes_per_us))
        kinds = np.array([_kind(layer) for layer in layers], np.float64)
        smooth = [np.log(m) / 2, np.log(n), np.log(k), 0.5 * np.log(np.maximum(waves, 0.2)), np.log(flops / num_bytes)]
        return np.column_stack([*smooth, kinds, 0.5 * base]), base


def _kind(layer: Convolution) -> tuple[float, ...]:
    """Return features of the possible algorithms; layers that differ in one of these have little in common."""
    narrow = layer.channels // layer.groups < MIN_CHANNELS
    return 2.0 * (prod(layer.filter) == 1), 2.0 * (prod(layer.filter) > 9), 2.0 * (max(layer.stride) > 1), 6.0 * narrow


@cache
def bench(gpu: str, dtype: str, direction: int, without: int | None = None) -> BenchSurface:
    """Return the surface of a measured GPU. ``without``: the fifth of the rows (by row number) to exclude."""
    rows, times = bench_rows(gpu, dtype, direction)
    chosen = np.arange(len(times)) % 5 != (-1 if without is None else without)
    layers = [layer for layer, use in zip(rows, chosen, strict=True) if use]
    return BenchSurface(load_gpu(gpu), dtype, layers, times[chosen])


def bench_gpus() -> tuple[str, ...]:
    """Return the GPUs with measured convolutions."""
    return tuple(dict.fromkeys(gpu for path in (DEEPBENCH, TRACES) for gpu in measured(path, "conv").times_us))


def bench_rows(gpu: str, dtype: str, direction: int) -> tuple[list[Convolution], Float64]:
    """Return measured layers and their times in microseconds, both empty without measurements."""
    table = measured(TRACES if dtype == "tfloat32" else DEEPBENCH, "conv")
    times = table.times_us.get(gpu, np.full(len(table.shapes), np.nan))
    number = BENCH_DTYPES.index(dtype)
    chosen = (table.shapes[:, 0] == number) & (table.shapes[:, 1] == direction) & np.isfinite(times)
    return [_layer(row) for row in table.shapes[chosen]], times[chosen]


def _layer(row: Int64) -> Convolution:
    wide, high, channels, batch, out, *taps = (int(x) for x in row[2:])
    return Convolution(
        batch=batch, channels=channels, out=out, size=(high, wide), filter=(taps[1], taps[0]),
        padding=(taps[3], taps[2]), stride=(taps[5], taps[4]),
    )  # fmt: skip


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


def table_of(gpu: GpuSpec, table: str = "bmm") -> str | None:
    """Return the GPU of the NeuSight table for ``gpu``: itself, a sibling, or None."""
    known = measured(NEUSIGHT, table).times_us
    name = gpu.name if gpu.name in known else SIBLINGS.get(generation_of(gpu.name))
    return name if name in known else None


def product(gpu: GpuSpec, m: int, n: int, k: int, batch: int = 1) -> TableTime | None:
    """Return the time of ``batch`` products of m x k and k x n matrices in float32; None without a table."""
    if min(m, n, k, batch) < 1:
        raise InputError(f"sizes of a product must be at least 1, got {batch} x {m} x {n} x {k}", field="product")
    table, shape = ("linear", (m, n, k)) if batch == 1 else ("bmm", (batch, m, n, k))
    amount = Work(2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n))
    return _by_table(gpu, table, shape, amount)


def on_rows(gpu: GpuSpec, table: str, rows: int, width: int) -> TableTime | None:
    """Return the time of ``layer_norm`` or ``softmax`` over (rows, width) in float32; None without a table."""
    if table not in ("layer_norm", "softmax"):
        raise InputError(f"no table of {table!r}{nearest(table, ('layer_norm', 'softmax'))}", field="table")
    return _by_table(gpu, table, (max(1, rows), max(1, width)), Work(0, 8 * rows * width))


def moving(gpu: GpuSpec, num_bytes: int) -> TableTime | None:
    """Return the time of an elementwise operator that moves ``num_bytes`` in all; None without a table."""
    rows = max(1, round(num_bytes / (8 * _WIDTH)))
    time = _by_table(gpu, "elementwise", (_UNARY, rows, _WIDTH), Work(0, num_bytes))
    if time is None or num_bytes >= 8 * _WIDTH:
        return time
    return TableTime(KERNEL_US + (time.us - KERNEL_US) * num_bytes / (8 * _WIDTH), time.evidence)


@lru_cache(maxsize=65536)
def _surface_time(name: str, table: str, shape: tuple[int, ...]) -> tuple[float, str]:
    times, distance = surface(name, table).kernel_us(np.array([shape], np.int64))
    known = distance[0] == 0.0
    return float(times[0]), MEASURED if known else INTERPOLATED if distance[0] <= _FAR else MODELLED


def _by_table(gpu: GpuSpec, table: str, shape: tuple[int, ...], amount: Work) -> TableTime | None:
    name = table_of(gpu, table)
    if name is None:
        return None
    us, evidence = _surface_time(name, table, shape)
    if name == gpu.name:
        return TableTime(us, evidence)
    ratio = least_time_s(gpu, amount, "float32") / least_time_s(load_gpu(name), amount, "float32")
    return TableTime(KERNEL_US + (us - KERNEL_US) * ratio, TRANSFERRED)


def convolution(gpu: GpuSpec, layer: Convolution, dtype: str = "float32", direction: int = FORWARD) -> TableTime:
    """Return the time of a convolution on ``gpu`` in one direction: FORWARD, INPUT or WEIGHT (its gradients).

    dtype: of the arithmetic: 'float32', 'tfloat32', 'float16' or 'bfloat16' (amp, with float32 sums). Measurements
    cover float32 on V100, P100 and T4, float16 on V100 and T4, and TF32 on H100. Other GPUs scale the V100's float32 by
    the ratio of NeuSight's tables at that shape (3 x 3, stride 1) or of the rooflines. TF32, and 16 bits on a GPU with
    TF32, scale the H100's TF32 by the ratio of the rooflines. On the H100 float32 takes at least the time of TF32.

    Raises InputError: a dtype without a peak on the GPU, or an unknown direction.
    """
    if direction not in (FORWARD, INPUT, WEIGHT):
        raise InputError(f"must be 0 (forward), 1 (input) or 2 (weight), got {direction!r}", field="direction")
    peak(gpu, dtype)
    if dtype == "tfloat32" and "tfloat32" not in gpu.flop_per_s:
        dtype = "float32"
    time = _convolution(gpu, layer, dtype, direction)
    if dtype != "float32" or gpu.name != _TRACED:
        return time
    least = _convolution(gpu, layer, "tfloat32", direction)
    return time if time.us >= least.us else TableTime(least.us, time.evidence)


def _convolution(gpu: GpuSpec, layer: Convolution, dtype: str, direction: int) -> TableTime:
    source, precision = _measured_for(gpu, dtype)
    if source != gpu.name and dtype == "float32" and layer.is_plain:
        time = _by_both_tables(gpu, layer, direction)
        if time is not None:
            return time
    us = _traced_us(layer, direction) if precision == "tfloat32" else _bench_us(source, precision, direction, layer)
    if source == gpu.name and precision == ("float16" if dtype in HALVES else dtype):
        return TableTime(us, INTERPOLATED if layer.groups == 1 else MODELLED)
    ratio = _roofline_s(gpu, layer, dtype) / _roofline_s(load_gpu(source), layer, precision)
    word = TRANSFERRED if layer.groups == 1 else ASSUMED
    return TableTime(KERNEL_US + max(0.0, us - KERNEL_US) * ratio, word)


def _measured_for(gpu: GpuSpec, dtype: str) -> tuple[str, str]:
    """Return the GPU and the precision of the convolution measurements for a GPU."""
    if dtype != "float32" and "tfloat32" in gpu.flop_per_s:
        return _TRACED, "tfloat32"
    is_measured = gpu.name in bench_gpus() and bool(bench_rows(gpu.name, "float32", FORWARD)[0])
    source = gpu.name if is_measured else _BENCH_SIBLINGS.get(gpu.name, "v100")
    has_halves = bool(bench_rows(source, "float16", FORWARD)[0])
    return source, "float16" if dtype in HALVES and has_halves else "float32"


def _traced_us(layer: Convolution, direction: int) -> float:
    """Return the H100's TF32 time; its combined gradients are split as the V100's in float16."""
    if direction == FORWARD or (direction == WEIGHT and layer.channels // layer.groups < MIN_CHANNELS):
        return _bench_us(_TRACED, "tfloat32", direction, layer)
    parts = {part: _bench_us("v100", "float16", part, layer) for part in (INPUT, WEIGHT)}
    return _bench_us(_TRACED, "tfloat32", BOTH, layer) * parts[direction] / sum(parts.values())


def _by_both_tables(gpu: GpuSpec, layer: Convolution, direction: int) -> TableTime | None:
    """Return the V100's DeepBench time, scaled by the ratio of NeuSight's times on ``gpu`` and the V100."""
    shape = (layer.batch, layer.channels, layer.out, layer.filter[0], layer.size[0], layer.stride[0], layer.padding[0])
    amount = Work(*(int(x) for x in layer.work(4)))
    time, v100_time = _by_table(gpu, "conv", shape, amount), _by_table(load_gpu("v100"), "conv", shape, amount)
    if time is None or v100_time is None:
        return None
    return TableTime(_bench_us("v100", "float32", direction, layer) * time.us / v100_time.us, TRANSFERRED)


@lru_cache(maxsize=65536)
def _bench_us(gpu: str, dtype: str, direction: int, layer: Convolution) -> float:
    return float(bench(gpu, dtype, direction).us([layer])[0])


def _roofline_s(gpu: GpuSpec, layer: Convolution, dtype: str) -> float:
    flops, num_bytes = layer.work(2 if dtype in HALVES else 4)
    return max(flops / peak(gpu, dtype), num_bytes / gpu.memory_bytes_per_s)
