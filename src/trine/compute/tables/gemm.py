"""GEMM times from measured tables: a closed form for the known effects, kriging for the rest.

The closed form is a launch plus the larger of arithmetic and memory time. On machines with tiled kernels, arithmetic
runs in waves of tiles: the best of a few tiles and k splits, each with the peak share that its size allows. Between
measured shapes, log(measured / closed form) is interpolated over log2 of m, n and k.

The benchmark (aiconfigurator, collector/trtllm/collect_gemm.py) cycles through copies of the weights, enough to fill
the GPU's L2 but at most five. If they still fit (32, 48 or 96 MiB in 96 MiB, not 40 or 64), weights come from the
cache, two to three times as fast as from memory.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from trine.common.arrays import Bool, Float64, Int64
from trine.common.precision import PRECISIONS
from trine.compute.tables.files import log_us, read_arrays
from trine.compute.tables.kept_estimates import KeptEstimates
from trine.compute.tables.kriging import in_chunks, kriged, nearest_few
from trine.compute.tables.machine import Machine

#: Octaves over which residuals correlate, noise share of one measurement, and maximum number of neighbours.
OCTAVES, _NUGGET, _NEIGHBOURS = 8.0, 0.03, 32
#: Nearest values of each axis in the neighbour search.
_AROUND = (9, 5, 5)
_LAUNCH_US = 2.0
_MEMORY_SHARE = 0.85
_SMOOTH_SHARE = 0.8
#: rows and columns of a tile, and its share of the peak
_TILES = (
    (256, 128, 0.85), (128, 256, 0.85), (128, 128, 0.75), (128, 64, 0.6), (64, 128, 0.6), (64, 256, 0.75),
    (64, 64, 0.4), (32, 128, 0.4), (16, 128, 0.2),
)  # fmt: skip
_SPLITS = (1, 2, 4, 8)
#: Bytes of an operand's element, and of the result's.
_ITEM_BYTES = {precision.name: float(precision.bytes) for precision in PRECISIONS}
_OUT_BYTES = {precision.name: precision.result_bytes for precision in PRECISIONS}
_MAX_COPIES = 5
#: Relative overflow of the cache beyond which a working set comes wholly from memory, because reads are cyclic.
_SPILLING = 0.1
#: Octaves between shapes with weights from the cache and from memory, and between shapes with and without a ragged last
#: tile of rows, where libraries use other kernels; 4-bit kernels pad rows to 128 in any case.
_BETWEEN_LEVELS, _BETWEEN_TILES, _TILE_ROWS = 2.0, 0.2, 16
_PADDED = frozenset({"float4"})


def closed_form_us(m: Float64, n: Float64, k: Float64, machine: Machine, dtype: str) -> Float64:
    """Return microseconds of (m, k) x (k, n) alone on ``machine``; the arrays have one shape."""
    item, out = _ITEM_BYTES[dtype], _OUT_BYTES[dtype]
    spilled = _spilled(m, n, k, machine, item, out)
    num_bytes = item * (m * k + k * n) + out * m * n
    memory_s = num_bytes * spilled / (machine.bytes_per_s * _MEMORY_SHARE)
    if machine.cache_bytes:
        memory_s = memory_s + num_bytes * (1 - spilled) / machine.cache_bytes_per_s
    if machine.tiled:
        arithmetic = _tiled_s(m, n, k, machine)
    else:
        arithmetic = 2 * m * n * k / (machine.flop_per_s * _SMOOTH_SHARE)
    return np.asarray(np.maximum(arithmetic, memory_s) * 1e6 + _LAUNCH_US)


def _spilled(m: Float64, n: Float64, k: Float64, machine: Machine, item: float, out: float) -> Float64:
    """Return the share of the bytes that came from memory in the benchmark."""
    if not machine.cache_bytes:
        return np.ones(np.shape(m))
    weights = item * k * n
    copies = np.clip(np.ceil(machine.cache_bytes / weights), 1, _MAX_COPIES)
    excess = (copies * weights + item * m * k + out * m * n) / machine.cache_bytes - 1
    return np.asarray(np.clip(excess / _SPILLING, 0.0, 1.0))


def _tiled_s(m: Float64, n: Float64, k: Float64, machine: Machine) -> Float64:
    """Return seconds of the best tile: whole waves of tiles over all compute units, plus the reduction of k splits."""
    best = np.full(np.shape(m), math.inf)
    per_unit = machine.flop_per_s / machine.units
    for rows, columns, share in _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        for splits in _SPLITS:
            waves = np.ceil(tiles * splits / machine.units)
            seconds = waves * 2 * rows * columns * np.maximum(k / splits, 64) / (per_unit * share)
            if splits > 1:
                seconds = seconds + 4 * m * n * splits / machine.bytes_per_s
            best = np.minimum(best, seconds)
    return best


class GemmTable:
    """Measured GEMMs of one GPU and dtype."""

    def __init__(self, times: Float64, axes: tuple[Int64, Int64, Int64], machine: Machine, dtype: str) -> None:
        """Set the measurements. times: natural log of us over (m, n, k), NaN if unmeasured; axes: values of m, n, k."""
        self.times, self.axes, self.dtype = times, axes, dtype
        self._machine = machine
        self._logs = tuple(np.log2(axis) for axis in axes)
        self._estimates = KeptEstimates()

    @property
    def flop_per_s(self) -> float:
        """The peak in the closed form."""
        return self._machine.flop_per_s

    def without(self, hidden: Bool) -> GemmTable:
        """Return the table without the shapes in the mask ``hidden`` over (m, n, k)."""
        return GemmTable(np.where(hidden, np.nan, self.times), self.axes, self._machine, self.dtype)

    def measured(self, m: int, n: int, k: int) -> float | None:
        """Return the measured microseconds of this exact shape, or None."""
        position = []
        for axis, value in zip(self.axes, (m, n, k), strict=True):
            i = int(np.searchsorted(axis, value))
            if i == len(axis) or axis[i] != value:
                return None
            position.append(i)
        log_us = float(self.times[tuple(position)])
        return None if math.isnan(log_us) else math.exp(log_us)

    def estimate_us(self, shapes: Float64, target: Machine | None = None) -> Float64:
        """Return microseconds of each GEMM, (products, 3) of m, n, k; scaled to ``target`` by the closed form."""
        machine = target or self._machine

        def answer(part: slice) -> Float64:
            m, n, k = np.maximum(shapes[part].T, 1.0)
            residual = self._residual(self._place(m, n, k))
            return closed_form_us(m, n, k, machine, self.dtype) * np.exp(residual)

        return self._estimates.of(shapes, machine, lambda: in_chunks(len(shapes), answer))

    def _residual(self, queries: Float64) -> Float64:
        """Return log(measured / closed form) at (queries, coordinates of :meth:`_place`)."""
        nearby = [self._nearest(axis, queries[:, i], _AROUND[i]) for i, axis in enumerate(self._logs)]
        count = len(queries)
        shape = (count, *(part.shape[1] for part in nearby))
        i = np.broadcast_to(nearby[0][:, :, None, None], shape).reshape(count, -1)
        j = np.broadcast_to(nearby[1][:, None, :, None], shape).reshape(count, -1)
        k = np.broadcast_to(nearby[2][:, None, None, :], shape).reshape(count, -1)
        points = self._place(*(axis[index].astype(float) for axis, index in zip(self.axes, (i, j, k), strict=True)))
        distances = ((points - queries[:, None]) ** 2).sum(-1)
        distances[np.isnan(self.times[i, j, k])] = math.inf
        nearest = nearest_few(distances, _NEIGHBOURS)
        i, j, k = (np.take_along_axis(index, nearest, axis=1) for index in (i, j, k))
        points = np.take_along_axis(points, nearest[..., None], axis=1)
        m, n, inner = (axis[index].astype(float) for axis, index in zip(self.axes, (i, j, k), strict=True))
        values = self.times[i, j, k] - np.log(closed_form_us(m, n, inner, self._machine, self.dtype))
        lost = np.isnan(values)  # fewer measured neighbours than wanted: fill with far-away points at the mean
        if lost.any():
            points = np.where(lost[..., None], 1e6 + 1e4 * np.arange(values.shape[1])[None, :, None], points)
            values = np.where(lost, np.nanmean(values, axis=1, keepdims=True), values)
        return kriged(points / OCTAVES, values, queries / OCTAVES, _NUGGET)

    def _place(self, m: Float64, n: Float64, k: Float64) -> Float64:
        """Return a shape's coordinates in octaves, along a new last axis; with a cache, also the weights' source."""
        axes = [np.log2(m), np.log2(n), np.log2(k)]
        if self.dtype not in _PADDED:
            axes.append(_BETWEEN_TILES * ((m % _TILE_ROWS != 0) & (m > _TILE_ROWS)))
        if self._machine.cache_bytes:
            item, out = _ITEM_BYTES[self.dtype], _OUT_BYTES[self.dtype]
            axes.append(_BETWEEN_LEVELS * _spilled(m, n, k, self._machine, item, out))
        return np.stack(axes, axis=-1)

    @staticmethod
    def _nearest(axis: Float64, values: Float64, count: int) -> Int64:
        return nearest_few(np.abs(axis[None, :] - values[:, None]), count)


class ScatteredGemms(GemmTable):
    """Measured GEMMs of one GPU and dtype at any shapes: a few hundred, each compared with every query."""

    def __init__(self, shapes: Int64, logs: Float64, machine: Machine, dtype: str) -> None:
        """shapes: (rows, 3) of m, n, k; logs: natural log of us."""
        no_axis = np.empty(0, dtype=np.int64)
        super().__init__(np.empty((0, 0, 0)), (no_axis, no_axis, no_axis), machine, dtype)
        self._measured_us = {
            tuple(shape): math.exp(log) for shape, log in zip(shapes.tolist(), logs.tolist(), strict=True)
        }
        m, n, k = shapes.T.astype(float)
        self._points = self._place(m, n, k)
        self._residuals = logs - np.log(closed_form_us(m, n, k, machine, dtype))

    def measured(self, m: int, n: int, k: int) -> float | None:
        """Return the measured microseconds of this exact shape, or None."""
        return self._measured_us.get((m, n, k))

    def _residual(self, queries: Float64) -> Float64:
        distances = ((self._points[None] - queries[:, None]) ** 2).sum(-1)
        nearest = nearest_few(distances, _NEIGHBOURS)
        return kriged(self._points[nearest] / OCTAVES, self._residuals[nearest], queries / OCTAVES, _NUGGET)


@lru_cache(maxsize=32)
def load_gemm(gpu: str, dtype: str, machine: Machine) -> GemmTable | None:
    """Return the GEMM table of ``gpu`` in ``dtype`` (bfloat16, float8, float4), or None."""
    arrays = read_arrays(gpu)
    name = f"gemm_{dtype}"
    if name not in arrays:
        return None
    axes = tuple(np.asarray(arrays[f"{name}_{axis}"], dtype=np.int64) for axis in "mnk")
    return GemmTable(log_us(arrays[name]), axes, machine, dtype)  # type: ignore[arg-type]
