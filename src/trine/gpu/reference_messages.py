"""The plain-Python twin: requests on their way to memories, and answers on their way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trine.gpu.fabric import LaneHop, Way, way_of
from trine.gpu.layout import CHANNEL, CU, PORT, Hop
from trine.gpu.model import FAIR
from trine.gpu.program import LOAD, RELEASE, STORE
from trine.gpu.reference_agenda import MESSAGES, Action, Agenda, FairServer, Key, Server, Visit
from trine.gpu.system import GpuSystem
from trine.units import transfer_ps

if TYPE_CHECKING:
    from trine.gpu.reference_memory import Memory
    from trine.gpu.reference_outside import Outside, Recorder
    from trine.gpu.reference_wavefronts import Line, Wavefront

#: Messages are told apart by the number of their request among those of its place in the GPU, modulo this.
NUMBERS = 1 << 14


class Place(NamedTuple):
    """Where a message is served on its way; ``home``: the rank whose place it is, -1: nobody's."""

    server: Server
    bytes_per_s: int
    after_ps: int
    home: int


class Path(NamedTuple):
    """The places of a message, in order.

    first_lane: which of them is the first lane; port: the first behind the lanes, into the other GPU (as many as there
    are: what is there is not simulated). Both -1 inside a GPU.
    """

    places: tuple[Place, ...]
    first_lane: int = -1
    port: int = -1


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One cache line, or one operation on a semaphore.

    kind: LOAD, STORE, ACQUIRE or RELEASE. rank: that asks, as it is simulated; peer: whose memory is meant; gpu,
    target: the simulated GPUs of both, -1: replayed. place: of the wavefront in its GPU; number: of the request there.
    semaphore: of an ACQUIRE, RELEASE or flagged line, else -1; amount: what it takes or adds.
    """

    kind: int
    place: int
    rank: int
    peer: int
    gpu: int
    target: int
    cu: int
    address: int
    semaphore: int
    amount: int
    number: int
    is_answered: bool = True
    is_again: bool = False
    was_enough: bool = True

    @property
    def is_line(self) -> bool:
        return self.kind in (LOAD, STORE)

    @property
    def is_flagged_load(self) -> bool:
        return self.kind == LOAD and self.semaphore >= 0


@dataclass(slots=True, eq=False, kw_only=True)
class OwnRequest(Request):
    """Of a wavefront that is simulated.

    ordinal: its number among the requests of its place to other GPUs. denied_at: releases that its memory had seen when
    it refused, -1: not refused, or woken since. is_armed: a monitor watches for it; is_woken: that has seen a write;
    is_back: its answer had come when neither had happened, so it sleeps.
    """

    wavefront: Wavefront
    line: Line
    issued_ps: int
    ordinal: int
    denied_at: int = -1
    is_armed: bool = False
    is_woken: bool = False
    is_back: bool = False


class Wires:
    """All servers of the machine, and which of them a message passes."""

    def __init__(self, system: GpuSystem, agenda: Agenda) -> None:
        self.system, self.agenda = system, agenda
        self.model = system.model
        self.ranks = system.ranks.tolist()
        self.rates = system.layout.bytes_per_s.tolist()
        self.inside = [[Server(agenda) for _ in self.rates] for _ in self.ranks]
        self.lanes: dict[tuple[int, int], Server] = {}
        self._known: dict[tuple[int, ...], Path] = {}
        self._uncached = [(b.base, b.base + b.size_bytes) for b in system.program.buffers if b.uncached]

    def key(self, request: Request, home: int) -> Key:
        """Where the message is in the order of one instant, at a place of the GPU ``home``."""
        away = self.away(request.rank, request.peer, home)
        return (MESSAGES, away, request.place, request.number, request.rank)

    def away(self, rank: int, peer: int, home: int) -> int:
        if home == rank:
            return 0
        return 1 + self.system.distance(rank, peer if home < 0 else home)

    def channel(self, address: int) -> int:
        return address // self.model.memory.interleave_bytes % self.model.memory.num_channels

    def is_cached(self, address: int) -> bool:
        """Whether the L2, if there is one, has to do with it."""
        return self.model.l2 is not None and not any(first <= address < end for first, end in self._uncached)

    def there(self, request: Request) -> Path:
        """From the CU to the memory."""
        channel = self.channel(request.address)
        if request.peer == request.rank:
            return Path(self._within(request.gpu, request.rank, CU, request.cu, CHANNEL, channel))
        number, way = self.way(request.rank, request.peer, request.address)
        key = (0, request.gpu, request.rank, request.peer, request.cu, channel, number)
        if key not in self._known:
            out = self._within(request.gpu, request.rank, CU, request.cu, PORT, way.port_out)
            into = self._within(request.target, request.peer, PORT, way.port_in, CHANNEL, channel)
            self._known[key] = self._over(way, out, into, request.target)
        return self._known[key]

    def back(self, request: Request) -> Path:
        """From the memory to the CU."""
        channel = self.channel(request.address)
        if request.peer == request.rank:
            return Path(self._within(request.gpu, request.rank, CHANNEL, channel, CU, request.cu))
        number, way = self.way(request.peer, request.rank, request.address)
        key = (1, request.gpu, request.rank, request.peer, request.cu, channel, number)
        if key not in self._known:
            out = self._within(request.target, request.peer, CHANNEL, channel, PORT, way.port_out)
            into = self._within(request.gpu, request.rank, PORT, way.port_in, CU, request.cu)
            self._known[key] = self._over(way, out, into, request.gpu)
        return self._known[key]

    def _over(self, way: Way, out: tuple[Place, ...], into: tuple[Place, ...], goal: int) -> Path:
        """``goal``: the GPU that it leads to; to one that is replayed nothing is behind the first lane."""
        hops = way.hops if goal >= 0 else way.hops[:1]
        return Path((*out, *(self.lane(hop) for hop in hops), *into), len(out), len(out) + len(hops))

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

    def way(self, source: int, target: int, address: int) -> tuple[int, Way]:
        ways = self.system.fabric.ways(source, target)
        ports = self.model.ports
        number = way_of(address, ports.interleave_bytes, ports.choice, len(ways))
        return number, ways[number]

    def _within(self, gpu: int, rank: int, source: str, i: int, target: str, j: int) -> tuple[Place, ...]:
        if gpu < 0:
            return ()
        hops: Sequence[Hop] = self.system.layout.path(source, i, target, j)
        servers = self.inside[gpu]
        return tuple(Place(servers[hop.resource], self.rates[hop.resource], hop.after_ps, rank) for hop in hops)


class Messages:
    """Sends requests to memories and answers back.

    answered: told of each answer that has come back to its CU. posted: of each store and release that has left its GPU,
    or that the memory of its own GPU has.
    """

    def __init__(
        self, wires: Wires, answered: Callable[[OwnRequest], None], posted: Callable[[OwnRequest], None]
    ) -> None:
        self.wires, self.agenda, self.model = wires, wires.agenda, wires.model
        self._answered, self._posted = answered, posted
        self.memories: Sequence[Memory] = ()
        self.outside: Outside
        self.recorder: Recorder

    def send(self, request: OwnRequest) -> None:
        """The CU issues it now."""
        path = self.wires.there(request)
        posts_at = path.first_lane if request.kind in (STORE, RELEASE) else -1
        trip = self._to_memory(request, path, posts_at)
        if request.target >= 0:
            trip.go(0, self.agenda.now, partial(self.memories[request.target].reached, request))
        else:
            trip.go(0, self.agenda.now, partial(self.outside.crossed, request))

    def enter(self, request: Request, at_port: bool) -> None:
        """A request of a replayed peer: now at the port of the GPU, or at the first lane to it."""
        path = self.wires.there(request)
        then = partial(self.memories[request.target].reached, request)
        self._to_memory(request, path, -1).go(path.port if at_port else 0, self.agenda.now, then)

    def answer(self, request: Request) -> None:
        """It leaves the memory now; to a replayed peer, up to its first lane."""
        if request.is_answered:
            own = partial(self._answered, request) if isinstance(request, OwnRequest) else None
            self._to_cu(request).go(0, self.agenda.now, own)

    def answer_from_outside(self, request: OwnRequest, time_ps: int) -> None:
        """The answer of a replayed peer will be at the port of the GPU."""
        trip = self._to_cu(request)
        trip.go(trip.path.port, time_ps, partial(self._answered, request))

    def has_left(self, request: Request) -> None:
        assert isinstance(request, OwnRequest)
        self._posted(request)

    def at(self, time_ps: int, request: Request, home: int, do: Action) -> None:
        self.agenda.at(time_ps, self.wires.key(request, home), do, is_poll=request.is_again)

    def _to_memory(self, request: Request, path: Path, posts_at: int) -> _Trip:
        came = partial(self.recorder.request_came, request)
        return _Trip(self, request, path, request.kind == STORE, request.peer, posts_at, came)

    def _to_cu(self, request: Request) -> _Trip:
        came = partial(self.recorder.answer_came, request)
        return _Trip(self, request, self.wires.back(request), request.kind == LOAD, request.rank, -1, came)


class _Trip:
    """A message on its way over ``path``, one event for its arrival at each place, and at the end, at ``home``.

    came: told when it comes out of the port of the other GPU.
    """

    def __init__(
        self,
        messages: Messages,
        request: Request,
        path: Path,
        has_data: bool,
        home: int,
        posts_at: int,
        came: Action,
    ) -> None:
        self.messages, self.request, self.path, self.home = messages, request, path, home
        self.has_data, self.posts_at, self.came = has_data, posts_at, came
        model = messages.model
        self.num_bytes = model.header_bytes + (model.line_bytes if has_data else 0)

    def go(self, i: int, time_ps: int, then: Action | None) -> None:
        """Be at the place ``i`` at ``time_ps``; ``then`` happens at the end (None: it vanishes there)."""
        places = self.path.places
        if i < len(places):
            self.messages.at(time_ps, self.request, places[i].home, partial(self._visit, i, then))
        elif then is not None:
            self.messages.at(time_ps, self.request, self.home, partial(self._end, then))

    def _visit(self, i: int, then: Action | None) -> None:
        if i == self.path.port:
            self.came()
        place = self.path.places[i]
        left = partial(self.messages.has_left, self.request) if i == self.posts_at else None
        place.server.take(
            Visit(
                self.messages.wires.key(self.request, place.home),
                transfer_ps(self.num_bytes, place.bytes_per_s),
                self.has_data,
                lambda end_ps: self.go(i + 1, end_ps + place.after_ps, then),
                left,
                self.request.is_again,
            )
        )

    def _end(self, then: Action) -> None:
        if self.path.port == len(self.path.places):
            self.came()
        then()
