"""The rank grid: conversion between a rank's number and its coordinates, and the groups along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trine.common.arrays import Int64
from trine.errors import PlanError, nearest
from trine.graph.program import Peer


class RankGrid:
    """Ranks numbered with the first axis fastest: rank = sum of coordinate x stride.

    A group may lie along several axes at once: ``"cp+dp"`` names all ranks that differ only on ``cp`` and ``dp``, and
    a position on it is the coordinate on ``cp`` plus the size of ``cp`` times the coordinate on ``dp``.
    """

    def __init__(self, axes: Sequence[tuple[str, int]]) -> None:
        self.sizes = dict(axes)
        self.strides: dict[str, int] = {}
        stride = 1
        for name, size in axes:
            self.strides[name] = stride
            stride *= size
        self.num_ranks = stride
        self._group_sizes: dict[str, int] = {}

    def parts(self, axis: str) -> tuple[str, ...]:
        """Return the grid's axes that ``axis`` names. Raises PlanError for an unknown axis."""
        names = tuple(axis.split("+"))
        for name in names:
            if name not in self.sizes:
                raise PlanError(f"{name!r} is no axis of the rank grid{nearest(name, self.sizes)}")
        return names

    def size(self, axis: str) -> int:
        """Return the number of ranks of a group along ``axis``."""
        size = self._group_sizes.get(axis)
        if size is None:
            size = self._group_sizes[axis] = math.prod(self.sizes[name] for name in self.parts(axis))
        return size

    def coordinate(self, rank: int, axis: str) -> int:
        """Return the position of ``rank`` along ``axis``."""
        position, size = 0, 1
        for name in self.parts(axis):
            position += rank // self.strides[name] % self.sizes[name] * size
            size *= self.sizes[name]
        return position

    def coordinates(self, ranks: Int64, axis: str) -> Int64:
        """Return int64[ranks]: the position of each along ``axis``."""
        position, size = np.zeros(len(ranks), np.int64), 1
        for name in self.parts(axis):
            position += ranks // self.strides[name] % self.sizes[name] * size
            size *= self.sizes[name]
        return position

    def offsets(self, axis: str) -> Int64:
        """Return int64[group size]: the difference in rank between each position and position 0 of its group."""
        offsets = np.zeros(1, np.int64)
        for name in self.parts(axis):
            steps = np.arange(self.sizes[name], dtype=np.int64) * self.strides[name]
            offsets = (steps[:, None] + offsets[None, :]).ravel()
        return offsets

    def firsts(self, ranks: Int64, axis: str) -> Int64:
        """Return int64[ranks]: the rank at position 0 of each rank's group along ``axis``."""
        firsts: Int64 = ranks - self.offsets(axis)[self.coordinates(ranks, axis)]
        return firsts

    def members(self, axis: str) -> Int64:
        """Return int64[groups, group size]: all groups along ``axis``, by their first rank."""
        ranks = np.arange(self.num_ranks, dtype=np.int64)
        firsts = ranks[self.coordinates(ranks, axis) == 0]
        members: Int64 = firsts[:, None] + self.offsets(axis)[None, :]
        return members

    def resolve(self, rank: int, peer: Peer) -> int:
        """Return the rank that ``peer`` refers to in the program of ``rank``."""
        offsets = self.offsets(peer.axis)
        return int(rank + offsets[peer.position] - offsets[self.coordinate(rank, peer.axis)])

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Return the ranks of the group of ``rank`` along ``axis``, by position."""
        offsets = self.offsets(axis)
        first = rank - int(offsets[self.coordinate(rank, axis)])
        return tuple((first + offsets).tolist())

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return all groups along ``axis``, by their first rank."""
        return [tuple(group) for group in self.members(axis).tolist()]
