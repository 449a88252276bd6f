"""Static shortest routes, worked out when they are asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from trine.errors import SpecError

#: sum of latencies in ps, number of links, the links; compared in this order
_Path = tuple[int, int, tuple[int, ...]]


@dataclass(slots=True)
class _RouteSearch:
    """Dijkstra's algorithm from one source over the devices that forward; it stops early and can go on later."""

    frontier: list[tuple[_Path, int]]
    best: dict[int, _Path] = field(default_factory=dict)
    settled: dict[int, _Path] = field(default_factory=dict)
    ways: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


class ShortestRoutes:
    """Shortest routes by (latency, links, lowest link indices); only forwarding devices carry others' traffic.

    A source's search goes no further than the targets asked for need, and leaves out the devices that forward nothing,
    so that neighbours on a ring of a thousand GPUs, or GPUs under one switch, cost little.
    """

    def __init__(
        self, forwards: Sequence[bool], links: Sequence[tuple[int, int, int, int]], sees_ports: bool = False
    ) -> None:
        """``forwards``: one flag a device. ``links``: (index, source, target, latency in ps).

        ``sees_ports``: a device that forwards between two others alone is a port of the switch behind it, so that
        :meth:`port_of` counts what is below that switch.
        """
        self._sees_ports = sees_ports
        self._wires: dict[tuple[int, int], tuple[int, int]] = {}
        self._twins: dict[tuple[int, int], list[int]] = {}
        for index, source, target, latency_ps in links:
            self._add(source, target, (latency_ps, index))
        self._into: list[list[int]] = [[] for _ in forwards]
        self._onward: list[list[int]] = [[] for _ in forwards]
        self._exits: dict[int, list[int]] = {}
        self._forwards = forwards
        for source, target in self._wires:
            self._into[target].append(source)
            self._exits.setdefault(source, []).append(target)
            if forwards[target]:
                self._onward[source].append(target)
        self._searches: dict[int, _RouteSearch] = {}
        self._ports: dict[int, dict[int, int]] = {}
        self._least_latency_ps = min((latency_ps for _, _, _, latency_ps in links), default=0)

    def _add(self, source: int, target: int, wire: tuple[int, int]) -> None:
        """Keep the best of parallel links, and which others are as fast."""
        known = self._wires.setdefault((source, target), wire)
        if wire is known:
            return
        if wire[0] == known[0]:
            self._twins.setdefault((source, target), [known[1]]).append(wire[1])
        self._wires[source, target] = min(wire, known)
        if wire[0] < known[0]:
            self._twins.pop((source, target), None)

    @cached_property
    def _islands(self) -> list[int]:
        """For each device a number that it shares with all that links join to it, in either direction."""
        islands = list(range(len(self._forwards)))
        for source, target in self._wires:
            while islands[source] != source:
                islands[source] = source = islands[islands[source]]
            while islands[target] != target:
                islands[target] = target = islands[islands[target]]
            islands[source] = target
        for device in range(len(islands)):
            root = device
            while islands[root] != root:
                root = islands[root]
            islands[device] = root
        return islands

    def route(self, source: int, target: int) -> tuple[int, ...] | None:
        """Links from ``source`` to ``target``; None where no path leads there."""
        direct = self._wires.get((source, target))
        if direct is not None and direct[0] <= 2 * self._least_latency_ps:  # any other path has two links or more
            return (direct[1],)
        found = self._path(source, target)
        return None if found is None else found[2]

    def _path(self, source: int, target: int) -> _Path | None:
        if source == target:
            return 0, 0, ()
        if self._islands[source] != self._islands[target]:
            return None
        only = self._only_exit(source, target)
        if only is None:
            found = self._nearest(source, (target,))
            return None if found is None else found[0]
        rest = self._nearest(only, (target,))
        if rest is None:
            return None
        latency_ps, link = self._wires[source, only]
        return latency_ps + rest[0][0], 1 + rest[0][1], (link, *rest[0][2])

    def _only_exit(self, source: int, target: int) -> int | None:
        """The one device that a source leads to: all ends under one switch then share that switch's search."""
        exits = self._exits.get(source, [])
        if not exits or self._forwards[source] or len(exits) > 1 or exits[0] == target or not self._forwards[exits[0]]:
            return None
        return None if (source, exits[0]) in self._twins else exits[0]

    def port_of(self, target: int, other: int) -> int:
        """The position of a device among those below its switch that forward nothing.

        Its switch is its first neighbour; where that is a port (see :meth:`__init__`) what is behind it. ``other``: the
        answer for a device that forwards.
        """
        neighbours = self._into[target]
        if not neighbours:
            return 0
        switch = self._behind_ports(target, neighbours[0])
        if switch not in self._ports:
            ends = (self._behind_ports(switch, below) for below in self._exits.get(switch, ()))
            self._ports[switch] = {
                end: position for position, end in enumerate(sorted(end for end in ends if not self._forwards[end]))
            }
        return self._ports[switch].get(target, other)

    def _behind_ports(self, origin: int, device: int) -> int:
        """``device``, or where one arrives from ``origin`` who goes straight on through the ports behind each other."""
        seen = {origin}
        while self._sees_ports and self._forwards[device] and device not in seen:
            exits = self._exits.get(device, [])
            if len(exits) != 2 or origin not in exits:
                break
            seen.add(device)
            origin, device = device, exits[exits[0] == origin]
        return device

    def has_equal_ways(self, source: int, among: Sequence[bool]) -> bool:
        """Whether several shortest routes from ``source`` are equal where they pass one of ``among`` (a flag a device).

        Routes that differ in the last link count where it leads to one of these, or from one.
        """
        self._nearest(source, ())
        settled = self._searches[source].settled
        for target, before in enumerate(self._into):
            if target == source:
                continue
            vias = [via for via in before if via in settled and (among[target] or among[via])]
            if len(vias) > 1 or (vias and (vias[0], target) in self._twins):
                ways = self._ways_into(source, target)
                if len(ways) > 1 and (among[target] or all(among[via] for via, _ in ways)):
                    return True
        return False

    def one_of(self, source: int, target: int, choose: Callable[[int, int], int]) -> tuple[int, ...] | None:
        """One of the shortest routes: ``choose(device, number)`` picks among the ways into a device, from the end."""
        if source == target:
            return ()
        if self._path(source, target) is None:
            return None
        origin, links = self._origin(source, target), []
        while target != origin:
            ways = self._ways_into(origin, target)
            via, link = ways[choose(target, len(ways)) if len(ways) > 1 else 0]
            links.append(link)
            target = via
        if origin != source:
            links.append(self._wires[source, origin][1])
        return tuple(reversed(links))

    def split(self, source: int, target: int, at_most: int) -> tuple[tuple[tuple[int, ...], float], ...]:
        """All shortest routes with the part of the bytes that takes each, every device dividing evenly.

        Raises SpecError: more than ``at_most``.
        """
        if source == target:
            return (((), 1.0),)
        if self._path(source, target) is None:
            return ()
        origin = self._origin(source, target)
        onward = self._ways_onward(origin, target)
        first = () if origin == source else (self._wires[source, origin][1],)
        done: list[tuple[tuple[int, ...], float]] = []
        open_ends: list[tuple[int, tuple[int, ...], float]] = [(origin, first, 1.0)]
        while open_ends:
            device, links, share = open_ends.pop()
            if device == target:
                done.append((links, share))
                continue
            ways = onward[device]
            open_ends.extend((to, (*links, link), share / len(ways)) for to, link in ways)
            if len(done) + len(open_ends) > at_most:
                raise SpecError(f"more than {at_most} equal routes between two devices: too many to divide a message")
        return tuple(sorted(done))

    def _origin(self, source: int, target: int) -> int:
        only = self._only_exit(source, target)
        return source if only is None else only

    def _ways_onward(self, origin: int, target: int) -> dict[int, list[tuple[int, int]]]:
        """For each device on a shortest route, where it goes on to: (next device, link)."""
        onward: dict[int, list[tuple[int, int]]] = {}
        pending, seen = [target], {target}
        while pending:
            device = pending.pop()
            if device == origin:
                continue
            for via, link in self._ways_into(origin, device):
                onward.setdefault(via, []).append((device, link))
                if via not in seen:
                    seen.add(via)
                    pending.append(via)
        return onward

    def _ways_into(self, origin: int, target: int) -> list[tuple[int, int]]:
        """(device before, link) of every shortest route from ``origin`` to ``target``, by link; a search got there."""
        search = self._searches[origin]
        known = search.ways.get(target)
        if known is not None:
            return known
        # Whatever comes before the target on a shortest route is nearer than it, so the search has settled it.
        costs = [
            (settled[0] + self._wires[via, target][0], settled[1] + 1, via)
            for via in self._into[target]
            if (settled := search.settled.get(via)) is not None
        ]
        best = min(costs)[:2]
        ways = [
            (via, twin)
            for latency_ps, hops, via in costs
            if (latency_ps, hops) == best
            for twin in self._twins.get((via, target), (self._wires[via, target][1],))
        ]
        search.ways[target] = sorted(ways, key=lambda way: way[1])
        return search.ways[target]

    def nearest_of(self, source: int, targets: Sequence[int]) -> int | None:
        """The device of ``targets``, none of them ``source``, nearest to it; None where it reaches none."""
        found = self._nearest(source, targets)
        return None if found is None else found[1]

    def all_nearest(self, source: int, targets: Sequence[int]) -> tuple[int, ...]:
        """The devices of ``targets``, none of them ``source``, that no other is nearer than, in the order given."""
        found = self._nearest(source, targets)
        if found is None:
            return ()
        settled = self._searches[source].settled  # whatever comes before the nearest on a route is in here
        return tuple(
            target
            for target in targets
            if any(
                (settled[via][0] + self._wires[via, target][0], settled[via][1] + 1) == found[0][:2]
                for via in self._into[target]
                if via in settled
            )
        )

    def _nearest(self, source: int, targets: Sequence[int]) -> tuple[_Path, int] | None:
        search = self._searches.get(source)
        if search is None:
            search = self._searches[source] = _RouteSearch(frontier=[((0, 0, ()), source)])
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

    def _settle_next(self, search: _RouteSearch) -> int:
        """Fix the shortest path of the frontier, whose end it returns, and put its onward neighbours there."""
        path, device = heapq.heappop(search.frontier)
        if device not in search.settled:
            search.settled[device] = path
            best = search.best
            for target in self._onward[device]:
                if target not in search.settled:
                    longer = self._longer(path, device, target)
                    known = best.get(target)
                    if known is None or longer < known:
                        best[target] = longer
                        heapq.heappush(search.frontier, (longer, target))
        return device
