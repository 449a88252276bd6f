"""A rank grid that a job's groups are axes of: declared by trine's own traces, or found from the groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from trine.graph.grid import RankGrid

Axes = tuple[tuple[str, int], ...]


def grid_axes(num_ranks: int, groups: Iterable[Sequence[int]]) -> Axes | None:
    """The coarsest grid, fastest axis first, of which each group is one axis or several joined; None if there is none.

    A group along an axis is a run of ranks at one stride, and along several axes runs of runs; strides and sizes of all
    groups must then divide each other in a chain.
    """
    cuts = {1, num_ranks}
    for group in groups:
        factors = _factors(group)
        if factors is None:
            return None
        for stride, size in factors:
            cuts |= {stride, stride * size}
    chain = sorted(cuts)
    if any(large % small for small, large in pairwise(chain)) or chain[-1] != num_ranks:
        return None
    return tuple((f"axis{i}", large // small) for i, (small, large) in enumerate(pairwise(chain)))


def _factors(group: Sequence[int]) -> list[tuple[int, int]] | None:
    """Stride and size of each axis of a group, fastest first; None if its ranks are not so, or not in order."""
    offsets = np.asarray(group, np.int64) - group[0]
    factors = []
    while len(offsets) > 1:
        stride = int(offsets[1])
        if stride < 1:
            return None
        breaks = np.flatnonzero(np.diff(offsets) != stride)
        size = int(breaks[0]) + 1 if len(breaks) else len(offsets)
        if len(offsets) % size:
            return None
        rows = offsets.reshape(-1, size)
        if (rows - rows[:, :1] != np.arange(size) * stride).any():
            return None
        factors.append((stride, size))
        offsets = rows[:, 0]
    return factors


def group_axis(grid: RankGrid, group: Sequence[int]) -> str | None:
    """The name of the axis, or of several joined, along which these ranks lie in order; None if there is none."""
    factors = _factors(group)
    if factors is None:
        return None
    names = []
    for stride, size in factors:
        while size > 1:
            name = next((n for n, at in grid.strides.items() if at == stride and grid.sizes[n] > 1), None)
            if name is None or size % grid.sizes[name]:
                return None
            names.append(name)
            stride, size = stride * grid.sizes[name], size // grid.sizes[name]
    axis = "+".join(names)
    return axis if names and grid.group(group[0], axis) == tuple(group) else None


def peer_axis(grid: RankGrid, rank: int, other: int) -> str:
    """The name of the axis on which two ranks differ; several are joined."""
    return "+".join(
        name
        for name, stride in grid.strides.items()
        if rank // stride % grid.sizes[name] != other // stride % grid.sizes[name]
    )
