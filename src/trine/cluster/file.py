"""Reader of cluster files (docs/formats/cluster.md). :mod:`trine.cluster.serialize` writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trine.cluster.cluster import Cluster
from trine.cluster.given_bandwidth import given_bandwidth
from trine.cluster.parts import (
    GPU,
    HOST,
    HOST_LINK,
    LEAVED,
    NIC,
    SCALE_UP,
    SWITCH,
    Circuits,
    Device,
    Fabric,
    Link,
    check_host_memory,
)
from trine.cluster.presets import (
    LinkType,
    gpu_of_cluster_file,
    is_file_name,
    known_clusters,
    link_named,
    preset_path,
)
from trine.cluster.routing.router import usual_routing
from trine.cluster.tables import LinkTable
from trine.errors import InputError, SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.schema import CircuitsSpec, ClusterFile, FabricSpec, LinkFields, LinkSpec, NodeSpec, TopologySpec

#: Maximum number of links in one file; more are treated as a mistake.
MAX_LINKS = 1 << 22
_RANGE = re.compile(r"(.*?)(\d{1,6})\.\.(\d{1,6})")


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster file. Raises SpecError: names file, field, value and the nearest valid name."""
    return _read(path, is_node=False)


def check_readable(cluster: Cluster, file: object) -> None:
    """Check that trine can read the cluster file that it would write; ``file``: the cluster's source.

    Raises SpecError: a name, medium or number that a cluster file does not allow; names it.
    """
    from trine.cluster.serialize import to_dict

    _without_base(str(file), to_dict(cluster), is_node=False)


def _read(path: str | os.PathLike[str], is_node: bool) -> Cluster:
    """Read a cluster file. ``is_node``: it is a node of another file, and may not itself hold nodes."""
    from trine.common.spec import with_bases

    *changes, (root, data) = with_bases(Path(path), _base)
    cluster = _without_base(os.fspath(path) if not changes else os.fspath(root), data, is_node)
    for place, change in reversed(changes):
        cluster = _changed(cluster, change, os.fspath(place))
    return cluster


def _base(base: object, path: Path) -> Path:
    """Return the file for the value of ``base:``."""
    if not isinstance(base, str):
        text = f"must be the name of a preset or of a cluster file, got {base!r:.80}"
        raise SpecError(text, file=path, field="base")
    if base in known_clusters():
        return preset_path(base)
    if is_file_name(base) or (path.parent / base).is_file():
        return path.parent / base
    hint = nearest(base[:80], known_clusters(), command="trine cluster list")
    raise SpecError(f"no cluster {base[:80]!r}{hint} (or give the path of a file)", file=path, field="base")


def _changed(base: Cluster, data: object, file: str) -> Cluster:
    """Return ``base`` with the changes of a file."""
    from trine.cluster.changed import changed
    from trine.cluster.schema import ChangedFile, ClusterFile
    from trine.common.spec import check

    if isinstance(data, Mapping):
        excluded = set(ClusterFile.model_fields) - set(ChangedFile.model_fields)
        for key in sorted(excluded & {str(key) for key in data}):
            raise SpecError("goes not with 'base', which has its own", file=file, field=key)
    spec = check(ChangedFile, data, file)
    try:
        return changed(base, spec, file, _indices, _fabric)
    except InputError as error:
        if error.file:
            raise
        raise SpecError(str(error), file=file) from None


def _without_base(file: str, data: object, is_node: bool) -> Cluster:
    """Build the cluster of a file without a base."""
    from trine.cluster.schema import ClusterFile
    from trine.common.spec import check

    spec = check(ClusterFile, data, file)
    try:
        cluster = _with_file_fields(spec, _build(spec, file, is_node), file)
        listed = spec.devices is not None and not is_node
        return cluster.routed(*usual_routing(cluster)) if listed and spec.routing is None else cluster
    except InputError as error:
        if error.file:
            raise
        raise SpecError(str(error), file=file) from None


def _build(spec: ClusterFile, file: str, is_node: bool) -> Cluster:
    if spec.node is not None or spec.nodes is not None:
        if is_node:
            raise SpecError("a node of another cluster may not itself hold nodes", file=file, field="nodes")
        return _from_nodes(spec, file)
    if spec.topology is not None:
        return _from_topology(spec, spec.topology, file)
    return _from_lists(spec, file)


def _with_file_fields(spec: ClusterFile, built: Cluster, file: str) -> Cluster:
    """Return the built cluster with the file's cluster-wide fields."""
    joined = spec.node is not None or spec.nodes is not None
    usual = None if joined or spec.fabric is None else _fabric(spec.fabric, file)
    reason = built.routing_reason if spec.routing is None else (spec.routing, "set in its file")
    library = spec.library or built.library
    inherited = built.sources if joined else {}
    base_notes = built.notes if joined else ""
    grid = built.grid if spec.grid is None else tuple(spec.grid)
    spread = built.spread if spec.spread is None else spec.spread
    peer_access = built.peer_access if spec.peer_access is None else spec.peer_access
    bandwidth = given_bandwidth(spec.collective_bandwidth, built, library, file)
    circuits = built.circuits if spec.circuits is None else _circuits(spec.circuits, file)
    return replace(
        built, name=spec.name or Path(file).stem, evidence=spec.evidence or (built.evidence if joined else "assumed"),
        sources={**inherited, **spec.sources}, notes=" ".join(text for text in (base_notes, spec.notes) if text),
        library=library, collective_bandwidth=bandwidth, routing=spec.routing or built.routing, routing_reason=reason,
        grid=grid, spread=spread, segment=spec.segment, fabric=usual, peer_access=peer_access, circuits=circuits,
    )  # fmt: skip


def _from_lists(spec: ClusterFile, file: str) -> Cluster:
    if spec.devices is None:
        raise SpecError("a cluster needs 'devices' (with 'links'), 'topology', or 'node'", file=file)
    if spec.host is not None:
        raise SpecError("goes with 'topology'; list hosts among the devices", file=file, field="host")
    devices = _devices(spec, file)
    index: dict[str, int] = {}
    for position, device in enumerate(devices):
        if index.setdefault(device.name, position) != position:
            raise SpecError(f"the name {device.name!r} is given twice", file=file, field="devices")
    rows: list[tuple[int, int, Link]] = []
    for number, link in enumerate(spec.links or []):
        _add_links(link, index, devices, rows, file, f"links[{number}]")
    return Cluster(name="", devices=devices, links=LinkTable.joined(tuple(index), rows))


def _devices(spec: ClusterFile, file: str) -> tuple[Device, ...]:
    devices: list[Device] = []
    for number, entry in enumerate(spec.devices or []):
        gpu = entry.gpu
        if gpu is not None:
            if entry.kind != GPU:
                raise SpecError(f"a {entry.kind} has no GPU model", file=file, field=f"devices[{number}].gpu")
            gpu = gpu_of_cluster_file(gpu, file, f"devices[{number}].gpu")
        if entry.per_node is not None and (entry.node is None or entry.count is None):
            raise SpecError("goes with 'node' and 'count'", file=file, field=f"devices[{number}].per_node")
        if entry.reduces and entry.kind != SWITCH:
            raise SpecError(f"a {entry.kind} reduces nothing", file=file, field=f"devices[{number}].reduces")
        if entry.memory is not None:
            check_host_memory(entry.kind, entry.memory, file, f"devices[{number}].memory")
        forwards = entry.kind in (SWITCH, NIC) if entry.forwards is None else entry.forwards
        common: dict[str, Any] = {"kind": entry.kind, "gpu": gpu, "forwards": forwards, "reduces": entry.reduces,
                                  "memory_bytes": entry.memory}  # fmt: skip
        for i in range(entry.count or 1):
            name = entry.name if entry.count is None else f"{entry.name}{i}"
            node = f"{entry.node}{i // entry.per_node}" if entry.per_node else entry.node
            rail = None if entry.rail is None else entry.rail + i
            devices.append(Device(name=name, node=node, rail=rail, **common))
    return tuple(devices)


def _add_links(
    link: LinkSpec, index: Mapping[str, int], devices: tuple[Device, ...], rows: list[tuple[int, int, Link]],
    file: str, field: str,
) -> None:  # fmt: skip
    sources = _indices(link.source, index, file, f"{field}.from")
    targets = _indices(link.target, index, file, f"{field}.to")
    if len(rows) + 2 * len(sources) * (1 if link.pairs else len(targets)) > MAX_LINKS:
        raise SpecError(f"more than {MAX_LINKS} links", file=file, field=field)
    if link.pairs:
        ends = _pairs(sources, targets, file, field)
    else:
        ends = [(a, b) for a in sources for b in targets]
    if link.name is not None and (len(ends) > 1 or link.duplex):
        raise SpecError("a name belongs to one link in one direction", file=file, field=f"{field}.name")
    numbers = replace(_numbers(link, file, field), name=link.name or "")
    of_class: dict[str, Link] = {}
    for source, target in ends:
        if source == target:
            raise SpecError(f"joins {devices[source].name!r} to itself", file=file, field=field)
        link_class = link.link_class or (numbers.link_class if link.link else _class(devices[source], devices[target]))
        if link_class not in of_class:
            of_class[link_class] = replace(numbers, link_class=link_class)
        rows.append((source, target, of_class[link_class]))
        if link.duplex:
            rows.append((target, source, of_class[link_class]))


def _pairs(sources: list[int], targets: list[int], file: str, field: str) -> list[tuple[int, int]]:
    """Pair the first with the first, and so on; consecutive items of the longer list share one of the shorter."""
    longer, shorter = max(len(sources), len(targets)), min(len(sources), len(targets))
    if longer % shorter:
        hint = f"pairs {len(sources)} devices with {len(targets)}, which do not divide evenly"
        raise SpecError(hint, file=file, field=field)
    return [(sources[i * len(sources) // longer], targets[i * len(targets) // longer]) for i in range(longer)]


def _class(source: Device, target: Device) -> str:
    """Return the class of a link given by bare numbers."""
    return HOST_LINK if HOST in (source.kind, target.kind) else SCALE_UP


def _indices(names: list[str], index: Mapping[str, int], file: str, field: str) -> list[int]:
    """Return the device indices of names; ``gpu0..7`` means gpu0 to gpu7 unless a device has exactly that name."""
    return [index[name] for text in names for name in _spelt_out(text, index, file, field)]


def _spelt_out(text: str, index: Mapping[str, int], file: str, field: str) -> Iterator[str]:
    match = None if text in index else _RANGE.fullmatch(text)
    if match is None:
        names = [text]
    else:
        names = [f"{match[1]}{i}" for i in range(int(match[2]), int(match[3]) + 1)]
    if not names:
        raise SpecError(f"the range {text!r} is empty", file=file, field=field)
    for name in names:
        if name not in index:
            raise SpecError(f"unknown device {name!r}{nearest(name, index)}", file=file, field=field)
        yield name


def _numbers(link: LinkFields, file: str, field: str) -> Link:
    """Return a link without ends, with the given numbers or else the catalogue's."""
    from trine.cluster.schema import JoiningLink

    own_peak = link.peak if isinstance(link, JoiningLink) else None
    if link.link is None:
        for name in ("bandwidth", "latency"):
            if getattr(link, name) is None:
                hint = f"is missing (or name a kind of link: 'link: {'nvlink4' if name == 'bandwidth' else 'pcie5'}')"
                raise SpecError(hint, file=file, field=f"{field}.{name}")
        if link.lanes is not None:
            raise SpecError("goes with 'link'", file=file, field=f"{field}.lanes")
        return Link(bytes_per_s=link.bandwidth or 0, latency_ps=link.latency or 0, peak_bytes_per_s=own_peak)
    kind = _kind(link.link, file, f"{field}.link")
    if link.bandwidth is not None and link.lanes is not None:
        raise SpecError("has no effect beside 'bandwidth'", file=file, field=f"{field}.lanes")
    lanes = link.lanes or 1
    peak = kind.peak_bytes_per_s * lanes if link.bandwidth is None else None
    return Link(
        bytes_per_s=link.bandwidth or kind.bytes_per_s * lanes,
        latency_ps=kind.latency_ps if link.latency is None else link.latency,
        link_class=kind.link_class,
        medium=kind.name,
        peak_bytes_per_s=own_peak or peak,
    )


def _kind(name: str, file: str, field: str) -> LinkType:
    try:
        return link_named(name)
    except SpecError as error:
        raise SpecError(str(error), file=file, field=field) from None


def _fabric(spec: FabricSpec, file: str) -> Fabric:
    _kind(spec.link, file, "fabric.link")
    for name in ("oversubscription", "radix"):
        if spec.kind not in LEAVED and getattr(spec, name) is not None:
            raise SpecError(f"a {spec.kind} fabric has no leaf switches", file=file, field=f"fabric.{name}")
    return Fabric(
        kind=spec.kind, link=spec.link, lanes=spec.lanes, oversubscription=spec.oversubscription or 1.0,
        radix=spec.radix or 64, reduces=spec.reduces, latency_ps=spec.latency,
    )  # fmt: skip


def _circuits(spec: CircuitsSpec, file: str) -> Circuits:
    if spec.buffer is not None and spec.buffer < 1:
        raise SpecError("must be positive; leave it out for an unlimited buffer", file=file, field="circuits.buffer")
    return Circuits(
        setup_ps=spec.setup, ports=spec.ports, bytes_per_s=spec.bandwidth, latency_ps=spec.latency,
        buffer_bytes=spec.buffer,
    )  # fmt: skip


def _from_nodes(spec: ClusterFile, file: str) -> Cluster:
    from trine.cluster.join import join_nodes, with_joint_nics

    for name in ("devices", "links", "topology", "host", "grid"):
        if getattr(spec, name) is not None:
            raise SpecError("goes not with 'node' or 'nodes'", file=file, field=name)
    if spec.node is not None and spec.nodes is not None:
        raise SpecError("give 'node' or 'nodes', not both", file=file, field="node")
    entries = [spec.node] if spec.node is not None else spec.nodes or []
    nodes: list[Cluster] = []
    for number, entry in enumerate(entries):
        field = "node" if spec.node is not None else f"nodes[{number}]"
        nodes.extend([_node(entry, file, field)] * entry.count)
    fabric = nodes[0].fabric if spec.fabric is None else _fabric(spec.fabric, file)
    if len(entries) == 1 and entries[0].gpus is None:
        node, fabric = with_joint_nics(nodes[0], fabric)
        nodes = [node] * len(nodes)
    return join_nodes(nodes, fabric, name=spec.name or Path(file).stem)


def _node(entry: NodeSpec, file: str, field: str) -> Cluster:
    if (entry.preset is None) == (entry.file is None):
        raise SpecError("give 'preset' or 'file'", file=file, field=field)
    if entry.preset is not None and entry.preset not in known_clusters():
        hint = f"unknown preset {entry.preset!r}{nearest(entry.preset, known_clusters(), command='trine cluster list')}"
        raise SpecError(hint, file=file, field=f"{field}.preset")
    path = preset_path(entry.preset) if entry.preset is not None else Path(file).parent / str(entry.file)
    node = _read(path, is_node=True)
    if entry.gpus is None:
        return node
    from trine.cluster.select import first_gpus

    return first_gpus(node, entry.gpus)


def _from_topology(spec: ClusterFile, topology: TopologySpec, file: str) -> Cluster:
    from trine.cluster.topologies import add_host, build_topology

    for name, entries in (("devices", spec.devices), ("links", spec.links)):
        if entries is not None:
            raise SpecError("goes not with 'topology', which makes its own", file=file, field=name)
    gpu = None if topology.gpu is None else gpu_of_cluster_file(topology.gpu, file, "topology.gpu")
    text, gpus = _topology_text(topology, file)
    link = _numbers(topology, file, "topology")
    cluster = build_topology(text, link.bytes_per_s, link.latency_ps, gpus, gpu, medium=topology.link)
    if spec.host is None:
        return cluster
    if spec.host.memory is not None:
        check_host_memory(HOST, spec.host.memory, file, "host.memory")
    return add_host(cluster, spec.host.bandwidth, spec.host.latency, spec.host.gpus_per_link, spec.host.memory)


def _topology_text(topology: TopologySpec, file: str) -> tuple[str, int]:
    """Return the argument of build_topology and the number of GPUs; refuse fields that the kind does not use."""
    uses = {"mesh": ("rows", "cols"), "torus": ("rows", "cols"), "wafer": ("rows", "cols"), "tree": ("arity",)}
    for name in ("rows", "cols", "arity"):
        if name not in uses.get(topology.kind, ()) and getattr(topology, name) is not None:
            raise SpecError(f"a {topology.kind} has no {name}", file=file, field=f"topology.{name}")
    if topology.kind in ("mesh", "torus", "wafer"):
        if topology.rows is None or topology.cols is None:
            hint = f"a {topology.kind} needs 'rows' and 'cols', or 'kind: {topology.kind}:4x4x4'"
            raise SpecError(hint, file=file, field="topology")
        gpus = topology.rows * topology.cols if topology.gpus is None else topology.gpus
        return f"{topology.kind}:{topology.rows}x{topology.cols}", gpus
    if topology.gpus is None:
        from trine.cluster.topologies import implied_gpus

        implied = implied_gpus(topology.kind)
        if implied is None:
            raise SpecError("is missing", file=file, field="topology.gpus")
        return topology.kind, implied
    return topology.kind if topology.arity is None else f"{topology.kind}:{topology.arity}", topology.gpus
