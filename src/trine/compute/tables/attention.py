"""Time of fused attention from measured ones: a closed form and kriging, as :mod:`trine.compute.tables.gemm`.

Measured is the forward pass over whole sequences under a causal mask, with and without a sliding window.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from trine.arrays import Bool, Float64, Int64
from trine.compute.tables.files import log_us, read_arrays
from trine.compute.tables.kriging import in_chunks, kriged, nearest_few
from trine.compute.tables.machine import Machine

#: Over how much of each coordinate residuals correlate: head size / 64, window (told apart), log2 of heads, of heads a
#: key head, of the batch, of the length.
_LENGTHS = np.array([2.0, 0.025, 6.0, 20.0, 6.0, 4.0])
_NUGGET, _NEIGHBOURS = 0.005, 32
_LAUNCH_US, _SHARE, _MEMORY_SHARE = 3.0, 0.6, 0.85


def closed_form_us(shapes: Float64, machine: Machine) -> Float64:
    """Microseconds of (rows, 6) shapes: head size, window (0: none), heads, heads of keys, batch, length."""
    size, window, heads, kv_heads, batch, length = shapes.T
    seen = np.where(window > 0, np.minimum(window, length), length)
    pairs = length * seen - seen * (seen - 1) / 2
    arithmetic = 4 * batch * heads * size * pairs / (machine.flop_per_s * _SHARE)
    moved = 4 * batch * length * size * (heads + kv_heads) / (machine.bytes_per_s * _MEMORY_SHARE)
    return np.asarray(np.maximum(arithmetic, moved) * 1e6 + _LAUNCH_US)


def _coordinates(shapes: Float64) -> Float64:
    size, window, heads, kv_heads, batch, length = shapes.T
    kind = np.where(window == 0, 0.0, np.where(window < 1024, 2.0, 1.0))
    parts = [size / 64, kind, np.log2(heads), np.log2(heads / kv_heads), np.log2(batch), np.log2(length)]
    return np.asarray(np.stack(parts, axis=1) / _LENGTHS)


class AttentionTable:
    """Measured attention of one GPU in 16 bits."""

    def __init__(self, shapes: Int64, times: Float64, machine: Machine) -> None:
        """shapes: (rows, 6) as :func:`closed_form_us`; times: natural logarithm of microseconds."""
        self.shapes, self.times = shapes, times
        self._machine = machine
        self._points = _coordinates(shapes.astype(float))
        self._residuals = times - np.log(closed_form_us(shapes.astype(float), machine))

    def without(self, hidden: Bool) -> AttentionTable:
        """The table less some of its rows."""
        return AttentionTable(self.shapes[~hidden], self.times[~hidden], self._machine)

    def measured(self, shape: tuple[int, ...]) -> float | None:
        """Microseconds that this very shape took, None if it was not measured."""
        rows = np.flatnonzero((self.shapes == np.array(shape)).all(axis=1))
        return math.exp(float(self.times[rows[0]])) if len(rows) else None

    def estimate_us(self, shapes: Float64, target: Machine | None = None) -> Float64:
        """Microseconds of (rows, 6) shapes; on ``target`` as its closed form says."""

        def answer(part: slice) -> Float64:
            queries = _coordinates(shapes[part])
            distances = np.zeros((len(queries), len(self._points)))
            for axis in range(queries.shape[1]):
                distances += (queries[:, axis, None] - self._points[None, :, axis]) ** 2
            few = nearest_few(distances, _NEIGHBOURS)
            residual = kriged(self._points[few], self._residuals[few], queries, _NUGGET)
            return closed_form_us(shapes[part], target or self._machine) * np.exp(residual)

        return in_chunks(len(shapes), answer)


@lru_cache(maxsize=32)
def load_attention(gpu: str, machine: Machine) -> AttentionTable | None:
    """The measured attention of ``gpu``; None where it has none."""
    arrays = read_arrays(gpu)
    if "attention" not in arrays:
        return None
    return AttentionTable(np.asarray(arrays["attention"], dtype=np.int64), log_us(arrays["attention_time"]), machine)
