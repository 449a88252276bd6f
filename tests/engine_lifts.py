"""Folded graphs and the graphs they represent: random balanced lifts, most of them without any symmetry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from engine_cases import BANDWIDTHS, CAPS, DURATIONS, LATENCIES, SIZES, renumbered

from trine.graph.assembler import csr, no_labels
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, Snapshot, TaskGraph

SIZES_OF_CLASSES = (1, 2, 3, 4, 6, 12, 24, 48)


@dataclass(frozen=True)
class Lift:
    """Folded graph and its lift: task i of ``unfolded`` belongs to class (task of ``folded``) ``task_class[i]``."""

    folded: TaskGraph
    unfolded: TaskGraph
    task_class: np.ndarray
    stream_class: np.ndarray


class Side:
    """Graph as rows, for features that a builder refuses: predecessors that count twice, counts, pressure."""

    def __init__(self, bytes_per_s, latency_ps, stream_names):
        self.bytes_per_s, self.latency_ps, self.stream_names = bytes_per_s, latency_ps, stream_names
        self.rows, self.needs, self.before, self.routes, self.counts, self.pressure = [], [], [], [], [], []
        self.caps = []

    def add(
        self, kind, stream=-1, duration_ps=0, size_bytes=0, route=None, counts=None, after=(), need=None, press=None,
        cap=0,
    ):  # fmt: skip
        number = -1
        if route is not None:
            number = len(self.routes)
            self.routes.append(route)
            self.counts.append(counts)
            self.caps.append(cap)
        self.rows.append((kind, stream, duration_ps, size_bytes, number))
        self.before.append(list(after))
        self.needs.append(len(after) if need is None else need)
        self.pressure.append((0, -1) if press is None else press)
        return len(self.rows) - 1

    def graph(self, *, counted, pressed) -> TaskGraph:
        n = len(self.rows)
        columns = np.array(self.rows, np.int64).reshape(n, 5).T
        predecessor_ptr, predecessor_idx = csr(self.before)
        route_ptr, route_links = csr(self.routes)
        along = [max((self.latency_ps[link] for link in route), default=0) for route in self.routes]
        ppm, stream = np.array(self.pressure, np.int32).reshape(n, 2).T
        return TaskGraph(
            kind=columns[0].astype(np.int8),
            rank=np.zeros(n, np.int32),
            peer=np.full(n, -1, np.int32),
            stream=columns[1].astype(np.int32),
            duration_ps=columns[2].copy(),
            size_bytes=columns[3].copy(),
            route=columns[4].astype(np.int32),
            num_required=np.array(self.needs, np.int32),
            predecessor_ptr=predecessor_ptr,
            predecessor_idx=predecessor_idx,
            route_ptr=route_ptr,
            route_links=route_links,
            route_latency_ps=np.array(along, np.int64),
            link_bytes_per_s=np.array(self.bytes_per_s, np.int64),
            stream_names=tuple(self.stream_names),
            stream_ranks=(0,) * len(self.stream_names),
            rank_names=("rank 0",),
            link_names=tuple(f"link {i}" for i in range(len(self.bytes_per_s))),
            labels=no_labels(n),
            route_counts=csr(self.counts)[1] if counted else None,
            route_cap_bytes_per_s=np.array(self.caps, np.int64) if any(self.caps) else None,
            pressure_ppm=ppm.copy() if pressed else None,
            pressure_stream=stream.copy() if pressed else None,
        )


def random_lift(
    rng: np.random.Generator, num_classes: int, num_links: int, *, pressed: bool = False, capped: bool = False
) -> Lift:
    """Return a random folded graph and one of the graphs that it represents, numbered at random.

    All members of a flow class cross equally many links of a link class, and all its links are crossed equally often.
    Each member waits for equally many members of another class, no matter which. Each stream of a class has one task of
    a class. The pairing of members is random.
    """
    link_sizes = rng.choice(SIZES_OF_CLASSES[:6], num_links)
    stream_sizes = rng.choice(SIZES_OF_CLASSES[:6], 3)
    bytes_per_s = rng.choice(BANDWIDTHS[2:], num_links)
    latency_ps = rng.choice(LATENCIES, num_links)
    folded = Side(bytes_per_s.tolist(), latency_ps.tolist(), ["s"] * 3)
    link_members = np.split(np.arange(link_sizes.sum()), np.cumsum(link_sizes)[:-1])
    stream_members = np.split(np.arange(stream_sizes.sum()), np.cumsum(stream_sizes)[:-1])
    links = np.repeat(np.arange(num_links), link_sizes)
    unfolded = Side(bytes_per_s[links].tolist(), latency_ps[links].tolist(), ["s"] * int(stream_sizes.sum()))
    members: list[list[int]] = []
    for _ in range(num_classes):
        kind = rng.choice([COMPUTE, TRANSFER, JOIN], p=[0.3, 0.55, 0.15])
        stream, size, route, counts, crossed = -1, 1, None, None, []
        if kind == COMPUTE:
            stream = int(rng.integers(-1, 3))
        if stream >= 0:
            size = int(stream_sizes[stream])
        else:
            size = int(rng.choice(SIZES_OF_CLASSES))
        if kind == TRANSFER:
            route, counts, crossed, size = _random_route(rng, link_sizes, link_members, size)
        after, chosen = _random_after(rng, members, size)
        need = int(rng.integers(len(after) + 1)) if kind == JOIN else None
        pressed_stream, shares = _random_pressure(rng, stream_sizes, stream_members, size) if pressed else (None, None)
        times = pressed_stream is not None and size // int(stream_sizes[pressed_stream])
        ppm = int(rng.choice([200_000, 300_000, 333_333])) // times if times else 0
        duration_ps = int(rng.choice(DURATIONS)) if kind == COMPUTE else 0
        size_bytes = int(rng.choice(SIZES)) if kind == TRANSFER else 0
        cap = int(rng.choice(CAPS)) if kind == TRANSFER and capped else 0
        folded.add(
            kind,
            stream,
            duration_ps,
            size_bytes,
            route,
            counts,
            after,
            need,
            (ppm * times, pressed_stream) if times else None,
            cap,
        )
        own = rng.permutation(stream_members[stream]) if stream >= 0 else np.full(size, -1)
        members.append(
            [
                unfolded.add(
                    kind,
                    int(own[m]),
                    duration_ps,
                    size_bytes,
                    crossed[m] if route is not None else None,
                    [1] * len(crossed[m]) if route is not None else None,
                    chosen[m],
                    need,
                    (ppm, int(shares[m])) if times else None,
                    cap,
                )
                for m in range(size)
            ]
        )
    task_class = np.empty(len(unfolded.rows), np.int64)
    for number, tasks in enumerate(members):
        task_class[tasks] = number
    graph, new = renumbered(unfolded.graph(counted=False, pressed=pressed), rng)
    renumbered_class = np.empty_like(task_class)
    renumbered_class[new] = task_class
    stream_class = np.repeat(np.arange(3), stream_sizes)
    return Lift(folded.graph(counted=True, pressed=pressed), graph, renumbered_class, stream_class)


def _random_route(rng, link_sizes, link_members, size):
    """Return the link classes of a flow, flows per link of each class, the links of each flow, and the flow count."""
    hops = min(int(rng.choice([0, 1, 1, 2, 2, 3, 4])), len(link_sizes))
    classes = rng.permutation(len(link_sizes))[:hops]
    each = rng.choice([1, 1, 1, 2, 3], hops)
    size = int(np.lcm.reduce([size, *link_sizes[classes]]))
    counts = [int(size * times // link_sizes[c]) for c, times in zip(classes, each, strict=True)]
    crossed = [[] for _ in range(size)]
    for link_class, times, count in zip(classes, each, counts, strict=True):
        dealt = rng.permutation(np.repeat(link_members[link_class], count)).reshape(size, times)
        for m in range(size):
            crossed[m] += dealt[m].tolist()
    return [int(c) for c in classes], counts, crossed, size


def _random_after(rng, members, size):
    """Return the classes that a class waits for, one entry per member, and the members that each member waits for."""
    after, chosen = [], [[] for _ in range(size)]
    for _ in range(min(int(rng.integers(0, 4)), len(members))):
        before = int(rng.integers(max(0, len(members) - 8), len(members)))
        times = min(int(rng.integers(1, 4)), len(members[before]))
        after += [before] * times
        for own in chosen:
            own += rng.choice(members[before], times, replace=False).tolist()
    return after, chosen


def _random_pressure(rng, stream_sizes, stream_members, size):
    """Return the stream class that a task class presses on, if one fits, and the stream of each member."""
    fitting = [s for s in range(len(stream_sizes)) if size % stream_sizes[s] == 0]
    if not fitting or rng.random() < 0.4:
        return None, None
    stream = int(rng.choice(fitting))
    return stream, rng.permutation(np.repeat(stream_members[stream], size // stream_sizes[stream]))


def without_ended(graph: TaskGraph, snapshot: Snapshot) -> tuple[TaskGraph, np.ndarray]:
    """Return the tasks of ``graph`` that have not ended, without dependencies on the others, and their old numbers."""
    kept = np.flatnonzero(snapshot.end_ps < 0)
    new = np.full(graph.num_tasks, -1)
    new[kept] = np.arange(len(kept))
    before = [new[graph.predecessors(t)] for t in kept]
    predecessor_ptr, predecessor_idx = csr([b[b >= 0].tolist() for b in before])
    ended = np.array([int((b < 0).sum()) for b in before], np.int32)
    columns = {
        name: getattr(graph, name)[kept]
        for name in ("kind", "rank", "peer", "stream", "duration_ps", "size_bytes", "route")
    }
    for name in ("pressure_ppm", "pressure_stream"):
        column = getattr(graph, name)
        columns[name] = None if column is None else column[kept]
    return replace(
        graph,
        **columns,
        num_required=np.maximum(graph.num_required[kept] - ended, 0).astype(np.int32),
        predecessor_ptr=predecessor_ptr,
        predecessor_idx=predecessor_idx,
        labels=no_labels(len(kept)),
        task_names=(),
    ), kept
