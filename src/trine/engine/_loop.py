"""The event loop, compiled. Its semantics are defined in reference.py; its order in docs/design/time-and-order.md.

Also here: messages that links carry one at a time (readable form: StoreAndForward in models.py), and compute tasks that
slow down while others take part of their stream's speed (readable form: slowdown.py). Slowdowns use integers:
attoseconds (millionths of a ps) at full speed, times in ps, speeds in millionths of full speed. So the order and number
of the changes of a stream's speed make no difference.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined, kernel
from trine.common._records import Record, RecordArray
from trine.engine._circuits import circuit_event, settle
from trine.engine._flows import begin_flow, drain_ps, end_flow, share
from trine.engine._heap import ANY_ORDER, pop, push, sort
from trine.engine._limits import FULL_PPM, MAX_PS, MIN_PPM
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
    return the reason.

    All state is in the arguments, so that the shell can grow ``network`` and ``heap`` and call again. A heap entry is
    (time, task) for the end of a compute task or of a latency, and (time, -1 - slot) for the predicted end of a flow,
    which is valid unless the prediction has changed. ``circuits`` is None in a network without circuits, and the
    kernel is then compiled without them. Each turn of the loop handles one ready task, or one due event.
    Without either, it handles the changed streams, then the network; then time advances.
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
        delayed = np.int64(-1)  # a task with an event in delay_ps
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
    """Schedule the next event of a task in ``delay_ps``; return False if that is too late."""
    if delay_ps > MAX_PS - clock.now:
        clock.late_task = number
        return False
    task = work.tasks[U(number)]
    if has_slowdowns and delay_ps > 0 and task.kind == COMPUTE and task.stream >= 0:
        begin_rate_limited(work, clock, number)
    else:
        push(heap, clock, clock.now + delay_ps, number, ANY_ORDER)
    return True


@inlined
def serve(work: TaskTables, network: NetworkTables, heap: RecordArray, clock: Record) -> None:
    """Let the links take the messages that have arrived, in the order of their numbers if several reach one link.

    Pushes each message's arrival at the next link, or at the end of its route, on the heap; the caller has made sure of
    the room.
    """
    links, arrived = network.links, work.arrived
    num_arrived = clock.num_arrived
    clock.num_arrived = 0
    clock.num_flows += num_arrived
    for i in range(num_arrived):
        links[U(_next_link(work, network, np.int64(arrived[U(i)])))].num_new += 1
    num_together = np.int64(0)
    for i in range(num_arrived):  # most come alone and need no order
        task = np.int64(arrived[U(i)])
        link = _next_link(work, network, task)
        if links[U(link)].num_new > 1:
            arrived[U(num_together)] = task
            num_together += 1
        else:
            links[U(link)].num_new = 0
            _cross(work, network, heap, clock, task, link)
    sort(arrived, num_together)
    for i in range(num_together):
        task = np.int64(arrived[U(i)])
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
    """Let a link carry a message after all earlier ones."""
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


@inlined
def apply_slowdown(work: TaskTables, clock: Record, finished: Int) -> None:
    """Change the stream's speed after a task has ended."""
    number = np.int64(work.slowdown_stream[U(finished)])
    if number >= 0:
        work.streams[U(number)].taken_ppm += np.int64(work.slowdown_ppm[U(finished)])
        _note_change(work, clock, number)


@inlined
def begin_rate_limited(work: TaskTables, clock: Record, number: Int) -> None:
    """Let a task run on its stream; :func:`update_speeds` predicts its end."""
    task = work.tasks[U(number)]
    stream = work.streams[U(task.stream)]
    stream.left_as = task.amount * FULL_PPM
    stream.since_ps = clock.now
    stream.due_ps = -1
    stream.running = number
    _note_change(work, clock, np.int64(task.stream))


@inlined
def ends_now(work: TaskTables, clock: Record, number: Int) -> bool:
    """Return whether a heap entry for the task's end is still valid; if so, the task no longer runs."""
    task = work.tasks[U(number)]
    if task.stream < 0 or task.amount == 0:
        return True
    stream = work.streams[U(task.stream)]
    if stream.running != number or stream.due_ps != clock.now:
        return False
    stream.running = -1
    return True


@inlined
def update_speeds(work: TaskTables, heap: RecordArray, clock: Record) -> None:
    """Give the changed streams their speeds, and put new ends of their tasks on the heap, which has room for them.

    Notes in the clock a task that would end after MAX_PS, and a stream that is faster than full speed.
    """
    now = clock.now
    clock.fast_stream = -1
    for i in range(clock.num_changed):
        number = np.int64(work.changed_streams[U(i)])
        stream = work.streams[U(number)]
        stream.is_changed = 0
        speed_ppm = FULL_PPM - stream.taken_ppm
        if speed_ppm > FULL_PPM:
            clock.fast_stream = max(clock.fast_stream, number)
        speed_ppm = max(np.int64(MIN_PPM), speed_ppm)
        if stream.running >= 0:
            left_as = stream.left_as - (now - stream.since_ps) * stream.speed_ppm
            delay_ps = (left_as + speed_ppm - 1) // speed_ppm
            if delay_ps > MAX_PS - now:
                clock.late_task = max(clock.late_task, stream.running)
            elif now + delay_ps != stream.due_ps:
                stream.due_ps = now + delay_ps
                push(heap, clock, now + delay_ps, stream.running, ANY_ORDER)
            stream.left_as = left_as
        stream.since_ps = now
        stream.speed_ppm = speed_ppm
    clock.num_changed = 0


@inlined
def _note_change(work: TaskTables, clock: Record, number: Int) -> None:
    """Note that a stream has changed at this instant."""
    stream = work.streams[U(number)]
    if stream.is_changed == 0:
        stream.is_changed = 1
        work.changed_streams[U(clock.num_changed)] = number
        clock.num_changed += 1
