"""Times of the signals that ranks exchange in collectives; folded runs skip them, and this module computes them.

If all ranks of a group wait for each other (:class:`trine.folding.pattern.Together`), each rank receives signals over
different peers. This changes only the times of these signals, which are joins. They are computed on demand for whole
groups at a time, from the edges of the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.pattern import ENTERED, SELF, Pattern, Together
from trine.folding.stages import FoldedRun

#: Maximum number of times per block (32 MiB).
MAX_TIMES = 4_000_000

Times = tuple[Int64, Int64, Int64]


def whole_times(run: FoldedRun, ranks: Sequence[int], knows_signals: bool = True) -> list[Times]:
    """Return ready, start and end of the pattern's tasks for each of ``ranks``, ps: int64[tasks of the pattern] each.
    Skipped signals are -1 unless ``knows_signals``.
    """
    of_classes: dict[tuple[int, ...], Times] = {}
    times: list[Times] = []
    rows_of: dict[tuple[str, int], list[int]] = {}
    for row, rank in enumerate(ranks):
        name = run.classes_of(rank)
        if name not in of_classes:
            of_classes[name] = run.times(rank)
        pattern = run.job.patterns[int(run.job.pattern_of[rank])]
        ready, start, end = of_classes[name]
        left_out = pattern.together if knows_signals and run.leaves_signals_out else ()
        times.append((ready.copy(), start.copy(), end.copy()) if left_out else (ready, start, end))
        for axis in dict.fromkeys(one.axis for one in left_out):
            first = rank - int(run.job.grid.offsets(axis)[run.job.grid.coordinate(rank, axis)])
            rows_of.setdefault((axis, first), []).append(row)
    for axis, groups in _alike(run, rows_of):
        members = np.array([first for first, _ in groups])[:, None] + run.job.grid.offsets(axis)
        for signals in _GroupSignals(run, axis, members).all():
            for number, (_, rows) in enumerate(groups):
                for row in rows:
                    tasks, values = signals.of(number, ranks[row])
                    for column in times[row]:
                        column[tasks] = values
    return times


def _alike(run: FoldedRun, rows_of: dict[tuple[str, int], list[int]]) -> list[tuple[str, list[tuple[int, list[int]]]]]:
    """Merge groups, given by (axis, first rank), for joint evaluation: per axis and patterns, (first rank, rows) of
    each group. Groups whose members have equal classes are represented by the first one.
    """
    found: dict[tuple[str, bytes], dict[bytes, tuple[int, list[int]]]] = {}
    for (axis, first), rows in rows_of.items():
        members = first + run.job.grid.offsets(axis)
        classes = b"".join(stage.partition.class_of[members].tobytes() for stage in run.stages)
        of_patterns = found.setdefault((axis, run.job.pattern_of[members].tobytes()), {})
        of_patterns.setdefault(classes, (first, []))[1].extend(rows)
    return [(axis, list(groups.values())) for (axis, _), groups in found.items()]


class _Waits(NamedTuple):
    """Dependencies of one signal: own entry, own sends, entries and sends of peers by (role[, number])."""

    entry: bool
    sends: list[int]
    peer_entries: list[int]
    peer_sends: list[tuple[int, int]]


class _Kind:
    """Group members that follow one pattern. at: int64, their positions among all members; classes: int64[stages,
    distinct], the distinct classes; class_at: int64, index of each member into these.
    """

    def __init__(self, run: FoldedRun, axis: str, members: Int64, pattern: Pattern, at: Int64) -> None:
        self.pattern = pattern
        self.at = at
        classes = np.stack([stage.partition.class_of[members.ravel()[at]] for stage in run.stages])
        self.classes, class_at = np.unique(classes, axis=1, return_inverse=True)
        self.class_at = class_at.ravel()
        self._run = run
        self._axis = axis
        self._rows = run.job.row_of[members.ravel()[at]]
        self._firsts = at - at % members.shape[1]
        self._places: dict[int, Int64] = {}

    def places_of(self, role: int) -> Int64:
        """Return the positions of the peers in ``role`` of each member: int64[members of the kind]."""
        if role not in self._places:
            peers = self.pattern.peers[self._rows, role].astype(np.int64)
            self._places[role] = self._firsts + self._run.job.grid.coordinates(peers, self._axis)
        return self._places[role]

    def ends(self, tasks: Int64) -> Int64:
        """Return the end of each task on each member, int64[members of the kind, tasks]; computed once per class."""
        ends = np.full((self.classes.shape[1], len(tasks)), -1, np.int64)
        for column, numbers in enumerate(self.classes.T.tolist()):
            for stage, number in zip(self._run.stages, numbers, strict=True):
                if number >= 0:
                    local = stage.parts[stage.part_of[number]].number_of[tasks]
                    ran = np.flatnonzero(local >= 0)
                    ends[column, ran] = stage.end_ps[int(stage.base[number]) + local[ran]]
        return ends[self.class_at]


class _GroupSignals:
    """The collectives with mutual waits of groups whose members follow the same patterns.

    members: int64[groups, group size].
    """

    def __init__(self, run: FoldedRun, axis: str, members: Int64) -> None:
        self.run = run
        self.axis = axis
        self.group_size = members.shape[1]
        number = run.job.pattern_of[members.ravel()]
        self.kinds = [
            _Kind(run, axis, members, run.job.patterns[which], np.flatnonzero(number == which))
            for which in np.unique(number).tolist()
        ]

    def all(self) -> Iterator[_AxisSignals]:
        """Yield the signals of all collectives, some at a time."""
        of_axis = ([one for one in kind.pattern.together if one.axis == self.axis] for kind in self.kinds)
        for calls in zip(*of_axis, strict=True):  # members agree on the collectives of their group, and on their order
            num_members = sum(len(kind.at) for kind in self.kinds)
            step = max(1, MAX_TIMES // (num_members * max(one.num_sends for one in calls)))
            for first in range(0, len(calls[0].keys), step):
                yield self._signals([_some(one, slice(first, first + step)) for one in calls])

    def _signals(self, calls: list[Together]) -> _AxisSignals:
        """Compute the signals of ``calls``: the same collectives, once for each kind."""
        num_members, num_keys = sum(len(kind.at) for kind in self.kinds), len(calls[0].keys)
        entries = np.full((num_members, num_keys), -1, np.int64)
        sends = np.full((num_members, max(one.num_sends for one in calls), num_keys), -1, np.int64)
        for kind, one in zip(self.kinds, calls, strict=True):
            entries[kind.at] = kind.ends(one.entered)
            flows = kind.ends(one.timed.T.ravel()).reshape(len(kind.at), -1, num_keys)
            sends[kind.at, one.num_signals : one.num_sends - one.num_signals] = flows
        rounds = [(number, False) for number in range(calls[0].num_signals)]
        for number, is_after in [*rounds, *((number, True) for number, _ in rounds)]:
            for kind, one in zip(self.kinds, calls, strict=True):
                place = one.num_sends - one.num_signals + number if is_after else number
                sends[kind.at, place] = _heard(kind, one, place, entries, sends)
        return _AxisSignals(self, calls, sends)


class _AxisSignals:
    """Ends of all sends of a block of collectives: int64[members, sends, keys]."""

    def __init__(self, groups: _GroupSignals, calls: list[Together], sends: Int64) -> None:
        self.groups = groups
        self.calls = calls
        self.sends = sends

    def of(self, group: int, rank: int) -> tuple[Int64, Int64]:
        """Return the signal tasks of a rank of ``group`` (or of one like it), and the time of each."""
        groups, job = self.groups, self.groups.run.job
        pattern = job.patterns[int(job.pattern_of[rank])]
        one = next(one for kind, one in zip(groups.kinds, self.calls, strict=True) if kind.pattern is pattern)
        at = group * groups.group_size + job.grid.coordinate(rank, groups.axis)
        return one.signals, self.sends[at][one.signals - one.first[:, None], np.arange(len(one.keys))[:, None]]


def _heard(kind: _Kind, one: Together, place: int, entries: Int64, sends: Int64) -> Int64:
    """Return the latest end among the dependencies of send ``place`` of each member: int64[members, keys]."""
    waits = _waits(kind.pattern, one, place)
    found = [entries[kind.at]] if waits.entry else []
    found += [sends[kind.at, number] for number in waits.sends]
    found += [entries[kind.places_of(role)] for role in waits.peer_entries]
    found += [sends[kind.places_of(role), number] for role, number in waits.peer_sends]
    heard: Int64 = np.maximum.reduce(found)
    return heard


def _some(one: Together, some: slice) -> Together:
    """Return the same call with only ``some`` of its collectives."""
    return replace(one, keys=one.keys[some], entered=one.entered[some], first=one.first[some])


def _waits(pattern: Pattern, one: Together, place: int) -> _Waits:
    """Return the dependencies of send ``place``, from the first collective of a call, as all of them are alike."""
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
