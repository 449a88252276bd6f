"""The data of a cluster: devices, links and properties of the whole, checked on construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from trine.cluster.collective_bandwidth import CollectiveBandwidth
from trine.cluster.parts import EVIDENCE, KINDS, LIBRARIES, SCALE_OUT, Circuits, Device, Fabric, check_link
from trine.cluster.tables import DeviceTable, LinkedDevices, LinkTable
from trine.common.arrays import Int64
from trine.errors import SpecError, nearest

#: Routing policies; see :mod:`trine.cluster.routing.router`.
SHORTEST, D_MOD_K, HASH, SPLIT, RAIL, DIMENSIONS = (
    "shortest", "d-mod-k", "ecmp-hash", "ecmp-split", "rail", "dimension-order",
)  # fmt: skip
POLICIES = (SHORTEST, D_MOD_K, HASH, SPLIT, RAIL, DIMENSIONS)


def check_routing(text: str, grid: tuple[int, ...]) -> None:
    """Raise SpecError if ``text`` is not a policy, or is a policy that needs a grid of GPUs and ``grid`` is empty."""
    name, colon, salt = text.partition(":")
    if name not in POLICIES:
        raise SpecError(f"unknown routing {text!r}{nearest(name, POLICIES)}")
    if colon and (name != HASH or not salt):
        raise SpecError(f"routing {text!r}: only {HASH} takes a salt, such as '{HASH}:7'")
    if name == DIMENSIONS and not grid:
        raise SpecError(f"routing '{DIMENSIONS}' needs a mesh or torus (with 'grid')")


@dataclass(frozen=True, kw_only=True)
class ClusterData(LinkedDevices):
    """Devices and links, checked on construction.

    Large machines hold both as columns (:mod:`trine.cluster.tables`) that read like tuples. Code that works on many
    devices or links should use :attr:`link_table` and :attr:`device_table`, the columns of any cluster.

    ``evidence``: the kind of evidence for the numbers (one of :data:`EVIDENCE`); ``sources``: their sources, one entry
    per kind of number. ``notes``: text for people. ``library``: the collective library (one of :data:`LIBRARIES`).
    ``routing``: the routing policy, see :mod:`trine.cluster.routing.router`. ``grid``: the sizes of the mesh or torus
    of GPUs, in order, or empty. ``fabric``: the usual fabric between copies of this node, None if it is unknown or
    already built. ``circuits``: the circuits between GPUs that no links join, or None. ``spread``: standard deviation
    of the logarithm of a collective's time from run to run, or None (``trine calibrate --cluster``). ``segment``: hosts
    of the usual segment of jobs on copies of this rack, or None (:mod:`trine.cluster.segments`).
    ``collective_bandwidth``: measured bandwidths of single collectives, or None: all follow the links.
    ``peer_access``: whether the driver lets GPUs read each other's memory over PCIe; None: as usual for the GPU model.

    Equality ignores the last three fields. ``routing_reason``: who chose the policy (see :meth:`routing_why`).
    ``cut_from``: the original cluster with all links, and the removed links' numbers there. ``degraded_from``:
    functions that build this cluster with one slow or missing link fewer.

    Raises SpecError for a cluster without devices, a repeated name, an unknown kind, or an invalid link.
    """

    evidence: str = "assumed"
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    library: str | None = None
    routing: str = "shortest"
    grid: tuple[int, ...] = ()
    fabric: Fabric | None = None
    circuits: Circuits | None = None
    spread: float | None = None
    collective_bandwidth: CollectiveBandwidth | None = None
    segment: int | None = None
    peer_access: bool | None = None
    routing_reason: tuple[str, str] = field(default=("", ""), compare=False)
    cut_from: tuple[Self, Int64] | None = field(default=None, compare=False, repr=False)
    degraded_from: tuple[Callable[[], Self], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", LinkTable.of(self.links))
        if not self.devices:
            raise SpecError(f"cluster {self.name!r} has no devices")
        if self.evidence not in EVIDENCE:
            raise SpecError(f"unknown evidence {self.evidence!r}{nearest(self.evidence, EVIDENCE)}")
        if self.library is not None and self.library not in LIBRARIES:
            raise SpecError(f"unknown library {self.library!r}{nearest(self.library, LIBRARIES)}")
        check_routing(self.routing, self.grid)
        if self.segment is not None:
            self._check_segment(self.segment)
        self._check_devices()
        self._check_links()
        if self.grid and int(np.prod(self.grid, dtype=np.int64)) != len(self.gpus):
            raise SpecError(f"a grid of {'x'.join(map(str, self.grid))} has not the cluster's {len(self.gpus)} GPUs")

    def _check_segment(self, segment: int) -> None:
        """Raise SpecError for a segment above the hosts of this rack, or below 1."""
        hosts = len({self.devices[gpu].node for gpu in self.gpus})
        if not 1 <= segment <= hosts:
            raise SpecError(f"segment {segment}: {self.name!r} has {hosts} hosts, so that a segment is 1 to {hosts}")

    def _check_devices(self) -> None:
        devices = self.devices
        for device in devices.kinds if isinstance(devices, DeviceTable) else devices:
            if device.kind not in KINDS:
                name = device.name if isinstance(device, Device) else "of a table"
                raise SpecError(f"device {name!r}: unknown kind {device.kind!r}{nearest(device.kind, KINDS)}")
        if not isinstance(devices, DeviceTable) and len(self._index) != len(devices):
            names = [device.name for device in devices]
            raise SpecError(f"two devices are named {next(n for n in names if names.count(n) > 1)!r}")

    def _check_links(self) -> None:
        """Check one link of each kind, and the first with invalid ends."""
        links = self.link_table
        outside = np.maximum(links.source, links.target) >= len(self.devices)
        outside |= (np.minimum(links.source, links.target) < 0) | (links.source == links.target)
        first = np.unique(links.number, return_index=True)[1].tolist()
        for i in sorted({*first, *np.flatnonzero(outside)[:1].tolist()}):
            try:
                check_link(links.unnamed(i), self.devices)
            except SpecError:
                check_link(links[i], self.devices)  # the error needs the link's name, which is slow to build

    @cached_property
    def _index(self) -> dict[str, int]:
        return {device.name: i for i, device in enumerate(self.devices)}

    def routed(self, policy: str, why: str) -> Self:
        """Return the cluster with another policy, and the reason for it, as in ``routing d-mod-k: why``."""
        return replace(self, routing=policy, routing_reason=(policy, why))

    @property
    def routing_why(self) -> str:
        """Reason for :attr:`routing`, for people."""
        policy, why = self.routing_reason
        if policy == self.routing:
            return why
        return "the default" if self.routing == SHORTEST else "asked for"

    @property
    def has_fabric(self) -> bool:
        """True if links lead between nodes."""
        return bool(self.link_table.of_class(SCALE_OUT).any())
