"""InfraGraph files (docs/formats/infragraph.md): infrastructures, single devices, and rank annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, Device, Fabric
from trine.errors import SpecError, nearest
from trine.formats.infragraph.parts import MARK, edge_wires, node_devices, own_part
from trine.formats.media import LinkChoices
from trine.formats.reader import assemble, merge_parallel_switches
from trine.units import whole_number

if TYPE_CHECKING:
    from trine.formats.infragraph.schema import InfrastructureFile, OwnFile


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
    """Read an InfraGraph infrastructure, or a single device of it, from plain data.

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
    from trine.formats.infragraph.expand import expand
    from trine.formats.infragraph.schema import OwnFile

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
        from trine.formats.infragraph.annotations import apply_annotations, read_annotations

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
    from trine.formats.infragraph.schema import DeviceFile, InfrastructureFile
    from trine.spec import check

    if isinstance(data, dict) and "components" in data and "devices" not in data:
        device = check(DeviceFile, data, file)
        instance = {"name": device.name, "device": device.name, "count": 1}
        data = {"name": device.name, "devices": [data], "instances": [instance]}
    return check(InfrastructureFile, data, file)


def restored(cluster: Cluster, own: OwnFile, file: str) -> Cluster:
    """The cluster that was exported.

    Raises
    ------
    SpecError: an order that is none, or values that a cluster refuses.
    """
    order = device_order(cluster.devices, own.devices, file)
    place = {old: new for new, old in enumerate(order)}
    links = [link.between(place[link.source], place[link.target], link.name) for link in cluster.links]
    if own.links is not None:
        _check_order(own.links, len(links), "links", file)
        links = [links[old] for old in own.links]
    for number, name in own.link_names.items():
        link = whole_number(number, most=len(links) - 1)
        if link is None:
            raise SpecError(f"names link {number!r}, there are {len(links)}", file=file)
        links[link] = replace(links[link], name=name)
    try:
        return replace(
            cluster,
            devices=tuple(cluster.devices[old] for old in order),
            links=tuple(links),
            evidence=own.evidence,
            sources=own.sources,
            notes=own.notes,
            library=own.library,
            routing=own.routing,
            routing_reason=(own.routing, "its file says so"),
            grid=tuple(own.grid),
            fabric=None if own.fabric is None else Fabric(**own.fabric.model_dump()),
        )
    except SpecError as error:
        raise SpecError(str(error), file=file) from None


def device_order(devices: Sequence[Device], given: str | list[int] | None, file: str) -> list[int]:
    """Positions in the file, in the order of the cluster."""
    if given is None:
        return list(range(len(devices)))
    if isinstance(given, str):
        return sorted(range(len(devices)), key=lambda i: devices[i].kind != GPU)
    _check_order(given, len(devices), "devices", file)
    return given


def _check_order(order: list[int], count: int, what: str, file: str) -> None:
    if sorted(order) != list(range(count)):
        raise SpecError(f"the order of {what} must have each of 0 to {count - 1} once", file=file)
