"""Interpolation between scattered measurements: ordinary kriging on the nearest of them.

Kriging (Cressie, Statistics for Spatial Data, 1993, section 3.2) is the linear estimate of least variance when values
a distance d apart correlate as exp(-d). ``nugget`` is the part of the variance that is noise of a single measurement:
with it, an estimate averages over neighbours and does not follow each of them. Far from all measurements the estimate
is their mean.

Answers are the same on every processor: numpy's logarithms and LAPACK's solutions differ in their last digits from one
set of instructions to the next, and so does which of several equally near measurements a partition takes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.arrays import Float64, Int64

#: Decimals of an estimate (the logarithm of a time) and of distances: more than measurements have, fewer than rounding
#: touches.
_DECIMALS, _DISTANCE_DECIMALS = 6, 9
#: Queries that are answered at a time: bounds memory to some tens of megabytes.
_CHUNK = 256


def kriged(points: Float64, values: Float64, queries: Float64, nugget: float) -> Float64:
    """Estimates of one value a query.

    points: (queries, neighbours, dimensions), in units of the length of correlation; values: (queries, neighbours);
    queries: (queries, dimensions). Returns (queries,), to a millionth.
    """
    count = points.shape[1]
    between = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(-1))
    covariance = np.exp(-between) + nugget * np.eye(count)
    towards = np.exp(-np.sqrt(((points - queries[:, None]) ** 2).sum(-1)))
    both = np.stack([towards, np.ones_like(towards)], axis=-1)
    solved = np.linalg.solve(covariance, both)
    weights, even = solved[..., 0], solved[..., 1]
    weights = weights + even * ((1 - weights.sum(1)) / even.sum(1))[:, None]
    return np.asarray(np.round((weights * values).sum(1), _DECIMALS))


def nearest_few(distances: Float64, count: int) -> Int64:
    """Positions of the ``count`` smallest of each row of ``distances`` (rows, columns), in order of columns.

    Of equal ones, to a thousand-millionth, the first are taken.
    """
    rows, columns = distances.shape
    if columns <= count:
        return np.broadcast_to(np.arange(columns), distances.shape)
    rounded = np.round(distances, _DISTANCE_DECIMALS)
    last = np.partition(rounded, count - 1, axis=1)[:, count - 1 : count]
    nearer, as_far = rounded < last, rounded == last
    taken = nearer | (as_far & (np.cumsum(as_far, axis=1) <= count - nearer.sum(axis=1, keepdims=True)))
    return np.nonzero(taken)[1].reshape(rows, count)


def in_chunks(count: int, answer: Callable[[slice], Float64]) -> Float64:
    """``answer`` of all ``count`` queries, a few hundred at a time."""
    found = [answer(slice(start, start + _CHUNK)) for start in range(0, count, _CHUNK)]
    return np.concatenate(found) if found else np.empty(0)
