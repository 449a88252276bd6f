"""What one rank does, with the tasks of other ranks named by role: the pattern of all ranks that may be alike.

A pattern is a rank program with the messages of its collectives. Its tasks are numbered from 0: the steps of the
program, a collective being two joins (entered, ended), then what the rank sends in collectives, in program order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trine.arrays import Int8, Int16, Int32, Int64
from trine.graph.grid import RankGrid
from trine.graph.program import Job
from trine.parallel.template import ProgramTemplate

#: Roles that are no other rank: none or this rank itself, and the host whose memory it copies from, or to.
SELF, HOST, TO_HOST = -1, -2, -3
#: Of edges alone: all ranks of the group that runs collective ``key``, this rank among them.
GROUP = -4
HOSTS = (HOST, TO_HOST)
#: What an edge names at the rank in its role: a task by number, a send of a collective, the entry into one, a message.
TASK, SENT, ENTERED, MESSAGE = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Together:
    """Collectives of one call in which all ranks of a group wait for each other before they send, and after.

    keys: int64[k], rising; entered, first: int64[k], the entry into each, and the first of its ``num_sends`` sends. Of
    these the first and the last ``num_signals`` are joins by which ranks tell each other, in no time.
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
        """int64[k, 2 x num_signals]: the others."""
        at = np.arange(self.num_signals)
        signals: Int64 = self.first[:, None] + np.concatenate([at, self.num_sends - self.num_signals + at])
        return signals


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """What tasks wait for, sorted by task; every array has one entry an edge.

    task: int64. role: int16, whose task the predecessor is (SELF: this rank's). what: int8, how it is named: TASK
    ``key`` of this rank, the send ``number`` of collective ``key``, the entry into collective ``key``, or the MESSAGE
    ``key`` that this rank receives. key, number: int32. Of a GROUP: the entries of all its ranks into collective
    ``key``, or all that they SENT in it.
    """

    task: Int64
    role: Int16
    what: Int8
    key: Int32
    number: Int32

    def __len__(self) -> int:
        return len(self.task)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pattern:
    """A pattern, and the ranks that follow it.

    program: its number in the job. ranks: int64[r]. peers: int32[r, roles], who is in each role. role_axes: the axis of
    the grid along which each role lies. kind: int8[n]; duration_ps, size_bytes, software_ps (before a message enters
    its first link), caps (bytes/s at most of a transfer, 0: no limit): int64[n]; stream: int32[n], within the rank;
    labels: int32[fields, n]; key: int32[n], the collective that a task belongs to, or -1; role: int16[n], of transfers
    whom they go to (HOST: they come from there).
    pressure_ppm: int32[n], what the compute stream of the rank loses when a task ends; None where nothing presses.
    entered, first_sent: int32[keys], the entry into each collective and the first of its sends, -1 where the rank takes
    no part. messages: (message, position of the receiver on its axis) -> task that sends it. algorithm_of: of each
    key that it takes part in, the algorithm. key_axes: the axis of every key. together: those of its collectives.
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

    keys: all collectives, as (axis, key); calls: of each key what it does. streams: names of the streams of a rank.
    templates: of each program.
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
        """The program of a rank, and how many ranks run it."""
        program = self.patterns[int(self.pattern_of[rank])].program
        return program, sum(len(pattern.ranks) for pattern in self.patterns if pattern.program == program)
