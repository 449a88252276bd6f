"""Starts and ends of graph tasks, kernels and workgroups."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.engine._heap import BY_PAYLOAD, push
from trine.engine._limits import MAX_PS
from trine.engine._state import COMPUTE, JOIN, TaskTables
from trine.engine._tasks import release, stream_ready
from trine.gpu import _state as S
from trine.gpu._packets import make_transfer
from trine.gpu._scheduler import take_request, wake_group
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def begin_ready(work: TaskTables, clock: Record) -> None:
    """Begin a ready task, or leave it to its stream."""
    clock.num_ready -= 1
    number = np.int64(work.ready[U(clock.num_ready)])
    task = work.tasks[U(number)]
    task.ready_ps = clock.now
    if task.kind != COMPUTE or stream_ready(work, number):
        clock.begin = number


@inlined
def begin(tables: S.LoopTables, clock: Record, model: Record) -> bool:
    """Begin a task; return whether it would end after MAX_PS."""
    number, now = clock.begin, clock.now
    clock.begin = -1
    task = tables.work.tasks[U(number)]
    task.start_ps = now
    if task.kind == JOIN:
        clock.end_task = number
    elif task.kind == COMPUTE:
        carries = tables.program.task_kernel[U(number)] >= 0
        delay_ps = model.launch_ps if carries else task.amount
        if delay_ps > MAX_PS - now:
            return True
        push(tables.wheel.heap, clock, now + delay_ps, 2 * number + 1 if carries else 2 * number, BY_PAYLOAD)
    else:
        flow = take_request(tables.entities, clock)
        make_transfer(tables, clock, model, flow, number, task.amount)
    return False


@inlined
def far_event(program: S.ProgramTable, machine: S.MachineTables, clock: Record, first_far: Int, payload: Int) -> None:
    """Handle a heap entry: a task's end (2 * task), a launch (2 * task + 1), or an entity with an event now."""
    if payload >= first_far:
        clock.new_event = payload - first_far
        return
    task = payload >> 1
    number = np.int64(program.task_kernel[U(task)])
    if payload & 1 == 0 or program.kernel_ptr[U(number + 1)] == program.kernel_ptr[U(number)]:
        clock.end_task = task
        return
    gpu_number = np.int64(program.kernel_gpu[U(number)])
    gpu = machine.gpus[U(gpu_number)]
    if gpu.first_kernel < 0:
        gpu.first_kernel = number
    else:
        machine.kernels[U(gpu.last_kernel)].next_in_queue = number
    gpu.last_kernel = number
    clock.kick_gpu = gpu_number


@inlined
def end_task(work: TaskTables, clock: Record) -> None:
    """End a task and release its successors."""
    number = clock.end_task
    clock.end_task = -1
    task = work.tasks[U(number)]
    task.end_ps = clock.now
    clock.num_done += 1
    release(work, clock, number)
    following = np.int64(task.next_in_stream)
    if following >= 0 and stream_ready(work, following):
        clock.begin = following


@inlined
def kick_gpu(entities: S.Entities, machine: S.MachineTables, clock: Record, model: Record) -> None:
    """Give the GPU's dispatcher an event if a kernel waits and no event is pending."""
    number = clock.kick_gpu
    clock.kick_gpu = -1
    gpu = machine.gpus[U(number)]
    if gpu.is_pending == 0 and gpu.first_kernel >= 0:
        gpu.is_pending = 1
        key = np.int64(S.DISPATCH_CLASS) << S.SHIFT_CLASS
        give_event(entities, clock, model.first_dispatcher + number, max(clock.now, gpu.ready_ps), key)


@inlined
def dispatch(tables: S.LoopTables, clock: Record, model: Record, gpu_number: Int) -> None:
    """Start the next workgroup of the first kernel in the GPU's queue on the next CU with room, if any."""
    program, machine, counters = tables.program, tables.machine, tables.counters
    gpu = machine.gpus[U(gpu_number)]
    gpu.is_pending = 0
    number = np.int64(gpu.first_kernel)
    if number < 0:
        return
    count = np.int64(program.kernel_waves[U(number)])
    cu_in_gpu = _find_room(machine, model, gpu_number, count)
    if cu_in_gpu < 0:
        return
    cu_number = gpu_number * model.cus + cu_in_gpu
    cu, kernel = machine.cus[U(cu_number)], machine.kernels[U(number)]
    group_number = program.kernel_ptr[U(number)] + kernel.next_group
    kernel.next_group += 1
    if group_number + 1 == program.kernel_ptr[U(number + 1)]:
        gpu.first_kernel = kernel.next_in_queue
    gpu.next_cu = cu_in_gpu + 1 if cu_in_gpu + 1 < model.cus else 0
    cu.groups += 1
    cu.waves += count
    counters.group_start[U(group_number)] = clock.now
    counters.group_cu[U(group_number)] = cu_in_gpu
    group = machine.groups[U(group_number)]
    group.waves_left = count
    group.first_wave = _start_waves(tables, clock, model, cu_number, group_number, count)
    wake_group(machine, clock, np.int64(group.first_wave))
    gpu.ready_ps = clock.now + model.dispatch_ps
    clock.kick_gpu = gpu_number


@inlined
def _find_room(machine: S.MachineTables, model: Record, gpu_number: Int, count: Int) -> Int:
    """Return the GPU's next CU with room for ``count`` wavefronts; -1 if all are full."""
    cu_in_gpu = np.int64(machine.gpus[U(gpu_number)].next_cu)
    for _ in range(model.cus):
        cu = machine.cus[U(gpu_number * model.cus + cu_in_gpu)]
        if cu.groups < model.max_groups and cu.waves + count <= model.waves:
            return cu_in_gpu
        cu_in_gpu = cu_in_gpu + 1 if cu_in_gpu + 1 < model.cus else np.int64(0)
    return np.int64(-1)


@inlined
def _start_waves(tables: S.LoopTables, clock: Record, model: Record, cu_number: Int, group: Int, count: Int) -> Int:
    """Assign slots to the wavefronts of a workgroup; return the slot of the last wavefront."""
    program, machine = tables.program, tables.machine
    previous = np.int64(-1)
    place = cu_number * model.waves
    for index in range(count):
        while machine.waves[U(place)].doing != S.WAVE_GONE:
            place += 1
        wave = machine.waves[U(place)]
        wave.op = program.workgroup_ptr[U(group)]
        wave.end = program.workgroup_ptr[U(group + 1)]
        wave.group = group
        wave.index = index
        wave.count = count
        wave.line = index
        wave.operand = 0
        wave.slots = 0
        wave.unfinished = 0
        wave.doing = S.WAVE_NEW
        wave.cu = cu_number
        wave.sibling = previous
        machine.wave_times[U(place)].since_ps = clock.now
        previous = place
        place += 1
    return previous
