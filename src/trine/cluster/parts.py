"""Parts of a cluster: devices, links, and the fabric between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.errors import SpecError, nearest

GPU, HOST, SWITCH, NIC = "gpu", "host", "switch", "nic"
KINDS = (GPU, HOST, SWITCH, NIC)
SCALE_UP, HOST_LINK, SCALE_OUT = "scale-up", "host", "scale-out"
#: Classes of links: between the GPUs of a node or rack, to host memory and NICs (PCIe), or between nodes.
LINK_CLASSES = (SCALE_UP, HOST_LINK, SCALE_OUT)
#: Levels of evidence for a cluster's numbers; see docs/formats/cluster.md.
EVIDENCE = ("measured", "interpolated", "modelled", "assumed")
#: Libraries with known algorithm choices and costs.
LIBRARIES = ("nccl", "rccl")
#: Fabrics between nodes; ``clos`` is a synonym of ``fat-tree``. Fabrics in :data:`LEAVED` have leaf switches.
FABRICS = ("switch", "rail", "fat-tree", "clos", "dragonfly", "none")
LEAVED = ("rail", "fat-tree", "clos")
#: Possible sizes of a host's memory.
MIN_HOST_BYTES, MAX_HOST_BYTES = 2**30, 2**50


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """An end point of links. ``gpu``: a GPU model known to :func:`trine.cluster.load_gpu`.

    ``kind``: ``gpu``, ``host`` (host memory), ``switch`` or ``nic``. ``node``: the host that the device belongs to.
    ``forwards``: whether routes may pass through it. ``reduces``: whether a switch reduces and multicasts the traffic
    through it (NVLS, SHARP). ``rail``: the number of the rail that a NIC or leaf switch belongs to. ``memory_bytes``:
    capacity of a host's memory, None if unknown.
    """

    name: str
    kind: str = GPU
    gpu: str | None = None
    node: str | None = None
    forwards: bool = False
    reduces: bool = False
    rail: int | None = None
    memory_bytes: int | None = None


def check_host_memory(kind: str, memory_bytes: int, file: str, field: str) -> None:
    """Raise SpecError for memory of another device than a host, or of an impossible size."""
    if kind != HOST:
        hint = ": its GPU model has the capacity" if kind == GPU else ""
        raise SpecError(f"a {kind} has no memory figure{hint}", file=file, field=field)
    if not MIN_HOST_BYTES <= memory_bytes <= MAX_HOST_BYTES:
        raise SpecError(f"a host has 1 GiB to 1 PiB of memory, got {memory_bytes} B", file=file, field=field)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction of a wire, from device index ``source`` to device index ``target``.

    ``bytes_per_s``: bandwidth of large transfers; ``peak_bytes_per_s``: bandwidth in the data sheet (None: unknown).
    ``latency_ps``: latency of the wire and its end points, without software. ``link_class``: one of LINK_CLASSES.
    ``medium``: its entry in the link catalogue (``nvlink4``, ``pcie5``, ``ib-ndr``), or None for plain numbers.
    A link without name and ends (-1) holds the shared data of many links of a :class:`trine.cluster.tables.LinkTable`.
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
        """Return the same link between other devices, under another name."""
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
    """A fabric between nodes: ``kind`` is one of :data:`FABRICS`; ``link`` is in the link catalogue.

    ``lanes``: lanes of each NIC. ``reduces``: whether its switches reduce traffic (SHARP). For fabrics with leaves:
    ``oversubscription``: ratio of a leaf switch's downlink bandwidth to its uplink bandwidth; ``radix``: ports of a
    switch. ``latency_ps``: of the link between a NIC and its switch; None: the catalogue's.

    Raises SpecError for an unknown kind, or for ``oversubscription`` or ``radix`` on a fabric without leaves.
    """

    kind: str
    link: str
    lanes: int = 1
    oversubscription: float = 1.0
    radix: int = 64
    reduces: bool = False
    latency_ps: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in FABRICS:
            raise SpecError(f"unknown fabric {self.kind!r}{nearest(self.kind, FABRICS)}")
        if self.kind not in LEAVED and (self.oversubscription, self.radix) != (1.0, 64):
            raise SpecError(f"a {self.kind} fabric has no leaves, so that neither oversubscription nor radix matter")


def check_link(link: Link, devices: Sequence[Device]) -> None:
    """Raise SpecError if a link is invalid."""
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
    """Circuits between the GPUs of a cluster without links between them.

    setup_ps: time from the request for a circuit between two GPUs until it carries bytes. ports: concurrent circuits
    of a GPU. bytes_per_s: bandwidth of one circuit, each way. latency_ps: time from the last byte sent to the last
    received. buffer_bytes: size of a GPU's receive buffer; each send first reserves its bytes there. None: unlimited.

    Source of the parameters: TrioSim (ISCA'25), section 7.1.

    Raises SpecError if a number is out of range.
    """

    setup_ps: int
    ports: int
    bytes_per_s: int
    latency_ps: int
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "setup_ps": (0, MAX_PS), "ports": (1, MAX_PORTS), "bytes_per_s": (1, MAX_BYTES_PER_S),
            "latency_ps": (0, MAX_PS), "buffer_bytes": (1, 2**53),
        }  # fmt: skip
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value is None and name == "buffer_bytes":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                message = f"must be a whole number from {least} to {most}, got {value!r}"
                raise SpecError(message, field=f"circuits.{name}")

    def describe(self) -> str:
        """Return ``8 circuits a GPU of 60.5 GB/s, set up in 20 ms``, then the latency and buffer if set."""
        text = f"{self.ports} circuits a GPU of {format_bandwidth(self.bytes_per_s)}, set up in "
        text += format_time(self.setup_ps)
        if self.latency_ps:
            text += f", latency {format_time(self.latency_ps)}"
        if self.buffer_bytes is not None:
            text += f", receive buffer {format_bytes(self.buffer_bytes)}"
        return text
