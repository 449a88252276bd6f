"""The plain-Python twin: the servers of the machine, and the path of each message through them."""

from __future__ import annotations

from typing import NamedTuple

from trine.gpu.fabric import FabricPath, LaneHop, path_of_address
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.model import FAIR
from trine.gpu.reference.events import MESSAGES, Agenda, FairServer, Key, Server
from trine.gpu.reference.requests import Request
from trine.gpu.system import GpuSystem


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
        self.gpu_servers = []
        for _ in self.ranks:
            self.gpu_servers.append([Server(agenda) for _ in self.rates])
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
