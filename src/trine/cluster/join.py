"""Joins several nodes into one cluster: renames their devices and connects their NICs by a fabric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.collective_bandwidth import CollectiveBandwidth
from trine.cluster.data import SHORTEST
from trine.cluster.fabrics import FabricBuilder, add_clos, add_leaves, add_slingshot_groups, add_switch
from trine.cluster.layout import blocks_of, device_columns, is_plain, link_columns, runs_of
from trine.cluster.names import EndNames, JoinedNames
from trine.cluster.parts import EVIDENCE, FABRICS, GPU, LEAVED, NIC, SCALE_OUT, Fabric, Link
from trine.cluster.presets import link_named
from trine.cluster.routing.router import Router
from trine.cluster.tables import DeviceKind, DeviceTable, LinkTable, NodeBlock, NodeLayout, kind_of
from trine.common.arrays import distinct
from trine.common.units import format_bandwidth
from trine.errors import SpecError, nearest

MAX_GPUS = 1 << 20
#: Limit for a fabric; three levels of 40-port switches need 1.2 million links for MAX_GPUS GPUs.
MAX_LINKS = 1 << 21


def join_nodes(nodes: Sequence[Cluster], fabric: Fabric | None, name: str, asked: str | None = None) -> Cluster:
    """Return one cluster of ``nodes``; all GPUs come first, so ranks fill the nodes in order.

    Device ``gpu0`` of the second node becomes ``node1.gpu0`` (``rack1.gpu0`` if a node spans several hosts). ``asked``:
    the user's text for this fabric, if requested explicitly; every part of it must have an effect.

    Raises SpecError: nodes without NICs, or no fabric; the message names the remedy.
    """
    if sum(len(node.gpus) for node in nodes) > MAX_GPUS:
        total = sum(len(node.gpus) for node in nodes)
        raise SpecError(f"{total} GPUs: trine simulates at most {MAX_GPUS}")
    if len(nodes) > 1 and fabric is None:
        if not nodes[0].device_table.where(NIC).any():
            raise SpecError(f"{nodes[0].name!r} has no NICs, so that no fabric can join {len(nodes)} of it")
        raise SpecError(
            f"{nodes[0].name!r} has no fabric between its nodes: add 'fabric: {{kind: ..., link: ...}}' to the file, "
            f"or --fabric KIND@LINK, for example {usual_text(nodes[0])}"
        )
    with_circuits = next((node for node in nodes if node.circuits is not None), None)
    if with_circuits is not None and len(nodes) > 1:
        raise SpecError(f"the circuits of {with_circuits.name!r} end at its GPUs: it cannot be one of several nodes")
    blocks = blocks_of(runs_of(nodes))
    builder, routing, words = None, nodes[0].routing, "not joined"
    reason = nodes[0].routing_why
    if fabric is not None and fabric.kind != "none" and len(nodes) > 1:
        builder, routing, words = _built_fabric(device_columns(blocks, {}), fabric)
        if asked is not None and fabric.oversubscription != 1 and len(builder.switches) == 1:
            raise SpecError(
                f"fabric {asked!r}: all NICs hang on one leaf switch of {fabric.radix} ports, so that the "
                f"oversubscription changes nothing: leave it out, or take more nodes"
            )
        if nodes[0].routing != "shortest":
            routing = nodes[0].routing
        else:
            reason = f"usual for a {fabric.kind} fabric"
    devices, links = joined_columns(blocks, builder)
    runs = groupby(node.name for node in nodes)
    counts = [f"{len(list(alike))} x {node_name}" for node_name, alike in runs]
    evidence = max((node.evidence for node in nodes), key=EVIDENCE.index)
    joined_by = fabric if builder is not None else None
    return Cluster(
        name=name, devices=devices, links=links, evidence=evidence, sources=_sources(nodes, joined_by),
        notes=f"{' and '.join(counts)}; {words}. {nodes[0].notes}".strip(), library=_library(nodes),
        spread=nodes[0].spread, collective_bandwidth=_common_bandwidth(nodes), routing=routing,
        routing_reason=(routing, reason), peer_access=_peer_access(nodes),
    )  # fmt: skip


def joined_columns(blocks: tuple[NodeBlock, ...], builder: FabricBuilder | None) -> tuple[DeviceTable, LinkTable]:
    """Return the devices and links of the nodes and of the fabric between them."""
    kinds: dict[DeviceKind, int] = {}
    numbers: dict[Link, int] = {}
    plain = all(is_plain(block.node) for block in blocks)
    inner, wired = device_columns(blocks, kinds), link_columns(blocks, numbers)
    clos = builder.clos if builder is not None else None
    layout = NodeLayout(blocks=blocks, fabric_device=len(inner), fabric_link=len(wired), clos=clos) if plain else None
    if builder is None:
        return replace(inner, layout=layout), replace(wired, layout=layout)
    devices = _with_switches(inner, builder, kinds, layout)
    return devices, _with_wires(wired, builder, numbers, devices, layout)


def _with_switches(
    inner: DeviceTable, builder: FabricBuilder, kinds: dict[DeviceKind, int], layout: NodeLayout | None
) -> DeviceTable:
    kind = [kinds.setdefault(kind_of(switch), len(kinds)) for switch in builder.switches]
    return DeviceTable(
        kinds=tuple(kinds),
        kind=np.concatenate((inner.kind, np.array(kind, np.int32))),
        node=np.concatenate((inner.node, np.full(len(kind), -1, np.int32))),
        names=JoinedNames([inner.names, tuple(switch.name for switch in builder.switches)]),
        node_names=inner.node_names,
        layout=layout,
    )


def _with_wires(
    wired: LinkTable, builder: FabricBuilder, numbers: dict[Link, int], devices: DeviceTable, layout: NodeLayout | None
) -> LinkTable:
    """Return the links of the nodes, and both directions of each wire of the fabric."""
    codes = [numbers.setdefault(link, len(numbers)) for link in builder.numbers]
    lows, highs = np.array(builder.lows, np.int32), np.array(builder.highs, np.int32)
    source, target = np.column_stack((lows, highs)).ravel(), np.column_stack((highs, lows)).ravel()
    number = np.repeat(np.array(codes, np.int32)[builder.kinds], 2)
    return LinkTable(
        numbers=tuple(numbers), number=np.concatenate((wired.number, number)),
        source=np.concatenate((wired.source, source)), target=np.concatenate((wired.target, target)),
        names=JoinedNames([wired.names, EndNames(devices.names, source, target)]), layout=layout,
    )  # fmt: skip


class _BuiltFabric(NamedTuple):
    """The fabric that joins the NICs of several nodes, its routing policy, and its description in words."""

    builder: FabricBuilder
    routing: str
    description: str


def _built_fabric(devices: DeviceTable, fabric: Fabric) -> _BuiltFabric:
    """Build the fabric that joins the NICs among ``devices``."""
    nics = np.flatnonzero(devices.where(NIC))
    isolated = np.setdiff1d(devices.node[devices.where(GPU)], devices.node[nics])
    if len(isolated):
        name = min(devices.node_names[int(node)] for node in isolated)
        raise SpecError(f"{name} has no NIC, so that no fabric can join it to the others")
    kind = link_named(fabric.link)
    if kind.link_class != SCALE_OUT:
        raise SpecError(f"fabric: {fabric.link!r} is a {kind.link_class} link; nodes are joined by {SCALE_OUT} links")
    share = kind.share_on(len(distinct(devices.node[nics])))
    end = Link(
        bytes_per_s=round(kind.bytes_per_s * share) * fabric.lanes,
        latency_ps=kind.latency_ps if fabric.latency_ps is None else fabric.latency_ps, link_class=SCALE_OUT,
        medium=kind.name, peak_bytes_per_s=kind.peak_bytes_per_s * fabric.lanes,
    )  # fmt: skip
    builder = FabricBuilder(
        first=len(devices), end=end, hop=replace(end, latency_ps=kind.hop_ps), reduces=fabric.reduces, most=MAX_LINKS
    )
    routing = _add_fabric(builder, nics.tolist(), fabric, devices)
    words = f"joined by {fabric.kind} of {len(builder.switches) - builder.num_middles} switches, {fabric.link}"
    if kind.crowding is not None and share < 1:
        fitted, tested = kind.crowding.fitted, kind.crowding.tested
        words += f", at {share:.0%} of its bandwidth at this number of nodes (fitted on {fitted}; tested on {tested})"
    if fabric.oversubscription != 1:
        no_effect = ", which changes nothing: all NICs hang on one leaf" if len(builder.switches) == 1 else ""
        words += f", {fabric.oversubscription:g} to 1 oversubscribed{no_effect}"
    return _BuiltFabric(builder, routing, words)


def _add_fabric(builder: FabricBuilder, nics: list[int], fabric: Fabric, devices: DeviceTable) -> str:
    """Add the fabric to ``builder`` and return its routing."""
    if fabric.kind == "switch":
        add_switch(builder, nics, "fabric")
        return "shortest"
    if fabric.kind == "dragonfly":
        add_slingshot_groups(builder, nics)
        return "shortest"
    # a leaf's down ports = its up ports x oversubscription
    per_leaf = max(1, int(fabric.radix * fabric.oversubscription / (1 + fabric.oversubscription)))
    if fabric.kind != "rail":
        leaves = [nics[first : first + per_leaf] for first in range(0, len(nics), per_leaf)]
        add_clos(builder, add_leaves(builder, leaves), min(per_leaf, len(nics)), fabric.oversubscription, fabric.radix)
        return "d-mod-k"
    groups, rails = _rail_leaves(devices, nics, per_leaf)
    ports = max(map(len, groups))
    add_clos(builder, add_leaves(builder, groups, rails), ports, fabric.oversubscription, fabric.radix)
    return "rail"


def _rail_leaves(devices: DeviceTable, nics: Sequence[int], per_leaf: int) -> tuple[list[list[int]], list[int | None]]:
    """Return leaves of at most ``per_leaf`` NICs of one rail, and their rails; the first nodes' rails come first."""
    by_rail: dict[int, list[int]] = {}
    for nic, kind in zip(nics, devices.kind[nics].tolist(), strict=True):
        rail = devices.kinds[kind].rail
        if rail is None:
            raise SpecError(f"a rail fabric needs the rail of each NIC; {devices.names[nic]!r} has no rail")
        by_rail.setdefault(rail, []).append(nic)
    parts: list[tuple[int, int, list[int]]] = []
    for rail, members in sorted(by_rail.items()):
        parts.extend(
            (unit, rail, members[first : first + per_leaf])
            for unit, first in enumerate(range(0, len(members), per_leaf))
        )
    parts.sort(key=lambda part: part[:2])
    groups = [members for _, _, members in parts]
    rails: list[int | None] = [rail for _, rail, _ in parts]
    return groups, rails


def _sources(nodes: Sequence[Cluster], fabric: Fabric | None) -> Mapping[str, str]:
    """Return the sources of the numbers of each node type and of the fabric (None: no fabric)."""
    makes = {node.name: node.sources for node in nodes}
    merged = {}
    for name, sources in makes.items():
        for field, text in sources.items():
            merged[field if len(makes) == 1 else f"{name}: {field}"] = text
    if fabric is not None:
        kind = link_named(fabric.link)
        merged["fabric"] = (
            f"{kind.name}: {format_bandwidth(kind.bytes_per_s)} a lane and direction, "
            f"{kind.evidence['bandwidth']} ({kind.sources['bandwidth']}); latency "
            f"{kind.evidence['latency'] if fabric.latency_ps is None else 'set in the cluster file'}"
        )
    return merged


def _common_bandwidth(nodes: Sequence[Cluster]) -> CollectiveBandwidth | None:
    """Return the bandwidths per collective that all nodes have alike, else None."""
    first = nodes[0].collective_bandwidth
    is_common = all(node.collective_bandwidth == first for node in nodes)
    return first if is_common else None


def _peer_access(nodes: Sequence[Cluster]) -> bool | None:
    """Return False if a node has no peer access, else the value of the first node."""
    is_refused = any(node.peer_access is False for node in nodes)
    return False if is_refused else nodes[0].peer_access


def _library(nodes: Sequence[Cluster]) -> str | None:
    libraries = {node.library for node in nodes}
    if len(libraries - {None}) > 1:
        raise SpecError(f"nodes with different libraries ({', '.join(sorted(map(str, libraries)))}) cannot be joined")
    return next(iter(libraries - {None}), None)


def usual_text(node: Cluster) -> str:
    """Return a fabric for copies of a node without one: ``rail`` if all its NICs have a rail, else ``clos``."""
    table = node.device_table
    rails = [device_kind.rail for device_kind in table.kinds if device_kind.kind == NIC]
    return "clos@ib-ndr" if None in rails else "rail@ib-ndr"


def with_usual_fabric(node: Cluster, text: str) -> Fabric:
    """Return the fabric named ``KIND[:OVERSUBSCRIPTION][@LINK]``; missing parts come from the node's usual fabric.

    Raises SpecError: an unknown kind or link, or no link and no usual link.
    """
    shape, _, link = text.partition("@")
    kind, _, over = shape.partition(":")
    if kind not in FABRICS:
        raise SpecError(f"unknown fabric {text!r}{nearest(kind, FABRICS)}")
    if not link and node.fabric is None and kind != "none":
        raise SpecError(
            f"fabric {text!r} needs its kind of link, such as '{shape}@ib-ndr': {node.name!r} has no usual one"
        )
    if ":" in link:
        link, _, over = link.partition(":")
        raise SpecError(f"fabric {text!r}: the oversubscription stands before the link, as in '{kind}:{over}@{link}'")
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


def with_joint_nics(node: Cluster, fabric: Fabric | None) -> tuple[Cluster, Fabric | None]:
    """Return a whole node and its fabric with the N NICs of each GPU merged into one NIC with N lanes.

    Unchanged if GPUs have no dedicated NICs, or unequal numbers of NICs, or NICs with different links.
    """
    heads = _heads(node)
    if fabric is None or not heads:
        return node, fabric
    sums: dict[tuple[int, int], Link] = {}
    rates: dict[tuple[int, int], int] = defaultdict(int)
    for link in node.links:
        ends = heads.get(link.source, link.source), heads.get(link.target, link.target)
        is_joint = link.source in heads or link.target in heads
        key = ends if is_joint else (-1 - len(sums), len(sums))
        sums.setdefault(key, link)
        rates[key] += 1
    remaining = [i for i in range(len(node.devices)) if heads.get(i, i) == i]
    place = {old: new for new, old in enumerate(remaining)}
    links = tuple(
        replace(
            link, source=place[link.source], target=place[link.target], bytes_per_s=link.bytes_per_s * rates[key],
            peak_bytes_per_s=link.peak_bytes_per_s and link.peak_bytes_per_s * rates[key],
        )
        for key, link in sums.items()
    )  # fmt: skip
    lanes = len(heads) // len(set(heads.values()))
    devices = tuple(node.devices[i] for i in remaining)
    notes = f"{node.notes} Each NIC stands for the {lanes} NICs of its GPU.".strip()
    return replace(node, devices=devices, links=links, notes=notes), replace(fabric, lanes=fabric.lanes * lanes)


def _heads(node: Cluster) -> dict[int, int]:
    """Return NIC -> first NIC of the same GPU; empty unless all GPUs have several NICs with equal links."""
    nics, router = np.flatnonzero(node.device_table.where(NIC)).tolist(), Router(node, SHORTEST)
    if len(nics) < 2 * len(node.gpus):
        return {}
    sharing: dict[tuple[int, ...], int] = defaultdict(int)
    for gpu in node.gpus:
        sharing[router.node.all_nearest(gpu, nics)] += 1
    links = {}
    for nic in nics:
        links[nic] = {(link.target, link.bare) for link in node.links_from(nic)}
    heads = {nic: near[i % gpus] for near, gpus in sharing.items() for i, nic in enumerate(near)}
    sizes = np.unique(list(heads.values()), return_counts=True)[1]
    is_even = sorted(heads) == nics and sum(map(len, sharing)) == len(nics) and len(set(sizes.tolist())) == 1
    if is_even and all(links[nic] == links[head] for nic, head in heads.items()):
        return heads
    return {}
