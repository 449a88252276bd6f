"""Which devices scale-up links join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.cluster.parts import HOST_LINK, SCALE_UP
from trine.cluster.tables import LinkTable

if TYPE_CHECKING:
    from trine.cluster.tables import Wiring


def islands_of(cluster: Wiring) -> Int64:
    """:attr:`trine.cluster.Cluster.islands`; those of a node are those of all nodes alike."""
    layout = cluster.device_table.layout
    if layout is None or layout is not cluster.link_table.layout:
        return _islands(cluster.link_table, len(cluster.devices))
    found = np.arange(len(cluster.devices))
    for block in layout.blocks:
        local = np.arange(len(block.node.devices))
        roots = _islands(block.node.link_table, len(local))
        copies = np.arange(block.count)[:, None]
        found[block.devices(local, copies)] = block.devices(roots, copies)
    return found


def _islands(links: LinkTable, num_devices: int) -> Int64:
    roots = list(range(num_devices))

    def find(device: int) -> int:
        while roots[device] != device:
            roots[device] = roots[roots[device]]
            device = roots[device]
        return device

    up = links.of_class(SCALE_UP)
    fast = np.zeros(num_devices, np.bool_)
    fast[links.source[up]] = True
    joins = np.flatnonzero(up | (links.of_class(HOST_LINK) & ~fast[links.source] & ~fast[links.target]))
    for source, target in zip(links.source[joins].tolist(), links.target[joins].tolist(), strict=True):
        roots[find(source)] = find(target)
    return np.array([find(device) for device in range(num_devices)], np.int64)
