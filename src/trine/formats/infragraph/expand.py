"""Expand InfraGraph's device types, instances and endpoints into all nodes and edges of the machine.

Each device type is expanded once and instances are copies of it, so the work grows only with the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeVar

from trine.errors import SpecError, nearest
from trine.formats.infragraph.schema import (
    ComponentFile,
    DeviceEdge,
    DeviceFile,
    InfrastructureFile,
    InstanceEdge,
    InstanceFile,
    LinkFile,
)
from trine.formats.reader import MAX_DEVICES, MAX_WIRES

_PART = re.compile(r"([^\[\]]+?)(?:\[([^\[\]]*)\])?")
MAX_NESTING = 16
Named = TypeVar("Named", DeviceFile, LinkFile, InstanceFile, ComponentFile)


class Node(NamedTuple):
    """A part of a device type: its path below the instance, its choice, and its enclosing types, outermost first.

    ``owners``: (path, device type) of each enclosing device, the instance itself with path "".
    """

    path: str
    choice: str
    description: str
    number: int
    owners: tuple[tuple[str, str], ...]


class Edge(NamedTuple):
    """An edge between two node indices; ``link`` is (device type or "" for the infrastructure, link name)."""

    a: int
    b: int
    link: tuple[str, str]


@dataclass
class _Component:
    first: int
    count: int
    stride: int
    inner: _ExpandedType | None


@dataclass
class _ExpandedType:
    """An expanded device type: nodes in the file's order, edges between their indices."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    components: dict[str, _Component] = field(default_factory=dict)


@dataclass
class Expanded:
    """All nodes, their full names, and edges. ``links`` maps (device type, name) to its entry in the file."""

    names: list[str]
    nodes: list[Node]
    instances: list[str]
    edges: list[Edge]
    links: dict[tuple[str, str], LinkFile]
    notes: list[str]


def expand(spec: InfrastructureFile, file: str) -> Expanded:
    """Expand an infrastructure.

    Raises SpecError: an unknown device, component, instance or link (names the nearest), an index outside its count,
    unequal ends of a one2one edge, devices inside themselves, or more than MAX_DEVICES nodes or MAX_WIRES edges.
    """
    return _Expander(spec, file).run()


class _Expander:
    def __init__(self, spec: InfrastructureFile, file: str) -> None:
        self.spec, self.file = spec, file
        self.devices = _by_name(spec.devices, file, "devices")
        self.positions = {name: f"devices[{i}]" for i, name in enumerate(self.devices)}
        self.links: dict[tuple[str, str], LinkFile] = {}
        for name, link in _by_name(spec.links, file, "links").items():
            self.links["", name] = link
        for device in spec.devices:
            field_name = f"{self.positions[device.name]}.links"
            for name, link in _by_name(device.links, file, field_name).items():
                self.links[device.name, name] = link
        self.types: dict[str, _ExpandedType] = {}
        self.num_edges = 0
        self.notes: list[str] = []

    def run(self) -> Expanded:
        out = Expanded([], [], [], [], self.links, self.notes)
        starts: dict[str, tuple[int, int, _ExpandedType]] = {}
        for number, instance in enumerate(_by_name(self.spec.instances, self.file, "instances").values()):
            if instance.device not in self.devices:
                hint = nearest(instance.device, self.devices)
                raise self.error(f"unknown device {instance.device!r}{hint}", f"instances[{number}].device")
            kind = self.type_of(instance.device)
            starts[instance.name] = (len(out.nodes), instance.count, kind)
            self.bound(len(out.nodes) + instance.count * len(kind.nodes), f"instances[{number}].count")
            self.count_edges(instance.count * len(kind.edges), f"instances[{number}].count")
            for index in range(instance.count):
                offset, prefix = len(out.nodes), f"{instance.name}.{index}"
                out.nodes.extend(kind.nodes)
                out.names.extend([f"{prefix}.{node.path}" for node in kind.nodes])
                out.instances.extend([prefix] * len(kind.nodes))
                out.edges.extend([Edge(a + offset, b + offset, link) for a, b, link in kind.edges])
        for number, edge in enumerate(self.spec.edges):
            field = f"edges[{number}]"
            ends = [
                self.instance_end(end.instance, end.component, starts, f"{field}.{side}")
                for side, end in (("ep1", edge.ep1), ("ep2", edge.ep2))
            ]
            link = self.link("", edge.link, f"{field}.link")
            out.edges.extend(self.pairs(edge, ends[0], ends[1], link, field))
        return out

    def error(self, message: str, field: str) -> SpecError:
        return SpecError(message, file=self.file, field=field)

    def bound(self, nodes: int, field: str) -> None:
        if nodes > MAX_DEVICES:
            raise self.error(f"makes more than {MAX_DEVICES} nodes", field)

    def count_edges(self, count: int, field: str) -> None:
        self.num_edges += count
        if self.num_edges > MAX_WIRES:
            raise self.error(f"makes more than {MAX_WIRES} edges", field)

    def link(self, scope: str, name: str, field: str) -> tuple[str, str]:
        """Return the key of a link; a device's edges may use its links, and the links of the infrastructure."""
        for key in ((scope, name), ("", name)):
            if key in self.links:
                return key
        links = [link for owner, link in self.links if owner in (scope, "")]
        raise self.error(f"unknown link {name!r}{nearest(name, links)}", field)

    def type_of(self, name: str, outer: tuple[str, ...] = ()) -> _ExpandedType:
        if name in self.types:
            return self.types[name]
        if name in outer or len(outer) > MAX_NESTING:
            raise self.error(f"is inside itself: {' in '.join((name, *reversed(outer)))}", self.positions[name])
        device, field = self.devices[name], self.positions[name]
        kind = _ExpandedType(name)
        for number, component in enumerate(_by_name(device.components, self.file, f"{field}.components").values()):
            field_name = f"{field}.components[{number}]"
            inner = None
            if component.choice == "device":
                inner = self.inner_type(component.name, (*outer, name), field_name)
            stride = 1 if inner is None else len(inner.nodes)
            kind.components[component.name] = _Component(len(kind.nodes), component.count, stride, inner)
            self.bound(len(kind.nodes) + component.count * stride, f"{field_name}.count")
            self.count_edges(0 if inner is None else component.count * len(inner.edges), f"{field_name}.count")
            for index in range(component.count):
                path = f"{component.name}.{index}"
                if inner is None:
                    choice, text = component.choice, component.description
                    kind.nodes.append(Node(path, choice, text, index, (("", name),)))
                else:
                    _nest(kind, inner, path)
        self.device_edges(device, kind, field)
        self.types[name] = kind
        return kind

    def inner_type(self, name: str, outer: tuple[str, ...], field: str) -> _ExpandedType:
        """Return the type of a component that is a device; the component has the device's name."""
        if name not in self.devices:
            raise self.error(f"is a device, but there is no device {name!r}{nearest(name, self.devices)}", field)
        return self.type_of(name, outer)

    def device_edges(self, device: DeviceFile, kind: _ExpandedType, field: str) -> None:
        for number, edge in enumerate(device.edges):
            field_name = f"{field}.edges[{number}]"
            ends = []
            for side, end in (("ep1", edge.ep1), ("ep2", edge.ep2)):
                path = end.component if end.device is None else f"{end.device}.{end.component}"
                ends.append(self.component_end(path, kind, f"{field_name}.{side}.component"))
            link = self.link(device.name, edge.link, f"{field_name}.link")
            kind.edges.extend(self.pairs(edge, ends[0], ends[1], link, field_name))

    def component_end(self, text: str, kind: _ExpandedType, field: str) -> list[int]:
        """Return node indices within a device type of an endpoint such as ``cx5[0:2].port[0]``."""
        bases, inner = [0], kind
        parts = text.split(".")
        for position, part in enumerate(parts):
            name, indices_text = self.split(part, field)
            if name not in inner.components:
                hint = nearest(name, inner.components)
                raise self.error(f"device {inner.name!r} has no component {name!r}{hint}", field)
            component = inner.components[name]
            indices = self.indices(indices_text, component.count, part, field)
            self.bound(len(bases) * len(indices), field)
            bases = [base + component.first + index * component.stride for base in bases for index in indices]
            if component.inner is None:
                if position + 1 < len(parts):
                    raise self.error(f"{name!r} has no components", field)
                return bases
            inner = component.inner
        names = ", ".join(list(inner.components)[:20])
        raise self.error(f"{text!r} is a device; add one of its components ({names})", field)

    def instance_end(
        self, instance: str, component: str, starts: Mapping[str, tuple[int, int, _ExpandedType]], field: str
    ) -> list[int]:
        head, _, path = instance.partition(".")
        name, indices_text = self.split(head, f"{field}.instance")
        if name not in starts:
            raise self.error(f"unknown instance {name!r}{nearest(name, starts)}", f"{field}.instance")
        first, count, kind = starts[name]
        indices = self.indices(indices_text, count, head, f"{field}.instance")
        local = self.component_end(f"{path}.{component}" if path else component, kind, f"{field}.component")
        self.bound(len(indices) * len(local), field)
        return [first + index * len(kind.nodes) + node for index in indices for node in local]

    def split(self, part: str, field: str) -> tuple[str, str]:
        match = _PART.fullmatch(part)
        if match is None:
            raise self.error(f"cannot read {part!r}; write a name, 'name[2]' or 'name[0:4]'", field)
        return match[1], match[2] or ""

    def indices(self, text: str, count: int, part: str, field: str) -> Sequence[int]:
        """Return the indices that a Python slice selects of ``count``; an index or bound outside is an error."""
        try:
            numbers = []
            for piece in text.split(":"):
                numbers.append(int(piece) if piece.strip() else None)
        except ValueError:
            raise self.error(f"cannot read the index in {part!r}; write '[2]' or '[0:4]'", field) from None
        if len(numbers) == 1:
            if numbers[0] is None:
                return range(count)
            index = numbers[0] + (count if numbers[0] < 0 else 0)
            if not 0 <= index < count:
                raise self.error(f"{part!r} is out of range, there are {count}", field)
            return (index,)
        if len(numbers) > 3 or (len(numbers) == 3 and numbers[2] == 0):
            raise self.error(f"cannot read the slice in {part!r}; write '[start:stop]' or '[start:stop:step]'", field)
        if any(bound is not None and not -count <= bound <= count for bound in numbers[:2]):
            raise self.error(f"{part!r} is out of range, there are {count}", field)
        picked = range(*slice(*numbers).indices(count))
        if not picked:
            raise self.error(f"{part!r} selects none, of {count}", field)
        return picked

    def pairs(
        self, edge: DeviceEdge | InstanceEdge, left: Sequence[int], right: Sequence[int], link: tuple[str, str],
        field: str,
    ) -> Iterable[Edge]:  # fmt: skip
        """Return the edges of a scheme. Each entry joins a pair of nodes once; several entries make parallel links."""
        if edge.scheme == "one2one":
            left, right = self.matched(edge, left, right, field)
            if any(a == b for a, b in zip(left, right, strict=True)):
                raise self.error("joins a node to itself", field)
            self.count_edges(len(left), field)
            return [Edge(a, b, link) for a, b in zip(left, right, strict=True)]
        if edge.scheme == "many2many":
            self.count_edges(len(left) * len(right), field)
            return _cross(left, right, link)
        members = list(dict.fromkeys((*left, *right)))
        self.count_edges(len(members), field)
        return _ring(members, link)

    def matched(
        self, edge: DeviceEdge | InstanceEdge, left: Sequence[int], right: Sequence[int], field: str
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ends of one2one in equal numbers; a component without a slice may have more than needed."""
        if len(left) == len(right):
            return left, right
        longer = edge.ep1 if len(left) > len(right) else edge.ep2
        if longer.component.endswith("]"):
            raise self.error(f"one2one joins equal numbers, got {len(left)} and {len(right)}", field)
        count = min(len(left), len(right))
        self.notes.append(f"{field}: {longer.component!r} has more than the other end, the first {count} are joined")
        return left[:count], right[:count]


def _cross(left: Sequence[int], right: Sequence[int], link: tuple[str, str]) -> Iterable[Edge]:
    if not set(left) & set(right):
        return [Edge(a, b, link) for a in left for b in right]
    edges: dict[tuple[int, int], Edge] = {}
    for a, b in product(left, right):
        if a != b:
            edges.setdefault((min(a, b), max(a, b)), Edge(a, b, link))
    return edges.values()


def _ring(members: Sequence[int], link: tuple[str, str]) -> Iterator[Edge]:
    """Yield edges from each to the next and from the last to the first; two members have one edge."""
    count = len(members)
    for i in range(count if count > 2 else count - 1):
        yield Edge(members[i], members[(i + 1) % count], link)


def _nest(kind: _ExpandedType, inner: _ExpandedType, path: str) -> None:
    offset = len(kind.nodes)
    for node in inner.nodes:
        owner_paths = []
        for below, name in node.owners:
            owner_paths.append((f"{path}.{below}" if below else path, name))
        owners = tuple(owner_paths)
        kind.nodes.append(node._replace(path=f"{path}.{node.path}", owners=(("", kind.name), *owners)))
    kind.edges.extend([Edge(a + offset, b + offset, link) for a, b, link in inner.edges])


def _by_name(entries: Sequence[Named], file: str, field: str) -> dict[str, Named]:
    by_name: dict[str, Named] = {}
    for number, entry in enumerate(entries):
        if entry.name in by_name:
            raise SpecError(f"the name {entry.name!r} is given twice", file=file, field=f"{field}[{number}].name")
        by_name[entry.name] = entry
    return by_name
