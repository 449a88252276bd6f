"""State of the event loop as arrays, and the numbers that the loop and its shell exchange."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

#: Why the loop came back: nothing more can happen; the budget of events is spent; an array is full; time is over.
FINISHED, PAUSED, FLOWS_FULL, HEAP_FULL, OVERFLOW = 0, 1, 2, 3, 4

#: Scalars that survive from one call of the loop to the next: ``scalars[NOW]``, ...
NOW, NUM_EVENTS, NUM_READY, NUM_DONE, NUM_FREE, NUM_DIRTY, SWEEP, TASK = 0, 1, 2, 3, 4, 5, 6, 7
NUM_SCALARS = 8

COMPUTE, TRANSFER, JOIN = 0, 1, 2


class Program(NamedTuple):
    """What to run, read only: arrays of the TaskGraph, the successors as CSR and the order in streams."""

    kind: Int8
    duration_ps: Int64
    size_bytes: Int64
    route: Int32
    route_ptr: Int64
    route_links: Int32
    route_latency_ps: Int64
    successor_ptr: Int64
    successor_idx: Int32
    next_in_stream: Int32


class Tasks(NamedTuple):
    """One entry a task, modified in place.

    waits: int32, predecessors that must still end. gates: int8, of a compute task: 1 for being ready + 1 for the task
    before it in its stream. ready_ps, start_ps, end_ps: int64, -1 before. ready: int32, stack of tasks to look at.
    """

    waits: Int32
    gates: Int8
    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64
    ready: Int32
