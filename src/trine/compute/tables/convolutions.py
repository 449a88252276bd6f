"""Measured times of convolutions: forward and gradients, by precision and GPU.

DeepBench's 90 layers (1 x 1 to 20 x 5, strides 1 and 2; of ResNet, VGG, DeepSpeech, ...) in float32 on V100, P100 and
T4 and in float16 on V100 and T4: each alone, with cuDNN's fastest algorithm. The layers of the bundled traces (VGG-13,
ResNet-50 on an H100, in TF32): inside a step, as PyTorch runs them; both gradients together.

A convolution is treated as an implicit GEMM: positions x channels of the output x (channels x filter). Groups count as
one GEMM with more positions and fewer channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.arrays import Float64, Int64
from trine.compute.tables.fp32_rows import DEEPBENCH, TRACES, measured
from trine.compute.tables.fp32_surface import KERNEL_US
from trine.compute.tables.kriging import Nearby
from trine.errors import InputError

#: Direction: the result, the gradient of the input or the weight, or both gradients.
FORWARD, INPUT, WEIGHT, BOTH = 0, 1, 2, 3
HALVES = ("float16", "bfloat16")
_FASTEST, _BANDWIDTH = 0.98, 0.8
#: Indexed by the dtype number in the tables; columns: dtype, pass, w, h, c, n, k, filter, padding, stride.
BENCH_DTYPES = ("float32", "float16", "tfloat32")
#: Fewer channels than this keep tensor cores idle.
FEW_CHANNELS = 8


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
        same = self.filter == (3, 3) and self.stride == (1, 1) and self.padding == (1, 1)
        return same and self.size[0] == self.size[1] and self.groups == 1

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
        self._rate = float(np.quantile(flops / times_us, _FASTEST))
        variables, base = self._of(layers)
        self._nearby = Nearby(variables, np.log(times_us) - base, nearest=30, nugget=0.1)

    def us(self, layers: list[Convolution]) -> Float64:
        """Return the microseconds of each layer."""
        variables, base = self._of(layers)
        found: Float64 = np.exp(base + self._nearby.at(variables)[0])
        return found

    def _of(self, layers: list[Convolution]) -> tuple[Float64, Float64]:
        m, n, k = np.array([layer.product for layer in layers], np.float64).T
        flops, num_bytes = np.array([layer.work(self._itemsize) for layer in layers]).T
        waves = np.ceil(m / 128) * np.ceil(n / 128) / self._gpu.num_compute_units
        bytes_per_us = self._gpu.memory_bytes_per_s * _BANDWIDTH / 1e6
        base = np.log(KERNEL_US + np.maximum(flops / self._rate, num_bytes / bytes_per_us))
        kinds = np.array([_kind(layer) for layer in layers], np.float64)
        smooth = [np.log(m) / 2, np.log(n), np.log(k), 0.5 * np.log(np.maximum(waves, 0.2)), np.log(flops / num_bytes)]
        return np.column_stack([*smooth, kinds, 0.5 * base]), base


def _kind(layer: Convolution) -> tuple[float, ...]:
    """Return features of the possible algorithms; layers that differ in one of these have little in common."""
    few = layer.channels // layer.groups < FEW_CHANNELS
    return 2.0 * (prod(layer.filter) == 1), 2.0 * (prod(layer.filter) > 9), 2.0 * (max(layer.stride) > 1), 6.0 * few


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
