"""Where the ranks of a job sit: devices, the routes between them, and the links they cross, asked for in bulk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.arrays import Int32, Int64
from trine.cluster.cluster import Cluster
from trine.errors import PlanError
from trine.folding.calls import GroupCosts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Site:
    """devices: int64[ranks], the device of each; ``cluster``: None for one rank on a device of its own.

    costs: chooses the schedules of collectives, and says what software adds to their messages.
    """

    devices: Int64
    cluster: Cluster | None
    costs: GroupCosts | None

    @property
    def num_ranks(self) -> int:
        return len(self.devices)

    @property
    def link_bytes_per_s(self) -> Int64:
        return np.zeros(0, np.int64) if self.cluster is None else self.cluster.link_bytes_per_s

    @property
    def link_latency_ps(self) -> Int64:
        return np.zeros(0, np.int64) if self.cluster is None else self.cluster.link_latency_ps

    def link_name(self, link: int) -> str:
        return "" if self.cluster is None else self.cluster.link_name(link)

    def rank_name(self, rank: int) -> str:
        return "gpu0" if self.cluster is None else self.cluster.device_name(int(self.devices[rank]))

    def routes(self, sources: Int64 | None, targets: Int64 | None) -> tuple[Int64, Int32]:
        """CSR of the links from rank to rank; without ``sources`` from the host memory of each target, without
        ``targets`` to that of each source.

        Raises PlanError for a rank whose host is not known.
        """
        if self.cluster is None:
            given = sources if targets is None else targets
            assert given is not None
            return np.zeros(len(given) + 1, np.int64), np.zeros(0, np.int32)
        return self.cluster.routes(self._ends(sources, targets), self._ends(targets, sources))

    def _ends(self, ranks: Int64 | None, others: Int64 | None) -> Int64:
        """Devices of ``ranks``, or the host memories of ``others``."""
        assert self.cluster is not None
        if ranks is not None:
            return self.devices[ranks]
        assert others is not None
        devices = self.devices[others]
        hosts = self.cluster.hosts_of(devices)
        if (hosts < 0).any():
            name = self.cluster.device_name(int(devices[np.argmax(hosts < 0)]))
            raise PlanError(f"device {name!r} has no host memory to copy from or to")
        return hosts
