"""Placement of a job's ranks: devices of a cluster, and the links between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trine.common.arrays import Bool, Int32, Int64
from trine.errors import PlanError

#: A collective's algorithm (a name, None for the default, or a plan of
#: :mod:`trine.collectives.library_flows`) and ps of software before each of its messages
CollectiveAnswer = tuple[Any, int]
#: (kind, bytes, ranks, algorithm or None) -> the answer
CollectiveCosts = Callable[[str, int, Sequence[int], str | None], CollectiveAnswer]
#: (kind, bytes, groups [groups, ranks], algorithm or None) -> the class of each group, and the answer of each class
GroupCosts = Callable[[str, int, Int64, str | None], tuple[Int32, Sequence[CollectiveAnswer]]]


@dataclass(frozen=True, slots=True, eq=False)
class RouteSoftware:
    """Software time before a message: ``outer_ps`` if its route crosses a link of ``is_outer`` (bool[links]), else
    ``inner_ps``."""

    is_outer: Bool
    inner_ps: int
    outer_ps: int

    def on(self, links: Int32) -> int:
        return self.outer_ps if self.is_outer[links].any() else self.inner_ps


class ClusterRoutes(Protocol):
    """Interface of a cluster; devices and links are numbers. See :class:`trine.cluster.Cluster`."""

    @property
    def link_bytes_per_s(self) -> Int64: ...
    @property
    def link_latency_ps(self) -> Int64: ...
    @property
    def link_names(self) -> Sequence[str]: ...
    @property
    def device_names(self) -> Sequence[str]: ...
    def route(self, source: int, target: int) -> tuple[int, ...]: ...
    def routes(self, sources: Int64, targets: Int64) -> tuple[Int64, Int32]: ...
    def hosts_of(self, gpus: Int64) -> Int64: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placement:
    """Devices of the ranks. devices: int64[ranks]. cluster: None for one rank on a lone device.

    costs: chooses the algorithm of a group's collective and the software time before its messages (None: the
    requested algorithm, no software time). group_costs: the same for many groups at once. software: further time
    before each message, by its route; only in jobs that are a single collective.
    """

    devices: Int64
    cluster: ClusterRoutes | None = None
    costs: CollectiveCosts | None = None
    group_costs: GroupCosts | None = None
    software: RouteSoftware | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.devices)

    @property
    def link_bytes_per_s(self) -> Int64:
        return np.zeros(0, np.int64) if self.cluster is None else self.cluster.link_bytes_per_s

    @property
    def link_latency_ps(self) -> Int64:
        return np.zeros(0, np.int64) if self.cluster is None else self.cluster.link_latency_ps

    @property
    def link_names(self) -> Sequence[str]:
        return () if self.cluster is None else self.cluster.link_names

    def link_name(self, link: int) -> str:
        return self.link_names[link]

    def rank_name(self, rank: int) -> str:
        return "gpu0" if self.cluster is None else self.cluster.device_names[int(self.devices[rank])]

    def collective(self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None) -> CollectiveAnswer:
        """Return the algorithm to simulate, and ps of software before each message."""
        return (algorithm, 0) if self.costs is None else self.costs(kind, size_bytes, ranks, algorithm)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one device to another."""
        return () if self.cluster is None else self.cluster.route(source, target)

    def host_of(self, rank: int) -> int:
        """Return the device of the host memory that serves a rank. Raises PlanError if the rank has no host."""
        return int(self._hosts_of(np.array([rank], np.int64))[0])

    def routes(self, sources: Int64 | None, targets: Int64 | None) -> tuple[Int64, Int32]:
        """Return the links from rank to rank as CSR: (ptr int64[m + 1], links int32).

        Without ``sources``, routes start at each target's host memory; without ``targets``, they end at each source's.
        Raises PlanError for a rank whose host is unknown.
        """
        given = sources if sources is not None else targets
        assert given is not None
        if self.cluster is None:
            return np.zeros(len(given) + 1, np.int64), np.zeros(0, np.int32)
        starts, ends = (self._hosts_of(given) if ranks is None else self.devices[ranks] for ranks in (sources, targets))
        return self.cluster.routes(starts, ends)

    def _hosts_of(self, ranks: Int64) -> Int64:
        devices = self.devices[ranks]
        hosts = np.full(len(ranks), -1, np.int64) if self.cluster is None else self.cluster.hosts_of(devices)
        if (hosts < 0).any():
            name = self.rank_name(int(ranks[np.argmax(hosts < 0)]))
            raise PlanError(f"device {name!r} has no host memory to copy from or to")
        return hosts
