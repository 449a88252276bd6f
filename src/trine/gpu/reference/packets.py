"""The plain-Python twin: copy engines, NICs and the transfers of the task graph, packet by packet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trine.common.units import transfer_ps
from trine.engine.validate import software_latency_ps
from trine.gpu.reference.events import PACKETS, Action, Key, ServerVisit
from trine.gpu.reference.interconnect import Interconnect, PathStop


def _nothing() -> None:
    """Do nothing: the default callback of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketStream:
    """Packets over ``paths`` in turns; each path has one packet at its first link, and the next follows when it leaves.

    sizes: bytes of each packet. key: event key, by home and packet number. target: home of arrivals. Callbacks:
    all_arrived; enters, as each packet enters its first link; all_left, when the last packet has left that link.
    """

    paths: Sequence[tuple[PathStop, ...]]
    sizes: Sequence[int]
    key: Callable[[int, int], Key]
    target: int
    all_arrived: Action
    enters: Action = _nothing
    all_left: Action = _nothing


class PacketSender:
    """Sender of packet streams."""

    def __init__(self, interconnect: Interconnect) -> None:
        self.interconnect, self.agenda = interconnect, interconnect.agenda
        self.packet_bytes = interconnect.model.packet_bytes
        self.header_bytes = interconnect.model.packet_header_bytes
        #: packets of each GPU's copy engines and NICs; transfers of the graph do not count
        self.sent = [0] * len(interconnect.ranks)

    def sizes(self, num_bytes: int) -> list[int]:
        """Return the bytes of each packet; a stream of 0 bytes has one empty packet."""
        num_full, rest = divmod(num_bytes, self.packet_bytes)
        return [self.packet_bytes] * num_full + ([rest] if rest or not num_full else [])

    def count(self, gpu: int) -> None:
        self.sent[gpu] += 1

    def send(self, stream: PacketStream, time_ps: int) -> None:
        """Send a stream from ``time_ps`` on."""
        sending = _Sending(self, stream)
        for packet in range(min(len(stream.paths), len(stream.sizes))):
            sending.reach(packet, 0, time_ps)


class _Sending:
    """One stream on its way."""

    def __init__(self, sender: PacketSender, stream: PacketStream) -> None:
        self.sender, self.agenda, self.stream = sender, sender.agenda, stream
        self.to_leave = self.to_arrive = len(stream.sizes)

    def reach(self, packet: int, hop: int, time_ps: int) -> None:
        path = self._path(packet)
        if hop < len(path):
            self.agenda.at(time_ps, self.stream.key(path[hop].home, packet), partial(self._visit, packet, hop))
        else:
            self.agenda.at(time_ps, self.stream.key(self.stream.target, packet), self._arrived)

    def _path(self, packet: int) -> tuple[PathStop, ...]:
        return self.stream.paths[packet % len(self.stream.paths)]

    def _visit(self, packet: int, hop: int) -> None:
        stop, size = self._path(packet)[hop], self.stream.sizes[packet]
        if hop == 0:
            self.stream.enters()
        on_begin = partial(self._left, packet) if hop == 0 else None
        stop.server.take(
            ServerVisit(
                self.stream.key(stop.home, packet),
                transfer_ps(size + self.sender.header_bytes, stop.bytes_per_s),
                size > 0,
                lambda end_ps: self.reach(packet, hop + 1, end_ps + stop.after_ps),
                on_begin,
            )
        )

    def _left(self, packet: int) -> None:
        following = packet + len(self.stream.paths)
        if following < len(self.stream.sizes):
            self.reach(following, 0, self.agenda.now)
        self.to_leave -= 1
        if self.to_leave == 0:
            self.stream.all_left()

    def _arrived(self) -> None:
        self.to_arrive -= 1
        if self.to_arrive == 0:
            self.stream.all_arrived()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DmaRequest:
    """A DMA in the queue of a copy engine.

    begins_ps: earliest start. gpu, rank, wave_slot: of the wavefront; number: of its request. ordinal: as in requests
    to other GPUs. peer, target: the destination rank, and the GPU simulated for it; -1: it is replayed.
    address, semaphore: the semaphore that it releases there; -1: none. delivered: called on arrival with the time at
    which the wavefront learns of it.
    """

    begins_ps: int
    gpu: int
    rank: int
    wave_slot: int
    number: int
    ordinal: int
    peer: int
    target: int
    num_bytes: int
    address: int
    semaphore: int
    delivered: Callable[[int], None]


class _DmaQueue:
    """DMAs from one GPU to another: those still to leave, and those still to deliver, in order."""

    def __init__(self) -> None:
        self.to_leave: deque[DmaRequest] = deque()
        self.to_deliver: deque[DmaRequest] = deque()
        self.arrived: set[DmaRequest] = set()


class CopyEngines:
    """Copy engines of all GPUs. DMAs from one GPU to another leave, and are delivered, one after the other.

    put_came: called for each dma from another GPU that releases a semaphore; put_known: called for each dma to another
    GPU with the time at which its wavefront learns of the arrival; replayed_ps: returns this time for a dma to a
    replayed peer. All are set before the run.
    """

    put_came: Callable[[DmaRequest], None]
    put_known: Callable[[DmaRequest, int], None]
    replayed_ps: Callable[[DmaRequest], int]

    def __init__(self, sender: PacketSender) -> None:
        self.sender, self.interconnect, self.agenda = sender, sender.interconnect, sender.agenda
        self._queues: dict[tuple[int, int], _DmaQueue] = {}
        #: of each GPU: earliest time of its next dma at a NIC
        self._nic_free_ps = [0] * len(self.interconnect.ranks)

    def begins_ps(self, gpu: int, rank: int, peer: int) -> int:
        """Return the earliest start of a DMA handed over now; DMAs that cross NICs keep an interval."""
        fabric = self.interconnect.system.fabric
        latency_ps, interval_ps = (fabric.model.dma_ps, 0) if rank == peer else fabric.initiation_ps(rank, peer)
        begins_ps = self.agenda.now + latency_ps
        if interval_ps:
            begins_ps = max(begins_ps, self._nic_free_ps[gpu])
            self._nic_free_ps[gpu] = begins_ps + interval_ps
        return begins_ps

    def hand_over(self, dma: DmaRequest) -> None:
        queue = self._queues.setdefault((dma.rank, dma.peer), _DmaQueue())
        queue.to_leave.append(dma)
        queue.to_deliver.append(dma)
        if len(queue.to_leave) == 1:
            self._begin(queue)

    def _begin(self, queue: _DmaQueue) -> None:
        """Start the next DMA of the queue."""
        dma = queue.to_leave[0]
        time_ps = max(self.agenda.now, dma.begins_ps)
        if dma.rank == dma.peer:
            self.agenda.at(time_ps, self._key(dma, dma.rank, 0), partial(self._is_own, queue))
            return
        stream = PacketStream(
            paths=self._paths(dma.rank, dma.peer), sizes=self.sender.sizes(dma.num_bytes), key=partial(self._key, dma),
            target=dma.peer, all_arrived=partial(self._arrived, queue, dma), enters=partial(self.sender.count, dma.gpu),
            all_left=partial(self._next, queue),
        )  # fmt: skip
        self.sender.send(stream, time_ps)

    def _is_own(self, queue: _DmaQueue) -> None:
        """Complete a DMA to the GPU's own memory, which crosses no link."""
        dma = queue.to_leave[0]
        self._next(queue)
        self._arrived(queue, dma)

    def _next(self, queue: _DmaQueue) -> None:
        queue.to_leave.popleft()
        if queue.to_leave:
            self._begin(queue)

    def _arrived(self, queue: _DmaQueue, dma: DmaRequest) -> None:
        queue.arrived.add(dma)
        while queue.to_deliver and queue.to_deliver[0] in queue.arrived:
            first = queue.to_deliver.popleft()
            queue.arrived.remove(first)
            first.delivered(self.agenda.now if first.rank == first.peer else self._known_ps(first))

    def _known_ps(self, dma: DmaRequest) -> int:
        """Return the time at which the wavefront learns that a dma to another GPU has arrived."""
        if dma.target < 0:
            known_ps = self.replayed_ps(dma)
        else:
            known_ps = self.agenda.now + self.interconnect.system.fabric.latency_ps(dma.peer, dma.rank)
            if dma.semaphore >= 0:
                self.put_came(dma)
        self.put_known(dma, known_ps)
        return known_ps

    def _key(self, dma: DmaRequest, home: int, packet: int) -> Key:
        away = self.interconnect.away(dma.rank, dma.peer, home)
        return (PACKETS, 1, away, dma.wave_slot, dma.number, dma.rank, packet)

    def _paths(self, rank: int, peer: int) -> list[tuple[PathStop, ...]]:
        """Return the paths; for a replayed peer only the first lane of each."""
        system = self.interconnect.system
        fabric, end = system.fabric, None if system.gpu_of[peer] >= 0 else 1
        routes = [route for route, _ in fabric.cluster.paths(fabric.group[rank], fabric.group[peer])]
        paths = [path.hops[:end] for route in routes for path in fabric.lanes(route)]
        lanes = []
        for hops in paths:
            lanes.append(tuple(self.interconnect.lane(hop) for hop in hops))
        return lanes


class GraphTransfers:
    """The transfers of the task graph."""

    def __init__(self, sender: PacketSender) -> None:
        self.sender, self.interconnect, self.agenda = sender, sender.interconnect, sender.agenda
        self.graph = sender.interconnect.system.graph
        self.software_latency_ps = software_latency_ps(self.graph).tolist()

    def begin(self, task: int, on_end: Action) -> None:
        graph, route = self.graph, int(self.graph.route[task])
        stops = self._stops(route)
        if not stops or graph.size_bytes[task] == 0:
            self.agenda.at(self.agenda.now + int(graph.route_latency_ps[route]), self._key(task, -1, 0), on_end)
            return
        sizes = self.sender.sizes(int(graph.size_bytes[task]))
        stream = PacketStream(paths=[stops], sizes=sizes, key=partial(self._key, task), target=-1, all_arrived=on_end)
        self.sender.send(stream, self.agenda.now + self.software_latency_ps[route])

    def _key(self, task: int, home: int, packet: int) -> Key:
        return (PACKETS, 0, task, packet)

    def _stops(self, route: int) -> tuple[PathStop, ...]:
        graph = self.graph
        links = graph.links_of(route).tolist()
        latency = graph.link_latency_ps
        stops = []
        for link in links:
            stops.append(
                PathStop(
                    self.interconnect.server_of_lane(link, 0),
                    int(graph.link_bytes_per_s[link]),
                    0 if latency is None else int(latency[link]),
                    int(self.interconnect.system.link_home[link]),
                )
            )
        return tuple(stops)
