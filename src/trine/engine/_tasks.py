"""When tasks may begin: what the end of one means for those after it. Of this event loop and that of GPUs."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.engine._state import FIRST_SUCCESSOR, GATES, HALVES, NUM_SUCCESSORS, WAITS, WORDS, Tasks

U = np.uint64


@inlined
def open_gate(tasks: Tasks, task: Int) -> bool:
    """A compute task has become ready, or has come to the head of its stream; returns whether it has both."""
    gates = tasks.half[U(HALVES * task + GATES)] - 1
    tasks.half[U(HALVES * task + GATES)] = gates
    return bool(gates == 0)


@inlined
def release(tasks: Tasks, finished: Int, num_ready: Int) -> Int:
    """Tell the successors of ``finished``; returns the new number of ready tasks."""
    first = tasks.word[U(WORDS * finished + FIRST_SUCCESSOR)]
    last = first + tasks.half[U(HALVES * finished + NUM_SUCCESSORS)]
    for entry in range(first, last):
        after = np.int64(tasks.successor_idx[U(entry)])
        waits = tasks.half[U(HALVES * after + WAITS)] - 1
        tasks.half[U(HALVES * after + WAITS)] = waits
        if waits == 0:  # below 0: a join that did not need this one any more
            tasks.ready[U(num_ready)] = after
            num_ready += 1
    return num_ready
