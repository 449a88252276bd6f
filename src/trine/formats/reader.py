"""Build a cluster from a reader's devices and two-way wires; parallel wires stay separate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol
from xml.parsers import expat

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, HOST_LINK, NIC, SCALE_OUT, SCALE_UP, SWITCH, Device, Link
from trine.cluster.presets import library_of_gpu, load_gpu
from trine.cluster.routing.router import usual_routing
from trine.cluster.tables import LinkTable
from trine.cluster.tiers import joined_sets
from trine.common.schema import show
from trine.errors import SpecError, nearest
from trine.formats.media import REDUCING, Media

# Parser of untrusted XML: no entities, no internal DTD, no fetching, limited size, depth and element count.

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 200
MAX_ELEMENTS = 1 << 20


@dataclass
class Element:
    """An element with its attributes, child elements, text, and first line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """Return an attribute, stripped."""
        return self.attributes.get(name, default).strip()

    def all(self, tag: str) -> list[Element]:
        """Return the child elements with this tag."""
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: str, file: object) -> Element:
    """Return the root element.

    A DOCTYPE that only names an external DTD (hwloc writes one) is skipped; the DTD is never read.

    Raises SpecError: not well formed, contains entities or declarations, too large or too deep; names the line.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise SpecError(f"is larger than {MAX_BYTES} bytes", file=file)
    return _Builder(file).run(text)


class _Builder:
    def __init__(self, file: object) -> None:
        self.file = file
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.buffer_text = True
        self.parser.CharacterDataHandler = self.data
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.EntityDeclHandler = self.refuse_entity
        self.parser.ExternalEntityRefHandler = self.refuse_entity

    def run(self, text: str) -> Element:
        try:
            self.parser.Parse(text.encode("utf-8", "surrogatepass"), True)
        except expat.ExpatError as error:
            message = expat.ErrorString(error.code)
            raise SpecError(f"not valid XML: {message}", file=f"{self.file}:{error.lineno}") from None
        except ValueError as error:
            raise SpecError(f"not valid XML: {error}", file=self.file) from None
        if self.root is None:
            raise SpecError("holds no element", file=self.file)
        return self.root

    def fault(self, message: str) -> SpecError:
        return SpecError(message, file=f"{self.file}:{self.parser.CurrentLineNumber}")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self.fault(f"has more than {MAX_ELEMENTS} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self.fault(f"is nested deeper than {MAX_DEPTH} levels")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def data(self, text: str) -> None:
        if self.open and not text.isspace():
            self.open[-1].text += text

    def end(self, tag: str) -> None:
        self.open.pop()

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise self.fault("a DTD inside the file is not accepted")

    def refuse_entity(self, *parts: object) -> int:
        raise self.fault(f"entities are not accepted ({show(parts[0])})")


#: Larger machines are rejected as mistakes, or as attacks by a few bytes that request gigabytes.
MAX_DEVICES, MAX_WIRES = 1 << 20, 1 << 21


class Cable(NamedTuple):
    """A two-way link between two device indices; ``back`` is the link from ``b`` to ``a`` if it differs.

    With ``one_way``, only the direction from ``a`` to ``b`` exists.
    """

    a: int
    b: int
    link: Link
    back: Link | None = None
    one_way: bool = False


def directed(cables: Iterable[Cable]) -> Iterator[tuple[int, int, Link]]:
    """Yield each direction of each cable: source, target, link."""
    for a, b, link, back, one_way in cables:
        yield a, b, link
        if not one_way:
            yield b, a, back or link


def assemble(
    name: str, devices: Sequence[Device], wires: Sequence[Cable], *, file: object, sources: Mapping[str, str],
    notes: Sequence[str] = (), library: str | None = None, says_who_forwards: bool = False,
) -> Cluster:  # fmt: skip
    """Build a cluster; GPUs forward other GPUs' traffic if no switch connects them all.

    ``says_who_forwards``: the file states which devices forward, as trine's own files do.

    Raises SpecError, with the file, for no GPU, a repeated name, or an invalid :class:`Cluster`.
    """
    if not any(device.kind == GPU for device in devices):
        raise SpecError("has no GPU", file=file)
    devices, notes = list(devices), list(notes)
    if any(library_of_gpu(device.gpu) == "rccl" for device in devices):
        library = "rccl"
    if not says_who_forwards and gpus_must_forward(devices, [(wire.a, wire.b) for wire in wires]):
        for index, device in enumerate(devices):
            if device.kind == GPU:
                devices[index] = replace(device, forwards=True)
        notes.append("GPUs carry other GPUs' traffic, since no switch joins all of them")
    try:
        cluster = Cluster(
            name=name, devices=tuple(devices),
            links=LinkTable.joined(tuple(device.name for device in devices), directed(wires)), evidence="assumed",
            sources=sources, notes="\n".join(notes), library=library,
        )  # fmt: skip
        return cluster.routed(*usual_routing(cluster))
    except SpecError as error:
        raise error if error.file else SpecError(str(error), file=file) from None


def gpus_must_forward(devices: Sequence[Device], pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether some connected GPUs reach each other only through other GPUs."""
    if any(device.kind == GPU and device.forwards for device in devices):
        return False
    forwards = [device.forwards for device in devices]
    through = joined_sets(len(devices), (pair for pair in pairs if forwards[pair[0]] and forwards[pair[1]]))
    anyhow = joined_sets(len(devices), pairs)
    gpus = [i for i, device in enumerate(devices) if device.kind == GPU]
    reached: dict[int, set[int]] = {gpu: set() for gpu in gpus}
    direct: dict[int, set[int]] = {gpu: {gpu} for gpu in gpus}
    for a, b in (*pairs, *((b, a) for a, b in pairs)):
        if a in reached and forwards[b]:
            reached[a].add(through[b])
        if a in direct and b in direct:
            direct[a].add(b)
    islands: dict[int, list[int]] = {}
    for gpu in gpus:
        islands.setdefault(anyhow[gpu], []).append(gpu)
    return any(_cut_off(island, reached, direct) for island in islands.values())


def _cut_off(island: list[int], reached: Mapping[int, set[int]], direct: Mapping[int, set[int]]) -> bool:
    """Return whether some pair of the island's GPUs shares neither a switched network nor a direct wire."""
    if set.intersection(*(reached[gpu] for gpu in island)):
        return False
    everyone = set(island)  # quadratic only if no network joins all GPUs
    return any(not (reached[gpu] & reached[peer]) for gpu in island for peer in everyone - direct[gpu])


def class_between(a: Device, b: Device) -> str:
    """Return the class of a link from the devices it joins, for files that do not state it.

    Between nodes, or outside all nodes: scale-up with a GPU at either end, else scale-out. Within a node: scale-up for
    GPU to GPU and GPU to switch, else host (PCIe and the like).
    """
    if a.node != b.node or a.node is None:
        return SCALE_UP if a.kind == GPU or b.kind == GPU else SCALE_OUT
    kinds = {a.kind, b.kind}
    if kinds <= {GPU, SWITCH} and GPU in kinds:
        return SCALE_UP
    return HOST_LINK


class MergedSwitches(NamedTuple):
    """Devices and cables after merging, and the number of removed switches."""

    devices: list[Device]
    cables: list[Cable]
    num_removed: int


def merge_parallel_switches(devices: Sequence[Device], wires: Sequence[Cable]) -> MergedSwitches:
    """Merge switches that join the same GPUs of a node by equal links into one, and add up their bandwidths.

    Cables between merged switches are removed too.
    """
    around: dict[int, list[tuple[int, Link]]] = {}
    for wire in wires:
        for end, other_end in ((wire.a, wire.b), (wire.b, wire.a)):
            if devices[end].kind == SWITCH:
                around.setdefault(end, []).append((other_end, wire.link))
    leaders: dict[object, int] = {}
    stands_for: dict[int, int] = {}
    for switch, ends in around.items():
        gpu_ends = [(gpu, rates) for gpu, rates in ends if devices[gpu].kind == GPU]
        if len(gpu_ends) > 1:
            gpu_ends.sort(key=lambda end: (end[0], repr(end[1])))
            stands_for[switch] = leaders.setdefault((tuple(gpu_ends), devices[switch].node), switch)
    removed = {switch for switch, leader in stands_for.items() if switch != leader}
    if not removed:
        return MergedSwitches(list(devices), list(wires), 0)
    return MergedSwitches(*_remove_switches(devices, wires, stands_for, removed), len(removed))


def _remove_switches(
    devices: Sequence[Device], wires: Sequence[Cable], stands_for: Mapping[int, int], removed: set[int]
) -> tuple[list[Device], list[Cable]]:
    """Return the remaining devices, and the wires moved to them; wires that became parallel are added up."""
    remaining = [i for i in range(len(devices)) if i not in removed]
    position = {old: new for new, old in enumerate(remaining)}
    total: dict[object, Cable] = {}
    for number, wire in enumerate(wires):
        a, b = (position[stands_for.get(end, end)] for end in (wire.a, wire.b))
        moved_wire = wire._replace(a=a, b=b)
        merged = wire.a in stands_for or wire.b in stands_for
        key = (a, b, wire.link.link_class, wire.link.medium) if merged else number
        if a != b:
            total[key] = _sum(total[key], moved_wire) if key in total else moved_wire
    return [devices[i] for i in remaining], list(total.values())


def _sum(first: Cable, second: Cable) -> Cable:
    def add(a: Link, b: Link) -> Link:
        peaks = (a.peak_bytes_per_s, b.peak_bytes_per_s)
        return replace(
            a,
            bytes_per_s=a.bytes_per_s + b.bytes_per_s,
            latency_ps=max(a.latency_ps, b.latency_ps),
            peak_bytes_per_s=None if peaks[0] is None or peaks[1] is None else peaks[0] + peaks[1],
        )

    back = add(first.back or first.link, second.back or second.link) if first.back or second.back else None
    return first._replace(link=add(first.link, second.link), back=back)


def kind_named(text: str, file: object, field: str) -> str:
    """Return trine's device kind for a kind in trine's or another tool's terms."""
    kinds = {
        **{kind: kind for kind in (GPU, HOST, SWITCH, NIC)},
        "xpu": GPU, "npu": GPU, "tpu": GPU, "accelerator": GPU,
        "cpu": HOST, "memory": HOST,
        "net": NIC, "port": SWITCH, "router": SWITCH, "custom": SWITCH,
    }  # fmt: skip
    if text.lower() not in kinds:
        raise SpecError(f"unknown kind {text!r}{nearest(text.lower(), kinds)}", file=file, field=field)
    return kinds[text.lower()]


class TopologyBuilder:
    """Devices and wires collected by a reader, which makes the names unique."""

    def __init__(self, file: object) -> None:
        self.file = file
        self.devices: list[Device] = []
        self.wires: list[Cable] = []
        self.index: dict[str, int] = {}

    def add(self, device: Device) -> int:
        """Add a device and return its index. Raises SpecError for a repeated name or too many devices."""
        if device.name in self.index:
            raise SpecError(f"two devices are named {device.name!r}", file=self.file)
        if len(self.devices) >= MAX_DEVICES:
            raise SpecError(f"has more than {MAX_DEVICES} devices", file=self.file)
        self.index[device.name] = len(self.devices)
        self.devices.append(device)
        return len(self.devices) - 1

    def join(self, a: int, b: int, rates: Link) -> None:
        """Add a two-way wire. Raises SpecError for too many wires."""
        if len(self.wires) >= MAX_WIRES:
            raise SpecError(f"has more than {MAX_WIRES} links", file=self.file)
        self.wires.append(Cable(a, b, rates))

    def gpus_in_order(self, order: Sequence[int]) -> None:
        """Permute the GPUs into ``order``; all other devices keep their indices."""
        places = sorted(order)
        position = {gpu: place for place, gpu in zip(places, order, strict=True)}
        devices = list(self.devices)
        for gpu, place in position.items():
            devices[place] = self.devices[gpu]
        self.devices = devices
        self.wires = [w._replace(a=position.get(w.a, w.a), b=position.get(w.b, w.b)) for w in self.wires]
        self.index = {device.name: i for i, device in enumerate(devices)}


class Reader(Protocol):
    """State of a reader after it has parsed a machine's file."""

    file: str
    draft: TopologyBuilder
    media: Media
    notes: list[str]
    library: str | None


def read_out(reader: Reader, origin: str) -> Cluster:
    """Return the cluster that a reader drafted; ``origin`` describes the file's origin, for the sources."""
    reader.media.check()
    return assemble(
        Path(reader.file).stem, reader.draft.devices, reader.draft.wires, file=reader.file,
        sources={"structure": f"{Path(reader.file).name}, {origin}", **reader.media.choices.used}, notes=reader.notes,
        library=reader.library,
    )  # fmt: skip


def join_by_nvswitch(reader: Reader, gpu: str | None, why: str, *, may_have: bool = False) -> None:
    """Join each host's GPUs by an NVSwitch if the user chose NVLinks (``--link nvlink=ENTRY``).

    Otherwise note ``why`` they are missing, if the GPU model has NVLinks or, for an unknown model, ``may_have`` is set.
    """
    draft = reader.draft
    gpus = [i for i, device in enumerate(draft.devices) if device.kind == GPU]
    if reader.media.chosen("nvlink") is None:
        if len(gpus) > 1 and (load_gpu(gpu).nvlink if gpu else may_have):
            reader.notes.append(f"{why}; --link nvlink=ENTRY joins the GPUs through a switch")
        return
    rates = reader.media.of("nvlink", None, "chosen")
    hosts = list(dict.fromkeys(draft.devices[i].node for i in gpus))
    for host in hosts:
        name = "nvswitch" if len(hosts) == 1 else f"{host}.nvswitch"
        switch = draft.add(Device(name=name, kind=SWITCH, node=host, forwards=True, reduces=rates.medium in REDUCING))
        for i in gpus:
            if draft.devices[i].node == host:
                draft.join(i, switch, rates)
    reader.notes.append(f"all GPUs of a host joined by an NVSwitch, as chosen: {why}")


def gpu_named(name: str | None) -> str | None:
    """Return the name of the GPU model with this name or alias. Raises SpecError if no model matches."""
    return None if name is None else load_gpu(name).name
