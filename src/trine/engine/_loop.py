"""The event loop, compiled. Its semantics are those of reference.py; its order is in docs/design/time-and-order.md."""

from __future__ import annotations

import numpy as np

from trine._jit import inlined, kernel
from trine.engine._heap import pop, push
from trine.engine._state import (
    COMPUTE,
    FINISHED,
    FLOWS_FULL,
    HEAP_FULL,
    JOIN,
    NOW,
    NUM_DIRTY,
    NUM_DONE,
    NUM_EVENTS,
    NUM_FREE,
    NUM_READY,
    OVERFLOW,
    PAUSED,
    SWEEP,
    TASK,
)
from trine.network._dispatch import assign_rates
from trine.network._flows import add_flow, drain_ps, find_component, remove_flow
from trine.network._limits import MAX_PS

U = np.uint64


@kernel
def advance(model, program, tasks, links, flows, heap, scalars, budget):
    """Run until nothing can happen, ``budget`` tasks have ended, or an array is full; returns why.

    All state is in the arguments, so that the shell may grow ``flows`` and ``heap`` and call again. A heap entry is
    (time, task) for the end of a compute task or of a latency, and (time, -1 - slot) for the end of a flow, which is
    valid if it is still the foreseen one.
    """
    now = scalars[NOW]
    size = scalars[NUM_EVENTS]
    num_ready = scalars[NUM_READY]
    num_done = scalars[NUM_DONE]
    num_free = scalars[NUM_FREE]
    num_dirty = scalars[NUM_DIRTY]
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
        starting = np.int64(-1)
        delay_ps = np.int64(0)
        if num_ready > 0:
            num_ready -= 1
            task = np.int64(tasks.ready[U(num_ready)])
            tasks.ready_ps[U(task)] = now
            kind = program.kind[U(task)]
            if kind == COMPUTE:
                tasks.gates[U(task)] -= 1
                if tasks.gates[U(task)] == 0:
                    starting = task
            else:
                tasks.start_ps[U(task)] = now
                if kind == JOIN:
                    finished = task
                else:
                    delay_ps = program.route_latency_ps[U(program.route[U(task)])]
                    if delay_ps == 0:
                        entering = task
                    elif delay_ps > MAX_PS - now:
                        scalars[TASK] = task
                        status = OVERFLOW
                        break
                    else:
                        size = push(heap, size, now + delay_ps, task)
        elif size > 0 and heap[U(0)] == now:
            task = heap[U(1)]
            size = pop(heap, size)
            if task < 0:
                slot = -1 - task
                if flows.end_ps[U(slot)] == now:
                    finished = flows.task[U(slot)]
                    num_dirty = remove_flow(links, flows, num_dirty, slot)
                    flows.free[U(num_free)] = slot
                    num_free += 1
            elif program.kind[U(task)] == COMPUTE:
                finished = task
            else:
                entering = task
        else:
            if num_dirty > 0:
                if size + len(flows.task) - num_free > room:
                    status = HEAP_FULL
                    break
                sweep += 1
                for at in range(num_dirty):
                    seed = np.int64(links.dirty[U(at)])
                    links.is_dirty[U(seed)] = 0
                    if links.mark[U(seed)] == sweep or links.head[U(seed)] < 0:
                        continue
                    num_links, num_flows = find_component(links, flows, seed, sweep)
                    assign_rates(model, links, flows, num_links, num_flows)
                    size, late = _foresee(flows, heap, size, now, num_flows)
                    if late >= 0:
                        scalars[TASK] = late
                        status = OVERFLOW
                num_dirty = np.int64(0)
                if status == OVERFLOW:
                    break
            if size == 0:
                break
            if num_done >= limit:
                status = PAUSED
                break
            now = heap[U(0)]
            continue
        if entering >= 0:
            route = np.int64(program.route[U(entering)])
            first = program.route_ptr[U(route)]
            last = program.route_ptr[U(route + 1)]
            if program.size_bytes[U(entering)] == 0 or first == last:
                finished = entering
            else:
                num_free -= 1
                slot = np.int64(flows.free[U(num_free)])
                flows.task[U(slot)] = entering
                flows.remaining[U(slot)] = np.float64(program.size_bytes[U(entering)])
                flows.rate[U(slot)] = 0.0
                flows.since_ps[U(slot)] = now
                flows.queued_ps[U(slot)] = -1
                num_dirty = add_flow(links, flows, num_dirty, slot, program.route_links, first, last)
        if finished >= 0:
            tasks.end_ps[U(finished)] = now
            num_done += 1
            for entry in range(program.successor_ptr[U(finished)], program.successor_ptr[U(finished + 1)]):
                after = np.int64(program.successor_idx[U(entry)])
                waits = tasks.waits[U(after)] - 1
                tasks.waits[U(after)] = waits
                if waits == 0:  # below 0: a join that did not need this one any more
                    tasks.ready[U(num_ready)] = after
                    num_ready += 1
            following = np.int64(program.next_in_stream[U(finished)])
            if following >= 0:
                tasks.gates[U(following)] -= 1
                if tasks.gates[U(following)] == 0:
                    starting = following
        if starting >= 0:
            tasks.start_ps[U(starting)] = now
            delay_ps = program.duration_ps[U(starting)]
            if delay_ps > MAX_PS - now:
                scalars[TASK] = starting
                status = OVERFLOW
                break
            size = push(heap, size, now + delay_ps, starting)
    scalars[NOW] = now
    scalars[NUM_EVENTS] = size
    scalars[NUM_READY] = num_ready
    scalars[NUM_DONE] = num_done
    scalars[NUM_FREE] = num_free
    scalars[NUM_DIRTY] = num_dirty
    scalars[SWEEP] = sweep
    return status


@inlined
def _foresee(flows, heap, size, now, num_flows):
    """Take over the new rates of a component, and put its next ends on the heap; returns its size, and a task or -1.

    Only the earliest ends are put there: they change the component, and it will be looked at again. The task is one
    that would end after MAX_PS.
    """
    late = np.int64(-1)
    earliest_ps = np.int64(MAX_PS)
    for at in range(num_flows):
        slot = np.int64(flows.found[U(at)])
        rate = flows.rate[U(slot)]
        if flows.new_rate[U(slot)] != rate:
            remaining = flows.remaining[U(slot)] - rate * np.float64(now - flows.since_ps[U(slot)]) / 1e12
            rate = flows.new_rate[U(slot)]
            flows.remaining[U(slot)] = remaining
            flows.rate[U(slot)] = rate
            flows.since_ps[U(slot)] = now
            delay_ps = drain_ps(remaining, rate)
            if delay_ps > MAX_PS - now:
                late = flows.task[U(slot)]
            flows.end_ps[U(slot)] = now + delay_ps
        earliest_ps = min(earliest_ps, flows.end_ps[U(slot)])
    for at in range(num_flows):
        slot = np.int64(flows.found[U(at)])
        if flows.end_ps[U(slot)] == earliest_ps and flows.queued_ps[U(slot)] != earliest_ps:
            flows.queued_ps[U(slot)] = earliest_ps
            size = push(heap, size, earliest_ps, -1 - slot)
    return size, late
