"""Reference engine in plain Python: a request's path from its CU to a memory, and the path of its answer.

Order of the module: the request; the servers on its path; the trip from server to server; the memory at its end
(channels, L2, semaphores); the monitor table of lines that sleeping wavefronts watch (docs/design/replay.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from trine.common.units import transfer_ps
from trine.gpu.fabric import FabricPath, LaneHop, path_of_address
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.model import FAIR
from trine.gpu.program import ACQUIRE, LOAD, RELEASE, STORE
from trine.gpu.reference.events import MESSAGES, Action, Agenda, FairServer, Key, Server, ServerVisit
from trine.gpu.system import GpuSystem

#: Request numbers count up per wavefront slot, modulo this; they identify messages.
NUMBERS = 1 << 14


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

    def go_back(self, messages: Messages) -> None:
        """Send the answer from the memory now; an answer to a replayed peer ends at its first lane."""
        MessageTrip(messages, self, is_answer=True).go(0, messages.agenda.now, None)


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

    def set_out(self, messages: Messages) -> None:
        """Issue the request from the CU now."""
        then = messages.memories[self.target].reached if self.target >= 0 else messages.crossed
        MessageTrip(messages, self, is_answer=False).go(0, messages.agenda.now, partial(then, self))

    def go_back(self, messages: Messages) -> None:
        MessageTrip(messages, self, is_answer=True).go(0, messages.agenda.now, self.answered)

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


# The servers on a path


class PathStop(NamedTuple):
    """Server on a path, ``after_ps`` before the next. ``home``: the rank that owns the server, -1 if shared."""

    server: Server
    bytes_per_s: int
    after_ps: int
    home: int


class PathEnd(NamedTuple):
    """Start or end of a message: the CU, channel or port ``number`` of ``rank``'s GPU (gpu -1: replayed)."""

    gpu: int
    rank: int
    kind: str
    number: int


class MessagePath(NamedTuple):
    """Stops of a message, in order.

    first_lane: index of the first lane. port: index of the first stop after the lanes, inside the other GPU; equal to
    the number of stops if that GPU is not simulated. Both are -1 for messages inside a GPU.
    """

    stops: tuple[PathStop, ...]
    first_lane: int = -1
    port: int = -1


class Interconnect:
    """All servers of the machine, and the path of each message through them."""

    def __init__(self, system: GpuSystem, agenda: Agenda) -> None:
        self.system, self.agenda = system, agenda
        self.model = system.model
        self.ranks = system.ranks.tolist()
        self.rates = system.layout.bytes_per_s.tolist()
        self.gpu_servers = [[Server(agenda) for _ in self.rates] for _ in self.ranks]
        self.lanes: dict[tuple[int, int], Server] = {}
        self._paths: dict[tuple[PathEnd, PathEnd, int], MessagePath] = {}
        self._uncached = [(b.base, b.base + b.size_bytes) for b in system.program.buffers if b.uncached]

    def key(self, request: Request, home: int) -> Key:
        """Return the message's sort key among events of the same instant, at a server of the GPU ``home``."""
        away = self.away(request.rank, request.peer, home)
        return (MESSAGES, away, request.wave_slot, request.number, request.rank)

    def away(self, rank: int, peer: int, home: int) -> int:
        if home == rank:
            return 0
        return 1 + self.system.distance(rank, peer if home < 0 else home)

    def channel(self, address: int) -> int:
        return address // self.model.memory.interleave_bytes % self.model.memory.num_channels

    def is_cached(self, address: int) -> bool:
        """Return whether the L2 caches the address; False on a GPU without an L2."""
        return self.model.l2 is not None and not any(first <= address < end for first, end in self._uncached)

    def path(self, request: Request, *, is_answer: bool) -> MessagePath:
        """Return the request's path from the CU to the memory, or the answer's path back."""
        cu = PathEnd(request.gpu, request.rank, CU, request.cu)
        memory = PathEnd(request.target, request.peer, CHANNEL, self.channel(request.address))
        source, target = (memory, cu) if is_answer else (cu, memory)
        if source.rank == target.rank:
            return MessagePath(self.within(source, target))
        number, path = self.fabric_path(source.rank, target.rank, request.address)
        key = source, target, number
        if key not in self._paths:
            hops = path.hops if target.gpu >= 0 else path.hops[:1]  # a replayed peer ends at the first lane
            out = self.within(source, source._replace(kind=PORT, number=path.port_out))
            into = self.within(target._replace(kind=PORT, number=path.port_in), target)
            stops = (*out, *(self.lane(hop) for hop in hops), *into)
            self._paths[key] = MessagePath(stops, len(out), len(out) + len(hops))
        return self._paths[key]

    def fabric_path(self, source: int, target: int, address: int) -> tuple[int, FabricPath]:
        """Return the number and the path that the line at ``address`` takes between two ranks."""
        paths = self.system.fabric.paths(source, target)
        ports = self.model.ports
        number = path_of_address(address, ports.interleave_bytes, ports.choice, len(paths))
        return number, paths[number]

    def lane(self, hop: LaneHop) -> PathStop:
        """Return a link's lane as a stop; folded links share the server of their representative."""
        server = self.server_of_lane(hop.link, hop.lane)
        return PathStop(server, hop.bytes_per_s, hop.after_ps, int(self.system.link_home[hop.link]))

    def server_of_lane(self, link: int, lane: int) -> Server:
        image = int(self.system.link_image[link])
        if (image, lane) not in self.lanes:
            self.lanes[image, lane] = FairServer(self.agenda) if self._is_fair(image) else Server(self.agenda)
        return self.lanes[image, lane]

    def _is_fair(self, link: int) -> bool:
        """Return whether the link arbitrates fairly: links out of GPUs do if the model's arbitration is fair."""
        fabric = self.system.fabric
        is_out = int(fabric.cluster.link_table.source[link]) in fabric.group
        return self.model.ports.arbitration == FAIR and is_out

    def within(self, source: PathEnd, target: PathEnd) -> tuple[PathStop, ...]:
        """Return the stops between two ends in one GPU; empty for a host or a replayed GPU."""
        if source.gpu < 0 or self.system.is_host(source.gpu):
            return ()
        servers = self.gpu_servers[source.gpu]
        return tuple(
            PathStop(servers[hop.resource], self.rates[hop.resource], hop.after_ps, source.rank)
            for hop in self.system.layout.path(source.kind, source.number, target.kind, target.number)
        )


# Trips from server to server


class Messages:
    """Transport of requests to memories, and of answers back.

    memories: one for each GPU. crossed: called for each request that has left for a replayed peer. request_came,
    answer_came: called for each message that leaves the port of another GPU. All are set before the run.
    """

    def __init__(self, interconnect: Interconnect) -> None:
        self.interconnect, self.agenda, self.model = interconnect, interconnect.agenda, interconnect.model
        self.memories: list[GpuMemory] = []
        self.crossed: Callable[[OwnRequest], None]
        self.request_came: Callable[[Request], None]
        self.answer_came: Callable[[Request], None]

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
            self.on_arrival()
        then()


# The memory


class GpuMemory:
    """Channels, L2 and semaphores of one GPU."""

    def __init__(self, messages: Messages, gpu: int, counters: RequestCounters) -> None:
        self.messages, self.gpu, self.model = messages, gpu, messages.model
        self.interconnect = messages.interconnect
        self.monitors = MonitorTable(self.interconnect.system, gpu, counters)
        self.values = self.interconnect.system.program.semaphores[gpu].tolist()
        #: requests that wait for each semaphore, in order of arrival
        self.waiters: dict[int, deque[Request]] = {}
        self.tags = CacheTags(self.interconnect)
        #: number of releases, over all semaphores
        self.num_releases = 0

    def reached(self, request: Request) -> None:
        """Serve a request at its channel or L2 slice; a host's memory time is included in the links to it."""
        if self.interconnect.system.is_host(self.gpu):
            has_it = partial(self._has_it, request)
            if request.semaphore < 0:
                has_it()
            else:
                self.messages.at(self.messages.agenda.now, request, request.peer, has_it)
            return
        channel = self.interconnect.channel(request.address)
        layout, l2 = self.interconnect.system.layout, self.model.l2
        on_done = partial(self._has_it, request)
        if l2 is None or not self.interconnect.is_cached(request.address):
            self._at_channel(channel, request, on_done)
            return
        is_hit = True
        if request.is_line:
            is_hit, writes_back = self.tags.touch(channel, request.address, request.kind == STORE)
            if writes_back:
                resource = layout.first_channel + channel
                line_ps = transfer_ps(self.model.line_bytes, self.interconnect.rates[resource])
                self.interconnect.gpu_servers[self.gpu][resource].occupy(line_ps)
        if (request.kind == LOAD or request.adds) and not is_hit:
            on_done = partial(self._at_channel, channel, request, on_done)
        self._serve(layout.first_slice + channel, request, l2.latency_ps + self._far_ps(request), on_done)

    def _far_ps(self, request: Request) -> int:
        """Return the extra latency of the far L2 half; for requests from other GPUs the links' latency includes it.

        Writes and flag reads go to the half in which the line is at home; plain loads use a copy in the CU's half.
        """
        is_own = isinstance(request, OwnRequest) and request.peer == request.rank
        if not is_own or (request.kind == LOAD and not request.is_flagged_load):
            return 0
        l2, line = self.model.l2, request.address // self.model.line_bytes
        return l2.far_ps if l2 is not None and (request.cu + line.bit_count()) % 2 else 0

    def _at_channel(self, channel: int, request: Request, on_done: Action) -> None:
        resource = self.interconnect.system.layout.first_channel + channel
        self._serve(resource, request, self.model.memory.latency_ps, on_done)

    def _serve(self, resource: int, request: Request, latency_ps: int, then: Action) -> None:
        num_bytes = self.model.line_bytes if request.is_line else self.model.header_bytes
        self.interconnect.gpu_servers[self.gpu][resource].take(
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
        """Carry out the request in the memory."""
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
            # The semaphore is read once; a wavefront that finds too low a value polls again
            request.was_enough = self._takes(request)
            if isinstance(request, OwnRequest):
                request.denied_at = -1 if request.was_enough else self.num_releases
                self.monitors.was_read(request)
            self.messages.answer(request)
        else:
            self.waiters.setdefault(request.semaphore, deque()).append(request)
            self._serve_waiting(request.semaphore)

    def release(self, semaphore: int, amount: int, address: int) -> None:
        self.num_releases += 1
        self.values[semaphore] += amount
        self._serve_waiting(semaphore)
        self.monitors.semaphore_written(semaphore, address)

    def _serve_waiting(self, semaphore: int) -> None:
        queue = self.waiters.get(semaphore)
        while queue and self._takes(queue[0]):
            self.messages.answer(queue.popleft())

    def _takes(self, request: Request) -> bool:
        if self.values[request.semaphore] < request.amount:
            return False
        self.values[request.semaphore] -= request.amount
        return True


class CacheTags:
    """Tags of the L2: sets of lines, least recently used first, and whether each line is dirty."""

    def __init__(self, interconnect: Interconnect) -> None:
        model = interconnect.model
        self.line_bytes, self.num_channels = model.line_bytes, model.memory.num_channels
        self.ways = model.l2.ways if model.l2 is not None else 1
        capacity = model.l2.capacity_bytes if model.l2 is not None else 0
        self.num_sets = max(1, capacity // (self.num_channels * self.ways * self.line_bytes))
        self.sets: dict[tuple[int, int], OrderedDict[int, bool]] = {}
        self.hits = self.misses = 0

    def touch(self, channel: int, address: int, is_store: bool) -> tuple[bool, bool]:
        """Access a line; return whether it hits, and whether it evicts a dirty line."""
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
    """Lines of one GPU's memory that sleeping wavefronts watch."""

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
        """Handle the result of an acquire or flagged load; a denied acquire's line is watched from now on."""
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
    """Return the line of each semaphore that kernels of ``gpu`` acquire; -1 if they use several lines."""
    program, lines_of = system.program, dict[int, set[int]]()
    for kernel in (program.kernel_rank == gpu).nonzero()[0].tolist():
        groups = program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]
        for op in range(*program.workgroup_ptr[list(groups)].tolist()):
            if program.op_kind[op] == ACQUIRE:
                operand = int(program.operand_ptr[op])
                line = int(program.operand_address[operand]) // system.model.line_bytes
                lines_of.setdefault(int(program.operand_semaphore[operand]), set()).add(line)
    return {semaphore: lines.pop() if len(lines) == 1 else -1 for semaphore, lines in lines_of.items()}
