"""The shifts of a run's tasks: how much later the equal task of a later micro-batch is ready, starts and ends.

Several lengths of the period are tried on one run. Shared facts, such as the order of all tasks, are found once
(:class:`TasksByStart`); a length then costs a few look-ups a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.lists import PASS_KINDS, Times, Track, tracks_of
from trine.folding.run import JobRun


class Shifts(NamedTuple):
    """The entries of all lists that have an equal task one period later, ``now``, and these tasks' entries, ``then``.

    The shifts of such entries, int64[pairs], ps, are computed on each use.
    """

    tasks: TasksByStart
    now: Int64
    then: Int64

    @property
    def num_entries(self) -> int:
        """Entries of all lists; tasks outside lists have the entry behind them (-1)."""
        return len(self.tasks.entries.start)

    @property
    def ready_shift(self) -> Int64:
        return self._difference(self.tasks.entries.ready)

    @property
    def start_shift(self) -> Int64:
        return self._difference(self.tasks.entries.start)

    @property
    def end_shift(self) -> Int64:
        return self._difference(self.tasks.entries.end)

    @property
    def later_ready(self) -> Int64:
        """When the later task is ready, ps."""
        return self.tasks.entries.ready[self.then]

    def _difference(self, column: Int64) -> Int64:
        shift: Int64 = column[self.then] - column[self.now]
        return shift

    def by_start(self, column: Int64) -> Int64:
        """Return a column of the pairs for all tasks in order of start, -1 without a later task: int64[tasks]."""
        of_entries = np.full(self.num_entries + 1, -1)
        of_entries[self.now] = column
        return of_entries[self.tasks.entry]


@dataclass(frozen=True, slots=True, eq=False)
class TasksByStart:
    """The simulated tasks of all tracks in order of start: int64[tasks], and their lists: int64[lists].

    start, end: ps. latest_end: of all tasks up to each one, ps. key: number of the task's place in its sequence; phase:
    of its list; entry: its place among the entries of all lists; each is -1 outside lists. entries: times of the
    entries of all lists, -1 if not simulated. sequence, microbatch, begin, length: of each list; begin: its first
    entry.
    """

    start: Int64
    end: Int64
    latest_end: Int64
    key: Int64
    phase: Int64
    entry: Int64
    entries: Times
    sequence: Int64
    microbatch: Int64
    begin: Int64
    length: Int64

    @staticmethod
    def of(tracks: Sequence[Track]) -> TasksByStart:
        """Sort the tasks of some tracks; tasks that start together stay in the order of their tracks."""
        tasks: list[tuple[Int64, ...]] = []
        num_keys, num_entries, num_sequences = 0, 0, 0
        of_entries, sequences, lengths = [], [], []
        for lists, times in tracks:
            done = np.flatnonzero(times.start >= 0)
            columns = np.full((3, len(times.start)), -1)
            columns[0, lists.tasks] = num_keys + lists.keys
            columns[1, lists.tasks] = (lists.passes % PASS_KINDS - 1)[lists.of_task]
            columns[2, lists.tasks] = num_entries + np.arange(len(lists.tasks))
            tasks.append(tuple(column[done] for column in (times.start, times.end, *columns)))
            of_entries.append(tuple(column[lists.tasks] for column in times))
            sequences.append(num_sequences + lists.sequence)
            lengths.append(np.diff(np.append(lists.begin, len(lists.tasks))))
            num_keys += lists.num_keys
            num_entries += len(lists.tasks)
            num_sequences += len(lists.first_key)
        rows = [np.concatenate(row) for row in zip(*tasks, strict=True)]
        tasks.clear()
        order = np.argsort(rows[0], kind="stable")
        start, end, key, phase, entry = (row[order] for row in rows)
        entries = [np.concatenate(column) for column in zip(*of_entries, strict=True)]
        length = np.concatenate(lengths)
        return TasksByStart(
            start=start, end=end, latest_end=np.maximum.accumulate(end), key=key, phase=phase, entry=entry,
            entries=Times(*entries), sequence=np.concatenate(sequences),
            microbatch=np.concatenate([track.lists.microbatch for track in tracks]),
            begin=np.cumsum(length) - length, length=length,
        )  # fmt: skip

    def shifts(self, distance: int, first: int = -1) -> Shifts:
        """Return the shifts to the equal tasks ``distance`` places later in their sequences.

        first: the first micro-batch whose tasks have shifts.
        """
        ahead = np.repeat(self._entries_ahead(distance, first), self.length)
        now = np.flatnonzero(ahead)
        return Shifts(self, now, now + ahead[now])

    def _entries_ahead(self, distance: int, first: int) -> Int64:
        """Return how many entries behind each list the equal one begins, 0 without one: int64[lists]."""
        order = np.lexsort((self.microbatch, self.sequence))
        ahead = np.zeros(len(order), np.int64)
        if len(order) > distance:
            is_same = self.sequence[order[distance:]] == self.sequence[order[:-distance]]
            now, then = order[:-distance][is_same], order[distance:][is_same]
            ahead[now] = self.begin[then] - self.begin[now]
        ahead[self.microbatch < first] = 0
        return ahead


@dataclass
class Compared:
    """The simulated tasks of one run, found on demand, and once for all searches.

    num_stages: of the run, after which its classes are taken; None: all.
    """

    run: JobRun
    num_stages: int | None = None

    @cached_property
    def tracks(self) -> list[Track]:
        return tracks_of(self.run, num_stages=self.num_stages)

    @cached_property
    def by_start(self) -> TasksByStart:
        return TasksByStart.of(self.tracks)

    @property
    def end_ps(self) -> int | None:
        """When ranks of one class begin to differ; None if they never do."""
        folded = self.run.folded
        if folded is None or self.num_stages is None or self.num_stages >= len(folded.stages):
            return None
        return min(stage.begins_ps for stage in folded.stages[self.num_stages :])
