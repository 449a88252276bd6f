"""Where the ranks of a job sit: devices of a cluster, and the routes between them, numbered when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trine.errors import PlanError

#: (kind, bytes, ranks, algorithm or None) -> the algorithm to simulate, and ps of software before each message
CollectiveCosts = Callable[[str, int, Sequence[int], str | None], tuple[str | None, int]]


class Placement:
    """Where ranks sit: devices of a cluster, and the routes between them.

    ``costs``: what a library's software adds to the messages of collectives; None: nothing.
    """

    def __init__(
        self,
        devices: Sequence[int],
        route: Callable[[int, int], tuple[int, ...]],
        host_of: Callable[[int], int | None],
        link_bytes_per_s: Sequence[int],
        link_latency_ps: Sequence[int],
        link_names: Sequence[str],
        device_names: Sequence[str],
        costs: CollectiveCosts | None = None,
    ) -> None:
        self.devices = devices
        self.host_of = host_of
        self.link_bytes_per_s = link_bytes_per_s
        self.link_latency_ps = link_latency_ps
        self.link_names = link_names
        self.device_names = device_names
        self._route = route
        self.costs = costs
        self._numbers: dict[tuple[int, int, int], int] = {}
        self.routes: list[tuple[int, ...]] = []
        self.software_ps: list[int] = []

    def between_ranks(self, source: int, target: int, software_ps: int = 0) -> int:
        """Number of the route from one rank's device to another's, with software before each message."""
        return self._number(self.devices[source], self.devices[target], software_ps)

    def collective(
        self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None
    ) -> tuple[str | None, int]:
        """The algorithm to simulate, and ps of software before each message."""
        return (algorithm, 0) if self.costs is None else self.costs(kind, size_bytes, ranks, algorithm)

    def from_host(self, rank: int) -> int:
        """Number of the route from the host memory that serves a rank to its device."""
        return self._number(self._host(rank), self.devices[rank])

    def to_host(self, rank: int) -> int:
        """Number of the route from a rank's device to the host memory that serves it."""
        return self._number(self.devices[rank], self._host(rank))

    def _host(self, rank: int) -> int:
        host = self.host_of(self.devices[rank])
        if host is None:
            raise PlanError(f"device {self.device_names[self.devices[rank]]!r} has no host memory to copy from or to")
        return host

    def _number(self, source: int, target: int, software_ps: int = 0) -> int:
        key = (source, target, software_ps)
        if key not in self._numbers:
            self._numbers[key] = len(self.routes)
            self.routes.append(() if source == target else self._route(source, target))
            self.software_ps.append(software_ps)
        return self._numbers[key]
