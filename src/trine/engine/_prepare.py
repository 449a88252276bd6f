"""Turn the columns of a task graph into records, predecessors into successors, and find the order in each stream."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, kernel
from trine.arrays import Int32, Int64
from trine.engine._state import (
    AMOUNT,
    COMPUTE,
    END_PS,
    FIRST_SUCCESSOR,
    GATES,
    HALVES,
    KIND,
    NEXT_IN_STREAM,
    NUM_SUCCESSORS,
    READY_PS,
    ROUTE,
    START_PS,
    TRANSFER,
    WAITS,
    WORDS,
    Columns,
    Tasks,
)

U = np.uint64


@kernel
def prepare(
    columns: Columns, predecessor_ptr: Int64, predecessor_idx: Int32, last_in_stream: Int32, tasks: Tasks
) -> Int:
    """Fill ``tasks``; returns how many tasks are ready.

    columns: kind, stream, duration_ps, size_bytes, route, need of the TaskGraph. last_in_stream: int32[streams],
    scratch, -1.
    """
    kind, stream, duration_ps, size_bytes, route, need = columns
    num_tasks = len(kind)
    num_ready = np.int64(0)
    for task in range(num_tasks):
        word = WORDS * task
        half = HALVES * task
        tasks.word[U(word + AMOUNT)] = size_bytes[U(task)] if kind[U(task)] == TRANSFER else duration_ps[U(task)]
        tasks.word[U(word + READY_PS)] = -1
        tasks.word[U(word + START_PS)] = -1
        tasks.word[U(word + END_PS)] = -1
        tasks.half[U(half + WAITS)] = need[U(task)]
        tasks.half[U(half + GATES)] = 1
        tasks.half[U(half + KIND)] = kind[U(task)]
        tasks.half[U(half + ROUTE)] = route[U(task)] if kind[U(task)] == TRANSFER else stream[U(task)]
        tasks.half[U(half + NEXT_IN_STREAM)] = -1
        tasks.half[U(half + NUM_SUCCESSORS)] = 0
        if kind[U(task)] == COMPUTE and stream[U(task)] >= 0:
            last = np.int64(last_in_stream[U(stream[U(task)])])
            if last >= 0:
                tasks.half[U(HALVES * last + NEXT_IN_STREAM)] = task
                tasks.half[U(half + GATES)] = 2
            last_in_stream[U(stream[U(task)])] = task
        if need[U(task)] == 0:
            tasks.ready[U(num_ready)] = task
            num_ready += 1
    for entry in range(len(predecessor_idx)):  # counting sort: count, sum up, place
        tasks.half[U(HALVES * np.int64(predecessor_idx[U(entry)]) + NUM_SUCCESSORS)] += 1
    first = np.int64(0)
    for task in range(num_tasks):
        tasks.word[U(WORDS * task + FIRST_SUCCESSOR)] = first
        first += tasks.half[U(HALVES * task + NUM_SUCCESSORS)]
        tasks.half[U(HALVES * task + NUM_SUCCESSORS)] = 0
    for task in range(num_tasks):
        for entry in range(predecessor_ptr[U(task)], predecessor_ptr[U(task + 1)]):
            before = np.int64(predecessor_idx[U(entry)])
            placed = np.int64(tasks.half[U(HALVES * before + NUM_SUCCESSORS)])
            tasks.successor_idx[U(tasks.word[U(WORDS * before + FIRST_SUCCESSOR)] + placed)] = task
            tasks.half[U(HALVES * before + NUM_SUCCESSORS)] = placed + 1
    return num_ready
