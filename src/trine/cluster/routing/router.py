"""Routing policies behind :meth:`Cluster.route`, which choose the links that a message crosses.

A message stays as local as it can: it uses only scale-up links if they reach the target, else scale-up and host links,
else all links. Among these routes trine takes the lowest total latency, then the fewest links. The policy breaks ties:

- ``shortest``: the lowest link indices.
- ``d-mod-k``: by the position of the target under its switch, as in InfiniBand's fat-tree routing: targets under one
  switch are reached through different spines. The ports of a switch may be separate devices.
- ``ecmp-hash`` or ``ecmp-hash:SALT``: by a hash of both ends.
- ``ecmp-split``: all of them; each switch divides the message evenly.
- ``rail``: like ``d-mod-k``, but a message to another rail first moves to another GPU over scale-up links and leaves
  by the NIC of the target's rail (PXN).
- ``dimension-order``: through a mesh or torus, last dimension first.

Traffic of a GPU leaves the node by the GPU's own NIC. GPUs with the same nearest NICs are assigned to them round-robin.
Policies ignore load.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.data import D_MOD_K, DIMENSIONS, HASH, RAIL, SHORTEST, SPLIT, ClusterData
from trine.cluster.routing.shortest import ShortestRoutes
from trine.cluster.tables import LinkedDevices
from trine.common.arrays import distinct

if TYPE_CHECKING:
    from trine.cluster.routing.grid_routes import GridRoutes

#: (device, number of ways into it) -> which of them
Chooser = Callable[[int, int], int]
#: A route and the part of the bytes that takes it.
Path = tuple[tuple[int, ...], float]
#: Number of pairs whose routes are cached; routes of further pairs are computed on each call.
MAX_KEPT = 1 << 18
#: Maximum number of equal routes that share a message.
MAX_SPLIT = 4096
#: Number of GPUs or NICs from which to search a network for equally near uplinks.
SEEN_FROM = 8


class Router:
    """Routes of one cluster, computed on demand."""

    def __init__(
        self, machine: LinkedDevices, routing: str, grid: tuple[int, ...] = (),
        joined_nics: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        """Set up a router; ``routing``, ``grid``: as in Cluster, ``joined_nics``: NICs that lead out of a node."""
        self._routing, self._grid_sizes, self._gpus = routing, grid, machine.gpus
        self._devices, self._links = machine.device_table, machine.link_table
        self._policy = routing.partition(":")[0]
        self._given_nics = joined_nics
        self._cache: dict[tuple[int, int], tuple[Path, ...]] = {}
        self._legs: dict[tuple[int, int], tuple[Path, ...]] = {}
        self._nics: dict[int, int | None] = {}
        self._peers: dict[tuple[int, int], int | None] = {}

    def paths(self, source: int, target: int) -> tuple[Path, ...]:
        """Return the routes and the share of bytes on each; empty if the target is unreachable."""
        paths = self._cache.get((source, target))
        if paths is None:
            paths = self._find(source, target)
            if len(self._cache) < MAX_KEPT:
                self._cache[source, target] = paths
        return paths

    def _find(self, source: int, target: int) -> tuple[Path, ...]:
        if source == target:
            return (((), 1.0),)
        if self._policy == DIMENSIONS and self._is_gpu[source] and self._is_gpu[target]:
            return ((self._grid.route(source, target), 1.0),)
        for tier in (self.scale_up, self.node):
            if paths := self._choose(tier, source, target):
                return paths
        if not self._has_scale_out:
            return ()
        peer = self._pxn_peer(source, target) if self._policy == RAIL else None
        if peer is not None:
            return _joined(self._choose(self.scale_up, source, peer), self._across(peer, target))
        return self._across(source, target)

    def _across(self, source: int, target: int) -> tuple[Path, ...]:
        """Return paths between nodes, through the NICs assigned to both ends if they have one."""
        source_nic, target_nic = self._own_nic(source), self._own_nic(target)
        if source_nic is None and target_nic is None:
            return self._choose(self._everything, source, target)
        source_nic = source if source_nic is None else source_nic
        target_nic = target if target_nic is None else target_nic
        first, last = self._leg(source, source_nic), self._leg(target_nic, target)
        ends = source_nic, target_nic
        middle = self._choose(self._fabric, *ends) or self._choose(self._everything, *ends)
        return _joined(first, middle, last)

    def _leg(self, source: int, target: int) -> tuple[Path, ...]:
        """Return paths between a GPU and its NIC, cached because many routes share them."""
        if source == target:
            return (((), 1.0),)
        if (source, target) not in self._legs:
            self._legs[source, target] = self._choose(self.node, source, target)
        return self._legs[source, target]

    def _choose(self, tier: ShortestRoutes, source: int, target: int) -> tuple[Path, ...]:
        """Return the policy's choice among the shortest routes of a tier."""
        if self._policy in (SHORTEST, DIMENSIONS):
            route = tier.route(source, target)
            return () if route is None else ((route, 1.0),)
        if self._policy == SPLIT:
            return tier.split(source, target, MAX_SPLIT)
        chooser = self._by_hash(source, target) if self._policy == HASH else dealt(tier.port_of(target, target))
        route = tier.one_of(source, target, chooser)
        return () if route is None else ((route, 1.0),)

    def _by_hash(self, source: int, target: int) -> Chooser:
        names = self._devices.names
        return hashed(hash_seed(names[source], names[target], self._routing))

    def host_of(self, gpu: int) -> int | None:
        """Return the memory of the nearest host, or the host itself; hosts in the GPU's node come first."""
        hosts = self.hosts_by_node.get(self.node_of[gpu], self._hosts)
        host = self._everything.nearest_of(gpu, hosts) if hosts else None
        return None if host is None else self.memory_of(host)

    def memory_of(self, host: int) -> int:
        """Return the host's memory: a device linked only to it that forwards no traffic. Falls back to the host."""
        return self._memories.get(host, host)

    @cached_property
    def _memories(self) -> dict[int, int]:
        memories: dict[int, int] = {}
        for memory in self._hosts:
            ends = set(self._links.target[self._links.links_from(memory)].tolist())
            if len(ends) == 1 and not self._devices.kinds[self._devices.kind[memory]].forwards:
                (host,) = ends
                if self._devices.kinds[self._devices.kind[host]].kind == "host":
                    memories.setdefault(host, memory)
        return memories

    def nic_of(self, gpu: int) -> int | None:
        """Return the NIC through which a GPU's traffic leaves the node, or None without a NIC."""
        return self._own_nic(gpu)

    def _own_nic(self, device: int) -> int | None:
        if not self._is_gpu[device]:
            return None
        if device not in self._nics:
            self._share_nics(device)
        return self._nics[device]

    def _share_nics(self, gpu: int) -> None:
        """Assign NICs to the GPUs of a node: GPUs with the same nearest NICs take them in turn."""
        node = self.node_of[gpu]
        nics = self._nics_of_node.get(node, ())
        nics = tuple(nic for nic in nics if nic in self._joined_nics) or nics
        turns: dict[tuple[int, ...], int] = {}
        for member in self._gpus_of_node[node]:
            choice = self.node.all_nearest(member, nics)
            turn = turns[choice] = turns.get(choice, -1) + 1
            self._nics[member] = choice[turn % len(choice)] if choice else None

    def _pxn_peer(self, source: int, target: int) -> int | None:
        """Return the GPU beside ``source`` whose NIC is on the target's rail, or None (also if that is ``source``)."""
        rail, nic = self._rail_of(target), self._own_nic(source)
        if rail is None or nic is None or self._rail_of(source) == rail:
            return None
        return self.peer_on(source, rail)

    def peer_on(self, source: int, rail: int) -> int | None:
        """Return the first GPU that scale-up links join to ``source`` and whose NIC is on ``rail``."""
        if (source, rail) not in self._peers:
            self._peers[source, rail] = self._find_peer(source, rail)
        return self._peers[source, rail]

    def _find_peer(self, source: int, rail: int) -> int | None:
        for peer in self._gpus_of_node[self.node_of[source]]:
            if self._rail_of(peer) == rail and self.scale_up.route(source, peer) is not None:
                return peer
        return None

    def _rail_of(self, gpu: int) -> int | None:
        nic = self._own_nic(gpu)
        return None if nic is None else self._devices.kinds[self._devices.kind[nic]].rail

    @cached_property
    def _is_gpu(self) -> list[bool]:
        flags: list[bool] = self._devices.where("gpu").tolist()
        return flags

    @cached_property
    def node_of(self) -> list[int]:
        nodes: list[int] = self._devices.node.tolist()
        return nodes

    @cached_property
    def _hosts(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._devices.where("host")).tolist())

    @cached_property
    def hosts_by_node(self) -> dict[int, tuple[int, ...]]:
        return self._by_node("host")

    @cached_property
    def _nics_of_node(self) -> dict[int, tuple[int, ...]]:
        return self._by_node("nic")

    @cached_property
    def _gpus_of_node(self) -> dict[int, tuple[int, ...]]:
        return self._by_node("gpu")

    def _by_node(self, kind: str) -> dict[int, tuple[int, ...]]:
        members_of: dict[int, list[int]] = {}
        for i in np.flatnonzero(self._devices.where(kind)).tolist():
            members_of.setdefault(self.node_of[i], []).append(i)
        return {node: tuple(members) for node, members in members_of.items()}

    @cached_property
    def _joined_nics(self) -> frozenset[int]:
        """NICs that lead out of their node."""
        if self._given_nics is not None:
            return self._given_nics
        ends = distinct(self._links.source[self._links.of_class("scale-out")])
        return frozenset(ends[self._devices.where("nic")[ends]].tolist())

    @cached_property
    def _has_scale_out(self) -> bool:
        return bool(self._links.of_class("scale-out").any())

    @cached_property
    def scale_up(self) -> ShortestRoutes:
        """Routes over scale-up links only."""
        return self._routes(("scale-up",))

    @cached_property
    def node(self) -> ShortestRoutes:
        """Routes over all links of a node."""
        return self._routes(("scale-up", "host"))

    @cached_property
    def _everything(self) -> ShortestRoutes:
        return self._routes(("scale-up", "host", "scale-out"), sees_ports=True)

    @cached_property
    def _fabric(self) -> ShortestRoutes:
        """Routes between NICs; intermediate NICs, GPUs and hosts do not forward."""
        return self._routes(("scale-out",), without=("nic", "gpu", "host"), sees_ports=True)

    @cached_property
    def _grid(self) -> GridRoutes:
        ends = zip(self._links.source.tolist(), self._links.target.tolist(), strict=True)
        from trine.cluster.routing.grid_routes import GridRoutes

        return GridRoutes(self._grid_sizes, self._gpus, list(ends))

    def has_equal_uplinks(self) -> bool:
        """Return whether messages to some device have several equally near ways through switches.

        Checks the scale-out fabric and the scale-up network from a few GPUs or NICs, evenly spread.
        """
        switches, gpus = self._devices.where("switch").tolist(), self._gpus
        tiers = [(self.scale_up, gpus)]
        if self._has_scale_out:
            nics = tuple(sorted(self._joined_nics))
            tiers.insert(0, (self._fabric, nics) if nics else (self._everything, gpus))
        return any(
            tier.has_equal_ways(start, switches)
            for tier, starts in tiers
            for start in starts[:: max(1, len(starts) // SEEN_FROM)][:SEEN_FROM]
        )

    @property
    def nics_have_rails(self) -> bool:
        """Whether every NIC that leads out of its node has a rail; False without such NICs."""
        kinds, kind = self._devices.kinds, self._devices.kind
        return bool(self._joined_nics) and all(kinds[kind[nic]].rail is not None for nic in self._joined_nics)

    def _routes(
        self, classes: Iterable[str], without: tuple[str, ...] = (), *, sees_ports: bool = False
    ) -> ShortestRoutes:
        forward = [kind.forwards and kind.kind not in without for kind in self._devices.kinds]
        forwards = np.array(forward, np.bool_)[self._devices.kind].tolist()
        allowed = np.flatnonzero(self._links.of_class(*classes))
        columns = (allowed, self._links.source[allowed], self._links.target[allowed], self._links.latency_ps[allowed])
        return ShortestRoutes(forwards, list(zip(*(column.tolist() for column in columns), strict=True)), sees_ports)


#: Start of the reason for a policy that the cluster file did not name.
UNNAMED = "the file names none"


def usual_routing(cluster: ClusterData) -> tuple[str, str]:
    """Return (policy, reason) for a cluster whose file lists its links and names no policy.

    ``shortest`` would send all messages over the first of several equally near uplinks, which no fabric does.
    GPUs use their parallel switches at the same time, so these are not alternatives.
    """
    from trine.cluster.planes import spread_over_planes

    router = Router(spread_over_planes(cluster), SHORTEST)
    if not router.has_equal_uplinks():
        return SHORTEST, f"{UNNAMED}, and no two uplinks are equally near"
    rails = router.nics_have_rails
    why = "and the NICs are on rails" if rails else "and it deals the targets out over them"
    return RAIL if rails else D_MOD_K, f"{UNNAMED}, several uplinks are equally near, {why}"


def dealt(key: int) -> Chooser:
    """Return a chooser by the target's position under its switch, ``key``."""

    def choose(device: int, number: int) -> int:
        nonlocal key
        choice = key % number
        key = key // number + device if number > 1 else key
        return choice

    return choose


def hash_seed(source: str, target: str, routing: str) -> int:
    """Return the seed of the hash from the names of both ends and the policy."""
    return zlib.crc32(f"{source}\0{target}\0{routing}".encode())


def hashed(seed: int) -> Chooser:
    """Return a chooser by a hash."""
    return lambda device, number: mixed(seed << 32 | device) % number


def mixed(number: int) -> int:
    """Return a 64-bit hash of ``number``: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    number = (number ^ number >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31


def _joined(*parts: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return all combinations of paths through consecutive parts; empty if any part is unreachable."""
    if all(len(part) == 1 for part in parts):
        return ((sum((part[0][0] for part in parts), ()), 1.0),)
    ways: tuple[Path, ...] = (((), 1.0),)
    for part in parts:
        ways = tuple((route + more, share * part_share) for route, share in ways for more, part_share in part)
    return ways
