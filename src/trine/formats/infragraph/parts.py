"""Convert InfraGraph's nodes and edges to devices and wires: kinds, hosts, and the numbers of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from trine.cluster.parts import GPU, HOST, HOST_LINK, NIC, SCALE_UP, SWITCH, Device, Link, check_host_memory
from trine.cluster.presets import load_gpu
from trine.common.schema import Spec
from trine.common.spec import check, parse_json
from trine.common.units import MAX_INT64
from trine.errors import SpecError
from trine.formats.media import LinkChoices, guessed_entry
from trine.formats.reader import Cable, class_between

if TYPE_CHECKING:
    from trine.formats.infragraph.expand import Expanded, Node
    from trine.formats.infragraph.schema import InfrastructureFile, LinkFile, OwnComponent, OwnInstance

#: Prefix of the JSON that trine's exporter writes into descriptions, which the format leaves free.
MARK = "trine: "
_LATENCY_PS = {"ms": 10**9, "us": 10**6, "ns": 10**3}
_BYTES_PER_S = {"gigabits_per_second": Fraction(10**9, 8), "gigabytes_per_second": Fraction(10**9)}
AnySpec = TypeVar("AnySpec", bound=Spec)


def own_part(description: str, model: type[AnySpec], file: str) -> AnySpec | None:
    """Return the data that trine's exporter put into a description, or None for other descriptions."""
    if not description.startswith(MARK):
        return None
    return check(model, parse_json(description[len(MARK) :], file), f"{file}: a description that begins {MARK!r}")


def node_devices(expanded: Expanded, spec: InfrastructureFile, gpu: str | None, file: str) -> list[Device]:
    """Return one device per node, in the order of the file."""
    from trine.formats.infragraph.schema import OwnComponent, OwnInstance

    if gpu is not None:
        load_gpu(gpu)
    exported_instances = {entry.name: own_part(entry.description, OwnInstance, file) for entry in spec.instances}
    exported_components: dict[str, OwnComponent | None] = {}
    surroundings = _surroundings(expanded.nodes)
    devices = []
    for name, node, instance in zip(expanded.names, expanded.nodes, expanded.instances, strict=True):
        if node.description not in exported_components:
            exported_components[node.description] = own_part(node.description, OwnComponent, file)
        exported = exported_components[node.description]
        if exported is not None:
            devices.append(_as_exported(node, exported, exported_instances[instance.rpartition(".")[0]], file))
            continue
        kind, forwards, below = surroundings[id(node)]
        if below is None:
            host = None
        elif below:
            host = f"{instance}.{below}"
        else:
            host = instance
        devices.append(Device(name=name, kind=kind, gpu=gpu if kind == GPU else None, node=host, forwards=forwards))
    return devices


def _as_exported(node: Node, exported: OwnComponent, instance: OwnInstance | None, file: str) -> Device:
    for name, values in (("names", exported.names), ("node", exported.node), ("rail", exported.rail)):
        if values is not None and node.number >= len(values):
            raise SpecError(f"component {node.path!r}: '{name}' after {MARK!r} is too short", file=file)
    if exported.memory_bytes is not None:
        check_host_memory(exported.kind, exported.memory_bytes, file, f"component {node.path!r}: memory_bytes")
    prefix, host = ("", None) if instance is None else (instance.prefix, instance.node)
    device_node = host if exported.node is None else exported.node[node.number]
    rail = None if exported.rail is None else exported.rail[node.number]
    return Device(
        name=prefix + exported.names[node.number], kind=exported.kind, gpu=exported.gpu, node=device_node,
        forwards=exported.forwards, reduces=exported.reduces, rail=rail, memory_bytes=exported.memory_bytes,
    )  # fmt: skip


def _surroundings(nodes: Sequence[Node]) -> dict[int, tuple[str, bool, str | None]]:
    """Return each distinct node's kind, whether it forwards, and the path of its host within the instance.

    The key is the node's identity: the instances of a device type share its nodes.
    """
    distinct = {id(node): node for node in nodes}
    choices_by_path: dict[tuple[str, str], set[str]] = {}
    for node in distinct.values():
        for path, _ in node.owners:
            choices_by_path.setdefault((node.owners[0][1], path), set()).add(node.choice)
    surroundings = {}
    for key, node in distinct.items():
        around = [(path, choices_by_path[node.owners[0][1], path]) for path, _ in node.owners]
        surroundings[key] = (*_kind(node.choice, around), _host_path(around))
    return surroundings


def _kind(choice: str, around: list[tuple[str, set[str]]]) -> tuple[str, bool]:
    """Return a device's kind and whether it forwards, from its choice and the choices in its enclosing devices.

    Generic switches and NICs call their ASIC a ``cpu``: it is a processor only without ports, or beside GPUs or NICs.
    """
    outer, inner = around[0][1], around[-1][1]
    if choice == "cpu" and "port" in inner and not inner & {"xpu", "nic"}:
        return (NIC if "xpu" in outer else SWITCH), True
    if choice == "memory" and "cpu" in outer:
        return SWITCH, False  # a dead end; the processor provides the host memory
    kinds = {"xpu": (GPU, False), "cpu": (HOST, True), "nic": (NIC, True), "memory": (HOST, False)}
    return kinds.get(choice, (SWITCH, True))


def _host_path(around: list[tuple[str, set[str]]]) -> str | None:
    """Return the innermost enclosing device with GPUs and a processor, else the instance if it has GPUs or NICs."""
    for path, choices in reversed(around):
        if {"xpu", "cpu"} <= choices:
            return path
    return "" if around[0][1] & {"xpu", "nic"} else None


class _Numbers:
    """Numbers of one link entry: from the file, else from the user's choices."""

    def __init__(self, key: tuple[str, str], link: LinkFile, choices: LinkChoices, file: str) -> None:
        from trine.formats.infragraph.schema import OwnLink

        self.key, self.link = key, link
        self.own = own_part(link.description, OwnLink, file)
        self.bytes_per_s, self.latency_ps = _bandwidth(link, file), _latency(link, file)
        self.choice = None
        is_given = key[1] in choices.given or f"{key[0]}.{key[1]}" in choices.given
        if self.own is None and (self.bytes_per_s is None or self.latency_ps is None or is_given):
            self.choice = choices.choice(key[0], key[1], f"{link.description} {_nominal(key, self.bytes_per_s)}")

    @property
    def missing(self) -> list[str]:
        is_chosen = self.choice is not None
        parts = (("bandwidth", self.bytes_per_s), ("latency", self.latency_ps))
        return [name for name, value in parts if value is None and not is_chosen]

    def rates(self, a: Device, b: Device, share: int) -> Link:
        """Return the link of one edge, preferring the file's numbers; ``share`` links share a GPU's usual lanes."""
        if self.own is not None:
            assert self.bytes_per_s is not None
            assert self.latency_ps is not None
            return Link(bytes_per_s=self.bytes_per_s, latency_ps=self.latency_ps, **self.own.model_dump())
        link_class = class_between(a, b)
        if "pci" in f"{self.link.name} {self.link.description}".lower() and link_class == SCALE_UP:
            link_class = HOST_LINK
        if self.choice is None:
            assert self.bytes_per_s is not None
            assert self.latency_ps is not None
            return Link(bytes_per_s=self.bytes_per_s, latency_ps=self.latency_ps, link_class=link_class)
        shared = self.choice.entry is not None and self.choice.entry.link_class == SCALE_UP
        between_switches = a.kind == b.kind == SWITCH
        usual = self.choice.rates(link_class, share if shared else 1, hop=between_switches)
        return replace(
            usual,
            bytes_per_s=self.bytes_per_s or usual.bytes_per_s,
            latency_ps=usual.latency_ps if self.latency_ps is None else self.latency_ps,
        )


def _nominal(key: tuple[str, str], bytes_per_s: int | None) -> str:
    """Return InfiniBand's name for the usual speeds between devices, so that the catalogue supplies the latency."""
    speeds = {12_500_000_000: "ib-edr", 25_000_000_000: "ib-hdr", 50_000_000_000: "ib-ndr", 100_000_000_000: "ib-xdr"}
    return "" if key[0] or bytes_per_s is None else speeds.get(bytes_per_s, "")


def _bandwidth(link: LinkFile, file: str) -> int | None:
    """Return bytes/s in each direction; None if missing, or in transfers, whose width the format lacks."""
    bandwidth = None if link.physical is None else link.physical.bandwidth
    if bandwidth is None or bandwidth.choice is None or bandwidth.choice == "gigatransfers_per_second":
        return None
    value = getattr(bandwidth, bandwidth.choice)
    if value is None:
        return None
    bytes_per_s = round(Fraction(repr(value)) * _BYTES_PER_S[bandwidth.choice])
    if not 0 < bytes_per_s <= MAX_INT64:
        raise SpecError(f"a bandwidth must be positive, got {value!r}", file=file, field=f"link {link.name!r}")
    return bytes_per_s


def _latency(link: LinkFile, file: str) -> int | None:
    latency = None if link.physical is None else link.physical.latency
    value = None if latency is None or latency.choice is None else getattr(latency, latency.choice)
    if latency is None or value is None:
        return None
    latency_ps = round(Fraction(repr(value)) * _LATENCY_PS[str(latency.choice)])
    if latency_ps > MAX_INT64:
        raise SpecError(f"the latency {value!r} is too large", file=file, field=f"link {link.name!r}")
    return latency_ps


def edge_wires(expanded: Expanded, devices: Sequence[Device], choices: LinkChoices, file: str) -> list[Cable]:
    """Return one wire per edge, with its numbers.

    Raises SpecError: links without numbers (lists all, and the options that supply them); a choice for an unknown link.
    """
    link_keys = dict.fromkeys(edge.link for edge in expanded.edges)
    numbers = {key: _Numbers(key, expanded.links[key], choices, file) for key in link_keys}
    choices.check_all_used({name for key in expanded.links for name in (key[1], f"{key[0]}.{key[1]}")})
    shares = _shares(expanded, devices)
    inner = _inner_keys(expanded, numbers) if choices.from_catalogue else set()
    _check_complete([entry for key, entry in numbers.items() if key not in inner], choices, file)
    memo: dict[object, Link] = {}
    wires = []
    for a, b, link in expanded.edges:
        if link in inner:
            link_class = class_between(devices[a], devices[b])
            wires.append(Cable(a, b, Link(bytes_per_s=0, latency_ps=0, link_class=link_class)))
            continue
        share = max(shares.get((a, link), 1), shares.get((b, link), 1))
        first, second = devices[a], devices[b]
        kinds = (link, share, first.kind, second.kind, first.node is None, first.node == second.node)
        if kinds not in memo:
            memo[kinds] = numbers[link].rates(first, second, share)
        wires.append(Cable(a, b, memo[kinds]))
    for key in inner:
        choices.used[f"link {key[0]}.{key[1]}"] = "inside a switch or NIC: as fast as the next link, no latency"
    return _with_inner_speeds(wires, len(devices), file) if inner else wires


def _shares(expanded: Expanded, devices: Sequence[Device]) -> dict[tuple[int, tuple[str, str]], int]:
    """Return, for each GPU and link entry, the number of the GPU's edges that use it."""
    shares: dict[tuple[int, tuple[str, str]], int] = {}
    for a, b, link in expanded.edges:
        for end in (a, b):
            if devices[end].kind == GPU:
                shares[end, link] = shares.get((end, link), 0) + 1
    return shares


def _inner_keys(expanded: Expanded, numbers: dict[tuple[str, str], _Numbers]) -> set[tuple[str, str]]:
    """Return links without numbers inside switches and NICs: device types that hold neither GPUs nor whole NICs."""
    holders = {owner for node in expanded.nodes if node.choice in ("xpu", "nic") for _, owner in node.owners}
    return {key for key, entry in numbers.items() if entry.missing and key[0] and key[0] not in holders}


def _with_inner_speeds(wires: list[Cable], num_devices: int, file: str) -> list[Cable]:
    """Give each wire of 0 bytes/s the speed of the fastest wire at its ends, from the outside in."""
    fastest = [0] * num_devices
    for wire in wires:
        for end in (wire.a, wire.b):
            fastest[end] = max(fastest[end], wire.link.bytes_per_s)
    top = max(fastest)
    if not top:
        raise SpecError("no link has a bandwidth", file=file)
    open_ends = [i for i, wire in enumerate(wires) if not wire.link.bytes_per_s]
    while open_ends:
        speeds = {i: max(fastest[wires[i].a], fastest[wires[i].b]) for i in open_ends}
        if not any(speeds.values()):
            speeds = dict.fromkeys(open_ends, top)
        for i, speed in speeds.items():
            if speed:
                a, b, rates = wires[i][:3]
                wires[i] = wires[i]._replace(link=replace(rates, bytes_per_s=speed))
                fastest[a], fastest[b] = max(fastest[a], speed), max(fastest[b], speed)
        open_ends = [i for i in open_ends if not speeds[i]]
    return wires


def _check_complete(numbers: Sequence[_Numbers], choices: LinkChoices, file: str) -> None:
    lacking = [entry for entry in numbers if entry.missing]
    if not lacking:
        return
    lines, example = [], ""
    for entry in lacking[:20]:
        name = ".".join(part for part in entry.key if part)
        guess = guessed_entry(f"{entry.link.name} {entry.link.description}")
        example = example or f"{name}={guess or 'ENTRY'}"
        says = f" ({entry.link.description!r})" if entry.link.description else ""
        lines.append(f"{name}{says} lacks {' and '.join(entry.missing)}")
    more = f"; and {len(lacking) - 20} more" if len(lacking) > 20 else ""
    remedy = f"Give each one, as in --link {example} or --link 'NAME=50 GB/s, 1 us' (links={{...}} in Python)"
    if not choices.from_catalogue:
        remedy += ", or let names and descriptions choose: --links-from catalogue"
    raise SpecError(f"{'; '.join(lines)}{more}. {remedy}", file=file)
