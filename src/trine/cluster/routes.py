"""Static shortest routes, worked out when they are asked for."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

#: sum of latencies in ps, number of links, the links; compared in this order
_Path = tuple[int, int, tuple[int, ...]]


@dataclass(slots=True)
class _Search:
    """Dijkstra's algorithm from one source over the devices that forward; it stops early and can go on later."""

    frontier: list[tuple[_Path, int]]
    settled: dict[int, _Path] = field(default_factory=dict)


class Routes:
    """Shortest routes by (latency, links, lowest link indices); only forwarding devices carry others' traffic.

    A source's search goes no further than the targets asked for need, and leaves out the devices that forward nothing,
    so that neighbours on a ring of a thousand GPUs, or GPUs under one switch, cost little.
    """

    def __init__(self, forwards: Sequence[bool], links: Sequence[tuple[int, int, int]]) -> None:
        """``forwards``: one flag a device. ``links``: (source, target, latency in ps)."""
        self._wires: dict[tuple[int, int], tuple[int, int]] = {}
        for index, (source, target, latency_ps) in enumerate(links):
            wire = (latency_ps, index)
            self._wires[source, target] = min(wire, self._wires.get((source, target), wire))
        self._into: list[list[int]] = [[] for _ in forwards]
        self._onward: list[list[int]] = [[] for _ in forwards]
        for source, target in self._wires:
            self._into[target].append(source)
            if forwards[target]:
                self._onward[source].append(target)
        self._searches: dict[int, _Search] = {}

    def route(self, source: int, target: int) -> tuple[int, ...] | None:
        """Links from ``source`` to ``target``; None where no path leads there."""
        if source == target:
            return ()
        found = self._nearest(source, (target,))
        return None if found is None else found[0][2]

    def nearest_of(self, source: int, targets: Sequence[int]) -> int | None:
        """The device of ``targets``, none of them ``source``, nearest to it; None where it reaches none."""
        found = self._nearest(source, targets)
        return None if found is None else found[1]

    def _nearest(self, source: int, targets: Sequence[int]) -> tuple[_Path, int] | None:
        search = self._searches.get(source)
        if search is None:
            search = self._searches[source] = _Search(frontier=[((0, 0, ()), source)])
        settled = search.settled
        reached = [
            (self._longer(settled[via], via, target), target)
            for target in targets
            for via in self._into[target]
            if via in settled
        ]
        best = min(reached, default=None)
        # A path through the frontier is longer than the frontier's own shortest path.
        while search.frontier and (best is None or search.frontier[0][0] < best[0]):
            via = self._settle_next(search)
            for target in targets:
                if (via, target) in self._wires:
                    found = (self._longer(settled[via], via, target), target)
                    best = found if best is None else min(best, found)
        return best

    def _longer(self, path: _Path, via: int, target: int) -> _Path:
        """``path``, which ends in ``via``, with the best link from there to ``target``."""
        latency_ps, link = self._wires[via, target]
        return path[0] + latency_ps, path[1] + 1, (*path[2], link)

    def _settle_next(self, search: _Search) -> int:
        """Fix the shortest path of the frontier, whose end it returns, and put its onward neighbours there."""
        path, device = heapq.heappop(search.frontier)
        if device not in search.settled:
            search.settled[device] = path
            for target in self._onward[device]:
                if target not in search.settled:
                    heapq.heappush(search.frontier, (self._longer(path, device, target), target))
        return device
