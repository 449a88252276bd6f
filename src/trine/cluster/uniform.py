"""Two uniform versions of a machine with a few slow or dead links.

One has no slow or dead links. The other degrades all links of the affected places in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.select import left_without
from trine.cluster.tables import LinkTable
from trine.common.arrays import Int64

#: Slow links count as faults, not as another kind of node, if the other links of the place are this many times more.
RARE = 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evened:
    """Two uniform machines. ``fast``: no link is slow. ``slow``: every place with slow links has the slowest's rate.

    links: int64[slow links], their numbers in ``fast``. num_slowed: number of slowed links in ``slow``. dead: int64,
    the numbers of dead links in ``fast``; num_dead: number of links missing from ``slow``.
    """

    fast: Cluster
    slow: Cluster
    links: Int64
    num_slowed: int
    dead: Int64
    num_dead: int


def evened(cluster: Cluster) -> Evened | None:
    """Return both uniform versions of the machine, or None if no link is dead or slower than most of its place.

    The place of a link is the pair of devices it joins within a node (``pcie0->nic0`` of any node), or their kinds
    outside nodes. Only links removed by :func:`trine.cluster.select.take_down` are dead, not links that never existed.
    """
    intact, dead = (cluster, np.zeros(0, np.int64)) if cluster.cut_from is None else cluster.cut_from
    if intact is not cluster:
        if not _is_left_of(cluster, intact, dead):
            return None
        intact = replace(intact, routing=cluster.routing, routing_reason=cluster.routing_reason)
    links = intact.link_table
    fast, slow = links.number.astype(np.int64), links.number.astype(np.int64)
    places = _places(intact, links)
    for place in _uneven(places, fast):
        of_place = np.flatnonzero(places == place)
        numbers, counts = np.unique(links.number[of_place], return_counts=True)
        usual = int(numbers[np.argmax(counts)])
        rare = [
            number
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
            if RARE * count <= int(counts.max()) and _is_slower(links, number, usual)
        ]
        if rare:
            slowest = min(rare, key=lambda number: links.numbers[number].bytes_per_s)
            fast[of_place[np.isin(fast[of_place], rare)]] = usual
            slow[of_place[np.isin(slow[of_place], [usual, *rare])]] = slowest
    changed = np.flatnonzero(fast != links.number)
    lost = np.flatnonzero(np.isin(places, places[dead]))
    if not len(changed) + len(dead) or _are_many(places, dead):
        return None
    slowed = _numbered(intact, slow)
    return Evened(
        fast=_numbered(intact, fast), slow=left_without(slowed, lost.tolist()) if len(lost) else slowed,
        links=changed, num_slowed=int((slow != fast).sum()), dead=dead, num_dead=len(lost),
    )  # fmt: skip


def _are_many(places: Int64, dead: Int64) -> bool:
    """Return whether some place has too few working links left relative to its dead ones."""
    all_of_place = np.bincount(places)
    num_dead = np.bincount(places[dead], minlength=len(all_of_place))
    return bool((RARE * num_dead > all_of_place - num_dead).any())


def _is_left_of(cluster: Cluster, intact: Cluster, dead: Int64) -> bool:
    """Return whether ``cluster`` is exactly ``intact`` without the dead links, removed in one step."""
    links, left = intact.link_table, cluster.link_table
    kept = np.delete(np.arange(len(links)), dead)
    return (
        intact.cut_from is None
        and len(left) == len(kept)
        and left.numbers == links.numbers
        and all(
            np.array_equal(getattr(left, name), getattr(links, name)[kept]) for name in ("source", "target", "number")
        )
    )


def _places(cluster: Cluster, links: LinkTable) -> Int64:
    """Return int64[links]: equal numbers for links of one place."""
    devices = cluster.device_table
    node = np.asarray(devices.node, np.int64)
    end = -1 - np.asarray(devices.kind, np.int64)
    in_node = np.flatnonzero(node >= 0)
    in_node = in_node[np.argsort(node[in_node], kind="stable")]
    firsts = np.flatnonzero(np.diff(node[in_node], prepend=-1))
    end[in_node] = np.arange(len(in_node)) - np.repeat(firsts, np.diff(np.append(firsts, len(in_node))))
    end -= end.min(initial=0)
    key = end[links.source] * (int(end.max(initial=0)) + 1) + end[links.target]
    places: Int64 = np.unique(key, return_inverse=True)[1].ravel().astype(np.int64)
    return places


def _uneven(places: Int64, number: Int64) -> list[int]:
    """Return the places whose links differ from each other."""
    greatest, least = np.full((2, int(places.max(initial=-1)) + 1), -1, np.int64)
    np.maximum.at(greatest, places, number)
    np.maximum.at(least, places, int(number.max(initial=0)) - number)
    uneven: list[int] = np.flatnonzero(greatest != int(number.max(initial=0)) - least).tolist()
    return uneven


def _is_slower(links: LinkTable, number: int, usual: int) -> bool:
    """Return whether a kind of link is the usual one at a lower rate."""
    link, usual_link = links.numbers[number], links.numbers[usual]
    return link.bytes_per_s < usual_link.bytes_per_s and replace(link, bytes_per_s=usual_link.bytes_per_s) == usual_link


def _numbered(cluster: Cluster, number: Int64) -> Cluster:
    return replace(cluster, links=replace(cluster.link_table, number=number.astype(np.int32)))
