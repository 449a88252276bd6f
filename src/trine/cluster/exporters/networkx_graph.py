"""Clusters as networkx graphs and as GraphML. Needs networkx, which trine itself does not."""

from __future__ import annotations

from typing import Any

from trine.cluster.cluster import Cluster
from trine.cluster.exporters.pairs import refuse_circuits
from trine.errors import InputError


def to_networkx(cluster: Cluster) -> Any:
    """A ``networkx.MultiDiGraph``: a node a device, an edge a link.

    Node attributes: ``kind``, ``gpu``, ``node``, ``forwards``, ``reduces``, ``rail``; edge attributes: ``bandwidth``
    (bytes/s), ``latency`` (ps), ``class``, ``medium``, ``peak_bandwidth``. Attributes that are None are left out.
    The graph has the cluster's ``name``. :func:`trine.cluster.importers.from_networkx` is the inverse.

    Raises
    ------
    InputError: networkx is not installed.
    SpecError: a cluster with circuits.
    """
    refuse_circuits(cluster, "a graph")
    networkx = _networkx()
    graph = networkx.MultiDiGraph(name=cluster.name)
    for device in cluster.devices:
        attributes = {
            "kind": device.kind,
            "gpu": device.gpu,
            "node": device.node,
            "forwards": device.forwards,
            "reduces": device.reduces,
            "rail": device.rail,
        }
        graph.add_node(device.name, **_given(attributes))
    names = [device.name for device in cluster.devices]
    for link in cluster.links:
        attributes = {
            "bandwidth": link.bytes_per_s,
            "latency": link.latency_ps,
            "class": link.link_class,
            "medium": link.medium,
            "peak_bandwidth": link.peak_bytes_per_s,
        }
        graph.add_edge(names[link.source], names[link.target], key=link.name, **_given(attributes))
    return graph


def graphml_text(cluster: Cluster) -> str:
    """GraphML, which Gephi, yEd and others read; attributes as :func:`to_networkx` has them."""
    return "\n".join(_networkx().generate_graphml(to_networkx(cluster))) + "\n"


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise InputError("this needs networkx, which is not installed: pip install networkx") from None
    return networkx
