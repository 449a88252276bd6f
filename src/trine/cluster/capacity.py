"""Capacity of a cluster: bisection bandwidth, the narrowest link of each pair's route, and the kinds of links."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, Link

#: Maximum number of links for the bisection search, which would take too long for more.
MAX_LINKS = 100_000
_Flow = dict[int, dict[int, int]]
_START, _END = -1, -2


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkKind:
    """``count`` directed links with the same numbers between the same two kinds of devices."""

    medium: str | None
    link_class: str
    joins: str
    count: int
    bytes_per_s: int
    peak_bytes_per_s: int | None
    latency_ps: int


def link_kinds(cluster: Cluster) -> tuple[LinkKind, ...]:
    """Return the kinds of links of a cluster, grouped by class, the fastest first."""
    counts: dict[tuple[str | None, str, str, int, int | None, int], int] = {}
    for link in cluster.links:
        joins = " - ".join(sorted((cluster.devices[link.source].kind, cluster.devices[link.target].kind)))
        key = (link.medium, link.link_class, joins, link.bytes_per_s, link.peak_bytes_per_s, link.latency_ps)
        counts[key] = counts.get(key, 0) + 1
    kinds = [
        LinkKind(
            medium=medium, link_class=link_class, joins=joins, count=count, bytes_per_s=bytes_per_s,
            peak_bytes_per_s=peak, latency_ps=latency_ps,
        )
        for (medium, link_class, joins, bytes_per_s, peak, latency_ps), count in counts.items()
    ]  # fmt: skip
    order = {"scale-up": 0, "host": 1, "scale-out": 2}
    return tuple(sorted(kinds, key=lambda kind: (order[kind.link_class], -kind.bytes_per_s, kind.joins)))


def route_bytes_per_s(cluster: Cluster, source: int, target: int) -> int:
    """Return the bandwidth of the narrowest link, or of the circuit, between two devices, summed over routes."""
    paths = cluster.paths(source, target)
    if cluster.circuits is not None and not paths[0][0]:
        return cluster.circuits.bytes_per_s
    rates = []
    for route, _ in paths:
        rates.append(min(cluster.links[link].bytes_per_s for link in route))
    return sum(rates)


def bisection_bytes_per_s(cluster: Cluster) -> int | None:
    """Return the bandwidth from the first to the second half of the GPUs, over any routes, in bytes/s.

    The halves follow the rank order: for uniform machines this is the bisection bandwidth, for others an upper bound.
    Returns None for a single GPU, more than :data:`MAX_LINKS` links, or circuits.
    """
    gpus = cluster.gpus
    if len(gpus) < 2 or len(cluster.links) > MAX_LINKS or cluster.circuits is not None:
        return None
    half = len(gpus) // 2
    return _max_flow(_capacities(cluster, dict.fromkeys(gpus[:half], _START) | dict.fromkeys(gpus[half:], _END)))


def _capacities(cluster: Cluster, ends: Mapping[int, int]) -> _Flow:
    """Return bytes/s between devices; each half's GPUs are one node, and devices that do not forward are excluded."""
    capacity: _Flow = {_START: {}, _END: {}}
    for link in cluster.links:
        if _carries(cluster, link):
            a, b = ends.get(link.source, link.source), ends.get(link.target, link.target)
            if a != b:
                forward = capacity.setdefault(a, {})
                forward[b] = forward.get(b, 0) + link.bytes_per_s
                capacity.setdefault(b, {}).setdefault(a, 0)
    return capacity


def _carries(cluster: Cluster, link: Link) -> bool:
    ends = (cluster.devices[link.source], cluster.devices[link.target])
    return all(device.forwards or device.kind == GPU for device in ends)


def _max_flow(capacity: _Flow) -> int:
    """Return the maximum flow from _START to _END by shortest augmenting paths (Dinic); modifies ``capacity``."""
    total = 0
    while (level := _levels(capacity)) is not None:
        ways = {device: iter(targets) for device, targets in capacity.items()}
        nexts = {device: next(way, None) for device, way in ways.items()}
        while (path := _path(capacity, level, ways, nexts)) is not None:
            amount = min(capacity[a][b] for a, b in path)
            for a, b in path:
                capacity[a][b] -= amount
                capacity[b][a] += amount
            total += amount
    return total


def _levels(capacity: _Flow) -> dict[int, int] | None:
    """Return the number of links from _START to each device, or None if _END is unreachable."""
    level = {_START: 0}
    pending = deque([_START])
    while pending:
        device = pending.popleft()
        for target, remaining in capacity[device].items():
            if remaining and target not in level:
                level[target] = level[device] + 1
                pending.append(target)
    return level if _END in level else None


def _path(
    capacity: _Flow, level: dict[int, int], ways: dict[int, Iterator[int]], nexts: dict[int, int | None]
) -> list[tuple[int, int]] | None:
    """Return a path of links with free capacity, each to the next level, or None if no path remains."""
    trail = [_START]
    while trail[-1] != _END:
        device = trail[-1]
        target = nexts[device]
        while target is not None and not (capacity[device][target] and level.get(target) == level[device] + 1):
            target = nexts[device] = next(ways[device], None)
        if target is not None:
            trail.append(target)
        elif len(trail) == 1:
            return None
        else:
            trail.pop()
            nexts[trail[-1]] = next(ways[trail[-1]], None)
    return list(pairwise(trail))
