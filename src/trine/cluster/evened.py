"""Two uniform versions of a machine with a few slow or dead links: one without slow or dead links, and one that
degrades all links of the affected places in the same way.
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
    whole, dead = (cluster, np.zeros(0, np.int64)) if cluster.cut_from is None else cluster.cut_from
    if whole is not cluster:
        if not _is_left_of(cluster, whole, dead):
            return None
        whole = replace(whole, routing=cluster.routing, routing_reason=cluster.routing_reason)
    links = whole.link_table
    fast, slow = links.number.astype(np.int64), links.number.astype(np.int64)
    places = _places(whole, links)
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
    slowed = _numbered(whole, slow)
    return Evened(
        fast=_numbered(whole, fast),
        slow=left_without(slowed, lost.tolist()) if len(lost) else slowed,
        links=changed,
        num_slowed=int((slow != fast).sum()),
        dead=dead,
        num_dead=len(lost),
    )


def _are_many(places: Int64, dead: Int64) -> bool:
    """Return whether some place has too few working links left relative to its dead ones."""
    all_of_place = np.bincount(places)
    num_dead = np.bincount(places[dead], minlength=len(all_of_place))
    return bool((RARE * num_dead > all_of_place - num_dead).any())


def _is_left_of(cluster: Cluster, whole: Cluster, dead: Int64) -> bool:
    """Return whether ``cluster`` is exactly ``whole`` without the dead links, removed in one step."""
    links, left = whole.link_table, cluster.link_table
    kept = np.delete(np.arange(len(links)), dead)
    return (
        whole.cut_from is None
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
    what = -1 - np.asarray(devices.kind, np.int64)
    inside = np.flatnonzero(node >= 0)
    inside = inside[np.argsort(node[inside], kind="stable")]
    begins = np.flatnonzero(np.diff(node[inside], prepend=-1))
    what[inside] = np.arange(len(inside)) - np.repeat(begins, np.diff(np.append(begins, len(inside))))
    what -= what.min(initial=0)
    key = what[links.source] * (int(what.max(initial=0)) + 1) + what[links.target]
    places: Int64 = np.unique(key, return_inverse=True)[1].ravel().astype(np.int64)
    return places


def _uneven(places: Int64, number: Int64) -> list[int]:
    """Return the places whose links differ from each other."""
    most, least = np.full((2, int(places.max(initial=-1)) + 1), -1, np.int64)
    np.maximum.at(most, places, number)
    np.maximum.at(least, places, int(number.max(initial=0)) - number)
    uneven: list[int] = np.flatnonzero(most != int(number.max(initial=0)) - least).tolist()
    return uneven


def _is_slower(links: LinkTable, number: int, usual: int) -> bool:
    """Return whether a kind of link is the usual one at a lower rate."""
    one, other = links.numbers[number], links.numbers[usual]
    return one.bytes_per_s < other.bytes_per_s and replace(one, bytes_per_s=other.bytes_per_s) == other


def _numbered(cluster: Cluster, number: Int64) -> Cluster:
    return replace(cluster, links=replace(cluster.link_table, number=number.astype(np.int32)))
