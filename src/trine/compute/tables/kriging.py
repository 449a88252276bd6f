"""Interpolation between scattered measurements: ordinary kriging on the nearest of them.

Kriging (Cressie, Statistics for Spatial Data, 1993, section 3.2) is the linear estimate of least variance if values a
distance d apart correlate as exp(-d). ``nugget`` is the share of the variance that is noise of a single measurement.
With it, an estimate averages over neighbours and does not follow each of them. Far from all measurements the estimate
is their mean.

Answers are the same on every processor, by rounding. Otherwise numpy's logarithms and LAPACK's solutions differ in
their last digits between instruction sets, as does a partition's choice among equally near measurements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.common.arrays import Float64, Int64

#: Decimals of an estimate (the logarithm of a time) and of distances: more than measurements have, fewer than rounding
#: touches.
_DECIMALS, _DISTANCE_DECIMALS = 6, 9
#: Queries per block, which bounds memory to some tens of megabytes. The second: of :class:`Nearby`.
_CHUNK, _NEARBY_CHUNK = 256, 128
#: Distance at which two values have little in common: several octaves of one size.
_LENGTH = 2.0


def kriged(points: Float64, values: Float64, queries: Float64, nugget: float) -> Float64:
    """Return the estimate for each query.

    points: (queries, neighbours, dimensions), in units of the correlation length; values: (queries, neighbours);
    queries: (queries, dimensions). Returns (queries,), to a millionth.
    """
    count = points.shape[1]
    distances = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(-1))
    covariance = np.exp(-distances) + nugget * np.eye(count)
    towards = np.exp(-np.sqrt(((points - queries[:, None]) ** 2).sum(-1)))
    right_sides = np.stack([towards, np.ones_like(towards)], axis=-1)
    solution = np.linalg.solve(covariance, right_sides)
    weights, correction = solution[..., 0], solution[..., 1]
    weights = weights + correction * ((1 - weights.sum(1)) / correction.sum(1))[:, None]
    return np.asarray(np.round((weights * values).sum(1), _DECIMALS))


def nearest_few(distances: Float64, count: int) -> Int64:
    """Return the positions of the ``count`` smallest of each row of ``distances`` (rows, columns), in column order.

    Among values equal to a thousand-millionth, the first ones win.
    """
    rows, columns = distances.shape
    if columns <= count:
        return np.broadcast_to(np.arange(columns), distances.shape)
    rounded = np.round(distances, _DISTANCE_DECIMALS)
    last = np.partition(rounded, count - 1, axis=1)[:, count - 1 : count]
    nearer, as_far = rounded < last, rounded == last
    chosen = nearer | (as_far & (np.cumsum(as_far, axis=1) <= count - nearer.sum(axis=1, keepdims=True)))
    return np.nonzero(chosen)[1].reshape(rows, count)


def in_chunks(count: int, answer: Callable[[slice], Float64]) -> Float64:
    """Return ``answer`` of all ``count`` queries, a few hundred at a time."""
    parts = [answer(slice(start, start + _CHUNK)) for start in range(0, count, _CHUNK)]
    return np.concatenate(parts) if parts else np.empty(0)


class Nearby:
    """Points (n x d, units such that a distance of 1 matters alike in each), and the value at each.

    nugget: the part of the variance that belongs to each measurement alone: noise, which is averaged out.
    """

    def __init__(self, points: Float64, values: Float64, *, nearest: int = 24, nugget: float = 0.05) -> None:
        self._points = np.ascontiguousarray(points.T / _LENGTH)
        self._values = values
        self._nearest = min(nearest, len(values))
        self._nugget = nugget

    def at(self, queries: Float64) -> tuple[Float64, Float64]:
        """Return the values at ``queries`` (q x d), and the distance of each query from the nearest point."""
        parts = [self._predict(queries[i : i + _NEARBY_CHUNK] / _LENGTH) for i in range(0, len(queries), _NEARBY_CHUNK)]
        if not parts:
            return np.zeros(0), np.zeros(0)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _predict(self, queries: Float64) -> tuple[Float64, Float64]:
        squares = np.zeros((len(queries), self._points.shape[1]))
        for column, coordinates in zip(self._points, queries.T, strict=True):
            squares += np.square(coordinates[:, None] - column[None])
        nearest = nearest_few(squares, self._nearest)
        distance = _LENGTH * np.sqrt(np.take_along_axis(squares, nearest, axis=1).min(1))
        return kriged(self._points.T[nearest], self._values[nearest], queries, self._nugget), distance
