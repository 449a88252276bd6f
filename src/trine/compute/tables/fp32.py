"""Float32 operator times from measured tables: GEMMs, convolutions, memory-bound operators.

Tables are NeuSight's (V100, P100, T4, A100 as PCIe cards, MI100, MI210; PyTorch 2.1, float32 without TF32) and, for
convolutions, DeepBench's and the bundled traces'. A GPU without a table uses its nearest sibling's times, scaled by the
ratio of the two rooflines (data sheets) at that shape, with evidence ``transferred``. Times cover kernels, without
NeuSight's launch; every kernel takes at least 3 us. For errors on held-out shapes see ``trine validate operators``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.arrays import Float64, Int64
from trine.compute.tables.fp32_files import BINARY, ELEMENTWISE, NEUSIGHT, folds, measured
from trine.compute.tables.kriging import Nearby

# Times of float32 operators of one kind on one GPU over shape: a roofline with a correction from measurements.
#
#     time = launch + max(FLOPs / rate, bytes / bandwidth) x exp(correction from measurements near the shape)
#
# ``rate`` is the rate of the fastest measurements. NeuSight's clock starts before the launch, so 0.03 to 0.1 ms of
# every time belong to the host. For GEMMs and convolutions this launch time is the time of the smallest GEMMs, with a
# negligible kernel time. For memory-bound operators it is the intercept of a line through the elementwise operators'
# times over bytes. :meth:`Fp32Surface.kernel_us` excludes it.
#
# :func:`asked` returns a shape's FLOPs, bytes, and variables that make its time smooth. Time is a staircase in
# tiles and waves, so sizes alone are not enough. The variables are the logarithms of the sizes, of the waves of
# 128 x 128 tiles over the compute units, and of the FLOPs per byte. For 3 x 3 convolutions, the fraction of Winograd's
# 4 x 4 tiles outside the image matters too.

_TILE = 128
#: 1.0 for operators that are compute-bound on some GPUs.
_SLOW = np.array([float(name in ("pow", "powu")) for name in ELEMENTWISE])
_STREAMS = np.array([3.0 if name in BINARY else 2.0 for name in ELEMENTWISE])
#: Passes over memory of operators on rows: read once, written once.
_ROWS = 2.0


class Demand(NamedTuple):
    """Demand of each shape: GEMM FLOPs (a multiply-add is two), bytes to and from memory, variables (shapes x d)."""

    flops: Float64
    bytes: Float64
    variables: Float64


def asked(table: str, shapes: Int64, compute_units: int) -> Demand:
    """Return the demand of ``shapes`` (n x columns, as in the table) on a GPU with ``compute_units`` compute units."""
    columns = shapes.astype(np.float64).T
    if table == "bmm":
        return _products(*columns, compute_units=compute_units)
    if table == "linear":
        return _products(np.ones(len(shapes)), *columns, compute_units=compute_units)
    if table == "conv":
        return _convolutions(columns, compute_units)
    rows, width = columns[-2:]
    streams, slow = _ROWS * np.ones(len(shapes)), np.zeros(len(shapes))
    if table == "elementwise":
        streams, slow = _STREAMS[shapes[:, 0]], 4 * _SLOW[shapes[:, 0]]
    num_bytes = 4 * streams * rows * width
    return Demand(np.zeros(len(shapes)), num_bytes, np.stack([np.log(rows), np.log(width), 2 * streams, slow], axis=1))


def _products(batch: Float64, m: Float64, n: Float64, k: Float64, *, compute_units: int) -> Demand:
    """Return the demand of ``batch`` products of m x k and k x n matrices."""
    flops, num_bytes = 2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n)
    sizes = [np.log(size) for size in (batch, m, n, k)]
    return Demand(
        flops, num_bytes, np.stack([*sizes, *_filling(batch, m, n, compute_units), _ratio(flops, num_bytes)], 1)
    )


def _convolutions(columns: Float64, compute_units: int) -> Demand:
    """Return the demand of square convolutions: batch, channels, output channels, filter, image, stride, padding."""
    batch, channels, out, filters, size, stride, padding = columns
    across = np.floor((size + 2 * padding - filters) / stride) + 1
    positions = batch * across**2
    flops = 2 * positions * out * channels * filters**2
    num_bytes = 4 * (batch * channels * size**2 + out * channels * filters**2 + positions * out)
    wasted = 2 * (across / (4 * np.ceil(across / 4))) ** 2
    sizes = [np.log(size) for size in (batch, channels, out, across)]
    filling = _filling(np.ones_like(out), positions, out, compute_units)
    return Demand(flops, num_bytes, np.stack([*sizes, *filling, _ratio(flops, num_bytes), wasted], axis=1))


def _filling(batch: Float64, m: Float64, n: Float64, compute_units: int) -> list[Float64]:
    """Return the weighted log of the waves of tiles; below a fifth of a wave, only a few units have one tile each."""
    waves = batch * np.ceil(m / _TILE) * np.ceil(n / _TILE) / compute_units
    return [0.5 * np.log(np.maximum(waves, 0.2))]


def _ratio(flops: Float64, num_bytes: Float64) -> Float64:
    ratio: Float64 = np.log(flops / num_bytes)
    return ratio


#: Fraction of data-sheet bandwidth that large operators reach; quantiles of the highest rate and the shortest time.
BANDWIDTH, FASTEST, _SHORTEST = 0.8, 0.98, 0.002
#: Weight of the logarithm of the roofline among the variables.
_BASE = 0.5
#: Table -> table with the launch as its shortest time; other tables use the elementwise operators' launch.
_LAUNCH = {"bmm": "bmm", "linear": "linear", "conv": "linear"}
#: Fixed time of every kernel in microseconds, as ``Shares.fixed_us`` of compute/roofline.py.
KERNEL_US = 3.0


class Fp32Surface:
    """Time over shape for one GPU and table, created by :func:`surface`. Times are microseconds."""

    def __init__(self, gpu: GpuSpec, table: str, shapes: Int64, times_us: Float64, launch_us: float) -> None:
        self.gpu, self.table, self.launch_us = gpu, table, launch_us
        flops = asked(table, shapes, gpu.num_compute_units).flops
        # FLOPs per microsecond; arbitrary for memory-bound operators
        self._rate = max(1.0, float(np.quantile(flops / times_us, FASTEST)))
        variables, base = self._variables(shapes)
        self._known = {tuple(shape): us for shape, us in zip(shapes.tolist(), times_us.tolist(), strict=True)}
        self._nearby = Nearby(variables, np.log(times_us) - base)

    def us(self, shapes: Int64) -> tuple[Float64, Float64]:
        """Return the times of ``shapes`` (n x columns) in us, launch included, and their distances to a measurement.

        A measured shape has its measured time.
        """
        variables, base = self._variables(shapes)
        residual, distance = self._nearby.at(variables)
        times = np.exp(base + residual)
        for row, shape in enumerate(shapes.tolist()):
            measured_us = self._known.get(tuple(shape))
            if measured_us is not None:
                times[row] = measured_us
        return times, distance

    def kernel_us(self, shapes: Int64) -> tuple[Float64, Float64]:
        """Return the same without the launch: at least the data-sheet roofline, plus ``KERNEL_US``."""
        times, distance = self.us(shapes)
        demand = asked(self.table, shapes, self.gpu.num_compute_units)
        least = np.maximum(demand.flops / self._rate, demand.bytes * 1e6 / self.gpu.memory_bytes_per_s)
        return np.maximum(times - self.launch_us, least) + KERNEL_US, distance

    def _variables(self, shapes: Int64) -> tuple[Float64, Float64]:
        """Return the variables, and the logarithm of the roofline."""
        demand = asked(self.table, shapes, self.gpu.num_compute_units)
        bytes_per_us = self.gpu.memory_bytes_per_s * BANDWIDTH / 1e6
        base = np.log(self.launch_us + np.maximum(demand.flops / self._rate, demand.bytes / bytes_per_us))
        return np.column_stack([demand.variables, _BASE * base]), base


@cache
def surface(gpu: str, table: str, *, without: int | None = None) -> Fp32Surface:
    """Return the surface of a GPU with this table. ``without``: the fold to leave out."""
    rows = measured(NEUSIGHT, table)
    times = rows.times_us[gpu]
    chosen = np.isfinite(times)
    if without is not None:
        chosen &= folds(NEUSIGHT, table) != without
    return Fp32Surface(load_gpu(gpu), table, rows.shapes[chosen], times[chosen], _launch_us(gpu, table))


@cache
def _launch_us(gpu: str, table: str) -> float:
    """Return the launch time in microseconds that every time of this table includes."""
    source = _LAUNCH.get(table, "elementwise")
    rows = measured(NEUSIGHT, source)
    times = rows.times_us[gpu]
    if source != "elementwise":
        return float(np.nanquantile(times, _SHORTEST))
    chosen = np.isfinite(times)
    num_bytes = asked(source, rows.shapes[chosen], 1).bytes
    return max(0.0, float(np.polyfit(num_bytes, times[chosen], 1)[1]))
