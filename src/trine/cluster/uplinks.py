"""Traffic on links: the busiest link of each tier, and uplinks that carry more than their share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.data import SHORTEST, SPLIT
from trine.cluster.parts import NIC, SCALE_OUT, SCALE_UP
from trine.cluster.planes import idle_planes
from trine.cluster.routing.router import usual_routing
from trine.cluster.tiers import MAX_LEVELS, levels_above
from trine.common.arrays import Int32, Int64

#: trine warns about uplinks above this multiple of their even share.
CROWDED = 2.0
#: Maximum number of groups of uplinks to examine closely, those furthest above their share first.
LOOKED_AT = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowded:
    """An uplink (its link index) that carries ``times`` its even share among ``alike`` equivalent uplinks.

    ``share``: of the bytes of all of them, 0..1.
    """

    link: int
    times: float
    share: float
    alike: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TierLoad:
    """A tier with ``count`` used links, and the busiest of them: the link that needs the longest time at its rate."""

    tier: str
    count: int
    link: str
    size_bytes: int
    bytes_per_s: int


def busiest(cluster: Cluster, carried: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], tuple[TierLoad, ...]]:
    """Return the used links, busiest first (int64[...]), and the busiest link of each tier in the same order.

    carried: int64[links], bytes.
    """
    used = np.flatnonzero(carried)
    order = used[np.lexsort((used, -carried[used] / cluster.link_bytes_per_s[used]))]
    tiers = cluster.link_tiers
    _, first, count = np.unique(tiers.tier[order], return_index=True, return_counts=True)
    loads = [
        TierLoad(
            tier=tiers.names[tiers.tier[link]], count=number, link=cluster.link_name(link),
            size_bytes=int(carried[link]), bytes_per_s=int(cluster.link_bytes_per_s[link]),
        )
        for place, number in sorted(zip(first.tolist(), count.tolist(), strict=True))
        for link in [int(order[place])]
    ]  # fmt: skip
    return order, tuple(loads)


def crowded_uplinks(cluster: Cluster, carried: npt.NDArray[np.int64]) -> list[Crowded]:
    """Return the uplinks above CROWDED times their even share, worst first; one per group of equivalent uplinks.

    carried: int64[links], bytes. Uplinks are equivalent if they start at one device, have the same properties, and
    lead to switches with the same switches below. An even share is at least the traffic of any link from below, which
    may be a single message.
    """
    crowded: list[Crowded] = []
    for link_class in (SCALE_OUT, SCALE_UP):
        class_links = np.flatnonzero(cluster.link_table.of_class(link_class))
        if len(class_links):
            crowded += _Uplinks(cluster, class_links, link_class, carried).crowded()
    return sorted(crowded, key=lambda uplink: (-uplink.times, uplink.link))


class _Uplinks:
    """Links of one class that lead up from the GPUs or NICs."""

    def __init__(self, cluster: Cluster, class_links: Int64, link_class: str, carried: Int64) -> None:
        self._cluster, self._carried = cluster, carried
        self._level = levels_above(cluster.device_table, cluster.link_table, class_links, link_class)
        self._links = class_links
        self._into, self._targets = _sorted_by(cluster.link_table.target, class_links)
        self._outof, self._sources = _sorted_by(cluster.link_table.source, class_links)
        self._exits: dict[int, list[int]] = {}
        self._lower: dict[int, frozenset[int]] = {}

    def crowded(self) -> Iterator[Crowded]:
        """Yield the busiest of each group of equivalent uplinks if it carries too much."""
        links, level = self._cluster.link_table, self._level
        up = self._links[level[links.target[self._links]] > level[links.source[self._links]]]
        key = links.source[up].astype(np.int64) * len(links.numbers) + links.number[up]
        _, group, count = np.unique(key, return_inverse=True, return_counts=True)
        group, start = group.ravel(), np.cumsum(count) - count
        members = up[np.argsort(group, kind="stable")]
        total = np.zeros(len(count), np.int64)
        np.add.at(total, group, self._carried[up])
        times = self._carried[up] * count[group] / np.maximum(total, 1)[group]
        order = np.lexsort((up, -times))
        worst = order[times[order] > CROWDED]
        _, first = np.unique(group[worst], return_index=True)  # the busiest uplink of each group
        for place in worst[np.sort(first)][:LOOKED_AT].tolist():
            number = int(group[place])
            alike = members[start[number] : start[number] + count[number]].tolist()
            crowded = self._compare_with_equivalents(int(up[place]), alike)
            if crowded is not None:
                yield crowded

    def _compare_with_equivalents(self, link: int, group: list[int]) -> Crowded | None:
        """Compare ``link`` with its equivalents in ``group``; return None if it carries no more than it must."""
        source, carried = int(self._cluster.link_table.source[link]), self._carried
        # Bytes of the links from below that carry traffic
        links, level = self._cluster.link_table, self._level
        ends = np.array((source, source + 1), self._targets.dtype)  # another dtype would copy all targets
        first, last = np.searchsorted(self._targets, ends)
        into = self._into[first:last]
        into = into[level[links.source[into]] < level[source]]
        brings = [size for size in self._carried[into].tolist() if size]
        if carried[link] <= CROWDED * max(brings, default=1):
            return None
        below = self._below(link)
        if below:
            alike = [uplink for uplink in group if self._below(uplink) == below]
        else:
            alike = []
        total = int(carried[alike].sum())
        senders = len(brings) if self._level[source] else len(alike)
        even = max(total / max(1, min(len(alike), senders)), *brings, 1)
        if len(alike) < 2 or carried[link] <= CROWDED * even:
            return None
        return Crowded(
            link=link, times=float(carried[link]) / even, share=float(carried[link]) / total, alike=len(alike)
        )

    def _below(self, link: int) -> frozenset[int]:
        """Return the devices below an uplink's target, past the ports between; empty if it leads to an end."""
        links = self._cluster.link_table
        top = self._past_ports(int(links.source[link]), int(links.target[link]))
        if top not in self._lower:
            lower = [end for end in self._next(top) if self._level[end] < self._level[top]]
            if self._level[top]:
                ends = frozenset(self._past_ports(top, end) for end in lower)
            else:
                ends = frozenset()
            self._lower[top] = ends
        return self._lower[top]

    def _past_ports(self, origin: int, device: int) -> int:
        for _ in range(MAX_LEVELS):
            ends = self._next(device)
            if not self._level[device] or len(ends) != 2 or origin not in ends:
                break
            origin, device = device, ends[ends[0] == origin]
        return device

    def _next(self, device: int) -> list[int]:
        if device not in self._exits:
            first, last = np.searchsorted(self._sources, (device, device + 1))
            ends = self._cluster.link_table.target[self._outof[first:last]]
            self._exits[device] = list(dict.fromkeys(ends.tolist()))
        return self._exits[device]


def _sorted_by(ends: Int32, links: Int64) -> tuple[Int64, Int32]:
    """Return ``links`` sorted by an end, and this end of each."""
    order = np.argsort(ends[links], kind="stable")
    return links[order], ends[links][order]


def traffic_warnings(cluster: Cluster, carried: npt.NDArray[np.int64]) -> list[str]:
    """Return a sentence for crowded uplinks, for idle parallel switches and for idle NICs.

    carried: int64[links], bytes.
    """
    crowded, planes, nics = crowded_warning(cluster, carried), idle_planes(cluster), idle_nics(cluster, carried)
    return [f"{kind}: {text}" for kind, text in (("uplinks", crowded), ("planes", planes), ("NICs", nics)) if text]


def idle_nics(cluster: Cluster, carried: npt.NDArray[np.int64]) -> str:
    """Return a sentence if NICs of a node carry nothing although NICs of the same node carry messages, else "".

    carried: int64[links], bytes.
    """
    links, devices = cluster.link_table, cluster.device_table
    is_nic, outer = devices.where(NIC), links.of_class(SCALE_OUT)
    leaves = outer & is_nic[links.source]
    is_busy, is_joined = np.zeros((2, len(is_nic)), np.bool_)
    is_busy[links.source[leaves & (carried > 0)]] = is_joined[links.source[leaves]] = True
    place = devices.node + 1  # 0: outside all nodes
    gpus_of = np.bincount(place[np.array(cluster.gpus, np.int64)], minlength=int(place.max(initial=1)) + 1)
    nics_of = np.bincount(place[is_joined], minlength=len(gpus_of))
    busy_of = np.bincount(place[is_busy], minlength=len(gpus_of))
    idle = np.flatnonzero(is_joined & ~is_busy & ((busy_of > 0) & (nics_of > gpus_of))[place])
    if not len(idle):
        return ""
    return (
        f"{cluster.device_name(int(idle[0]))}{f' and {len(idle) - 1} more' if len(idle) > 1 else ''} carry nothing: "
        f"each GPU uses one NIC, and these nodes have more NICs than GPUs"
    )


def crowded_warning(cluster: Cluster, carried: npt.NDArray[np.int64]) -> str:
    """Return a sentence about :func:`crowded_uplinks`, with the remedy; "" without crowded uplinks."""
    crowded = crowded_uplinks(cluster, carried)
    if not crowded:
        return ""
    worst = crowded[0]
    more = len({int(cluster.link_table.source[uplink.link]) for uplink in crowded}) - 1
    least = "at least " if len(crowded) >= LOOKED_AT else ""
    if more:
        more_uplinks = f" (as do uplinks of {least}{more} other device{'s' if more > 1 else ''})"
    else:
        more_uplinks = ""
    usual = usual_routing(cluster)[0] if cluster.routing == SHORTEST else SHORTEST
    remedy = f"--routing {usual} deals targets out over them, " if usual != SHORTEST else ""
    return (
        f"{cluster.link_name(worst.link)} carries {worst.times:.1f} times its even share: {100 * worst.share:.0f} % of "
        f"the traffic of {worst.alike} equal uplinks{more_uplinks}, since routing is {cluster.routing!r}; "
        f"{remedy}--routing {SPLIT} divides each message over all of them"
    )
