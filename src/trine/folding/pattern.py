"""Behaviour of one rank, with the tasks of other ranks named by role: the pattern of all ranks that may be alike.

A pattern is a rank program with the messages of its collectives. Tasks are numbered from 0: first the program's steps,
with a collective as two joins (entered, ended), then the rank's sends in collectives, in program order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Int8, Int16, Int32, Int64
from trine.graph.grid import RankGrid
from trine.graph.program import Job
from trine.parallel.template import ProgramTemplate

#: Roles other than another rank: this rank itself or no rank, and the host as the source or target of a copy.
SELF, HOST, TO_HOST = -1, -2, -3
#: Only in edges: all ranks of the group that runs collective ``key``, this rank included.
GROUP = -4
HOSTS = (HOST, TO_HOST)
#: Target of an edge at the rank in its role: a task by number, a collective's send, a collective's entry, a message.
TASK, SENT, ENTERED, MESSAGE = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Together:
    """Collectives of one call with mutual waits: all ranks of a group wait for each other before and after their sends.

    keys: int64[k], ascending; entered, first: int64[k], the entry into each, and the first of its ``num_sends`` sends.
    The first and the last ``num_signals`` sends are joins: signals between ranks that take no time.
    """

    axis: str
    keys: Int64
    entered: Int64
    first: Int64
    num_sends: int
    num_signals: int

    @property
    def timed(self) -> Int64:
        """int64[k, flows]: the sends that take time."""
        timed: Int64 = self.first[:, None] + np.arange(self.num_signals, self.num_sends - self.num_signals)
        return timed

    @property
    def signals(self) -> Int64:
        """int64[k, 2 x num_signals]: the other sends."""
        at = np.arange(self.num_signals)
        signals: Int64 = self.first[:, None] + np.concatenate([at, self.num_sends - self.num_signals + at])
        return signals


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """Dependencies of tasks, sorted by task; every array has one entry for each edge.

    task: int64. role: int16, the owner of the predecessor (SELF: this rank). kind: int8, the predecessor: TASK
    ``key`` of this rank, the send ``number`` of collective ``key``, the entry into collective ``key``, or the MESSAGE
    ``key`` that this rank receives. key, number: int32. For GROUP: the entries of all its ranks into collective
    ``key``, or everything that they SENT in it.
    """

    task: Int64
    role: Int16
    kind: Int8
    key: Int32
    number: Int32

    def __len__(self) -> int:
        return len(self.task)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pattern:
    """A pattern, and the ranks that follow it.

    program: its number in the job. ranks: int64[r]. peers: int32[r, roles], the rank in each role. role_axes: the grid
    axis of each role. kind: int8[n]; duration_ps, size_bytes, software_ps (before a message enters its first link),
    caps (maximum bytes/s of a transfer, 0: no limit): int64[n]; stream: int32[n], within the rank; labels:
    int32[fields, n]; key: int32[n], the collective of a task, or -1; role: int16[n], the target of a transfer (HOST:
    its source).
    pressure_ppm: int32[n], speed that the rank's compute stream loses when a task ends; None without slowdowns.
    entered, first_sent: int32[keys], the entry into each collective and the first of its sends, -1 without
    participation. messages: (message, position of the receiver on its axis) -> task that sends it. algorithm_of:
    algorithm of each of its collectives. key_axes: the axis of every key. together: the Together of its collectives.
    """

    program: int
    ranks: Int64
    peers: Int32
    role_axes: tuple[str, ...]
    kind: Int8
    duration_ps: Int64
    size_bytes: Int64
    software_ps: Int64
    caps: Int64
    stream: Int32
    labels: Int32
    key: Int32
    role: Int16
    edges: Edges
    entered: Int32
    first_sent: Int32
    messages: Mapping[tuple[int, int], int]
    algorithm_of: Mapping[int, str]
    key_axes: tuple[str, ...]
    together: tuple[Together, ...] = ()
    pressure_ppm: Int32 | None = None

    @property
    def num_tasks(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobPatterns:
    """A job as patterns. pattern_of: int32[ranks]; row_of: int32[ranks], the row of a rank in its pattern.

    job: its programs have no steps and memory changes; templates hold them. keys: all collectives, as (axis, key);
    calls: the call of each key. streams: names of the streams of a rank. templates: one for each program.
    """

    job: Job
    grid: RankGrid
    patterns: tuple[Pattern, ...]
    pattern_of: Int32
    row_of: Int32
    keys: tuple[tuple[str, tuple[int | str, ...]], ...]
    templates: tuple[ProgramTemplate, ...]
    streams: tuple[str, ...]

    def program_of(self, rank: int) -> tuple[int, int]:
        """Return the program of a rank, and the number of ranks that run it."""
        program = self.patterns[int(self.pattern_of[rank])].program
        return program, sum(len(pattern.ranks) for pattern in self.patterns if pattern.program == program)
