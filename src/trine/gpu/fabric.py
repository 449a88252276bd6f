"""Distances between ranks, which break ties and assign the ports of a GPU, and paths between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST, HOST_LINK, NIC, SCALE_UP, SWITCH
from trine.common.arrays import Int64
from trine.errors import InputError
from trine.gpu.model import HASHED, GpuModel

#: One rank or an array of ranks.
Ranks = TypeVar("Ranks", int, npt.NDArray[np.int64])


def distance(grid: Sequence[int], source: Ranks, origin: Ranks) -> Ranks:
    """Return the difference of two grid positions along each dimension, modulo its size, as a row-major number."""
    number, scale = source - source, 1
    for size in reversed(grid):
        number = number + (source % size - origin % size) % size * scale
        source, origin, scale = source // size, origin // size, scale * size
    return number


def rank_grid(cluster: Cluster, group: Sequence[int]) -> tuple[int, ...]:
    """Return the cluster's grid if the ranks are all its GPUs in order, else a ring of all ranks."""
    if cluster.grid and list(group) == list(cluster.gpus):
        return cluster.grid
    return (len(group),)


def moved(grid: Sequence[int], rank: int, source: int, origin: int) -> int:
    """Return ``rank`` moved by the offset from ``origin`` to ``source``, along each dimension of the grid."""
    image, scale = 0, 1
    for size in reversed(grid):
        image += (rank % size + source % size - origin % size) % size * scale
        rank, source, origin, scale = rank // size, source // size, origin // size, scale * size
    return image


class LaneHop(NamedTuple):
    """One lane of a link: ``lane`` of ``num_lanes``; a message reaches the next stop ``after_ps`` after service."""

    link: int
    lane: int
    num_lanes: int
    bytes_per_s: int
    after_ps: int


class FabricPath(NamedTuple):
    """Path of messages between two GPUs: an outgoing port, lanes, and a port of the receiver."""

    port_out: int
    port_in: int
    hops: tuple[LaneHop, ...]


class Spoke(NamedTuple):
    """Paths between a GPU and one lane of a reducing and multicasting switch: up from a port, and down to a port."""

    port_out: int
    port_in: int
    up: LaneHop
    down: LaneHop


class _LinkNumbers(NamedTuple):
    """Numbers of scale-up links at the ends of a group.

    out: of each link among the source's outgoing ones. into: among the target's incoming ones. num_out: links out of
    each device.
    """

    out: dict[int, int]
    into: dict[int, int]
    num_out: dict[int, int]


class GpuFabric:
    """Paths between the ranks of ``group`` (their devices in ``cluster``), all of one GPU model."""

    def __init__(self, cluster: Cluster, group: Sequence[int], model: GpuModel) -> None:
        self.cluster, self.group, self.model = cluster, tuple(group), model
        self._paths: dict[tuple[int, int], tuple[FabricPath, ...]] = {}
        self._spokes: dict[tuple[int, ...], dict[int, tuple[Spoke, ...]]] = {}

    @cached_property
    def _ends(self) -> _LinkNumbers:
        """Numbers of the scale-up links of the group.

        A GPU numbers its links by the distance of the rank at the other end, then links to other devices in the
        cluster's order. The port to the next rank is therefore the same on every GPU.
        """
        table, ranks = self.cluster.link_table, len(self.group)
        rank_of = np.full(len(self.cluster.devices), -1, np.int64)
        rank_of[list(self.group)] = np.arange(ranks)
        source, target = rank_of[table.source], rank_of[table.target]
        group_links = np.flatnonzero((source >= 0) | (target >= 0)).tolist()
        links = np.array([i for i in group_links if self.cluster.links[i].link_class == SCALE_UP], np.int64)
        out, count_out = self._numbered(links, source[links], target[links])
        into, _ = self._numbered(links, target[links], source[links])
        return _LinkNumbers(out, into, {self.group[rank]: count for rank, count in count_out.items()})

    def _numbered(self, links: Int64, rank_of: Int64, peer: Int64) -> tuple[dict[int, int], dict[int, int]]:
        """Return the number of each link within its rank, and the number of links per rank."""
        grid = rank_grid(self.cluster, self.group)
        away = np.where(peer >= 0, distance(grid, np.maximum(peer, 0), np.maximum(rank_of, 0)), len(self.group))
        number: dict[int, int] = {}
        count: dict[int, int] = {}
        for i in np.lexsort((links, away, rank_of)).tolist():
            rank = int(rank_of[i])
            if rank >= 0:
                number[int(links[i])] = count.get(rank, 0)
                count[rank] = number[int(links[i])] + 1
        return number, count

    def link_columns(self) -> list[tuple[str, npt.NDArray[np.generic]]]:
        """Return the link properties that determine paths, one value per link, with readable names."""
        table = self.cluster.link_table
        out, into, count_out = self._ends
        number_out, number_in, share = (np.full(len(table.source), -1, np.int64) for _ in range(3))
        for link, number in out.items():
            number_out[link], share[link] = number, count_out[int(table.source[link])]
        for link, number in into.items():
            number_in[link] = number
        rates = [self.cluster.seen_by_messages(link) for link in range(len(table.source))]
        bandwidths = [rate for rate, _ in rates]
        latencies = [latency for _, latency in rates]
        return [
            ("bandwidth", np.array(bandwidths, np.int64)),
            ("latency", np.array(latencies, np.int64)),
            ("their place among the links out of their GPU", number_out),
            ("their place among the links into their GPU", number_in),
            ("the number of links out of their GPU", share),
            ("whether they lead to a NIC", self._leads_to_nic),
        ]

    def paths(self, source: int, target: int) -> tuple[FabricPath, ...]:
        """Return the paths from rank ``source`` to rank ``target`` for loads and stores.

        Raises
        ------
        InputError: NICs or hosts lie between the two, which loads and stores cannot cross.
        SpecError: no path joins them.
        """
        paths = self._paths.get((source, target))
        if paths is None:
            paths = self._paths[source, target] = self._find(source, target)
        return paths

    def _find(self, source: int, target: int) -> tuple[FabricPath, ...]:
        source_device, target_device = self.group[source], self.group[target]
        paths: list[FabricPath] = []
        for route, _ in self.cluster.paths(source_device, target_device):
            barred = self._barred(route)
            if barred is not None:
                raise InputError(
                    f"rank {source} reaches rank {target} through {self.cluster.links[barred].name!r}, which loads "
                    "and stores cannot cross; between nodes take a plan whose data goes through port channels (dma "
                    "operations), or --fidelity operator"
                )
            paths.extend(self.lanes(route))
        return tuple(paths)

    def _barred(self, route: Sequence[int]) -> int | None:
        """Return the first link of a route that loads and stores cannot cross, or None.

        They cross scale-up links, and PCIe between GPUs with only switches in between, not hosts or NICs. They pass
        hosts only on the way to and from host memory.
        """
        devices, links = self.cluster.devices, self.cluster.links
        to_host = HOST in (devices[links[route[0]].source].kind, devices[links[route[-1]].target].kind)
        passed = (SWITCH, HOST) if to_host else (SWITCH,)
        for i, link in enumerate(route):
            hop = links[link]
            stays_inside = i == len(route) - 1 or devices[hop.target].kind in passed
            if hop.link_class != SCALE_UP and not (hop.link_class == HOST_LINK and stays_inside):
                return link
        return None

    def spokes(self, members: Sequence[int]) -> dict[int, tuple[Spoke, ...]]:
        """Return each rank's spokes to the switches of all routes between the ranks, equally many and in one order.

        Raises InputError unless every route crosses exactly one reducing and multicasting switch, from the same set
        for all.
        """
        ranks = tuple(sorted(members))
        if ranks not in self._spokes:
            self._spokes[ranks] = find_spokes(self, ranks)
        return self._spokes[ranks]

    def dma_paths(self, source: int, target: int) -> tuple[FabricPath, ...]:
        """Return the paths of copy engines and NICs from rank ``source`` to rank ``target``, over any links."""
        paths = self.cluster.paths(self.group[source], self.group[target])
        return tuple(path for route, _ in paths for path in self.lanes(route))

    def initiation_ps(self, source: int, target: int) -> tuple[int, int]:
        """Return a DMA's time to its first packet and the minimum interval between DMAs (0: none), ps."""
        if self.model.nic is None or not self.crosses_nic(source, target):
            return self.model.dma_ps, 0
        return self.model.nic.times_ps

    def crosses_nic(self, source: int, target: int) -> bool:
        """Return whether a NIC is on the first path from rank ``source`` to rank ``target``."""
        if source == target:
            return False
        route = self.cluster.paths(self.group[source], self.group[target])[0][0]
        return bool(self._leads_to_nic[list(route)].any())

    @cached_property
    def _leads_to_nic(self) -> npt.NDArray[np.bool_]:
        is_nic: npt.NDArray[np.bool_] = self.cluster.device_table.where(NIC)
        return is_nic[self.cluster.link_table.target]

    @cached_property
    def domains(self) -> tuple[int, ...]:
        """Domain number of each rank, shared by ranks that reach each other without a NIC; numbered by first rank."""
        firsts: list[int] = []
        domains = []
        for rank in range(len(self.group)):
            reachable = (i for i, first in enumerate(firsts) if not self.crosses_nic(first, rank))
            domains.append(next(reachable, len(firsts)))
            if domains[-1] == len(firsts):
                firsts.append(rank)
        return tuple(domains)

    def latency_ps(self, source: int, target: int) -> int:
        """Return the total link latency of the first path from rank ``source`` to rank ``target``."""
        return self.route_latency_ps(self.cluster.paths(self.group[source], self.group[target])[0][0])

    def route_latency_ps(self, route: Sequence[int]) -> int:
        """Return the total latency of a route's links, as messages see them."""
        return sum(self.cluster.seen_by_messages(link)[1] for link in route)

    def lanes(self, route: Sequence[int]) -> list[FabricPath]:
        """Return the lanes of one route between two GPUs; one lane unless all its links are scale-up."""
        out, into, count_out = self._ends
        ports, table = self.model.ports, self.cluster.link_table
        first, last = route[0], route[-1]
        ordinal, num_lanes = 0, 1
        if first in out and all(self.cluster.links[link].link_class == SCALE_UP for link in route):
            ordinal = out[first]
            num_lanes = max(1, ports.count // count_out[int(table.source[first])])
        numbers = [self.cluster.seen_by_messages(link) for link in route]
        paths = []
        for lane in range(num_lanes):
            hops = []
            for i, (link, (rate, latency_ps)) in enumerate(zip(route, numbers, strict=True)):
                after_ps = latency_ps + ports.latency_ps * ((i == 0) + (i == len(route) - 1))
                hops.append(LaneHop(link, lane, num_lanes, max(1, rate // num_lanes), after_ps))
            port_out = (ordinal * num_lanes + lane) % ports.count
            port_in = (into.get(last, 0) * num_lanes + lane) % ports.count
            paths.append(FabricPath(port_out, port_in, tuple(hops)))
        return paths


def find_spokes(fabric: GpuFabric, ranks: Sequence[int]) -> dict[int, tuple[Spoke, ...]]:
    """Return the spokes without a cache; see :meth:`GpuFabric.spokes`."""
    ups: dict[int, tuple[int, ...]] = {}
    downs: dict[int, tuple[int, ...]] = {}
    switches: tuple[int, ...] | None = None
    for source in ranks:
        for target in ranks:
            if source == target:
                continue
            routes = _over_one_switch(fabric, source, target)
            over = tuple(int(fabric.cluster.link_table.target[up]) for up, _ in routes)
            switches = over if switches is None else switches
            up = tuple(route[0] for route in routes)
            down = tuple(route[1] for route in routes)
            if over != switches or ups.setdefault(source, up) != up or downs.setdefault(target, down) != down:
                raise InputError(
                    f"routes between ranks {ranks[0]} to {ranks[-1]} go over several switches or links, each over "
                    f"another (routing {fabric.cluster.routing!r}): multimem operations need the same for all, as on "
                    "one switch, or with routing 'ecmp-split'"
                )
    spokes_of = {rank: tuple(_spokes(fabric, rank, ranks, ups, downs)) for rank in ranks}
    if len({len(spokes) for spokes in spokes_of.values()}) > 1:
        raise InputError("multimem operations need GPUs with equally many lanes to their switch, and these have not")
    return spokes_of


def _over_one_switch(fabric: GpuFabric, source: int, peer: int) -> list[tuple[int, int]]:
    """Return the two links of each route, ordered by switch."""
    cluster = fabric.cluster
    routes = [route for route, _ in cluster.paths(fabric.group[source], fabric.group[peer])]
    for route in routes:
        middle = int(cluster.link_table.target[route[0]])
        if len(route) != 2 or not cluster.devices[middle].reduces:
            raise InputError(
                f"rank {source} reaches rank {peer} over {cluster.links[route[0]].name!r}: multimem operations (NVLS) "
                "need one switch between the ranks that adds up and multicasts (NVSwitches from Hopper on; in cluster "
                f"files 'reduces: true'), and {cluster.name!r} has no such switch there; take another algorithm"
            )
        fabric.paths(source, peer)  # raises if loads and stores cannot cross the route
    target = cluster.link_table.target
    ends = [(route[0], route[1]) for route in routes]
    return sorted(ends, key=lambda route: (int(target[route[0]]), route))


def _spokes(
    fabric: GpuFabric,
    rank: int,
    ranks: Sequence[int],
    ups: dict[int, tuple[int, ...]],
    downs: dict[int, tuple[int, ...]],
) -> Iterator[Spoke]:
    peer = ranks[1] if rank == ranks[0] else ranks[0]
    for switch, up in enumerate(ups[rank]):
        out = fabric.lanes((up, downs[peer][switch]))
        into = fabric.lanes((ups[peer][switch], downs[rank][switch]))
        if len(out) != len(into):
            raise InputError(
                "multimem operations need GPUs with equally many lanes to their switch, and these have not"
            )
        for upward, downward in zip(out, into, strict=True):
            yield Spoke(upward.port_out, downward.port_in, upward.hops[0], downward.hops[1])


def path_of_address(address: int, interleave_bytes: int, choice: str, num_paths: int) -> int:
    """Return which of ``num_paths`` paths the line at ``address`` takes. HASHED mixes the block's bits first."""
    block = address // interleave_bytes
    if choice == HASHED:
        block = hashed(block)
    return block % num_paths


def hashed(block: int) -> int:
    """Return a number below 2**31 that depends on all bits of ``block`` (multiplier: Knuth, TAOCP 3, 6.4)."""
    mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF
    return ((mixed * 2654435761) & 0xFFFFFFFF) >> 1
