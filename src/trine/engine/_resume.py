"""Put the state of a run that has stopped into fresh arrays, and take what happened out of them."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, kernel
from trine.arrays import Int64
from trine.engine._state import (
    COMPUTE,
    END_PS,
    FIRST_SUCCESSOR,
    GATES,
    HALVES,
    HELD,
    KIND,
    NEXT_IN_STREAM,
    NUM_SUCCESSORS,
    READY_PS,
    ROUTE,
    START_PS,
    WAITS,
    WORDS,
    Routes,
    Tasks,
)
from trine.network._flows import add_flow
from trine.network._state import FIELDS, FLOW_TASK, Flows, Links

U = np.uint64


@kernel
def restore_tasks(tasks: Tasks, ready_ps: Int64, start_ps: Int64, end_ps: Int64) -> tuple[Int, Int]:
    """Bring freshly prepared ``tasks`` to where a run has stopped; returns how many begin now, and a task or -1.

    Those that begin now have been ready, have not started, and are not held; they are put on the stack of ready tasks.
    The task is one that has all that it waits for but has not become ready.
    """
    num_tasks = len(ready_ps)
    num_ready = np.int64(0)
    for task in range(num_tasks):
        if end_ps[U(task)] < 0:
            continue
        first = tasks.word[U(WORDS * task + FIRST_SUCCESSOR)]
        for entry in range(first, first + tasks.half[U(HALVES * task + NUM_SUCCESSORS)]):
            tasks.half[U(HALVES * np.int64(tasks.successor_idx[U(entry)]) + WAITS)] -= 1
        following = np.int64(tasks.half[U(HALVES * task + NEXT_IN_STREAM)])
        if following >= 0:
            tasks.half[U(HALVES * following + GATES)] -= 1
    for task in range(num_tasks):
        tasks.word[U(WORDS * task + READY_PS)] = ready_ps[U(task)]
        tasks.word[U(WORDS * task + START_PS)] = start_ps[U(task)]
        tasks.word[U(WORDS * task + END_PS)] = end_ps[U(task)]
        half = HALVES * task
        if ready_ps[U(task)] < 0:
            if tasks.half[U(half + WAITS)] <= 0:
                return num_ready, np.int64(task)
            continue
        tasks.half[U(half + WAITS)] = 0  # never counts down to 0 again
        if start_ps[U(task)] >= 0 or tasks.half[U(half + KIND)] == HELD:
            continue
        if tasks.half[U(half + KIND)] == COMPUTE and tasks.half[U(half + GATES)] == 2:
            tasks.half[U(half + GATES)] = 1
        else:
            tasks.ready[U(num_ready)] = task
            num_ready += 1
    return num_ready, np.int64(-1)


@kernel
def restore_flows(tasks: Tasks, routes: Routes, links: Links, flows: Flows, num_flows: Int) -> Int:
    """Put the flows in the first ``num_flows`` slots on their links; returns the number of dirty links."""
    num_dirty = np.int64(0)
    for slot in range(num_flows):
        route = np.int64(tasks.half[U(HALVES * flows.whole[U(FIELDS * slot + FLOW_TASK)] + ROUTE)])
        first = routes.ptr[U(route)]
        last = routes.ptr[U(route + 1)]
        num_dirty = add_flow(links, flows, num_dirty, np.int64(slot), routes.links, routes.counts, first, last)
    return num_dirty


@kernel
def gather(word: Int64, num_tasks: Int) -> None:
    """Move ready, start and end of each task to the front of ``word``, three words a task, in place."""
    for task in range(num_tasks):
        ready_ps = word[U(WORDS * task + READY_PS)]
        start_ps = word[U(WORDS * task + START_PS)]
        end_ps = word[U(WORDS * task + END_PS)]
        word[U(3 * task)] = ready_ps
        word[U(3 * task + 1)] = start_ps
        word[U(3 * task + 2)] = end_ps
