"""Tiers of links, from the GPUs up:

``gpu-nvswitch``, ``nic-leaf``, ``leaf-spine``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trine.cluster.parts import GPU, LINK_CLASSES, NIC, SCALE_OUT
from trine.cluster.tables import DeviceTable, LinkedDevices, LinkTable
from trine.common.arrays import Int32, Int64, counted_codes

#: Maximum number of distinct switch levels above the GPUs.
MAX_LEVELS = 64
_NUMBER = re.compile(r"[_-]?\d+$")
#: Parts of a switch's name that only number it.
_PLACE = re.compile(r"(rail)?\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """Tier names, and the tier of each link. ``tier``: int32[links], index into ``names``."""

    names: tuple[str, ...]
    tier: Int32


def tiers_of(cluster: LinkedDevices) -> Tiers:
    """Group links into tiers: same class, same kinds of device at the same levels, in either direction."""
    devices, links = cluster.device_table, cluster.link_table
    kind_names = sorted({device_kind.kind for device_kind in devices.kinds})
    kind = np.array([kind_names.index(device_kind.kind) for device_kind in devices.kinds], np.int64)[devices.kind]
    key = np.zeros(len(links), np.int64)
    for number, link_class in enumerate(LINK_CLASSES):
        class_links = np.flatnonzero(links.of_class(link_class))
        level = levels_above(devices, links, class_links, link_class)
        end = level * len(kind_names) + kind
        ends = end[links.source[class_links]], end[links.target[class_links]]
        size = (MAX_LEVELS + 1) * len(kind_names)
        key[class_links] = (number * size + np.minimum(*ends)) * size + np.maximum(*ends)
    keys = counted_codes(key)
    names = [_tier_name(cluster, link) for link in keys.first.tolist()]
    highest = keys.values % ((MAX_LEVELS + 1) * len(kind_names)) // len(kind_names)
    names = [
        f"{name} (level {level})" if names.count(name) > 1 else name
        for name, level in zip(names, highest.tolist(), strict=True)
    ]
    return Tiers(names=tuple(names), tier=keys.place)


def levels_above(devices: DeviceTable, links: LinkTable, class_links: Int64, link_class: str) -> Int64:
    """Return int64[devices]: links of one class from the nearest GPU (scale-out: GPU or NIC); MAX_LEVELS: farther."""
    level = np.full(len(devices), MAX_LEVELS, np.int64)
    level[devices.where(GPU, NIC) if link_class == SCALE_OUT else devices.where(GPU)] = 0
    source, target = links.source[class_links], links.target[class_links]
    for above in range(1, MAX_LEVELS):
        reached = target[level[source] == above - 1]
        reached = reached[level[reached] == MAX_LEVELS]
        if not len(reached):
            break
        level[reached] = above
    return level


def _tier_name(cluster: LinkedDevices, link: int) -> str:
    """Return a tier's name from the two ends of one of its links, the end nearer to the GPUs first."""
    links = cluster.link_table
    ends = [int(links.source[link]), int(links.target[link])]
    order = {GPU: 0, NIC: 1}
    kinds = cluster.device_table.kinds
    ends.sort(key=lambda end: (order.get(kinds[cluster.device_table.kind[end]].kind, 2), end))
    return "-".join(_role(cluster, end) for end in ends)


def _role(cluster: LinkedDevices, device: int) -> str:
    """Return ``gpu``, ``nic``, or a name without numbers: ``leaf`` for ``leaf3``, ``pcie`` for ``node1.pcie0``."""
    end = cluster.devices[device]
    if end.kind in (GPU, NIC):
        return end.kind
    name = (end.name.removeprefix(f"{end.node}.") if end.node else end.name).partition("..")[0]
    parts = [part for part in name.split(".") if not _PLACE.fullmatch(part)]
    if len(parts) <= 1:
        return _NUMBER.sub("", "".join(parts)) or end.kind
    return ".".join(re.sub(r"(?<=[A-Za-z])\d+$", "", part) for part in parts)


def joined_sets(size: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each of ``size`` indices the representative of its set; a pair joins the sets of its two ends."""
    parent = list(range(size))

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for a, b in pairs:
        parent[find(a)] = find(b)
    return [find(index) for index in range(size)]
