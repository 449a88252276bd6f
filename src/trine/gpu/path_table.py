"""Paths inside GPUs and between them as the arrays that the compiled loop reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trine.common._records import RecordArray, new_records
from trine.common.arrays import Int32, Int64
from trine.common.units import transfer_ps
from trine.errors import InputError
from trine.gpu._state import LANE, MAX_PATHS, PAIR, PATH, TO_SWITCH, TO_SWITCH_ADDS, PathTable
from trine.gpu.fabric import FabricPath, Spoke
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.multimem import OperandHeads, operand_heads
from trine.gpu.peers import PUT, Arrivals, PeerWrites
from trine.gpu.program import ADD_ALL, DMA, MULTIMEM_ROLES, READ_SUM, has_multimem
from trine.gpu.system import GpuSystem


class Lanes:
    """Numbers of lanes of links (and of whole links, which transfers use), after the resources of all GPUs."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.number: dict[tuple[int, int], int] = {}

    def resource(self, link: int, lane: int) -> int:
        return self.first + self.number.setdefault((link, lane), len(self.number))


#: Kinds of paths inside a GPU, in the loop's order.
PATHS = ((CU, CHANNEL), (CU, PORT), (CHANNEL, PORT), (PORT, CHANNEL), (CHANNEL, CU), (PORT, CU))


class OperandPairs(NamedTuple):
    """Pair of each operand of :class:`OperandHeads`, int32, -1: local; and of each row of members, int32."""

    heads: OperandHeads
    of_operand: Int32
    member_rows: Int64
    of_member: Int32


class SystemPaths(NamedTuple):
    """All paths of a system: the tables of the loop, the pairs of operands, and the paths over the fabric."""

    table: PathTable
    pairs: OperandPairs
    fabric: FabricPaths


def make_paths(system: GpuSystem) -> SystemPaths:
    """Return all paths of ``system``."""
    paths = [system.layout.paths(*kind) for kind in PATHS]
    begins = np.cumsum([0] + [len(hops) for hops, _ in paths])
    fabric = FabricPaths(system, Lanes(system.num_gpus * system.layout.num_resources))
    heads = operand_heads(system.program)
    pair_of, pairs = operand_pairs(system)
    for gpu, peer, is_dma in pairs:
        fabric.add_pair(int(system.ranks[gpu]), peer, is_dma)
    requesters = set(_requesters(system))
    for peer in outside_ranks(system):
        fabric.add_pair(peer, int(system.ranks[0]), peer not in requesters)
    operand_pair = pair_of[heads.rows]
    member_rows, of_member = add_multimem(system, heads, fabric, operand_pair)
    route_path = [fabric.add_route(route) for route in range(len(system.graph.route_ptr) - 1)]
    path_ptr = [ptr[:-1] + first for (_, ptr), first in zip(paths, begins, strict=False)]
    table = PathTable(
        noc_hops=np.concatenate([_steps(*path) for path in paths]),
        noc_paths=np.concatenate([*path_ptr, begins[-1:]]).astype(np.int32),
        lanes=_lanes(fabric),
        paths=_records(PATH, fabric.paths()),
        pairs=_records(PAIR, fabric.pairs()),
        route_path=np.array(route_path, np.int32),
    )
    return SystemPaths(table, OperandPairs(heads, operand_pair, member_rows, of_member), fabric)


def _steps(hops: Int32, ptr: Int32) -> Int32:
    """Return 2 * each hop, + 1 for the last hop of a path."""
    steps = 2 * hops
    steps[ptr[1:][np.diff(ptr) > 0] - 1] += 1
    return steps


def _lanes(fabric: FabricPaths) -> RecordArray:
    """Return the hops of all paths over the fabric, path after path."""
    lanes = _records(LANE, fabric.rows)
    for first, end, *_ in fabric.paths():
        if first < end:
            lanes["is_first"][first] = lanes["is_last"][end - 1] = 1
    return lanes


def _records(dtype: np.dtype[np.void], rows: Sequence[tuple[object, ...]]) -> RecordArray:
    """Return records of ``rows``, whose columns are the first fields of ``dtype``."""
    records = new_records(len(rows), dtype)
    for field, column in zip(dtype.names or (), zip(*rows, strict=True), strict=False):
        records[field] = column
    return records


class FabricPaths:
    """Paths of pairs (requester, other rank) there and back, and of the routes of transfers.

    Only simulated hops have rows: with replayed peers, the first lane of the target's requests; for requests of peers
    the path there, and the first lane back. fabric_ps: uncontended time of the other hops of each path, (with data,
    without).
    """

    def __init__(self, system: GpuSystem, lanes: Lanes) -> None:
        self.system, self.lanes = system, lanes
        self.rows: list[tuple[int, tuple[int, int], int, int, int, int]] = []
        self.service_ps: dict[int, tuple[int, int]] = {}
        self.pair_gpu: list[int] = []
        self.pair_label: list[int] = []
        self.pair_latency: list[int] = []
        #: of each pair of dmas: time from the operation to the first packet, and between two dmas; else 0
        self.pair_initiation: list[tuple[int, int]] = []
        self.out: list[tuple[int, int, int, int]] = []
        self.back: list[tuple[int, int, int, int]] = []
        self.routes: list[tuple[int, int, int, int]] = []
        #: of each multimem operand: TO_SWITCH or TO_SWITCH_ADDS, its first member, the pair that holds its paths, the
        #: end of its members
        self.multimem: list[tuple[int, int, int, int]] = []
        self._out_ps: list[tuple[int, int]] = []
        self._back_ps: list[tuple[int, int]] = []
        self.out_ptr, self._back_ptr = [0], [0]
        table = system.fabric.cluster.link_table
        is_gpu = np.zeros(len(system.fabric.cluster.devices), np.bool_)
        is_gpu[list(system.fabric.group)] = True
        self.leaves = is_gpu[table.source].tolist()
        self.home, self.image = system.link_home.tolist(), system.link_image.tolist()

    def add_pair(self, rank: int, peer: int, is_dma: bool) -> None:
        """Add the paths of requests of ``rank`` to ``peer``; at least one of the two is simulated."""
        system = self.system
        find = system.fabric.dma_paths if is_dma else system.fabric.paths
        is_away, is_foreign = int(system.gpu_of[peer]) < 0, int(system.gpu_of[rank]) < 0
        self.pair_gpu.append(int(system.gpu_of[peer]))
        self.pair_label.append(1 + system.distance(rank, peer))
        for path in find(rank, peer):
            self._add(self.out, self._out_ps, path, rank, peer, 1 if is_away else len(path.hops))
        self.out_ptr.append(len(self.out))
        for path in () if is_dma else find(peer, rank):
            if is_away:
                simulated = 0
            elif is_foreign:
                simulated = 1
            else:
                simulated = len(path.hops)
            self._add(self.back, self._back_ps, path, rank, peer, simulated)
        self._back_ptr.append(len(self.back))
        self.pair_latency.append(system.fabric.latency_ps(peer, rank) if is_dma else 0)
        self.pair_initiation.append(system.fabric.initiation_ps(rank, peer) if is_dma else (0, 0))

    def add_spokes(self, gpu: int, rank: int, peer: int, spokes: Sequence[Spoke]) -> int:
        """Add the pair of a switch's copies of requests of ``rank`` for ``peer``, which has these spokes."""
        self.pair_gpu.append(gpu)
        self.pair_label.append(0 if rank == peer else 1 + self.system.distance(rank, peer))
        for spoke in spokes:
            self._add(self.out, self._out_ps, FabricPath(0, spoke.port_in, (spoke.down,)), rank, peer, 1)
        for spoke in spokes:
            self._add(self.back, self._back_ps, FabricPath(spoke.port_out, 0, (spoke.up,)), rank, peer, 1)
        return self._end_pair()

    def add_hub(self, rank: int, spokes: Sequence[Spoke]) -> int:
        """Add the pair of multimem requests of ``rank``: up to a switch, and the answer down."""
        self.pair_gpu.append(TO_SWITCH)
        self.pair_label.append(0)
        for spoke in spokes:
            self._add(self.out, self._out_ps, FabricPath(spoke.port_out, 0, (spoke.up,)), rank, rank, 1)
        for spoke in spokes:
            self._add(self.back, self._back_ps, FabricPath(0, spoke.port_in, (spoke.down,)), rank, rank, 1)
        return self._end_pair()

    def _end_pair(self) -> int:
        self.out_ptr.append(len(self.out))
        self._back_ptr.append(len(self.back))
        self.pair_latency.append(0)
        self.pair_initiation.append((0, 0))
        return len(self.pair_gpu) - 1

    def _add(
        self,
        paths: list[tuple[int, int, int, int]],
        rest_ps: list[tuple[int, int]],
        path: FabricPath,
        requester: int,
        peer: int,
        simulated: int,
    ) -> None:
        """Add a path with its first ``simulated`` hops simulated."""
        first = len(self.rows)
        for hop in path.hops[:simulated]:
            home = self.home[hop.link]
            label = 1 + self.system.distance(requester, peer if home < 0 else home)
            resource = self.lanes.resource(self.image[hop.link], hop.lane)
            lane_label = 0 if home == requester else label
            self._cross(resource, hop.bytes_per_s, hop.after_ps, lane_label, hop.link)
        paths.append((first, len(self.rows), path.port_out, path.port_in))
        rest = [(*self._services_ps(hop.bytes_per_s), hop.after_ps) for hop in path.hops[simulated:]]
        data_ps = sum(d + after for d, _, after in rest)
        control_ps = sum(c + after for _, c, after in rest)
        rest_ps.append((data_ps, control_ps))

    @property
    def fabric_ps(self) -> list[tuple[int, int]]:
        return [*self._out_ps, *self._back_ps, *[(0, 0)] * len(self.routes)]

    def _services_ps(self, rate: int) -> tuple[int, int]:
        """Return the times of a message with data and of one without at ``rate``."""
        if rate not in self.service_ps:
            model = self.system.model
            data_bytes, control_bytes = model.line_bytes + model.header_bytes, model.header_bytes
            self.service_ps[rate] = transfer_ps(data_bytes, rate), transfer_ps(control_bytes, rate)
        return self.service_ps[rate]

    def _cross(self, resource: int, rate: int, after_ps: int, label: int, link: int) -> None:
        services_ps = self._services_ps(rate)
        self.rows.append((resource, services_ps, after_ps, rate, label, int(self.leaves[link])))

    def add_route(self, route: int) -> int:
        """Add the path of a route of the task graph; return its number, which follows all paths of pairs."""
        graph, first = self.system.graph, len(self.rows)
        assert graph.link_latency_ps is not None
        for link in graph.links_of(route).tolist():
            rate = int(graph.link_bytes_per_s[link])
            resource = self.lanes.resource(self.image[link], 0)
            self._cross(resource, rate, int(graph.link_latency_ps[link]), 0, link)
        self.routes.append((first, len(self.rows), 0, 0))
        return len(self.out) + len(self.back) + len(self.routes) - 1

    def paths(self) -> list[tuple[int, int, int, int]]:
        return [*self.out, *self.back, *self.routes]

    def pairs(self) -> list[tuple[int, ...]]:
        """Return rows with the fields of PAIR; paths back follow all paths out."""
        back_ptr = [len(self.out) + at for at in self._back_ptr]
        ends = list(zip(self.out_ptr[:-1], self.out_ptr[1:], back_ptr[:-1], back_ptr[1:], strict=True))
        max_paths = max((end - first for first, end, *_ in ends), default=0)
        if max_paths > MAX_PATHS:
            raise InputError(f"{max_paths} paths from one GPU to another, of at most {MAX_PATHS}", field="cluster")
        plain = zip(self.pair_gpu, self.pair_label, ends, self.pair_latency, strict=True)
        multimem = ((to, first, ends[hub], end) for to, first, hub, end in self.multimem)
        return [(one, two, *range_out, last) for one, two, range_out, last in (*plain, *multimem)]


def add_multimem(
    system: GpuSystem, heads: OperandHeads, fabric: FabricPaths, operand_pair: Int32
) -> tuple[Int64, Int32]:
    """Write pairs of multimem operands to ``operand_pair``; return all rows of their members, and the rows' pairs."""
    program = system.program
    if not has_multimem(program):
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    gpu_of_row, peer = operand_gpus(system)[0], system.operand_peer.tolist()
    pairs: dict[tuple[int, tuple[int, ...]], tuple[int, dict[int, int]]] = {}
    rows: list[int] = []
    of_row: list[int] = []
    multimem_rows: list[tuple[int, int, int, int, int]] = []
    role = program.operand_role[heads.rows]
    for operand in np.flatnonzero(np.isin(role, MULTIMEM_ROLES)).tolist():
        member_rows = range(int(heads.rows[operand]), int(heads.end[operand]))
        members, gpu = tuple(peer[row] for row in member_rows), int(gpu_of_row[member_rows.start])
        key = gpu, tuple(sorted(members))
        if key not in pairs:
            rank, spokes = int(system.ranks[gpu]), system.fabric.spokes(members)
            of_member = {
                member: fabric.add_spokes(int(system.gpu_of[member]), rank, member, spokes[member]) for member in key[1]
            }
            pairs[key] = fabric.add_hub(rank, spokes[rank]), of_member
        hub, of_member = pairs[key]
        to = TO_SWITCH_ADDS if role[operand] == ADD_ALL else TO_SWITCH
        multimem_rows.append((operand, to, len(rows), hub, len(rows) + len(members)))
        rows += member_rows
        of_row += [of_member[member] for member in members]
    for number, (operand, *pair) in enumerate(multimem_rows):
        operand_pair[operand] = len(fabric.pair_gpu) + number
        fabric.multimem.append((pair[0], pair[1], pair[2], pair[3]))
    return np.array(rows, np.int64), np.array(of_row, np.int32)


def outside_ranks(system: GpuSystem) -> list[int]:
    """Return the replayed ranks that send anything, in order."""
    outside = system.outside
    if outside is None:
        return []
    ranks: list[int] = np.unique(outside.peer if isinstance(outside, PeerWrites) else outside.rank).tolist()
    return ranks


def _requesters(system: GpuSystem) -> list[int]:
    """Return the replayed ranks that send requests, not only dmas, which may use paths closed to requests."""
    outside = system.outside
    if not isinstance(outside, Arrivals):
        return outside_ranks(system)
    ranks: list[int] = np.unique(outside.rank[outside.kind != PUT]).tolist()
    return ranks


def operand_gpus(system: GpuSystem) -> tuple[Int32, Int64]:
    """Return the simulated GPU and the operation of each operand: int32[operands], int64[operands]."""
    program = system.program
    operand_op = program.operand_op
    return program.op_rank[operand_op], operand_op


def operand_pairs(system: GpuSystem) -> tuple[Int32, list[tuple[int, int, bool]]]:
    """Return the pair of each row (-1: local, or a multimem operand), and the pairs: (simulated GPU, rank, whether for
    dma)."""
    program = system.program
    gpu, op = operand_gpus(system)
    peer = system.operand_peer.astype(np.int64)
    is_dma = (program.op_kind[op] == DMA).astype(np.int64)
    key = (gpu * np.int64(system.num_ranks) + peer) * 2 + is_dma
    foreign = (peer != system.ranks[gpu]) & (program.operand_role < READ_SUM)
    unique_keys, inverse = np.unique(key[foreign], return_inverse=True)
    pair = np.full(len(gpu), -1, np.int32)
    pair[foreign] = inverse
    rest = unique_keys // 2
    columns = (rest // system.num_ranks, rest % system.num_ranks, unique_keys % 2 == 1)
    return pair, list(zip(*(column.tolist() for column in columns), strict=True))


def lane_columns(lanes: Lanes) -> tuple[Sequence[int], Sequence[int]]:
    """Return the link and the number of each lane, in the order of their resources."""
    links = [link for link, _ in lanes.number]
    lane_numbers = [lane for _, lane in lanes.number]
    return links, lane_numbers
