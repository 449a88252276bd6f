"""The life of a request: issued by a CU, through its GPU, over the fabric, to the memory of the other GPU, and back.

Lanes of the fabric are in _fabric.py, the state of memories in _memory.py, replayed peers in _peers.py.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
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
from trine.gpu._state import (
    AGAIN,
    ARMED,
    HAS_COME,
    IS_ACQUIRE,
    IS_ADD,
    IS_BACK,
    IS_LOAD,
    IS_RELEASE,
    IS_STORE,
    MESSAGE_CLASS,
    OWN_KEY,
    POLL,
    POLLS,
    SEGMENT_BACK,
    SEGMENT_FABRIC,
    SEGMENT_FROM,
    SEGMENT_HOME,
    SEGMENT_MEMORY,
    SEGMENT_OUT,
    SEGMENT_OVER,
    SEGMENT_THERE,
    SETS_OUT,
    SHIFT_LABEL,
    STAGE_ALU,
    STAGE_ANSWER,
    STAGE_CHANNEL,
    STAGE_DONE,
    STAGE_LANE,
    STAGE_MEMORY,
    STAGE_RETRY,
    TO_SWITCH,
    TO_SWITCH_ADDS,
    WOKEN,
    Entities,
    LoopTables,
    MachineTables,
    PathTable,
    ProgramTable,
    RunCounters,
)
from trine.gpu._wheel import give_event
from trine.gpu.program import READ_FLAGGED, REDUCE

U = np.uint64

#: Results of :func:`next_segment`: the request has ended; it stays at a switch while its copies continue.
HAS_LEFT, AT_SWITCH = -1, -2


# Issued


@inlined
def make_request(
    tables: LoopTables, clock: Record, model: Record, number: Int, kind: Int, place: Int, operand: Int, line: Int
) -> None:
    """Issue a request of ``kind`` for an operand of ``line`` (-1: no line)."""
    program, paths, machine = tables.program, tables.paths, tables.machine
    event = tables.entities.events[U(number)]
    pair_number = np.int64(program.operand_pair[U(operand)])
    line_number = np.int64(0)
    if line >= 0:
        line_number = np.int64(machine.lines[U(line)].number)
    address = program.operand_address[U(operand)] + np.int64(program.operand_step[U(operand)]) * line_number
    semaphore = np.int64(program.operand_semaphore[U(operand)])
    amount = np.int64(1)
    if program.operand_role[U(operand)] >= READ_FLAGGED:
        semaphore += line_number
    elif kind >= IS_ACQUIRE:
        amount = program.op_amount[U(machine.waves[U(place)].op)]
    event.address = address
    event.kind = kind
    event.semaphore = semaphore
    event.amount = amount
    event.issued_ps = clock.now
    if pair_number >= 0:
        pair = paths.pairs[U(pair_number)]
        event.choice = choose_path(np.int64(pair.end_out) - pair.first_out, model, address)
    else:
        event.monitor = POLLS
    event.pair = pair_number
    event.wave = place
    event.line = line
    event.form = 0 if kind == IS_STORE else 1


@inlined
def poll_again(
    entities: Entities, program: ProgramTable, machine: MachineTables, counters: RunCounters, clock: Record, number: Int
) -> None:
    """Issue a poll again."""
    event = entities.events[U(number)]
    event.issued_ps = clock.now
    event.form = POLL + 1
    gpu = np.int64(program.cu_gpu[U(machine.waves[U(event.wave)].cu)])
    counters.counts[U(gpu)].polls += 1


@inlined
def set_out(tables: LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Put the request at the link out of its CU."""
    entities, program, paths, machine = tables.entities, tables.program, tables.paths, tables.machine
    event = entities.events[U(number)]
    place = np.int64(event.wave)
    cu = np.int64(machine.waves[U(place)].cu)
    gpu = np.int64(program.cu_gpu[U(cu)])
    own_cu = cu - gpu * model.cus
    if event.pair < 0:
        noc_path = model.cu_channel + own_cu * model.channels + channel_of(model, event.address)
    else:
        path = paths.paths[U(path_out(entities, paths, number))]
        noc_path = model.cu_port + own_cu * model.ports + path.port_out
    enter_gpu(entities, paths, number, np.int64(SEGMENT_OUT), noc_path)
    event.gpu = gpu
    event.key = own_key(program, machine, model, place, np.int64(MESSAGE_CLASS))
    counts = tables.counters.counts[U(gpu)]
    counts.issued[U(event.kind)] += 1
    if event.kind == IS_LOAD and event.semaphore >= 0:
        counts.flagged += 1
    if event.pair >= 0:
        if model.has_answers == 1:
            number_answer(entities, tables.peers, number)
        if model.recorded_gpu == gpu:
            note(entities, tables.peers, clock, number, np.int64(SETS_OUT), np.int64(0))


# On its way


@inlined
def hop(
    entities: Entities, paths: PathTable, machine: MachineTables, clock: Record, model: Record, number: Int
) -> None:
    """Serve a message at a link inside a GPU."""
    event = entities.events[U(number)]
    step = np.int64(paths.noc_hops[U(event.position)])
    link_number = (step >> 1) + event.gpu * model.resources
    link = machine.resources[U(link_number)]
    control = np.int64(event.form) & 1
    left_ps = serve(machine, link_number, clock.now, link.service_ps[U(control)], control)
    event.time_ps = left_ps + link.after_ps
    event.position += 1
    if step & 1 == 0:
        clock.scheduled = number
    else:
        clock.onward = number


@inlined
def next_segment(tables: LoopTables, clock: Record, model: Record, number: Int) -> Int:
    """Move a request at the end of a segment to the next non-empty segment; return its key's label.

    HAS_LEFT: it belonged to a replayed GPU, or was a member's copy, and has ended. AT_SWITCH: its copies continue.
    """
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    event = entities.events[U(number)]
    segment = np.int64(event.segment)
    pair_number = np.int64(event.pair)
    if segment == SEGMENT_OUT and pair_number >= 0:
        return enter_fabric(entities, paths, number, np.int64(SEGMENT_FABRIC), path_out(entities, paths, number))
    label = np.int64(0)
    if segment < SEGMENT_FROM and pair_number >= 0:
        label = np.int64(paths.pairs[U(pair_number)].label)
    if segment == SEGMENT_FABRIC:
        gpu = np.int64(paths.pairs[U(pair_number)].gpu)
        if gpu >= 0:
            if gpu == model.recorded_gpu:
                note(entities, tables.peers, clock, number, np.int64(HAS_COME), label)
            port = np.int64(paths.paths[U(path_out(entities, paths, number))].port_in)
            event.gpu = gpu
            noc_path = model.port_channel + port * model.channels + channel_of(model, event.address)
            is_host = gpu >= model.first_host
            if not is_host and enter_gpu(entities, paths, number, np.int64(SEGMENT_THERE), noc_path):
                return label
        elif gpu <= TO_SWITCH:
            event.position = 0
            clock.copied = number
            return np.int64(AT_SWITCH)
        else:
            stay_away(entities, paths, tables.peers, clock, model, number)
            segment = np.int64(SEGMENT_BACK)
    if segment < SEGMENT_MEMORY:
        event.segment = SEGMENT_MEMORY
        event.stage = STAGE_MEMORY
        return label
    if segment == SEGMENT_MEMORY:
        if event.wave < 0 and event.line < 0 and event.gpu >= model.first_host:
            return np.int64(HAS_LEFT)
        poll = event.form & POLL
        event.form = poll if event.kind == IS_LOAD else poll | 1
        if pair_number >= 0 and event.gpu < model.first_host:
            port = np.int64(paths.paths[U(path_back(entities, paths, model, number))].port_out)
            noc_path = model.channel_port + channel_of(model, event.address) * model.ports + port
            if enter_gpu(entities, paths, number, np.int64(SEGMENT_FROM), noc_path):
                return label
        if pair_number >= 0:
            segment = np.int64(SEGMENT_FROM)
    if segment == SEGMENT_FROM:
        return enter_fabric(entities, paths, number, np.int64(SEGMENT_BACK), path_back(entities, paths, model, number))
    if segment == SEGMENT_HOME:
        event.segment = SEGMENT_OVER
        event.stage = STAGE_ANSWER
        return np.int64(0)
    if event.wave < 0:
        if event.line >= 0:
            _answer_of_member(entities, paths, clock, model, number)
        return np.int64(HAS_LEFT)
    cu = np.int64(machine.waves[U(event.wave)].cu)
    gpu = np.int64(tables.program.cu_gpu[U(cu)])
    if segment == SEGMENT_BACK:
        if gpu == model.recorded_gpu:
            note(entities, tables.peers, clock, number, np.int64(IS_BACK), np.int64(0))
        port = np.int64(paths.paths[U(path_back(entities, paths, model, number))].port_in)
        first = model.port_cu + port * model.cus
        event.gpu = gpu
    else:
        first = model.channel_cu + channel_of(model, event.address) * model.cus
    enter_gpu(entities, paths, number, np.int64(SEGMENT_HOME), first + cu - gpu * model.cus)
    return np.int64(0)


@inlined
def copy_for_member(entities: Entities, program: ProgramTable, paths: PathTable, clock: Record) -> None:
    """Copy the multimem request ``clock.copied``, now at the switch, for its next member."""
    number = clock.copied
    event = entities.events[U(number)]
    pair = paths.pairs[U(event.pair)]
    member = np.int64(pair.first_member) + np.int64(event.position)
    event.position += 1
    if member + 1 == pair.end_member:
        clock.copied = -1
    copy_number = take_request(entities, clock)
    copy = entities.events[U(copy_number)]
    # every member's operand has the same layout of lines from its first address
    line = event.address - program.member_address[U(pair.first_member)]
    copy.address = program.member_address[U(member)] + line
    copy.kind = IS_ADD if pair.gpu == TO_SWITCH_ADDS else event.kind
    first = np.int64(program.member_semaphore[U(pair.first_member)])
    copy.semaphore = program.member_semaphore[U(member)] + event.semaphore - first  # each flagged line has a semaphore
    copy.amount = event.amount
    copy.choice = event.choice  # of the member's spokes
    copy.pair = program.member_pair[U(member)]
    copy.wave = -1
    copy.line = number
    copy.form = event.form
    path = path_out(entities, paths, copy_number)
    label = enter_fabric(entities, paths, copy_number, np.int64(SEGMENT_FABRIC), path)
    copy.stage = STAGE_LANE
    give_event(entities, clock, copy_number, event.time_ps, (event.key & OWN_KEY) | (label << SHIFT_LABEL))


@inlined
def _answer_of_member(entities: Entities, paths: PathTable, clock: Record, model: Record, copy_number: Int) -> None:
    """Count a member's answer at the switch; after the last one the multimem request continues."""
    number = np.int64(entities.events[U(copy_number)].line)
    event = entities.events[U(number)]
    event.position -= 1
    event.time_ps = max(event.time_ps, entities.events[U(copy_number)].time_ps)
    if event.position > 0:
        return
    event.form = 0 if event.kind == IS_LOAD else 1
    label = enter_fabric(entities, paths, number, np.int64(SEGMENT_BACK), path_back(entities, paths, model, number))
    event.stage = STAGE_LANE
    give_event(entities, clock, number, event.time_ps, (event.key & OWN_KEY) | (label << SHIFT_LABEL))


# At the memory


@inlined
def reach_memory(
    entities: Entities,
    machine: MachineTables,
    counters: RunCounters,
    clock: Record,
    model: Record,
    number: Int,
    stage: Int,
) -> None:
    """Serve a request at the L2 or the channel (STAGE_MEMORY), or at the channel behind the L2 (STAGE_CHANNEL).

    A host's memory takes no time here; the links to it include its time.
    """
    event = entities.events[U(number)]
    now, kind = clock.now, np.int64(event.kind)
    control = np.int64(1) if kind >= IS_ACQUIRE else np.int64(0)
    gpu, channel = np.int64(event.gpu), channel_of(model, event.address)
    channel_number = gpu * model.resources + model.first_channel + channel
    if gpu >= model.first_host:
        done_ps = now
    elif model.first_slice < 0 or stage == STAGE_CHANNEL or is_uncached(model, event.address):
        served_ps = serve(machine, channel_number, now, model.channel_ps[U(control)], control)
        done_ps = served_ps + model.memory_ps
    else:
        found = np.int64(HIT)
        if control == 0:
            found = look_up(machine, counters, clock, model, gpu, channel, event.address, kind & 1)
        slice_number = channel_number - model.first_channel + model.first_slice
        done_ps = serve(machine, slice_number, now, model.slice_ps[U(control)], control) + model.l2_ps
        if model.far_ps > 0 and event.pair < 0 and (kind != IS_LOAD or event.semaphore >= 0):
            own_cu = np.int64(machine.waves[U(event.wave)].cu) % model.cus
            done_ps += model.far_ps * ((own_cu + half_of(event.address // model.line_bytes)) & 1)
        if found & DIRTY:
            behind = machine.resources[U(channel_number)]
            behind.free_ps = max(now, behind.free_ps) + model.channel_ps[U(0)]
            behind.busy_ps += model.channel_ps[U(0)]
        if found & HIT == 0 and kind <= IS_LOAD:
            event.stage = STAGE_CHANNEL
            give_event(entities, clock, number, done_ps, event.key)
            return
    event.time_ps = done_ps
    is_local_store = kind == IS_STORE and model.is_posted == 1 and event.pair < 0
    if event.semaphore >= 0 or is_local_store:
        event.stage = STAGE_DONE
        clock.scheduled = number
    else:
        clock.onward = number


@inlined
def leave_memory(
    entities: Entities,
    program: ProgramTable,
    machine: MachineTables,
    counters: RunCounters,
    clock: Record,
    model: Record,
    number: Int,
) -> None:
    """Finish a request at the memory: change semaphores, let waiters check them, send the answer."""
    event = entities.events[U(number)]
    kind = event.kind
    if kind in (IS_STORE, IS_RELEASE):
        if event.semaphore >= 0:
            machine.semaphores[U(event.semaphore)].amount += event.amount
            clock.wake = event.semaphore
        if model.is_posted == 1 and event.pair < 0:
            post(entities, program, machine, clock, number)
    else:
        semaphore = machine.semaphores[U(event.semaphore)]
        others_wait = semaphore.first_waiting >= 0
        if not others_wait and semaphore.amount >= event.amount:
            semaphore.amount -= event.amount
            event.amount = 0
        elif model.poll_ps < 0:
            entities.next[U(number)] = -1
            if others_wait:
                entities.next[U(semaphore.last_waiting)] = number
            else:
                semaphore.first_waiting = number
            semaphore.last_waiting = number
            return
        elif model.monitors >= 0 and kind == IS_ACQUIRE:
            monitor_arm(entities, program, machine, counters, model, number)
    event.time_ps = clock.now
    clock.onward = number


@inlined
def wake(
    entities: Entities,
    program: ProgramTable,
    machine: MachineTables,
    counters: RunCounters,
    clock: Record,
    model: Record,
) -> None:
    """Answer the first waiter of a changed semaphore if possible, else wake a sleeper on its line."""
    semaphore = machine.semaphores[U(clock.wake)]
    number = np.int64(semaphore.first_waiting)
    if number < 0 or entities.events[U(number)].amount > semaphore.amount:
        if not monitor_wake(entities, program, machine, counters, clock, model):
            clock.wake = -1
        return
    event = entities.events[U(number)]
    semaphore.first_waiting = entities.next[U(number)]
    semaphore.amount -= event.amount
    event.amount = 0
    event.time_ps = clock.now
    clock.onward = number


# Back


@inlined
def answer(
    entities: Entities,
    program: ProgramTable,
    machine: MachineTables,
    counters: RunCounters,
    clock: Record,
    model: Record,
    number: Int,
) -> bool:
    """Handle an answer at the CU; return whether only polls have happened for long, and only polls are pending."""
    event = entities.events[U(number)]
    place = np.int64(event.wave)
    kind = event.kind
    if kind in (IS_LOAD, IS_ACQUIRE):
        if kind == IS_LOAD:
            gpu = np.int64(program.cu_gpu[U(machine.waves[U(place)].cu)])
            counters.counts[U(gpu)].load_ps += clock.now - event.issued_ps
        was_poll = event.form >= POLL
        if event.semaphore >= 0 and event.amount > 0:
            waits = event.monitor if kind == IS_ACQUIRE else np.int64(POLLS)
            if waits == ARMED:
                monitor_sleep(entities, clock, number)
                return False
            if not was_poll:
                clock.num_pollers += 1
                event.form |= POLL
            may_be_stuck = clock.idle > 64 * (clock.num_pollers + 2) and _only_polls(clock)
            event.stage = STAGE_RETRY
            if waits == WOKEN:
                event.monitor = AGAIN
                again_ps = clock.now + model.wakeup_ps
            else:
                turn = machine.cu_turns[U(machine.waves[U(place)].cu)]
                turn.free_ps = max(clock.now, turn.free_ps) + model.poll_turn_ps
                again_ps = turn.free_ps + model.poll_ps
            key = wait_key(entities, program, machine, model, number)
            give_event(entities, clock, number, again_ps, key)
            return may_be_stuck
        if was_poll:
            clock.num_pollers -= 1
        if kind == IS_LOAD:
            _read(entities, program, machine, clock, model, number)
            return False
        clock.freed = place
        go_later(machine, clock, place)
    else:
        if model.is_posted == 0:
            post(entities, program, machine, clock, number)
        line = machine.lines[U(event.line)]
        line.unacknowledged -= 1
        if line.unacknowledged == 0:
            clock.fewer = place
            clock.over_line = event.line
    give_request(entities, clock, number)
    return False


@inlined
def _read(
    entities: Entities, program: ProgramTable, machine: MachineTables, clock: Record, model: Record, number: Int
) -> None:
    """Count a returned read; the last one of its line starts the ALU for a reduction, else makes the line ready."""
    event = entities.events[U(number)]
    place = np.int64(event.wave)
    line = machine.lines[U(event.line)]
    left = line.reads - 1
    line.reads = left
    reads = np.int64(program.op_reads[U(line.op)])
    if left == 0 and program.op_kind[U(line.op)] == REDUCE and reads > 1:
        total_bytes = (reads - 1) * model.line_bytes
        cycles = (total_bytes + model.reduce_bytes_per_cycle - 1) // model.reduce_bytes_per_cycle
        cu = machine.cus[U(machine.waves[U(place)].cu)]
        at_ps = max(clock.now, cu.alu_ps) + cycles * model.cycle_ps
        cu.alu_ps = at_ps
        event.stage = STAGE_ALU
        give_event(entities, clock, number, at_ps, wait_key(entities, program, machine, model, number))
        return
    if left > 0:
        clock.freed = place
    else:
        clock.ready_line = event.line
    give_request(entities, clock, number)


@inlined
def _only_polls(clock: Record) -> bool:
    """Return whether all pending events are polls (except the current one), or CUs that have polls to repeat."""
    events = clock.num_in_wheel + clock.num_open - clock.at_open + clock.num_queued + 1
    return bool(events - clock.num_cu_events + clock.num_queued_polls == clock.num_pollers)
