"""InfraGraph files (docs/formats/infragraph.md): infrastructures, single devices, and rank annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.cluster.data import SHORTEST
from trine.cluster.parts import GPU, Device, Fabric
from trine.common.spec import check
from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.formats.infragraph.annotations import apply_annotations, read_annotations
from trine.formats.infragraph.older import modernised
from trine.formats.infragraph.parts import MARK, edge_wires, node_devices, own_part
from trine.formats.media import LinkChoices, check_links_from
from trine.formats.reader import assemble, merge_parallel_switches

if TYPE_CHECKING:
    from trine.formats.infragraph.schema import InfrastructureFile, OwnFile


def infragraph_cluster(
    data: object, file: str, links: Mapping[str, str] | None = None, links_from: str | None = None,
    annotations: str | os.PathLike[str] | None = None, gpu: str | None = None, *, merge_switches: bool = False,
) -> Cluster:  # fmt: skip
    """Read an InfraGraph infrastructure, or a single device of it, from plain data.

    links: numbers for links without numbers in the file: the link's name, or ``device.link``, to a catalogue entry
        (``"nvlink4"``, ``"nvlink4*2"``) or ``"BANDWIDTH, LATENCY"``.
    links_from: ``"catalogue"`` chooses entries for the other links by their names and descriptions.
    annotations: an annotation file; ``rank`` orders the GPUs. The cluster's notes list all other attributes.
    gpu: the GPU model of all ``xpu`` components.
    merge_switches: merge switches that join the same GPUs into one.

    Raises SpecError: not the format; an unknown name or index; links without numbers (with the options for them).
    """
    from trine.formats.infragraph.expand import expand
    from trine.formats.infragraph.schema import OwnFile

    check_links_from(links_from)
    data, inner = _parts(modernised(data, file), file)
    spec = _infrastructure(data, file)
    expanded = expand(spec, file)
    devices = node_devices(expanded, spec, gpu, file)
    choices = LinkChoices(given=links or {}, from_catalogue=links_from is not None)
    wires = edge_wires(expanded, devices, choices, file)
    sources = {"links": f"{Path(file).name}, bandwidths taken as what transfers reach in each direction"}
    notes = [spec.description] if spec.description and not spec.description.startswith(MARK) else []
    notes.extend(expanded.notes)
    exported = own_part(spec.description, OwnFile, file)
    if annotations is not None or inner is not None:
        path = file if annotations is None else annotations
        inner_annotations = inner if annotations is None else None
        spoken = read_annotations(path, inner_annotations)
        devices, wires, unused = apply_annotations(*spoken, expanded, devices, wires)
        notes.extend(unused)
    merged = merge_parallel_switches(devices, wires)
    if merge_switches:
        devices, wires = merged.devices, merged.cables
        notes.append(
            f"{merged.num_removed} switches merged into others that join the same devices; their bandwidths add up"
        )
    elif merged.num_removed:
        notes.append(
            "several switches join the same GPUs, and messages use all of them at once: --merge-switches "
            "(merge_switches=True) makes one of each group"
        )
    cluster = assemble(
        spec.name or Path(file).stem, devices, wires, file=file, sources={**sources, **choices.used}, notes=notes,
        says_who_forwards=exported is not None,
    )  # fmt: skip
    return cluster if exported is None else restored(cluster, exported, file)


def _parts(data: object, file: str) -> tuple[object, object]:
    """Return the infrastructure, and the annotations if the file has both, as the library writes them."""
    if not isinstance(data, dict) or "infrastructure" not in data:
        return data, None
    for key in data:
        if key not in ("infrastructure", "annotations"):
            raise SpecError(f"unknown key {key!r}{nearest(str(key), ('infrastructure', 'annotations'))}", file=file)
    return data["infrastructure"], data.get("annotations")


def _infrastructure(data: object, file: str) -> InfrastructureFile:
    """Return the file's model; a single device becomes one instance of it."""
    from trine.formats.infragraph.schema import DeviceFile, InfrastructureFile

    if isinstance(data, dict) and "components" in data and "devices" not in data:
        device = check(DeviceFile, data, file)
        instance = {"name": device.name, "device": device.name, "count": 1}
        data = {"name": device.name, "devices": [data], "instances": [instance]}
    return check(InfrastructureFile, data, file)


def restored(cluster: Cluster, exported: OwnFile, file: str) -> Cluster:
    """Return the exported cluster. Raises SpecError: an invalid order, or values that a cluster refuses."""
    order = device_order(cluster.devices, exported.devices, file)
    place = {old: new for new, old in enumerate(order)}
    links = [link.between(place[link.source], place[link.target], link.name) for link in cluster.links]
    if exported.links is not None:
        _check_order(exported.links, len(links), "links", file)
        links = [links[old] for old in exported.links]
    for number, name in exported.link_names.items():
        link = whole_number(number, most=len(links) - 1)
        if link is None:
            raise SpecError(f"names link {number!r}, there are {len(links)}", file=file)
        links[link] = replace(links[link], name=name)
    try:
        devices = tuple(cluster.devices[old] for old in order)
        reason = ("", "") if exported.routing == SHORTEST else (exported.routing, "set in its file")
        peer_access = None if exported.peer_access is None else exported.peer_access == "yes"
        fabric = None if exported.fabric is None else Fabric(**exported.fabric.model_dump())
        return replace(
            cluster, devices=devices, links=tuple(links), evidence=exported.evidence, sources=exported.sources,
            notes=exported.notes, library=exported.library, routing=exported.routing, routing_reason=reason,
            grid=tuple(exported.grid), peer_access=peer_access, fabric=fabric,
        )  # fmt: skip
    except SpecError as error:
        raise SpecError(str(error), file=file) from None


def device_order(devices: Sequence[Device], order: str | list[int] | None, file: str) -> list[int]:
    """Return positions in the file, in the order of the cluster."""
    if order is None:
        return list(range(len(devices)))
    if isinstance(order, str):
        return sorted(range(len(devices)), key=lambda i: devices[i].kind != GPU)
    _check_order(order, len(devices), "devices", file)
    return order


def _check_order(order: list[int], count: int, subject: str, file: str) -> None:
    if sorted(order) != list(range(count)):
        raise SpecError(f"the order of {subject} must have each of 0 to {count - 1} once", file=file)
