"""Clusters: devices, links, routes, topologies, presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster
    from trine.cluster.load import load_cluster
    from trine.cluster.parts import Circuits, Device, Fabric, Link
    from trine.cluster.presets import LinkType, known_clusters, known_gpus, known_links, link_named, load_gpu
    from trine.cluster.topologies import build_topology, known_topologies

__all__ = [
    "Circuits", "Cluster", "Device", "Fabric", "Link", "LinkType", "build_topology", "known_clusters", "known_gpus",
    "known_links", "known_topologies", "link_named", "load_cluster", "load_gpu",
]  # fmt: skip

_HOMES = {
    "Cluster": "trine.cluster.cluster",
    "load_cluster": "trine.cluster.load",
    "build_topology": "trine.cluster.topologies",
    "known_topologies": "trine.cluster.topologies",
    **dict.fromkeys(("Circuits", "Device", "Fabric", "Link"), "trine.cluster.parts"),
    **dict.fromkeys(
        ("LinkType", "known_clusters", "known_gpus", "known_links", "link_named", "load_gpu"), "trine.cluster.presets"
    ),
}

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _HOMES)
