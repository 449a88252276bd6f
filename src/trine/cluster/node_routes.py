"""Routes inside the nodes of a block, worked out once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.cluster.data import HASH, SHORTEST, SPLIT
from trine.cluster.routes import Routes
from trine.cluster.routing import Router, dealt, hash_seed, hashed
from trine.cluster.tables import Block

#: Which route is asked for: as near as it can be; over scale-up and host links; over scale-up links alone.
INSIDE, LEG, SCALE_UP = 0, 1, 2
#: Lengths of what is no route: there is none, or the policy divides messages over several.
NONE, SEVERAL = -1, -2
_UNKNOWN, _EACH = -1, -2


class NodeRoutes:
    """Routes between the devices of a node, as links of the node: those of row i are ``links[start[i]:][:length[i]]``.

    Where several are equal and the policy looks at the devices' numbers or names, each node has a row of its own.
    """

    def __init__(self, block: Block, policy: str, routing: str, names: Sequence[str], detour_ps: int) -> None:
        """``names``: of the machine's devices. ``detour_ps``: what leaving a node and coming back takes at least."""
        self._detour_ps = detour_ps
        self.block, self._policy, self._routing, self._names = block, policy, routing, names
        self._router = Router(block.node, policy, joined_nics=block.joined)
        self._size = len(block.node.devices)
        self._rows: dict[int, npt.NDArray[np.int32]] = {}
        self._own: dict[tuple[int, int, int], int] = {}
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
        """int64[devices]: the host of each GPU, -1: none; None where another node's, or another way, may be nearer."""
        hosts = self._router.hosts_by_node
        found = np.full(self._size, -1, np.int64)
        for gpu in range(len(self.block.node.gpus)):
            own = hosts.get(self._router.node_of[gpu])
            if own is None:
                return None
            host = self._router.node.nearest_of(gpu, own)
            if host is None or self._latency_ps(gpu, host) >= self._detour_ps:
                return None
            found[gpu] = self._router.memory_of(host)
        return found

    def _latency_ps(self, source: int, target: int) -> int:
        latency_ps = self.block.node.link_latency_ps
        return sum(int(latency_ps[link]) for link in self._router.node.route(source, target) or ())

    def rows(self, kind: int, sources: Int64, targets: Int64, copies: Int64) -> Int64:
        """int64[m]: rows of the routes between devices of the nodes ``copies`` of the block."""
        table = self._rows.get(kind)
        if table is None:
            table = self._rows[kind] = np.full(self._size * self._size, _UNKNOWN, np.int32)
        key = sources * self._size + targets
        found: Int64 = table[key].astype(np.int64)
        for one in np.unique(key[found == _UNKNOWN]).tolist():
            table[one] = self._find(kind, *divmod(one, self._size))
        found = table[key].astype(np.int64)
        each = np.flatnonzero(found == _EACH)
        for i, copy, one in zip(each.tolist(), copies[each].tolist(), key[each].tolist(), strict=True):
            own = (kind, copy, one)
            if own not in self._own:
                self._own[own] = self._find_own(kind, copy, *divmod(one, self._size))
            found[i] = self._own[own]
        return found

    @cached_property
    def is_closed(self) -> bool:
        """Whether all GPUs of a node reach each other inside it."""
        return NONE not in self._own_lengths

    @cached_property
    def is_uniform(self) -> bool:
        """Whether routes between GPUs and to their NICs are the same in all nodes of the block."""
        return not self._own and SEVERAL not in self._own_lengths

    @cached_property
    def _own_lengths(self) -> set[int]:
        """Lengths of the routes inside a node between its GPUs, and between them and their NICs."""
        gpus = np.arange(len(self.block.node.gpus))
        inside = self.rows(
            INSIDE, np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus)), np.zeros(len(gpus) ** 2, np.int64)
        )
        own = gpus[self.nic[gpus] >= 0]
        nics, copies = self.nic[own], np.zeros(len(own), np.int64)
        legs = np.concatenate((self.rows(LEG, own, nics, copies), self.rows(LEG, nics, own, copies)))
        lengths = self.columns()[2]
        return {*lengths[inside].tolist(), *lengths[legs][lengths[legs] == SEVERAL].tolist()}

    def columns(self) -> tuple[Int64, Int64, Int64]:
        """(links, start, length) of all rows so far, int64 each; a length may be :data:`NONE` or :data:`SEVERAL`."""
        return (np.array(self._links, np.int64), np.array(self._start, np.int64), np.array(self._length, np.int64))

    def peers(self, rail: int) -> Int64:
        """int64[devices]: for each GPU the one beside it whose NIC is on this rail; -1: none."""
        if rail not in self._peers:
            found = np.full(self._size, -1, np.int64)
            for gpu in range(len(self.block.node.gpus)):
                peer = self._router.peer_on(gpu, rail)
                found[gpu] = -1 if peer is None else peer
            self._peers[rail] = found
        return self._peers[rail]

    def _tier(self, kind: int, source: int, target: int) -> Routes | None:
        """The links that the message may take; None where they do not lead there."""
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
        asked: list[int] = []

        def choose(device: int, number: int) -> int:
            asked.append(device)
            return 0

        route = tier.one_of(source, target, choose)
        if not asked:
            return self._add(route or ())
        return self._add((), SEVERAL) if self._policy == SPLIT else _EACH

    def _find_own(self, kind: int, copy: int, source: int, target: int) -> int:
        """The choice of one node among routes that are equal."""
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
