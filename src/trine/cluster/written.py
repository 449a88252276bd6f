"""Clusters as the plain data of a cluster file, in the full form, which reads back equal."""

from __future__ import annotations

from trine.cluster.circuits import Circuits
from trine.cluster.data import SHORTEST, ClusterData
from trine.cluster.parts import HOST, HOST_LINK, LEAVED, SCALE_UP, Device, Fabric, Link
from trine.cluster.routing import usual_routing
from trine.cluster.tables import Wiring
from trine.errors import SpecError
from trine.units import PS_PER_S


def to_yaml(cluster: ClusterData) -> str:
    """The text of a cluster file, in the full form."""
    from trine.spec import dump_yaml

    return dump_yaml(to_mapping(cluster))


def to_mapping(cluster: ClusterData) -> dict[str, object]:
    """The cluster as a cluster file holds it, in the full form."""
    data = header(cluster)
    if cluster.routing == SHORTEST and usual_routing(cluster)[0] != SHORTEST:
        data["routing"] = SHORTEST
    data["devices"] = [_device_mapping(device) for device in cluster.devices]
    data["links"] = _link_mappings(cluster)
    return data


def header(cluster: ClusterData) -> dict[str, object]:
    """What a cluster file says besides devices and links."""
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
    if cluster.circuits is not None:
        data["circuits"] = _circuits_mapping(cluster.circuits)
    return data


def _fabric_mapping(fabric: Fabric) -> dict[str, object]:
    leaves = {"oversubscription": fabric.oversubscription, "radix": fabric.radix} if fabric.kind in LEAVED else {}
    return {"kind": fabric.kind, "link": fabric.link, "lanes": fabric.lanes, **leaves, "reduces": fabric.reduces}


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
    optional = {"gpu": device.gpu, "node": device.node, "rail": device.rail, "reduces": device.reduces or None}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"name": device.name, "kind": device.kind, **given, "forwards": device.forwards}


def _link_mappings(cluster: ClusterData) -> list[dict[str, object]]:
    """Links in order; one followed by its reverse with the same numbers becomes one duplex entry."""
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


def plain_names(cluster: Wiring) -> list[str]:
    """The names that reading gives links without one: numbered between the same ends."""
    seen: dict[tuple[int, int], int] = {}
    names = []
    for link in cluster.links:
        count = seen[link.source, link.target] = seen.get((link.source, link.target), 0) + 1
        name = f"{cluster.devices[link.source].name}->{cluster.devices[link.target].name}"
        names.append(name if count == 1 else f"{name}#{count}")
    return names


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


def _reverses(link: Link, after: Link) -> bool:
    """Whether ``after`` is the other direction of ``link`` with the same numbers."""
    return (
        (after.source, after.target) == (link.target, link.source)
        and (after.bytes_per_s, after.latency_ps) == (link.bytes_per_s, link.latency_ps)
        and (after.link_class, after.medium) == (link.link_class, link.medium)
        and after.peak_bytes_per_s == link.peak_bytes_per_s
    )


def refuse_circuits(cluster: ClusterData, format: str) -> None:
    """Raise SpecError for a cluster with circuits, which only cluster files have a place for."""
    if cluster.circuits is not None:
        raise SpecError(f"{format} has links only, and GPUs of {cluster.name!r} are joined by circuits: take yaml")


def exact_bandwidth(bytes_per_s: int) -> str:
    """``"50 GB/s"``: the largest unit in which the number is whole."""
    for factor, unit in ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s")):
        if bytes_per_s % factor == 0:
            return f"{bytes_per_s // factor} {unit}"
    return f"{bytes_per_s} B/s"


def exact_time(ps: int) -> str:
    """``"1500 ns"``: the largest unit in which the number is whole."""
    for factor, unit in ((PS_PER_S, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns")):
        if ps % factor == 0:
            return f"{ps // factor} {unit}" if ps else "0 s"
    return f"{ps} ps"
