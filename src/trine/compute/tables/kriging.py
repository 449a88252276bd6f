"""Interpolation between scattered measurements: ordinary kriging on the nearest of them.

Kriging (Cressie, Statistics for Spatial Data, 1993, section 3.2) is the linear estimate of least variance when values
a distance d apart correlate as exp(-d). ``nugget`` is the part of the variance that is noise of a single measurement:
with it, an estimate averages over neighbours and does not follow each of them. Far from all measurements the estimate
is their mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.arrays import Float64, Int64

#: Queries that are answered at a time: bounds memory to some tens of megabytes.
_CHUNK = 256


def kriged(points: Float64, values: Float64, queries: Float64, nugget: float) -> Float64:
    """Estimates of one value a query.

    points: (queries, neighbours, dimensions), in units of the length of correlation; values: (queries, neighbours);
    queries: (queries, dimensions). Returns (queries,).
    """
    count = points.shape[1]
    between = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(-1))
    covariance = np.exp(-between) + nugget * np.eye(count)
    towards = np.exp(-np.sqrt(((points - queries[:, None]) ** 2).sum(-1)))
    both = np.stack([towards, np.ones_like(towards)], axis=-1)
    solved = np.linalg.solve(covariance, both)
    weights, even = solved[..., 0], solved[..., 1]
    weights = weights + even * ((1 - weights.sum(1)) / even.sum(1))[:, None]
    return np.asarray((weights * values).sum(1))


def nearest_few(distances: Float64, count: int) -> Int64:
    """Positions of the ``count`` smallest of each row of ``distances`` (rows, columns), in order of columns.

    Of distances that are equal (to 9 digits behind the point) the first columns count: which of them ``argpartition``
    takes, and their last bits, depend on the CPU.
    """
    if distances.shape[1] <= count:
        return np.broadcast_to(np.arange(distances.shape[1]), distances.shape)
    rounded = np.round(distances, 9)
    last = np.partition(rounded, count - 1, axis=1)[:, count - 1 : count]
    nearer, equal = rounded < last, rounded == last
    room = count - np.count_nonzero(nearer, axis=1, keepdims=True)
    chosen = nearer | (equal & (np.cumsum(equal, axis=1) <= room))
    return np.nonzero(chosen)[1].reshape(-1, count)


def in_chunks(count: int, answer: Callable[[slice], Float64]) -> Float64:
    """``answer`` of all ``count`` queries, a few hundred at a time."""
    found = [answer(slice(start, start + _CHUNK)) for start in range(0, count, _CHUNK)]
    return np.concatenate(found) if found else np.empty(0)
