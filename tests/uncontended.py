"""Lower bound of a task graph's time: an interpreter of the same graph that needs no network model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.common.arrays import Int64
from trine.common.units import transfer_ps
from trine.engine.run import run
from trine.graph.taskgraph import COMPUTE, TRANSFER, TaskGraph


def uncontended(graph: TaskGraph, *, engine: str = "compiled") -> Int64:
    """Return each task's end in ps, int64[tasks], with transfers alone on their links and streams at full speed.

    The last end is a lower bound of the run: an earlier end of one task never delays another one, since the order in
    streams is fixed and the k-th of n arrivals is monotone in each arrival. A transfer that stands for many flows
    crosses its links like a single flow, and respects its route's limit.
    """
    duration_ps = graph.duration_ps.copy()
    transfers = np.flatnonzero(graph.kind == TRANSFER)
    cases = np.stack([graph.route[transfers], graph.size_bytes[transfers]])
    pairs, which = np.unique(cases, axis=1, return_inverse=True)
    alone = np.array([_alone_ps(graph, int(route), int(size)) for route, size in pairs.T], np.int64)
    kind = graph.kind.copy()
    stream = graph.stream.copy()
    if len(transfers):
        kind[transfers], stream[transfers] = COMPUTE, -1
        duration_ps[transfers] = alone[which.ravel()]
    alone_graph = replace(
        graph,
        kind=kind,
        stream=stream,
        duration_ps=duration_ps,
        route_counts=None,
        route_cap_bytes_per_s=None,
        pressure_ppm=None,
        pressure_stream=None,
    )
    return run(alone_graph, engine=engine).end_ps


def _alone_ps(graph: TaskGraph, route: int, size_bytes: int) -> int:
    links = graph.links_of(route)
    latency_ps = int(graph.route_latency_ps[route])
    if size_bytes == 0 or not len(links):
        return latency_ps
    # A link that the route crosses m times carries the bytes m times.
    crossings = np.bincount(links)
    times = [
        transfer_ps(size_bytes * int(crossings[link]), int(graph.link_bytes_per_s[link]))
        for link in np.flatnonzero(crossings)
    ]
    if graph.route_cap_bytes_per_s is not None and graph.route_cap_bytes_per_s[route]:
        times.append(transfer_ps(size_bytes, int(graph.route_cap_bytes_per_s[route])))
    return latency_ps + max(times)
