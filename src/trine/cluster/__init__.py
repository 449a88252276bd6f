"""Clusters: devices, links, routes, topologies, presets."""

from trine.cluster.cluster import Cluster
from trine.cluster.load import load_cluster
from trine.cluster.parts import Circuits, Device, Fabric, Link
from trine.cluster.presets import LinkType, known_clusters, known_gpus, known_links, link_named, load_gpu
from trine.cluster.topologies import build_topology, known_topologies

__all__ = [
    "Circuits", "Cluster", "Device", "Fabric", "Link", "LinkType", "build_topology", "known_clusters", "known_gpus",
    "known_links", "known_topologies", "link_named", "load_cluster", "load_gpu",
]  # fmt: skip
