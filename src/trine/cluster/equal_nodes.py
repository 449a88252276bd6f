"""Equal nodes on one switch: any exchange of two of them maps every route to a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.data import SHORTEST
from trine.cluster.tables import NodeBlock
from trine.common.arrays import Int32, Int64

if TYPE_CHECKING:
    from trine.cluster.routing.batch_routing import BatchRoutes


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualNodes:
    """``count`` equal nodes of ``num_gpus`` GPUs, joined by one switch.

    num_links: links inside a node. fabric_link: the first link between a node and the switch. num_fabric_links: of
    these, per node. Links inside nodes come first, node by node, then the links of the fabric, node by node.
    """

    count: int
    num_gpus: int
    num_links: int
    fabric_link: int
    num_fabric_links: int

    def nodes_of(self, links: npt.NDArray[np.integer]) -> Int64:
        """Return the node of each link: int64[links]."""
        wide = links.astype(np.int64)
        return np.where(
            wide < self.fabric_link, wide // self.num_links, (wide - self.fabric_link) // self.num_fabric_links
        )

    def moved_links(self, links: npt.NDArray[np.integer], nodes: Int64) -> Int64:
        """Return the link in the same place of ``nodes``, one for each link: int64[links]."""
        step = np.where(links < self.fabric_link, self.num_links, self.num_fabric_links)
        moved: Int64 = links + (nodes - self.nodes_of(links)) * step
        return moved


def equal_nodes(cluster: Cluster, devices: Int64) -> EqualNodes | None:
    """Return the nodes of ``devices`` if ranks fill equal nodes in order and one switch joins them, else None.

    devices: int64[ranks], the GPU of each rank.
    """
    bulk = cluster.node_classes.bulk
    if bulk is None or bulk.policy != SHORTEST or cluster.cut_from is not None or cluster.circuits is not None:
        return None
    layout, clos = bulk.layout, bulk.clos
    if len(layout.blocks) != 1 or layout.trimmed or layout.clos is None or clos is None or not clos.is_even:
        return None
    block, num_links = layout.blocks[0], len(cluster.link_table)
    num_gpus, num_fabric_links = len(block.node.gpus), num_links - layout.fabric_link
    if len(layout.clos.leaves) != 1 or block.first_link or num_fabric_links % block.count:
        return None
    if len(devices) % num_gpus or not np.array_equal(devices, np.arange(len(devices)) + block.first_gpu):
        return None
    nodes = EqualNodes(
        count=block.count,
        num_gpus=num_gpus,
        num_links=len(block.node.links),
        fabric_link=layout.fabric_link,
        num_fabric_links=num_fabric_links // block.count,
    )
    if nodes.num_links * nodes.count != layout.fabric_link:
        return None
    if not (_are_equal(cluster, nodes) and _are_joined_alike(cluster, nodes, block) and _routes_repeat(bulk, block)):
        return None
    return nodes


def _are_equal(cluster: Cluster, nodes: EqualNodes) -> bool:
    """Return whether links in one place of all nodes have the same parameters."""
    number = cluster.link_table.number
    inner, outer = _rows(number, nodes)
    return bool((inner == inner[0]).all() and (outer == outer[0]).all())


def _rows(column: Int32, nodes: EqualNodes) -> tuple[Int32, Int32]:
    """Return a column of all links as int32[nodes, links inside a node] and int32[nodes, fabric links of a node]."""
    inner, outer = column[: nodes.fabric_link], column[nodes.fabric_link :]
    return inner.reshape(nodes.count, -1), outer.reshape(nodes.count, -1)


def _are_joined_alike(cluster: Cluster, nodes: EqualNodes, block: NodeBlock) -> bool:
    """Return whether each node has the same fabric links, to the switch from the same devices of the node."""
    copies = np.arange(nodes.count)[:, None]
    for ends in (cluster.link_table.source, cluster.link_table.target):
        rows = _rows(ends, nodes)[1]
        places = cluster.link_table.layout.places(rows[0].astype(np.int64)) if cluster.link_table.layout else None
        if places is None:
            return False
        is_switch = places.block < 0
        expected = block.devices(np.where(is_switch, 0, places.local), copies)
        if not (np.where(is_switch, rows[0], expected) == rows).all():
            return False
    return True


def _routes_repeat(bulk: BatchRoutes, block: NodeBlock) -> bool:
    """Return whether all routes come from the first node's routes, shifted: no pair of GPUs needs a search."""
    gpus = block.devices(np.arange(len(block.node.gpus)), np.zeros(1, np.int64))
    hosts = bulk.hosts_of(gpus)
    if hosts is None:
        return False
    ends = np.concatenate([gpus, block.devices(np.arange(len(block.node.gpus)), np.ones(1, np.int64))])
    if block.count == 1:
        ends = gpus
    sources, targets = np.repeat(ends, len(ends)), np.tile(ends, len(ends))
    with_host = hosts >= 0
    sources = np.concatenate([sources, hosts[with_host], gpus[with_host]])
    targets = np.concatenate([targets, gpus[with_host], hosts[with_host]])
    return len(bulk.routes(sources, targets).unrouted) == 0
