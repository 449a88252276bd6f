"""State of the event loop as arrays, and the numbers that the loop and its shell exchange."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from trine.arrays import Int8, Int32, Int64

#: Why the loop came back: nothing more can happen; the budget of tasks is spent; an array is full; time is over; a held
#: task has become ready; a stream (LATE_TASK) has been given back more speed than it had lost.
FINISHED, PAUSED, FLOWS_FULL, HEAP_FULL, OVERFLOW, HELD_BACK, TOO_FAST = 0, 1, 2, 3, 4, 5, 6

#: Scalars that survive from one call of the loop to the next: ``scalars[NOW]``, ...
NOW, NUM_QUEUED, NUM_READY, NUM_DONE, NUM_FLOWS, NUM_FREE, NUM_DIRTY, SWEEP, LATE_TASK = range(9)
NUM_CHANGED, NUM_HELD = 9, 10
NUM_SCALARS = 11

#: Kinds of tasks; a task of the last one does not begin when it becomes ready, and the loop comes back.
COMPUTE, TRANSFER, JOIN, HELD = 0, 1, 2, 3

#: A task is one record of 64 bytes: WORDS int64 words, or twice as many int32 halves.
WORDS, HALVES = 8, 16
#: ``word[WORDS * task + field]``: duration in ps or size in bytes; three instants in ps, -1 before they have happened;
#: where its successors begin in successor_idx.
AMOUNT, READY_PS, START_PS, END_PS, FIRST_SUCCESSOR = 0, 1, 2, 3, 4
#: ``half[HALVES * task + field]``: predecessors that must still end; of a compute task 1 for being ready + 1 for the
#: task before it in its stream; kind; of a transfer its route; of a compute task the next one in its stream, or -1.
#: Of a transfer that goes from link to link, HOP is 1 + the number of links that it has entered. Of a compute task,
#: STREAM is its stream, or -1.
WAITS, GATES, KIND, ROUTE, NEXT_IN_STREAM, NUM_SUCCESSORS = 10, 11, 12, 13, 14, 15
HOP = GATES
STREAM = ROUTE

#: A stream that pressure may slow down is one record of int64, ``pace[PACE * stream + field]``. Millionths of full
#: speed that are taken from it; its speed since PACED_SINCE_PS; attoseconds that were left then, at full speed, of the
#: task that runs; the foreseen end of that task; the task, or -1; whether the stream is in ``changed``.
PACE = 8
TAKEN, SPEED, LEFT_AS, PACED_SINCE_PS, DUE_PS, RUNNING, IS_CHANGED = 0, 1, 2, 3, 4, 5, 6


#: kind, stream, duration_ps, size_bytes, route and need of a TaskGraph.
Columns: TypeAlias = tuple[Int8, Int32, Int64, Int64, Int32, Int32]


class Tasks(NamedTuple):
    """One record a task, modified in place.

    word, half: int64 and int32 views of the same memory. All that an event needs to know of a task is in one cache
    line and on one page (1.7 times as fast as one array a field, at 3.5 million tasks). successor_idx: int32, read
    only. ready: int32, stack of tasks that have become ready. arrived: int32, the first NUM_DIRTY have come to their
    next link at this instant; as long as there are transfers, empty where the network has no queues.
    """

    word: Int64
    half: Int32
    successor_idx: Int32
    ready: Int32
    arrived: Int32


class Streams(NamedTuple):
    """What slows compute tasks down; all empty where nothing does.

    pressure_ppm, pressure_stream: int32[tasks] as in TaskGraph, read only. pace: int64[streams * PACE], modified in
    place. changed: int32[streams], the first NUM_CHANGED have changed at this instant.
    """

    pressure_ppm: Int32
    pressure_stream: Int32
    pace: Int64
    changed: Int32


class Routes(NamedTuple):
    """Links of route r: links[ptr[r]:ptr[r+1]], its latency, and what of it passes before the first link. Read only.

    counts: parallel to links, how often the flows of the route cross each; empty where all do once.
    """

    ptr: Int64
    links: Int32
    counts: Int32
    latency_ps: Int64
    entry_ps: Int64
