"""Forward attention from measured tables: a closed form and kriging, as in :mod:`trine.compute.tables.gemm`."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from trine.common.arrays import Bool, Float64, Int64
from trine.compute.tables.files import log_us, read_arrays
from trine.compute.tables.kept_estimates import KeptEstimates
from trine.compute.tables.kriging import in_chunks, kriged, nearest_few
from trine.compute.tables.machine import Machine

#: Correlation length of the residuals along each coordinate: head size / 64, window (none, long or short), log2 of
#: heads, of heads per key head, of the batch, of the length.
_ATTENTION_LENGTHS = np.array([2.0, 0.025, 6.0, 20.0, 6.0, 4.0])
_ATTENTION_NUGGET, _ATTENTION_NEIGHBOURS = 0.005, 32
_ATTENTION_LAUNCH_US, _ATTENTION_SHARE, _ATTENTION_MEMORY_SHARE = 3.0, 0.6, 0.85


def attention_us(shapes: Float64, machine: Machine) -> Float64:
    """Return closed-form microseconds of (rows, 6) shapes: size, window (0: none), heads, KV heads, batch, length."""
    size, window, heads, kv_heads, batch, length = shapes.T
    keys = np.where(window > 0, np.minimum(window, length), length)
    pairs = length * keys - keys * (keys - 1) / 2
    arithmetic = 4 * batch * heads * size * pairs / (machine.flop_per_s * _ATTENTION_SHARE)
    memory_s = 4 * batch * length * size * (heads + kv_heads) / (machine.bytes_per_s * _ATTENTION_MEMORY_SHARE)
    return np.asarray(np.maximum(arithmetic, memory_s) * 1e6 + _ATTENTION_LAUNCH_US)


def _attention_coordinates(shapes: Float64) -> Float64:
    size, window, heads, kv_heads, batch, length = shapes.T
    kind = np.where(window == 0, 0.0, np.where(window < 1024, 2.0, 1.0))
    parts = [size / 64, kind, np.log2(heads), np.log2(heads / kv_heads), np.log2(batch), np.log2(length)]
    return np.asarray(np.stack(parts, axis=1) / _ATTENTION_LENGTHS)


class AttentionTable:
    """Measured 16-bit attention times of one GPU."""

    def __init__(self, shapes: Int64, times: Float64, machine: Machine, shortest_us: float = 0.0) -> None:
        """shapes: (rows, 6) as :func:`attention_us`; times: natural logarithm of microseconds.

        shortest_us: lower bound of estimates: the launch, in a table with few short sequences.
        """
        self.shapes, self.times, self._shortest_us = shapes, times, shortest_us
        self._machine = machine
        self._points = _attention_coordinates(shapes.astype(float))
        self._residuals = times - np.log(attention_us(shapes.astype(float), machine))
        self._estimates = KeptEstimates()

    def without(self, hidden: Bool) -> AttentionTable:
        """Return the table without the rows marked in ``hidden``."""
        return AttentionTable(self.shapes[~hidden], self.times[~hidden], self._machine, self._shortest_us)

    def measured(self, shape: tuple[int, ...]) -> float | None:
        """Return the measured time of exactly this shape in microseconds, or None."""
        rows = np.flatnonzero((self.shapes == np.array(shape)).all(axis=1))
        return math.exp(float(self.times[rows[0]])) if len(rows) else None

    def estimate_us(self, shapes: Float64, target: Machine | None = None) -> Float64:
        """Return microseconds of (rows, 6) shapes, on this GPU or scaled to ``target`` by the closed form."""
        machine = target or self._machine

        def answer(part: slice) -> Float64:
            queries = _attention_coordinates(shapes[part])
            distances = np.zeros((len(queries), len(self._points)))
            for axis in range(queries.shape[1]):
                distances += (queries[:, axis, None] - self._points[None, :, axis]) ** 2
            nearest = nearest_few(distances, _ATTENTION_NEIGHBOURS)
            residual = kriged(self._points[nearest], self._residuals[nearest], queries, _ATTENTION_NUGGET)
            us = attention_us(shapes[part], machine) * np.exp(residual)
            return np.asarray(np.maximum(us, self._shortest_us))

        return self._estimates.of(shapes, machine, lambda: in_chunks(len(shapes), answer))


@lru_cache(maxsize=32)
def load_attention(gpu: str, machine: Machine) -> AttentionTable | None:
    """Return the measured attention of ``gpu``, or None."""
    arrays = read_arrays(gpu)
    if "attention" not in arrays:
        return None
    return AttentionTable(np.asarray(arrays["attention"], dtype=np.int64), log_us(arrays["attention_time"]), machine)
