"""The turns of a CU: it issues writes of ready lines, repeated polls, and reads of wavefronts."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._packets import make_flow
from trine.gpu._requests import make_request, poll_again, set_out
from trine.gpu._scheduler import do, go_later, take_request
from trine.gpu._wheel import give_event
from trine.gpu.program import ACQUIRE, DMA, RELEASE, STORE

U = np.uint64


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
