"""Static shortest routes, computed on demand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from trine.errors import SpecError

#: (total latency in ps, number of links, link indices), compared in this order
_Path = tuple[int, int, tuple[int, ...]]


@dataclass(slots=True)
class _RouteSearch:
    """Resumable state of Dijkstra's algorithm from one source over the forwarding devices."""

    frontier: list[tuple[_Path, int]]
    best: dict[int, _Path] = field(default_factory=dict)
    settled: dict[int, _Path] = field(default_factory=dict)
    ways: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


class ShortestRoutes:
    """Shortest routes by (latency, links, lowest link indices); only forwarding devices carry transit traffic.

    A source's search stops at the requested targets and skips non-forwarding devices. Routes between neighbours on a
    ring of a thousand GPUs, or between GPUs under one switch, are therefore cheap.
    """

    def __init__(
        self, forwards: Sequence[bool], links: Sequence[tuple[int, int, int, int]], sees_ports: bool = False
    ) -> None:
        """Create the router. ``forwards``: one flag per device. ``links``: (index, source, target, latency in ps).

        ``sees_ports``: treat a device that forwards between exactly two others as a port of the switch behind it;
        :meth:`port_of` then counts the devices below that switch.
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
        """Keep the best of parallel links, and its equally fast twins."""
        best = self._wires.setdefault((source, target), wire)
        if wire is best:
            return
        if wire[0] == best[0]:
            self._twins.setdefault((source, target), [best[1]]).append(wire[1])
        self._wires[source, target] = min(wire, best)
        if wire[0] < best[0]:
            self._twins.pop((source, target), None)

    @cached_property
    def _islands(self) -> list[int]:
        """Number of each device's connected component, with links followed in both directions."""
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
        """Return the links from ``source`` to ``target``, or None without a path."""
        direct = self._wires.get((source, target))
        if direct is not None and direct[0] <= 2 * self._least_latency_ps:  # any other path has two links or more
            return (direct[1],)
        path = self._path(source, target)
        return None if path is None else path[2]

    def _path(self, source: int, target: int) -> _Path | None:
        if source == target:
            return 0, 0, ()
        if self._islands[source] != self._islands[target]:
            return None
        only_exit = self._only_exit(source, target)
        if only_exit is None:
            nearest = self._nearest(source, (target,))
            return None if nearest is None else nearest[0]
        onward = self._nearest(only_exit, (target,))
        if onward is None:
            return None
        latency_ps, link = self._wires[source, only_exit]
        return latency_ps + onward[0][0], 1 + onward[0][1], (link, *onward[0][2])

    def _only_exit(self, source: int, target: int) -> int | None:
        """Return a source's only neighbour, or None: all ends under one switch then share that switch's search."""
        exits = self._exits.get(source, [])
        if not exits or self._forwards[source] or len(exits) > 1 or exits[0] == target or not self._forwards[exits[0]]:
            return None
        return None if (source, exits[0]) in self._twins else exits[0]

    def port_of(self, target: int, default: int) -> int:
        """Return the position of a device among the non-forwarding devices below its switch.

        The switch is the first neighbour, or the device behind it if that is a port (see :meth:`__init__`). ``other``:
        the result for a forwarding device.
        """
        neighbours = self._into[target]
        if not neighbours:
            return 0
        switch = self._behind_ports(target, neighbours[0])
        if switch not in self._ports:
            ends = (self._behind_ports(switch, below) for below in self._exits.get(switch, ()))
            switch_ends = sorted(end for end in ends if not self._forwards[end])
            self._ports[switch] = {end: position for position, end in enumerate(switch_ends)}
        return self._ports[switch].get(target, default)

    def _behind_ports(self, origin: int, device: int) -> int:
        """Return the device reached from ``origin`` through consecutive ports, starting at ``device``."""
        visited = {origin}
        while self._sees_ports and self._forwards[device] and device not in visited:
            exits = self._exits.get(device, [])
            if len(exits) != 2 or origin not in exits:
                break
            visited.add(device)
            origin, device = device, exits[exits[0] == origin]
        return device

    def has_equal_ways(self, source: int, among: Sequence[bool]) -> bool:
        """Return True if ``source`` has equal shortest routes through a device of ``among`` (one flag per device).

        Routes that differ in the last link count if this link leads to or from such a device.
        """
        self._nearest(source, ())
        settled = self._searches[source].settled
        for target, neighbours in enumerate(self._into):
            if target == source:
                continue
            vias = [via for via in neighbours if via in settled and (among[target] or among[via])]
            if len(vias) > 1 or (vias and (vias[0], target) in self._twins):
                ways = self._ways_into(source, target)
                if len(ways) > 1 and (among[target] or all(among[via] for via, _ in ways)):
                    return True
        return False

    def one_of(self, source: int, target: int, choose: Callable[[int, int], int]) -> tuple[int, ...] | None:
        """Return one shortest route; ``choose(device, number)`` picks among the ways into a device, target first."""
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
        """Return all shortest routes with their fractions of the bytes; every device splits evenly.

        Raises SpecError: more than ``at_most`` routes.
        """
        if source == target:
            return (((), 1.0),)
        if self._path(source, target) is None:
            return ()
        origin = self._origin(source, target)
        onward = self._ways_onward(origin, target)
        first = () if origin == source else (self._wires[source, origin][1],)
        routes: list[tuple[tuple[int, ...], float]] = []
        open_ends: list[tuple[int, tuple[int, ...], float]] = [(origin, first, 1.0)]
        while open_ends:
            device, links, share = open_ends.pop()
            if device == target:
                routes.append((links, share))
                continue
            ways = onward[device]
            open_ends.extend((neighbour, (*links, link), share / len(ways)) for neighbour, link in ways)
            if len(routes) + len(open_ends) > at_most:
                raise SpecError(f"more than {at_most} equal routes between two devices: too many to divide a message")
        return tuple(sorted(routes))

    def _origin(self, source: int, target: int) -> int:
        only_exit = self._only_exit(source, target)
        return source if only_exit is None else only_exit

    def _ways_onward(self, origin: int, target: int) -> dict[int, list[tuple[int, int]]]:
        """Return (next device, link) of the shortest routes for each device on them."""
        onward: dict[int, list[tuple[int, int]]] = {}
        pending, visited = [target], {target}
        while pending:
            device = pending.pop()
            if device == origin:
                continue
            for via, link in self._ways_into(origin, device):
                onward.setdefault(via, []).append((device, link))
                if via not in visited:
                    visited.add(via)
                    pending.append(via)
        return onward

    def _ways_into(self, origin: int, target: int) -> list[tuple[int, int]]:
        """Return the final (device, link) of each shortest route to ``target``, by link; needs an earlier search."""
        search = self._searches[origin]
        cached = search.ways.get(target)
        if cached is not None:
            return cached
        # Devices before the target on a shortest route are nearer, so the search has settled them.
        costs = []
        for via in self._into[target]:
            if (settled := search.settled.get(via)) is not None:
                costs.append((settled[0] + self._wires[via, target][0], settled[1] + 1, via))
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
        """Return the device of ``targets`` (without ``source``) nearest to ``source``, or None without a path."""
        nearest = self._nearest(source, targets)
        return None if nearest is None else nearest[1]

    def all_nearest(self, source: int, targets: Sequence[int]) -> tuple[int, ...]:
        """Return all nearest devices of ``targets`` (without ``source``), in the order of ``targets``."""
        nearest = self._nearest(source, targets)
        if nearest is None:
            return ()
        settled = self._searches[source].settled  # holds every device before the nearest target
        nearest_targets = []
        for target in targets:
            if any(
                (settled[via][0] + self._wires[via, target][0], settled[via][1] + 1) == nearest[0][:2]
                for via in self._into[target]
                if via in settled
            ):
                nearest_targets.append(target)
        return tuple(nearest_targets)

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
                    candidate = (self._longer(settled[via], via, target), target)
                    best = candidate if best is None else min(best, candidate)
        return best

    def _longer(self, path: _Path, via: int, target: int) -> _Path:
        """Return ``path``, which ends at ``via``, extended by the best link to ``target``."""
        latency_ps, link = self._wires[via, target]
        return path[0] + latency_ps, path[1] + 1, (*path[2], link)

    def _settle_next(self, search: _RouteSearch) -> int:
        """Settle the shortest path of the frontier, add its neighbours to the frontier, and return its end."""
        path, device = heapq.heappop(search.frontier)
        if device not in search.settled:
            search.settled[device] = path
            best = search.best
            for target in self._onward[device]:
                if target not in search.settled:
                    longer = self._longer(path, device, target)
                    shortest = best.get(target)
                    if shortest is None or longer < shortest:
                        best[target] = longer
                        heapq.heappush(search.frontier, (longer, target))
        return device
