"""Routes through leaf switches and the levels above them, in closed form and for many messages at once.

Between ports of one leaf a message passes only that leaf. Otherwise it goes up to a spine, to an aggregation switch
(within a pod) or to a core switch (between pods), and down in the same way. All these routes are shortest. The policy
chooses among them from the target's end, as in :meth:`trine.cluster.routing.shortest.ShortestRoutes.one_of`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trine.cluster.tables import Clos, LinkTable
from trine.common.arrays import Bool, Int64, distinct

#: Links of the longest route: up to a leaf, an aggregation switch and a core switch, and down.
LONGEST = 6


class PathChoice(Protocol):
    """A policy's choice among equally short paths, for some messages; called from the target's end backwards."""

    def pick(self, rows: Int64, devices: Int64, ways: Int64) -> Int64:
        """Return int64[rows]: the index, below ``ways``, of the path into ``devices`` that each message takes."""

    def pick_one(self, row: int, device: int, ways: int) -> int:
        """Return the choice for one message."""


class ClosRoutes:
    """Routes between the ports of a fabric; they avoid missing links."""

    def __init__(self, clos: Clos, links: LinkTable, first_link: int, num_devices: int) -> None:
        """Index the fabric's links. ``first_link``: the fabric's first link; ``num_devices``: of the machine."""
        self.leaves = np.array(clos.leaves, np.int64)
        self._per_pod = clos.per_pod or len(self.leaves)
        pods = np.arange(len(self.leaves)) // self._per_pod
        self._above = np.array(clos.aggregations or [clos.spines], np.int64)  # [pods, a]
        cores = np.array(clos.cores, np.int64)[None] if clos.cores else np.zeros((1, self._above.shape[1], 0), np.int64)
        switches = np.concatenate((self.leaves, self._above.ravel(), cores.ravel()))
        find = _Finder(links, first_link, num_devices, switches)
        self.is_even = find.is_even
        self._attach(find, num_devices)
        self._rise = find(self.leaves[:, None], self._above[pods])  # [leaves, a]
        self._fall = find(self._above[pods], self.leaves[:, None])
        self._rise2 = find(self._above[:, :, None], cores)  # [pods, a, c]
        self._fall2 = find(cores, self._above[:, :, None])
        self._whole_leaf = np.all(self._rise >= 0, axis=1) & np.all(self._fall >= 0, axis=1)
        self._whole_pod = np.all(self._rise2 >= 0, axis=(1, 2)) & np.all(self._fall2 >= 0, axis=(1, 2))

    def _attach(self, find: _Finder, num_devices: int) -> None:
        """Set the leaf of each port, the links to and from it, and its position among the ports below its leaf."""
        place = np.full(num_devices, -1, np.int64)
        place[self.leaves] = np.arange(len(self.leaves))
        source, target, link = find.ends
        self.leaf, self.up, self.down, self.port = (np.full(num_devices, -1, np.int64) for _ in range(4))
        falls = (place[source] >= 0) & ~find.is_switch[target]
        self.leaf[target[falls]], self.down[target[falls]] = place[source[falls]], link[falls]
        rises = (place[target] >= 0) & ~find.is_switch[source]
        self.leaf[source[rises]], self.up[source[rises]] = place[target[rises]], link[rises]
        ports = np.flatnonzero(self.down >= 0)
        order = ports[np.argsort(self.leaf[ports], kind="stable")]
        first = np.searchsorted(self.leaf[order], self.leaf[order])
        self.port[order] = np.arange(len(order)) - first

    def routes(self, source_ports: Int64, target_ports: Int64, choice: PathChoice) -> tuple[Int64, Int64]:
        """Return (links int64[m, LONGEST], -1 after the last; their number int64[m], -1 if this finds no route).

        ``source_ports``, ``target_ports``: int64[m], ports, of the messages of ``choice`` in order.
        """
        links = np.full((len(source_ports), LONGEST), -1, np.int64)
        count = np.full(len(source_ports), -1, np.int64)
        up, down = self.up[source_ports], self.down[target_ports]
        source, target = self.leaf[source_ports], self.leaf[target_ports]
        is_connected = (up >= 0) & (down >= 0)
        share_leaf = is_connected & (source == target)
        links[share_leaf, 0], links[share_leaf, 1], count[share_leaf] = up[share_leaf], down[share_leaf], 2
        apart = np.flatnonzero(is_connected & (source != target))
        leaves_intact = self._whole_leaf[source[apart]] & self._whole_leaf[target[apart]]
        pods_intact = self._whole_pod[source[apart] // self._per_pod] & self._whole_pod[target[apart] // self._per_pod]
        usual = apart[leaves_intact & pods_intact] if self._above.size else apart[:0]
        if len(usual):
            middle = self._between(source[usual], target[usual], choice, usual)
            self._fill(links, count, usual, up, down, middle)
        for pair in apart[~(leaves_intact & pods_intact)].tolist() if self._above.size else []:
            middle_links = self._around(int(source[pair]), int(target[pair]), choice, pair)
            if middle_links is not None:
                self._fill(links, count, np.array([pair]), up, down, np.array([middle_links]))
        return links, count

    @property
    def num_pods(self) -> int:
        """Number of pods; leaves of different pods meet in core switches."""
        return len(self._rise2)

    @property
    def chooses(self) -> bool:
        """True if some leaves have several paths between them."""
        return bool(self._above.shape[1] > 1 or self._rise2.shape[2] > 1)

    @cached_property
    def deals_as_searched(self) -> bool:
        """True if port positions are those below their leaf. The search treats a leaf between two devices as a port.

        See :meth:`trine.cluster.routing.shortest.ShortestRoutes.port_of`. Positions matter only for a choice of paths.
        """
        ports = np.bincount(self.leaf[self.down >= 0], minlength=len(self.leaves))
        return not (self.chooses and bool(((ports + (self._rise >= 0).sum(axis=1)) <= 2).any()))

    def pod(self, leaf: Int64) -> Int64:
        """Return the pod of each leaf, by the leaf's position."""
        return leaf // self._per_pod

    def dealt(self, ports: Int64) -> tuple[Int64, Int64]:
        """Return (switch above the leaf, core) of messages to these ports if the port's position decides."""
        width, cores = self._rise2.shape[1:]
        key = np.maximum(self.port[ports], 0)
        above = key % width if width > 1 else np.zeros_like(key)
        key = key // width + self.leaves[self.leaf[ports]] if width > 1 else key
        return above, above * (cores + 1) + (key % cores if cores > 1 else 0)

    def is_odd(self, leaf: Int64, number: npt.NDArray[np.int32]) -> Bool:
        """Return bool, shaped like ``leaf``: whether links above it or its pod are missing or differ from the others.

        ``number``: int32[links], equal for links of equal bandwidth and latency.
        """
        leaves = _unlike(self._rise, self._fall, number)
        pods = _unlike(self._rise2, self._fall2, number)
        odd: Bool = leaves[leaf] | pods[leaf // self._per_pod]
        return odd

    def has_ways(self, source_ports: Int64, target_ports: Int64) -> Bool:
        """Return bool[m]: whether a message may have several equally short paths."""
        source, target = self.leaf[source_ports], self.leaf[target_ports]
        other_pod = source // self._per_pod != target // self._per_pod
        several: Bool = (source != target) & ((self._above.shape[1] > 1) | (other_pod & (self._rise2.shape[2] > 1)))
        return several

    @staticmethod
    def _fill(links: Int64, count: Int64, rows: Int64, up: Int64, down: Int64, middle: Int64) -> None:
        """Fill in routes. ``middle``: int64[rows, 4]; if two links join the leaves, the second and third are -1."""
        far = middle[:, 1] >= 0
        links[rows, 0] = up[rows]
        links[rows, 1] = middle[:, 0]
        links[rows, 2] = np.where(far, middle[:, 1], middle[:, 3])
        links[rows, 3] = np.where(far, middle[:, 2], down[rows])
        links[rows, 4] = np.where(far, middle[:, 3], -1)
        links[rows, 5] = np.where(far, down[rows], -1)
        count[rows] = np.where(far, 6, 4)

    def _between(self, source: Int64, target: Int64, choice: PathChoice, rows: Int64) -> Int64:
        """Return ``middle`` of :meth:`_fill`, int64[m, 4], between different leaves without missing links."""
        width, cores = self._rise2.shape[1:]
        above = choice.pick(rows, self.leaves[target], np.full(len(rows), width))
        links = np.full((len(rows), 4), -1, np.int64)
        links[:, 0], links[:, 3] = self._rise[source, above], self._fall[target, above]
        source_pod, target_pod = source // self._per_pod, target // self._per_pod
        far = np.flatnonzero(source_pod != target_pod)
        if len(far):
            a, source_pod, target_pod = above[far], source_pod[far], target_pod[far]
            core = choice.pick(rows[far], self._above[target_pod, a], np.full(len(far), cores))
            links[far, 1], links[far, 2] = self._rise2[source_pod, a, core], self._fall2[target_pod, a, core]
        return links

    def _around(self, source: int, target: int, choice: PathChoice, row: int) -> tuple[int, int, int, int] | None:
        """Return one row of :meth:`_between` that avoids missing links, or None if no path of this length remains."""
        source_pod, target_pod = source // self._per_pod, target // self._per_pod
        open_above = (self._rise[source] >= 0) & (self._fall[target] >= 0)
        open_core = (self._rise2[source_pod] >= 0) & (self._fall2[target_pod] >= 0)
        if source_pod != target_pod:
            open_above &= open_core.any(1)
        ways = np.flatnonzero(open_above)
        if not len(ways):
            return None
        above = int(ways[choice.pick_one(row, int(self.leaves[target]), len(ways))])
        second = third = -1
        if source_pod != target_pod:
            cores = np.flatnonzero(open_core[above])
            core = int(cores[choice.pick_one(row, int(self._above[target_pod, above]), len(cores))])
            second, third = int(self._rise2[source_pod, above, core]), int(self._fall2[target_pod, above, core])
        return int(self._rise[source, above]), second, third, int(self._fall[target, above])


def _unlike(up: Int64, down: Int64, number: npt.NDArray[np.int32]) -> Bool:
    """Return bool[rows]: whether a row of links has a missing link, or one of another kind than most links."""
    if not up.size:
        return np.zeros(len(up), np.bool_)
    kinds = np.stack([np.where(links < 0, -1, number[links]).reshape(len(links), -1) for links in (up, down)])
    usual = np.bincount(kinds.ravel() + 1).argmax() - 1
    odd: Bool = (kinds != usual).any(axis=(0, 2)) | (kinds < 0).any(axis=(0, 2))
    return odd


class _Finder:
    """Index of the fabric's link numbers by their ends."""

    def __init__(self, links: LinkTable, first: int, num_devices: int, switches: Int64) -> None:
        source, target = links.source[first:].astype(np.int64), links.target[first:].astype(np.int64)
        key = source * num_devices + target
        order = np.argsort(key, kind="stable")
        self._keys, self._links, self._size = key[order], order + first, num_devices
        self.ends = source, target, np.arange(len(key)) + first
        self.is_switch = np.zeros(num_devices, np.bool_)
        self.is_switch[switches] = True
        trunk = self.is_switch[source] & self.is_switch[target]
        latency_ps = distinct(links.latency_ps[first:][trunk])
        #: True if paths with equally many links have the same latency, and no links are parallel.
        self.is_even = len(latency_ps) <= 1 and not bool(np.any(self._keys[1:] == self._keys[:-1]))

    def __call__(self, source: Int64, target: Int64) -> Int64:
        """Return int64[...]: the link from each source to each target (broadcast), -1 if missing."""
        key = source * self._size + target
        if not len(self._keys):
            return np.full(key.shape, -1, np.int64)
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[place] == key, self._links[place], -1)
