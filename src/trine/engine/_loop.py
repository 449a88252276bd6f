"""The event loop, compiled. Its semantics are those of reference.py; its order is in docs/design/time-and-order.md."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined, kernel
from trine._records import Record, RecordArray
from trine.engine._circuits import circuit_event, settle
from trine.engine._flows import begin_flow, end_flow, share
from trine.engine._heap import ANY_ORDER, pop, push
from trine.engine._limits import MAX_PS
from trine.engine._queues import serve
from trine.engine._slowdown import apply_slowdown, begin_rate_limited, ends_now, update_speeds
from trine.engine._state import (
    COMPUTE,
    FINISHED,
    FIRST_QUEUE,
    FLOWS_FULL,
    HEAP_FULL,
    HELD,
    HELD_BACK,
    JOIN,
    NONE,
    OVERFLOW,
    PAUSED,
    TOO_FAST,
    CircuitTables,
    NetworkTables,
    TaskTables,
)
from trine.engine._tasks import release, stream_ready

U = np.uint64


@kernel
def advance(
    model: Int,
    work: TaskTables,
    network: NetworkTables,
    circuits: CircuitTables | None,
    heap: RecordArray,
    clock: Record,
    budget: Int,
) -> Int:
    """Run until nothing can happen, ``budget`` tasks have ended, held tasks have become ready, or an array is full;
    returns why.

    All state is in the arguments, so that the shell may grow ``network`` and ``heap`` and call again. A heap entry is
    (time, task) for the end of a compute task or of a latency, and (time, -1 - slot) for the end of a flow, which is
    valid if it is still the predicted one. ``circuits`` is None in a network without: then the kernel is compiled
    without them. One turn of the loop looks at one task: one that has become ready, or one whose event is due; then,
    with neither left at this instant, at the streams that have changed, at the network; then time goes on.
    """
    has_slowdowns = len(work.slowdown_ppm) > 0
    has_queues = model >= FIRST_QUEUE
    room = np.int64(len(heap))
    limit = clock.num_done + budget
    clock.late_task = -1
    while True:
        if clock.num_free == 0:
            return FLOWS_FULL
        if clock.num_queued == room:
            return HEAP_FULL
        finished = np.int64(-1)  # a task that ends in this turn
        entering = np.int64(-1)  # a transfer whose latency is over
        delayed = np.int64(-1)  # a task whose event comes in delay_ps
        delay_ps = np.int64(0)
        if clock.num_ready > 0:
            clock.num_ready -= 1
            number = np.int64(work.ready[U(clock.num_ready)])
            task = work.tasks[U(number)]
            task.ready_ps = clock.now
            if task.kind == COMPUTE:
                if stream_ready(work, number):
                    task.start_ps = clock.now
                    delayed = number
                    delay_ps = task.amount
            elif task.kind == HELD:
                clock.num_held += 1
            else:
                task.start_ps = clock.now
                if task.kind == JOIN:
                    finished = number
                else:
                    delayed = number
                    route = network.routes[U(task.route)]
                    delay_ps = route.latency_ps
                    if has_queues and task.amount > 0 and route.first < route.last:
                        delay_ps = route.software_latency_ps
                        if delay_ps == 0:
                            delayed = np.int64(-1)
                            entering = number
        elif clock.num_queued > 0 and heap[U(0)].time_ps == clock.now:
            number = heap[U(0)].payload
            pop(heap, clock, ANY_ORDER)
            if number < 0:
                flow = network.flows[U(-1 - number)]
                if flow.end_ps == clock.now:
                    finished = flow.task
                    end_flow(network, clock, -1 - number)
            elif work.tasks[U(number)].kind == COMPUTE:
                if not has_slowdowns or ends_now(work, clock, number):
                    finished = number
            else:
                entering = number
        elif clock.num_changed > 0:
            if clock.num_queued + clock.num_changed > room:
                return HEAP_FULL
            update_speeds(work, heap, clock)
            if clock.late_task >= 0:
                return OVERFLOW
            if clock.fast_stream >= 0 and clock.num_held == 0:
                return TOO_FAST
        elif clock.num_held > 0:
            return HELD_BACK
        elif clock.num_arrived > 0:
            if clock.num_queued + clock.num_arrived > room:
                return HEAP_FULL
            serve(work, network, heap, clock)
            if clock.late_task >= 0:
                return OVERFLOW
        elif clock.num_dirty > 0:
            if clock.num_queued + max(len(network.free_slots) - clock.num_free, clock.num_dirty) > room:
                return HEAP_FULL
            share(model, network, heap, clock)
            if clock.late_task >= 0:
                return OVERFLOW
        elif circuits is not None and circuits.switch[U(0)].has_changed != 0:
            if clock.num_queued + 3 * len(circuits.free_circuits) > room:
                return HEAP_FULL
            settle(circuits, work, network, heap, clock)
            if clock.late_task >= 0:
                return OVERFLOW
        elif clock.num_queued == 0:
            return FINISHED
        elif clock.num_done >= limit:
            return PAUSED
        else:
            clock.now = heap[U(0)].time_ps
        if entering >= 0:
            task = work.tasks[U(entering)]
            route = network.routes[U(task.route)]
            if circuits is not None and circuits.tasks[U(entering)].step != NONE:
                delay_ps = circuit_event(circuits, work, clock, entering)
                if delay_ps == 0:
                    finished = entering
                elif delay_ps > 0:
                    delayed = entering
            elif task.amount == 0 or route.first == route.last:
                finished = entering
            elif has_queues:
                if route.first + task.hop > route.last:
                    finished = entering
                else:
                    work.arrived[U(clock.num_arrived)] = entering
                    clock.num_arrived += 1
            else:
                begin_flow(network, clock, entering, task.amount, np.int64(task.route))
        if finished >= 0:
            task = work.tasks[U(finished)]
            task.end_ps = clock.now
            clock.num_done += 1
            if has_slowdowns:
                apply_slowdown(work, clock, finished)
            release(work, clock, finished)
            following = np.int64(task.next_in_stream)
            if following >= 0 and stream_ready(work, following):
                work.tasks[U(following)].start_ps = clock.now
                delayed = following
                delay_ps = work.tasks[U(following)].amount
        if delayed >= 0 and not _delay(work, heap, clock, delayed, delay_ps, has_slowdowns):
            return OVERFLOW


@inlined
def _delay(work: TaskTables, heap: RecordArray, clock: Record, number: Int, delay_ps: Int, has_slowdowns: bool) -> bool:
    """The next event of a task comes in ``delay_ps``; returns whether that is not too late."""
    if delay_ps > MAX_PS - clock.now:
        clock.late_task = number
        return False
    task = work.tasks[U(number)]
    if has_slowdowns and delay_ps > 0 and task.kind == COMPUTE and task.stream >= 0:
        begin_rate_limited(work, clock, number)
    else:
        push(heap, clock, clock.now + delay_ps, number, ANY_ORDER)
    return True
