"""Write any cluster as an InfraGraph infrastructure that reads back equal (docs/formats/infragraph.md).

Each host becomes an instance, and equal hosts share one device type; devices without a host become the instance
``fabric``. Data without a field in InfraGraph becomes JSON in descriptions, which other readers ignore.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple

import yaml

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, NIC, SWITCH, Device, Fabric, Link
from trine.cluster.serialize import refuse_circuits
from trine.errors import SpecError
from trine.formats.infragraph.parts import MARK
from trine.formats.infragraph.read import infragraph_cluster
from trine.formats.reader import Cable

_CHOICES = {GPU: "xpu", HOST: "cpu", NIC: "nic", SWITCH: "switch"}
#: An endpoint: instance (None within a device), component, number.
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]")


class _End(NamedTuple):
    """End of an edge: an instance (None inside a device), a component, and its number."""

    instance: str | None
    component: str
    number: int


def to_infragraph(cluster: Cluster, *, lossy: bool = False) -> dict[str, Any]:
    """Return an Infrastructure as plain data.

    lossy: links whose two directions differ get the slower numbers both ways; the notes count them.

    Raises SpecError: such links without ``lossy``; a cluster with circuits.
    """
    refuse_circuits(cluster, "InfraGraph")
    wires = two_way_wires(cluster, lossy=lossy)
    missing = lost(cluster, wires) if lossy else 0
    if missing:
        note = f"exported with {missing} links made alike in both directions"
        cluster = replace(cluster, notes=f"{cluster.notes}\n{note}".strip())
    data = _Export(cluster, wires).data()
    peer_access = None if cluster.peer_access is None else ("no", "yes")[cluster.peer_access]
    fabric = None if cluster.fabric is None else _fields(cluster.fabric)
    extra = {
        "evidence": cluster.evidence,
        "sources": dict(cluster.sources),
        "notes": cluster.notes,
        "library": cluster.library,
        "routing": cluster.routing,
        "grid": list(cluster.grid),
        "peer_access": peer_access,
        "fabric": fabric,
    }
    _put_order(data, extra, cluster)
    if missing == 0 and infragraph_cluster(data, cluster.name) != cluster:
        raise SpecError(f"cluster {cluster.name!r} does not read back equal from InfraGraph; please report this")
    return data


def infragraph_text(cluster: Cluster, *, as_json: bool = False, lossy: bool = False) -> str:
    """Return the result of :func:`to_infragraph` as the text of a YAML or JSON file."""
    data = to_infragraph(cluster, lossy=lossy)
    if as_json:
        return json.dumps(data, indent=1, allow_nan=False) + "\n"
    return yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=False, width=1 << 30)


def _mark(extra: Mapping[str, object]) -> str:
    return MARK + json.dumps({key: value for key, value in extra.items() if value not in (None, False, [], {}, "")})


@dataclass
class _DeviceType:
    """A device type: components in order, each local device's name in endpoints, and its links."""

    name: str
    components: list[dict[str, Any]] = field(default_factory=list)
    ends: list[tuple[str, int]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    links: dict[Link, str] = field(default_factory=dict)


@dataclass
class _Group:
    """The devices of one host, or all devices without a host."""

    instance: str
    node: str | None
    prefix: str
    members: list[int]
    wires: list[Cable] = field(default_factory=list)
    type: _DeviceType | None = None


def _fields(fabric: Fabric) -> dict[str, Any]:
    """Return the fields of a fabric that are set."""
    return {name: value for name, value in asdict(fabric).items() if value is not None}


class _Export:
    def __init__(self, cluster: Cluster, wires: Sequence[Cable]) -> None:
        self.cluster = cluster
        self.groups = _grouped(cluster.devices)
        self.group_of = {member: group for group in self.groups for member in group.members}
        self.local = {member: i for group in self.groups for i, member in enumerate(group.members)}
        self.outside: list[Cable] = []
        for wire in wires:
            group = self.group_of[wire.a]
            if group is self.group_of[wire.b] and group.node is not None:
                group.wires.append(wire._replace(a=self.local[wire.a], b=self.local[wire.b]))
            else:
                self.outside.append(wire)

    def data(self) -> dict[str, Any]:
        types: dict[object, _DeviceType] = {}
        names: set[str] = set()
        for group in self.groups:
            key = self.signature(group)
            if key not in types:
                types[key] = self.make_type(group, _unique(_type_name(self.cluster, group), names))
            group.type = types[key]
        links: dict[Link, str] = {}
        edges = list(_edges(self.outside, self.instance_end, links, "instance"))
        devices = [_type_data(kind) for kind in types.values()]
        link_rows = [_link_data(name, rates) for rates, name in links.items()]
        instances = []
        for group in self.groups:
            instances.append(
                {
                    "name": group.instance,
                    "description": _mark({"prefix": group.prefix, "node": group.node}),
                    "device": group.type.name if group.type else "",
                    "count": 1,
                }
            )
        return {
            "name": self.cluster.name,
            "description": "",
            "devices": devices,
            "links": link_rows,
            "instances": instances,
            "edges": edges,
        }

    def own_name(self, group: _Group, member: int) -> str:
        return self.cluster.devices[member].name[len(group.prefix) :]

    def signature(self, group: _Group) -> object:
        devices = [replace(self.cluster.devices[i], name=self.own_name(group, i), node=None) for i in group.members]
        return tuple(devices), tuple(group.wires)

    def make_type(self, group: _Group, name: str) -> _DeviceType:
        kind, names = _DeviceType(name), set[str]()
        named = [(i, self.own_name(group, i), self.cluster.devices[i]) for i in group.members]
        for members in (list(run) for _, run in groupby(named, _but_number)):
            first = self.cluster.devices[members[0][0]]
            component = _unique(members[0][1].rstrip("0123456789") or first.kind, names)
            rails = [self.cluster.devices[i].rail for i, _, _ in members]
            local_names = [local for _, local, _ in members]
            has_no_rails = all(rail is None for rail in rails)
            extra = {
                "kind": first.kind,
                "names": local_names,
                "gpu": first.gpu,
                "forwards": first.forwards,
                "reduces": first.reduces,
                "rail": None if has_no_rails else rails,
                "memory_bytes": first.memory_bytes,
            }
            kind.components.append(
                {"name": component, "description": _mark(extra), "count": len(members), "choice": _CHOICES[first.kind]}
            )
            kind.ends.extend((component, number) for number in range(len(members)))
        kind.edges = list(_edges(group.wires, lambda i: _End(None, *kind.ends[i]), kind.links, None))
        return kind

    def instance_end(self, member: int) -> _End:
        group = self.group_of[member]
        assert group.type is not None
        return _End(f"{group.instance}[0]", *group.type.ends[self.local[member]])


def _grouped(devices: Sequence[Device]) -> list[_Group]:
    """Group devices by host in the order of the hosts' first devices; devices without a host come last."""
    members: dict[str | None, list[int]] = {}
    for i, device in enumerate(devices):
        members.setdefault(device.node, []).append(i)
    named = [node for node in members if node is not None]
    unnamed = [None] if None in members else []
    order = named + unnamed
    names: set[str] = set()
    groups = []
    for node in order:
        if node and all(devices[i].name.startswith(f"{node}.") for i in members[node]):
            prefix = f"{node}."
        else:
            prefix = ""
        groups.append(_Group(_unique(node or "fabric", names), node, prefix, members[node]))
    return groups


def _but_number(member: tuple[int, str, Device]) -> object:
    """Return what equal devices share: all but their number."""
    _, name, device = member
    return name.rstrip("0123456789"), device.kind, device.gpu, device.forwards, device.reduces, device.memory_bytes


def _unique(text: str, names: set[str]) -> str:
    """Return an unused valid name close to ``text``, and add it to ``names``."""
    base = _NOT_NAME.sub("-", text).strip("-")[:100] or "part"
    name, number = base, 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    names.add(name)
    return name


def _type_name(cluster: Cluster, group: _Group) -> str:
    if group.node is None:
        return "fabric"
    return cluster.name if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", cluster.name) else "host"


def _edges(
    wires: Sequence[Cable], end_of: Callable[[int], _End], links: dict[Link, str], instance: str | None
) -> Iterator[dict[str, Any]]:
    """Yield edge entries; consecutive wires that fit one slice become one entry."""
    names = set(links.values())
    run: list[tuple[_End, _End]] = []
    last = ""
    for wire in wires:
        if wire.link not in links:
            links[wire.link] = _unique(wire.link.medium or wire.link.link_class, names)
        link, pair = links[wire.link], (end_of(wire.a), end_of(wire.b))
        if run and (link != last or not _continues(run, pair)):
            yield _edge(run, last, instance)
            run = []
        run.append(pair)
        last = link
    if run:
        yield _edge(run, last, instance)


def _continues(run: Sequence[tuple[_End, _End]], pair: tuple[_End, _End]) -> bool:
    """Return whether a pair continues the run: each end is the next of its component, or always the same one."""
    steps = []
    for side in (0, 1):
        before, after = run[-1][side], pair[side]
        if before[:2] != after[:2]:
            return False
        steps.append(after.number - before.number)
    if len(run) > 1:
        return steps == [run[1][side].number - run[0][side].number for side in (0, 1)]
    return steps in ([1, 1], [1, 0], [0, 1]) and run[0][0][:2] != run[0][1][:2]


def _edge(run: Sequence[tuple[_End, _End]], link: str, instance: str | None) -> dict[str, Any]:
    ends = []
    for side in (0, 1):
        owner, component, first = run[0][side]
        last = run[-1][side].number
        text = f"{component}[{first}]" if first == last else f"{component}[{first}:{last + 1}]"
        ends.append({"component": text} if instance is None else {instance: owner, "component": text})
    one_fixed = len(run) > 1 and any(run[0][side].number == run[-1][side].number for side in (0, 1))
    return {"ep1": ends[0], "ep2": ends[1], "scheme": "many2many" if one_fixed else "one2one", "link": link}


def _type_data(kind: _DeviceType) -> dict[str, Any]:
    return {
        "name": kind.name,
        "components": kind.components,
        "links": [_link_data(name, rates) for rates, name in kind.links.items()],
        "edges": kind.edges,
    }


def _link_data(name: str, rates: Link) -> dict[str, Any]:
    """Return a link with exact numbers: whole bytes/s and ps have at most nine and three decimals in these units."""
    extra = {"link_class": rates.link_class, "medium": rates.medium, "peak_bytes_per_s": rates.peak_bytes_per_s}
    bandwidth = float(Decimal(rates.bytes_per_s) / 10**9)
    latency = float(Decimal(rates.latency_ps) / 10**3)
    return {
        "name": name,
        "description": _mark(extra),
        "physical": {
            "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": bandwidth},
            "latency": {"choice": "ns", "ns": latency},
        },
    }


def _put_order(data: dict[str, Any], extra: dict[str, Any], cluster: Cluster) -> None:
    """Add the order of devices and links, if it differs from the file's, to the infrastructure's description."""
    data["description"] = _mark({"evidence": cluster.evidence})
    read = infragraph_cluster(data, cluster.name)
    position = {device.name: i for i, device in enumerate(read.devices)}
    order = [position[device.name] for device in cluster.devices]
    if order == sorted(range(len(order)), key=lambda i: read.devices[i].kind != GPU):
        extra["devices"] = None if order == list(range(len(order))) else "gpus first"
    else:
        extra["devices"] = order
    places: dict[object, list[int]] = {}
    for i, link in enumerate(read.links):
        ends = read.devices[link.source].name, read.devices[link.target].name
        places.setdefault((*ends, link.bare), []).append(i)
    links, names = [], {}
    for number, link in enumerate(cluster.links):
        ends = cluster.devices[link.source].name, cluster.devices[link.target].name
        places_of_link = places.get((*ends, link.bare))
        if not places_of_link:
            break  # exported with loss: the file's own order
        place = places_of_link.pop(0)
        links.append(place)
        if read.links[place].name != link.name:
            names[str(number)] = link.name
    if len(links) == len(cluster.links) == len(read.links):
        extra["links"] = None if links == list(range(len(links))) else links
        extra["link_names"] = names
    data["description"] = _mark(extra)


def two_way_wires(cluster: Cluster, *, lossy: bool = False) -> list[Cable]:
    """Return one wire for each pair of opposite links with the same numbers, in the order of each pair's first link.

    ``lossy``: opposite links that differ become one wire with the slower numbers, and a link without an opposite link
    becomes a two-way wire.

    Raises SpecError: such links, without ``lossy``; names one.
    """
    open_links: dict[tuple[int, int, Link], list[int]] = {}
    wires: list[Cable | None] = []
    unpaired: dict[int, Link] = {}
    for link in cluster.links:
        rates = link.bare
        partners = open_links.get((link.target, link.source, rates))
        if partners:
            unpaired.pop(partners.pop(0))
            continue
        open_links.setdefault((link.source, link.target, rates), []).append(len(wires))
        unpaired[len(wires)] = link
        wires.append(Cable(link.source, link.target, rates))
    if unpaired and not lossy:
        link = next(iter(unpaired.values()))
        raise SpecError(
            f"link {link.name!r} has no opposite one with the same numbers ({len(unpaired)} links in all), "
            "and InfraGraph's links have no direction; lossy=True (--lossy) takes the slower of both"
        )
    _merge_opposites(wires, unpaired)
    return [wire for wire in wires if wire is not None]


def _merge_opposites(wires: list[Cable | None], unpaired: dict[int, Link]) -> None:
    """Replace two opposite wires that differ with one that has the slower numbers."""
    open_ends: dict[tuple[int, int], list[int]] = {}
    for place, link in unpaired.items():
        opposite = open_ends.get((link.target, link.source))
        if not opposite:
            open_ends.setdefault((link.source, link.target), []).append(place)
            continue
        first = wires[opposite.pop(0)]
        second = wires[place]
        assert first is not None
        assert second is not None
        wires[wires.index(first)] = first._replace(link=_slower(first.link, second.link))
        wires[place] = None


def _slower(a: Link, b: Link) -> Link:
    peaks = [peak for peak in (a.peak_bytes_per_s, b.peak_bytes_per_s) if peak is not None]
    return replace(
        a,
        bytes_per_s=min(a.bytes_per_s, b.bytes_per_s),
        latency_ps=max(a.latency_ps, b.latency_ps),
        peak_bytes_per_s=min(peaks) if peaks else None,
    )


def lost(cluster: Cluster, wires: Sequence[Cable]) -> int:
    """Return the number of a cluster's links that these wires do not reproduce."""
    links = Counter((link.source, link.target, link.bare) for link in cluster.links)
    links.subtract((wire.a, wire.b, wire.link) for wire in wires)
    links.subtract((wire.b, wire.a, wire.link) for wire in wires)
    return (+links).total()
