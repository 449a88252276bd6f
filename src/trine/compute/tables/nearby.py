"""A value at a point, from values measured around it: kriging among the nearest (kriging.py)."""

from __future__ import annotations

import numpy as np

from trine.arrays import Float64
from trine.compute.tables.kriging import kriged, nearest_few

_CHUNK = 128
#: Distance at which two values have little left in common: several octaves of one size.
_LENGTH = 2.0


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
        """Values at ``queries`` (q x d), and how far each is from the nearest point."""
        found = [self._some(queries[i : i + _CHUNK] / _LENGTH) for i in range(0, len(queries), _CHUNK)]
        if not found:
            return np.zeros(0), np.zeros(0)
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])

    def _some(self, queries: Float64) -> tuple[Float64, Float64]:
        far = np.zeros((len(queries), self._points.shape[1]))
        for column, own in zip(self._points, queries.T, strict=True):
            far += np.square(own[:, None] - column[None])
        near = nearest_few(far, self._nearest)
        distance = _LENGTH * np.sqrt(np.take_along_axis(far, near, axis=1).min(1))
        return kriged(self._points.T[near], self._values[near], queries, self._nugget), distance
