"""Translations of the rank grid that change nothing: ranks that one of them maps to each other are alike.

On equal nodes under one switch, filled in order, moving all ranks along an axis by whole nodes is such a translation if
the collectives do not tell the positions on the axis apart. All ranks of an orbit then belong to one class, so the
search for classes needs one rank of each orbit: its lowest. See docs/design/folding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.equal_nodes import EqualNodes, equal_nodes
from trine.common.arrays import Int64
from trine.folding.pattern import JobPatterns
from trine.graph.grid import RankGrid
from trine.graph.placement import Placement


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Orbits:
    """Orbits of the translations by multiples of ``steps[axis]`` coordinates along each axis of ``steps``."""

    grid: RankGrid
    nodes: EqualNodes
    steps: dict[str, int]

    @property
    def size(self) -> int:
        """The number of ranks in every orbit of ranks, and of links in every orbit of links."""
        return prod(self.grid.sizes[axis] // step for axis, step in self.steps.items())

    @property
    def representatives(self) -> Int64:
        """The lowest rank of each orbit, in ascending order: int64[orbits]."""
        ranks = np.zeros(1, np.int64)
        for axis, size in self.grid.sizes.items():  # the first axis is the fastest
            coordinates = np.arange(self.steps.get(axis, size), dtype=np.int64)
            ranks = (coordinates[:, None] * self.grid.strides[axis] + ranks[None, :]).ravel()
        return ranks

    def firsts(self, ranks: Int64) -> Int64:
        """Return the lowest rank of each rank's orbit: int64[ranks]."""
        firsts = ranks.copy()
        for axis, step in self.steps.items():
            stride = self.grid.strides[axis]
            coordinates = ranks // stride % self.grid.sizes[axis]
            firsts -= (coordinates - coordinates % step) * stride
        return firsts

    def first_links(self, links: npt.NDArray[np.integer]) -> Int64:
        """Return the lowest link of each link's orbit: int64[links]."""
        num_gpus = self.nodes.num_gpus
        first_ranks = self.firsts(self.nodes.nodes_of(links) * num_gpus)
        return self.nodes.moved_links(links, first_ranks // num_gpus)


def orbits_of(job: JobPatterns, placement: Placement, colors: Int64 | None) -> Orbits | None:
    """Return the orbits of all translations that keep the job and the machine, or None if there are none.

    colors: int64[ranks], initial differences between ranks.
    """
    if not isinstance(placement.cluster, Cluster) or placement.software is not None:
        return None
    nodes = equal_nodes(placement.cluster, placement.devices)
    if nodes is None:
        return None
    steps = {}
    for axis, size in job.grid.sizes.items():
        step = nodes.num_gpus // gcd(nodes.num_gpus, job.grid.strides[axis])  # moves whole nodes
        if size % step == 0 and size > step and _is_kept(job, colors, axis, step):
            steps[axis] = step
    return Orbits(grid=job.grid, nodes=nodes, steps=steps) if steps else None


def _is_kept(job: JobPatterns, colors: Int64 | None, axis: str, step: int) -> bool:
    """Return whether moving all ranks by ``step`` along an axis keeps their patterns, initial colors and peers."""
    moved = _moved(job.grid, axis, step)
    if (job.pattern_of[moved] != job.pattern_of).any():
        return False
    if colors is not None and (colors[moved] != colors).any():
        return False
    for pattern in job.patterns:
        rows = job.row_of[moved[pattern.ranks]]
        for role in range(pattern.peers.shape[1]):
            peers = pattern.peers[:, role]
            if (peers[rows] != moved[peers]).any():
                return False
    return True


def _moved(grid: RankGrid, axis: str, step: int) -> Int64:
    """Return the rank that is ``step`` coordinates further along an axis, around its end: int64[ranks]."""
    stride, size = grid.strides[axis], grid.sizes[axis]
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    goes_around = ranks // stride % size >= size - step
    moved: Int64 = ranks + np.where(goes_around, step - size, step) * stride
    return moved
