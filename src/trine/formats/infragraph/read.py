"""InfraGraph files (docs/formats/infragraph.md): infrastructures, single devices, and rank annotations."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.cluster.data import SHORTEST
from trine.cluster.parts import GPU, Device, Fabric
from trine.common.spec import check, load_mapping
from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.formats.infragraph.older import modernised
from trine.formats.infragraph.parts import MARK, edge_wires, node_devices, own_part
from trine.formats.media import LinkChoices, check_links_from
from trine.formats.reader import Cable, assemble, merge_parallel_switches

if TYPE_CHECKING:
    from trine.formats.infragraph.expand import Expanded
    from trine.formats.infragraph.schema import AnnotationFile, InfrastructureFile, OwnFile


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
        spoken = read_annotations(file if annotations is None else annotations, inner if annotations is None else None)
        devices, wires, unused = apply_annotations(*spoken, expanded, devices, wires)
        notes.extend(unused)
    merged, fewer, num_merged = merge_parallel_switches(devices, wires)
    if merge_switches:
        devices, wires = merged, fewer
        notes.append(f"{num_merged} switches merged into others that join the same devices; their bandwidths add up")
    elif num_merged:
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
        return replace(
            cluster, devices=tuple(cluster.devices[old] for old in order), links=tuple(links),
            evidence=exported.evidence, sources=exported.sources, notes=exported.notes, library=exported.library,
            routing=exported.routing,
            routing_reason=("", "") if exported.routing == SHORTEST else (exported.routing, "set in its file"),
            grid=tuple(exported.grid),
            peer_access=None if exported.peer_access is None else exported.peer_access == "yes",
            fabric=None if exported.fabric is None else Fabric(**exported.fabric.model_dump()),
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


# InfraGraph's annotations: ``rank`` orders the GPUs; trine lists all unused annotations in the notes.

_STEP = re.compile(r"([^\[\].]+)(?:\[([^\[\]]*)\])?")
_MAX_MATCHES = 1 << 20


def read_annotations(path: str | os.PathLike[str], data: object = None) -> tuple[AnnotationFile, str]:
    """Return the annotations of a file, or of plain data from it, and the file's name."""
    from trine.formats.infragraph.schema import AnnotationFile

    return check(AnnotationFile, load_mapping(path) if data is None else data, path), os.fspath(path)


def apply_annotations(
    spec: AnnotationFile, file: str, expanded: Expanded, devices: Sequence[Device], wires: Sequence[Cable]
) -> tuple[list[Device], list[Cable], list[str]]:
    """Sort the GPUs by their ``rank``; return devices, wires and a note on each unused attribute.

    Raises SpecError: an annotation of a missing node, or ranks that do not number all GPUs from 0.
    """
    index = {name: i for i, name in enumerate(expanded.names)}
    ranks: dict[int, int] = {}
    for number, note in enumerate(spec.nodes):
        matches = _matches(note.name, index, expanded, file, f"nodes[{number}].name")
        for attribute in note.attributes:
            if attribute.attribute == "rank":
                for match in matches:
                    ranks[match] = _rank(attribute.value, file, f"nodes[{number}]")
    unused = [f"unused annotation {text}" for text in _unused(spec)]
    if not ranks:
        return list(devices), list(wires), unused
    order = _order(ranks, devices, file)
    position = {old: new for new, old in enumerate(order)}
    moved_wires = [wire._replace(a=position[wire.a], b=position[wire.b]) for wire in wires]
    return [devices[old] for old in order], moved_wires, unused


def _rank(text: str, file: str, field: str) -> int:
    rank = whole_number(text, most=10**9)
    if rank is None:
        raise SpecError(f"a rank is a whole number from 0, got {text[:80]!r}", file=file, field=field)
    return rank


def _order(ranks: dict[int, int], devices: Sequence[Device], file: str) -> list[int]:
    """Return device indices, with the GPUs sorted by rank in the places of GPUs."""
    gpus = [i for i, device in enumerate(devices) if device.kind == GPU]
    for index in ranks:
        if devices[index].kind != GPU:
            raise SpecError(f"{devices[index].name!r} has a rank, but is not a GPU", file=file)
    without = next((devices[gpu].name for gpu in gpus if gpu not in ranks), None)
    if without is not None:
        raise SpecError(f"GPU {without!r} has no rank, but others have", file=file)
    if sorted(ranks.values()) != list(range(len(gpus))):
        raise SpecError(f"the ranks of {len(gpus)} GPUs must be 0 to {len(gpus) - 1}, each once", file=file)
    order = list(range(len(devices)))
    for place, gpu in zip(gpus, sorted(gpus, key=ranks.__getitem__), strict=True):
        order[place] = gpu
    return order


def _unused(spec: AnnotationFile) -> list[str]:
    """Return ``'peak_bf16_tflops' of nodes (16 entries)`` and so on, one per attribute name and kind of carrier."""
    counts = Counter(("nodes", each.attribute) for note in spec.nodes for each in note.attributes)
    counts.update(("edges", each.attribute) for note in spec.edges for each in note.attributes)
    counts.update(("links", each.attribute) for note in spec.links for each in note.attributes)
    counts.update(("the graph", each.attribute) for each in spec.graph)
    del counts["nodes", "rank"]
    return [f"{name!r} of {carrier} ({count} entries)" for (carrier, name), count in counts.items()]


def _matches(text: str, index: dict[str, int], expanded: Expanded, file: str, field: str) -> list[int]:
    """Return node indices of ``node.0.xpu.3``, of ``node[:]xpu[0:4]``, or of all nodes below ``node.0``."""
    indices: list[int] = []
    for name in [text] if text in index else _written_out(text, expanded, file, field):
        if name in index:
            indices.append(index[name])
            continue
        below = [i for other, i in index.items() if other.startswith(f"{name}.")]
        if not below:
            raise SpecError(f"there is no node {name!r}{nearest(name, index)}", file=file, field=field)
        indices.extend(below)
    return indices


def _written_out(text: str, expanded: Expanded, file: str, field: str) -> list[str]:
    """Expand a text with slices into names; open ends reach to the last existing index."""
    steps = list(_STEP.finditer(text))
    if "[" not in text:
        return [text]
    if "".join(step[0] for step in steps) != text.replace(".", ""):
        raise SpecError(f"cannot read {text!r}; write 'node[0:2]xpu[:]'", file=file, field=field)
    names = [""]
    for step in steps:
        if step[2] is None:
            names = [f"{name}.{step[1]}" if name else step[1] for name in names]
            continue
        grown: list[str] = []
        for name in names:
            stem = f"{name}.{step[1]}" if name else step[1]
            count = _count(stem, expanded)
            if not count:
                raise SpecError(f"{text!r}: there is no node {stem!r}", file=file, field=field)
            grown.extend(f"{stem}.{i}" for i in _picked(step[2], count, file, field))
        names = grown
        if len(names) > _MAX_MATCHES:
            raise SpecError(f"stands for more than {_MAX_MATCHES} nodes", file=file, field=field)
    return names


def _count(stem: str, expanded: Expanded) -> int:
    """Return the number of nodes ``stem.0``, ``stem.1``, ..."""
    depth, prefix = stem.count(".") + 1, f"{stem}."
    return len({name.split(".")[depth] for name in expanded.names if name.startswith(prefix)})


def _picked(text: str, count: int, file: str, field: str) -> Sequence[int]:
    try:
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
        if len(numbers) == 1:
            return range(count) if numbers[0] is None else [range(count)[numbers[0]]]
        return range(count)[slice(*numbers)]
    except (ValueError, IndexError, TypeError):
        message = f"cannot read the index [{text}], or it is outside of {count}"
        raise SpecError(message, file=file, field=field) from None
