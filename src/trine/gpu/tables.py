"""The arrays that the compiled loop reads from a system: the program and the numbers of the model."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine.common._records import RecordArray, new_records
from trine.common.arrays import Int32, Int64
from trine.common.units import transfer_ps
from trine.engine.validate import software_latency_ps
from trine.errors import InputError
from trine.gpu._state import ProgramTable
from trine.gpu.model import FAIR, HASHED
from trine.gpu.multimem import operand_heads
from trine.gpu.path_table import PATHS, OperandPairs
from trine.gpu.peers import IDEAL, PUT, Arrivals, PeerWrites
from trine.gpu.peers import RELEASE as ARRIVED_RELEASE
from trine.gpu.program import ACQUIRE, DATA_OPS, DMA, RELEASE, is_read
from trine.gpu.system import GpuSystem
from trine.gpu.validate import place_of


def service_columns(system: GpuSystem) -> Int64:
    """Return int64[resources of a GPU, 3]: a link's ps per message with and without data, and the latency behind."""
    model, layout = system.model, system.layout
    rates = layout.bytes_per_s.tolist()
    sizes = (model.line_bytes + model.header_bytes, model.header_bytes)
    of_rate = {}
    for rate in set(rates):
        of_rate[rate] = [transfer_ps(size, rate) for size in sizes]
    return np.column_stack([np.array([of_rate[rate] for rate in rates], np.int64), layout.after_ps()])


def make_program(system: GpuSystem, pairs: OperandPairs) -> ProgramTable:
    """Return the program in the loop's layout."""
    program, graph, heads = system.program, system.graph, pairs.heads
    num_semaphores = program.semaphores.shape[1]
    semaphore = program.operand_semaphore.astype(np.int64)
    semaphore = np.where(semaphore >= 0, semaphore + np.maximum(program.operand_rank, 0) * np.int64(num_semaphores), -1)
    kernel_task = np.full(program.num_kernels, -1, np.int32)
    carried = system.task_kernel >= 0
    kernel_task[system.task_kernel[carried]] = np.flatnonzero(carried)
    return ProgramTable(
        op_kind=_plain(program.op_kind, np.int8), op_amount=_plain(program.op_amount, np.int64),
        op_unroll=_plain(program.op_unroll, np.int32), operand_ptr=_plain(heads.ptr, np.int64),
        op_reads=heads.num_reads.astype(np.int32), operand_role=_plain(heads.role, np.int8),
        operand_address=_plain(program.operand_address[heads.rows], np.int64),
        operand_step=_plain(program.operand_step[heads.rows], np.int32), operand_pair=pairs.of_operand,
        operand_semaphore=semaphore[heads.rows].astype(np.int32), workgroup_ptr=_plain(program.workgroup_ptr, np.int64),
        kernel_ptr=_plain(program.kernel_ptr, np.int64), kernel_gpu=_plain(program.kernel_rank, np.int32),
        kernel_waves=_plain(program.kernel_wavefronts, np.int32), kernel_task=kernel_task,
        group_kernel=np.repeat(np.arange(program.num_kernels, dtype=np.int32), np.diff(program.kernel_ptr)),
        cu_gpu=np.repeat(np.arange(system.num_gpus, dtype=np.int32), system.model.num_cus),
        task_kernel=_plain(system.task_kernel, np.int32), task_route=_plain(graph.route, np.int32),
        software_latency_ps=_plain(software_latency_ps(graph), np.int64),
        route_latency_ps=_plain(graph.route_latency_ps, np.int64), rank_bits=system.ranks.astype(np.int64),
        flag_line=flag_lines(system), member_pair=pairs.of_member,
        member_address=program.operand_address[pairs.member_rows],
        member_semaphore=semaphore[pairs.member_rows].astype(np.int32),
    )  # fmt: skip


def _plain(array: np.ndarray, dtype: type) -> np.ndarray:
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def make_model(system: GpuSystem) -> RecordArray:
    """Return the numbers of the GPU model and of the entities that the loop needs: one record."""
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
    first_uncached = min((first for first, _ in uncached), default=0)
    last_uncached = max((end for _, end in uncached), default=0)
    monitors = -1 if monitor is None else monitor.capacity
    wakeup_ps = 0 if monitor is None else monitor.wakeup_ps
    return {
        "peers_begin": begin,
        "recorded_gpu": system.record,
        "has_answers": int(isinstance(outside, Arrivals)),
        "uncached_first": first_uncached,
        "uncached_end": last_uncached,
        "monitors": monitors,
        "wakeup_ps": wakeup_ps,
    }


def places_of(system: GpuSystem) -> int:
    """Return the wavefront slots per CU: the model's number, or fewer if the program has fewer wavefronts."""
    program, model = system.program, system.model
    total = np.zeros(system.num_gpus, np.int64)
    np.add.at(total, program.kernel_rank, np.diff(program.kernel_ptr) * program.kernel_wavefronts)
    return int(min(model.wavefronts_per_cu, max(1, total.max(initial=1))))


def requests_in_all(system: GpuSystem) -> int:
    """Estimate the number of requests that the program issues, for the progress display."""
    program = system.program
    operands = np.diff(operand_heads(program).ptr)
    lines = np.where(program.op_kind < DMA, program.op_amount, 1)
    return int((lines * operands)[program.op_kind <= ACQUIRE + 1].sum())


def flag_lines(system: GpuSystem) -> Int32:
    """Return int32[semaphores of all GPUs]: each semaphore's line, numbered from 0; -1: no line, or several.

    The acquires of a semaphore define its line, or the releases if nobody acquires it.

    Raises InputError: the GPU has a monitor, and the program stores data to a line that has a flag.
    """
    program, count = system.program, system.program.semaphores.shape[1]
    if system.model.monitor is None:
        return np.full(system.num_gpus * count, -1, np.int32)
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    semaphore = program.operand_semaphore + program.operand_rank.astype(np.int64) * count
    line = program.operand_address // system.model.line_bytes
    is_own = system.gpu_of[system.operand_peer] >= 0
    acquires = kind == ACQUIRE
    of_acquires = _line_of(semaphore[acquires], line[acquires], system.num_gpus * count)
    adds = np.isin(kind, (RELEASE, DMA)) & ~is_read(program)
    releases = adds & is_own & (program.operand_semaphore >= 0)
    released, released_lines = semaphore[releases], line[releases]
    if isinstance(system.outside, PeerWrites):
        is_flag = system.outside.semaphore >= 0
        released = np.append(released, system.outside.semaphore[is_flag])
        released_lines = np.append(released_lines, system.outside.address[is_flag] // system.model.line_bytes)
    elif system.outside is not None:
        is_flag = np.isin(system.outside.kind, (ARRIVED_RELEASE, PUT))
        released = np.append(released, system.outside.semaphore[is_flag])
        released_lines = np.append(released_lines, system.outside.address[is_flag] // system.model.line_bytes)
    of_releases = _line_of(released, released_lines, system.num_gpus * count)
    waited_for = np.zeros(system.num_gpus * count, np.bool_)
    waited_for[semaphore[acquires]] = True
    flag_line = np.where(waited_for, of_acquires, of_releases)
    gpu = np.repeat(np.arange(system.num_gpus), count)
    _refuse_data(system, np.unique(np.stack([gpu, flag_line])[:, flag_line >= 0], axis=1))
    numbered = np.full(len(flag_line), -1, np.int32)
    has_line = flag_line >= 0
    _, number = np.unique(np.stack([gpu[has_line], flag_line[has_line]]), axis=1, return_inverse=True)
    numbered[has_line] = number.reshape(-1)
    return numbered


def _line_of(semaphore: Int64, line: Int64, count: int) -> Int64:
    """Return int64[count]: the line of each semaphore; -1 for no line or several."""
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(lowest, semaphore, line)
    np.maximum.at(highest, semaphore, line)
    return np.where(lowest == highest, lowest, -1)


def _refuse_data(system: GpuSystem, flags: Int64) -> None:
    """Refuse data stores to lines with flags. flags: int64[2, n], GPUs and lines that have flags, sorted."""
    program, line_bytes = system.program, system.model.line_bytes
    op = program.operand_op
    lines = np.where(np.isin(program.op_kind[op], DATA_OPS), program.op_amount[op], 0)
    stores = ~is_read(program) & (lines > 0)
    stores &= system.gpu_of[system.operand_peer] >= 0
    first = program.operand_address
    last = first + (lines - 1) * program.operand_step
    for gpu in range(system.num_gpus):
        flag = flags[1, flags[0] == gpu]
        low = np.searchsorted(flag, np.minimum(first, last) // line_bytes)
        high = np.searchsorted(flag, np.maximum(first, last) // line_bytes, "right")
        for i in np.flatnonzero(stores & (program.operand_rank == gpu) & (high > low)).tolist():
            touched = (first[i] + np.arange(lines[i]) * program.operand_step[i]) // line_bytes
            hit = np.intersect1d(touched, flag)
            if len(hit):
                raise InputError(
                    f"GPU program {program.name!r}, {place_of(program, int(op[i]))}: stores data to the line at "
                    f"{hit[0] * line_bytes:#x}, which holds a semaphore that the monitor watches"
                )
