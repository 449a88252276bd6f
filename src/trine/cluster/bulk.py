"""Routes of a machine of nodes alike, many at a time.

A route inside a node is that of every node of its block, shifted. One between nodes is a part in the first node, to its
NIC, a part in the fabric, and a part in the second node; each is worked out once, or in closed form. What is built in
another way is left to :class:`trine.cluster.routing.Router`, whose routes these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trine.arrays import Int32, Int64
from trine.cluster.clos import ClosRoutes
from trine.cluster.data import D_MOD_K, HASH, RAIL, SHORTEST, SPLIT
from trine.cluster.node_routes import INSIDE, LEG, NONE, SCALE_UP, NodeRoutes
from trine.cluster.routing import hash_seed, mixed
from trine.cluster.tables import DeviceTable, Layout, LinkTable

#: Pairs that are worked on together: some 100 MB.
CHUNK = 1 << 18
#: Nodes with more devices than this are not looked at as nodes: the table of their pairs would be too large.
MAX_DEVICES = 2048


class BulkRoutes:
    """Routes between the devices of one machine."""

    def __init__(self, devices: DeviceTable, links: LinkTable, layout: Layout, routing: str) -> None:
        self._devices, self._links, self.layout, self._routing = devices, links, layout, routing
        self.policy = routing.partition(":")[0]
        outside = slice(layout.fabric_link, None)
        inner = np.minimum(links.source[outside], links.target[outside]) < layout.fabric_device
        detour_ps = 2 * int(links.latency_ps[outside][inner].min(initial=1 << 61))
        self.nodes = [NodeRoutes(block, self.policy, routing, devices.names, detour_ps) for block in layout.blocks]

    @staticmethod
    def suits(layout: Layout | None, routing: str) -> bool:
        """Whether routes of this machine can be worked out here."""
        known = routing.partition(":")[0] in (SHORTEST, D_MOD_K, HASH, SPLIT, RAIL)
        return layout is not None and known and max(len(b.node.devices) for b in layout.blocks) <= MAX_DEVICES

    def routes(self, sources: Int64, targets: Int64) -> tuple[Int64, Int32, Int64]:
        """(ptr int64[m + 1], links int32[...], left int64[...]): the pairs ``left`` have no links here.

        ``sources``, ``targets``: int64[m], devices.
        """
        parts = [
            self._chunk(sources[first : first + CHUNK], targets[first : first + CHUNK])
            for first in range(0, len(sources), CHUNK)
        ]
        if not parts:
            return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
        count = np.concatenate([part[0] for part in parts])
        left = np.flatnonzero(count < 0)
        ptr = np.concatenate(([0], np.cumsum(np.maximum(count, 0))))
        return ptr, np.concatenate([part[1] for part in parts]), left

    def _chunk(self, sources: Int64, targets: Int64) -> tuple[Int64, Int32]:
        """(links of each pair, -1 for pairs that are left; the links)."""
        pairs = _Pairs(*self.layout.places(sources), *self.layout.places(targets))
        pieces = _Pieces(len(sources))
        across = self._inside(pairs, pieces)
        if len(across):
            self._across(pairs, pieces, across)
        return pieces.joined()

    def _inside(self, pairs: _Pairs, pieces: _Pieces) -> Int64:
        """Add the routes that stay in their node; returns the pairs whose do not."""
        pieces.leave(np.flatnonzero((pairs.block < 0) | (pairs.to_block < 0)))
        same = (pairs.block == pairs.to_block) & (pairs.copy == pairs.to_copy)
        length = np.full(len(pairs.block), NONE, np.int64)
        for number, node in enumerate(self.nodes):
            which = np.flatnonzero(same & (pairs.block == number))
            if len(which):
                length[which] = self._piece(
                    pieces, node, INSIDE, which, pairs.local[which], pairs.to_local[which], pairs.copy[which]
                )
        pieces.leave(np.flatnonzero(length < NONE))
        return np.flatnonzero((length == NONE) & ~pieces.left)

    def _piece(
        self, pieces: _Pieces, node: NodeRoutes, kind: int, pairs: Int64, source: Int64, target: Int64, copy: Int64
    ) -> Int64:
        """Add a part of the routes of ``pairs`` inside nodes; returns its lengths, below 0 where there is none."""
        rows = node.rows(kind, source, target, copy)
        links, starts, lengths = node.columns()
        start, length = starts[rows], lengths[rows]
        shift = node.block.first_link + copy * len(node.block.node.links)
        found = length >= 0
        pieces.add(pairs[found], links, start[found], length[found], shift[found])
        return length

    def _across(self, pairs: _Pairs, pieces: _Pieces, which: Int64) -> None:
        """Add routes by way of the NICs of both ends."""
        if self.clos is None or not self.clos.is_even:
            pieces.leave(which)
            return
        leaves = self._own(pairs.block[which], pairs.local[which])
        enters = self._own(pairs.to_block[which], pairs.to_local[which])
        known = (leaves >= 0) & (enters >= 0)
        pieces.leave(which[~known])
        which, enters = which[known], enters[known]
        block, copy, local = pairs.block[which], pairs.copy[which], pairs.local[which].copy()
        if self.policy == RAIL:
            self._change_rail(pairs, pieces, which, local)
        near = self._own(block, local)
        self._legs(pieces, which, block, copy, local, near)
        to_block, to_copy = pairs.to_block[which], pairs.to_copy[which]
        self._fabric(pieces, which, self._numbers(block, copy, near), self._numbers(to_block, to_copy, enters))
        self._legs(pieces, which, to_block, to_copy, enters, pairs.to_local[which])

    def _own(self, blocks: Int64, local: Int64) -> Int64:
        """int64[m]: the NICs of devices, in their nodes; -1: none."""
        found = np.full(len(local), -1, np.int64)
        for number, node in enumerate(self.nodes):
            which = blocks == number
            found[which] = node.nic[local[which]]
        return found

    def _numbers(self, blocks: Int64, copies: Int64, local: Int64) -> Int64:
        """int64[m]: devices of nodes, as devices of the machine."""
        found = np.empty(len(local), np.int64)
        for number, node in enumerate(self.nodes):
            which = blocks == number
            found[which] = node.block.devices(local[which], copies[which])
        return found

    def _change_rail(self, pairs: _Pairs, pieces: _Pieces, which: Int64, local: Int64) -> None:
        """Add the way to the GPU on the target's rail, which ``local`` then is."""
        rail = np.full(len(which), -1, np.int64)
        for number, node in enumerate(self.nodes):
            there = pairs.to_block[which] == number
            rail[there] = node.rail[pairs.to_local[which[there]]]
        for number, node in enumerate(self.nodes):
            here = (pairs.block[which] == number) & (rail >= 0)
            for each in np.unique(rail[here]).tolist():
                rows = np.flatnonzero(here & (rail == each) & (node.rail[np.where(here, local, 0)] != each))
                peer = node.peers(each)[local[rows]]
                rows, peer = rows[peer >= 0], peer[peer >= 0]
                length = self._piece(pieces, node, SCALE_UP, which[rows], local[rows], peer, pairs.copy[which[rows]])
                pieces.leave(which[rows[length < 0]])
                local[rows] = peer

    def _legs(
        self, pieces: _Pieces, which: Int64, blocks: Int64, copies: Int64, sources: Int64, targets: Int64
    ) -> None:
        """Add the ways between GPUs and their NICs."""
        for number, node in enumerate(self.nodes):
            here = np.flatnonzero(blocks == number)
            if len(here):
                length = self._piece(pieces, node, LEG, which[here], sources[here], targets[here], copies[here])
                pieces.leave(which[here[length < 0]])

    def _fabric(self, pieces: _Pieces, which: Int64, near: Int64, far: Int64) -> None:
        """Add the ways from NIC to NIC."""
        assert self.clos is not None
        apart = np.flatnonzero(near != far)
        which, near, far = which[apart], near[apart], far[apart]
        links, count = self.clos.routes(near, far, self._choice(near, far))
        found = count >= 0
        pieces.leave(which[~found])
        if self.policy == SPLIT:  # several ways wherever switches choose: whoever asks for one is told so
            several = self.clos.has_ways(near, far)
            pieces.leave(which[several])
        start = np.arange(len(count)) * links.shape[1]
        pieces.add(which[found], links.ravel(), start[found], count[found], np.zeros(int(found.sum()), np.int64))

    def _choice(self, near: Int64, far: Int64) -> _First | _Dealt | _Hashed:
        assert self.clos is not None
        if self.policy in (SHORTEST, SPLIT):
            return _First()
        if self.policy == HASH:
            return _Hashed(near, far, self._devices.names, self._routing)
        return _Dealt(np.maximum(self.clos.port[far], 0))

    @cached_property
    def clos(self) -> ClosRoutes | None:
        """Routes through the fabric; None where it has another shape."""
        layout = self.layout
        if layout.clos is None:
            return None
        found = ClosRoutes(layout.clos, self._links, layout.fabric_link, len(self._devices))
        return found if self.policy not in (D_MOD_K, RAIL) or found.deals_as_searched else None

    # -- NICs and hosts ------------------------------------------------------------------------------------------------

    def nics_of(self, gpus: Int64) -> Int64:
        """int64[m]: the NIC of each GPU, -1 where it has none."""
        block, copy, local = self.layout.places(gpus)
        nic = self._own(block, local)
        return np.where(nic < 0, -1, self._numbers(block, copy, np.maximum(nic, 0)))

    def hosts_of(self, gpus: Int64) -> Int64 | None:
        """int64[m]: the host of each GPU, -1: none; None where nodes share hosts."""
        if any(node.host is None for node in self.nodes):
            return None
        block, copy, local = self.layout.places(gpus)
        found = np.full(len(gpus), -1, np.int64)
        for number, node in enumerate(self.nodes):
            which = np.flatnonzero(block == number)
            assert node.host is not None
            host = node.host[local[which]]
            found[which] = np.where(host < 0, -1, node.block.devices(np.maximum(host, 0), copy[which]))
        return found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Where both ends are: block, node of the block, device of the node; int64[m] each."""

    block: Int64
    copy: Int64
    local: Int64
    to_block: Int64
    to_copy: Int64
    to_local: Int64


@dataclass(slots=True)
class _Pieces:
    """Parts of the routes of ``size`` pairs, those of a pair in order."""

    size: int
    left: npt.NDArray[np.bool_] = field(init=False)
    count: Int64 = field(init=False)
    parts: list[tuple[Int64, Int64, Int64, Int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = np.zeros(self.size, np.bool_)
        self.count = np.zeros(self.size, np.int64)

    def leave(self, pairs: Int64) -> None:
        """These are for somebody else."""
        self.left[pairs] = True

    def add(self, pairs: Int64, links: Int64, start: Int64, length: Int64, shift: Int64) -> None:
        """``links[start:][:length] + shift`` follow what these pairs have; no pair occurs twice."""
        if len(pairs):
            total = np.repeat(start - (np.cumsum(length) - length), length)
            taken = links[total + np.arange(len(total))] + np.repeat(shift, length)
            self.parts.append((pairs, length, self.count[pairs], taken))
            self.count[pairs] += length

    def joined(self) -> tuple[Int64, Int32]:
        """(how many links each pair has, -1 where it is left; the links of all others, pair after pair)."""
        count = np.where(self.left, 0, self.count)
        first = np.cumsum(count) - count
        links = np.empty(int(count.sum()), np.int32)
        for pairs, length, before, taken in self.parts:
            place = np.repeat(first[pairs] + before - (np.cumsum(length) - length), length) + np.arange(len(taken))
            kept = np.repeat(~self.left[pairs], length)
            links[place[kept]] = taken[kept]
        return np.where(self.left, -1, count), links


class _First:
    """Always the first way."""

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        return np.zeros(len(rows), np.int64)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        return 0


class _Dealt:
    """By the position of the target below its switch; see :func:`trine.cluster.routing.dealt`."""

    def __init__(self, keys: Int64) -> None:
        self._keys = keys.copy()

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        key = self._keys[rows]
        self._keys[rows] = np.where(ways > 1, key // ways + devices, key)
        return np.where(ways > 1, key % ways, 0)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        return int(self.pick(np.array([row]), np.array([device]), np.array([ways]))[0])


class _Hashed:
    """By a hash of both ends and the device; see :func:`trine.cluster.routing.hashed`."""

    def __init__(self, near: Int64, far: Int64, names: Sequence[str], routing: str) -> None:
        self._near, self._far, self._names, self._routing = near, far, names, routing

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        return np.array(list(map(self.pick_one, rows.tolist(), devices.tolist(), ways.tolist())), np.int64)

    def pick_one(self, row: int, device: int, ways: int) -> int:
        if ways == 1:
            return 0
        names = self._names
        seed = hash_seed(names[int(self._near[row])], names[int(self._far[row])], self._routing)
        return mixed(seed << 32 | device) % ways
