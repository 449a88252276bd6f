"""The event loop, compiled. Its semantics are those of reference.py; its order is in docs/design/time-and-order.md."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, kernel
from trine.arrays import Int64
from trine.engine._heap import pop, push
from trine.engine._pace import begin_paced, ends_now, press, repace
from trine.engine._serve import serve
from trine.engine._share import share
from trine.engine._state import (
    AMOUNT,
    COMPUTE,
    END_PS,
    FINISHED,
    FLOWS_FULL,
    HALVES,
    HEAP_FULL,
    HELD,
    HELD_BACK,
    HOP,
    JOIN,
    KIND,
    LATE_TASK,
    NEXT_IN_STREAM,
    NOW,
    NUM_CHANGED,
    NUM_DIRTY,
    NUM_DONE,
    NUM_FLOWS,
    NUM_FREE,
    NUM_HELD,
    NUM_QUEUED,
    NUM_READY,
    OVERFLOW,
    PAUSED,
    READY_PS,
    ROUTE,
    START_PS,
    STREAM,
    SWEEP,
    TOO_FAST,
    WORDS,
    Routes,
    Streams,
    Tasks,
)
from trine.engine._switch import circuit_event, settle
from trine.engine._tasks import open_gate, release
from trine.network._circuit_state import HAS_CHANGED, NONE, Circuits
from trine.network._dispatch import FIRST_QUEUE
from trine.network._flows import add_flow, remove_flow
from trine.network._limits import MAX_PS
from trine.network._state import (
    FIELDS,
    FLOW_END_PS,
    FLOW_TASK,
    QUEUED_PS,
    RATE,
    REMAINING,
    SINCE_PS,
    Flows,
    Links,
)

U = np.uint64


@kernel
def advance(
    model: Int,
    tasks: Tasks,
    streams: Streams,
    routes: Routes,
    links: Links,
    flows: Flows,
    circuits: Circuits | None,
    heap: Int64,
    scalars: Int64,
    budget: Int,
) -> Int:
    """Run until nothing can happen, ``budget`` tasks have ended, held tasks have become ready, or an array is full;
    returns why.

    All state is in the arguments, so that the shell may grow ``flows`` and ``heap`` and call again. A heap entry is
    (time, task) for the end of a compute task or of a latency, and (time, -1 - slot) for the end of a flow, which is
    valid if it is still the foreseen one. In a network with queues (``model`` from FIRST_QUEUE on) num_dirty counts the
    messages in tasks.arrived. ``circuits`` is None in a network without: then the kernel is compiled without them.
    One turn of the loop looks at one task: one that has become ready, or one whose event is due; then, with neither
    left at this instant, at the streams that have changed, at the network; then time goes on.
    """
    slows = len(streams.pressure_ppm) > 0
    now = scalars[NOW]
    size = scalars[NUM_QUEUED]
    num_ready = scalars[NUM_READY]
    num_done = scalars[NUM_DONE]
    num_flows = scalars[NUM_FLOWS]
    num_free = scalars[NUM_FREE]
    num_dirty = scalars[NUM_DIRTY]
    num_changed = scalars[NUM_CHANGED]
    num_held = scalars[NUM_HELD]
    sweep = scalars[SWEEP]
    room = np.int64(len(heap) // 2)
    limit = num_done + budget
    status = FINISHED
    while True:
        if num_free == 0:
            status = FLOWS_FULL
            break
        if size == room:
            status = HEAP_FULL
            break
        finished = np.int64(-1)
        entering = np.int64(-1)
        delayed = np.int64(-1)
        delay_ps = np.int64(0)
        if num_ready > 0:
            num_ready -= 1
            task = np.int64(tasks.ready[U(num_ready)])
            tasks.word[U(WORDS * task + READY_PS)] = now
            kind = tasks.half[U(HALVES * task + KIND)]
            if kind == COMPUTE:
                if open_gate(tasks, task):
                    tasks.word[U(WORDS * task + START_PS)] = now
                    delayed = task
                    delay_ps = tasks.word[U(WORDS * task + AMOUNT)]
            elif kind == HELD:
                num_held += 1
            else:
                tasks.word[U(WORDS * task + START_PS)] = now
                if kind == JOIN:
                    finished = task
                else:
                    delayed = task
                    route = np.int64(tasks.half[U(HALVES * task + ROUTE)])
                    delay_ps = routes.latency_ps[U(route)]
                    is_message = tasks.word[U(WORDS * task + AMOUNT)] > 0
                    if model >= FIRST_QUEUE and is_message and routes.ptr[U(route)] < routes.ptr[U(route + 1)]:
                        delay_ps = routes.entry_ps[U(route)]
                        if delay_ps == 0:
                            delayed = np.int64(-1)
                            entering = task
        elif size > 0 and heap[U(0)] == now:
            task = heap[U(1)]
            size = pop(heap, size)
            if task < 0:
                slot = -1 - task
                if flows.whole[U(FIELDS * slot + FLOW_END_PS)] == now:
                    finished = flows.whole[U(FIELDS * slot + FLOW_TASK)]
                    num_dirty = remove_flow(links, flows, num_dirty, slot)
                    flows.free[U(num_free)] = slot
                    num_free += 1
            elif tasks.half[U(HALVES * task + KIND)] == COMPUTE:
                if not slows or ends_now(tasks, streams, task, now):
                    finished = task
            else:
                entering = task
        elif num_changed > 0:
            if size + num_changed > room:
                status = HEAP_FULL
                break
            size, late, fast = repace(streams, heap, size, num_changed, now)
            num_changed = np.int64(0)
            if late >= 0:
                scalars[LATE_TASK] = late
                status = OVERFLOW
                break
            if fast >= 0 and num_held == 0:
                scalars[LATE_TASK] = fast
                status = TOO_FAST
                break
        elif num_held > 0:
            status = HELD_BACK
            break
        elif num_dirty > 0:
            if size + max(len(flows.free) - num_free, num_dirty) > room:
                status = HEAP_FULL
                break
            if model >= FIRST_QUEUE:
                num_flows += num_dirty
                size, late = serve(tasks, routes, links, heap, size, num_dirty, now)
            else:
                sweep += 1
                size, late = share(model, links, flows, heap, size, num_dirty, sweep, now)
            num_dirty = np.int64(0)
            if late >= 0:
                scalars[LATE_TASK] = late
                status = OVERFLOW
                break
        elif circuits is not None and circuits.number[U(HAS_CHANGED)] != 0:
            if size + 3 * len(circuits.free) > room:
                status = HEAP_FULL
                break
            size, late = settle(circuits, tasks, routes, heap, size, now)
            if late >= 0:
                scalars[LATE_TASK] = late
                status = OVERFLOW
                break
        elif size == 0:
            break
        elif num_done >= limit:
            status = PAUSED
            break
        else:
            now = heap[U(0)]
        if entering >= 0:
            route = np.int64(tasks.half[U(HALVES * entering + ROUTE)])
            first = routes.ptr[U(route)]
            last = routes.ptr[U(route + 1)]
            size_bytes = tasks.word[U(WORDS * entering + AMOUNT)]
            if circuits is not None and circuits.step[U(entering)] != NONE:
                delay_ps = circuit_event(circuits, tasks, entering, now)
                if delay_ps == 0:
                    finished = entering
                elif delay_ps > 0:
                    delayed = entering
            elif size_bytes == 0 or first == last:
                finished = entering
            elif model >= FIRST_QUEUE:
                if first + tasks.half[U(HALVES * entering + HOP)] > last:
                    finished = entering
                else:
                    tasks.arrived[U(num_dirty)] = entering
                    num_dirty += 1
            else:
                num_flows += 1
                num_free -= 1
                slot = np.int64(flows.free[U(num_free)])
                flows.real[U(FIELDS * slot + REMAINING)] = np.float64(size_bytes)
                flows.real[U(FIELDS * slot + RATE)] = 0.0
                flows.whole[U(FIELDS * slot + SINCE_PS)] = now
                flows.whole[U(FIELDS * slot + QUEUED_PS)] = -1
                flows.whole[U(FIELDS * slot + FLOW_TASK)] = entering
                num_dirty = add_flow(links, flows, num_dirty, slot, routes.links, routes.counts, first, last)
        if finished >= 0:
            tasks.word[U(WORDS * finished + END_PS)] = now
            num_done += 1
            if slows:
                num_changed = press(streams, num_changed, finished)
            num_ready = release(tasks, finished, num_ready)
            following = np.int64(tasks.half[U(HALVES * finished + NEXT_IN_STREAM)])
            if following >= 0 and open_gate(tasks, following):
                tasks.word[U(WORDS * following + START_PS)] = now
                delayed = following
                delay_ps = tasks.word[U(WORDS * following + AMOUNT)]
        if delayed >= 0:
            if delay_ps > MAX_PS - now:
                scalars[LATE_TASK] = delayed
                status = OVERFLOW
                break
            is_paced = slows and delay_ps > 0 and tasks.half[U(HALVES * delayed + KIND)] == COMPUTE
            if is_paced and tasks.half[U(HALVES * delayed + STREAM)] >= 0:
                num_changed = begin_paced(tasks, streams, num_changed, delayed, now)
            else:
                size = push(heap, size, now + delay_ps, delayed)
    scalars[NOW] = now
    scalars[NUM_QUEUED] = size
    scalars[NUM_READY] = num_ready
    scalars[NUM_DONE] = num_done
    scalars[NUM_FLOWS] = num_flows
    scalars[NUM_FREE] = num_free
    scalars[NUM_DIRTY] = num_dirty
    scalars[NUM_CHANGED] = num_changed
    scalars[NUM_HELD] = num_held
    scalars[SWEEP] = sweep
    return status
