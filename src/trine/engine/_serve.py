"""Messages that have come to their next link at one instant, in networks that carry them link by link."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.engine._heap import push
from trine.engine._sort import sort
from trine.engine._state import AMOUNT, HALVES, HOP, ROUTE, START_PS, WORDS, Routes, Tasks
from trine.network._fifo import pass_link
from trine.network._limits import MAX_PS
from trine.network._state import Links

U = np.uint64


@inlined
def serve(
    tasks: Tasks, routes: Routes, links: Links, heap: Int64, size: Int, num_arrived: Int, now: Int
) -> tuple[Int, Int]:
    """Let the links take tasks.arrived[:num_arrived], in the order of their numbers where several come to one link.

    Puts on the heap when each comes to the next link, or to the end of its route. Returns the size of the heap, for
    which the caller has made sure of the room, and a task that would come there too late or -1.
    """
    late = np.int64(-1)
    for at in range(num_arrived):
        links.fresh[U(_next_link(tasks, routes, np.int64(tasks.arrived[U(at)])))] += 1
    together = np.int64(0)
    for at in range(num_arrived):  # most come alone and need no order
        task = np.int64(tasks.arrived[U(at)])
        link = _next_link(tasks, routes, task)
        if links.fresh[U(link)] > 1:
            tasks.arrived[U(together)] = task
            together += 1
        else:
            links.fresh[U(link)] = 0
            size, beyond = _cross(tasks, routes, links, heap, size, task, link, now)
            late = max(late, beyond)
    sort(tasks.arrived, together)
    for at in range(together):
        task = np.int64(tasks.arrived[U(at)])
        link = _next_link(tasks, routes, task)
        links.fresh[U(link)] = 0
        size, beyond = _cross(tasks, routes, links, heap, size, task, link, now)
        late = max(late, beyond)
    return size, late


@inlined
def _next_link(tasks: Tasks, routes: Routes, task: Int) -> Int:
    hop = tasks.half[U(HALVES * task + HOP)] - 1
    return np.int64(routes.links[U(routes.ptr[U(tasks.half[U(HALVES * task + ROUTE)])] + hop)])


@inlined
def _cross(
    tasks: Tasks, routes: Routes, links: Links, heap: Int64, size: Int, task: Int, link: Int, now: Int
) -> tuple[Int, Int]:
    """Let ``link`` take ``task``; returns the size of the heap, and the task if it would arrive too late, else -1."""
    begin_ps, end_ps = pass_link(links, link, tasks.word[U(WORDS * task + AMOUNT)], now)
    if end_ps > MAX_PS or links.latency_ps[U(link)] > MAX_PS - end_ps:
        return size, np.int64(task)
    if tasks.half[U(HALVES * task + HOP)] == 1:
        entry_ps = routes.entry_ps[U(tasks.half[U(HALVES * task + ROUTE)])]
        tasks.word[U(WORDS * task + START_PS)] = begin_ps - entry_ps
    tasks.half[U(HALVES * task + HOP)] += 1
    return push(heap, size, end_ps + links.latency_ps[U(link)], task), np.int64(-1)
