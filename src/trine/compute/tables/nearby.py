"""A value at a point, from values measured around it: ordinary kriging among the nearest (Matheron, 1963).

The value at q is the weighted sum of those of its nearest points that is unbiased and has the least expected error if
two values differ as an exponential variogram says: neighbours on one side of q share a weight, a lone one has its own.
A part of the variance (the nugget) belongs to each measurement alone: noise, which is averaged out.
"""

from __future__ import annotations

import numpy as np

from trine.arrays import Float64

_CHUNK = 128


class Nearby:
    """Points (n x d, units such that a distance of 1 matters alike in each), and the value at each."""

    def __init__(self, points: Float64, values: Float64, *, nearest: int = 24, nugget: float = 0.05) -> None:
        self._points = np.ascontiguousarray(points.T)
        self._values = values
        self._nearest = min(nearest, len(values))
        self._nugget = nugget

    def at(self, queries: Float64) -> tuple[Float64, Float64]:
        """Values at ``queries`` (q x d), and how far each is from the nearest point."""
        found = [self._some(queries[i : i + _CHUNK]) for i in range(0, len(queries), _CHUNK)]
        if not found:
            return np.zeros(0), np.zeros(0)
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])

    def _some(self, queries: Float64) -> tuple[Float64, Float64]:
        far = np.zeros((len(queries), self._points.shape[1]))
        for column, own in zip(self._points, queries.T, strict=True):
            far += np.square(own[:, None] - column[None])
        count = self._nearest
        near = np.sort(np.argpartition(far, count - 1, axis=1)[:, :count], axis=1)
        distance = np.sqrt(np.take_along_axis(far, near, axis=1))
        return self._krige(near, distance), distance.min(1)

    def _krige(self, near: np.ndarray, distance: Float64) -> Float64:
        """Values from the points ``near`` (q x count) at ``distance`` (q x count)."""
        points, values = self._points.T[near], self._values[near]
        between = np.sqrt(np.square(points[:, :, None] - points[:, None]).sum(-1))
        alike = np.exp(-between / _LENGTH) + self._nugget * np.eye(near.shape[1])
        to = np.exp(-distance / _LENGTH)
        solved = np.linalg.solve(alike, np.stack([values, np.ones_like(values)], axis=2))
        mean = solved[:, :, 0].sum(1) / solved[:, :, 1].sum(1)
        found: Float64 = mean + (to * (solved[:, :, 0] - mean[:, None] * solved[:, :, 1])).sum(1)
        return found


#: Distance at which two values have little left in common: half an order of magnitude in one size.
_LENGTH = 2.0
