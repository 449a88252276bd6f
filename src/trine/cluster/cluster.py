"""The machine: devices, directed links, and which links a message crosses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.routing import Path, Router, check_routing
from trine.errors import SpecError, nearest

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
    """

    name: str
    source: int
    target: int
    bytes_per_s: int
    latency_ps: int
    link_class: str = SCALE_UP
    medium: str | None = None
    peak_bytes_per_s: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What joins nodes: ``kind`` is one of :data:`FABRICS`; ``link`` is in the link catalogue.

    ``lanes``: of each NIC. ``reduces``: its switches add up what passes through (SHARP). Of fabrics with leaves:
    ``oversubscription``: how many times more bandwidth goes down from a leaf switch than up; ``radix``: ports of a
    switch.

    Raises
    ------
    SpecError: an unknown kind, or numbers of leaves where there are none.
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


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and links, checked on construction.

    ``evidence`` says where the numbers come from (one of :data:`EVIDENCE`); ``sources`` says it in words, one entry a
    kind of number; ``notes`` are for people. ``library``: what runs collectives on it (one of :data:`LIBRARIES`).
    ``routing``: how routes are chosen, see :mod:`trine.cluster.routing`. ``grid``: the sizes of the mesh or torus that
    the GPUs form, in order, empty where they form none. ``fabric``: what usually joins copies of this node, None where
    that is not known or is already built.

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
    library: str | None = None
    routing: str = "shortest"
    grid: tuple[int, ...] = ()
    fabric: Fabric | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise SpecError(f"cluster {self.name!r} has no devices")
        if self.evidence not in EVIDENCE:
            raise SpecError(f"unknown evidence {self.evidence!r}{nearest(self.evidence, EVIDENCE)}")
        if self.library is not None and self.library not in LIBRARIES:
            raise SpecError(f"unknown library {self.library!r}{nearest(self.library, LIBRARIES)}")
        check_routing(self.routing, self.grid)
        for device in self.devices:
            if device.kind not in KINDS:
                raise SpecError(f"device {device.name!r}: unknown kind {device.kind!r}{nearest(device.kind, KINDS)}")
        if len(self._index) != len(self.devices):
            names = [device.name for device in self.devices]
            raise SpecError(f"two devices are named {next(n for n in names if names.count(n) > 1)!r}")
        for link in self.links:
            _check_link(link, self.devices)
        if self.grid and int(np.prod(self.grid, dtype=np.int64)) != len(self.gpus):
            raise SpecError(f"a grid of {'x'.join(map(str, self.grid))} has not the cluster's {len(self.gpus)} GPUs")

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
    def _router(self) -> Router:
        return Router(self)

    @cached_property
    def _links_from(self) -> tuple[tuple[Link, ...], ...]:
        found: list[list[Link]] = [[] for _ in self.devices]
        for link in self.links:
            found[link.source].append(link)
        return tuple(map(tuple, found))

    def links_from(self, device: int) -> tuple[Link, ...]:
        """The links that start at the device of this index, in order."""
        return self._links_from[device]

    @cached_property
    def islands(self) -> tuple[int, ...]:
        """For each device a number that it shares with all that scale-up links join to it, directly or not.

        Host links count only between devices of which none has a scale-up link.
        """
        roots = list(range(len(self.devices)))

        def find(device: int) -> int:
            while roots[device] != device:
                roots[device] = roots[roots[device]]
                device = roots[device]
            return device

        fast = {link.source for link in self.links if link.link_class == SCALE_UP}
        for link in self.links:
            slow = link.link_class == HOST_LINK and not (fast & {link.source, link.target})
            if link.link_class == SCALE_UP or slow:
                roots[find(link.source)] = find(link.target)
        return tuple(find(device) for device in range(len(self.devices)))

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

        Static and deterministic, by the policy :attr:`routing`; see :mod:`trine.cluster.routing`.

        Raises
        ------
        SpecError: no path that only forwarding devices carry on (names both ends), or the policy spreads messages over
            several (then ask :meth:`paths`).
        """
        paths = self.paths(source, target)
        if len(paths) > 1:
            raise SpecError(
                f"routing {self.routing!r} spreads messages from {self.devices[source].name!r} to "
                f"{self.devices[target].name!r} over {len(paths)} routes, and one is asked for; "
                "use 'ecmp-hash' or 'd-mod-k', which choose one"
            )
        return paths[0][0]

    def paths(self, source: int, target: int) -> tuple[Path, ...]:
        """The routes from one device to another, each with the part of the bytes that takes it; the parts sum to 1.

        Raises
        ------
        SpecError: as :meth:`route`, but for several routes.
        """
        paths = self._router.paths(source, target)
        if not paths:
            names = f"from {self.devices[source].name!r} to {self.devices[target].name!r}"
            raise SpecError(
                f"cluster {self.name!r} has no route {names}; of GPUs and hosts only those with 'forwards: true' "
                "carry the traffic of others"
            )
        return paths

    def route_latency_ps(self, route: tuple[int, ...]) -> int:
        """Sum of the latencies of a route's links."""
        return sum(self.links[link].latency_ps for link in route)

    def host_of(self, gpu: int) -> int | None:
        """Index of the host memory nearest to a GPU (as routes are measured), None if it reaches none."""
        return self._router.host_of(gpu)

    def nic_of(self, gpu: int) -> int | None:
        """Index of the NIC through which a GPU reaches other nodes, None if it reaches none; see ``routing.py``."""
        return self._router.nic_of(gpu)

    def to_networkx(self) -> Any:
        """A ``networkx.MultiDiGraph``, see :func:`trine.cluster.exporters.to_networkx`; needs networkx."""
        from trine.cluster.exporters.networkx_graph import to_networkx

        return to_networkx(self)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the cluster, in a canonical form."""
        from trine.cluster.written import to_mapping
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
        from trine.cluster.written import to_mapping
        from trine.spec import dump_yaml

        return dump_yaml(to_mapping(self))


class Wire(NamedTuple):
    """A link before it has a name; the fields are those of :class:`Link`. ``name`` None: it is named after its ends."""

    source: int
    target: int
    bytes_per_s: int
    latency_ps: int
    link_class: str = SCALE_UP
    medium: str | None = None
    peak_bytes_per_s: int | None = None
    name: str | None = None

    def back(self) -> Wire:
        """The other direction of a duplex wire."""
        return self._replace(source=self.target, target=self.source)


def make_links(devices: tuple[Device, ...], wires: Iterable[Wire | tuple[int, int, int, int]]) -> tuple[Link, ...]:
    """Name directed wires after their ends; parallel ones get #2, #3, ..."""
    seen: dict[tuple[int, int], int] = {}
    links = []
    for wire in wires:
        source, target, bytes_per_s, latency_ps, link_class, medium, peak, name = Wire(*wire)
        count = seen[source, target] = seen.get((source, target), 0) + 1
        if name is None:
            name = f"{devices[source].name}->{devices[target].name}" + (f"#{count}" if count > 1 else "")
        links.append(
            Link(
                name=name,
                source=source,
                target=target,
                bytes_per_s=bytes_per_s,
                latency_ps=latency_ps,
                link_class=link_class,
                medium=medium,
                peak_bytes_per_s=peak,
            )
        )
    return tuple(links)


def wire_of(link: Link) -> Wire:
    """The wire of a link, to be named anew."""
    return Wire(
        link.source, link.target, link.bytes_per_s, link.latency_ps, link.link_class, link.medium, link.peak_bytes_per_s
    )


def _check_link(link: Link, devices: tuple[Device, ...]) -> None:
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
