"""What a library asks of many GPUs at once, and which nodes and GPUs are alike in everything that routes show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int64
from trine.cluster.parts import HOST_LINK, SCALE_UP
from trine.cluster.tables import LinkTable

if TYPE_CHECKING:
    from trine.cluster.routing.batch_routing import BatchRoutes
    from trine.cluster.tables import LinkedDevices, NodeBlock


@dataclass(frozen=True)
class NodeClasses:
    """Of one cluster; everything is worked out when it is first asked for."""

    cluster: LinkedDevices
    bulk: BatchRoutes | None

    @cached_property
    def has_scale_up(self) -> Bool:
        """bool[devices]: whether scale-up links start there."""
        links = self.cluster.link_table
        found = np.zeros(len(self.cluster.devices), np.bool_)
        found[links.source[links.of_class(SCALE_UP)]] = True
        return found

    @cached_property
    def is_reduced(self) -> Bool:
        """bool[devices]: whether all scale-up links that start there, and there are some, lead to what reduces."""
        links, devices = self.cluster.link_table, self.cluster.device_table
        reduces = np.array([what.reduces for what in devices.kinds], np.bool_)[devices.kind]
        found = self.has_scale_up.copy()
        found[links.source[links.of_class(SCALE_UP) & ~reduces[links.target]]] = False
        return found

    @cached_property
    def node_make(self) -> Int64 | None:
        """int64[devices]: equal for nodes built alike, the numbers of all their links included; -1: a fabric's switch.

        None where the cluster is not known to be made of nodes.
        """
        bulk = self.bulk
        if bulk is None:
            return None
        number, found, known = self.cluster.link_table.number, np.full(len(self.cluster.devices), -1, np.int64), 0
        first_of: dict[tuple[int, frozenset[int], bytes], int] = {}
        for block in bulk.layout.blocks:
            width = len(block.node.links)
            rows = number[block.first_link : block.first_link + width * block.count].reshape(block.count, width)
            rows = np.concatenate((rows, self._ends(block)), axis=1)
            make = np.zeros(block.count, np.int64)
            odd = np.flatnonzero((rows != rows[0]).any(axis=1))
            for copy in [0, *odd.tolist()]:
                key = (id(block.node), block.joined, rows[copy].tobytes())
                known = first_of.setdefault(key, len(first_of))
                make[copy if copy else slice(None)] = known
            local = np.arange(len(block.node.devices))
            found[block.devices(local, np.arange(block.count)[:, None])] = make[:, None]
        return found

    def _ends(self, block: NodeBlock) -> npt.NDArray[np.int32]:
        """int32[nodes, ends]: the numbers of the links between the NICs of each node and the fabric; -1: none."""
        clos = None if self.bulk is None else self.bulk.clos
        if clos is None or not block.joined:
            return np.zeros((block.count, 0), np.int32)
        nics = block.devices(np.array(sorted(block.joined)), np.arange(block.count)[:, None])
        number = self.cluster.link_table.number
        ends = [np.where(links[nics] < 0, -1, number[links[nics]]) for links in (clos.up, clos.down)]
        return np.concatenate(ends, axis=1).astype(np.int32)


def scale_up_components_of(cluster: LinkedDevices) -> Int64:
    """:attr:`trine.cluster.Cluster.scale_up_components`; those of a node are those of all nodes alike."""
    layout = cluster.device_table.layout
    if layout is None or layout is not cluster.link_table.layout:
        return _components(cluster.link_table, len(cluster.devices))
    found = np.arange(len(cluster.devices))
    for block in layout.blocks:
        local = np.arange(len(block.node.devices))
        roots = _components(block.node.link_table, len(local))
        copies = np.arange(block.count)[:, None]
        found[block.devices(local, copies)] = block.devices(roots, copies)
    return found


def _components(links: LinkTable, num_devices: int) -> Int64:
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
