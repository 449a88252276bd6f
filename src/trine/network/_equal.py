"""TrioSim's equal split of each link; the readable form is EqualSplit in models.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.network._state import EDGE, FIELDS, LINK, NEW_RATE, Flows, Links

U = np.uint64


@inlined
def equal_rates(links: Links, flows: Flows, num_links: Int, num_flows: Int) -> None:
    """Write new_rate, bytes/s, of the flows in flows.found: the smallest capacity / count of the links crossed."""
    for at in range(num_links):
        link = np.int64(links.found[U(at)])
        links.share[U(link)] = links.capacity[U(link)] / np.float64(links.crossings[U(link)])
    for at in range(num_flows):
        slot = np.int64(flows.found[U(at)])
        rate = np.inf
        base = slot * flows.hops * EDGE
        for _ in range(flows.num_edges[U(slot)]):
            rate = min(rate, links.share[U(flows.edges[U(base + LINK)])])
            base += EDGE
        flows.real[U(FIELDS * slot + NEW_RATE)] = rate
