"""The plain-Python twin: the ordered event queue, and servers that serve one message after the other."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trine.common.units import PS_PER_S
from trine.engine._limits import MAX_PS
from trine.errors import SimulationError

#: Order of event classes within an instant; the first number of every key. TABLE: traffic from replayed peers.
TASKS, TABLE, MESSAGES, PACKETS, WAVEFRONTS, CUS, DISPATCHERS = range(7)

Key = tuple[int, ...]
Action = Callable[[], None]


class Agenda:
    """Event queue, ordered by time, then key, then order of scheduling (keys should differ)."""

    def __init__(self) -> None:
        self.now = 0
        self.num_events = 0
        #: pending events other than repeated polls
        self.num_busy = 0
        self._events: list[tuple[int, Key, int, Action, bool]] = []
        self._count = 0

    def at(self, time_ps: int, key: Key, do: Action, *, is_poll: bool = False) -> None:
        if time_ps > MAX_PS:
            raise SimulationError(f"simulated time passes {MAX_PS // PS_PER_S} s")
        self._count += 1
        self.num_busy += not is_poll
        heapq.heappush(self._events, (time_ps, key, self._count, do, is_poll))

    @property
    def next_ps(self) -> int | None:
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        self.now, _, _, do, is_poll = heapq.heappop(self._events)
        self.num_events += 1
        self.num_busy -= not is_poll
        do()


@dataclass(frozen=True, slots=True)
class ServerVisit:
    """A message at a server. ``on_served`` runs at the end of its service; ``on_scheduled`` gets that time before."""

    key: Key
    service_ps: int
    has_data: bool
    on_scheduled: Callable[[int], None]
    on_served: Action | None = None
    is_poll: bool = False


class Server:
    """A server of one message at a time, in order of arrival; it keeps no queue, only the time when it is free."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.free_ps = 0
        self.busy_ps = 0
        self.count = [0, 0]  # without data, with data

    def take(self, visit: ServerVisit) -> None:
        self.count[visit.has_data] += 1
        end_ps = self.occupy(visit.service_ps)
        if visit.on_served is not None:
            self.agenda.at(end_ps, visit.key, visit.on_served, is_poll=visit.is_poll)
        visit.on_scheduled(end_ps)

    def occupy(self, service_ps: int) -> int:
        """Occupy the server for ``service_ps`` after all earlier messages; return the end."""
        self.busy_ps += service_ps
        self.free_ps = max(self.agenda.now, self.free_ps) + service_ps
        return self.free_ps


class FairServer(Server):
    """A server with two queues, for messages without data and with data, served in turns while both have messages."""

    def __init__(self, agenda: Agenda) -> None:
        super().__init__(agenda)
        self.queues: tuple[deque[ServerVisit], deque[ServerVisit]] = (deque(), deque())
        self.is_busy = False
        self.last_kind = 1

    def take(self, visit: ServerVisit) -> None:
        self.queues[visit.has_data].append(visit)
        if not self.is_busy:
            self._begin()

    def _begin(self) -> None:
        next_kind = 1 - self.last_kind
        self.last_kind = next_kind if self.queues[next_kind] else self.last_kind
        visit = self.queues[self.last_kind].popleft()
        self.is_busy = True
        self.count[visit.has_data] += 1
        self.agenda.at(self.occupy(visit.service_ps), visit.key, lambda: self._end(visit), is_poll=visit.is_poll)

    def _end(self, visit: ServerVisit) -> None:
        self.is_busy = False
        if visit.on_served is not None:
            visit.on_served()
        visit.on_scheduled(self.agenda.now)
        if self.queues[0] or self.queues[1]:
            self._begin()
