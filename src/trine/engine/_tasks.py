"""The life of a task: made from a task graph, released by its predecessors, restored in a run that goes on.

``release`` and ``stream_ready`` serve the load-store event loop of GPUs, too.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined, kernel
from trine.common._records import Record, RecordArray
from trine.common.arrays import Int8, Int32, Int64
from trine.engine._state import COMPUTE, HELD, TRANSFER, TaskTables

U = np.uint64


@inlined
def stream_ready(work: TaskTables, number: Int) -> bool:
    """Record that a compute task became ready, or the head of its stream; return whether it is both."""
    task = work.tasks[U(number)]
    gates = task.gates - 1
    task.gates = gates
    return bool(gates == 0)


@inlined
def release(work: TaskTables, clock: Record, finished: Int) -> None:
    """Tell the successors of ``finished``, which may become ready."""
    task = work.tasks[U(finished)]
    first = task.first_successor
    for entry in range(first, first + task.num_successors):
        number = np.int64(work.successors[U(entry)])
        successor = work.tasks[U(number)]
        num_awaited = successor.num_awaited - 1
        successor.num_awaited = num_awaited
        if num_awaited == 0:  # below 0: a join that did not need this one any more
            work.ready[U(clock.num_ready)] = number
            clock.num_ready += 1


@kernel
def prepare(
    columns: tuple[Int8, Int32, Int64, Int64, Int32, Int32],
    predecessor_ptr: Int64,
    predecessor_idx: Int32,
    last_in_stream: Int32,
    work: TaskTables,
) -> Int:
    """Fill the tables; returns how many tasks are ready.

    columns: kind, stream, duration_ps, size_bytes, route, need of the TaskGraph. last_in_stream: int32[streams],
    scratch, -1.
    """
    kind, stream, duration_ps, size_bytes, route, need = columns
    tasks = work.tasks
    num_ready = np.int64(0)
    for number in range(len(kind)):
        task = tasks[U(number)]
        is_transfer = kind[U(number)] == TRANSFER
        task.amount = size_bytes[U(number)] if is_transfer else duration_ps[U(number)]
        task.ready_ps = -1
        task.start_ps = -1
        task.end_ps = -1
        task.num_awaited = need[U(number)]
        task.gates = 1
        task.kind = kind[U(number)]
        task.route = route[U(number)] if is_transfer else stream[U(number)]
        task.next_in_stream = -1
        task.num_successors = 0
        if kind[U(number)] == COMPUTE and stream[U(number)] >= 0:
            last = np.int64(last_in_stream[U(stream[U(number)])])
            if last >= 0:
                tasks[U(last)].next_in_stream = number
                task.gates = 2
            last_in_stream[U(stream[U(number)])] = number
        if need[U(number)] == 0:
            work.ready[U(num_ready)] = number
            num_ready += 1
    _sort_successors(predecessor_ptr, predecessor_idx, work)
    return num_ready


@inlined
def _sort_successors(predecessor_ptr: Int64, predecessor_idx: Int32, work: TaskTables) -> None:
    """Turn predecessors into successors by a counting sort: count, sum up, place."""
    tasks = work.tasks
    for entry in range(len(predecessor_idx)):
        tasks[U(predecessor_idx[U(entry)])].num_successors += 1
    first = np.int64(0)
    for number in range(len(predecessor_ptr) - 1):
        task = tasks[U(number)]
        task.first_successor = first
        first += task.num_successors
        task.num_successors = 0
    for number in range(len(predecessor_ptr) - 1):
        for entry in range(predecessor_ptr[U(number)], predecessor_ptr[U(number + 1)]):
            predecessor = tasks[U(predecessor_idx[U(entry)])]
            work.successors[U(predecessor.first_successor + predecessor.num_successors)] = number
            predecessor.num_successors += 1


@kernel
def restore_tasks(work: TaskTables, ready_ps: Int64, start_ps: Int64, end_ps: Int64) -> tuple[Int, Int]:
    """Restore the tasks of a stopped run; return the number that begin now, and an inconsistent task or -1.

    Ready tasks that have not started and are not held begin now: they go on the stack of ready tasks. A task is
    inconsistent if all its predecessors have ended, but it has not become ready.
    """
    tasks = work.tasks
    num_ready = np.int64(0)
    for number in range(len(ready_ps)):
        if end_ps[U(number)] < 0:
            continue
        task = tasks[U(number)]
        for entry in range(task.first_successor, task.first_successor + task.num_successors):
            tasks[U(work.successors[U(entry)])].num_awaited -= 1
        if task.next_in_stream >= 0:
            tasks[U(task.next_in_stream)].gates -= 1
    for number in range(len(ready_ps)):
        task = tasks[U(number)]
        task.ready_ps = ready_ps[U(number)]
        task.start_ps = start_ps[U(number)]
        task.end_ps = end_ps[U(number)]
        if ready_ps[U(number)] < 0:
            if task.num_awaited <= 0:
                return num_ready, np.int64(number)
            continue
        task.num_awaited = 0  # never counts down to 0 again
        if start_ps[U(number)] >= 0 or task.kind == HELD:
            continue
        if task.kind == COMPUTE and task.gates == 2:
            task.gates = 1
        else:
            work.ready[U(num_ready)] = number
            num_ready += 1
    return num_ready, np.int64(-1)


@kernel
def gather(tasks: RecordArray, instants: Int64) -> None:
    """Move ready, start and end of each task to the front of ``instants``, which is the memory of ``tasks``."""
    for number in range(len(tasks)):
        task = tasks[U(number)]
        ready_ps, start_ps, end_ps = task.ready_ps, task.start_ps, task.end_ps
        instants[U(3 * number)] = ready_ps
        instants[U(3 * number + 1)] = start_ps
        instants[U(3 * number + 2)] = end_ps
