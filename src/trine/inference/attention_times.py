"""Times of softmax attention over a paged KV cache: one query per sequence (decode), or the queries of a prompt.

Decode attention is memory-bound. Its measured time depends on the bytes it reads and, if few sequences share them, on
the number of sequences x KV heads. Prefill attention depends on its FLOPs. A chunk of ``new`` tokens
after ``cached`` ones has the FLOPs of the whole prompt less those among the cached tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import MODELLED
from trine.compute.tables.machine import peak_of
from trine.inference.kernel_tables import (
    KernelSource,
    bandwidth_ratio,
    kernel_arrays,
    kernel_source,
    log_times,
    peak_ratio,
)
from trine.inference.precision import KV_BYTES

#: Head sizes with measurements.
_HEAD_SIZES = (64, 128, 192, 256, 512)
#: Start of an attention kernel in microseconds, and its shares of bandwidth and peak, where nothing was measured: as in
#: trine.compute.tables.operators.
_START_US, _BANDWIDTH_SHARE, _PEAK_SHARE = 3.0, 0.85, 0.6
_KIB = 1024.0


@dataclass(frozen=True, slots=True)
class HeadShapes:
    """The heads of one attention layer on one GPU; value_size: features of a value."""

    queries: int
    keys: int
    size: int
    value_size: int

    @property
    def group(self) -> int:
        """Class of queries per key in the measurements: 1, 4 (two to eight), 16 (more)."""
        ratio = self.queries // self.keys
        return 1 if ratio == 1 else 4 if ratio <= 8 else 16


class AttentionTimes:
    """Softmax attention of one engine on one GPU, with one precision of the KV cache."""

    def __init__(self, gpu: GpuSpec, engine: str, kv: str) -> None:
        self._gpu, self._engine, self._kv = gpu, engine, kv
        self._item_bytes = KV_BYTES[kv]

    def decode_us(self, heads: HeadShapes, sequences: float, context: float) -> float:
        """Return microseconds of one layer for ``sequences`` queries, each over ``context`` cached tokens."""
        num_bytes = sequences * context * heads.keys * (heads.size + heads.value_size) * self._item_bytes
        rest = f"{self._kv}/{_head_size(heads.size)}/{heads.group}"
        source = kernel_source(self._gpu.name, "generation", self._engine, rest)
        if source is None:
            source = kernel_source(self._gpu.name, "generation", self._engine, f"{self._kv}/128/4")
        if source is None:
            return _START_US + 1e6 * num_bytes / (self._gpu.memory_bytes_per_s * _BANDWIDTH_SHARE)
        alike = max(num_bytes * bandwidth_ratio(source.gpu, self._gpu), _KIB)
        grid = _filled_grid(source.gpu.name, source.name)
        return math.exp(_bilinear(grid, math.log2(alike / _KIB), math.log2(max(1.0, sequences * heads.keys))))

    def prefill_us(self, heads: HeadShapes, new: float, cached: float, window: int = 0) -> float:
        """Return microseconds of one layer for a chunk of ``new`` tokens after ``cached`` ones."""
        flops = 2 * heads.queries * (heads.size + heads.value_size) * _pairs(new, cached, window)
        source = self._prefill_source(heads.size)
        if source is None:
            return _START_US + 1e6 * flops / (_PEAK_SHARE * peak_of(self._gpu, "bfloat16"))
        alike = max(flops * peak_ratio(source.gpu, self._gpu, "bfloat16") / 1e6, 1.0)
        curve = _filled_curve(source.gpu.name, source.name)
        return math.exp(float(np.interp(math.log2(alike), np.arange(len(curve)), curve)))

    def evidence(self) -> str:
        """Return the evidence of decode attention."""
        source = kernel_source(self._gpu.name, "generation", self._engine, f"{self._kv}/128/4")
        return MODELLED if source is None else source.evidence

    def _prefill_source(self, size: int) -> KernelSource | None:
        for kind in (self._kv, "bf16"):
            for head in (_head_size(size), 128):
                source = kernel_source(self._gpu.name, "context", self._engine, f"{kind}/{head}")
                if source is not None:
                    return source
        return None


class LatentTimes:
    """Latent attention (MLA) of one engine on one GPU, without its projections."""

    def __init__(self, gpu: GpuSpec, engine: str, kv: str) -> None:
        self._gpu, self._engine, self._kv = gpu, engine, kv

    def decode_us(self, heads: int, sequences: float, context: float, kept: int) -> float:
        """Return microseconds of one layer; kept: features that the cache holds of a token, shared by all heads."""
        source = kernel_source(self._gpu.name, "latent_generation", self._engine, self._kv)
        if source is None:
            num_bytes = sequences * context * kept * KV_BYTES[self._kv]
            flops = 4 * sequences * context * heads * kept
            return _START_US + 1e6 * max(
                num_bytes / (self._gpu.memory_bytes_per_s * _BANDWIDTH_SHARE),
                flops / (_PEAK_SHARE * peak_of(self._gpu, "bfloat16")),
            )
        alike = context * bandwidth_ratio(source.gpu, self._gpu)
        return _trilinear_us(source, heads, sequences, alike)

    def prefill_us(self, heads: int, size: int, value: int, new: float, cached: float) -> float:
        """Return microseconds of one layer for a chunk, with keys and values of each head."""
        source = kernel_source(self._gpu.name, "latent_context", self._engine, self._kv)
        flops = 2 * heads * (size + value) * _pairs(new, cached, 0)
        if source is None:
            return _START_US + 1e6 * flops / (_PEAK_SHARE * peak_of(self._gpu, "bfloat16"))
        length = math.sqrt(2 * _pairs(new, cached, 0) * peak_ratio(source.gpu, self._gpu, "bfloat16"))
        return _trilinear_us(source, heads, 1.0, length)


def _pairs(new: float, cached: float, window: int) -> float:
    """Return the pairs of query and key of a chunk: causal, in a window of the last tokens (0: none)."""
    pairs = new * cached + new * new / 2
    return min(pairs, new * window) if window else pairs


def _head_size(size: int) -> int:
    """Return the measured head size nearest to ``size``."""
    return min(_HEAD_SIZES, key=lambda known: abs(known - size))


@lru_cache(maxsize=256)
def _filled_grid(gpu: str, name: str) -> Float64:
    """Return a grid of log times; cells without a measurement take the nearest one's, along the items first."""
    return _filled(log_times(gpu, name))


@lru_cache(maxsize=256)
def _filled_curve(gpu: str, name: str) -> Float64:
    """Return a curve of log times over octaves, extended in proportion to the FLOPs."""
    return _along(log_times(gpu, name), math.log(2.0))


def _filled(grid: Float64) -> Float64:
    filled = grid.copy()
    for row in range(len(filled)):
        known = np.flatnonzero(~np.isnan(filled[row]))
        if len(known):
            filled[row] = np.interp(np.arange(filled.shape[1]), known, filled[row, known])
    for column in range(filled.shape[1]):
        filled[:, column] = _along(filled[:, column], math.log(2.0))
    return filled


def _along(values: Float64, slope: float) -> Float64:
    """Return values that never fall, with gaps interpolated; beyond the last they grow by ``slope`` an octave.

    The measured times scatter where a kernel has little to do; more work takes no less time.
    """
    known = np.flatnonzero(~np.isnan(values))
    octaves = np.arange(len(values))
    found = np.interp(octaves, known, values[known])
    beyond = octaves > known[-1]
    found[beyond] = values[known[-1]] + slope * (octaves[beyond] - known[-1])
    return np.maximum.accumulate(found)


def _bilinear(grid: Float64, x: float, y: float) -> float:
    """Return the value at (x, y); above the last row the time grows with the bytes."""
    excess = max(0.0, x - (grid.shape[0] - 1))
    x = min(max(x, 0.0), grid.shape[0] - 1.001)
    y = min(max(y, 0.0), grid.shape[1] - 1.001)
    i, j = int(x), int(y)
    a, b = x - i, y - j
    low = (1 - b) * grid[i, j] + b * grid[i, j + 1]
    high = (1 - b) * grid[i + 1, j] + b * grid[i + 1, j + 1]
    return float((1 - a) * low + a * high + excess * math.log(2.0))


def _trilinear_us(source: KernelSource, heads: float, batch: float, length: float) -> float:
    """Return microseconds of a table over (heads, batch, length), linear in the logarithms; longer: in proportion."""
    times, axes = _latent_table(source.gpu.name, source.name)
    weights = []
    factor = 1.0
    for axis, value in zip(axes, (heads, batch, length), strict=True):
        value = math.log2(max(value, 1.0))
        if value > axis[-1]:
            factor *= 2 ** (value - axis[-1])
        position = float(np.interp(value, axis, np.arange(len(axis))))
        i = min(int(position), len(axis) - 2)
        weights.append((i, position - i))
    total = 0.0
    for corner in range(8):
        share, place = 1.0, []
        for axis_number, (i, rest) in enumerate(weights):
            is_upper = corner >> axis_number & 1
            share *= rest if is_upper else 1 - rest
            place.append(i + is_upper)
        total += share * times[tuple(place)] if share else 0.0
    return math.exp(total) * factor


@lru_cache(maxsize=64)
def _latent_table(gpu: str, name: str) -> tuple[Float64, tuple[Float64, ...]]:
    """Return log times without gaps, and log2 of the axes.

    A batch without measurements takes the times of the nearest one, in proportion to the sequences.
    """
    arrays = kernel_arrays(gpu)
    times = log_times(gpu, name).copy()
    axes = tuple(np.log2(np.asarray(arrays[f"{name}/{label}"], dtype=float)) for label in ("heads", "batch", "length"))
    for table in times:
        known = [batch for batch in range(len(table)) if not np.isnan(table[batch]).all()]
        for batch in known:
            table[batch] = _along(table[batch], math.log(2.0))
        for batch in range(len(table)):
            if batch not in known:
                nearest = min(known, key=lambda other: abs(other - batch))
                table[batch] = table[nearest] + (axes[1][batch] - axes[1][nearest]) * math.log(2.0)
    return times, axes
