"""Several nodes as one cluster: their devices renamed, their NICs joined by a fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from trine.cluster.cluster import (
    EVIDENCE,
    FABRICS,
    GPU,
    LEAVED,
    NIC,
    SCALE_OUT,
    Cluster,
    Device,
    Fabric,
    Link,
    Wire,
    make_links,
)
from trine.cluster.fabrics import Plant, add_clos, add_dragonfly, add_leaves, add_switch, balanced_dragonfly
from trine.cluster.links import link_named
from trine.errors import SpecError, nearest
from trine.units import format_bandwidth

MAX_GPUS = 1 << 17


def join_nodes(nodes: Sequence[Cluster], fabric: Fabric | None, name: str) -> Cluster:
    """One cluster of ``nodes``, in order; the GPUs of all come first, so that ranks fill nodes in order.

    Device ``gpu0`` of the second node becomes ``node1.gpu0`` (``rack1.gpu0`` where a node spans several hosts).

    Raises
    ------
    SpecError: nodes without NICs, or no fabric; names the remedy.
    """
    if sum(len(node.gpus) for node in nodes) > MAX_GPUS:
        raise SpecError(f"more than {MAX_GPUS} GPUs")
    devices, links = _side_by_side(nodes)
    if len(nodes) > 1 and fabric is None:
        raise SpecError(
            f"{nodes[0].name!r} does not say what joins its nodes: add 'fabric: {{kind: ..., link: ...}}' to the file, "
            "or --fabric KIND@LINK, for example rail@ib-ndr"
        )
    routing, words = nodes[0].routing, "not joined"
    wires: list[Wire] = []
    if fabric is not None and fabric.kind != "none" and len(nodes) > 1:
        wires, routing, words = _fabric_wires(devices, fabric)
        if nodes[0].routing != "shortest":
            routing = nodes[0].routing
    counts = [f"{len(list(alike))} x {which}" for which, alike in groupby(node.name for node in nodes)]
    return Cluster(
        name=name,
        devices=tuple(devices),
        links=(*links, *make_links(tuple(devices), wires)),
        evidence=max((node.evidence for node in nodes), key=EVIDENCE.index),
        sources=_sources(nodes, fabric, wires),
        notes=f"{' and '.join(counts)}; {words}. {nodes[0].notes}".strip(),
        library=_library(nodes),
        routing=routing,
    )


def _side_by_side(nodes: Sequence[Cluster]) -> tuple[list[Device], list[Link]]:
    """Devices of all nodes, GPUs first, and their links between the new indices."""
    order = [(n, i) for n, node in enumerate(nodes) for i in node.gpus]
    order += [(n, i) for n, node in enumerate(nodes) for i, device in enumerate(node.devices) if device.kind != GPU]
    place = {old: new for new, old in enumerate(order)}
    prefixes = [_prefix(node, n) for n, node in enumerate(nodes)]
    devices = [_renamed(nodes[n].devices[i], prefixes[n], _hosts(nodes[n]) > 1) for n, i in order]
    links = []
    for n, node in enumerate(nodes):
        for link in node.links:
            source, target = place[n, link.source], place[n, link.target]
            name = link.name.replace("->", f"->{prefixes[n]}.", 1)
            links.append(_moved(link, f"{prefixes[n]}.{name}", source, target))
    return devices, links


def _moved(link: Link, name: str, source: int, target: int) -> Link:
    return Link(
        name=name,
        source=source,
        target=target,
        bytes_per_s=link.bytes_per_s,
        latency_ps=link.latency_ps,
        link_class=link.link_class,
        medium=link.medium,
        peak_bytes_per_s=link.peak_bytes_per_s,
    )


def _renamed(device: Device, prefix: str, several: bool) -> Device:
    return Device(
        name=f"{prefix}.{device.name}",
        kind=device.kind,
        gpu=device.gpu,
        node=f"{prefix}.{device.node}" if several and device.node is not None else prefix,
        forwards=device.forwards,
        reduces=device.reduces,
        rail=device.rail,
    )


def _hosts(node: Cluster) -> int:
    return len({device.node for device in node.devices if device.kind == GPU})


def _prefix(node: Cluster, number: int) -> str:
    return f"rack{number}" if _hosts(node) > 1 else f"node{number}"


def _fabric_wires(devices: list[Device], fabric: Fabric) -> tuple[list[Wire], str, str]:
    """Adds the switches of the fabric to ``devices``. Returns its wires, the routing for it, and what to say of it."""
    nics = [i for i, device in enumerate(devices) if device.kind == NIC]
    without = {d.node for d in devices if d.kind == GPU} - {devices[nic].node for nic in nics}
    if without:
        raise SpecError(f"{min(map(str, without))} has no NIC, so that no fabric can join it to the others")
    kind = link_named(fabric.link)
    if kind.link_class != SCALE_OUT:
        raise SpecError(f"fabric: {fabric.link!r} is a {kind.link_class} link; nodes are joined by {SCALE_OUT} links")
    end = Wire(
        0, 0, kind.bytes_per_s * fabric.lanes, kind.latency_ps, SCALE_OUT, kind.name,
        kind.peak_bytes_per_s * fabric.lanes,
    )  # fmt: skip
    plant = Plant(devices=devices, end=end, hop=end._replace(latency_ps=kind.hop_ps), reduces=fabric.reduces)
    routing = _add_fabric(plant, nics, fabric)
    switches = sum(device.node is None for device in devices)
    words = f"joined by {fabric.kind} of {switches} switches, {fabric.link}"
    if fabric.oversubscription != 1:
        words += f", {fabric.oversubscription:g} to 1 oversubscribed"
    return plant.wires, routing, words


def _add_fabric(plant: Plant, nics: list[int], fabric: Fabric) -> str:
    """Build it; returns the routing that suits it."""
    if fabric.kind == "switch":
        add_switch(plant, nics, "fabric")
        return "shortest"
    if fabric.kind == "dragonfly":
        add_dragonfly(plant, nics, *balanced_dragonfly(len(nics)))
        return "d-mod-k"
    per_leaf = _ports_down(fabric)
    if fabric.kind != "rail":
        leaves = [nics[first : first + per_leaf] for first in range(0, len(nics), per_leaf)]
        add_clos(plant, add_leaves(plant, leaves), min(per_leaf, len(nics)), fabric.oversubscription, fabric.radix)
        return "d-mod-k"
    groups, rails = _rail_leaves(plant.devices, nics, per_leaf)
    ports = max(map(len, groups))
    add_clos(plant, add_leaves(plant, groups, rails), ports, fabric.oversubscription, fabric.radix)
    return "rail"


def _ports_down(fabric: Fabric) -> int:
    """Ports of a leaf that lead down: so many times more than lead up as it is oversubscribed."""
    return max(1, int(fabric.radix * fabric.oversubscription / (1 + fabric.oversubscription)))


def _rail_leaves(
    devices: Sequence[Device], nics: Sequence[int], per_leaf: int
) -> tuple[list[list[int]], list[int | None]]:
    """NICs of the same rail under one leaf, ``per_leaf`` at most; the rails of the first nodes come first."""
    by_rail: dict[int, list[int]] = {}
    for nic in nics:
        rail = devices[nic].rail
        if rail is None:
            raise SpecError(f"a rail fabric needs the rail of each NIC, and {devices[nic].name!r} has none")
        by_rail.setdefault(rail, []).append(nic)
    parts: list[tuple[int, int, list[int]]] = []
    for rail, members in sorted(by_rail.items()):
        parts.extend(
            (unit, rail, members[first : first + per_leaf])
            for unit, first in enumerate(range(0, len(members), per_leaf))
        )
    parts.sort(key=lambda part: part[:2])
    return [members for _, _, members in parts], [rail for _, rail, _ in parts]


def _sources(nodes: Sequence[Cluster], fabric: Fabric | None, wires: Sequence[Wire]) -> Mapping[str, str]:
    """Where the numbers of every make of node, and those of the fabric, come from."""
    makes = {node.name: node.sources for node in nodes}
    found = {
        what if len(makes) == 1 else f"{name}: {what}": text
        for name, sources in makes.items()
        for what, text in sources.items()
    }
    if fabric is not None and wires:
        kind = link_named(fabric.link)
        found["fabric"] = (
            f"{kind.name}: {format_bandwidth(kind.bytes_per_s)} a lane and direction, "
            f"{kind.evidence['bandwidth']} ({kind.sources['bandwidth']}); latency {kind.evidence['latency']}"
        )
    return found


def _library(nodes: Sequence[Cluster]) -> str | None:
    libraries = {node.library for node in nodes}
    if len(libraries - {None}) > 1:
        raise SpecError(f"nodes with different libraries ({', '.join(sorted(map(str, libraries)))}) cannot be joined")
    return next(iter(libraries - {None}), None)


def with_usual_fabric(node: Cluster, text: str) -> Fabric:
    """The fabric that ``KIND[:OVERSUBSCRIPTION][@LINK]`` names, with the node's usual numbers where it says none.

    Raises
    ------
    SpecError: an unknown kind or link, or no link and no usual one.
    """
    shape, _, link = text.partition("@")
    kind, _, over = shape.partition(":")
    if kind not in FABRICS:
        raise SpecError(f"unknown fabric {text!r}{nearest(kind, FABRICS)}")
    if not link and node.fabric is None and kind != "none":
        raise SpecError(
            f"fabric {text!r} needs its kind of link, such as '{shape}@ib-ndr': {node.name!r} has no usual one"
        )
    if link:
        link_named(link)
    usual = node.fabric or Fabric(kind=kind, link=link or "ib-ndr")
    usual = usual if not link or link == usual.link else Fabric(kind=kind, link=link)
    radix = usual.radix if kind in LEAVED else 64
    return replace(usual, kind=kind, radix=radix, oversubscription=_oversubscription(text, kind, over))


def _oversubscription(text: str, kind: str, over: str) -> float:
    if not over:
        return 1.0
    if kind not in LEAVED:
        raise SpecError(f"fabric {text!r}: a {kind} has no oversubscription")
    try:
        number = float(over)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1000:
        raise SpecError(f"fabric {text!r}: the oversubscription is a number from 1 to 1000, such as '{kind}:2'")
    return number
