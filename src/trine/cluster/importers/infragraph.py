"""InfraGraph files (docs/formats/infragraph.md): infrastructures, single devices, and rank annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.cluster.importers.choices import LinkChoices
from trine.cluster.importers.infragraph_parts import MARK, edge_wires, node_devices, own_part
from trine.cluster.importers.infragraph_restore import restored
from trine.cluster.importers.wiring import assemble, merge_parallel_switches
from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.importers.infragraph_schema import InfrastructureFile


def read_infragraph(
    path: str | os.PathLike[str],
    *,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
    annotations: str | os.PathLike[str] | None = None,
    gpu: str | None = None,
    merge_switches: bool = False,
) -> Cluster:
    """Read an InfraGraph infrastructure, or a single device of it, from YAML or JSON.

    Parameters
    ----------
    links: numbers for links whose file has none: the link's name, or ``device.link``, to a catalogue entry
        (``"nvlink4"``, ``"nvlink4*2"``) or ``"BANDWIDTH, LATENCY"``.
    links_from: ``"catalogue"`` lets the names and descriptions of the other links choose their entries.
    annotations: an annotation file; ``rank`` orders the GPUs. Others are named in the cluster's notes.
    gpu: the GPU model of all ``xpu`` components.
    merge_switches: make one switch of those that join the same GPUs.

    Raises
    ------
    SpecError: not the format; an unknown name or index; links without numbers, listed with what supplies them.
    """
    from trine.spec import load_mapping

    return infragraph_cluster(
        load_mapping(path), os.fspath(path), links, links_from, annotations, gpu, merge_switches=merge_switches
    )


def infragraph_cluster(
    data: object,
    file: str,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
    annotations: str | os.PathLike[str] | None = None,
    gpu: str | None = None,
    *,
    merge_switches: bool = False,
) -> Cluster:
    """As :func:`read_infragraph`, from plain data."""
    from trine.cluster.importers.infragraph_expand import expand
    from trine.cluster.importers.infragraph_schema import OwnFile

    if links_from not in (None, "catalogue"):
        raise SpecError(f"must be 'catalogue', got {links_from!r}", field="links_from")
    data, inside = _parts(data, file)
    spec = _infrastructure(data, file)
    expanded = expand(spec, file)
    devices = node_devices(expanded, spec, gpu, file)
    choices = LinkChoices(given=links or {}, from_catalogue=links_from is not None)
    wires = edge_wires(expanded, devices, choices, file)
    sources = {"links": f"{Path(file).name}, bandwidths taken as what transfers reach in each direction"}
    notes = [spec.description] if spec.description and not spec.description.startswith(MARK) else []
    notes.extend(expanded.notes)
    own = own_part(spec.description, OwnFile, file)
    if annotations is not None or inside is not None:
        from trine.cluster.importers.infragraph_annotations import apply_annotations, read_annotations

        spoken = read_annotations(file if annotations is None else annotations, inside if annotations is None else None)
        devices, wires, unused = apply_annotations(*spoken, expanded, devices, wires)
        notes.extend(unused)
    merged, fewer, gone = merge_parallel_switches(devices, wires)
    if merge_switches:
        devices, wires = merged, fewer
        notes.append(f"{gone} switches merged into others that join the same devices; their bandwidths add up")
    elif gone:
        notes.append(
            "several switches join the same GPUs, and a route crosses one of them: --merge-switches "
            "(merge_switches=True) makes one of each group, or route with 'ecmp-split'"
        )
    cluster = assemble(
        spec.name or Path(file).stem, devices, wires, file=file, sources={**sources, **choices.used}, notes=notes,
        says_who_forwards=own is not None,
    )  # fmt: skip
    return cluster if own is None else restored(cluster, own, file)


def _parts(data: object, file: str) -> tuple[object, object]:
    """The infrastructure, and the annotations that the library writes beside it in one file, if it is that."""
    if not isinstance(data, dict) or "infrastructure" not in data:
        return data, None
    for key in data:
        if key not in ("infrastructure", "annotations"):
            raise SpecError(f"unknown key {key!r}{nearest(str(key), ('infrastructure', 'annotations'))}", file=file)
    return data["infrastructure"], data.get("annotations")


def _infrastructure(data: object, file: str) -> InfrastructureFile:
    """The file's model; a device alone becomes one instance of it."""
    from trine.cluster.importers.infragraph_schema import DeviceFile, InfrastructureFile
    from trine.spec import check

    if isinstance(data, dict) and "components" in data and "devices" not in data:
        device = check(DeviceFile, data, file)
        instance = {"name": device.name, "device": device.name, "count": 1}
        data = {"name": device.name, "devices": [data], "instances": [instance]}
    return check(InfrastructureFile, data, file)
