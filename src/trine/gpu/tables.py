"""A system as the arrays that the compiled loop reads: paths, ways, the program, numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import trine.gpu._state as S
from trine.gpu._state import Code, Int32, Int64, Ways
from trine.gpu.fabric import Way
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.system import GpuSystem
from trine.model.gpumodel import FAIR, HASHED
from trine.model.gpuprogram import ACQUIRE, DMA, READ, READ_FLAGGED
from trine.units import transfer_ps


class Lanes:
    """Numbers for lanes of links (and whole links, which transfers use), behind the resources of all GPUs."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.number: dict[tuple[int, int], int] = {}

    def resource(self, link: int, lane: int) -> int:
        return self.first + self.number.setdefault((link, lane), len(self.number))


#: Kinds of paths inside a GPU, in the order in which the loop has them.
_PATHS = ((CU, CHANNEL), (CU, PORT), (CHANNEL, PORT), (PORT, CHANNEL), (CHANNEL, CU), (PORT, CU))


def make_ways(system: GpuSystem) -> tuple[Ways, Int32, Lanes]:
    """Paths and ways; the pair of each operand, int32[operands], -1: the own GPU; and the lanes that there are."""
    paths = [system.layout.paths(*kind) for kind in _PATHS]
    begins = np.cumsum([0] + [len(hops) for hops, _ in paths])
    lanes = Lanes(system.num_gpus * system.layout.num_resources)
    ways = _Fabric(system, lanes)
    pair_of, pairs = operand_pairs(system)
    for gpu, peer, is_dma in pairs:
        ways.add_pair(gpu, peer, is_dma)
    route_way = [ways.add_route(route) for route in range(len(system.graph.route_ptr) - 1)]
    starts = [ptr[:-1] + first for (_, ptr), first in zip(paths, begins[:-1], strict=True)]
    made = Ways(
        hops=np.concatenate([hops for hops, _ in paths]),
        path=np.concatenate([*starts, begins[-1:]]).astype(np.int32),
        lane=np.array(ways.rows, np.int64).reshape(-1),
        pair_gpu=np.array(ways.pair_gpu, np.int32),
        pair_label=np.array(ways.pair_label, np.int32),
        pair_out=np.array(ways.out_ptr, np.int32),
        pair_back=np.array(ways.back_ptr, np.int32),
        pair_latency=np.array(ways.pair_latency, np.int64),
        way=np.array(ways.ways(), np.int32).reshape(-1),
        route_way=np.array(route_way, np.int32),
    )
    return made, pair_of, lanes


def service_columns(system: GpuSystem) -> Int64:
    """int64[resources of a GPU, 3]: ps that messages with data and without take of a link, and the latency behind."""
    model, layout = system.model, system.layout
    rates = layout.bytes_per_s.tolist()
    sizes = (model.line_bytes + model.header_bytes, model.header_bytes)
    of_rate = {rate: [transfer_ps(size, rate) for size in sizes] for rate in set(rates)}
    return np.column_stack([np.array([of_rate[rate] for rate in rates], np.int64), layout.after_ps()])


class _Fabric:
    """Ways of pairs (simulated GPU, rank) there and back, and of the routes of transfers."""

    def __init__(self, system: GpuSystem, lanes: Lanes) -> None:
        self.system, self.lanes = system, lanes
        self.rows: list[tuple[int, ...]] = []
        self.service_ps: dict[int, tuple[int, int]] = {}
        self.pair_gpu: list[int] = []
        self.pair_label: list[int] = []
        self.pair_latency: list[int] = []
        self.out: list[tuple[int, int, int, int]] = []
        self.back: list[tuple[int, int, int, int]] = []
        self.routes: list[tuple[int, int, int, int]] = []
        self.out_ptr, self._back_ptr = [0], [0]
        table = system.fabric.cluster.link_table
        is_gpu = np.zeros(len(system.fabric.cluster.devices), np.bool_)
        is_gpu[list(system.fabric.group)] = True
        self.leaves = is_gpu[table.source].tolist()
        self.home, self.image = system.link_home.tolist(), system.link_image.tolist()

    def add_pair(self, gpu: int, peer: int, is_dma: bool) -> None:
        system = self.system
        rank = int(system.ranks[gpu])
        find = system.fabric.dma_ways if is_dma else system.fabric.ways
        self.pair_gpu.append(int(system.gpu_of[peer]))
        self.pair_label.append(1 + system.distance(rank, peer))
        self.out += [self._way(way, rank, peer) for way in find(rank, peer)]
        self.out_ptr.append(len(self.out))
        if not is_dma:
            self.back += [self._way(way, rank, peer) for way in find(peer, rank)]
        self._back_ptr.append(len(self.back))
        self.pair_latency.append(system.fabric.latency_ps(peer, rank) if is_dma else 0)

    @property
    def back_ptr(self) -> list[int]:
        return [len(self.out) + at for at in self._back_ptr]

    def _way(self, way: Way, requester: int, peer: int) -> tuple[int, int, int, int]:
        first = len(self.rows)
        for hop in way.hops:
            home = self.home[hop.link]
            label = 1 + self.system.distance(requester, peer if home < 0 else home)
            resource = self.lanes.resource(self.image[hop.link], hop.lane)
            own = 0 if home == requester else label
            self._cross(resource, hop.bytes_per_s, hop.after_ps, own, hop.link)
        return first, len(self.rows), way.port_out, way.port_in

    def _cross(self, resource: int, rate: int, after_ps: int, label: int, link: int) -> None:
        if rate not in self.service_ps:
            model = self.system.model
            data_bytes, control_bytes = model.line_bytes + model.header_bytes, model.header_bytes
            self.service_ps[rate] = transfer_ps(data_bytes, rate), transfer_ps(control_bytes, rate)
        self.rows.append((resource, *self.service_ps[rate], after_ps, rate, label, int(self.leaves[link]), 0))

    def add_route(self, route: int) -> int:
        """The way of a route of the task graph, as a number behind all ways of pairs."""
        graph, first = self.system.graph, len(self.rows)
        assert graph.link_latency_ps is not None
        for link in graph.route_links[graph.route_ptr[route] : graph.route_ptr[route + 1]].tolist():
            rate = int(graph.link_bytes_per_s[link])
            resource = self.lanes.resource(self.image[link], 0)
            self._cross(resource, rate, int(graph.link_latency_ps[link]), 0, link)
        self.routes.append((first, len(self.rows), 0, 0))
        return len(self.out) + len(self.back) + len(self.routes) - 1

    def ways(self) -> list[tuple[int, int, int, int]]:
        return [*self.out, *self.back, *self.routes]


def operand_gpus(system: GpuSystem) -> tuple[Int32, Int64]:
    """The simulated GPU and the operation of each operand: int32[operands], int64[operands]."""
    program = system.program
    workgroup_kernel = np.repeat(np.arange(program.num_kernels), np.diff(program.kernel_ptr))
    op_kernel = np.repeat(workgroup_kernel, np.diff(program.workgroup_ptr))
    operand_op = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    return program.kernel_rank[op_kernel[operand_op]], operand_op


def operand_pairs(system: GpuSystem) -> tuple[Int32, list[tuple[int, int, bool]]]:
    """The pair of each operand (-1: the own GPU), and what the pairs are: (simulated GPU, rank, whether for dma)."""
    program = system.program
    gpu, op = operand_gpus(system)
    peer = system.operand_peer.astype(np.int64)
    is_dma = (program.op_kind[op] == DMA).astype(np.int64)
    key = (gpu * np.int64(system.num_ranks) + peer) * 2 + is_dma
    foreign = peer != system.ranks[gpu]
    found, inverse = np.unique(key[foreign], return_inverse=True)
    pair = np.full(len(gpu), -1, np.int32)
    pair[foreign] = inverse
    rest = found // 2
    columns = (rest // system.num_ranks, rest % system.num_ranks, found % 2 == 1)
    return pair, list(zip(*(column.tolist() for column in columns), strict=True))


def make_code(system: GpuSystem, pair: Int32) -> Code:
    """The program as the loop reads it."""
    program, graph = system.program, system.graph
    num_semaphores = program.semaphores.shape[1]
    is_read = np.isin(program.operand_role, (READ, READ_FLAGGED))
    operand_op = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    semaphore = program.operand_semaphore.astype(np.int64)
    semaphore = np.where(semaphore >= 0, semaphore + program.operand_rank * np.int64(num_semaphores), -1)
    kernel_task = np.full(program.num_kernels, -1, np.int32)
    carried = system.task_kernel >= 0
    kernel_task[system.task_kernel[carried]] = np.flatnonzero(carried)
    return Code(
        kind=_plain(program.op_kind, np.int8),
        amount=_plain(program.op_amount, np.int64),
        unroll=_plain(program.op_unroll, np.int32),
        operands=_plain(program.operand_ptr, np.int64),
        reads=np.bincount(operand_op[is_read], minlength=program.num_ops).astype(np.int32),
        role=_plain(program.operand_role, np.int8),
        address=_plain(program.operand_address, np.int64),
        step=_plain(program.operand_step, np.int32),
        pair=pair,
        semaphore=semaphore.astype(np.int32),
        workgroups=_plain(program.workgroup_ptr, np.int64),
        kernels=_plain(program.kernel_ptr, np.int64),
        kernel_gpu=_plain(program.kernel_rank, np.int32),
        kernel_waves=_plain(program.kernel_wavefronts, np.int32),
        kernel_task=kernel_task,
        group_kernel=np.repeat(np.arange(program.num_kernels, dtype=np.int32), np.diff(program.kernel_ptr)),
        cu_gpu=np.repeat(np.arange(system.num_gpus, dtype=np.int32), system.model.num_cus),
        task_kernel=_plain(system.task_kernel, np.int32),
        task_route=_plain(graph.route, np.int32),
        entry_ps=_entry_ps(system),
        route_ps=_plain(graph.route_latency_ps, np.int64),
        rank_bits=system.ranks.astype(np.int64),
    )


def _entry_ps(system: GpuSystem) -> Int64:
    """What passes of each route's latency before its first link; all of it where it has none."""
    from trine.engine.latency import entry_ps

    return _plain(entry_ps(system.graph), np.int64)


def _plain(array: np.ndarray, dtype: type) -> np.ndarray:
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def make_numbers(system: GpuSystem) -> Int64:
    """What the loop needs to know of the GPU model and of the numbering of entities."""
    model, layout, graph = system.model, system.layout, system.graph
    line, header = model.line_bytes, model.header_bytes
    num_cus = system.num_gpus * model.num_cus
    waves = places_of(system)
    l2 = model.l2
    sets = 0 if l2 is None else max(1, l2.capacity_bytes // (line * l2.ways * model.memory.num_channels))
    values: dict[int, int] = {
        S.N_GPUS: system.num_gpus, S.N_CUS: model.num_cus, S.N_CHANNELS: model.memory.num_channels,
        S.N_PORTS: model.ports.count, S.N_WAVES: waves, S.N_RESOURCES: layout.num_resources, S.N_LINE_BYTES: line,
        S.N_ISSUE_PS: model.issue_cycles * model.cycle_ps, S.N_MAX_PLACES: model.max_outstanding,
        S.N_UNROLL: model.unroll, S.N_POSTED: int(model.posted_stores), S.N_MEMORY_PS: model.memory.latency_ps,
        S.N_FIRST_CHANNEL: layout.first_channel, S.N_FIRST_SLICE: layout.first_slice,
        S.N_MEM_DATA_PS: transfer_ps(line, model.memory.bytes_per_s),
        S.N_MEM_CONTROL_PS: transfer_ps(header, model.memory.bytes_per_s),
        S.N_L2_DATA_PS: 0 if l2 is None else transfer_ps(line, l2.bytes_per_s),
        S.N_L2_CONTROL_PS: 0 if l2 is None else transfer_ps(header, l2.bytes_per_s),
        S.N_L2_PS: 0 if l2 is None else l2.latency_ps, S.N_SETS: sets, S.N_WAYS: 0 if l2 is None else l2.ways,
        S.N_MEM_INTERLEAVE: model.memory.interleave_bytes, S.N_PORT_INTERLEAVE: model.ports.interleave_bytes,
        S.N_HASHED: int(model.ports.choice == HASHED), S.N_FAIR: int(model.ports.arbitration == FAIR),
        S.N_LAUNCH_PS: model.launch_ps, S.N_DISPATCH_PS: model.dispatch_ps, S.N_BARRIER_PS: model.barrier_ps,
        S.N_POLL_PS: -1 if model.poll_ps is None else model.poll_ps, S.N_DMA_PS: model.dma_ps,
        S.N_PACKET_BYTES: model.packet_bytes, S.N_PACKET_HEADER: model.packet_header_bytes,
        S.N_CYCLE_PS: model.cycle_ps, S.N_REDUCE_PER_CYCLE: model.reduce_bytes_per_cycle,
        S.N_MAX_GROUPS: model.workgroups_per_cu, S.N_MAX_WAVES: min(waves, model.wavefronts_per_cu),
        S.N_TASKS: graph.num_tasks, S.N_KERNELS: system.program.num_kernels,
        S.N_FIRST_WAVE: num_cus, S.N_FIRST_DISPATCHER: num_cus * (1 + waves),
        S.N_FIRST_REQUEST: num_cus * (1 + waves) + system.num_gpus,
    }  # fmt: skip
    at = 0
    for first, kind in zip(
        (S.N_CU_CHANNEL, S.N_CU_PORT, S.N_CHANNEL_PORT, S.N_PORT_CHANNEL, S.N_CHANNEL_CU, S.N_PORT_CU),
        _PATHS,
        strict=True,
    ):
        values[first] = at
        at += layout.num_ends(kind[0]) * layout.num_ends(kind[1])
    numbers = np.zeros(S.NUM_NUMBERS, np.int64)
    for where, value in values.items():
        numbers[where] = value
    return numbers


def places_of(system: GpuSystem) -> int:
    """Wavefronts that a CU needs room for: those of the model, or fewer, where the program has not as many."""
    program, model = system.program, system.model
    total = np.zeros(system.num_gpus, np.int64)
    np.add.at(total, program.kernel_rank, np.diff(program.kernel_ptr) * program.kernel_wavefronts)
    return int(min(model.wavefronts_per_cu, max(1, total.max(initial=1))))


def requests_in_all(system: GpuSystem) -> int:
    """Requests that the program issues: an estimate of the work, for progress."""
    program = system.program
    operands = np.diff(program.operand_ptr)
    lines = np.where(program.op_kind < DMA, program.op_amount, 1)
    return int((lines * operands)[program.op_kind <= ACQUIRE + 1].sum())


def lane_columns(lanes: Lanes) -> tuple[Sequence[int], Sequence[int]]:
    """The link and the number of each lane, in the order of their resources."""
    return [link for link, _ in lanes.number], [lane for _, lane in lanes.number]
