"""The life of a request: issued by a CU, through its GPU, over the fabric, to the memory of the other GPU, and back.

Lanes of the fabric are in _fabric.py, the state of memories in _memory.py, replayed peers in _peers.py.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._memory import DIRTY, HIT, half_of, look_up, monitor_arm, monitor_sleep, monitor_wake
from trine.gpu._peers import is_uncached, note, number_answer, stay_away
from trine.gpu._scheduler import (
    channel_of,
    choose_path,
    enter_fabric,
    enter_gpu,
    give_request,
    go_later,
    own_key,
    path_back,
    path_out,
    post,
    serve,
    take_request,
    wait_key,
)
from trine.gpu._wheel import give_event
from trine.gpu.program import READ_FLAGGED, REDUCE

U = np.uint64

#: Results of :func:`next_segment`: the request has ended; it stays at a switch while its copies continue.
HAS_LEFT, AT_SWITCH = -1, -2


# Issued


@inlined
def make_request(
    tables: S.LoopTables, clock: Record, model: Record, number: Int, kind: Int, place: Int, operand: Int, line: Int
) -> None:
    """Issue a request of ``kind`` for an operand of ``line`` (-1: no line)."""
    program, paths, machine = tables.program, tables.paths, tables.machine
    request = tables.entities.requests[U(number)]
    pair_number = np.int64(program.operand_pair[U(operand)])
    line_number = np.int64(0)
    if line >= 0:
        line_number = np.int64(machine.lines[U(line)].number)
    address = program.operand_address[U(operand)] + np.int64(program.operand_step[U(operand)]) * line_number
    semaphore = np.int64(program.operand_semaphore[U(operand)])
    amount = np.int64(1)
    if program.operand_role[U(operand)] >= READ_FLAGGED:
        semaphore += line_number
    elif kind >= S.IS_ACQUIRE:
        amount = program.op_amount[U(machine.waves[U(place)].op)]
    request.address = address
    request.kind = kind
    request.semaphore = semaphore
    request.amount = amount
    request.issued_ps = clock.now
    if pair_number >= 0:
        pair = paths.pairs[U(pair_number)]
        request.choice = choose_path(np.int64(pair.end_out) - pair.first_out, model, address)
    else:
        request.monitor = S.POLLS
    request.pair = pair_number
    request.wave = place
    request.line = line
    request.form = 0 if kind == S.IS_STORE else 1


@inlined
def poll_again(tables: S.LoopTables, clock: Record, number: Int) -> None:
    """Issue a poll again."""
    entities, program, machine, counters = tables.entities, tables.program, tables.machine, tables.counters
    request = entities.requests[U(number)]
    request.issued_ps = clock.now
    request.form = S.POLL + 1
    gpu = np.int64(program.cu_gpu[U(machine.waves[U(request.wave)].cu)])
    counters.counts[U(gpu)].polls += 1


@inlined
def set_out(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Put the request at the link out of its CU."""
    entities, program, paths, machine = tables.entities, tables.program, tables.paths, tables.machine
    request = entities.requests[U(number)]
    place = np.int64(request.wave)
    cu = np.int64(machine.waves[U(place)].cu)
    gpu = np.int64(program.cu_gpu[U(cu)])
    own_cu = cu - gpu * model.cus
    if request.pair < 0:
        noc_path = model.cu_channel + own_cu * model.channels + channel_of(model, request.address)
    else:
        path = paths.paths[U(path_out(entities, paths, number))]
        noc_path = model.cu_port + own_cu * model.ports + path.port_out
    enter_gpu(entities, paths, number, np.int64(S.SEGMENT_OUT), noc_path)
    request.gpu = gpu
    request.key = own_key(program, machine, model, place, np.int64(S.MESSAGE_CLASS))
    counts = tables.counters.counts[U(gpu)]
    counts.issued[U(request.kind)] += 1
    if request.kind == S.IS_LOAD and request.semaphore >= 0:
        counts.flagged += 1
    if request.pair >= 0:
        if model.has_answers == 1:
            number_answer(entities, tables.peers, number)
        if model.recorded_gpu == gpu:
            note(entities, tables.peers, clock, number, np.int64(S.SETS_OUT), np.int64(0))


# On its way


@inlined
def hop(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Serve a message at a link inside a GPU."""
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    request = entities.requests[U(number)]
    step = np.int64(paths.noc_hops[U(request.position)])
    link_number = (step >> 1) + request.gpu * model.resources
    link = machine.resources[U(link_number)]
    control = np.int64(request.form) & 1
    left_ps = serve(machine, link_number, clock.now, link.service_ps[U(control)], control)
    request.time_ps = left_ps + link.after_ps
    request.position += 1
    if step & 1 == 0:
        clock.new_event = number
    else:
        clock.next_segment = number


@inlined
def next_segment(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> Int:
    """Move a request at the end of a segment to the next non-empty segment; return its key's label.

    HAS_LEFT: it belonged to a replayed GPU, or was a member's copy, and has ended. AT_SWITCH: its copies continue.
    """
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    request = entities.requests[U(number)]
    segment = np.int64(request.segment)
    pair_number = np.int64(request.pair)
    if segment == S.SEGMENT_OUT and pair_number >= 0:
        return enter_fabric(entities, paths, number, np.int64(S.SEGMENT_FABRIC), path_out(entities, paths, number))
    label = np.int64(0)
    if segment < S.SEGMENT_FROM and pair_number >= 0:
        label = np.int64(paths.pairs[U(pair_number)].label)
    if segment == S.SEGMENT_FABRIC:
        gpu = np.int64(paths.pairs[U(pair_number)].gpu)
        if gpu >= 0:
            if gpu == model.recorded_gpu:
                note(entities, tables.peers, clock, number, np.int64(S.HAS_COME), label)
            port = np.int64(paths.paths[U(path_out(entities, paths, number))].port_in)
            request.gpu = gpu
            noc_path = model.port_channel + port * model.channels + channel_of(model, request.address)
            is_host = gpu >= model.first_host
            if not is_host and enter_gpu(entities, paths, number, np.int64(S.SEGMENT_THERE), noc_path):
                return label
        elif gpu <= S.TO_SWITCH:
            request.num_copies = 0
            clock.copy_for_members = number
            return np.int64(AT_SWITCH)
        else:
            stay_away(tables, clock, model, number)
            segment = np.int64(S.SEGMENT_BACK)
    if segment < S.SEGMENT_MEMORY:
        request.segment = S.SEGMENT_MEMORY
        request.stage = S.STAGE_MEMORY
        return label
    if segment == S.SEGMENT_MEMORY:
        if request.wave < 0 and request.multimem < 0 and request.gpu >= model.first_host:
            return np.int64(HAS_LEFT)
        poll = request.form & S.POLL
        request.form = poll if request.kind == S.IS_LOAD else poll | 1
        if pair_number >= 0 and request.gpu < model.first_host:
            port = np.int64(paths.paths[U(path_back(entities, paths, model, number))].port_out)
            noc_path = model.channel_port + channel_of(model, request.address) * model.ports + port
            if enter_gpu(entities, paths, number, np.int64(S.SEGMENT_FROM), noc_path):
                return label
        if pair_number >= 0:
            segment = np.int64(S.SEGMENT_FROM)
    if segment == S.SEGMENT_FROM:
        return enter_fabric(
            entities, paths, number, np.int64(S.SEGMENT_BACK), path_back(entities, paths, model, number)
        )
    if segment == S.SEGMENT_HOME:
        request.segment = S.SEGMENT_OVER
        request.stage = S.STAGE_ANSWER
        return np.int64(0)
    if request.wave < 0:
        if request.multimem >= 0:
            _answer_of_member(entities, paths, clock, model, number)
        return np.int64(HAS_LEFT)
    cu = np.int64(machine.waves[U(request.wave)].cu)
    gpu = np.int64(tables.program.cu_gpu[U(cu)])
    if segment == S.SEGMENT_BACK:
        if gpu == model.recorded_gpu:
            note(entities, tables.peers, clock, number, np.int64(S.IS_BACK), np.int64(0))
        port = np.int64(paths.paths[U(path_back(entities, paths, model, number))].port_in)
        first = model.port_cu + port * model.cus
        request.gpu = gpu
    else:
        first = model.channel_cu + channel_of(model, request.address) * model.cus
    enter_gpu(entities, paths, number, np.int64(S.SEGMENT_HOME), first + cu - gpu * model.cus)
    return np.int64(0)


@inlined
def copy_for_member(entities: S.Entities, program: S.ProgramTable, paths: S.PathTable, clock: Record) -> None:
    """Copy the multimem request ``clock.copy_for_members``, now at the switch, for its next member."""
    number = clock.copy_for_members
    request = entities.requests[U(number)]
    pair = paths.pairs[U(request.pair)]
    member = np.int64(pair.first_member) + np.int64(request.num_copies)
    request.num_copies += 1
    if member + 1 == pair.end_member:
        clock.copy_for_members = -1
    copy_number = take_request(entities, clock)
    copy = entities.requests[U(copy_number)]
    # every member's operand has the same layout of lines from its first address
    line = request.address - program.member_address[U(pair.first_member)]
    copy.address = program.member_address[U(member)] + line
    copy.kind = S.IS_ADD if pair.gpu == S.TO_SWITCH_ADDS else request.kind
    first = np.int64(program.member_semaphore[U(pair.first_member)])
    copy.semaphore = program.member_semaphore[U(member)] + request.semaphore - first  # one per flagged line
    copy.amount = request.amount
    copy.choice = request.choice  # of the member's spokes
    copy.pair = program.member_pair[U(member)]
    copy.wave = -1
    copy.multimem = number
    copy.form = request.form
    path = path_out(entities, paths, copy_number)
    label = enter_fabric(entities, paths, copy_number, np.int64(S.SEGMENT_FABRIC), path)
    copy.stage = S.STAGE_LANE
    give_event(entities, clock, copy_number, request.time_ps, (request.key & S.OWN_KEY) | (label << S.SHIFT_LABEL))


@inlined
def _answer_of_member(entities: S.Entities, paths: S.PathTable, clock: Record, model: Record, copy_number: Int) -> None:
    """Count a member's answer at the switch; after the last one the multimem request continues."""
    number = np.int64(entities.requests[U(copy_number)].multimem)
    request = entities.requests[U(number)]
    request.num_copies -= 1
    request.time_ps = max(request.time_ps, entities.requests[U(copy_number)].time_ps)
    if request.num_copies > 0:
        return
    request.form = 0 if request.kind == S.IS_LOAD else 1
    label = enter_fabric(entities, paths, number, np.int64(S.SEGMENT_BACK), path_back(entities, paths, model, number))
    request.stage = S.STAGE_LANE
    give_event(entities, clock, number, request.time_ps, (request.key & S.OWN_KEY) | (label << S.SHIFT_LABEL))


# At the memory


@inlined
def reach_memory(tables: S.LoopTables, clock: Record, model: Record, number: Int, stage: Int) -> None:
    """Serve a request at the L2 or the channel (STAGE_MEMORY), or at the channel behind the L2 (STAGE_CHANNEL).

    A host's memory takes no time here; the links to it include its time.
    """
    entities, machine = tables.entities, tables.machine
    request = entities.requests[U(number)]
    now, kind = clock.now, np.int64(request.kind)
    control = np.int64(1) if kind >= S.IS_ACQUIRE else np.int64(0)
    gpu, channel = np.int64(request.gpu), channel_of(model, request.address)
    channel_number = gpu * model.resources + model.first_channel + channel
    if gpu >= model.first_host:
        done_ps = now
    elif model.first_slice < 0 or stage == S.STAGE_CHANNEL or is_uncached(model, request.address):
        served_ps = serve(machine, channel_number, now, model.channel_ps[U(control)], control)
        done_ps = served_ps + model.memory_ps
    else:
        outcome = np.int64(HIT)
        if control == 0:
            outcome = look_up(tables, clock, model, gpu, channel, request.address, kind & 1)
        slice_number = channel_number - model.first_channel + model.first_slice
        done_ps = serve(machine, slice_number, now, model.slice_ps[U(control)], control) + model.l2_ps
        if model.far_ps > 0 and request.pair < 0 and (kind != S.IS_LOAD or request.semaphore >= 0):
            own_cu = np.int64(machine.waves[U(request.wave)].cu) % model.cus
            done_ps += model.far_ps * ((own_cu + half_of(request.address // model.line_bytes)) & 1)
        if outcome & DIRTY:
            memory_channel = machine.resources[U(channel_number)]
            memory_channel.free_ps = max(now, memory_channel.free_ps) + model.channel_ps[U(0)]
            memory_channel.busy_ps += model.channel_ps[U(0)]
        if outcome & HIT == 0 and kind <= S.IS_LOAD:
            request.stage = S.STAGE_CHANNEL
            give_event(entities, clock, number, done_ps, request.key)
            return
    request.time_ps = done_ps
    is_local_store = kind == S.IS_STORE and model.is_posted == 1 and request.pair < 0
    if request.semaphore >= 0 or is_local_store:
        request.stage = S.STAGE_DONE
        clock.new_event = number
    else:
        clock.next_segment = number


@inlined
def leave_memory(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Finish a request at the memory: change semaphores, let waiters check them, send the answer."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    request = entities.requests[U(number)]
    kind = request.kind
    if kind in (S.IS_STORE, S.IS_RELEASE):
        if request.semaphore >= 0:
            machine.semaphores[U(request.semaphore)].amount += request.amount
            clock.wake = request.semaphore
        if model.is_posted == 1 and request.pair < 0:
            post(entities, program, machine, clock, number)
    else:
        semaphore = machine.semaphores[U(request.semaphore)]
        others_wait = semaphore.first_waiting >= 0
        if not others_wait and semaphore.amount >= request.amount:
            semaphore.amount -= request.amount
            request.amount = 0
        elif model.poll_ps < 0:
            entities.next[U(number)] = -1
            if others_wait:
                entities.next[U(semaphore.last_waiting)] = number
            else:
                semaphore.first_waiting = number
            semaphore.last_waiting = number
            return
        elif model.monitors >= 0 and kind == S.IS_ACQUIRE:
            monitor_arm(tables, model, number)
    request.time_ps = clock.now
    clock.next_segment = number


@inlined
def wake(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Answer the first waiter of a changed semaphore if possible, else wake a sleeper on its line."""
    entities, machine = tables.entities, tables.machine
    semaphore = machine.semaphores[U(clock.wake)]
    number = np.int64(semaphore.first_waiting)
    if number < 0 or entities.requests[U(number)].amount > semaphore.amount:
        if not monitor_wake(tables, clock, model):
            clock.wake = -1
        return
    request = entities.requests[U(number)]
    semaphore.first_waiting = entities.next[U(number)]
    semaphore.amount -= request.amount
    request.amount = 0
    request.time_ps = clock.now
    clock.next_segment = number


# Back


@inlined
def answer(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> bool:
    """Handle an answer at the CU; return whether only polls have happened for long, and only polls are pending."""
    entities, program, machine, counters = tables.entities, tables.program, tables.machine, tables.counters
    request = entities.requests[U(number)]
    place = np.int64(request.wave)
    kind = request.kind
    if kind in (S.IS_LOAD, S.IS_ACQUIRE):
        if kind == S.IS_LOAD:
            gpu = np.int64(program.cu_gpu[U(machine.waves[U(place)].cu)])
            counters.counts[U(gpu)].load_ps += clock.now - request.issued_ps
        was_poll = request.form >= S.POLL
        if request.semaphore >= 0 and request.amount > 0:
            wait_mode = request.monitor if kind == S.IS_ACQUIRE else np.int64(S.POLLS)
            if wait_mode == S.ARMED:
                monitor_sleep(entities, clock, number)
                return False
            if not was_poll:
                clock.num_pollers += 1
                request.form |= S.POLL
            may_be_stuck = clock.idle > 64 * (clock.num_pollers + 2) and _only_polls(clock)
            request.stage = S.STAGE_RETRY
            if wait_mode == S.WOKEN:
                request.monitor = S.AGAIN
                again_ps = clock.now + model.wakeup_ps
            else:
                turn = machine.cu_turns[U(machine.waves[U(place)].cu)]
                turn.free_ps = max(clock.now, turn.free_ps) + model.poll_turn_ps
                again_ps = turn.free_ps + model.poll_ps
            key = wait_key(tables, model, number)
            give_event(entities, clock, number, again_ps, key)
            return may_be_stuck
        if was_poll:
            clock.num_pollers -= 1
        if kind == S.IS_LOAD:
            _read(tables, clock, model, number)
            return False
        clock.free_slot = place
        go_later(machine, clock, place)
    else:
        if model.is_posted == 0:
            post(entities, program, machine, clock, number)
        line = machine.lines[U(request.line)]
        line.unacknowledged -= 1
        if line.unacknowledged == 0:
            clock.finish_item = place
            clock.free_line = request.line
    give_request(entities, clock, number)
    return False


@inlined
def _read(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Count a returned read; the last one of its line starts the ALU for a reduction, else makes the line ready."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    request = entities.requests[U(number)]
    place = np.int64(request.wave)
    line = machine.lines[U(request.line)]
    remaining = line.reads - 1
    line.reads = remaining
    reads = np.int64(program.op_reads[U(line.op)])
    if remaining == 0 and program.op_kind[U(line.op)] == REDUCE and reads > 1:
        total_bytes = (reads - 1) * model.line_bytes
        cycles = (total_bytes + model.reduce_bytes_per_cycle - 1) // model.reduce_bytes_per_cycle
        cu = machine.cus[U(machine.waves[U(place)].cu)]
        at_ps = max(clock.now, cu.alu_ps) + cycles * model.cycle_ps
        cu.alu_ps = at_ps
        request.stage = S.STAGE_ALU
        give_event(entities, clock, number, at_ps, wait_key(tables, model, number))
        return
    if remaining > 0:
        clock.free_slot = place
    else:
        clock.ready_line = request.line
    give_request(entities, clock, number)


@inlined
def _only_polls(clock: Record) -> bool:
    """Return whether all pending events are polls (except the current one), or CUs that have polls to repeat."""
    events = clock.num_in_wheel + clock.num_open - clock.at_open + clock.num_queued + 1
    return bool(events - clock.num_cu_events + clock.num_queued_polls == clock.num_pollers)
