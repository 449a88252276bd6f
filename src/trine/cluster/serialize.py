"""Conversion of clusters to the plain data of a cluster file, in the full form, which reads back equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trine.cluster.collective_bandwidth import CollectiveBandwidth
from trine.cluster.data import SHORTEST, ClusterData
from trine.cluster.names import EndNames
from trine.cluster.parts import HOST, HOST_LINK, LEAVED, SCALE_UP, Circuits, Device, Fabric, Link
from trine.cluster.planes import idle_planes
from trine.cluster.routing.router import usual_routing
from trine.cluster.tables import DeviceTable, LinkedDevices, LinkTable
from trine.common.arrays import counted_codes
from trine.common.units import PS_PER_S
from trine.errors import SpecError

if TYPE_CHECKING:
    from trine.cluster.data import ClusterData


def to_yaml(cluster: ClusterData) -> str:
    """Return the text of a cluster file, in the full form."""
    from trine.common.spec import dump_yaml

    return dump_yaml(to_dict(cluster))


def to_dict(cluster: ClusterData) -> dict[str, object]:
    """Return the content of a cluster file, in the full form."""
    data = header(cluster)
    if cluster.routing == SHORTEST and (usual_routing(cluster)[0] != SHORTEST or idle_planes(cluster)):
        data["routing"] = SHORTEST
    data["devices"] = [_device_mapping(device) for device in cluster.devices]
    data["links"] = _link_mappings(cluster)
    return data


def header(cluster: ClusterData) -> dict[str, object]:
    """Return the content of a cluster file except devices and links."""
    data: dict[str, object] = {"name": cluster.name, "evidence": cluster.evidence}
    if cluster.notes:
        data["notes"] = cluster.notes
    if cluster.sources:
        data["sources"] = dict(cluster.sources)
    if cluster.library is not None:
        data["library"] = cluster.library
    if cluster.routing != SHORTEST:
        data["routing"] = cluster.routing
    if cluster.grid:
        data["grid"] = list(cluster.grid)
    if cluster.fabric is not None:
        data["fabric"] = _fabric_mapping(cluster.fabric)
    if cluster.spread is not None:
        data["spread"] = cluster.spread
    if cluster.collective_bandwidth is not None:
        data["collective_bandwidth"] = _bandwidth_mapping(cluster.collective_bandwidth)
    if cluster.segment is not None:
        data["segment"] = cluster.segment
    if cluster.peer_access is not None:
        data["peer_access"] = cluster.peer_access
    if cluster.circuits is not None:
        data["circuits"] = _circuits_mapping(cluster.circuits)
    return data


def _fabric_mapping(fabric: Fabric) -> dict[str, object]:
    leaves = {"oversubscription": fabric.oversubscription, "radix": fabric.radix} if fabric.kind in LEAVED else {}
    latency = {} if fabric.latency_ps is None else {"latency": exact_time(fabric.latency_ps)}
    return {
        "kind": fabric.kind, "link": fabric.link, "lanes": fabric.lanes, **leaves, "reduces": fabric.reduces, **latency,
    }  # fmt: skip


def _bandwidth_mapping(given: CollectiveBandwidth) -> dict[str, object]:
    curves = {}
    for op, curve in given.curves:
        curves[op] = {nodes: exact_bandwidth(rate) for nodes, rate in curve}
    facts = {"size": f"{given.size_bytes} B", "gpus_per_node": given.gpus_per_node, "evidence": given.evidence}
    return {**curves, **facts}


def _circuits_mapping(circuits: Circuits) -> dict[str, object]:
    buffer = {} if circuits.buffer_bytes is None else {"buffer": f"{circuits.buffer_bytes} B"}
    return {
        "setup": exact_time(circuits.setup_ps),
        "ports": circuits.ports,
        "bandwidth": exact_bandwidth(circuits.bytes_per_s),
        "latency": exact_time(circuits.latency_ps),
        **buffer,
    }


def _device_mapping(device: Device) -> dict[str, object]:
    memory = None if device.memory_bytes is None else f"{device.memory_bytes} B"
    optional = {"gpu": device.gpu, "node": device.node, "rail": device.rail, "reduces": device.reduces or None,
                "memory": memory}  # fmt: skip
    values = {name: value for name, value in optional.items() if value is not None}
    return {"name": device.name, "kind": device.kind, **values, "forwards": device.forwards}


def _link_mappings(cluster: ClusterData) -> list[dict[str, object]]:
    """Return the links in order; a link followed by its reverse with the same numbers becomes one duplex entry."""
    entries = []
    names = plain_names(cluster)
    links, position = cluster.links, 0
    while position < len(links):
        link = links[position]
        entry = _link_mapping(cluster, link)
        plain = names[position] == link.name
        position += 1
        if not plain:
            entry["name"] = link.name
        elif position < len(links) and _reverses(link, links[position]) and names[position] == links[position].name:
            entry["duplex"] = True
            position += 1
        entries.append(entry)
    return entries


def plain_names(cluster: LinkedDevices) -> list[str]:
    """Return the names that unnamed links get on reading; parallel links are numbered."""
    links = cluster.link_table
    return list(EndNames(cluster.device_table.names, links.source, links.target))


def _link_mapping(cluster: ClusterData, link: Link) -> dict[str, object]:
    source, target = cluster.devices[link.source], cluster.devices[link.target]
    entry: dict[str, object] = {"from": source.name, "to": target.name}
    if link.medium is not None:
        entry["link"] = link.medium
    entry["bandwidth"] = exact_bandwidth(link.bytes_per_s)
    entry["latency"] = exact_time(link.latency_ps)
    if link.peak_bytes_per_s is not None:
        entry["peak"] = exact_bandwidth(link.peak_bytes_per_s)
    usual = HOST_LINK if HOST in (source.kind, target.kind) else SCALE_UP
    if link.medium is not None or link.link_class != usual:
        entry["class"] = link.link_class
    return entry


def _reverses(link: Link, following: Link) -> bool:
    """Return whether ``following`` is the reverse of ``link`` with the same numbers."""
    return (
        (following.source, following.target) == (link.target, link.source)
        and (following.bytes_per_s, following.latency_ps) == (link.bytes_per_s, link.latency_ps)
        and (following.link_class, following.medium) == (link.link_class, link.medium)
        and following.peak_bytes_per_s == link.peak_bytes_per_s
    )


def refuse_circuits(cluster: ClusterData, format: str) -> None:
    """Raise SpecError for a cluster with circuits, which only cluster files can represent."""
    if cluster.circuits is not None:
        raise SpecError(f"{format} has links only, and GPUs of {cluster.name!r} are joined by circuits: take yaml")


def exact_bandwidth(bytes_per_s: int) -> str:
    """Return a text such as ``"50 GB/s"`` in the largest unit that gives a whole number."""
    for factor, unit in ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s")):
        if bytes_per_s % factor == 0:
            return f"{bytes_per_s // factor} {unit}"
    return f"{bytes_per_s} B/s"


def exact_time(ps: int) -> str:
    """Return a text such as ``"1500 ns"`` in the largest unit that gives a whole number."""
    for factor, unit in ((PS_PER_S, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns")):
        if ps % factor == 0:
            return f"{ps // factor} {unit}" if ps else "0 s"
    return f"{ps} ps"


def fingerprint(cluster: ClusterData) -> str:
    """Return the SHA-256 of the whole cluster; columns and tuples of the same devices and links hash equally.

    Links named after their ends are hashed by their ends; other links are hashed with their names.
    """
    digest = hashlib.sha256()

    def add(value: object) -> None:
        digest.update(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())

    devices, links = cluster.device_table, cluster.link_table
    add(header(cluster))
    digest.update("\0".join(devices.names).encode())
    _add_coded(digest.update, add, devices.kind, devices.kinds)
    nodes, node = _in_order(np.where(devices.node < 0, len(devices.node_names), devices.node))
    names = [*devices.node_names, None]
    add([names[i] for i in nodes])
    digest.update(node)
    properties = [(k.bytes_per_s, k.latency_ps, k.link_class, k.medium, k.peak_bytes_per_s) for k in links.numbers]
    _add_coded(digest.update, add, links.number, properties)
    digest.update(links.source.astype("<i4").tobytes() + links.target.astype("<i4").tobytes())
    for entry in _own_names(cluster, devices, links):
        add(entry)
    return digest.hexdigest()


def _add_coded(update: Any, add: Any, codes: npt.NDArray[np.int32], meaning: Sequence[object]) -> None:
    """Hash the meanings of the codes in order of first occurrence, and the codes renumbered in that order."""
    order, numbered = _in_order(codes)
    add([meaning[code] for code in order])
    update(numbered)


def _in_order(codes: npt.NDArray[np.int32]) -> tuple[list[int], bytes]:
    """Return the codes in order of first occurrence, and each entry as its position in that list."""
    counted = counted_codes(codes)
    order = np.argsort(counted.first)
    rank = np.empty(len(order), np.dtype("<i4"))
    rank[order] = np.arange(len(order))
    return counted.values[order].tolist(), rank[counted.place].tobytes()


def _own_names(cluster: ClusterData, devices: DeviceTable, links: LinkTable) -> Iterator[tuple[int, str]]:
    """Yield (number, name) of the links that are not named after their ends."""
    layout = devices.layout
    if isinstance(links.names, EndNames) and links.names.are_of(devices.names, links.source, links.target):
        return
    if layout is None or layout is not links.layout or layout.trimmed:
        plain = plain_names(cluster)
        yield from ((i, name) for i, name in enumerate(links.names) if name != plain[i])
        return
    for block in layout.blocks:
        plain = plain_names(block.node)
        arrows = any("->" in device.name for device in block.node.devices)
        named = [i for i, name in enumerate(block.node.link_names) if arrows or name != plain[i]]
        for copy in range(block.count) if named else ():
            first = block.first_link + copy * len(plain)
            yield from ((first + i, links.names[first + i]) for i in named)
