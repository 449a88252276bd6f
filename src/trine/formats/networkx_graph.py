"""networkx graphs, and their node-link form in files, as clusters. networkx itself is never imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, LINK_CLASSES, NIC, SWITCH, Device, Link, check_host_memory
from trine.cluster.presets import load_gpu
from trine.cluster.serialize import refuse_circuits
from trine.common.schema import show
from trine.common.units import parse_bandwidth, parse_time
from trine.errors import InputError, SpecError, nearest
from trine.formats.media import LinkChoices, check_links_from
from trine.formats.reader import (
    Cable,
    Element,
    TopologyBuilder,
    assemble,
    class_between,
    gpu_named,
    kind_named,
    parse_xml,
)

_NODE_KEYS = ("kind", "type", "gpu", "node", "forwards", "reduces", "rail", "memory_bytes")
_EDGE_KEYS = ("bandwidth", "latency", "class", "medium", "link", "peak_bandwidth")
#: Attributes that InfraGraph adds to the nodes of its expanded graphs; they repeat the names.
_INFRAGRAPH_KEYS = ("instance", "instance_idx", "device", "composed_device")


def from_networkx(
    graph: Any, *, name: str | None = None, gpu: str | None = None, links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:  # fmt: skip
    """Return a cluster from a networkx Graph, MultiGraph, DiGraph or MultiDiGraph.

    Node attributes: ``kind`` or ``type`` (gpu, host, nic, switch, or xpu, cpu, port, ...), ``gpu``, ``node``,
    ``forwards``, ``reduces``, ``rail``, ``memory_bytes``. Edge attributes: ``bandwidth`` and ``latency`` (text with
    units, or bytes/s and ps), ``class``, ``medium`` or ``link``, ``peak_bandwidth``. An edge of a directed graph is a
    link in one direction, an edge of an undirected graph is a link in both.

    links, links_from: as for InfraGraph, for edges without numbers, by their ``medium`` or ``link``.

    Raises SpecError: an unknown attribute or kind, links without numbers.
    """
    nodes = [(str(node), dict(attributes)) for node, attributes in graph.nodes(data=True)]
    edges = [(str(a), str(b), dict(attributes)) for a, b, attributes in graph.edges(data=True)]
    label = name or str(graph.graph.get("name") or "graph")
    return _cluster(nodes, edges, bool(graph.is_directed()), label, label, gpu, links, links_from)


def node_link_cluster(
    data: Mapping[str, Any], file: str, gpu: str | None = None, links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:  # fmt: skip
    """Return a cluster from networkx' node-link data (``nodes`` with ``id``, ``edges`` or ``links``)."""
    entries = data.get("edges", data.get("links"))
    if not isinstance(data.get("nodes"), list) or not isinstance(entries, list):
        raise SpecError("node-link data needs lists 'nodes' and 'edges'", file=file)
    for key in data:
        if key not in ("nodes", "edges", "links", "directed", "multigraph", "graph"):
            raise SpecError(f"unknown key {show(key)}", file=file)
    nodes, edges = [], []
    for number, entry in enumerate(data["nodes"]):
        if not isinstance(entry, dict) or "id" not in entry:
            raise SpecError("a node needs an 'id'", file=file, field=f"nodes[{number}]")
        nodes.append((str(entry["id"]), {key: value for key, value in entry.items() if key != "id"}))
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not {"source", "target"} <= set(entry):
            raise SpecError("an edge needs 'source' and 'target'", file=file, field=f"edges[{number}]")
        attributes = {key: value for key, value in entry.items() if key not in ("source", "target", "key")}
        edges.append((str(entry["source"]), str(entry["target"]), attributes))
    graph = data.get("graph") or {}
    label = str(graph.get("name") or "graph") if isinstance(graph, dict) else "graph"
    return _cluster(nodes, edges, bool(data.get("directed", False)), label, file, gpu, links, links_from)


_BOOLEANS = {"true": True, "false": False}
#: Types of GraphML's keys -> parsers of their text.
_GRAPHML_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": lambda text: _BOOLEANS[text.lower()],
}


def graphml_cluster(
    text: str, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None, links_from: str | None = None
) -> Cluster:
    """Return a cluster from GraphML, as written by :func:`graphml_text` and networkx."""
    root = parse_xml(text, file)
    graphs = root.all("graph")
    if len(graphs) != 1:
        raise SpecError(f"must hold one <graph>, has {len(graphs)}", file=f"{file}:{root.line}")
    keys = {key.get("id"): key for key in root.all("key")}

    def attributes(element: Element) -> dict[str, Any]:
        values = {}
        for data in element.all("data"):
            key = keys.get(data.get("key"))
            if key is None:
                raise SpecError(f"no <key> has the id {show(data.get('key'))}", file=f"{file}:{data.line}")
            try:
                values[key.get("attr.name")] = _GRAPHML_TYPES.get(key.get("attr.type"), str)(data.text.strip())
            except (ValueError, KeyError):
                message = f"{key.get('attr.name')}: must be of type {key.get('attr.type')}, got {show(data.text)}"
                raise SpecError(message, file=f"{file}:{data.line}") from None
        return values

    (graph,) = graphs
    nodes = [(node.get("id"), attributes(node)) for node in graph.all("node")]
    edges = [(edge.get("source"), edge.get("target"), attributes(edge)) for edge in graph.all("edge")]
    name = str(attributes(graph).get("name") or "graph")
    return _cluster(nodes, edges, graph.get("edgedefault") == "directed", name, file, gpu, links, links_from)


def _cluster(
    nodes: list[tuple[str, dict[str, Any]]], edges: list[tuple[str, str, dict[str, Any]]], directed: bool, name: str,
    file: str, gpu: str | None, links: Mapping[str, str] | None, links_from: str | None,
) -> Cluster:  # fmt: skip
    check_links_from(links_from)
    gpu = gpu_named(gpu)
    draft = TopologyBuilder(file)
    for label, attributes in nodes:
        draft.add(_device(label, attributes, gpu, file))
    choices = LinkChoices(given=links or {}, from_catalogue=links_from is not None)
    lacking: dict[str, None] = {}
    for a, b, attributes in edges:
        for end in (a, b):
            if end not in draft.index:
                raise SpecError(f"an edge joins {end!r}{nearest(end, draft.index)}, which is no node", file=file)
        ends = draft.index[a], draft.index[b]
        rates = _rates(attributes, draft.devices[ends[0]], draft.devices[ends[1]], choices, lacking, f"{a} - {b}", file)
        draft.join(*ends, rates)
    if lacking:
        raise SpecError(
            f"links without bandwidth or latency: {', '.join(list(lacking)[:20])}. Give each one, as in "
            "--link NAME=ENTRY or --link 'NAME=50 GB/s, 1 us' (links={...} in Python), or --links-from catalogue",
            file=file,
        )
    choices.check_all_used({str(attributes.get("medium", attributes.get("link"))) for _, _, attributes in edges})
    wires = [wire._replace(one_way=directed) for wire in draft.wires]
    sources = {"links": f"{name}, a graph", **choices.used}
    return assemble(name, draft.devices, _paired(wires) if directed else wires, file=file, sources=sources)


def _paired(wires: list[Cable]) -> list[Cable]:
    """Merge each one-way wire with the first wire back, so that files list both as one."""
    open_wires: dict[tuple[int, int], list[int]] = {}
    paired: list[Cable | None] = []
    for wire in wires:
        back = open_wires.get((wire.b, wire.a))
        if back:
            place = back.pop(0)
            first = paired[place]
            assert first is not None
            paired[place] = first._replace(one_way=False, back=wire.link)
            continue
        open_wires.setdefault((wire.a, wire.b), []).append(len(paired))
        paired.append(wire)
    return [wire for wire in paired if wire is not None]


def _device(name: str, attributes: dict[str, Any], gpu: str | None, file: str) -> Device:
    for key in attributes:
        if key not in (*_NODE_KEYS, *_INFRAGRAPH_KEYS):
            raise SpecError(f"node {name!r}: unknown attribute {show(key)}{nearest(str(key), _NODE_KEYS)}", file=file)
    kind = _kind(name, attributes, file)
    forwards = attributes.get("forwards")
    node = attributes.get("node")
    if node is None and "instance" in attributes:
        node = f"{attributes['instance']}.{attributes.get('instance_idx', 0)}"
    model = attributes.get("gpu", gpu if kind == GPU else None)
    if model is not None:
        load_gpu(str(model))
    rail = attributes.get("rail")
    if rail is not None and (isinstance(rail, bool) or not isinstance(rail, int)):
        raise SpecError(f"node {name!r}: rail must be a whole number, got {show(rail)}", file=file)
    memory = attributes.get("memory_bytes")
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int):
            raise SpecError(f"node {name!r}: memory_bytes must be a whole number, got {show(memory)}", file=file)
        check_host_memory(kind, memory, file, f"node {name!r}")
    gpu_name = None if model is None else str(model)
    node_name = None if node is None else str(node)
    forwards_messages = kind in (SWITCH, NIC, HOST) if forwards is None else bool(forwards)
    return Device(
        name=name, kind=kind, gpu=gpu_name, node=node_name, forwards=forwards_messages,
        reduces=bool(attributes.get("reduces", False)), rail=rail, memory_bytes=memory,
    )  # fmt: skip


def _kind(name: str, attributes: dict[str, Any], file: str) -> str:
    """Return the kind of a node; InfraGraph's expanded graphs call it type, and may contain user-defined types."""
    if "kind" not in attributes and "composed_device" in attributes:
        kinds = {"xpu": GPU, "cpu": HOST, "nic": NIC, "memory": HOST}
        return kinds.get(str(attributes.get("type")), SWITCH)
    return kind_named(str(attributes.get("kind", attributes.get("type", GPU))), file, f"node {name!r}")


def _rates(
    attributes: dict[str, Any], a: Device, b: Device, choices: LinkChoices, lacking: dict[str, None], edge: str,
    file: str,
) -> Link:  # fmt: skip
    for key in attributes:
        if key not in (*_EDGE_KEYS, "id"):  # networkx.read_graphml adds the name of the edge
            raise SpecError(f"edge {edge}: unknown attribute {show(key)}{nearest(str(key), _EDGE_KEYS)}", file=file)
    link_class = attributes.get("class")
    if link_class is not None and link_class not in LINK_CLASSES:
        raise SpecError(f"edge {edge}: unknown class {show(link_class)}; known: {', '.join(LINK_CLASSES)}", file=file)
    medium = attributes.get("medium", attributes.get("link"))
    rates = Link(
        bytes_per_s=0, latency_ps=0, link_class=link_class or class_between(a, b), medium=attributes.get("medium")
    )
    bandwidth, latency = attributes.get("bandwidth"), attributes.get("latency")
    if bandwidth is None or latency is None:
        choice = choices.choice("", str(medium), "") if medium is not None else None
        if choice is None:
            lacking[str(medium or edge)] = None
            return replace(rates, bytes_per_s=1)
        usual = choice.rates(rates.link_class)
        rates = replace(usual, link_class=link_class or usual.link_class)
    if bandwidth is not None:
        rates = replace(rates, bytes_per_s=parse_bandwidth(bandwidth, f"{edge}: bandwidth", base=True))
    if latency is not None:
        text = isinstance(latency, str)
        rates = replace(rates, latency_ps=parse_time(latency if text else f"{latency} ps", f"{edge}: latency"))
    peak = attributes.get("peak_bandwidth")
    return rates if peak is None else replace(rates, peak_bytes_per_s=parse_bandwidth(peak, f"{edge}: peak", base=True))


def to_networkx(cluster: Cluster) -> Any:
    """Return a ``networkx.MultiDiGraph`` with a node per device and an edge per link.

    Node attributes: ``kind``, ``gpu``, ``node``, ``forwards``, ``reduces``, ``rail``, ``memory_bytes``; edge
    attributes: ``bandwidth`` (bytes/s), ``latency`` (ps), ``class``, ``medium``, ``peak_bandwidth``. None values are
    omitted.
    The graph has the cluster's ``name``. :func:`trine.formats.networkx_graph.from_networkx` is the inverse.

    Raises InputError if networkx is not installed, SpecError for a cluster with circuits.
    """
    refuse_circuits(cluster, "a graph")
    networkx = _networkx()
    graph = networkx.MultiDiGraph(name=cluster.name)
    for device in cluster.devices:
        attributes = {key: getattr(device, key) for key in _NODE_KEYS if key != "type"}
        graph.add_node(device.name, **_without_none(attributes))
    names = [device.name for device in cluster.devices]
    for link in cluster.links:
        attributes = {
            "bandwidth": link.bytes_per_s,
            "latency": link.latency_ps,
            "class": link.link_class,
            "medium": link.medium,
            "peak_bandwidth": link.peak_bytes_per_s,
        }
        graph.add_edge(names[link.source], names[link.target], key=link.name, **_without_none(attributes))
    return graph


def graphml_text(cluster: Cluster) -> str:
    """Return GraphML, which Gephi, yEd and others read, with the attributes of :func:`to_networkx`."""
    return "\n".join(_networkx().generate_graphml(to_networkx(cluster))) + "\n"


def _without_none(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise InputError("this needs networkx: pip install networkx") from None
    return networkx
