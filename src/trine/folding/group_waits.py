"""Where all ranks of a group wait for each other: who of the classes in a group waits for whom.

The first class of a group waits for all, and the others wait for it, so that there are as many edges as classes. Whose
group is looked at does not matter: those of all members of a class have ranks of the same classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trine.arrays import Int32, Int64
from trine.folding.neighbourhood import PatternPart
from trine.folding.refine import Partition
from trine.graph.grid import RankGrid


class _Members(NamedTuple):
    """What is left of the collectives of a part along an axis in which all wait for each other, -1 for what has ended.

    keys: int64[k]. entered, begun, ended: int64[k], numbers in the part of entries, of what stands for "all have
    entered", and of ends. key_of, sent: int64[sends], the index in ``keys`` of each send that is left, and its number.
    """

    keys: Int64
    entered: Int64
    begun: Int64
    ended: Int64
    key_of: Int64
    sent: Int64


class GroupWaits:
    """Edges of a graph of classes; arguments as of :class:`trine.folding.quotient.Quotient`."""

    def __init__(
        self, grid: RankGrid, partition: Partition, parts: Sequence[PatternPart], part_of: Int32, base: Int64
    ) -> None:
        self.grid = grid
        self.partition = partition
        self.parts = parts
        self.part_of = part_of
        self.base = base
        self._classes: dict[tuple[str, int], list[int]] = {}
        self._members: dict[tuple[int, str], _Members] = {}
        self._edges: list[tuple[Int64, Int64]] = []

    def edges(self) -> tuple[Int64, Int64]:
        """(tasks, the predecessor of each): int64[edges], int64[edges]."""
        axes = {id(part.edges): part.together_axes for part in self.parts}
        for number, at in enumerate(self.part_of.tolist()):
            for axis in axes[id(self.parts[at].edges)]:
                classes = [number] if axis in self.parts[at].deferred else self._classes_beside(number, axis)
                if classes[0] == number:
                    self._group(classes, axis)
        if not self._edges:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        tasks, before = (np.concatenate([edges[side] for edges in self._edges]) for side in (0, 1))
        return tasks, before

    def _classes_beside(self, number: int, axis: str) -> list[int]:
        """The classes of the group of a class's representative, rising."""
        rank = self.partition.representatives[number : number + 1]
        first = int(self.grid.firsts(rank, axis)[0])
        if (axis, first) not in self._classes:
            found = np.unique(self.partition.class_of[first + self.grid.offsets(axis)]).tolist()
            self._classes[axis, first] = [one for one in found if one >= 0]
        return self._classes[axis, first]

    def _group(self, classes: list[int], axis: str) -> None:
        """Edges of all collectives of the groups of ``classes`` along an axis."""
        hub, base = self._of(classes[0], axis), int(self.base[classes[0]])
        for number in classes:
            one, first = self._of(number, axis), int(self.base[number])
            assert np.array_equal(one.keys, hub.keys)
            left = np.flatnonzero((hub.begun >= 0) & (one.entered >= 0))
            self._edges.append((base + hub.begun[left], first + one.entered[left]))
            waiting = hub.ended[one.key_of] >= 0
            self._edges.append((base + hub.ended[one.key_of[waiting]], first + one.sent[waiting]))
            if number != classes[0]:
                for mine, theirs in ((one.begun, hub.begun), (one.ended, hub.ended)):
                    left = np.flatnonzero(mine >= 0)
                    assert (theirs[left] >= 0).all()
                    self._edges.append((first + mine[left], base + theirs[left]))

    def _of(self, number: int, axis: str) -> _Members:
        part = self.parts[self.part_of[number]]
        name = (id(part.number_of), axis)
        if name not in self._members:
            self._members[name] = _members(part, axis)
        return self._members[name]


def _members(part: PatternPart, axis: str) -> _Members:
    of_axis = [one for one in part.pattern.together if one.axis == axis]
    keys = np.concatenate([one.keys for one in of_axis])
    order = np.argsort(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.arange(len(keys))
    entered, first = (np.concatenate([getattr(one, name) for one in of_axis])[order] for name in ("entered", "first"))
    counts = np.concatenate([np.full(len(one.keys), one.timed.shape[1]) for one in of_axis])
    sent = part.number_of[np.concatenate([one.timed.ravel() for one in of_axis])].astype(np.int64)
    key_of = np.repeat(place, counts)
    return _Members(
        keys=keys[order],
        entered=part.number_of[entered].astype(np.int64),
        begun=part.number_of[first].astype(np.int64),
        ended=part.number_of[entered + 1].astype(np.int64),
        key_of=key_of[sent >= 0],
        sent=sent[sent >= 0],
    )
