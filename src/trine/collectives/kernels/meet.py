"""How ranks wait for each other in the programs that are built here: at the start, behind data, and at the end."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.kernels.draft import Draft, Workgroup
from trine.collectives.kernels.options import JOINT


class Meeting:
    """Start and end of an algorithm in which each rank reads from or writes to rank + d, for all ``distances``.

    Each workgroup meets the workgroups of the same number alone: nobody else touches its slices.
    """

    def __init__(self, draft: Draft, distances: Sequence[int], usual: str) -> None:
        at_start, at_end = draft.options.syncs(usual)
        self.ready = _Signals(draft, distances) if at_start else None
        self.done = _Signals(draft, distances) if at_end else None

    def start(self, group: Workgroup) -> None:
        """Tell those that will come to the own memory that they may; wait until the own peers say so."""
        if self.ready is not None:
            self.ready.send(group, -1, "ready")
            self.ready.wait(group, "wait until ready")
            group.barrier("wait until ready")

    def end(self, group: Workgroup) -> None:
        """Tell the peers that their memory is not needed any more; wait until nobody needs the own one."""
        if self.done is not None:
            group.finish("done")
            self.done.send(group, 1, "done")
            self.done.wait(group, "wait until done")


class Handover:
    """Data to rank + d, for all ``distances``, and from rank - d: a signal behind it, or flags in it."""

    def __init__(self, draft: Draft, distances: Sequence[int]) -> None:
        self.signals = None if draft.options.flagged else _Signals(draft, distances)

    def send(self, group: Workgroup) -> None:
        """What has been written so far is there for the peers."""
        if self.signals is not None:
            group.finish("signal")
            self.signals.send(group, 1, "signal")

    def receive(self, group: Workgroup, last: bool = False) -> None:
        """The peers' data is there; ``last``: nothing of this workgroup uses it."""
        if self.signals is not None:
            self.signals.wait(group, "wait")
            if not last:
                group.barrier("wait")


class _Signals:
    """One signal along each distance: all on one semaphore of the workgroup, or each on its own."""

    def __init__(self, draft: Draft, distances: Sequence[int]) -> None:
        self.distances = distances
        self.joint = draft.options.waits == JOINT
        self.semaphores = draft.signals(1 if self.joint else len(distances))

    def send(self, group: Workgroup, way: int, label: str) -> None:
        """To rank + d, or against the distances (``way`` -1) to rank - d."""
        order = group.turned(self.distances)
        group.signal(self.semaphores, [(way * d, 0 if self.joint else d - self.distances[0]) for d in order], label)

    def wait(self, group: Workgroup, label: str) -> None:
        if self.joint:
            group.wait(self.semaphores, 0, len(self.distances), label)
            return
        for d in group.turned(self.distances):
            group.wait(self.semaphores, d - self.distances[0], 1, label)
