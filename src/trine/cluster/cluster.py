"""The machine: devices, directed links, and which links a message crosses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trine.cluster.routes import Routes
from trine.errors import SpecError, nearest

GPU, HOST, SWITCH, NIC = "gpu", "host", "switch", "nic"
KINDS = (GPU, HOST, SWITCH, NIC)
SCALE_UP, HOST_LINK, SCALE_OUT = "scale-up", "host", "scale-out"
#: What a link is for: between the GPUs of a node or rack, to host memory and NICs (PCIe), or between nodes.
LINK_CLASSES = (SCALE_UP, HOST_LINK, SCALE_OUT)
#: How far a cluster's numbers can be trusted; see docs/formats/cluster.md.
EVIDENCE = ("measured", "interpolated", "modelled", "assumed")


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
    """

    name: str
    source: int
    target: int
    bytes_per_s: int
    latency_ps: int
    link_class: str = SCALE_UP
    medium: str | None = None
    peak_bytes_per_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and links, checked on construction.

    ``evidence`` says where the numbers come from (one of :data:`EVIDENCE`); ``sources`` says it in words, one entry a
    kind of number; ``notes`` are for people.

    Raises
    ------
    SpecError: no devices, a repeated name, an unknown kind, or a link that cannot be.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    evidence: str = "assumed"
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self) -> None:
        if not self.devices:
            raise SpecError(f"cluster {self.name!r} has no devices")
        if self.evidence not in EVIDENCE:
            raise SpecError(f"unknown evidence {self.evidence!r}{nearest(self.evidence, EVIDENCE)}")
        for device in self.devices:
            if device.kind not in KINDS:
                raise SpecError(f"device {device.name!r}: unknown kind {device.kind!r}{nearest(device.kind, KINDS)}")
        if len(self._index) != len(self.devices):
            names = [device.name for device in self.devices]
            raise SpecError(f"two devices are named {next(n for n in names if names.count(n) > 1)!r}")
        for link in self.links:
            _check_link(link, self.devices)

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs, in the order of the devices: the ranks of a job fill them in this order."""
        return tuple(i for i, device in enumerate(self.devices) if device.kind == GPU)

    @cached_property
    def link_bytes_per_s(self) -> npt.NDArray[np.int64]:
        """int64[links]."""
        return np.array([link.bytes_per_s for link in self.links], dtype=np.int64)

    @cached_property
    def link_latency_ps(self) -> npt.NDArray[np.int64]:
        """int64[links]."""
        return np.array([link.latency_ps for link in self.links], dtype=np.int64)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def _routes(self) -> Routes:
        return Routes(
            [device.forwards for device in self.devices],
            [(link.source, link.target, link.latency_ps) for link in self.links],
        )

    def index(self, name: str) -> int:
        """The index of the device of this name.

        Raises
        ------
        SpecError: there is none; names the nearest.
        """
        if name not in self._index:
            raise SpecError(f"cluster {self.name!r} has no device {name!r}{nearest(name, self._index)}")
        return self._index[name]

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Indices of the links from one device to another, in the order in which they are crossed.

        Static and deterministic: the least sum of latencies, then the fewest links, then the lowest link indices.

        Raises
        ------
        SpecError: no path that only forwarding devices carry on; names both ends.
        """
        path = self._routes.route(source, target)
        if path is None:
            names = f"from {self.devices[source].name!r} to {self.devices[target].name!r}"
            raise SpecError(
                f"cluster {self.name!r} has no route {names}; of GPUs and hosts only those with 'forwards: true' "
                "carry the traffic of others"
            )
        return path

    def route_latency_ps(self, route: tuple[int, ...]) -> int:
        """Sum of the latencies of a route's links."""
        return sum(self.links[link].latency_ps for link in route)

    def host_of(self, gpu: int) -> int | None:
        """Index of the host memory nearest to a GPU (as routes are measured), None if it reaches none."""
        return self._routes.nearest_of(gpu, self._hosts) if self._hosts else None

    @cached_property
    def _hosts(self) -> tuple[int, ...]:
        return tuple(i for i, device in enumerate(self.devices) if device.kind == HOST)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the cluster, in a canonical form."""
        from trine.cluster.file import to_mapping
        from trine.spec import fingerprint

        return fingerprint(to_mapping(self))

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read a cluster file, YAML or JSON (docs/formats/cluster.md).

        Raises
        ------
        SpecError: names file, field, value and the nearest valid name.
        """
        from trine.cluster.file import read_cluster

        return read_cluster(path)

    def to_yaml(self) -> str:
        """Text that :meth:`from_yaml` reads back as an equal cluster."""
        from trine.cluster.file import to_mapping
        from trine.spec import dump_yaml

        return dump_yaml(to_mapping(self))


def make_links(devices: tuple[Device, ...], wires: list[tuple[int, int, int, int]]) -> tuple[Link, ...]:
    """Name directed wires (source, target, bytes/s, latency in ps) after their ends; parallel ones get #2, #3, ..."""
    seen: dict[tuple[int, int], int] = {}
    links = []
    for source, target, bytes_per_s, latency_ps in wires:
        count = seen[source, target] = seen.get((source, target), 0) + 1
        name = f"{devices[source].name}->{devices[target].name}" + (f"#{count}" if count > 1 else "")
        links.append(Link(name=name, source=source, target=target, bytes_per_s=bytes_per_s, latency_ps=latency_ps))
    return tuple(links)


def _check_link(link: Link, devices: tuple[Device, ...]) -> None:
    if not (0 <= link.source < len(devices) and 0 <= link.target < len(devices)):
        raise SpecError(f"link {link.name!r} joins a device that does not exist")
    if link.source == link.target:
        raise SpecError(f"link {link.name!r} joins {devices[link.source].name!r} to itself")
    if link.bytes_per_s <= 0:
        raise SpecError(f"link {link.name!r}: the bandwidth must be positive")
    if link.latency_ps < 0:
        raise SpecError(f"link {link.name!r}: the latency must not be negative")
