"""Clusters in other tools' formats: InfraGraph, networkx, GraphML, CSV (docs/formats/imports.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trine.errors import SpecError, nearest
from trine.outputs import write_text

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster
    from trine.cluster.exporters.infragraph import to_infragraph
    from trine.cluster.exporters.networkx_graph import to_networkx

__all__ = ["FORMATS", "export_text", "to_infragraph", "to_networkx", "write_cluster"]

FORMATS = ("yaml", "infragraph", "csv", "graphml")


def export_text(cluster: Cluster, format: str, *, as_json: bool = False, lossy: bool = False) -> str:
    """A cluster as the text of a file.

    Parameters
    ----------
    format: one of :data:`FORMATS`.
    as_json: JSON instead of YAML, InfraGraph only.
    lossy: let InfraGraph make links whose two directions differ alike (the slower one counts).

    Raises
    ------
    SpecError: an unknown format, links that InfraGraph cannot say, or circuits in another format than YAML.
    """
    if format == "yaml":
        return cluster.to_yaml()
    if format == "infragraph":
        from trine.cluster.exporters.infragraph import infragraph_text

        return infragraph_text(cluster, as_json=as_json, lossy=lossy)
    if format == "csv":
        from trine.cluster.exporters.edge_list import edge_list_text

        return edge_list_text(cluster)
    if format == "graphml":
        from trine.cluster.exporters.networkx_graph import graphml_text

        return graphml_text(cluster)
    raise SpecError(f"unknown format {format!r}{nearest(format, FORMATS)}", field="format")


def write_cluster(cluster: Cluster, path: str | os.PathLike[str], format: str, *, lossy: bool = False) -> None:
    """Write a cluster to a file; a name that ends in .json makes InfraGraph JSON.

    Raises
    ------
    SpecError: as :func:`export_text`.
    InputError: the file cannot be written.
    """
    write_text(path, export_text(cluster, format, as_json=Path(path).suffix == ".json", lossy=lossy))


def __getattr__(name: str) -> object:
    if name == "to_infragraph":
        from trine.cluster.exporters.infragraph import to_infragraph

        return to_infragraph
    if name == "to_networkx":
        from trine.cluster.exporters.networkx_graph import to_networkx

        return to_networkx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
