"""What the latency of a route consists of."""

from __future__ import annotations

import numpy as np

from trine.arrays import Int64
from trine.graph.taskgraph import TaskGraph


def entry_ps(graph: TaskGraph) -> Int64:
    """What a message waits before it enters the first link of its route: int64[routes], ps.

    The latency of the route less that of its links: software. All of it where the links' latencies are not known.
    """
    if graph.link_latency_ps is None:
        return graph.route_latency_ps
    along = np.concatenate(([0], np.cumsum(graph.link_latency_ps[graph.route_links])))
    entry: Int64 = graph.route_latency_ps - (along[graph.route_ptr[1:]] - along[graph.route_ptr[:-1]])
    return entry
