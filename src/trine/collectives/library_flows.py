"""Collectives of a library as flows: one per rank and link of the algorithm, never faster than the library itself.

A library cuts a buffer into many pieces on many channels, so that all links of its algorithm are busy from start to
end. So trine does not simulate a collective piece by piece but as flows that begin and end together: all ranks
synchronise, each sends the algorithm's bytes over its links, as one message per peer, and all synchronise again. A
message may have a rate limit, chosen so that a collective alone takes the library's time; on shared links it takes
longer, like any flow. :mod:`trine.collectives.nccl.flow_plans` computes the bytes and limits; this module defines the
senders and receivers.

Chunk 0 of these schedules is the synchronisation between ranks, without bytes; other chunks are kinds of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList, log2_ceil

SIGNAL, INNER, OUTER = range(3)
#: Roles of a root: all data comes from it, or goes to it.
FROM_ROOT, TO_ROOT = "from", "to"

#: (position of the receiver, kind of message)
Flow = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """A library's plan for a collective of one size. size_bytes, caps: bytes and maximum bytes/s (0: no limit) of each
    kind of message (the first is 0)."""

    algorithm: str
    shape: FlowShape
    size_bytes: tuple[int, ...]
    caps: tuple[int, ...]

    def schedule(self, kind: str, num_ranks: int, size_bytes: int, root: int) -> Schedule:
        """Return the schedule of a collective of ``size_bytes``."""
        return Schedule(
            kind=kind, algorithm=self.algorithm, num_ranks=num_ranks, num_chunks=len(self.size_bytes),
            chunk_bytes=max(self.size_bytes), size_bytes=size_bytes, sends_of=self.shape, root=max(root, 0),
            chunk_sizes=self.size_bytes, chunk_caps=self.caps, symmetry=self.shape.symmetry,
            timed_step=self.shape.timed_step, together=self.shape.together,
        )  # fmt: skip


class Message(NamedTuple):
    """One message between two ranks; ``cap``: maximum bytes/s, 0 for no limit."""

    size_bytes: int
    software_ps: int
    cap: int


def message_of(size_bytes: int, algorithm: str | FlowPlan | None, software_ps: int) -> Message:
    """Return the message of a send_recv between two ranks, from its predicted algorithm or flow plan."""
    if isinstance(algorithm, FlowPlan):
        return Message(algorithm.size_bytes[INNER], software_ps, algorithm.caps[INNER])
    return Message(size_bytes, software_ps, 0)


@dataclass(frozen=True, slots=True)
class RegularFlows:
    """Flows of ``groups`` identical domains of ``size`` ranks each.

    inner: within a domain each rank sends to the next (``ring``), or to all others (``direct``). Each also sends to the
    rank with the same number in the next domain. strided: position p is in domain p modulo ``groups``, else in
    p // ``size``. rooted: FROM_ROOT, TO_ROOT or "" (all ranks end together).
    """

    groups: int
    size: int
    inner: str
    strided: bool = False
    rooted: str = ""

    @property
    def symmetry(self) -> tuple[int, ...] | None:
        if self.rooted:
            return None
        return (self.groups, self.size) if self.strided else (self.size, self.groups)

    @property
    def timed_step(self) -> int:
        return log2_ceil(self.size) + log2_ceil(self.groups)

    @property
    def together(self) -> bool:
        return not self.rooted

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        group, member = self.place(position)
        size, groups = self.size, self.groups
        signals = [self.position_of(group, (member + (1 << k)) % size) for k in range(log2_ceil(size))]
        signals += [self.position_of((group + (1 << k)) % groups, member) for k in range(log2_ceil(groups))]
        inner = range(1, size if self.inner == "direct" else min(size, 2))
        flows = [(self.position_of(group, (member + by) % size), INNER) for by in inner]
        flows += [(self.position_of((group + 1) % groups, member), OUTER)] if groups > 1 else []
        if self.rooted:
            flows = [flow for flow in flows if self._is_used(position, flow, root)]
        return _sends(signals, flows, ends_together=not self.rooted)

    def place(self, position: int) -> tuple[int, int]:
        """Return the domain of a position, and its number in the domain."""
        if self.strided:
            return position % self.groups, position // self.groups
        return position // self.size, position % self.size

    def position_of(self, group: int, member: int) -> int:
        """Return the position of a member of a domain."""
        return member * self.groups + group if self.strided else group * self.size + member

    def _is_used(self, position: int, flow: Flow, root: int) -> bool:
        """Return whether a flow is needed: a chain from the root does not return to it, one to the root ends there."""
        end = flow[0] if self.rooted == FROM_ROOT else position
        return self.place(end)[0] != self.place(root)[0] if flow[1] == OUTER else end != root


@dataclass(frozen=True, slots=True)
class ListedFlows:
    """Explicitly listed flows. rows: of each position; order: positions in the library's order; rooted: as above.

    waits: whether all ranks synchronise before and after; otherwise each message waits only for its two ends.
    """

    rows: tuple[tuple[Flow, ...], ...]
    order: tuple[int, ...]
    waits: bool = True
    rooted: str = ""

    @property
    def symmetry(self) -> None:
        return None

    @property
    def timed_step(self) -> int:
        return log2_ceil(len(self.order)) if self.waits else 0

    @property
    def together(self) -> bool:
        return self.waits and not self.rooted

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        index = self.order.index(position)
        rounds = range(log2_ceil(num_ranks) if self.waits else 0)
        signals = [self.order[(index + (1 << k)) % num_ranks] for k in rounds]
        flows = self.rows[position]
        if self.rooted:
            kept = []
            for flow in flows:
                if (flow[0] if self.rooted == FROM_ROOT else position) != root:
                    kept.append(flow)
            flows = tuple(kept)
        return _sends(signals, flows, ends_together=self.waits and not self.rooted)


class _IndependentFlows:
    """Flows whose messages wait only for their two ends."""

    __slots__ = ()
    timed_step, together = 0, False


@dataclass(frozen=True, slots=True)
class ShiftFlows(_IndependentFlows):
    """Flows from each rank to the next ``count`` ranks."""

    num_ranks: int
    count: int

    @property
    def symmetry(self) -> tuple[int, ...]:
        return (self.num_ranks,)

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        flows = [((position + by) % num_ranks, INNER) for by in range(1, self.count + 1)]
        return _sends([], flows, ends_together=False)


@dataclass(frozen=True, slots=True)
class StarFlows(_IndependentFlows):
    """Messages between the root and each other rank; ``rooted``: FROM_ROOT or TO_ROOT."""

    rooted: str

    @property
    def symmetry(self) -> None:
        return None

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        receivers = [rank for rank in range(num_ranks) if rank != root]
        peers = receivers if self.rooted == FROM_ROOT and position == root else []
        peers = [root] if self.rooted == TO_ROOT and position != root else peers
        return _sends([], [(peer, INNER) for peer in peers], ends_together=False)


#: Senders and receivers of a collective. For the properties see :class:`trine.collectives.schedule.Schedule`.
FlowShape = RegularFlows | ListedFlows | ShiftFlows | StarFlows


def _sends(signals: Sequence[int], flows: Sequence[Flow], *, ends_together: bool) -> Sends:
    """Return the sends of a rank: a dissemination barrier, the flows, and another barrier."""
    sends, rounds = SendList(), len(signals)
    sends.add_all(range(rounds), signals, SIGNAL, reduce=True)
    for channel, (peer, kind) in enumerate(flows, start=1):
        parts = [(kind, False), (SIGNAL, True)] if signals else [(kind, False)]
        sends.add(rounds, peer, parts, channel=channel)
    if ends_together:
        sends.add_all(range(rounds + 1, 2 * rounds + 1), signals, SIGNAL, reduce=True)
    return sends.build()
