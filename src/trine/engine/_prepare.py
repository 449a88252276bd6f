"""Turn predecessors into successors, and stream numbers into the order in each stream."""

from __future__ import annotations

import numpy as np

from trine._jit import kernel
from trine.engine._state import COMPUTE

U = np.uint64


@kernel
def prepare(kind, stream, predecessor_ptr, predecessor_idx, last_in_stream, program, tasks):
    """Fill program.successor_ptr/idx, program.next_in_stream and the first state of ``tasks``; returns how many are ready.

    last_in_stream: int32[streams], scratch, -1. successor_ptr: int64[tasks + 1], zero; tasks.waits: the needs; gates: 1.
    """
    n = len(kind)
    pointer = program.successor_ptr
    for entry in range(len(predecessor_idx)):  # counting sort: count, sum up, place
        pointer[U(predecessor_idx[U(entry)]) + U(1)] += 1
    for task in range(n):
        pointer[U(task + 1)] += pointer[U(task)]
    num_ready = np.int64(0)
    for task in range(n):
        for entry in range(predecessor_ptr[U(task)], predecessor_ptr[U(task + 1)]):
            before = predecessor_idx[U(entry)]
            program.successor_idx[U(pointer[U(before)])] = task
            pointer[U(before)] += 1
        program.next_in_stream[U(task)] = -1
        if kind[U(task)] == COMPUTE and stream[U(task)] >= 0:
            last = last_in_stream[U(stream[U(task)])]
            if last >= 0:
                program.next_in_stream[U(last)] = task
                tasks.gates[U(task)] = 2
            last_in_stream[U(stream[U(task)])] = task
        if tasks.waits[U(task)] == 0:
            tasks.ready[U(num_ready)] = task
            num_ready += 1
    for task in range(n, 0, -1):  # placing has moved each pointer to the beginning of the next task
        pointer[U(task)] = pointer[U(task - 1)]
    pointer[U(0)] = 0
    return num_ready
