"""What a cluster is made of: devices, links, and the fabric that joins nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.errors import SpecError, nearest
from trine.units import format_bandwidth, format_bytes, format_time

GPU, HOST, SWITCH, NIC = "gpu", "host", "switch", "nic"
KINDS = (GPU, HOST, SWITCH, NIC)
SCALE_UP, HOST_LINK, SCALE_OUT = "scale-up", "host", "scale-out"
#: What a link is for: between the GPUs of a node or rack, to host memory and NICs (PCIe), or between nodes.
LINK_CLASSES = (SCALE_UP, HOST_LINK, SCALE_OUT)
#: How far a cluster's numbers can be trusted; see docs/formats/cluster.md.
EVIDENCE = ("measured", "interpolated", "modelled", "assumed")
#: Libraries whose choices and costs trine knows.
LIBRARIES = ("nccl", "rccl")
#: What can join nodes; ``clos`` is another word for ``fat-tree``. Those of :data:`LEAVED` have leaf switches.
FABRICS = ("switch", "rail", "fat-tree", "clos", "dragonfly", "none")
LEAVED = ("rail", "fat-tree", "clos")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Something that links connect. ``gpu`` names a GPU model that :func:`trine.cluster.load_gpu` knows.

    ``kind``: ``gpu``, ``host`` (host memory), ``switch`` or ``nic``. ``node`` is the host that it belongs to.
    ``forwards``: whether routes may pass through it. ``reduces``: a switch that adds up and multicasts what passes
    through it (NVLS, SHARP). ``rail``: the number of the rail that a NIC or leaf switch belongs to.
    """

    name: str
    kind: str = GPU
    gpu: str | None = None
    node: str | None = None
    forwards: bool = False
    reduces: bool = False
    rail: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction of a wire, from device index ``source`` to device index ``target``.

    ``bytes_per_s`` is what large transfers reach, ``peak_bytes_per_s`` what the data sheet says (None: not known).
    ``latency_ps`` is that of the wire and what it ends in, without software. ``link_class``: one of LINK_CLASSES.
    ``medium``: its entry in the link catalogue (``nvlink4``, ``pcie5``, ``ib-ndr``), None where it is just numbers.
    Without a name and ends (-1) it is what many links of a :class:`trine.cluster.tables.LinkTable` have in common.
    """

    name: str = ""
    source: int = -1
    target: int = -1
    bytes_per_s: int
    latency_ps: int
    link_class: str = SCALE_UP
    medium: str | None = None
    peak_bytes_per_s: int | None = None

    def between(self, source: int, target: int, name: str = "") -> Link:
        """The same link between other devices, under another name."""
        return Link(
            name=name, source=source, target=target, bytes_per_s=self.bytes_per_s, latency_ps=self.latency_ps,
            link_class=self.link_class, medium=self.medium, peak_bytes_per_s=self.peak_bytes_per_s,
        )  # fmt: skip

    @property
    def bare(self) -> Link:
        """The link without name and ends."""
        return self if self.source < 0 and not self.name else self.between(-1, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What joins nodes: ``kind`` is one of :data:`FABRICS`; ``link`` is in the link catalogue.

    ``lanes``: of each NIC. ``reduces``: its switches add up what passes through (SHARP). Of fabrics with leaves:
    ``oversubscription``: how many times more bandwidth goes down from a leaf switch than up; ``radix``: ports of a
    switch.

    Raises SpecError: an unknown kind, or numbers of leaves where there are none.
    """

    kind: str
    link: str
    lanes: int = 1
    oversubscription: float = 1.0
    radix: int = 64
    reduces: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FABRICS:
            raise SpecError(f"unknown fabric {self.kind!r}{nearest(self.kind, FABRICS)}")
        if self.kind not in LEAVED and (self.oversubscription, self.radix) != (1.0, 64):
            raise SpecError(f"a {self.kind} fabric has no leaves, so that neither oversubscription nor radix matter")


def check_link(link: Link, devices: Sequence[Device]) -> None:
    """Raise SpecError for a link that cannot be."""
    if not (0 <= link.source < len(devices) and 0 <= link.target < len(devices)):
        raise SpecError(f"link {link.name!r} joins a device that does not exist")
    if link.source == link.target:
        raise SpecError(f"link {link.name!r} joins {devices[link.source].name!r} to itself")
    if link.bytes_per_s <= 0:
        raise SpecError(f"link {link.name!r}: the bandwidth must be positive")
    if link.link_class not in LINK_CLASSES:
        raise SpecError(
            f"link {link.name!r}: unknown class {link.link_class!r}{nearest(link.link_class, LINK_CLASSES)}"
        )
    if link.latency_ps < 0:
        raise SpecError(f"link {link.name!r}: the latency must not be negative")


#: Largest numbers that the engines compute with exactly; see ``engine/_limits.py``.
MAX_PS = 9_223_371 * 10**12
MAX_BYTES_PER_S = 10**18
MAX_PORTS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Circuits:
    """What joins the GPUs of a cluster that no links join.

    setup_ps: from the request for a circuit between two GPUs until it carries bytes. ports: circuits that a GPU can
    have at a time. bytes_per_s: of one circuit, each way. latency_ps: from the last byte sent to the last received.
    buffer_bytes: what a GPU reserves of its receive buffer before bytes leave for it; None: there is always room.

    Source of the parameters: TrioSim (ISCA'25), section 7.1.

    Raises SpecError: a number out of range.
    """

    setup_ps: int
    ports: int
    bytes_per_s: int
    latency_ps: int
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "setup_ps": (0, MAX_PS),
            "ports": (1, MAX_PORTS),
            "bytes_per_s": (1, MAX_BYTES_PER_S),
            "latency_ps": (0, MAX_PS),
            "buffer_bytes": (1, 2**53),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value is None and name == "buffer_bytes":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise SpecError(
                    f"must be a whole number from {least} to {most}, got {value!r}", field=f"circuits.{name}"
                )

    def describe(self) -> str:
        """``8 circuits a GPU of 60.5 GB/s, set up in 20 ms``, and what else was given."""
        text = f"{self.ports} circuits a GPU of {format_bandwidth(self.bytes_per_s)}, set up in "
        text += format_time(self.setup_ps)
        if self.latency_ps:
            text += f", latency {format_time(self.latency_ps)}"
        if self.buffer_bytes is not None:
            text += f", receive buffer {format_bytes(self.buffer_bytes)}"
        return text
