"""The life of a wavefront: it executes its operations, its CU issues its requests, and it ends."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._scheduler import do, go_later, wake_group, wave_key
from trine.gpu._wheel import give_event
from trine.gpu.draws import MODULUS, MULTIPLIER
from trine.gpu.program import ACQUIRE, BARRIER, COMPUTE, DELAY, DMA, FENCE, NOP, REDUCE, RELEASE, WAITCNT

U = np.uint64


@inlined
def go_on(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Continue the wavefront on top of the stack."""
    entities, program, machine, counters = tables.entities, tables.program, tables.machine, tables.counters
    clock.num_to_do -= 1
    place = np.int64(machine.to_do[U(clock.num_to_do)])
    doing = _pass_operations(tables, clock, model, place)
    do(machine, counters, place, doing, clock.now)
    wave = machine.waves[U(place)]
    cu_number = np.int64(wave.cu)
    if doing == S.WAVE_QUEUED:
        _queue(machine, model, cu_number, place)
        clock.kick_cu = cu_number
    elif doing == S.WAVE_COMPUTING:
        cu = machine.cus[U(cu_number)]
        done_ps = max(clock.now, cu.alu_ps) + program.op_amount[U(wave.op)] * model.cycle_ps
        cu.alu_ps = done_ps
        key = wave_key(program, model, cu_number, place)
        give_event(entities, clock, model.first_wave + place, done_ps, key)
    elif doing == S.WAVE_PAUSED:
        pause_ps = model.fence_ps
        if program.op_kind[U(wave.op)] == DELAY:
            pause_ps = program.op_amount[U(wave.op)] * model.cycle_ps
        key = wave_key(program, model, cu_number, place)
        give_event(entities, clock, model.first_wave + place, clock.now + pause_ps, key)
    elif doing == S.WAVE_AT_BARRIER:
        _come_to_barrier(tables, clock, model, place)
    elif doing == S.WAVE_ENDED:
        _end(program, machine, counters, clock, place)


@inlined
def wave_event(machine: S.MachineTables, clock: Record, place: Int) -> None:
    """Continue a wavefront after the ALU, a fence or a delay, or a whole workgroup after a barrier."""
    wave = machine.waves[U(place)]
    if wave.doing == S.WAVE_AT_BARRIER:
        wake_group(machine, clock, np.int64(machine.groups[U(wave.group)].first_wave))
    else:
        go_later(machine, clock, place)


@inlined
def _pass_operations(tables: S.LoopTables, clock: Record, model: Record, place: Int) -> Int:
    """Skip operations that are done or belong to another wavefront; return the wavefront's new state."""
    program, machine, counters = tables.program, tables.machine, tables.counters
    wave, op_start = machine.waves[U(place)], counters.op_start
    while True:
        op = np.int64(wave.op)
        if op == wave.end:
            return S.WAVE_ENDED if wave.unfinished == 0 else S.WAVE_DRAINING
        kind = np.int64(program.op_kind[U(op)])
        is_mine = wave.index == 0 or kind not in (ACQUIRE, RELEASE, DMA)
        if is_mine:
            if op_start[U(op)] < 0:
                if op_start[U(op)] == S.LOOKED_FOR:
                    _begin_to_wait(clock)
                op_start[U(op)] = clock.now
            doing = _begin_or_wait(tables, model, place, op, kind)
            if doing >= 0:
                return doing
            counters.op_end[U(op)] = clock.now
        wave.op = op + 1
        wave.line = wave.index
        wave.operand = 0


@inlined
def _begin_to_wait(clock: Record) -> None:
    """Count a workgroup that begins to wait; when the last one does, stop at the end of this instant."""
    clock.not_waiting -= 1
    if clock.not_waiting == 0:
        clock.stop_ps = clock.now


@inlined
def _begin_or_wait(tables: S.LoopTables, model: Record, place: Int, op: Int, kind: Int) -> Int:
    """Return the wavefront's state in an operation; -1 if it is done with the operation.

    ``unroll`` limits the slots of data operations.
    """
    program, machine = tables.program, tables.machine
    wave = machine.waves[U(place)]
    issued = np.int64(wave.operand)
    if kind <= REDUCE:
        if wave.line >= program.op_amount[U(op)]:
            return -1
        unroll = np.int64(program.op_unroll[U(op)])
        if unroll == 0:
            unroll = model.unroll
        return S.WAVE_FULL if wave.slots >= unroll else S.WAVE_QUEUED
    if kind == RELEASE:
        return S.WAVE_QUEUED if issued < program.operand_ptr[U(op + 1)] - program.operand_ptr[U(op)] else -1
    if kind == WAITCNT:
        return S.WAVE_COUNTING if wave.unfinished > program.op_amount[U(op)] else -1
    if kind == FENCE and wave.unfinished > 0:
        return S.WAVE_COUNTING
    if issued > 0 or kind == NOP:
        return -1
    if kind in (FENCE, DELAY):
        wave.operand = 1
        return S.WAVE_PAUSED
    if kind in (BARRIER, COMPUTE):
        wave.operand = 1
        return S.WAVE_AT_BARRIER if kind == BARRIER else S.WAVE_COMPUTING
    return S.WAVE_QUEUED


@inlined
def _queue(machine: S.MachineTables, model: Record, cu_number: Int, place: Int) -> None:
    """Append a wavefront to its CU's queue; with random order, insert it at the front half of the time."""
    cu = machine.cus[U(cu_number)]
    machine.waves[U(place)].next_in_queue = -1
    if cu.first_wave < 0:
        cu.first_wave = place
    else:
        if model.is_drawn == 1:
            turn = machine.cu_turns[U(cu_number)]
            turn.drawn = turn.drawn * MULTIPLIER % MODULUS
            if turn.drawn > MODULUS // 2:
                machine.waves[U(place)].next_in_queue = cu.first_wave
                cu.first_wave = place
                return
        machine.waves[U(cu.last_wave)].next_in_queue = place
    cu.last_wave = place


@inlined
def _come_to_barrier(tables: S.LoopTables, clock: Record, model: Record, place: Int) -> None:
    """Count a wavefront at the barrier; the last one lets the workgroup continue after ``barrier_ps``."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    wave = machine.waves[U(place)]
    group = machine.groups[U(wave.group)]
    group.at_barrier += 1
    if group.at_barrier < wave.count:
        return
    group.at_barrier = 0
    first = np.int64(group.first_wave)
    if model.barrier_ps == 0:
        wake_group(machine, clock, first)
        return
    while machine.waves[U(first)].sibling >= 0:
        first = np.int64(machine.waves[U(first)].sibling)
    key = wave_key(program, model, np.int64(machine.waves[U(first)].cu), first)
    give_event(entities, clock, model.first_wave + first, clock.now + model.barrier_ps, key)


@inlined
def _end(program: S.ProgramTable, machine: S.MachineTables, counters: S.RunCounters, clock: Record, place: Int) -> None:
    """End a wavefront; the last one ends its workgroup, and the last workgroup ends the kernel."""
    wave = machine.waves[U(place)]
    group_number = np.int64(wave.group)
    group = machine.groups[U(group_number)]
    group.waves_left -= 1
    if group.waves_left > 0:
        return
    cu = machine.cus[U(wave.cu)]
    counters.group_end[U(group_number)] = clock.now
    cu.groups -= 1
    cu.waves -= wave.count
    sibling = np.int64(group.first_wave)
    while sibling >= 0:
        machine.waves[U(sibling)].doing = S.WAVE_GONE
        sibling = np.int64(machine.waves[U(sibling)].sibling)
    clock.kick_gpu = program.cu_gpu[U(wave.cu)]
    number = np.int64(program.group_kernel[U(group_number)])
    kernel = machine.kernels[U(number)]
    kernel.groups_left -= 1
    if kernel.groups_left == 0:
        clock.end_task = program.kernel_task[U(number)]
