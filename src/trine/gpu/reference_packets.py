"""The plain-Python twin: copy engines, NICs and the transfers of the task graph, packet by packet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trine.engine.latency import entry_ps
from trine.gpu.reference_agenda import PACKETS, Action, Key, Visit
from trine.gpu.reference_messages import Place, Wires
from trine.gpu.reference_operations import Operand, Operation
from trine.gpu.reference_wavefronts import Wavefront
from trine.units import transfer_ps


@dataclass(frozen=True, slots=True, eq=False)
class Handed:
    """A DMA that the copy engine has: from when it may begin, what it is, whom to tell."""

    begins_ps: int
    wavefront: Wavefront
    operation: Operation
    number: int
    finish: Action


class Pair:
    """From one GPU to one other: DMAs that have not left; those that have not been delivered, in order."""

    def __init__(self) -> None:
        self.to_leave: deque[Handed] = deque()
        self.to_deliver: deque[Handed] = deque()
        self.arrived: set[Handed] = set()


@dataclass(frozen=True, slots=True)
class Stream:
    """Packets over ``ways`` in turns; of each way one is at the first link, and the next comes when that has left it.

    key: of a packet by home and number. target: the home of who arrives. enters: as each enters its first link.
    all_left: when the last has left that; all_arrived.
    """

    ways: Sequence[tuple[Place, ...]]
    sizes: Sequence[int]
    key: Callable[[int, int], Key]
    target: int
    enters: Action
    all_left: Action
    all_arrived: Action


class Packets:
    """Sends streams of packets."""

    def __init__(self, wires: Wires) -> None:
        self.wires, self.agenda = wires, wires.agenda
        self.packet_bytes = wires.model.packet_bytes
        self.header_bytes = wires.model.packet_header_bytes
        #: by the copy engines and NICs of each GPU; transfers of the graph do not count
        self.sent = [0] * len(wires.ranks)

    def sizes(self, num_bytes: int) -> list[int]:
        """What each packet carries; one without bytes if there are none."""
        whole, rest = divmod(num_bytes, self.packet_bytes)
        return [self.packet_bytes] * whole + ([rest] if rest or not whole else [])

    def count(self, gpu: int) -> None:
        self.sent[gpu] += 1

    def send(self, stream: Stream, time_ps: int) -> None:
        """From ``time_ps`` on."""
        _Sending(self, stream).begin(time_ps)


class _Sending:
    """One stream on its way."""

    def __init__(self, packets: Packets, stream: Stream) -> None:
        self.packets, self.agenda, self.stream = packets, packets.agenda, stream
        self.to_leave = self.to_arrive = len(stream.sizes)

    def begin(self, time_ps: int) -> None:
        for packet in range(min(len(self.stream.ways), len(self.stream.sizes))):
            self._reach(packet, 0, time_ps)

    def _reach(self, packet: int, hop: int, time_ps: int) -> None:
        way = self._way(packet)
        if hop < len(way):
            self.agenda.at(time_ps, self.stream.key(way[hop].home, packet), partial(self._visit, packet, hop))
        else:
            self.agenda.at(time_ps, self.stream.key(self.stream.target, packet), self._arrived)

    def _way(self, packet: int) -> tuple[Place, ...]:
        return self.stream.ways[packet % len(self.stream.ways)]

    def _visit(self, packet: int, hop: int) -> None:
        place, size = self._way(packet)[hop], self.stream.sizes[packet]
        if hop == 0:
            self.stream.enters()
        place.server.take(
            Visit(
                self.stream.key(place.home, packet),
                transfer_ps(size + self.packets.header_bytes, place.bytes_per_s),
                size > 0,
                lambda end_ps: self._reach(packet, hop + 1, end_ps + place.after_ps),
                partial(self._left, packet) if hop == 0 else None,
            )
        )

    def _left(self, packet: int) -> None:
        following = packet + len(self.stream.ways)
        if following < len(self.stream.sizes):
            self._reach(following, 0, self.agenda.now)
        self.to_leave -= 1
        if self.to_leave == 0:
            self.stream.all_left()

    def _arrived(self) -> None:
        self.to_arrive -= 1
        if self.to_arrive == 0:
            self.stream.all_arrived()


class CopyEngines:
    """What one GPU sends to another goes one after the other, and is delivered in this order."""

    def __init__(self, packets: Packets, release: Callable[[Operand], None]) -> None:
        self.packets, self.wires, self.agenda = packets, packets.wires, packets.agenda
        self._release = release
        self._pairs: dict[tuple[int, int], Pair] = {}

    def hand_over(self, wavefront: Wavefront, operation: Operation, number: int, finish: Action) -> None:
        pair = self._pairs.setdefault((wavefront.cu.rank, operation.writes[0].peer), Pair())
        handed = Handed(self.agenda.now + self.wires.model.dma_ps, wavefront, operation, number, finish)
        pair.to_leave.append(handed)
        pair.to_deliver.append(handed)
        if len(pair.to_leave) == 1:
            self._begin(pair)

    def _begin(self, pair: Pair) -> None:
        """The next that is to leave."""
        handed = pair.to_leave[0]
        rank, peer = handed.wavefront.cu.rank, handed.operation.writes[0].peer
        time_ps = max(self.agenda.now, handed.begins_ps)
        if rank == peer:
            self.agenda.at(time_ps, self._key(handed, rank, 0), partial(self._is_own, pair))
            return
        stream = Stream(
            self._ways(rank, peer),
            self.packets.sizes(handed.operation.amount),
            partial(self._key, handed),
            peer,
            partial(self.packets.count, handed.wavefront.cu.gpu),
            partial(self._next, pair),
            partial(self._arrived, pair, handed),
        )
        self.packets.send(stream, time_ps)

    def _is_own(self, pair: Pair) -> None:
        """To the GPU's own memory: nothing to cross."""
        handed = pair.to_leave[0]
        self._next(pair)
        self._arrived(pair, handed)

    def _next(self, pair: Pair) -> None:
        pair.to_leave.popleft()
        if pair.to_leave:
            self._begin(pair)

    def _arrived(self, pair: Pair, handed: Handed) -> None:
        pair.arrived.add(handed)
        while pair.to_deliver and pair.to_deliver[0] in pair.arrived:
            pair.arrived.remove(pair.to_deliver[0])
            self._deliver(pair.to_deliver.popleft())

    def _key(self, handed: Handed, home: int, packet: int) -> Key:
        rank, peer = handed.wavefront.cu.rank, handed.operation.writes[0].peer
        away = self.wires.away(rank, peer, home)
        return (PACKETS, 1, away, handed.wavefront.place, handed.number, rank, packet)

    def _ways(self, rank: int, peer: int) -> list[tuple[Place, ...]]:
        fabric = self.wires.system.fabric
        routes = [route for route, _ in fabric.cluster.paths(fabric.group[rank], fabric.group[peer])]
        return [tuple(self.wires.lane(hop) for hop in way.hops) for route in routes for way in fabric.lanes(route)]

    def _deliver(self, handed: Handed) -> None:
        """It is there: the semaphore, and word of it to the wavefront."""
        target, wavefront = handed.operation.writes[0], handed.wavefront
        if target.semaphore >= 0:
            self._release(target)
        wavefront.later(self.agenda.now + self._back_ps(wavefront.cu.rank, target.peer), handed.finish)

    def _back_ps(self, rank: int, peer: int) -> int:
        return 0 if rank == peer else self.wires.system.fabric.latency_ps(peer, rank)


class Transfers:
    """Those of the task graph."""

    def __init__(self, packets: Packets) -> None:
        self.packets, self.wires, self.agenda = packets, packets.wires, packets.agenda
        self.graph = packets.wires.system.graph
        self.entry_ps = entry_ps(self.graph).tolist()

    def begin(self, task: int, ended: Action) -> None:
        graph, route = self.graph, int(self.graph.route[task])
        places = self._places(route)
        if not places or graph.size_bytes[task] == 0:
            self.agenda.at(self.agenda.now + int(graph.route_latency_ps[route]), self._key(task, -1, 0), ended)
            return
        sizes = self.packets.sizes(int(graph.size_bytes[task]))
        stream = Stream([places], sizes, partial(self._key, task), -1, _nothing, _nothing, ended)
        self.packets.send(stream, self.agenda.now + self.entry_ps[route])

    def _key(self, task: int, home: int, packet: int) -> Key:
        return (PACKETS, 0, task, packet)

    def _places(self, route: int) -> tuple[Place, ...]:
        graph = self.graph
        links = graph.route_links[graph.route_ptr[route] : graph.route_ptr[route + 1]].tolist()
        latency = graph.link_latency_ps
        return tuple(
            Place(
                self.wires.server_of_lane(link, 0),
                int(graph.link_bytes_per_s[link]),
                0 if latency is None else int(latency[link]),
                int(self.wires.system.link_home[link]),
            )
            for link in links
        )


def _nothing() -> None:
    """What a transfer does beside ending."""
