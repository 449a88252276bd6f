"""How ranks wait for each other in the programs that are built here: at the start, behind data, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trine.collectives.kernels.builder import CollectiveBuilder, Workgroup
from trine.collectives.kernels.options import JOINT

#: Peers of a workgroup: (distance, number of its signal), in the order in which they are served.
Peers = Sequence[tuple[int, int]]


class RankBarrier:
    """Start and end of an algorithm in which each rank reads from or writes to rank + d, for all ``distances``.

    Each workgroup waits for the workgroups of the same number alone: nobody else touches its slices. ``usual``: when
    the algorithm waits unless told otherwise. ``peers``: of one workgroup; None: all distances.
    """

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int], usual: str) -> None:
        at_start, at_end = builder.options.syncs(usual)
        self._ready = _Signals(builder, distances) if at_start else None
        self._done = _Signals(builder, distances) if at_end else None

    def around(self, groups: Iterable[Workgroup]) -> Iterator[Workgroup]:
        """The workgroups, each with its start before what is added to it, and its end behind that."""
        for group in groups:
            self.start(group)
            yield group
            self.end(group)

    def start(self, group: Workgroup, peers: Peers | None = None) -> None:
        """Tell those that will come to the own memory that they may; wait until the own peers say so."""
        if self._ready is not None:
            self._ready.send(group, peers, -1, "ready")
            self._ready.wait(group, peers, "wait until ready")
            group.barrier("wait until ready")

    def end(self, group: Workgroup, peers: Peers | None = None) -> None:
        """Tell the peers that their memory is not needed any more; wait until nobody needs the own one."""
        if self._done is not None:
            group.settle("done")
            self._done.send(group, peers, 1, "done")
            self._done.wait(group, peers, "wait until done")


class Signal:
    """Behind data to rank + d, for all ``distances``, and from rank - d; nothing where the lines carry flags."""

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int]) -> None:
        self._signals = None if builder.options.flagged else _Signals(builder, distances)

    def send(self, group: Workgroup, peers: Peers | None = None, *, first: bool = False) -> None:
        """What has been written so far is there for the peers; ``first``: nothing has been."""
        if self._signals is not None:
            if not first:
                group.settle("signal")
            self._signals.send(group, peers, 1, "signal")

    def receive(self, group: Workgroup, peers: Peers | None = None, *, last: bool = False) -> None:
        """The peers' data is there; ``last``: nothing of this workgroup uses it."""
        if self._signals is not None:
            self._signals.wait(group, peers, "wait")
            if not last:
                group.barrier("wait")

    def meet(self, group: Workgroup, *, last: bool = False) -> None:
        """Send and receive."""
        self.send(group)
        self.receive(group, last=last)


class _Signals:
    """One signal along each distance: all on one semaphore of the workgroup, or each on its own."""

    def __init__(self, builder: CollectiveBuilder, distances: Sequence[int]) -> None:
        self._distances = distances
        self._joint = builder.options.waits == JOINT
        self._semaphores = builder.signals(1 if self._joint else len(distances))

    def send(self, group: Workgroup, peers: Peers | None, direction: int, label: str) -> None:
        """To rank + d, or against the distances (``direction`` -1) to rank - d."""
        targets = [(direction * d, 0 if self._joint else which) for d, which in self._peers(group, peers)]
        group.signal(self._semaphores, targets, label)

    def wait(self, group: Workgroup, peers: Peers | None, label: str) -> None:
        found = list(self._peers(group, peers))
        group.count(label)
        for which, amount in [(0, len(found))] if self._joint else [(which, 1) for _, which in found]:
            group.wait(self._semaphores, which, amount, label)
        group.seen(label)

    def _peers(self, group: Workgroup, peers: Peers | None) -> Iterable[tuple[int, int]]:
        if peers is not None:
            return peers
        return ((d, d - self._distances[0]) for d in group.rotated(self._distances))
