"""A system as the arrays that the compiled loop reads: the program and the numbers of the model."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine._records import RecordArray, new_records
from trine.arrays import Int64
from trine.engine.validate import software_latency_ps
from trine.gpu._state import ProgramTable
from trine.gpu.flags import flag_lines
from trine.gpu.model import FAIR, HASHED
from trine.gpu.multimem import operand_heads
from trine.gpu.path_table import PATHS, OperandPairs
from trine.gpu.peers import IDEAL, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE, DMA
from trine.gpu.system import GpuSystem
from trine.units import transfer_ps


def service_columns(system: GpuSystem) -> Int64:
    """int64[resources of a GPU, 3]: ps that messages with data and without take of a link, and the latency behind."""
    model, layout = system.model, system.layout
    rates = layout.bytes_per_s.tolist()
    sizes = (model.line_bytes + model.header_bytes, model.header_bytes)
    of_rate = {rate: [transfer_ps(size, rate) for size in sizes] for rate in set(rates)}
    return np.column_stack([np.array([of_rate[rate] for rate in rates], np.int64), layout.after_ps()])


def make_program(system: GpuSystem, pairs: OperandPairs) -> ProgramTable:
    """The program as the loop reads it."""
    program, graph, heads = system.program, system.graph, pairs.heads
    num_semaphores = program.semaphores.shape[1]
    semaphore = program.operand_semaphore.astype(np.int64)
    semaphore = np.where(semaphore >= 0, semaphore + np.maximum(program.operand_rank, 0) * np.int64(num_semaphores), -1)
    kernel_task = np.full(program.num_kernels, -1, np.int32)
    carried = system.task_kernel >= 0
    kernel_task[system.task_kernel[carried]] = np.flatnonzero(carried)
    return ProgramTable(
        op_kind=_plain(program.op_kind, np.int8),
        op_amount=_plain(program.op_amount, np.int64),
        op_unroll=_plain(program.op_unroll, np.int32),
        operand_ptr=_plain(heads.ptr, np.int64),
        op_reads=heads.num_reads.astype(np.int32),
        operand_role=_plain(heads.role, np.int8),
        operand_address=_plain(program.operand_address[heads.rows], np.int64),
        operand_step=_plain(program.operand_step[heads.rows], np.int32),
        operand_pair=pairs.of_operand,
        operand_semaphore=semaphore[heads.rows].astype(np.int32),
        workgroup_ptr=_plain(program.workgroup_ptr, np.int64),
        kernel_ptr=_plain(program.kernel_ptr, np.int64),
        kernel_gpu=_plain(program.kernel_rank, np.int32),
        kernel_waves=_plain(program.kernel_wavefronts, np.int32),
        kernel_task=kernel_task,
        group_kernel=np.repeat(np.arange(program.num_kernels, dtype=np.int32), np.diff(program.kernel_ptr)),
        cu_gpu=np.repeat(np.arange(system.num_gpus, dtype=np.int32), system.model.num_cus),
        task_kernel=_plain(system.task_kernel, np.int32),
        task_route=_plain(graph.route, np.int32),
        software_latency_ps=_plain(software_latency_ps(graph), np.int64),
        route_latency_ps=_plain(graph.route_latency_ps, np.int64),
        rank_bits=system.ranks.astype(np.int64),
        flag_line=flag_lines(system),
        member_pair=pairs.of_member,
        member_address=program.operand_address[pairs.member_rows],
        member_semaphore=semaphore[pairs.member_rows].astype(np.int32),
    )


def _plain(array: np.ndarray, dtype: type) -> np.ndarray:
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def make_model(system: GpuSystem) -> RecordArray:
    """What the loop needs to know of the GPU model and of the numbering of entities: one record."""
    model, layout, memory, program = system.model, system.layout, system.model.memory, system.program
    line, header = model.line_bytes, model.header_bytes
    num_cus, waves = system.num_gpus * model.num_cus, places_of(system)
    numbers = new_records(1, S.MODEL)
    values: dict[str, int | tuple[int, int]] = {
        "cus": model.num_cus, "channels": memory.num_channels, "ports": model.ports.count, "waves": waves,
        "first_host": system.num_gpus - program.num_hosts,
        "resources": layout.num_resources, "line_bytes": line, "issue_ps": model.issue_cycles * model.cycle_ps,
        "max_slots": model.max_outstanding, "unroll": model.unroll, "is_posted": int(model.posted_stores),
        "memory_ps": memory.latency_ps, "first_channel": layout.first_channel, "first_slice": layout.first_slice,
        "channel_ps": (transfer_ps(line, memory.bytes_per_s), transfer_ps(header, memory.bytes_per_s)),
        "memory_interleave_bytes": memory.interleave_bytes, "port_interleave_bytes": model.ports.interleave_bytes,
        "is_hashed": int(model.ports.choice == HASHED), "is_fair": int(model.ports.arbitration == FAIR),
        "launch_ps": model.launch_ps, "dispatch_ps": model.dispatch_ps, "barrier_ps": model.barrier_ps,
        "fence_ps": model.fence_ps,
        "poll_ps": -1 if model.poll_ps is None else model.poll_ps, "poll_turn_ps": model.poll_turn_ps,
        "is_drawn": int(model.issue_seed is not None), "dma_ps": model.dma_ps,
        "packet_bytes": model.packet_bytes, "packet_header_bytes": model.packet_header_bytes,
        "cycle_ps": model.cycle_ps, "reduce_bytes_per_cycle": model.reduce_bytes_per_cycle,
        "max_groups": model.workgroups_per_cu, "tasks": system.graph.num_tasks, "first_wave": num_cus,
        "first_dispatcher": num_cus * (1 + waves), "first_request": num_cus * (1 + waves) + system.num_gpus,
    }  # fmt: skip
    for field, value in {**values, **_l2_numbers(system), **_replay_numbers(system)}.items():
        numbers[field] = value
    first = 0
    for source, target in PATHS:
        numbers[f"{source}_{target}"] = first
        first += layout.num_ends(source) * layout.num_ends(target)
    return numbers


def _l2_numbers(system: GpuSystem) -> dict[str, int | tuple[int, int]]:
    model, l2 = system.model, system.model.l2
    if l2 is None:
        return {}
    line = model.line_bytes
    return {
        "slice_ps": (transfer_ps(line, l2.bytes_per_s), transfer_ps(model.header_bytes, l2.bytes_per_s)),
        "l2_ps": l2.latency_ps,
        "far_ps": l2.far_ps,
        "sets": max(1, l2.capacity_bytes // (line * l2.ways * model.memory.num_channels)),
        "ways": l2.ways,
    }


def _replay_numbers(system: GpuSystem) -> dict[str, int | tuple[int, int]]:
    outside, monitor = system.outside, system.model.monitor
    uncached = [(buffer.base, buffer.base + buffer.size_bytes) for buffer in system.program.buffers if buffer.uncached]
    begin = S.AT_PORT
    if isinstance(outside, PeerWrites):
        begin = S.AT_MEMORY if outside.fabric == IDEAL else S.AT_LINK
    return {
        "peers_begin": begin,
        "recorded_gpu": system.record,
        "has_answers": int(isinstance(outside, Arrivals)),
        "uncached_first": min((first for first, _ in uncached), default=0),
        "uncached_end": max((end for _, end in uncached), default=0),
        "monitors": -1 if monitor is None else monitor.capacity,
        "wakeup_ps": 0 if monitor is None else monitor.wakeup_ps,
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
    operands = np.diff(operand_heads(program).ptr)
    lines = np.where(program.op_kind < DMA, program.op_amount, 1)
    return int((lines * operands)[program.op_kind <= ACQUIRE + 1].sum())
