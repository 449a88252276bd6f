"""What a cluster is: devices, links and what is said of the whole, checked on construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from trine.arrays import Int64
from trine.cluster.parts import EVIDENCE, KINDS, LIBRARIES, SCALE_OUT, Circuits, Device, Fabric, check_link
from trine.cluster.tables import DeviceTable, LinkedDevices, LinkTable
from trine.errors import SpecError, nearest

#: How routes are chosen; :mod:`trine.cluster.routing.router` says how each does.
SHORTEST, D_MOD_K, HASH, SPLIT, RAIL, DIMENSIONS = (
    "shortest", "d-mod-k", "ecmp-hash", "ecmp-split", "rail", "dimension-order",
)  # fmt: skip
POLICIES = (SHORTEST, D_MOD_K, HASH, SPLIT, RAIL, DIMENSIONS)


def check_routing(text: str, grid: tuple[int, ...]) -> None:
    """Raise SpecError for what is no policy, or not one for GPUs that form no grid."""
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

    Large machines hold both as columns (:mod:`trine.cluster.tables`), which read like tuples; :attr:`link_table` and
    :attr:`device_table` are the columns of any cluster. Whoever works on many devices or links asks for those.

    ``evidence`` says where the numbers come from (one of :data:`EVIDENCE`); ``sources`` says it in words, one entry a
    kind of number; ``notes`` are for people. ``library``: what runs collectives on it (one of :data:`LIBRARIES`).
    ``routing``: how routes are chosen, see :mod:`trine.cluster.routing.router`. ``grid``: the sizes of the mesh or
    torus that the GPUs form, in order, empty where they form none. ``fabric``: what usually joins copies of this node,
    None where that is not known or is already built. ``circuits``: what joins the GPUs that no links join, None:
    nothing does.
    ``routing_reason``: who chose the policy (see :meth:`routing_why`); no part of what the cluster is. ``cut_from``: no
    part of it either: the cluster that some links were taken from, and the numbers of these there. ``degraded_from``:
    no part of it either: makes the clusters that have one slow or missing link less.

    Raises SpecError: no devices, a repeated name, an unknown kind, or a link that cannot be.
    """

    evidence: str = "assumed"
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    library: str | None = None
    routing: str = "shortest"
    grid: tuple[int, ...] = ()
    fabric: Fabric | None = None
    circuits: Circuits | None = None
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
        self._check_devices()
        self._check_links()
        if self.grid and int(np.prod(self.grid, dtype=np.int64)) != len(self.gpus):
            raise SpecError(f"a grid of {'x'.join(map(str, self.grid))} has not the cluster's {len(self.gpus)} GPUs")

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
        """One link of each kind, and the first whose ends cannot be."""
        links = self.link_table
        outside = np.maximum(links.source, links.target) >= len(self.devices)
        outside |= (np.minimum(links.source, links.target) < 0) | (links.source == links.target)
        first = np.unique(links.number, return_index=True)[1].tolist()
        for i in sorted({*first, *np.flatnonzero(outside)[:1].tolist()}):
            try:
                check_link(links.unnamed(i), self.devices)
            except SpecError:
                check_link(links[i], self.devices)  # says its name, which takes long to make

    @cached_property
    def _index(self) -> dict[str, int]:
        return {device.name: i for i, device in enumerate(self.devices)}

    def routed(self, policy: str, why: str) -> Self:
        """The cluster with another policy, and why: of ``routing d-mod-k: why``."""
        return replace(self, routing=policy, routing_reason=(policy, why))

    @property
    def routing_why(self) -> str:
        """Why :attr:`routing` is what it is, for people."""
        policy, why = self.routing_reason
        if policy == self.routing:
            return why
        return "the default" if self.routing == SHORTEST else "asked for"

    @property
    def has_fabric(self) -> bool:
        """Whether links lead between nodes."""
        return bool(self.link_table.of_class(SCALE_OUT).any())
