"""Batched routing for machines made of identical nodes.

All nodes of a block share their inner routes, up to a shift of the link numbers. A route between nodes has three parts:
to the NIC of the first node, through the fabric, into the second node. Each is computed once or in closed form.
Other machines use :class:`trine.cluster.routing.router.Router`, which gives the same routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.data import D_MOD_K, HASH, RAIL, SHORTEST, SPLIT
from trine.cluster.routing.clos import ClosRoutes
from trine.cluster.routing.router import Router, dealt, hash_seed, hashed, mixed
from trine.cluster.routing.shortest import ShortestRoutes
from trine.cluster.tables import DeviceTable, LinkTable, NodeBlock, NodeLayout
from trine.common.arrays import Int32, Int64, distinct, pointers, spans

if TYPE_CHECKING:
    from trine.cluster.routing.router import Router

#: Pairs per batch, about 100 MB of working memory.
CHUNK = 1 << 18
#: Largest node, in devices, that is routed as a node; the pair table of a larger one would be too large.
MAX_DEVICES = 2048


class RoutedPairs(NamedTuple):
    """Routes of m pairs. links of pair i: ``links[ptr[i]:ptr[i + 1]]``.

    ptr: int64[m + 1]. links: int32[...]. unrouted: int64[...], the pairs that need another router.
    """

    ptr: Int64
    links: Int32
    unrouted: Int64


class BatchRoutes:
    """Routes between the devices of one machine."""

    def __init__(self, devices: DeviceTable, links: LinkTable, layout: NodeLayout, routing: str) -> None:
        self._devices, self._links, self.layout, self._routing = devices, links, layout, routing
        self.policy = routing.partition(":")[0]
        outside = slice(layout.fabric_link, None)
        inner = np.minimum(links.source[outside], links.target[outside]) < layout.fabric_device
        detour_ps = 2 * int(links.latency_ps[outside][inner].min(initial=1 << 61))
        self.nodes = [NodeRoutes(block, self.policy, routing, devices.names, detour_ps) for block in layout.blocks]

    @staticmethod
    def suits(layout: NodeLayout | None, routing: str) -> bool:
        """Return whether this class can route this machine."""
        has_closed_form = routing.partition(":")[0] in (SHORTEST, D_MOD_K, HASH, SPLIT, RAIL)
        return layout is not None and has_closed_form and max(len(b.node.devices) for b in layout.blocks) <= MAX_DEVICES

    def routes(self, sources: Int64, targets: Int64) -> RoutedPairs:
        """Return the routes between ``sources`` and ``targets``: int64[m], devices."""
        parts = [
            self._chunk(sources[first : first + CHUNK], targets[first : first + CHUNK])
            for first in range(0, len(sources), CHUNK)
        ]
        if not parts:
            return RoutedPairs(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))
        count = np.concatenate([part[0] for part in parts])
        unrouted = np.flatnonzero(count < 0)
        ptr = pointers(np.maximum(count, 0))
        return RoutedPairs(ptr, np.concatenate([part[1] for part in parts]), unrouted)

    def _chunk(self, sources: Int64, targets: Int64) -> tuple[Int64, Int32]:
        """Return (number of links of each pair, -1 for pairs left to the router; the links)."""
        pairs = _Pairs(*self.layout.places(sources), *self.layout.places(targets))
        pieces = _Pieces(len(sources))
        across = self._inside(pairs, pieces)
        if len(across):
            self._across(pairs, pieces, across)
        return pieces.joined()

    def _inside(self, pairs: _Pairs, pieces: _Pieces) -> Int64:
        """Add the routes that stay in their node; return the pairs that cross nodes."""
        pieces.leave(np.flatnonzero((pairs.block < 0) | (pairs.to_block < 0)))
        is_inside = (pairs.block == pairs.to_block) & (pairs.copy == pairs.to_copy)
        length = np.full(len(pairs.block), NONE, np.int64)
        for number, node in enumerate(self.nodes):
            rows = np.flatnonzero(is_inside & (pairs.block == number))
            if len(rows):
                length[rows] = self._piece(
                    pieces, node, INSIDE, rows, pairs.local[rows], pairs.to_local[rows], pairs.copy[rows]
                )
        pieces.leave(np.flatnonzero(length < NONE))
        return np.flatnonzero((length == NONE) & ~pieces.is_unrouted)

    def _piece(
        self, pieces: _Pieces, node: NodeRoutes, kind: int, pairs: Int64, source: Int64, target: Int64, copy: Int64
    ) -> Int64:
        """Add a part of the routes of ``pairs`` inside nodes; return its lengths, negative for pairs without a part."""
        rows = node.rows(kind, source, target, copy)
        links, starts, lengths = node.columns()
        start, length = starts[rows], lengths[rows]
        shift = node.block.first_link + copy * len(node.block.node.links)
        exists = length >= 0
        pieces.add(pairs[exists], links, start[exists], length[exists], shift[exists])
        return length

    def _across(self, pairs: _Pairs, pieces: _Pieces, rows: Int64) -> None:
        """Add routes through the NICs of both ends."""
        if self.clos is None or not self.clos.is_even:
            pieces.leave(rows)
            return
        leaves = self._local_nics(pairs.block[rows], pairs.local[rows])
        enters = self._local_nics(pairs.to_block[rows], pairs.to_local[rows])
        have_nics = (leaves >= 0) & (enters >= 0)
        pieces.leave(rows[~have_nics])
        rows, enters = rows[have_nics], enters[have_nics]
        block, copy, local = pairs.block[rows], pairs.copy[rows], pairs.local[rows].copy()
        if self.policy == RAIL:
            self._change_rail(pairs, pieces, rows, local)
        source_nics = self._local_nics(block, local)
        self._legs(pieces, rows, block, copy, local, source_nics)
        to_block, to_copy = pairs.to_block[rows], pairs.to_copy[rows]
        self._fabric(pieces, rows, self._numbers(block, copy, source_nics), self._numbers(to_block, to_copy, enters))
        self._legs(pieces, rows, to_block, to_copy, enters, pairs.to_local[rows])

    def _local_nics(self, blocks: Int64, local: Int64) -> Int64:
        """Return int64[m]: the NIC of each device, numbered within its node; -1: no NIC."""
        nics = np.full(len(local), -1, np.int64)
        for number, node in enumerate(self.nodes):
            in_block = blocks == number
            nics[in_block] = node.nic[local[in_block]]
        return nics

    def _numbers(self, blocks: Int64, copies: Int64, local: Int64) -> Int64:
        """Return int64[m]: machine-wide numbers of devices numbered within their nodes."""
        numbers = np.empty(len(local), np.int64)
        for number, node in enumerate(self.nodes):
            in_block = blocks == number
            numbers[in_block] = node.block.devices(local[in_block], copies[in_block])
        return numbers

    def _change_rail(self, ends: _Pairs, pieces: _Pieces, pairs: Int64, local: Int64) -> None:
        """Add the routes to the GPUs on the targets' rails, and store those GPUs in ``local``."""
        rail = np.full(len(pairs), -1, np.int64)
        for number, node in enumerate(self.nodes):
            to_block = ends.to_block[pairs] == number
            rail[to_block] = node.rail[ends.to_local[pairs[to_block]]]
        for number, node in enumerate(self.nodes):
            leaving = (ends.block[pairs] == number) & (rail >= 0)
            for goal in distinct(rail[leaving]).tolist():
                rows = np.flatnonzero(leaving & (rail == goal) & (node.rail[np.where(leaving, local, 0)] != goal))
                peer = node.peers(goal)[local[rows]]
                rows, peer = rows[peer >= 0], peer[peer >= 0]
                length = self._piece(pieces, node, SCALE_UP, pairs[rows], local[rows], peer, ends.copy[pairs[rows]])
                pieces.leave(pairs[rows[length < 0]])
                local[rows] = peer

    def _legs(
        self, pieces: _Pieces, pairs: Int64, blocks: Int64, copies: Int64, sources: Int64, targets: Int64
    ) -> None:
        """Add the routes between GPUs and their NICs."""
        for number, node in enumerate(self.nodes):
            rows = np.flatnonzero(blocks == number)
            if len(rows):
                length = self._piece(pieces, node, LEG, pairs[rows], sources[rows], targets[rows], copies[rows])
                pieces.leave(pairs[rows[length < 0]])

    def _fabric(self, pieces: _Pieces, pairs: Int64, source_nics: Int64, target_nics: Int64) -> None:
        """Add the routes from NIC to NIC."""
        assert self.clos is not None
        differing = np.flatnonzero(source_nics != target_nics)
        pairs, source_nics, target_nics = pairs[differing], source_nics[differing], target_nics[differing]
        links, count = self.clos.routes(source_nics, target_nics, self._choice(source_nics, target_nics))
        routed = count >= 0
        pieces.leave(pairs[~routed])
        if self.policy == SPLIT:  # the router raises the error for a single route if there are several
            several = self.clos.has_ways(source_nics, target_nics)
            pieces.leave(pairs[several])
        start = np.arange(len(count)) * links.shape[1]
        pieces.add(pairs[routed], links.ravel(), start[routed], count[routed], np.zeros(int(routed.sum()), np.int64))

    def _choice(self, source_nics: Int64, target_nics: Int64) -> _First | _Dealt | _Hashed:
        assert self.clos is not None
        if self.policy in (SHORTEST, SPLIT):
            return _First()
        if self.policy == HASH:
            return _Hashed(source_nics, target_nics, self._devices.names, self._routing)
        return _Dealt(np.maximum(self.clos.port[target_nics], 0))

    @cached_property
    def clos(self) -> ClosRoutes | None:
        """Routes through the fabric; None if it is not a Clos network or its choices may differ from the router's."""
        layout = self.layout
        if layout.clos is None:
            return None
        routes = ClosRoutes(layout.clos, self._links, layout.fabric_link, len(self._devices))
        return routes if self.policy not in (D_MOD_K, RAIL) or routes.deals_as_searched else None

    # -- NICs and hosts ------------------------------------------------------------------------------------------------

    def nics_of(self, gpus: Int64) -> Int64:
        """Return int64[m]: the NIC of each GPU, -1 for a GPU without one."""
        block, copy, local = self.layout.places(gpus)
        nic = self._local_nics(block, local)
        return np.where(nic < 0, -1, self._numbers(block, copy, np.maximum(nic, 0)))

    def hosts_of(self, gpus: Int64) -> Int64 | None:
        """Return int64[m]: the host of each GPU, -1: no host. Returns None if nodes share hosts."""
        if any(node.host is None for node in self.nodes):
            return None
        block, copy, local = self.layout.places(gpus)
        hosts = np.full(len(gpus), -1, np.int64)
        for number, node in enumerate(self.nodes):
            in_block = np.flatnonzero(block == number)
            assert node.host is not None
            host = node.host[local[in_block]]
            hosts[in_block] = np.where(host < 0, -1, node.block.devices(np.maximum(host, 0), copy[in_block]))
        return hosts


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Locations of both ends: block, node of the block, device of the node; int64[m] each."""

    block: Int64
    copy: Int64
    local: Int64
    to_block: Int64
    to_copy: Int64
    to_local: Int64


@dataclass(slots=True)
class _Pieces:
    """Parts of the routes of ``size`` pairs, in route order for each pair."""

    size: int
    is_unrouted: npt.NDArray[np.bool_] = field(init=False)
    count: Int64 = field(init=False)
    parts: list[tuple[Int64, Int64, Int64, Int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_unrouted = np.zeros(self.size, np.bool_)
        self.count = np.zeros(self.size, np.int64)

    def leave(self, pairs: Int64) -> None:
        """Leave these pairs to the router."""
        self.is_unrouted[pairs] = True

    def add(self, pairs: Int64, links: Int64, start: Int64, length: Int64, shift: Int64) -> None:
        """Append ``links[start:][:length] + shift`` to the routes of these pairs; no pair may occur twice."""
        if len(pairs):
            shifted = links[spans(start, length)] + np.repeat(shift, length)
            self.parts.append((pairs, length, self.count[pairs], shifted))
            self.count[pairs] += length

    def joined(self) -> tuple[Int64, Int32]:
        """Return (number of links of each pair, -1 if left to the router; the links of all others, pair by pair)."""
        count = np.where(self.is_unrouted, 0, self.count)
        first = np.cumsum(count) - count
        links = np.empty(int(count.sum()), np.int32)
        for pairs, length, position, shifted in self.parts:
            place = spans(first[pairs] + position, length)
            is_routed = np.repeat(~self.is_unrouted[pairs], length)
            links[place[is_routed]] = shifted[is_routed]
        return np.where(self.is_unrouted, -1, count), links


class _First:
    """Policy that always picks the first route."""

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        return np.zeros(len(rows), np.int64)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        return 0


class _Dealt:
    """Policy that picks by the target's port on its switch; see :func:`trine.cluster.routing.router.dealt`."""

    def __init__(self, keys: Int64) -> None:
        self._keys = keys.copy()

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        key = self._keys[rows]
        self._keys[rows] = np.where(ways > 1, key // ways + devices, key)
        return np.where(ways > 1, key % ways, 0)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        return int(self.pick(np.array([row]), np.array([device]), np.array([ways]))[0])


class _Hashed:
    """Policy that picks by a hash of both ends and the device; see :func:`trine.cluster.routing.router.hashed`."""

    def __init__(self, source_nics: Int64, target_nics: Int64, names: Sequence[str], routing: str) -> None:
        self._source_nics, self._target_nics, self._names, self._routing = source_nics, target_nics, names, routing

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        return np.array(list(map(self.pick_one, rows.tolist(), devices.tolist(), ways.tolist())), np.int64)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        if ways == 1:
            return 0
        names = self._names
        seed = hash_seed(names[int(self._source_nics[row])], names[int(self._target_nics[row])], self._routing)
        return mixed(seed << 32 | device) % ways


#: Kinds of routes: over scale-up links if possible, else any; over all links of the node; over scale-up links only.
INSIDE, LEG, SCALE_UP = 0, 1, 2
#: Lengths that mark a missing route: no route exists, or the policy splits messages over several.
NONE, SEVERAL = -1, -2
_UNKNOWN, _EACH = -1, -2


class RouteColumns(NamedTuple):
    """Rows of routes inside a node, int64 each: row i is ``links[start[i]:start[i] + length[i]]``.

    A length may be NONE or SEVERAL.
    """

    links: Int64
    start: Int64
    length: Int64


class NodeRoutes:
    """Routes between the devices of a node, as links of the node; row i is ``links[start[i]:][:length[i]]``.

    Each node has separate rows for equal routes if the policy chooses by device numbers or names.
    """

    def __init__(self, block: NodeBlock, policy: str, routing: str, names: Sequence[str], detour_ps: int) -> None:
        """Set up the tables. ``names``: the machine's devices. ``detour_ps``: least latency to leave and return."""
        self._detour_ps = detour_ps
        self.block, self._policy, self._routing, self._names = block, policy, routing, names
        self._router = Router(block.node, policy, joined_nics=block.joined)
        self._size = len(block.node.devices)
        self._rows: dict[int, npt.NDArray[np.int32]] = {}
        self._node_rows: dict[tuple[int, int, int], int] = {}
        self._links: list[int] = []
        self._start: list[int] = []
        self._length: list[int] = []
        gpus = range(len(block.node.gpus))
        self.nic = np.full(self._size, -1, np.int64)
        self.nic[: len(gpus)] = [-1 if (nic := self._router.nic_of(gpu)) is None else nic for gpu in gpus]
        rails = [device.rail for device in block.node.devices]
        self.rail = np.array(
            [-1 if nic < 0 or (rail := rails[nic]) is None else rail for nic in self.nic.tolist()], np.int64
        )
        self._peers: dict[int, Int64] = {}
        self.host = self._hosts()

    def _hosts(self) -> Int64 | None:
        """Return int64[devices]: each GPU's host, -1: no host; None if a host or route outside may be nearer."""
        hosts = self._router.hosts_by_node
        nearest = np.full(self._size, -1, np.int64)
        for gpu in range(len(self.block.node.gpus)):
            node_hosts = hosts.get(self._router.node_of[gpu])
            if node_hosts is None:
                return None
            host = self._router.node.nearest_of(gpu, node_hosts)
            if host is None or self._latency_ps(gpu, host) >= self._detour_ps:
                return None
            nearest[gpu] = self._router.memory_of(host)
        return nearest

    def _latency_ps(self, source: int, target: int) -> int:
        latency_ps = self.block.node.link_latency_ps
        return sum(int(latency_ps[link]) for link in self._router.node.route(source, target) or ())

    def rows(self, kind: int, sources: Int64, targets: Int64, copies: Int64) -> Int64:
        """Return int64[m]: rows of the routes between devices of the nodes ``copies`` of the block."""
        table = self._rows.get(kind)
        if table is None:
            table = self._rows[kind] = np.full(self._size * self._size, _UNKNOWN, np.int32)
        key = sources * self._size + targets
        rows: Int64 = table[key].astype(np.int64)
        for pair in distinct(key[rows == _UNKNOWN]).tolist():
            table[pair] = self._find(kind, *divmod(pair, self._size))
        rows = table[key].astype(np.int64)
        varying = np.flatnonzero(rows == _EACH)
        for i, copy, pair in zip(varying.tolist(), copies[varying].tolist(), key[varying].tolist(), strict=True):
            choice = (kind, copy, pair)
            if choice not in self._node_rows:
                self._node_rows[choice] = self._find_varying(kind, copy, *divmod(pair, self._size))
            rows[i] = self._node_rows[choice]
        return rows

    @cached_property
    def is_closed(self) -> bool:
        """True if all GPUs of a node reach each other inside it."""
        return NONE not in self._inner_lengths

    @cached_property
    def is_uniform(self) -> bool:
        """True if routes between GPUs and to their NICs are the same in all nodes of the block."""
        return not self._node_rows and SEVERAL not in self._inner_lengths

    @cached_property
    def _inner_lengths(self) -> set[int]:
        """Lengths of the routes inside a node between its GPUs, and between them and their NICs."""
        gpus = np.arange(len(self.block.node.gpus))
        inner = self.rows(
            INSIDE, np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus)), np.zeros(len(gpus) ** 2, np.int64)
        )
        with_nic = gpus[self.nic[gpus] >= 0]
        nics, copies = self.nic[with_nic], np.zeros(len(with_nic), np.int64)
        legs = np.concatenate((self.rows(LEG, with_nic, nics, copies), self.rows(LEG, nics, with_nic, copies)))
        lengths = self.columns().length
        return {*lengths[inner].tolist(), *lengths[legs][lengths[legs] == SEVERAL].tolist()}

    def columns(self) -> RouteColumns:
        """Return all rows so far."""
        return RouteColumns(
            np.array(self._links, np.int64), np.array(self._start, np.int64), np.array(self._length, np.int64)
        )

    def peers(self, rail: int) -> Int64:
        """Return int64[devices]: for each GPU, its peer with a NIC on this rail; -1: no peer."""
        if rail not in self._peers:
            peers = np.full(self._size, -1, np.int64)
            for gpu in range(len(self.block.node.gpus)):
                peer = self._router.peer_on(gpu, rail)
                peers[gpu] = -1 if peer is None else peer
            self._peers[rail] = peers
        return self._peers[rail]

    def _tier(self, kind: int, source: int, target: int) -> ShortestRoutes | None:
        """Return the links that the message may take, or None if they do not reach the target."""
        tiers = {INSIDE: (self._router.scale_up, self._router.node), LEG: (self._router.node,)}
        for tier in tiers.get(kind, (self._router.scale_up,)):
            if tier.route(source, target) is not None:
                return tier
        return None

    def _find(self, kind: int, source: int, target: int) -> int:
        if source == target:
            return self._add(())
        tier = self._tier(kind, source, target)
        if tier is None:
            return self._add((), NONE)
        if self._policy == SHORTEST:
            return self._add(tier.route(source, target) or ())
        choices: list[int] = []

        def choose(device: int, number: int) -> int:
            choices.append(device)
            return 0

        route = tier.one_of(source, target, choose)
        if not choices:
            return self._add(route or ())
        return self._add((), SEVERAL) if self._policy == SPLIT else _EACH

    def _find_varying(self, kind: int, copy: int, source: int, target: int) -> int:
        """Return the row of one node's choice among equal routes."""
        tier = self._tier(kind, source, target)
        assert tier is not None
        place = self.block.device
        port = tier.port_of(target, place(target, copy))
        if self._policy == HASH:
            ends = self._names[place(source, copy)], self._names[place(target, copy)]
            choose = hashed(hash_seed(*ends, self._routing))
        else:
            choose = dealt(port)
        return self._add(tier.one_of(source, target, lambda device, n: choose(place(device, copy), n)) or ())

    def _add(self, links: tuple[int, ...], length: int | None = None) -> int:
        self._start.append(len(self._links))
        self._length.append(len(links) if length is None else length)
        self._links.extend(links)
        return len(self._start) - 1
