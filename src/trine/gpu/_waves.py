"""The life of a wavefront: it executes its operations, its CU issues its requests, and it ends."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._packets import make_flow
from trine.gpu._requests import make_request, poll_again, set_out
from trine.gpu._scheduler import do, go_later, queue_item, take_request, wake_group, wave_key
from trine.gpu._wheel import give_event
from trine.gpu.draws import MODULUS, MULTIPLIER
from trine.gpu.program import ACQUIRE, BARRIER, COMPUTE, DELAY, DMA, FENCE, NOP, REDUCE, RELEASE, STORE, WAITCNT

U = np.uint64


# Progress of a wavefront


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


# A CU issues writes of ready lines, repeated polls, and reads of wavefronts in turns


@inlined
def kick_cu(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Give the CU an event if it may issue something and no event is pending."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    number = clock.kick_cu
    clock.kick_cu = -1
    cu = machine.cus[U(number)]
    may_begin = cu.first_wave >= 0 and cu.slots < model.max_slots
    if cu.is_pending == 0 and (may_begin or cu.first_item >= 0):
        cu.is_pending = 1
        clock.num_cu_events += 1
        cu_in_gpu = number - program.cu_gpu[U(number)] * model.cus
        key = (np.int64(S.CU_CLASS) << S.SHIFT_CLASS) | (cu_in_gpu << S.SHIFT_WAVE)
        give_event(entities, clock, number, max(clock.now, cu.ready_ps), key)


@inlined
def issue(tables: S.LoopTables, clock: Record, model: Record, cu_number: Int, idle: Int) -> Int:
    """Handle the event of a CU; return the request that it issues, now at the link out of the CU, or -1."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    cu = machine.cus[U(cu_number)]
    cu.is_pending = 0
    clock.num_cu_events -= 1
    cu.ready_ps = clock.now + model.issue_ps
    clock.kick_cu = cu_number
    item = np.int64(cu.first_item)
    place = np.int64(cu.first_wave)
    kind, operand, line = np.int64(-1), np.int64(0), np.int64(-1)
    number = np.int64(-1)
    if item >= 0 and item & 1 == 1:
        number = item >> 1
        cu.first_item = entities.next[U(number)]
        clock.idle = idle + 1
        clock.num_queued_polls -= 1
        poll_again(tables, clock, number)
    elif item >= 0:
        line = item >> 1
        place = np.int64(machine.lines[U(line)].wave)
        kind, operand = np.int64(S.IS_STORE), _next_write(program, machine, cu_number, line)
    elif place >= 0 and cu.slots < model.max_slots:
        wave = machine.waves[U(place)]
        cu.first_wave = wave.next_in_queue
        kind, operand, line = _next_of_wave(tables, clock, place)
        if kind == S.IS_FLOW:
            wave.unfinished += 1
            flow = take_request(entities, clock)
            make_flow(tables, clock, model, flow, place, operand)
            return number
        wave.slots += 1
        cu.slots += 1
        if cu.slots == model.max_slots:
            cu.full_since_ps = clock.now
    if kind >= 0:
        number = take_request(entities, clock)
        make_request(tables, clock, model, number, kind, place, operand, line)
        clock.num_issued += 1
    if number >= 0:
        set_out(tables, clock, model, number)
    return number


@inlined
def _next_write(program: S.ProgramTable, machine: S.MachineTables, cu_number: Int, line_number: Int) -> Int:
    """Return the operand of the next write of a line; after its last write the line leaves the queue."""
    line = machine.lines[U(line_number)]
    remaining = line.writes
    line.writes = remaining - 1
    if remaining == 1:
        machine.cus[U(cu_number)].first_item = line.next
    return program.operand_ptr[U(line.op + 1)] - remaining


@inlined
def _next_of_wave(tables: S.LoopTables, clock: Record, place: Int) -> tuple[Int, Int, Int]:
    """Return the wavefront's next request: kind, operand, line (-1: none)."""
    program, machine, counters = tables.program, tables.machine, tables.counters
    wave = machine.waves[U(place)]
    op = np.int64(wave.op)
    issued = np.int64(wave.operand)
    wave.operand = issued + 1
    kind_of_op = program.op_kind[U(op)]
    first, end = program.operand_ptr[U(op)], program.operand_ptr[U(op + 1)]
    if kind_of_op == ACQUIRE:
        do(machine, counters, place, np.int64(S.WAVE_ACQUIRING), clock.now)
        return np.int64(S.IS_ACQUIRE), first, np.int64(-1)
    go_later(machine, clock, place)
    if kind_of_op == DMA:
        return np.int64(S.IS_FLOW), end - 1, np.int64(-1)
    reads = np.int64(program.op_reads[U(op)])
    if issued == 0:
        _begin_line(machine, clock, place, op, reads, end - first)
    line = np.int64(wave.current_line)
    if kind_of_op == RELEASE:
        return np.int64(S.IS_RELEASE), first + issued, line
    kind = np.int64(S.IS_LOAD)
    num_issues = reads
    if kind_of_op == STORE:
        kind = np.int64(S.IS_STORE)
        num_issues = end - first
    if issued + 1 == num_issues:
        wave.operand = 0
        wave.line += wave.count
    return kind, first + issued, line


@inlined
def _begin_line(machine: S.MachineTables, clock: Record, place: Int, op: Int, reads: Int, operands: Int) -> None:
    """Begin the next line of the wavefront's operation."""
    clock.num_free_lines -= 1
    number = np.int64(machine.free_lines[U(clock.num_free_lines)])
    wave, line = machine.waves[U(place)], machine.lines[U(number)]
    line.wave = place
    line.op = op
    line.number = wave.line
    line.reads = reads
    line.writes = operands - reads
    line.unposted = operands - reads
    line.unacknowledged = operands - reads
    wave.current_line = number
    wave.unfinished += 1


# Consequences of an event for wavefronts and their CUs


@inlined
def settle(entities: S.Entities, machine: S.MachineTables, clock: Record, model: Record) -> None:
    """Do the remaining work of the turn and reset its clock fields."""
    if clock.ready_line >= 0:
        _write_or_end(entities, machine, clock)
        clock.ready_line = -1
    if clock.queue_poll >= 0:
        place = np.int64(entities.requests[U(clock.queue_poll)].wave)
        cu_number = np.int64(machine.waves[U(place)].cu)
        queue_item(entities, machine, cu_number, 2 * clock.queue_poll + 1)
        clock.num_queued_polls += 1
        clock.kick_cu = cu_number
        clock.queue_poll = -1
    if clock.free_line >= 0:
        machine.free_lines[U(clock.num_free_lines)] = clock.free_line
        clock.num_free_lines += 1
        clock.free_line = -1
    if clock.free_slot >= 0:
        _free_slot(machine, clock, model)
        clock.free_slot = -1
    if clock.finish_item >= 0:
        wave = machine.waves[U(clock.finish_item)]
        wave.unfinished -= 1
        if wave.doing in (S.WAVE_COUNTING, S.WAVE_DRAINING):
            go_later(machine, clock, clock.finish_item)
        clock.finish_item = -1


@inlined
def _write_or_end(entities: S.Entities, machine: S.MachineTables, clock: Record) -> None:
    """Queue the writes of a line whose reads are complete; a line without writes ends."""
    number = clock.ready_line
    line = machine.lines[U(number)]
    place = np.int64(line.wave)
    if line.writes == 0:
        clock.free_slot = place
        clock.finish_item = place
        clock.free_line = number
    else:
        cu_number = np.int64(machine.waves[U(place)].cu)
        queue_item(entities, machine, cu_number, 2 * number)
        clock.kick_cu = cu_number


@inlined
def _free_slot(machine: S.MachineTables, clock: Record, model: Record) -> None:
    """Return a slot to the wavefront ``freed`` and its CU."""
    wave = machine.waves[U(clock.free_slot)]
    cu = machine.cus[U(wave.cu)]
    wave.slots -= 1
    cu.slots -= 1
    if cu.slots == model.max_slots - 1:
        cu.full_ps += clock.now - cu.full_since_ps
        cu.full_since_ps = -1
    if wave.doing == S.WAVE_FULL:
        go_later(machine, clock, clock.free_slot)
    clock.kick_cu = wave.cu
