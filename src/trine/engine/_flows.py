"""Life of a flow, compiled: it enters its links, gets a rate whenever others come or go, and ends.

The readable forms of the two sharing rules are FairSharing and EqualSplit in models.py.
"""

from __future__ import annotations

import math

import numpy as np

from trine.common._jit import Float, Int, inlined, kernel
from trine.common._records import Record, RecordArray
from trine.engine._heap import ANY_ORDER, push
from trine.engine._limits import MAX_PS, MAX_WHOLE, SLACK
from trine.engine._state import EQUAL, NetworkTables, TaskTables

U = np.uint64  # indices are unsigned: no test for negative ones (1.4 -> 1.15 times the time of C++)
LAST_SECOND = MAX_PS // 10**12


@inlined
def drain_ps(remaining: Float, rate: Float) -> Int:
    """Return the picoseconds until ``remaining`` bytes are through at ``rate`` bytes/s, rounded up, at least 1.

    More than MAX_PS stands for any longer time. Whole numbers up to 2**53 are divided exactly, three decimal digits at
    a time so that the division cannot overflow.
    """
    if remaining <= 0.0:
        return np.int64(1)
    whole_bytes = np.int64(remaining)
    per_s = np.int64(rate)
    if rate > MAX_WHOLE or np.float64(whole_bytes) != remaining or np.float64(per_s) != rate:
        quotient = remaining * 1e12 / rate
        if quotient >= MAX_PS:
            return np.int64(MAX_PS + 1)
        return max(np.int64(1), np.int64(math.ceil(quotient - quotient * SLACK)))
    ps = whole_bytes // per_s
    remainder = whole_bytes - ps * per_s
    if ps > LAST_SECOND:
        return np.int64(MAX_PS + 1)
    for _ in range(4):
        remainder *= 1000
        digits = remainder // per_s
        ps = ps * 1000 + digits
        remainder -= digits * per_s
    return ps + 1 if remainder > 0 else ps


@inlined
def begin_flow(network: NetworkTables, clock: Record, task_number: Int, size_bytes: Int, route: Int) -> None:
    """Let the bytes of a transfer enter the links of its route."""
    clock.num_flows += 1
    clock.num_free -= 1
    slot = np.int64(network.free_slots[U(clock.num_free)])
    flow = network.flows[U(slot)]
    flow.remaining = np.float64(size_bytes)
    flow.rate = 0.0
    flow.since_ps = clock.now
    flow.queued_ps = -1
    flow.task = task_number
    _enter_links(network, clock, slot, route)


@inlined
def _enter_links(network: NetworkTables, clock: Record, slot: Int, route_number: Int) -> None:
    """Put the flow in ``slot`` on the links of a route, each as often as the route counts."""
    route = network.routes[U(route_number)]
    is_counted = len(network.edge_counts) > 0
    if len(network.flow_caps) > 0:
        network.flow_caps[U(slot)] = network.route_caps[U(route_number)]
    network.num_edges[U(slot)] = route.last - route.first
    number = np.int64(slot) * network.max_hops
    for hop in range(route.first, route.last):
        link_number = np.int64(network.route_links[U(hop)])
        link, edge = network.links[U(link_number)], network.edges[U(number)]
        edge.next = link.first_edge
        edge.previous = -1
        edge.slot = slot
        edge.link = link_number
        if link.first_edge >= 0:
            network.edges[U(link.first_edge)].previous = number
        link.first_edge = number
        count = np.int64(1)
        if is_counted:
            count = np.int64(network.route_counts[U(hop)])
            network.edge_counts[U(number)] = count
        link.num_crossings += count
        _note_change(network, clock, link_number)
        number += 1


@inlined
def end_flow(network: NetworkTables, clock: Record, slot: Int) -> None:
    """Take the flow in ``slot`` off its links, and free the slot."""
    is_counted = len(network.edge_counts) > 0
    number = np.int64(slot) * network.max_hops
    for _ in range(network.num_edges[U(slot)]):
        edge = network.edges[U(number)]
        link = network.links[U(edge.link)]
        if edge.previous >= 0:
            network.edges[U(edge.previous)].next = edge.next
        else:
            link.first_edge = edge.next
        if edge.next >= 0:
            network.edges[U(edge.next)].previous = edge.previous
        link.num_crossings -= np.int64(network.edge_counts[U(number)]) if is_counted else np.int64(1)
        _note_change(network, clock, np.int64(edge.link))
        number += 1
    network.flows[U(slot)].end_ps = -1
    network.free_slots[U(clock.num_free)] = slot
    clock.num_free += 1


@inlined
def _note_change(network: NetworkTables, clock: Record, number: Int) -> None:
    """Note that the flows of a link have changed at this instant."""
    link = network.links[U(number)]
    if link.is_dirty == 0:
        link.is_dirty = 1
        network.dirty_links[U(clock.num_dirty)] = number
        clock.num_dirty += 1


@inlined
def share(model: Int, network: NetworkTables, heap: RecordArray, clock: Record) -> None:
    """Recompute the rates of every component with a dirty link, and put the next ends on the heap."""
    clock.sweep += 1
    for i in range(clock.num_dirty):
        seed = np.int64(network.dirty_links[U(i)])
        link = network.links[U(seed)]
        link.is_dirty = 0
        if link.sweep == clock.sweep or link.first_edge < 0:
            continue
        num_links, num_flows = _find_component(network, clock, seed)
        if model == EQUAL:
            _equal_rates(network, num_links, num_flows)
        else:  # FAIR, and the traffic of CIRCUIT over links
            _fair_rates(network, num_links, num_flows)
        _predict_completion(network, heap, clock, num_flows)
    clock.num_dirty = 0


@inlined
def _find_component(network: NetworkTables, clock: Record, seed: Int) -> tuple[Int, Int]:
    """Find all links and flows connected with ``seed``, for found_links and found_flows; return their numbers."""
    links, edges, sweep = network.links, network.edges, clock.sweep
    links[U(seed)].sweep = sweep
    network.found_links[U(0)] = seed
    num_links = np.int64(1)
    num_flows = np.int64(0)
    place = np.int64(0)
    while place < num_links:
        number = np.int64(links[U(network.found_links[U(place)])].first_edge)
        place += 1
        while number >= 0:
            edge = edges[U(number)]
            number = np.int64(edge.next)
            slot = np.int64(edge.slot)
            flow = network.flows[U(slot)]
            if flow.sweep == sweep:
                continue
            flow.sweep = sweep
            flow.new_rate = -1.0
            network.found_flows[U(num_flows)] = slot
            num_flows += 1
            edge_number = slot * network.max_hops
            for _ in range(network.num_edges[U(slot)]):
                crossed = np.int64(edges[U(edge_number)].link)
                edge_number += 1
                if links[U(crossed)].sweep != sweep:
                    links[U(crossed)].sweep = sweep
                    network.found_links[U(num_links)] = crossed
                    num_links += 1
    return num_links, num_flows


@inlined
def _equal_rates(network: NetworkTables, num_links: Int, num_flows: Int) -> None:
    """Apply TrioSim's split: a flow's rate is the smallest bandwidth / crossings of its links, and no more than its
    limit.
    """
    has_caps = len(network.flow_caps) > 0
    for i in range(num_links):
        link = network.links[U(network.found_links[U(i)])]
        link.share = link.bytes_per_s / np.float64(link.num_crossings)
    for i in range(num_flows):
        slot = np.int64(network.found_flows[U(i)])
        rate = network.flow_caps[U(slot)] if has_caps else np.inf
        number = slot * network.max_hops
        for _ in range(network.num_edges[U(slot)]):
            rate = min(rate, network.links[U(network.edges[U(number)].link)].share)
            number += 1
        network.flows[U(slot)].new_rate = rate


@inlined
def _fair_rates(network: NetworkTables, num_links: Int, num_flows: Int) -> None:
    """Find max-min fair rates by progressive filling: at each level the links with the lowest share freeze their flows.

    The limit of a flow counts as the share of a link that no other flow crosses.
    """
    links, component_links = network.links, network.found_links
    num_capped = np.int64(0)
    if len(network.flow_caps) > 0:
        num_capped = _fit_at_caps(network, num_links, num_flows)
        if num_capped < 0:
            return
    if num_links == 1 and num_capped == 0:  # as in rings: same arithmetic, half the time
        only = links[U(component_links[U(0)])]
        level = only.bytes_per_s / np.float64(only.num_crossings)
        for i in range(num_flows):
            network.flows[U(network.found_flows[U(i)])].new_rate = level
        return
    for i in range(num_links):
        link = links[U(component_links[U(i)])]
        link.num_unfrozen = link.num_crossings
        link.used = 0.0
        link.share = link.bytes_per_s / np.float64(link.num_crossings)
    num_waiting = num_flows
    num_active = num_links
    while num_waiting > 0:
        level = np.inf
        num_kept = np.int64(0)
        for i in range(num_active):  # drop links without waiting flows, and find the lowest share of the others
            number = np.int64(component_links[U(i)])
            if links[U(number)].num_unfrozen > 0:
                component_links[U(num_kept)] = number
                num_kept += 1
                level = min(level, links[U(number)].share)
        num_active = num_kept
        num_frozen_links = np.int64(0)
        if num_capped > 0:
            num_kept = np.int64(0)
            for i in range(num_capped):  # the same for flows with a limit and without a rate so far
                slot = np.int64(network.capped_flows[U(i)])
                if network.flows[U(slot)].new_rate < 0.0:
                    network.capped_flows[U(num_kept)] = slot
                    num_kept += 1
                    level = min(level, network.flow_caps[U(slot)])
            num_capped = num_kept
            for i in range(num_capped):
                slot = np.int64(network.capped_flows[U(i)])
                if network.flow_caps[U(slot)] == level:
                    num_frozen_links = _freeze_flow(network, slot, level, num_frozen_links)
                    num_waiting -= 1
        for i in range(num_active):
            number = np.int64(component_links[U(i)])
            if links[U(number)].share == level:
                num_frozen, num_frozen_links = _freeze(network, number, level, num_frozen_links)
                num_waiting -= num_frozen
        for i in range(num_frozen_links):
            _take_off(network, np.int64(network.frozen_links[U(i)]), level)


@inlined
def _freeze(network: NetworkTables, link: Int, level: Float, num_frozen_links: Int) -> tuple[Int, Int]:
    """Give ``level`` to the waiting flows of ``link``; return their number, and the new length of frozen_links."""
    num_frozen = np.int64(0)
    number = np.int64(network.links[U(link)].first_edge)
    while number >= 0:
        edge = network.edges[U(number)]
        number = np.int64(edge.next)
        if network.flows[U(edge.slot)].new_rate >= 0.0:
            continue
        num_frozen += 1
        num_frozen_links = _freeze_flow(network, np.int64(edge.slot), level, num_frozen_links)
    return num_frozen, num_frozen_links


@inlined
def _freeze_flow(network: NetworkTables, slot: Int, level: Float, num_frozen_links: Int) -> Int:
    """Give ``level`` to a waiting flow; return the new length of frozen_links."""
    is_counted = len(network.edge_counts) > 0
    network.flows[U(slot)].new_rate = level
    edge_number = slot * network.max_hops
    for _ in range(network.num_edges[U(slot)]):
        crossed_number = np.int64(network.edges[U(edge_number)].link)
        crossed = network.links[U(crossed_number)]
        if crossed.num_new == 0:
            network.frozen_links[U(num_frozen_links)] = crossed_number
            num_frozen_links += 1
        crossed.num_new += np.int64(network.edge_counts[U(edge_number)]) if is_counted else np.int64(1)
        edge_number += 1
    return num_frozen_links


@inlined
def _fit_at_caps(network: NetworkTables, num_links: Int, num_flows: Int) -> Int:
    """Write the component's flows with a limit to capped_flows; return their number.

    Returns -1 if all flows have limits and the links have room for them. The flows then have these limits as rates, as
    progressive filling would find, too: limits are whole numbers, so that sums up to 2**53 are exact.
    """
    links, is_counted = network.links, len(network.edge_counts) > 0
    num_capped = np.int64(0)
    for i in range(num_links):
        links[U(network.found_links[U(i)])].used = 0.0
    for i in range(num_flows):
        slot = np.int64(network.found_flows[U(i)])
        cap = network.flow_caps[U(slot)]
        if cap < np.inf:
            network.capped_flows[U(num_capped)] = slot
            num_capped += 1
        edge_number = slot * network.max_hops
        for _ in range(network.num_edges[U(slot)]):
            times = np.float64(network.edge_counts[U(edge_number)]) if is_counted else 1.0
            links[U(network.edges[U(edge_number)].link)].used += times * cap
            edge_number += 1
    for i in range(num_links):
        link = links[U(network.found_links[U(i)])]
        if link.used > link.bytes_per_s:
            return num_capped
    for i in range(num_flows):
        slot = np.int64(network.found_flows[U(i)])
        network.flows[U(slot)].new_rate = network.flow_caps[U(slot)]
    return np.int64(-1)


@inlined
def _take_off(network: NetworkTables, number: Int, level: Float) -> None:
    """Subtract frozen flows at ``level`` from a link; a rounding error must not put its share below ``level``."""
    link = network.links[U(number)]
    link.num_unfrozen -= link.num_new
    link.used += np.float64(link.num_new) * level
    link.num_new = 0
    if link.num_unfrozen > 0:
        link.share = max((link.bytes_per_s - link.used) / np.float64(link.num_unfrozen), level)


@inlined
def _predict_completion(network: NetworkTables, heap: RecordArray, clock: Record, num_flows: Int) -> None:
    """Apply the new rates of a component, and put its next ends on the heap.

    Pushes only the earliest ends: they change the component, and then its other ends are predicted again.
    """
    now = clock.now
    earliest_ps = np.int64(MAX_PS)
    for i in range(num_flows):
        flow = network.flows[U(network.found_flows[U(i)])]
        if flow.new_rate != flow.rate:
            remaining = flow.remaining - flow.rate * np.float64(now - flow.since_ps) / 1e12
            delay_ps = drain_ps(remaining, flow.new_rate)
            if delay_ps > MAX_PS - now:
                clock.late_task = max(clock.late_task, flow.task)
            flow.remaining = remaining
            flow.rate = flow.new_rate
            flow.since_ps = now
            flow.end_ps = now + delay_ps
        earliest_ps = min(earliest_ps, flow.end_ps)
    for i in range(num_flows):
        slot = np.int64(network.found_flows[U(i)])
        flow = network.flows[U(slot)]
        if flow.end_ps == earliest_ps and flow.queued_ps != earliest_ps:
            flow.queued_ps = earliest_ps
            push(heap, clock, earliest_ps, -1 - slot, ANY_ORDER)


@kernel
def restore_flows(work: TaskTables, network: NetworkTables, clock: Record, num_flows: Int) -> None:
    """Put the flows in the first ``num_flows`` slots on their links."""
    for slot in range(num_flows):
        task = network.flows[U(slot)].task
        _enter_links(network, clock, np.int64(slot), np.int64(work.tasks[U(task)].route))
