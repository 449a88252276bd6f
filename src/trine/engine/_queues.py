"""Messages that links carry one at a time, from link to link; the readable form is StoreAndForward in models.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine._records import Record, RecordArray
from trine.engine._flows import drain_ps
from trine.engine._heap import ANY_ORDER, push, sort
from trine.engine._limits import MAX_PS
from trine.engine._state import NetworkTables, TaskTables

U = np.uint64


@inlined
def serve(work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record) -> None:
    """Let the links take the messages that have arrived, in the order of their numbers where several come to one link.

    Puts on the heap, for which the caller has made sure of the room, when each comes to the next link, or to the end of
    its route.
    """
    links, arrived = network.links, work.arrived
    num_arrived = clock.num_arrived
    clock.num_arrived = 0
    clock.num_flows += num_arrived
    for at in range(num_arrived):
        links[U(_next_link(work, network, np.int64(arrived[U(at)])))].num_new += 1
    num_together = np.int64(0)
    for at in range(num_arrived):  # most come alone and need no order
        task = np.int64(arrived[U(at)])
        link = _next_link(work, network, task)
        if links[U(link)].num_new > 1:
            arrived[U(num_together)] = task
            num_together += 1
        else:
            links[U(link)].num_new = 0
            _cross(work, network, heap, clock, task, link)
    sort(arrived, num_together)
    for at in range(num_together):
        task = np.int64(arrived[U(at)])
        link = _next_link(work, network, task)
        links[U(link)].num_new = 0
        _cross(work, network, heap, clock, task, link)


@inlined
def _next_link(work: TaskTables, network: NetworkTables, number: Int) -> Int:
    task = work.tasks[U(number)]
    return np.int64(network.route_links[U(network.routes[U(task.route)].first + task.hop - 1)])


@inlined
def _cross(
    work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record, number: Int, link_number: Int
) -> None:
    """Let a link carry a message after all that it has taken before."""
    task, link = work.tasks[U(number)], network.links[U(link_number)]
    begin_ps = max(clock.now, link.free_ps)
    busy_ps = drain_ps(np.float64(task.amount), link.bytes_per_s)
    if busy_ps > MAX_PS - begin_ps or link.latency_ps > MAX_PS - begin_ps - busy_ps:
        clock.late_task = max(clock.late_task, number)
        return
    link.free_ps = begin_ps + busy_ps
    if task.hop == 1:
        task.start_ps = begin_ps - network.routes[U(task.route)].software_latency_ps
    task.hop += 1
    push(heap, clock, begin_ps + busy_ps + link.latency_ps, number, ANY_ORDER)
