"""Cluster files: read, checked, and written (docs/formats/cluster.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.cluster import GPU, NIC, SWITCH, Cluster, Device, make_links
from trine.cluster.gpus import load_gpu
from trine.cluster.topologies import add_host, build_topology
from trine.errors import InputError, SpecError, nearest
from trine.units import PS_PER_S

if TYPE_CHECKING:
    from trine.cluster.schema import ClusterFile, LinkSpec, TopologySpec

#: More links than this in one file are taken for a mistake.
MAX_LINKS = 1 << 22


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster file.

    Raises
    ------
    SpecError: names file, field, value and the nearest valid name.
    """
    from trine.cluster.schema import ClusterFile
    from trine.spec import read_spec

    file = os.fspath(path)
    spec = read_spec(path, ClusterFile)
    try:
        built = _from_lists(spec, file) if spec.topology is None else _from_topology(spec, spec.topology, file)
        return Cluster(
            name=spec.name or Path(file).stem,
            devices=built.devices,
            links=built.links,
            evidence=spec.evidence,
            sources=spec.sources,
            notes=spec.notes,
        )
    except InputError as error:
        if error.file:
            raise
        raise SpecError(str(error), file=file) from None


def _from_lists(spec: ClusterFile, file: str) -> Cluster:
    if spec.devices is None:
        raise SpecError("a cluster needs 'devices' (with 'links') or 'topology'", file=file)
    if spec.host is not None:
        raise SpecError("goes with 'topology'; list hosts among the devices", file=file, field="host")
    devices = _devices(spec, file)
    index: dict[str, int] = {}
    for position, device in enumerate(devices):
        if index.setdefault(device.name, position) != position:
            raise SpecError(f"the name {device.name!r} is given twice", file=file, field="devices")
    wires: list[tuple[int, int, int, int]] = []
    for number, link in enumerate(spec.links or []):
        _add_wires(link, index, wires, file, f"links[{number}]")
    return Cluster(name="", devices=devices, links=make_links(devices, wires))


def _devices(spec: ClusterFile, file: str) -> tuple[Device, ...]:
    devices: list[Device] = []
    for number, entry in enumerate(spec.devices or []):
        if entry.gpu is not None:
            if entry.kind != GPU:
                raise SpecError(f"a {entry.kind} has no GPU model", file=file, field=f"devices[{number}].gpu")
            _check_gpu(entry.gpu, file, f"devices[{number}].gpu")
        names = [entry.name] if entry.count is None else [f"{entry.name}{i}" for i in range(entry.count)]
        forwards = entry.kind in (SWITCH, NIC) if entry.forwards is None else entry.forwards
        devices.extend(
            Device(name=name, kind=entry.kind, gpu=entry.gpu, node=entry.node, forwards=forwards) for name in names
        )
    return tuple(devices)


def _add_wires(
    link: LinkSpec, index: Mapping[str, int], wires: list[tuple[int, int, int, int]], file: str, field: str
) -> None:
    for end, names in (("from", link.source), ("to", link.target)):
        for name in names:
            if name not in index:
                raise SpecError(f"unknown device {name!r}{nearest(name, index)}", file=file, field=f"{field}.{end}")
    if len(wires) + 2 * len(link.source) * len(link.target) > MAX_LINKS:
        raise SpecError(f"more than {MAX_LINKS} links", file=file, field=field)
    for source in link.source:
        for target in link.target:
            if source == target:
                raise SpecError(f"joins {source!r} to itself", file=file, field=field)
            wires.append((index[source], index[target], link.bandwidth, link.latency))
            if link.duplex:
                wires.append((index[target], index[source], link.bandwidth, link.latency))


def _from_topology(spec: ClusterFile, topology: TopologySpec, file: str) -> Cluster:
    for name, given in (("devices", spec.devices), ("links", spec.links)):
        if given is not None:
            raise SpecError("goes not with 'topology', which makes its own", file=file, field=name)
    if topology.gpu is not None:
        _check_gpu(topology.gpu, file, "topology.gpu")
    text, gpus = _topology_text(topology, file)
    cluster = build_topology(text, topology.bandwidth, topology.latency, gpus, topology.gpu)
    if spec.host is None:
        return cluster
    return add_host(cluster, spec.host.bandwidth, spec.host.latency, spec.host.gpus_per_link)


def _topology_text(topology: TopologySpec, file: str) -> tuple[str, int]:
    """The argument of build_topology and the number of GPUs; fields that the kind does not use are refused."""
    uses = {"mesh": ("rows", "cols"), "torus": ("rows", "cols"), "tree": ("arity",)}.get(topology.kind, ())
    for name in ("rows", "cols", "arity"):
        if name not in uses and getattr(topology, name) is not None:
            raise SpecError(f"a {topology.kind} has no {name}", file=file, field=f"topology.{name}")
    if topology.kind in ("mesh", "torus"):
        if topology.rows is None or topology.cols is None:
            raise SpecError(f"a {topology.kind} needs 'rows' and 'cols'", file=file, field="topology")
        gpus = topology.rows * topology.cols if topology.gpus is None else topology.gpus
        return f"{topology.kind}:{topology.rows}x{topology.cols}", gpus
    if topology.gpus is None:
        raise SpecError("is missing", file=file, field="topology.gpus")
    return topology.kind if topology.arity is None else f"{topology.kind}:{topology.arity}", topology.gpus


def _check_gpu(name: str, file: str, field: str) -> None:
    try:
        load_gpu(name)
    except SpecError as error:
        raise SpecError(str(error), file=file, field=field) from None


def to_mapping(cluster: Cluster) -> dict[str, object]:
    """The cluster as a cluster file holds it, in the full form."""
    data: dict[str, object] = {"name": cluster.name, "evidence": cluster.evidence}
    if cluster.notes:
        data["notes"] = cluster.notes
    if cluster.sources:
        data["sources"] = dict(cluster.sources)
    data["devices"] = [_device_mapping(device) for device in cluster.devices]
    data["links"] = _link_mappings(cluster)
    return data


def _device_mapping(device: Device) -> dict[str, object]:
    optional = {"gpu": device.gpu, "node": device.node}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"name": device.name, "kind": device.kind, **given, "forwards": device.forwards}


def _link_mappings(cluster: Cluster) -> list[dict[str, object]]:
    """Links in order; one followed by its reverse with the same numbers becomes one duplex entry."""
    entries = []
    links, position = cluster.links, 0
    while position < len(links):
        link = links[position]
        entry: dict[str, object] = {
            "from": cluster.devices[link.source].name,
            "to": cluster.devices[link.target].name,
            "bandwidth": exact_bandwidth(link.bytes_per_s),
            "latency": exact_time(link.latency_ps),
        }
        position += 1
        reverse = (link.target, link.source, link.bytes_per_s, link.latency_ps)
        if position < len(links):
            after = links[position]
            if (after.source, after.target, after.bytes_per_s, after.latency_ps) == reverse:
                entry["duplex"] = True
                position += 1
        entries.append(entry)
    return entries


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
