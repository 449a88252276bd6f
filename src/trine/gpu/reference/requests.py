"""The plain-Python twin: the requests that wavefronts and replayed peers send to memories."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from trine.gpu.program import ACQUIRE, LOAD, RELEASE, STORE
from trine.gpu.reference.events import Action

#: Request numbers count up per wavefront slot, modulo this; they identify messages.
NUMBERS = 1 << 14


class Transport(Protocol):
    """What carries requests to memories, and answers back (``Messages``)."""

    def send(self, request: OwnRequest) -> None: ...

    def send_back(self, request: Request, then: Action | None) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One cache line, or one operation on a semaphore.

    kind: LOAD, STORE, ACQUIRE or RELEASE. rank: the simulated rank that sends the request. peer: the rank that owns the
    memory. gpu, target: the simulated GPUs of rank and peer, -1 if replayed. wave_slot: the wavefront's slot in its
    GPU; number: the request's number in that slot. semaphore: for an ACQUIRE, RELEASE or flagged line, else -1; amount:
    the count it takes or adds. adds: whether a STORE adds its line to the memory's contents.
    """

    kind: int
    wave_slot: int
    rank: int
    peer: int
    gpu: int
    target: int
    cu: int
    address: int
    semaphore: int
    amount: int
    number: int
    adds: bool = False
    is_answered: bool = True
    is_again: bool = False
    was_enough: bool = True

    @property
    def is_line(self) -> bool:
        return self.kind in (LOAD, STORE)

    @property
    def is_flagged_load(self) -> bool:
        return self.kind == LOAD and self.semaphore >= 0

    def go_back(self, messages: Transport) -> None:
        """Send the answer from the memory now; an answer to a replayed peer ends at its first lane."""
        messages.send_back(self, None)


@dataclass(slots=True, eq=False, kw_only=True)
class OwnRequest(Request):
    """Request of a simulated wavefront, with callbacks to that wavefront.

    ordinal: its number among the slot's requests to other GPUs. denied_at: number of releases at its memory when the
    memory denied the request, -1 if not denied or woken since. is_armed: whether a monitor watches for it. is_woken:
    whether that monitor saw a write. is_back: whether the answer came before any write, so that the wavefront sleeps.
    """

    issued_ps: int
    ordinal: int
    denied_at: int = -1
    is_armed: bool = False
    is_woken: bool = False
    is_back: bool = False

    def set_out(self, messages: Transport) -> None:
        """Issue the request from the CU now."""
        messages.send(self)

    def go_back(self, messages: Transport) -> None:
        messages.send_back(self, self.answered)

    @abstractmethod
    def answered(self) -> None:
        """Handle the answer's arrival at the CU."""

    @abstractmethod
    def posted(self) -> None:
        """Handle that the store or release has left its GPU, or reached the GPU's own memory."""

    @abstractmethod
    def woken(self) -> None:
        """Handle a write that the monitor saw after the answer put the wavefront to sleep."""


class RequestCounters:
    """Request counters of one GPU, with the names of GpuRecords."""

    def __init__(self) -> None:
        self.loads = self.stores = self.acquires = self.releases = self.polls = self.load_latency_ps = 0
        self.flagged_loads = self.wakeups = self.spurious_wakeups = self.monitor_full = 0

    def count(self, request: Request) -> None:
        self.loads += request.kind == LOAD
        self.stores += request.kind == STORE
        self.acquires += request.kind == ACQUIRE
        self.releases += request.kind == RELEASE
        self.polls += request.is_again
        self.flagged_loads += request.is_flagged_load
