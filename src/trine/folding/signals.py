"""When ranks told each other that they had entered, or sent: what folded runs leave out, from what they simulate.

Where all ranks of a group wait for each other (:class:`trine.folding.pattern.Together`), whom each hears of by way of
whom differs from rank to rank, and changes nothing but the times of these signals, which are joins. They are worked out
for the ranks that somebody looks at, for whole groups at a time, from the very edges of the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.folding.pattern import ENTERED, SELF, Pattern, Together
from trine.folding.stages import FoldedRun

#: Times that are worked out at once (32 MiB).
MAX_TIMES = 4_000_000

Times = tuple[Int64, Int64, Int64]


def whole_times(run: FoldedRun, ranks: Sequence[int]) -> list[Times]:
    """Ready, start and end of each task of the pattern of each of ``ranks``, ps: int64[tasks of the pattern] each."""
    of_classes: dict[tuple[int, ...], Times] = {}
    times: list[Times] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for row, rank in enumerate(ranks):
        name = tuple(int(stage.partition.class_of[rank]) for stage in run.stages)
        if name not in of_classes:
            of_classes[name] = run.times(rank)
        pattern = run.job.patterns[int(run.job.pattern_of[rank])]
        ready, start, end = of_classes[name]
        left_out = pattern.together if run.leaves_signals_out else ()
        times.append((ready.copy(), start.copy(), end.copy()) if left_out else (ready, start, end))
        for axis in dict.fromkeys(one.axis for one in left_out):
            first = int(run.job.grid.firsts(np.array([rank]), axis)[0])
            groups.setdefault((axis, first), []).append(row)
    for (axis, first), rows in groups.items():
        members = first + run.job.grid.offsets(axis)
        for signals in _GroupSignals(run, axis, members).all():
            for row in rows:
                tasks, values = signals.of(ranks[row])
                for column in times[row]:
                    column[tasks] = values
    return times


class _Waits(NamedTuple):
    """What one signal waits for: own entry, own sends, entries and sends of peers by (role[, number])."""

    entry: bool
    sends: list[int]
    peer_entries: list[int]
    peer_sends: list[tuple[int, int]]


class _Kind(NamedTuple):
    """Members of a group that follow one pattern. at: int64, their positions; rows: int64, theirs in the pattern."""

    pattern: Pattern
    together: Together
    at: Int64
    rows: Int64


class _GroupSignals:
    """All collectives of a group in which its ranks wait for each other."""

    def __init__(self, run: FoldedRun, axis: str, members: Int64) -> None:
        self.run = run
        self.axis = axis
        self.members = members
        self.classes = np.stack([stage.partition.class_of[members] for stage in run.stages])

    def all(self) -> Iterator[_AxisSignals]:
        """The signals of some collectives, until there are no more."""
        first = self.run.job.patterns[int(self.run.job.pattern_of[self.members[0]])]
        for one in (one for one in first.together if one.axis == self.axis):
            each = len(self.members) * max(kind.together.num_sends for kind in self._kinds(one.keys))
            step = max(1, MAX_TIMES // each)
            for at in range(0, len(one.keys), step):
                yield self._signals(one.keys[at : at + step])

    def _kinds(self, keys: Int64) -> list[_Kind]:
        """The patterns of the members, with these collectives only."""
        job, kinds = self.run.job, []
        number = job.pattern_of[self.members]
        for which in np.unique(number).tolist():
            pattern, at = job.patterns[which], np.flatnonzero(number == which)
            one = next(one for one in pattern.together if np.isin(keys, one.keys).all())
            kinds.append(_Kind(pattern, _some(one, keys), at, job.row_of[self.members[at]].astype(np.int64)))
        return kinds

    def _signals(self, keys: Int64) -> _AxisSignals:
        kinds = self._kinds(keys)
        num_sends = max(kind.together.num_sends for kind in kinds)
        entries = np.full((len(self.members), len(keys)), -1, np.int64)
        sends = np.full((len(self.members), num_sends, len(keys)), -1, np.int64)
        for kind in kinds:
            one = kind.together
            entries[kind.at] = self._ends(kind, one.entered)
            flows = self._ends(kind, one.timed.T.ravel()).reshape(len(kind.at), -1, len(keys))
            sends[kind.at, one.num_signals : one.num_sends - one.num_signals] = flows
        rounds = [(number, False) for number in range(kinds[0].together.num_signals)]
        for number, is_after in [*rounds, *((number, True) for number, _ in rounds)]:
            for kind in kinds:
                one = kind.together
                place = one.num_sends - one.num_signals + number if is_after else number
                sends[kind.at, place] = self._heard(kind, place, entries, sends)
        return _AxisSignals(self.run, self.axis, kinds, sends)

    def _ends(self, kind: _Kind, tasks: Int64) -> Int64:
        """int64[members, tasks]: when tasks have ended on each member of a kind; those of a class once."""
        classes, inverse = np.unique(self.classes[:, kind.at], axis=1, return_inverse=True)
        ends = np.full((classes.shape[1], len(tasks)), -1, np.int64)
        for column, numbers in enumerate(classes.T.tolist()):
            for stage, number in zip(self.run.stages, numbers, strict=True):
                if number >= 0:
                    local = stage.parts[stage.part_of[number]].number_of[tasks]
                    ran = np.flatnonzero(local >= 0)
                    ends[column, ran] = stage.end_ps[int(stage.base[number]) + local[ran]]
        return ends[inverse.ravel()]

    def _heard(self, kind: _Kind, place: int, entries: Int64, sends: Int64) -> Int64:
        """int64[members, keys]: when the last has ended that send ``place`` of each member waits for."""
        waits = _waits(kind.pattern, kind.together, place)
        found = [entries[kind.at]] if waits.entry else []
        found += [sends[kind.at, number] for number in waits.sends]
        found += [entries[self._positions(kind, role)] for role in waits.peer_entries]
        found += [sends[self._positions(kind, role), number] for role, number in waits.peer_sends]
        heard: Int64 = np.maximum.reduce(found)
        return heard

    def _positions(self, kind: _Kind, role: int) -> Int64:
        return self.run.job.grid.coordinates(kind.pattern.peers[kind.rows, role].astype(np.int64), self.axis)


class _AxisSignals:
    """Ends of all sends of some collectives: int64[members, sends, keys]."""

    def __init__(self, run: FoldedRun, axis: str, kinds: list[_Kind], sends: Int64) -> None:
        self.run = run
        self.axis = axis
        self.kinds = kinds
        self.sends = sends

    def of(self, rank: int) -> tuple[Int64, Int64]:
        """Tasks of a rank's pattern, and when each of these signals was given."""
        position = self.run.job.grid.coordinate(rank, self.axis)
        one = next(kind.together for kind in self.kinds if position in kind.at)
        at = one.signals - one.first[:, None]
        return one.signals, self.sends[position][at, np.arange(len(one.keys))[:, None]]


def _some(one: Together, keys: Int64) -> Together:
    at = np.searchsorted(one.keys, keys)
    return Together(
        axis=one.axis, keys=keys, entered=one.entered[at], first=one.first[at], num_sends=one.num_sends,
        num_signals=one.num_signals,
    )  # fmt: skip


def _waits(pattern: Pattern, one: Together, place: int) -> _Waits:
    """What send ``place`` of a collective waits for; all collectives of a call are alike, so the first is looked at."""
    edges, task = pattern.edges, int(one.first[0]) + place
    own = slice(*np.searchsorted(edges.task, [task, task + 1]))
    found = _Waits(False, [], [], [])
    for role, what, key, number in zip(*(c[own].tolist() for c in (edges.role, edges.what, edges.key, edges.number)),
                                       strict=True):  # fmt: skip
        if role == SELF:
            if key == int(one.entered[0]):
                found = found._replace(entry=True)
            else:
                found.sends.append(key - int(one.first[0]))
        elif what == ENTERED:
            found.peer_entries.append(role)
        else:
            found.peer_sends.append((role, number))
    return found
