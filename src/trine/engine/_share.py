"""Rates are found anew where flows have come or gone, and the next ends put on the heap."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.engine._heap import push
from trine.network._dispatch import assign_rates
from trine.network._flows import drain_ps, find_component
from trine.network._limits import MAX_PS
from trine.network._state import (
    FIELDS,
    FLOW_END_PS,
    FLOW_TASK,
    NEW_RATE,
    QUEUED_PS,
    RATE,
    REMAINING,
    SINCE_PS,
    Flows,
    Links,
)

U = np.uint64


@inlined
def share(
    model: Int, links: Links, flows: Flows, heap: Int64, size: Int, num_dirty: Int, sweep: Int, now: Int
) -> tuple[Int, Int]:
    """Share out every component that holds a dirty link; returns the size of the heap, and a task too late or -1."""
    late = np.int64(-1)
    for at in range(num_dirty):
        seed = np.int64(links.dirty[U(at)])
        links.is_dirty[U(seed)] = 0
        if links.mark[U(seed)] == sweep or links.head[U(seed)] < 0:
            continue
        num_links, num_flows = find_component(links, flows, seed, sweep)
        assign_rates(model, links, flows, num_links, num_flows)
        size, beyond = _foresee(flows, heap, size, now, num_flows)
        late = max(late, beyond)
    return size, late


@inlined
def _foresee(flows: Flows, heap: Int64, size: Int, now: Int, num_flows: Int) -> tuple[Int, Int]:
    """Take over the new rates of a component, and put its next ends on the heap; returns its size, and a task or -1.

    Only the earliest ends are put there: they change the component, and it will be looked at again. The task is one
    that would end after MAX_PS.
    """
    late = np.int64(-1)
    earliest_ps = np.int64(MAX_PS)
    for at in range(num_flows):
        slot = np.int64(flows.found[U(at)])
        end_ps = flows.whole[U(FIELDS * slot + FLOW_END_PS)]
        rate = flows.real[U(FIELDS * slot + RATE)]
        new_rate = flows.real[U(FIELDS * slot + NEW_RATE)]
        if new_rate != rate:
            elapsed_ps = now - flows.whole[U(FIELDS * slot + SINCE_PS)]
            remaining = flows.real[U(FIELDS * slot + REMAINING)] - rate * np.float64(elapsed_ps) / 1e12
            delay_ps = drain_ps(remaining, new_rate)
            if delay_ps > MAX_PS - now:
                late = flows.whole[U(FIELDS * slot + FLOW_TASK)]
            end_ps = now + delay_ps
            flows.real[U(FIELDS * slot + REMAINING)] = remaining
            flows.real[U(FIELDS * slot + RATE)] = new_rate
            flows.whole[U(FIELDS * slot + SINCE_PS)] = now
            flows.whole[U(FIELDS * slot + FLOW_END_PS)] = end_ps
        earliest_ps = min(earliest_ps, end_ps)
    for at in range(num_flows):
        slot = np.int64(flows.found[U(at)])
        due = flows.whole[U(FIELDS * slot + FLOW_END_PS)] == earliest_ps
        if due and flows.whole[U(FIELDS * slot + QUEUED_PS)] != earliest_ps:
            flows.whole[U(FIELDS * slot + QUEUED_PS)] = earliest_ps
            size = push(heap, size, earliest_ps, -1 - slot)
    return size, late
