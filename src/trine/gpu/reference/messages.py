"""The plain-Python twin: trips of requests to memories, and of answers back, from server to server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from trine.common.units import transfer_ps
from trine.gpu.program import LOAD, RELEASE, STORE
from trine.gpu.reference.events import Action, ServerVisit
from trine.gpu.reference.interconnect import Interconnect, MessagePath
from trine.gpu.reference.requests import OwnRequest, Request


class Memory(Protocol):
    """The memory at the end of a trip (``GpuMemory``)."""

    def reached(self, request: Request) -> None: ...

    def release(self, semaphore: int, amount: int, address: int) -> None: ...


class Messages:
    """Transport of requests to memories, and of answers back.

    memories: one for each GPU. crossed: called for each request that has left for a replayed peer. request_came,
    answer_came: called for each message that leaves the port of another GPU. All are set before the run.
    """

    def __init__(self, interconnect: Interconnect) -> None:
        self.interconnect, self.agenda, self.model = interconnect, interconnect.agenda, interconnect.model
        self.memories: Sequence[Memory] = ()
        self.crossed: Callable[[OwnRequest], None]
        self.request_came: Callable[[Request], None]
        self.answer_came: Callable[[Request], None]

    def send(self, request: OwnRequest) -> None:
        """Send a request from its CU now."""
        then = self.memories[request.target].reached if request.target >= 0 else self.crossed
        MessageTrip(self, request, is_answer=False).go(0, self.agenda.now, partial(then, request))

    def send_back(self, request: Request, then: Action | None) -> None:
        """Send an answer from the memory now; run ``then`` at the end of its path."""
        MessageTrip(self, request, is_answer=True).go(0, self.agenda.now, then)

    def enter(self, request: Request, at_port: bool) -> None:
        """Start a replayed peer's request now, at the port of the target GPU or at the first lane to it."""
        trip = MessageTrip(self, request, is_answer=False)
        then = partial(self.memories[request.target].reached, request)
        trip.go(trip.path.port if at_port else 0, self.agenda.now, then)

    def answer(self, request: Request) -> None:
        """Send the answer from the memory now, if the request has an answer."""
        if request.is_answered:
            request.go_back(self)

    def answer_from_outside(self, request: OwnRequest, time_ps: int) -> None:
        """Schedule a replayed peer's answer to reach the port of the GPU at ``time_ps``."""
        trip = MessageTrip(self, request, is_answer=True)
        trip.go(trip.path.port, time_ps, request.answered)

    def at(self, time_ps: int, request: Request, home: int, do: Action) -> None:
        self.agenda.at(time_ps, self.interconnect.key(request, home), do, is_poll=request.is_again)


class MessageTrip:
    """Trip of a request to the memory, or of its answer back: one event for each server and one for the end.

    home: the rank at the end. posts_at: the stop that a store or release passes to leave its GPU.
    """

    def __init__(
        self, messages: Messages, request: Request, *, is_answer: bool, path: MessagePath | None = None
    ) -> None:
        self.messages, self.request, self.model = messages, request, messages.model
        self.path = messages.interconnect.path(request, is_answer=is_answer) if path is None else path
        self.home = request.rank if is_answer else request.peer
        self.has_data = request.kind == (LOAD if is_answer else STORE)
        self.on_arrival = partial(messages.answer_came if is_answer else messages.request_came, request)
        self.posts_at, self.posted = -1, None
        if isinstance(request, OwnRequest) and not is_answer and request.kind in (STORE, RELEASE):
            self.posts_at, self.posted = self.path.first_lane, request.posted

    def go(self, i: int, time_ps: int, then: Action | None) -> None:
        """Reach stop ``i`` at ``time_ps``; run ``then`` at the end of the path (None: drop the message there)."""
        stops = self.path.stops
        if i < len(stops):
            self.messages.at(time_ps, self.request, stops[i].home, partial(self._visit, i, then))
        else:
            self.at_end(time_ps, then)

    def at_end(self, time_ps: int, then: Action | None) -> None:
        """Schedule ``then`` at the end of the path, at ``time_ps``."""
        if then is not None:
            self.messages.at(time_ps, self.request, self.home, partial(self._end, then))

    def _visit(self, i: int, then: Action | None) -> None:
        if i == self.path.port:
            self.on_arrival()
        stop = self.path.stops[i]
        num_bytes = self.model.header_bytes + (self.model.line_bytes if self.has_data else 0)
        posted = self.posted if i == self.posts_at else None
        stop.server.take(
            ServerVisit(
                self.messages.interconnect.key(self.request, stop.home),
                transfer_ps(num_bytes, stop.bytes_per_s),
                self.has_data,
                lambda end_ps: self.go(i + 1, end_ps + stop.after_ps, then),
                posted,
                self.request.is_again,
            )
        )

    def _end(self, then: Action) -> None:
        if self.path.port == len(self.path.stops):
            self.on_arrival()
        then()
