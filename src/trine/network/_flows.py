"""Flows come, go and take their time: what all network models have in common."""

from __future__ import annotations

import math

import numpy as np

from trine._jit import Float, Int, inlined
from trine.arrays import Int32
from trine.network._limits import MAX_PS, MAX_WHOLE, SLACK
from trine.network._state import EDGE, FIELDS, FLOW_END_PS, LINK, MARK, NEW_RATE, NEXT, PREVIOUS, SLOT, Flows, Links

U = np.uint64  # indices are unsigned: no test for negative ones (1.4 -> 1.15 times the time of C++)
LAST_SECOND = MAX_PS // 10**12


@inlined
def drain_ps(remaining: Float, rate: Float) -> Int:
    """Picoseconds until ``remaining`` bytes are through at ``rate`` bytes/s, rounded up, at least 1.

    More than MAX_PS where it takes longer than that. Whole numbers up to 2**53 are divided
    exactly, three decimal digits at a time so that nothing overflows.
    """
    if remaining <= 0.0:
        return np.int64(1)
    whole = np.int64(remaining)
    per_s = np.int64(rate)
    if rate > MAX_WHOLE or np.float64(whole) != remaining or np.float64(per_s) != rate:
        quotient = remaining * 1e12 / rate
        if quotient >= MAX_PS:
            return np.int64(MAX_PS + 1)
        return max(np.int64(1), np.int64(math.ceil(quotient - quotient * SLACK)))
    ps = whole // per_s
    rest = whole - ps * per_s
    if ps > LAST_SECOND:
        return np.int64(MAX_PS + 1)
    for _ in range(4):
        rest *= 1000
        digits = rest // per_s
        ps = ps * 1000 + digits
        rest -= digits * per_s
    return ps + 1 if rest > 0 else ps


@inlined
def touch(links: Links, num_dirty: Int, link: Int) -> Int:
    """Note that the flows of ``link`` have changed; returns the new number of dirty links."""
    if links.is_dirty[U(link)] == 0:
        links.is_dirty[U(link)] = 1
        links.dirty[U(num_dirty)] = link
        num_dirty += 1
    return num_dirty


@inlined
def add_flow(
    links: Links,
    flows: Flows,
    num_dirty: Int,
    slot: Int,
    route_links: Int32,
    route_counts: Int32,
    first: Int,
    last: Int,
) -> Int:
    """Put the flow in ``slot`` on the links route_links[first:last]; returns the new number of dirty links.

    It crosses them route_counts[first:last] times, or once each if flows.counts is empty.
    """
    counted = len(flows.counts) > 0
    flows.num_edges[U(slot)] = last - first
    edge = np.int64(slot) * flows.hops
    for hop in range(first, last):
        link = np.int64(route_links[U(hop)])
        head = np.int64(links.head[U(link)])
        base = edge * EDGE
        flows.edges[U(base + NEXT)] = head
        flows.edges[U(base + PREVIOUS)] = -1
        flows.edges[U(base + SLOT)] = slot
        flows.edges[U(base + LINK)] = link
        if head >= 0:
            flows.edges[U(head * EDGE + PREVIOUS)] = edge
        links.head[U(link)] = edge
        count = np.int64(1)
        if counted:
            count = np.int64(route_counts[U(hop)])
            flows.counts[U(edge)] = count
        links.crossings[U(link)] += count
        num_dirty = touch(links, num_dirty, link)
        edge += 1
    return num_dirty


@inlined
def remove_flow(links: Links, flows: Flows, num_dirty: Int, slot: Int) -> Int:
    """Take the flow in ``slot`` off its links; returns the new number of dirty links."""
    counted = len(flows.counts) > 0
    edge = np.int64(slot) * flows.hops
    base = edge * EDGE
    for _ in range(flows.num_edges[U(slot)]):
        after = np.int64(flows.edges[U(base + NEXT)])
        before = np.int64(flows.edges[U(base + PREVIOUS)])
        link = np.int64(flows.edges[U(base + LINK)])
        if before >= 0:
            flows.edges[U(before * EDGE + NEXT)] = after
        else:
            links.head[U(link)] = after
        if after >= 0:
            flows.edges[U(after * EDGE + PREVIOUS)] = before
        links.crossings[U(link)] -= np.int64(flows.counts[U(edge)]) if counted else np.int64(1)
        num_dirty = touch(links, num_dirty, link)
        edge += 1
        base += EDGE
    flows.whole[U(FIELDS * slot + FLOW_END_PS)] = -1
    return num_dirty


@inlined
def find_component(links: Links, flows: Flows, seed: Int, sweep: Int) -> tuple[Int, Int]:
    """All flows and links that ``seed`` is connected with: into links.found, flows.found; returns their numbers.

    Their ``mark`` becomes ``sweep``, and the new_rate of the flows -1.
    """
    links.mark[U(seed)] = sweep
    links.found[U(0)] = seed
    num_links = np.int64(1)
    num_flows = np.int64(0)
    at = np.int64(0)
    while at < num_links:
        edge = np.int64(links.head[U(links.found[U(at)])])
        at += 1
        while edge >= 0:
            base = edge * EDGE
            slot = np.int64(flows.edges[U(base + SLOT)])
            edge = np.int64(flows.edges[U(base + NEXT)])
            if flows.whole[U(FIELDS * slot + MARK)] == sweep:
                continue
            flows.whole[U(FIELDS * slot + MARK)] = sweep
            flows.real[U(FIELDS * slot + NEW_RATE)] = -1.0
            flows.found[U(num_flows)] = slot
            num_flows += 1
            base = slot * flows.hops * EDGE
            for _ in range(flows.num_edges[U(slot)]):
                link = np.int64(flows.edges[U(base + LINK)])
                base += EDGE
                if links.mark[U(link)] != sweep:
                    links.mark[U(link)] = sweep
                    links.found[U(num_links)] = link
                    num_links += 1
    return num_links, num_flows
