"""Synchronisation between ranks in the programs of collectives: at the start, after data, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trine.gpu.kernels.builder import CollectiveBuilder, Workgroup
from trine.gpu.kernels.options import JOINT

#: Peers of a workgroup: (distance, signal number), in the order of service.
Peers = Sequence[tuple[int, int]]


class RankBarrier:
    """Start and end barriers for an algorithm whose ranks access rank + d, for all ``distances``.

    Each workgroup waits only for workgroups of the same number, because no others touch its slices. ``default``: the
    algorithm's default barriers. ``peers``: the peers of one workgroup; None: all distances.
    """

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int], default: str) -> None:
        at_start, at_end = builder.options.syncs(default)
        self._ready = _Signals(builder, distances) if at_start else None
        self._done = _Signals(builder, distances) if at_end else None

    def around(self, groups: Iterable[Workgroup]) -> Iterator[Workgroup]:
        """Yield the workgroups; operations that the caller adds to one lie between its start and end barriers."""
        for group in groups:
            self.start(group)
            yield group
            self.end(group)

    def start(self, group: Workgroup, peers: Peers | None = None) -> None:
        """Tell the ranks that access this rank's memory that it is ready; wait until this rank's peers are ready."""
        if self._ready is not None:
            self._ready.send(group, peers, -1, "ready")
            self._ready.wait(group, peers, "wait until ready")
            group.barrier("wait until ready")

    def end(self, group: Workgroup, peers: Peers | None = None) -> None:
        """Tell the peers that their memory is free; wait until no peer needs this rank's memory."""
        if self._done is not None:
            group.settle("done")
            self._done.send(group, peers, 1, "done")
            self._done.wait(group, peers, "wait until done")


class Signal:
    """Signals after data, to rank + d and from rank - d for all ``distances``.

    They do nothing if there are no distances or the lines carry flags.
    """

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int]) -> None:
        has_signals = bool(distances) and not builder.options.flagged
        self._signals = _Signals(builder, distances) if has_signals else None

    def send(self, group: Workgroup, peers: Peers | None = None, *, first: bool = False) -> None:
        """Tell the peers that all earlier writes are visible; ``first``: there are no writes yet."""
        if self._signals is not None:
            if not first:
                group.settle("signal")
            self._signals.send(group, peers, 1, "signal")

    def receive(self, group: Workgroup, peers: Peers | None = None, *, last: bool = False) -> None:
        """Wait for the peers' data; ``last``: this workgroup does not use it."""
        if self._signals is not None:
            self._signals.wait(group, peers, "wait")
            if not last:
                group.barrier("wait")

    def meet(self, group: Workgroup, *, last: bool = False) -> None:
        """Send and receive."""
        self.send(group)
        self.receive(group, last=last)


class _Signals:
    """One signal per distance; they share one semaphore of the workgroup, or have one each."""

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int]) -> None:
        self._distances = distances
        self._joint = builder.options.waits == JOINT
        self._semaphores = builder.signals(1 if self._joint else len(distances))

    def send(self, group: Workgroup, peers: Peers | None, direction: int, label: str) -> None:
        """Send to rank + d, or to rank - d if ``direction`` is -1."""
        targets = []
        for d, index in self._peers(group, peers):
            targets.append((direction * d, 0 if self._joint else index))
        group.signal(self._semaphores, targets, label)

    def wait(self, group: Workgroup, peers: Peers | None, label: str) -> None:
        served_peers = list(self._peers(group, peers))
        group.count(label)
        if self._joint:
            counts = [(0, len(served_peers))]
        else:
            counts = [(index, 1) for _, index in served_peers]
        for index, amount in counts:
            group.wait(self._semaphores, index, amount, label)
        group.delay_after_wait(label)

    def _peers(self, group: Workgroup, peers: Peers | None) -> Iterable[tuple[int, int]]:
        if peers is not None:
            return peers
        return ((d, d - self._distances[0]) for d in group.rotated(self._distances))
