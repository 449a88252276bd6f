"""Clusters: devices, links, routes, topologies, presets."""

from trine.cluster.cluster import Cluster, Device, Link
from trine.cluster.gpus import known_gpus, load_gpu
from trine.cluster.presets import known_clusters, load_cluster
from trine.cluster.topologies import build_topology, known_topologies

__all__ = [
    "Cluster",
    "Device",
    "Link",
    "build_topology",
    "known_clusters",
    "known_gpus",
    "known_topologies",
    "load_cluster",
    "load_gpu",
]
