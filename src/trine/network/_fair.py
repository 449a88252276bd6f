"""Max-min fair rates of one connected component; the readable form is FairSharing in models.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Float, Int, inlined
from trine.network._state import EDGE, FIELDS, LINK, NEW_RATE, NEXT, SLOT, Flows, Links

U = np.uint64


@inlined
def fair_rates(links: Links, flows: Flows, num_links: Int, num_flows: Int) -> None:
    """Write new_rate, bytes/s, of the flows in flows.found by progressive filling over the links in links.found."""
    if num_links == 1:  # as in rings: same arithmetic, half the time
        link = np.int64(links.found[U(0)])
        level = links.capacity[U(link)] / np.float64(links.crossings[U(link)])
        for at in range(num_flows):
            flows.real[U(FIELDS * np.int64(flows.found[U(at)]) + NEW_RATE)] = level
        return
    for at in range(num_links):
        link = np.int64(links.found[U(at)])
        links.left[U(link)] = links.crossings[U(link)]
        links.used[U(link)] = 0.0
        links.share[U(link)] = links.capacity[U(link)] / np.float64(links.crossings[U(link)])
    waiting = num_flows
    active = num_links
    while waiting > 0:
        level = np.inf
        kept = np.int64(0)
        for at in range(active):  # drop links without waiting flows, and find the lowest share of the others
            link = np.int64(links.found[U(at)])
            if links.left[U(link)] > 0:
                links.found[U(kept)] = link
                kept += 1
                level = min(level, links.share[U(link)])
        active = kept
        num_touched = np.int64(0)
        for at in range(active):
            link = np.int64(links.found[U(at)])
            if links.share[U(link)] == level:
                frozen, num_touched = _freeze(links, flows, link, level, num_touched)
                waiting -= frozen
        for at in range(num_touched):
            _settle(links, np.int64(links.touched[U(at)]), level)


@inlined
def _freeze(links: Links, flows: Flows, link: Int, level: Float, num_touched: Int) -> tuple[Int, Int]:
    """Give ``level`` to the waiting flows of ``link``; returns how many, and the new length of links.touched."""
    counted = len(flows.counts) > 0
    frozen = np.int64(0)
    edge = np.int64(links.head[U(link)])
    while edge >= 0:
        slot = np.int64(flows.edges[U(edge * EDGE + SLOT)])
        edge = np.int64(flows.edges[U(edge * EDGE + NEXT)])
        if flows.real[U(FIELDS * slot + NEW_RATE)] >= 0.0:
            continue
        flows.real[U(FIELDS * slot + NEW_RATE)] = level
        frozen += 1
        crossing = slot * flows.hops
        for _ in range(flows.num_edges[U(slot)]):
            crossed = np.int64(flows.edges[U(crossing * EDGE + LINK)])
            count = np.int64(flows.counts[U(crossing)]) if counted else np.int64(1)
            crossing += 1
            if links.fresh[U(crossed)] == 0:
                links.touched[U(num_touched)] = crossed
                num_touched += 1
            links.fresh[U(crossed)] += count
    return frozen, num_touched


@inlined
def _settle(links: Links, link: Int, level: Float) -> None:
    """Take what has been frozen at ``level`` off ``link``; a rounding error must not put its share below ``level``."""
    links.left[U(link)] -= links.fresh[U(link)]
    links.used[U(link)] += np.float64(links.fresh[U(link)]) * level
    links.fresh[U(link)] = 0
    if links.left[U(link)] > 0:
        share = (links.capacity[U(link)] - links.used[U(link)]) / np.float64(links.left[U(link)])
        links.share[U(link)] = max(share, level)
