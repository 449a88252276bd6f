"""Clusters from other tools' files: InfraGraph, nvidia-smi, NCCL, lstopo, CSV, networkx (docs/formats/imports.md)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trine.cluster.cluster import Cluster
from trine.cluster.importers.detect import FORMATS, detect
from trine.errors import SpecError

if TYPE_CHECKING:
    from trine.cluster.importers.networkx_graph import from_networkx

__all__ = ["FORMATS", "detect", "from_networkx", "read_any"]


def read_any(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
    gpu: str | None = None,
    annotations: str | os.PathLike[str] | None = None,
    merge_switches: bool = False,
) -> Cluster:
    """Read a cluster from a file of any format that trine knows, told from its content.

    Parameters
    ----------
    format: one of :data:`FORMATS`, for a file whose content leaves doubt.
    links, links_from, gpu: numbers and GPU model where the file has none; see the readers.
    annotations, merge_switches: InfraGraph only.

    Raises
    ------
    SpecError: a format that is not known or not recognised, an option that the format does not take, and what the
        readers raise.
    """
    options = {"links": links, "links_from": links_from, "gpu": gpu}
    more = {"annotations": annotations, "merge_switches": merge_switches}
    with _no_collector():
        return _read(os.fspath(path), format, options, more)


def _read(file: str, format: str | None, options: dict[str, Any], more: dict[str, Any]) -> Cluster:
    kind, content = detect(file, format)
    given = next((name for name, value in more.items() if value), None)
    if kind != "infragraph" and given is not None:
        raise SpecError(f"goes with InfraGraph only, this is {kind}", file=file, field=given)
    if kind == "trine":
        given = next((name for name, value in options.items() if value), None)
        if given is not None:
            raise SpecError("a cluster file of trine says its own links and GPUs", file=file, field=given)
        return Cluster.from_yaml(file)
    if kind == "infragraph":
        from trine.cluster.importers.infragraph import infragraph_cluster

        return infragraph_cluster(content, file, **options, **more)
    return _reader(kind)(content, file, options["gpu"], options["links"], options["links_from"])


@contextmanager
def _no_collector() -> Iterator[None]:
    """Reading makes hundreds of thousands of small objects and no garbage; looking for it takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _reader(kind: str) -> Callable[[Any, str, str | None, Mapping[str, str] | None, str | None], Cluster]:
    if kind == "nvidia-smi":
        from trine.cluster.importers.nvidia_smi import nvidia_smi_cluster

        return nvidia_smi_cluster
    if kind == "nccl":
        from trine.cluster.importers.nccl_xml import nccl_xml_cluster

        return nccl_xml_cluster
    if kind == "lstopo":
        from trine.cluster.importers.lstopo import lstopo_cluster

        return lstopo_cluster
    if kind == "csv":
        from trine.cluster.importers.edge_list import edge_list_cluster

        return edge_list_cluster
    from trine.cluster.importers.networkx_graph import node_link_cluster

    return node_link_cluster


def __getattr__(name: str) -> object:
    if name == "from_networkx":
        from trine.cluster.importers.networkx_graph import from_networkx

        return from_networkx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
