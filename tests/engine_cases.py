"""Random task graphs, and the same graph with other numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from trine.graph.assembler import csr
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import COMPUTE, TRANSFER, TaskGraph

BANDWIDTHS = (333_333, 10**6, 7 * 10**8, 10**9, 10**9 + 7, 50 * 10**9, 65 * 10**9)
LATENCIES = (0, 0, 1, 1_000, 1_000_000)
SIZES = (0, 1, 2, 1000, 1001, 4096, 10**6, 123_456_789)
CAPS = (0, 0, 250_000_007, 10**9 // 3, 10**9 // 3, 10**9, 7 * 10**9, 333_333)
DURATIONS = (0, 1, 500, 1_000, 10**6, 3 * 10**9)


def random_graph(rng: np.random.Generator, num_tasks: int, num_links: int, *, window: int = 10**9) -> TaskGraph:
    """Return mixed tasks; each waits for up to three of the last ``window`` before it. Few distinct sizes make ties."""
    slow = rng.random() < 0.1
    choices = BANDWIDTHS if slow else BANDWIDTHS[2:]
    builder = TaskGraphBuilder(
        [int(rng.choice(choices)) for _ in range(num_links)],
        [int(rng.choice(LATENCIES)) for _ in range(num_links)],
    )
    for task in range(num_tasks):
        low = max(0, task - window)
        count = min(int(rng.integers(0, 4)), task - low)
        after = [low + int(i) for i in rng.choice(task - low, size=count, replace=False)] if count else []
        kind = rng.random()
        if kind < 0.35:
            builder.compute(int(rng.integers(3)), str(rng.integers(2)), int(rng.choice(DURATIONS)), after)
        elif kind < 0.85:
            hops = min(int(rng.choice([0, 1, 1, 1, 2, 2, 3, 4])), num_links)
            route = [int(i) for i in rng.choice(num_links, size=hops, replace=False)]
            builder.transfer(int(rng.integers(3)), int(rng.integers(3)), route, int(rng.choice(SIZES)), after)
        else:
            builder.join(after, need=int(rng.integers(len(after) + 1)))
    return builder.build()


def with_caps(graph: TaskGraph, rng: np.random.Generator) -> TaskGraph:
    """Return the graph with a separate route for each transfer; most routes limit its rate."""
    sent = np.flatnonzero(graph.kind == TRANSFER)
    old = graph.route[sent]
    route_ptr, route_links = csr([graph.links_of(r).tolist() for r in old.tolist()])
    route = np.full(graph.num_tasks, -1, np.int32)
    route[sent] = np.arange(len(sent))
    return replace(
        graph,
        route=route,
        route_ptr=route_ptr,
        route_links=route_links,
        route_latency_ps=graph.route_latency_ps[old],
        route_cap_bytes_per_s=rng.choice(CAPS, len(sent)),
    )


@st.composite
def capped_graphs(draw: st.DrawFn, max_tasks: int = 40) -> TaskGraph:
    """Draw graphs like random_graph's, whose transfers have rate limits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return with_caps(random_graph(rng, draw(st.integers(1, max_tasks)), draw(st.integers(1, 6))), rng)


@st.composite
def graphs(draw: st.DrawFn, max_tasks: int = 40) -> TaskGraph:
    """Draw graphs like random_graph's, of any size up to ``max_tasks`` on up to six links."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return random_graph(rng, draw(st.integers(1, max_tasks)), draw(st.integers(1, 6)))


def renumbered(graph: TaskGraph, rng: np.random.Generator, *, tasks_too: bool = True) -> tuple[TaskGraph, np.ndarray]:
    """Return the graph with other task, link and route numbers, and the new number of each task.

    Tasks of one stream keep their order, which matters; with ``tasks_too=False`` all tasks do.
    """
    n = graph.num_tasks
    order = rng.permutation(n) if tasks_too else np.arange(n)  # order[new] = old
    for stream in range(len(graph.stream_names)):
        at = np.flatnonzero((graph.kind[order] == COMPUTE) & (graph.stream[order] == stream))
        order[at] = np.sort(order[at])
    new = np.empty(n, np.int64)
    new[order] = np.arange(n)
    link_order = rng.permutation(len(graph.link_names))
    new_link = np.empty(len(link_order), np.int64)
    new_link[link_order] = np.arange(len(link_order))
    route_order = rng.permutation(len(graph.route_latency_ps))
    new_route = np.empty(len(route_order) + 1, np.int64)
    new_route[route_order] = np.arange(len(route_order))
    new_route[-1] = -1
    predecessor_ptr, predecessor_idx = csr([new[graph.predecessors(t)].tolist() for t in order])
    route_ptr, route_links = csr([new_link[graph.links_of(r)].tolist() for r in route_order])
    columns = {
        name: getattr(graph, name)[order]
        for name in ("kind", "rank", "peer", "stream", "duration_ps", "size_bytes", "num_required")
    }
    for name in ("pressure_ppm", "pressure_stream"):
        columns[name] = None if getattr(graph, name) is None else getattr(graph, name)[order]
    latency_ps, caps = graph.link_latency_ps, graph.route_cap_bytes_per_s
    other = replace(
        graph,
        **columns,
        route=new_route[graph.route[order]].astype(np.int32),
        predecessor_ptr=predecessor_ptr,
        predecessor_idx=predecessor_idx,
        route_ptr=route_ptr,
        route_links=route_links,
        route_latency_ps=graph.route_latency_ps[route_order],
        route_cap_bytes_per_s=None if caps is None else caps[route_order],
        link_bytes_per_s=graph.link_bytes_per_s[link_order],
        link_latency_ps=None if latency_ps is None else latency_ps[link_order],
        link_names=tuple(graph.link_names[i] for i in link_order),
    )
    return other, new
