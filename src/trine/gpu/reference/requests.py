"""The plain-Python twin: the life of a request, from its CU through GPU and fabric to a memory, and its answer back.

In this order: the request; the servers on its path; how a message goes from one to the next; the memory (channels, L2,
semaphores) that it reaches; the monitor table, on whose lines wavefronts sleep (docs/design/replay.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from trine.gpu.fabric import FabricPath, LaneHop, path_of_address
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.model import FAIR
from trine.gpu.program import ACQUIRE, LOAD, RELEASE, STORE
from trine.gpu.reference.events import MESSAGES, Action, Agenda, FairServer, Key, Server, ServerVisit
from trine.gpu.system import GpuSystem
from trine.units import transfer_ps

#: Messages are told apart by the number of their request among those of its wavefront slot, modulo this.
NUMBERS = 1 << 14


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One cache line, or one operation on a semaphore.

    kind: LOAD, STORE, ACQUIRE or RELEASE. rank: that asks, as it is simulated; peer: whose memory is meant; gpu,
    target: the simulated GPUs of both, -1: replayed. wave_slot: of the wavefront in its GPU; number: of the request
    there. semaphore: of an ACQUIRE, RELEASE or flagged line, else -1; amount: what it takes or adds. adds: a STORE that
    adds its line to what is there.
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

    def go_back(self, messages: Messages) -> None:
        """The answer leaves the memory now; to a replayed peer, up to its first lane."""
        MessageTrip(messages, self, is_answer=True).go(0, messages.agenda.now, None)


@dataclass(slots=True, eq=False, kw_only=True)
class OwnRequest(Request):
    """A request of a wavefront that is simulated, and what the wavefront is told of it.

    ordinal: its number among the requests of its slot to other GPUs. denied_at: releases that its memory had seen when
    it refused, -1: not refused, or woken since. is_armed: a monitor watches for it; is_woken: that has seen a write;
    is_back: its answer had come when neither had happened, so it sleeps.
    """

    issued_ps: int
    ordinal: int
    denied_at: int = -1
    is_armed: bool = False
    is_woken: bool = False
    is_back: bool = False

    def set_out(self, messages: Messages) -> None:
        """The CU issues it now."""
        then = messages.memories[self.target].reached if self.target >= 0 else messages.crossed
        MessageTrip(messages, self, is_answer=False).go(0, messages.agenda.now, partial(then, self))

    def go_back(self, messages: Messages) -> None:
        MessageTrip(messages, self, is_answer=True).go(0, messages.agenda.now, self.answered)

    @abstractmethod
    def answered(self) -> None:
        """The answer is back at the CU."""

    @abstractmethod
    def posted(self) -> None:
        """The store or release has left its GPU, or its own memory has it."""

    @abstractmethod
    def woken(self) -> None:
        """A monitor has seen a write, and the answer that sent the request to sleep is back."""


class RequestCounters:
    """Of one GPU; as in GpuRecords."""

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


# The servers on a path


class PathStop(NamedTuple):
    """A server on a path, and ``after_ps`` to the next; ``home``: the rank whose server it is, -1: nobody's."""

    server: Server
    bytes_per_s: int
    after_ps: int
    home: int


class PathEnd(NamedTuple):
    """Where a message begins or ends: CU, channel or port ``number`` of a GPU (-1: replayed), which is ``rank``."""

    gpu: int
    rank: int
    kind: str
    number: int


class MessagePath(NamedTuple):
    """The stops of a message, in order.

    first_lane: which of them is the first lane; port: the first behind the lanes, into the other GPU (as many as there
    are: what is there is not simulated). Both -1 inside a GPU.
    """

    stops: tuple[PathStop, ...]
    first_lane: int = -1
    port: int = -1


class Interconnect:
    """All servers of the machine, and which of them a message passes."""

    def __init__(self, system: GpuSystem, agenda: Agenda) -> None:
        self.system, self.agenda = system, agenda
        self.model = system.model
        self.ranks = system.ranks.tolist()
        self.rates = system.layout.bytes_per_s.tolist()
        self.inside = [[Server(agenda) for _ in self.rates] for _ in self.ranks]
        self.lanes: dict[tuple[int, int], Server] = {}
        self._known: dict[tuple[PathEnd, PathEnd, int], MessagePath] = {}
        self._uncached = [(b.base, b.base + b.size_bytes) for b in system.program.buffers if b.uncached]

    def key(self, request: Request, home: int) -> Key:
        """Where the message is in the order of one instant, at a server of the GPU ``home``."""
        away = self.away(request.rank, request.peer, home)
        return (MESSAGES, away, request.wave_slot, request.number, request.rank)

    def away(self, rank: int, peer: int, home: int) -> int:
        if home == rank:
            return 0
        return 1 + self.system.distance(rank, peer if home < 0 else home)

    def channel(self, address: int) -> int:
        return address // self.model.memory.interleave_bytes % self.model.memory.num_channels

    def is_cached(self, address: int) -> bool:
        """Whether the address is one of the L2, if there is one."""
        return self.model.l2 is not None and not any(first <= address < end for first, end in self._uncached)

    def path(self, request: Request, *, is_answer: bool) -> MessagePath:
        """From the CU to the memory, or back."""
        cu = PathEnd(request.gpu, request.rank, CU, request.cu)
        memory = PathEnd(request.target, request.peer, CHANNEL, self.channel(request.address))
        source, target = (memory, cu) if is_answer else (cu, memory)
        if source.rank == target.rank:
            return MessagePath(self.within(source, target))
        number, path = self.fabric_path(source.rank, target.rank, request.address)
        key = source, target, number
        if key not in self._known:
            hops = path.hops if target.gpu >= 0 else path.hops[:1]  # nothing is simulated behind
            out = self.within(source, source._replace(kind=PORT, number=path.port_out))
            into = self.within(target._replace(kind=PORT, number=path.port_in), target)
            stops = (*out, *(self.lane(hop) for hop in hops), *into)
            self._known[key] = MessagePath(stops, len(out), len(out) + len(hops))
        return self._known[key]

    def fabric_path(self, source: int, target: int, address: int) -> tuple[int, FabricPath]:
        """The path between two ranks that a line takes, and its number."""
        paths = self.system.fabric.paths(source, target)
        ports = self.model.ports
        number = path_of_address(address, ports.interleave_bytes, ports.choice, len(paths))
        return number, paths[number]

    def lane(self, hop: LaneHop) -> PathStop:
        """A lane of a link, as the link that stands for it has it."""
        server = self.server_of_lane(hop.link, hop.lane)
        return PathStop(server, hop.bytes_per_s, hop.after_ps, int(self.system.link_home[hop.link]))

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

    def within(self, source: PathEnd, target: PathEnd) -> tuple[PathStop, ...]:
        """Between two ends of one GPU; a host has nothing inside."""
        if source.gpu < 0 or self.system.is_host(source.gpu):
            return ()
        servers = self.inside[source.gpu]
        return tuple(
            PathStop(servers[hop.resource], self.rates[hop.resource], hop.after_ps, source.rank)
            for hop in self.system.layout.path(source.kind, source.number, target.kind, target.number)
        )


# From one server to the next


class Messages:
    """Sends requests to memories and answers back.

    memories: of each GPU. crossed: told of each request that has left for a replayed peer; request_came, answer_came:
    of each that comes out of the port of another GPU. All are set before the run.
    """

    def __init__(self, interconnect: Interconnect) -> None:
        self.interconnect, self.agenda, self.model = interconnect, interconnect.agenda, interconnect.model
        self.memories: list[GpuMemory] = []
        self.crossed: Callable[[OwnRequest], None]
        self.request_came: Callable[[Request], None]
        self.answer_came: Callable[[Request], None]

    def enter(self, request: Request, at_port: bool) -> None:
        """A request of a replayed peer: now at the port of the GPU, or at the first lane to it."""
        trip = MessageTrip(self, request, is_answer=False)
        then = partial(self.memories[request.target].reached, request)
        trip.go(trip.path.port if at_port else 0, self.agenda.now, then)

    def answer(self, request: Request) -> None:
        """It leaves the memory now, if there is to be one."""
        if request.is_answered:
            request.go_back(self)

    def answer_from_outside(self, request: OwnRequest, time_ps: int) -> None:
        """The answer of a replayed peer will be at the port of the GPU."""
        trip = MessageTrip(self, request, is_answer=True)
        trip.go(trip.path.port, time_ps, request.answered)

    def at(self, time_ps: int, request: Request, home: int, do: Action) -> None:
        self.agenda.at(time_ps, self.interconnect.key(request, home), do, is_poll=request.is_again)


class MessageTrip:
    """A request on its way to the memory, or its answer on its way back: one event for each server, and the end.

    home: the rank of the end. posts_at: the stop at which a store or release has left its GPU when it has been served.
    """

    def __init__(
        self, messages: Messages, request: Request, *, is_answer: bool, path: MessagePath | None = None
    ) -> None:
        self.messages, self.request, self.model = messages, request, messages.model
        self.path = messages.interconnect.path(request, is_answer=is_answer) if path is None else path
        self.home = request.rank if is_answer else request.peer
        self.has_data = request.kind == (LOAD if is_answer else STORE)
        self.came = partial(messages.answer_came if is_answer else messages.request_came, request)
        self.posts_at, self.posted = -1, None
        if isinstance(request, OwnRequest) and not is_answer and request.kind in (STORE, RELEASE):
            self.posts_at, self.posted = self.path.first_lane, request.posted

    def go(self, i: int, time_ps: int, then: Action | None) -> None:
        """Be at stop ``i`` at ``time_ps``; ``then`` happens at the end (None: it vanishes there)."""
        stops = self.path.stops
        if i < len(stops):
            self.messages.at(time_ps, self.request, stops[i].home, partial(self._visit, i, then))
        else:
            self.at_end(time_ps, then)

    def at_end(self, time_ps: int, then: Action | None) -> None:
        """It will be at the end of its path."""
        if then is not None:
            self.messages.at(time_ps, self.request, self.home, partial(self._end, then))

    def _visit(self, i: int, then: Action | None) -> None:
        if i == self.path.port:
            self.came()
        stop = self.path.stops[i]
        num_bytes = self.model.header_bytes + (self.model.line_bytes if self.has_data else 0)
        stop.server.take(
            ServerVisit(
                self.messages.interconnect.key(self.request, stop.home),
                transfer_ps(num_bytes, stop.bytes_per_s),
                self.has_data,
                lambda end_ps: self.go(i + 1, end_ps + stop.after_ps, then),
                self.posted if i == self.posts_at else None,
                self.request.is_again,
            )
        )

    def _end(self, then: Action) -> None:
        if self.path.port == len(self.path.stops):
            self.came()
        then()


# The memory


class GpuMemory:
    """Channels, L2 and semaphores of one GPU."""

    def __init__(self, messages: Messages, gpu: int, counters: RequestCounters) -> None:
        self.messages, self.gpu, self.model = messages, gpu, messages.model
        self.interconnect = messages.interconnect
        self.monitors = MonitorTable(self.interconnect.system, gpu, counters)
        self.values = self.interconnect.system.program.semaphores[gpu].tolist()
        #: who waits for each semaphore, in order of arrival
        self.waiting: dict[int, deque[Request]] = {}
        self.tags = CacheTags(self.interconnect)
        #: how often a semaphore has been released
        self.num_releases = 0

    def reached(self, request: Request) -> None:
        """It is at its channel, or at the slice of the L2 there; what the memory of a host takes is in links to it."""
        if self.interconnect.system.is_host(self.gpu):
            has_it = partial(self._has_it, request)
            if request.semaphore < 0:
                has_it()
            else:
                self.messages.at(self.messages.agenda.now, request, request.peer, has_it)
            return
        channel = self.interconnect.channel(request.address)
        layout, l2 = self.interconnect.system.layout, self.model.l2
        done = partial(self._has_it, request)
        if l2 is None or not self.interconnect.is_cached(request.address):
            self._at_channel(channel, request, done)
            return
        is_hit = True
        if request.is_line:
            is_hit, writes_back = self.tags.touch(channel, request.address, request.kind == STORE)
            if writes_back:
                resource = layout.first_channel + channel
                line_ps = transfer_ps(self.model.line_bytes, self.interconnect.rates[resource])
                self.interconnect.inside[self.gpu][resource].occupy(line_ps)
        if (request.kind == LOAD or request.adds) and not is_hit:
            done = partial(self._at_channel, channel, request, done)
        self._serve(layout.first_slice + channel, request, l2.latency_ps + self._far_ps(request), done)

    def _far_ps(self, request: Request) -> int:
        """What others wrote, or are to see, is read and written in the half of the L2 in which the line is at home.

        Copies of lines that are only read are in the CU's half. Of requests of others it is in the latency of links.
        """
        is_own = isinstance(request, OwnRequest) and request.peer == request.rank
        if not is_own or (request.kind == LOAD and not request.is_flagged_load):
            return 0
        l2, line = self.model.l2, request.address // self.model.line_bytes
        return l2.far_ps if l2 is not None and (request.cu + line.bit_count()) % 2 else 0

    def _at_channel(self, channel: int, request: Request, done: Action) -> None:
        resource = self.interconnect.system.layout.first_channel + channel
        self._serve(resource, request, self.model.memory.latency_ps, done)

    def _serve(self, resource: int, request: Request, latency_ps: int, then: Action) -> None:
        num_bytes = self.model.line_bytes if request.is_line else self.model.header_bytes
        self.interconnect.inside[self.gpu][resource].take(
            ServerVisit(
                self.interconnect.key(request, request.peer),
                transfer_ps(num_bytes, self.interconnect.rates[resource]),
                request.is_line,
                lambda end_ps: self.messages.at(end_ps + latency_ps, request, request.peer, then),
                None,
                request.is_again,
            )
        )

    def _has_it(self, request: Request) -> None:
        """What the request is for happens."""
        if request.kind in (STORE, RELEASE):
            if isinstance(request, OwnRequest) and request.peer == request.rank:
                request.posted()
            self.messages.answer(request)
            if request.semaphore >= 0:
                self.release(request.semaphore, request.amount, request.address)
            else:
                self.monitors.data_written(request.address)
        elif request.semaphore < 0:
            self.messages.answer(request)
        elif self.model.poll_ps is not None:
            # The semaphore is read once; who did not find enough will ask again
            request.was_enough = self._takes(request)
            if isinstance(request, OwnRequest):
                request.denied_at = -1 if request.was_enough else self.num_releases
                self.monitors.was_read(request)
            self.messages.answer(request)
        else:
            self.waiting.setdefault(request.semaphore, deque()).append(request)
            self._serve_waiting(request.semaphore)

    def release(self, semaphore: int, amount: int, address: int) -> None:
        self.num_releases += 1
        self.values[semaphore] += amount
        self._serve_waiting(semaphore)
        self.monitors.semaphore_written(semaphore, address)

    def _serve_waiting(self, semaphore: int) -> None:
        queue = self.waiting.get(semaphore)
        while queue and self._takes(queue[0]):
            self.messages.answer(queue.popleft())

    def _takes(self, request: Request) -> bool:
        if self.values[request.semaphore] < request.amount:
            return False
        self.values[request.semaphore] -= request.amount
        return True


class CacheTags:
    """Which lines are in the L2: sets of lines, the least recently used first, and whether each is dirty."""

    def __init__(self, interconnect: Interconnect) -> None:
        model = interconnect.model
        self.line_bytes, self.num_channels = model.line_bytes, model.memory.num_channels
        self.ways = model.l2.ways if model.l2 is not None else 1
        capacity = model.l2.capacity_bytes if model.l2 is not None else 0
        self.num_sets = max(1, capacity // (self.num_channels * self.ways * self.line_bytes))
        self.sets: dict[tuple[int, int], OrderedDict[int, bool]] = {}
        self.hits = self.misses = 0

    def touch(self, channel: int, address: int, is_store: bool) -> tuple[bool, bool]:
        """Whether the line is there, and whether a dirty one makes room for it."""
        number = address // self.line_bytes
        lines = self.sets.setdefault((channel, number // self.num_channels % self.num_sets), OrderedDict())
        is_hit = number in lines
        self.hits += is_hit
        self.misses += not is_hit
        writes_back = False
        if not is_hit and len(lines) == self.ways:
            _, writes_back = lines.popitem(last=False)
        lines[number] = is_store or (is_hit and lines[number])
        lines.move_to_end(number)
        return is_hit, writes_back


class MonitorTable:
    """Who sleeps on which line of one GPU."""

    def __init__(self, system: GpuSystem, gpu: int, counters: RequestCounters) -> None:
        monitor = system.model.monitor
        self.capacity = monitor.capacity if monitor is not None else 0
        self.is_there = monitor is not None
        self.line_bytes = system.model.line_bytes
        self.line_of = _lines_of_semaphores(system, gpu)
        self.counters = counters
        self.armed: dict[int, list[OwnRequest]] = {}
        self.num_armed = 0

    def was_read(self, request: OwnRequest) -> None:
        """An acquire or flagged load has just found enough or not: at this instant its line is watched."""
        self.counters.spurious_wakeups += request.is_woken and not request.was_enough
        request.is_woken = request.is_back = False
        if request.was_enough or not self.is_there or request.kind != ACQUIRE:
            return
        line = self.line_of[request.semaphore]
        if line < 0:
            return
        if self.num_armed == self.capacity:
            self.counters.monitor_full += 1
            return
        request.is_armed = True
        self.num_armed += 1
        self.armed.setdefault(line, []).append(request)

    def semaphore_written(self, semaphore: int, address: int) -> None:
        self._written(self.line_of.get(semaphore, address // self.line_bytes))

    def data_written(self, address: int) -> None:
        self._written(address // self.line_bytes)

    def _written(self, line: int) -> None:
        for request in self.armed.pop(line, ()):
            self.num_armed -= 1
            self.counters.wakeups += 1
            request.is_armed, request.is_woken, request.denied_at = False, True, -1
            if request.is_back:
                request.woken()


def _lines_of_semaphores(system: GpuSystem, gpu: int) -> dict[int, int]:
    """The line of each semaphore that kernels of ``gpu`` acquire, -1: they do it at several."""
    program, found = system.program, dict[int, set[int]]()
    for kernel in (program.kernel_rank == gpu).nonzero()[0].tolist():
        groups = program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]
        for op in range(*program.workgroup_ptr[list(groups)].tolist()):
            if program.op_kind[op] == ACQUIRE:
                operand = int(program.operand_ptr[op])
                line = int(program.operand_address[operand]) // system.model.line_bytes
                found.setdefault(int(program.operand_semaphore[operand]), set()).add(line)
    return {semaphore: lines.pop() if len(lines) == 1 else -1 for semaphore, lines in found.items()}
