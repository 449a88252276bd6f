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

from trine.common.arrays import Int32, Int64
from trine.folding.pattern import ENTERED, SELF, Pattern, Together
from trine.folding.stages import FoldedRun, RunStage

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
        for axis in dict.fromkeys(call.axis for call in left_out):
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
    merged: dict[tuple[str, bytes], dict[bytes, tuple[int, list[int]]]] = {}
    for (axis, first), rows in rows_of.items():
        members = first + run.job.grid.offsets(axis)
        classes = b"".join(stage.partition.class_of[members].tobytes() for stage in run.stages)
        of_patterns = merged.setdefault((axis, run.job.pattern_of[members].tobytes()), {})
        of_patterns.setdefault(classes, (first, []))[1].extend(rows)
    return [(axis, list(groups.values())) for (axis, _), groups in merged.items()]


class _Waits(NamedTuple):
    """Dependencies of one signal: own entry, own sends, entries and sends of peers by (role[, number])."""

    entry: bool
    sends: list[int]
    peer_entries: list[int]
    peer_sends: list[tuple[int, int]]


class _Kind:
    """Group members that follow one pattern.

    positions: int64, their positions among all members; classes: int64[stages, distinct], the distinct classes;
    class_at: int64, index of each member into these.
    """

    def __init__(self, run: FoldedRun, axis: str, members: Int64, pattern: Pattern, positions: Int64) -> None:
        self.pattern = pattern
        self.positions = positions
        classes = np.stack([stage.partition.class_of[members.ravel()[positions]] for stage in run.stages])
        self.classes, class_at = np.unique(classes, axis=1, return_inverse=True)
        self.class_at = class_at.ravel()
        self._run = run
        self._axis = axis
        self._rows = run.job.row_of[members.ravel()[positions]]
        self._firsts = positions - positions % members.shape[1]
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
        for stage, numbers in zip(self._run.stages, self.classes, strict=True):
            for columns, number_of in self._same_tasks(stage, numbers):
                local = number_of[tasks]
                ran = np.flatnonzero(local >= 0)
                ends[columns[:, None], ran] = stage.end_ps[stage.base[numbers[columns]][:, None] + local[ran]]
        return ends[self.class_at]

    def _same_tasks(self, stage: RunStage, numbers: Int64) -> list[tuple[Int64, Int32]]:
        """Divide classes by their remaining tasks: indices of ``numbers``, and each task's number in such a class."""
        columns_of: dict[int, list[int]] = {}
        number_of: dict[int, Int32] = {}
        for column, number in enumerate(numbers.tolist()):
            if number >= 0:
                tasks = stage.parts[stage.part_of[number]].number_of
                number_of[id(tasks)] = tasks
                columns_of.setdefault(id(tasks), []).append(column)
        return [(np.array(columns, np.int64), number_of[name]) for name, columns in columns_of.items()]


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
            _Kind(run, axis, members, run.job.patterns[pattern_number], np.flatnonzero(number == pattern_number))
            for pattern_number in np.unique(number).tolist()
        ]

    def all(self) -> Iterator[_AxisSignals]:
        """Yield the signals of all collectives, some at a time."""
        of_axis = ([call for call in kind.pattern.together if call.axis == self.axis] for kind in self.kinds)
        for calls in zip(*of_axis, strict=True):  # members agree on the collectives of their group, and on their order
            num_members = sum(len(kind.positions) for kind in self.kinds)
            step = max(1, MAX_TIMES // (num_members * max(call.num_sends for call in calls)))
            for first in range(0, len(calls[0].keys), step):
                yield self._signals([_selected(call, slice(first, first + step)) for call in calls])

    def _signals(self, calls: list[Together]) -> _AxisSignals:
        """Compute the signals of ``calls``: the same collectives, once for each kind."""
        num_members, num_keys = sum(len(kind.positions) for kind in self.kinds), len(calls[0].keys)
        entries = np.full((num_members, num_keys), -1, np.int64)
        sends = np.full((num_members, max(call.num_sends for call in calls), num_keys), -1, np.int64)
        for kind, call in zip(self.kinds, calls, strict=True):
            entries[kind.positions] = kind.ends(call.entered)
            flows = kind.ends(call.timed.T.ravel()).reshape(len(kind.positions), -1, num_keys)
            sends[kind.positions, call.num_signals : call.num_sends - call.num_signals] = flows
        rounds = [(number, False) for number in range(calls[0].num_signals)]
        for number, is_after in [*rounds, *((number, True) for number, _ in rounds)]:
            for kind, call in zip(self.kinds, calls, strict=True):
                place = call.num_sends - call.num_signals + number if is_after else number
                sends[kind.positions, place] = _heard(kind, call, place, entries, sends)
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
        call = next(call for kind, call in zip(groups.kinds, self.calls, strict=True) if kind.pattern is pattern)
        row = group * groups.group_size + job.grid.coordinate(rank, groups.axis)
        return call.signals, self.sends[row][call.signals - call.first[:, None], np.arange(len(call.keys))[:, None]]


def _heard(kind: _Kind, call: Together, place: int, entries: Int64, sends: Int64) -> Int64:
    """Return the latest end among the dependencies of send ``place`` of each member: int64[members, keys]."""
    waits = _waits(kind.pattern, call, place)
    ends = [entries[kind.positions]] if waits.entry else []
    ends += [sends[kind.positions, number] for number in waits.sends]
    ends += [entries[kind.places_of(role)] for role in waits.peer_entries]
    ends += [sends[kind.places_of(role), number] for role, number in waits.peer_sends]
    latest: Int64 = np.maximum.reduce(ends)
    return latest


def _selected(call: Together, selection: slice) -> Together:
    """Return the same call with only ``some`` of its collectives."""
    return replace(call, keys=call.keys[selection], entered=call.entered[selection], first=call.first[selection])


def _waits(pattern: Pattern, call: Together, place: int) -> _Waits:
    """Return the dependencies of send ``place``, from the first collective of a call, as all of them are alike."""
    edges, task = pattern.edges, int(call.first[0]) + place
    rows = slice(*np.searchsorted(edges.task, [task, task + 1]))
    waits = _Waits(False, [], [], [])
    for role, kind, key, number in zip(*(c[rows].tolist() for c in (edges.role, edges.kind, edges.key, edges.number)),
                                       strict=True):  # fmt: skip
        if role == SELF:
            if key == int(call.entered[0]):
                waits = waits._replace(entry=True)
            else:
                waits.sends.append(key - int(call.first[0]))
        elif kind == ENTERED:
            waits.peer_entries.append(role)
        else:
            waits.peer_sends.append((role, number))
    return waits
