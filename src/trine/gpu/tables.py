"""A system as the arrays that the compiled loop reads: the program and numbers (ways: way_table.py)."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine.arrays import Int32, Int64
from trine.gpu._state import Code
from trine.gpu.flags import flag_lines
from trine.gpu.model import FAIR, HASHED
from trine.gpu.outside import IDEAL, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE, DMA, READ, READ_FLAGGED
from trine.gpu.system import GpuSystem
from trine.gpu.way_table import PATHS
from trine.units import transfer_ps


def service_columns(system: GpuSystem) -> Int64:
    """int64[resources of a GPU, 3]: ps that messages with data and without take of a link, and the latency behind."""
    model, layout = system.model, system.layout
    rates = layout.bytes_per_s.tolist()
    sizes = (model.line_bytes + model.header_bytes, model.header_bytes)
    of_rate = {rate: [transfer_ps(size, rate) for size in sizes] for rate in set(rates)}
    return np.column_stack([np.array([of_rate[rate] for rate in rates], np.int64), layout.after_ps()])


def make_code(system: GpuSystem, pair: Int32) -> Code:
    """The program as the loop reads it."""
    program, graph = system.program, system.graph
    num_semaphores = program.semaphores.shape[1]
    is_read = np.isin(program.operand_role, (READ, READ_FLAGGED))
    operand_op = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    semaphore = program.operand_semaphore.astype(np.int64)
    semaphore = np.where(semaphore >= 0, semaphore + np.maximum(program.operand_rank, 0) * np.int64(num_semaphores), -1)
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
        flag_line=flag_lines(system),
    )


def _entry_ps(system: GpuSystem) -> Int64:
    """What passes of each route's latency before its first link; all of it where it has none."""
    from trine.engine.validate import software_latency_ps

    return _plain(software_latency_ps(system.graph), np.int64)


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
    values |= _numbers_of_replay(system)
    at = 0
    for first, kind in zip(
        (S.N_CU_CHANNEL, S.N_CU_PORT, S.N_CHANNEL_PORT, S.N_PORT_CHANNEL, S.N_CHANNEL_CU, S.N_PORT_CU),
        PATHS,
        strict=True,
    ):
        values[first] = at
        at += layout.num_ends(kind[0]) * layout.num_ends(kind[1])
    numbers = np.zeros(S.NUM_NUMBERS, np.int64)
    for where, value in values.items():
        numbers[where] = value
    return numbers


def _numbers_of_replay(system: GpuSystem) -> dict[int, int]:
    outside, monitor = system.outside, system.model.monitor
    uncached = [(buffer.base, buffer.base + buffer.size_bytes) for buffer in system.program.buffers if buffer.uncached]
    begin_at = S.AT_PORT
    if isinstance(outside, PeerWrites):
        begin_at = S.AT_MEMORY if outside.fabric == IDEAL else S.AT_LINK
    return {
        S.N_BEGIN_AT: begin_at,
        S.N_RECORD: system.record,
        S.N_ANSWERS: int(isinstance(outside, Arrivals)),
        S.N_UNCACHED_FIRST: min((first for first, _ in uncached), default=0),
        S.N_UNCACHED_END: max((end for _, end in uncached), default=0),
        S.N_MONITORS: -1 if monitor is None else monitor.capacity,
        S.N_WAKEUP_PS: 0 if monitor is None else monitor.wakeup_ps,
    }


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
