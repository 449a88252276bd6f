"""The plain-Python twin: requests on their way to memories, and answers on their way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trine.gpu.fabric import LaneHop, Way, way_of
from trine.gpu.layout import CHANNEL, CU, PORT, Hop
from trine.gpu.reference_agenda import MESSAGES, Action, Agenda, FairServer, Key, Server, Visit
from trine.gpu.system import GpuSystem
from trine.model.gpumodel import FAIR
from trine.model.gpuprogram import LOAD, RELEASE, STORE
from trine.units import transfer_ps

if TYPE_CHECKING:
    from trine.gpu.reference_memory import Memory
    from trine.gpu.reference_wavefronts import Line, Wavefront

#: Messages are told apart by the number of their request among those of its place in the GPU, modulo this.
NUMBERS = 1 << 14


class Place(NamedTuple):
    """Where a message is served on its way; ``home``: the rank whose place it is, -1: nobody's."""

    server: Server
    bytes_per_s: int
    after_ps: int
    home: int


@dataclass(slots=True, eq=False)
class Request:
    """One cache line, or one operation on a semaphore.

    kind: LOAD, STORE, ACQUIRE or RELEASE. rank: that asks, as it is simulated; peer: whose memory is meant; gpu,
    target: the simulated GPUs of both. semaphore: of an ACQUIRE, RELEASE or flagged line, else -1; amount: what it
    takes or adds.
    """

    kind: int
    wavefront: Wavefront
    line: Line
    rank: int
    peer: int
    gpu: int
    target: int
    cu: int
    address: int
    semaphore: int
    amount: int
    number: int
    issued_ps: int
    is_again: bool = False
    was_enough: bool = True
    denied_at: int = -1

    @property
    def is_line(self) -> bool:
        return self.kind in (LOAD, STORE)

    @property
    def is_flagged_load(self) -> bool:
        return self.kind == LOAD and self.semaphore >= 0


class Wires:
    """All servers of the machine, and which of them a message passes."""

    def __init__(self, system: GpuSystem, agenda: Agenda) -> None:
        self.system, self.agenda = system, agenda
        self.model = system.model
        self.ranks = system.ranks.tolist()
        self.rates = system.layout.bytes_per_s.tolist()
        self.inside = [[Server(agenda) for _ in self.rates] for _ in self.ranks]
        self.lanes: dict[tuple[int, int], Server] = {}
        self._known: dict[tuple[int, ...], tuple[Place, ...]] = {}

    def key(self, request: Request, home: int) -> Key:
        """Where the message is in the order of one instant, at a place of the GPU ``home``."""
        away = self.away(request.rank, request.peer, home)
        return (MESSAGES, away, request.wavefront.place, request.number, request.rank)

    def away(self, rank: int, peer: int, home: int) -> int:
        if home == rank:
            return 0
        return 1 + self.system.distance(rank, peer if home < 0 else home)

    def channel(self, address: int) -> int:
        return address // self.model.memory.interleave_bytes % self.model.memory.num_channels

    def there(self, request: Request) -> tuple[Place, ...]:
        """From the CU to the memory."""
        channel = self.channel(request.address)
        if request.peer == request.rank:
            return self._within(request.gpu, request.rank, CU, request.cu, CHANNEL, channel)
        number, way = self._way(request.rank, request.peer, request.address)
        key = (0, request.gpu, request.rank, request.peer, request.cu, channel, number)
        if key not in self._known:
            self._known[key] = (
                *self._within(request.gpu, request.rank, CU, request.cu, PORT, way.port_out),
                *(self.lane(hop) for hop in way.hops),
                *self._within(request.target, request.peer, PORT, way.port_in, CHANNEL, channel),
            )
        return self._known[key]

    def back(self, request: Request) -> tuple[Place, ...]:
        """From the memory to the CU."""
        channel = self.channel(request.address)
        if request.peer == request.rank:
            return self._within(request.gpu, request.rank, CHANNEL, channel, CU, request.cu)
        number, way = self._way(request.peer, request.rank, request.address)
        key = (1, request.gpu, request.rank, request.peer, request.cu, channel, number)
        if key not in self._known:
            self._known[key] = (
                *self._within(request.target, request.peer, CHANNEL, channel, PORT, way.port_out),
                *(self.lane(hop) for hop in way.hops),
                *self._within(request.gpu, request.rank, PORT, way.port_in, CU, request.cu),
            )
        return self._known[key]

    def first_lane(self, request: Request) -> int:
        """Which of the places of :meth:`there` is the first lane."""
        _, way = self._way(request.rank, request.peer, request.address)
        return len(self.system.layout.path(CU, request.cu, PORT, way.port_out))

    def lane(self, hop: LaneHop) -> Place:
        """A lane of a link, as the link that stands for it has it."""
        server = self.server_of_lane(hop.link, hop.lane)
        return Place(server, hop.bytes_per_s, hop.after_ps, int(self.system.link_home[hop.link]))

    def server_of_lane(self, link: int, lane: int) -> Server:
        image = int(self.system.link_image[link])
        if (image, lane) not in self.lanes:
            self.lanes[image, lane] = FairServer(self.agenda) if self._is_fair(image) else Server(self.agenda)
        return self.lanes[image, lane]

    def _is_fair(self, link: int) -> bool:
        """Links out of GPUs are, where the model says so."""
        fabric = self.system.fabric
        is_out = int(fabric.cluster.link_table.source[link]) in fabric.group
        return self.model.ports.arbitration == FAIR and is_out

    def _way(self, source: int, target: int, address: int) -> tuple[int, Way]:
        ways = self.system.fabric.ways(source, target)
        ports = self.model.ports
        number = way_of(address, ports.interleave_bytes, ports.choice, len(ways))
        return number, ways[number]

    def _within(self, gpu: int, rank: int, source: str, i: int, target: str, j: int) -> tuple[Place, ...]:
        hops: Sequence[Hop] = self.system.layout.path(source, i, target, j)
        servers = self.inside[gpu]
        return tuple(Place(servers[hop.resource], self.rates[hop.resource], hop.after_ps, rank) for hop in hops)


class Messages:
    """Sends requests to memories and answers back.

    answered: told of each answer that has come back to its CU. posted: of each store and release that has left its GPU,
    or that the memory of its own GPU has.
    """

    def __init__(self, wires: Wires, answered: Callable[[Request], None], posted: Callable[[Request], None]) -> None:
        self.wires, self.agenda, self.model = wires, wires.agenda, wires.model
        self._answered, self._posted = answered, posted
        self.memories: Sequence[Memory] = ()

    def send(self, request: Request) -> None:
        """The CU issues it now."""
        posts_at = -1
        if request.kind in (STORE, RELEASE) and request.peer != request.rank:
            posts_at = self.wires.first_lane(request)
        memory = self.memories[request.target]
        trip = _Trip(self, request, self.wires.there(request), request.kind == STORE, request.peer, posts_at)
        trip.go(lambda: memory.reached(request))

    def answer(self, request: Request) -> None:
        """It leaves the memory now."""
        trip = _Trip(self, request, self.wires.back(request), request.kind == LOAD, request.rank, -1)
        trip.go(lambda: self._answered(request))

    def has_left(self, request: Request) -> None:
        self._posted(request)

    def at(self, time_ps: int, request: Request, home: int, do: Action) -> None:
        self.agenda.at(time_ps, self.wires.key(request, home), do, is_poll=request.is_again)


class _Trip:
    """A message on its way over ``places``, one event for its arrival at each, and at the end, at ``home``."""

    def __init__(
        self, messages: Messages, request: Request, places: tuple[Place, ...], has_data: bool, home: int, posts_at: int
    ) -> None:
        self.messages, self.request, self.places, self.home = messages, request, places, home
        self.has_data, self.posts_at = has_data, posts_at
        model = messages.model
        self.num_bytes = model.header_bytes + (model.line_bytes if has_data else 0)

    def go(self, then: Action) -> None:
        self._arrive(0, then, self.messages.agenda.now)

    def _arrive(self, i: int, then: Action, time_ps: int) -> None:
        if i == len(self.places):
            self.messages.at(time_ps, self.request, self.home, then)
        else:
            self.messages.at(time_ps, self.request, self.places[i].home, partial(self._visit, i, then))

    def _visit(self, i: int, then: Action) -> None:
        place = self.places[i]
        left = partial(self.messages.has_left, self.request) if i == self.posts_at else None
        place.server.take(
            Visit(
                self.messages.wires.key(self.request, place.home),
                transfer_ps(self.num_bytes, place.bytes_per_s),
                self.has_data,
                lambda end_ps: self._arrive(i + 1, then, end_ps + place.after_ps),
                left,
                self.request.is_again,
            )
        )
