"""How far apart ranks are: what ties are broken by, and what the ports of a GPU are dealt out by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster

#: A rank, or many.
Ranks = TypeVar("Ranks", int, npt.NDArray[np.int64])


def distance(grid: Sequence[int], source: Ranks, here: Ranks) -> Ranks:
    """The difference of two places of a grid along each dimension, modulo its size, as one number (row-major)."""
    number, scale = source - source, 1
    for size in reversed(grid):
        number = number + (source % size - here % size) % size * scale
        source, here, scale = source // size, here // size, scale * size
    return number


def rank_grid(cluster: Cluster, group: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the cluster's grid, where the ranks are all its GPUs in order; else one ring of all ranks."""
    if cluster.grid and list(group) == list(cluster.gpus):
        return cluster.grid
    return (len(group),)


def moved(grid: Sequence[int], rank: int, source: int, here: int) -> int:
    """The rank that is as far from ``rank`` as ``source`` is from ``here``, along each dimension of the grid."""
    found, scale = 0, 1
    for size in reversed(grid):
        found += (rank % size + source % size - here % size) % size * scale
        rank, source, here, scale = rank // size, source // size, here // size, scale * size
    return found
