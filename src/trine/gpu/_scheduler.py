"""Helpers of many events: event keys, allocation of requests, state changes of wavefronts."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined, kernel
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu.program import RELEASE, STORE
from trine.gpu.records import BARRIER, COMPUTING, ISSUE, MEMORY, SEMAPHORE, STATE_NAMES

U = np.uint64
_NUM_STATES = len(STATE_NAMES)
_MAX_SEQUENCE = (1 << (S.SHIFT_WAVE - S.SHIFT_SEQUENCE)) - 1


# Keys of events


@inlined
def wave_key(program: S.ProgramTable, model: Record, cu: Int, place: Int) -> Int:
    """Return the key of a wavefront's event."""
    slot_in_gpu = place - np.int64(program.cu_gpu[U(cu)]) * model.cus * model.waves
    return (np.int64(S.WAVE_CLASS) << S.SHIFT_CLASS) | (slot_in_gpu << S.SHIFT_WAVE)


@inlined
def wait_key(tables: S.LoopTables, model: Record, number: Int) -> Int:
    """Return the key of an event of a request's wavefront; events of one wavefront keep the order of issue."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    event = entities.events[U(number)]
    place = np.int64(event.wave)
    key = wave_key(program, model, np.int64(machine.waves[U(place)].cu), place)
    return key | (event.key & ((1 << S.SHIFT_WAVE) - 1))


@inlined
def own_key(program: S.ProgramTable, machine: S.MachineTables, model: Record, place: Int, class_of_event: Int) -> Int:
    """Return the key of the wavefront's next request at its own GPU, and advance its sequence number."""
    wave = machine.waves[U(place)]
    gpu = np.int64(program.cu_gpu[U(wave.cu)])
    sequence = np.int64(wave.sequence)
    wave.sequence = (sequence + 1) & _MAX_SEQUENCE
    slot_in_gpu = place - gpu * model.cus * model.waves
    key = (np.int64(class_of_event) << S.SHIFT_CLASS) | (slot_in_gpu << S.SHIFT_WAVE)
    return key | (sequence << S.SHIFT_SEQUENCE) | program.rank_bits[U(gpu)]


# Requests


@inlined
def take_request(entities: S.Entities, clock: Record) -> Int:
    """Return a free request; the loop ensures that enough are free."""
    clock.num_free_requests -= 1
    return np.int64(entities.free_requests[U(clock.num_free_requests)])


@inlined
def give_request(entities: S.Entities, clock: Record, number: Int) -> None:
    """Free a request."""
    entities.free_requests[U(clock.num_free_requests)] = number
    clock.num_free_requests += 1


@inlined
def channel_of(model: Record, address: Int) -> Int:
    """Return the memory channel of ``address``."""
    return (address // model.memory_interleave_bytes) % model.channels


@inlined
def choose_path(num_paths: Int, model: Record, address: Int) -> Int:
    """Choose the path, out of ``num_paths``, of the line at ``address`` (rule: ``Fabric`` in fabric.py)."""
    if num_paths == 1:
        return np.int64(0)
    block = address // model.port_interleave_bytes
    if model.is_hashed == 1:
        mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF
        block = ((mixed * 2654435761) & 0xFFFFFFFF) >> 1
    return block % num_paths


@inlined
def path_out(entities: S.Entities, paths: S.PathTable, number: Int) -> Int:
    """Return the path of a request over the fabric."""
    request = entities.requests[U(number)]
    return np.int64(paths.pairs[U(request.pair)].first_out) + request.choice


@inlined
def path_back(entities: S.Entities, paths: S.PathTable, model: Record, number: Int) -> Int:
    """Return the path of the answer: the request's choice if path counts match, else chosen by the address."""
    request = entities.requests[U(number)]
    pair = paths.pairs[U(request.pair)]
    first, num_paths = np.int64(pair.first_back), np.int64(pair.end_back) - pair.first_back
    if num_paths == np.int64(pair.end_out) - pair.first_out:
        return first + request.choice
    return first + choose_path(num_paths, model, request.address)


@inlined
def enter_fabric(entities: S.Entities, paths: S.PathTable, number: Int, segment: Int, path_number: Int) -> Int:
    """Begin a segment over the fabric; return the label of its first lane."""
    message, path = entities.messages[U(number)], paths.paths[U(path_number)]
    message.segment = segment
    message.position = path.first
    message.stage = S.STAGE_EGRESS
    return paths.lanes[U(path.first)].label


@inlined
def enter_gpu(entities: S.Entities, paths: S.PathTable, number: Int, segment: Int, noc_path: Int) -> bool:
    """Begin a segment inside a GPU; return whether its path has any hop."""
    message = entities.messages[U(number)]
    first, end = paths.noc_paths[U(noc_path)], paths.noc_paths[U(noc_path + 1)]
    message.segment = segment
    message.position = first
    message.stage = S.STAGE_HOP
    return bool(first < end)


@inlined
def serve(machine: S.MachineTables, number: Int, now: Int, service_ps: Int, control: Int) -> Int:
    """Serve a message (``control`` 1: without data) after all earlier ones; return the end of service."""
    resource = machine.resources[U(number)]
    end_ps = max(now, resource.free_ps) + service_ps
    resource.free_ps = end_ps
    resource.messages[U(control)] += 1
    resource.busy_ps += service_ps
    return end_ps


@inlined
def post(entities: S.Entities, program: S.ProgramTable, machine: S.MachineTables, clock: Record, number: Int) -> None:
    """Count a posted write or release; the last one of a line, or each one of a store or release, frees a slot."""
    request = entities.requests[U(number)]
    line = machine.lines[U(request.line)]
    line.unposted -= 1
    if program.op_kind[U(line.op)] in (STORE, RELEASE) or line.unposted == 0:
        clock.free_slot = request.wave


# Wavefronts


@inlined
def go_later(machine: S.MachineTables, clock: Record, place: Int) -> None:
    """Push a wavefront on the stack of those that continue, each in a separate turn; the last pushed goes first."""
    machine.to_do[U(clock.num_to_do)] = place
    clock.num_to_do += 1


@inlined
def wake_group(machine: S.MachineTables, clock: Record, place: Int) -> None:
    """Let all wavefronts of a workgroup continue, the first one first; ``place``: slot of the last one."""
    while place >= 0:
        go_later(machine, clock, place)
        place = np.int64(machine.waves[U(place)].sibling)


@inlined
def do(machine: S.MachineTables, counters: S.RunCounters, place: Int, doing: Int, now: Int) -> None:
    """Change the wavefront's state; the time since the last change counts for the old state."""
    wave, times = machine.waves[U(place)], machine.wave_times[U(place)]
    cu_number = np.int64(wave.cu)
    cu = machine.cus[U(cu_number)]
    old = wave.doing
    spent_ps = now - times.since_ps
    full_ps = cu.full_ps
    if cu.full_since_ps >= 0:
        full_ps += now - cu.full_since_ps
    state = np.int64(MEMORY)
    if old == S.WAVE_QUEUED:
        waited_ps = full_ps - times.full_ps
        counters.state[U(_NUM_STATES * cu_number + MEMORY)] += waited_ps
        spent_ps -= waited_ps
        state = np.int64(ISSUE)
    elif old == S.WAVE_ACQUIRING:
        state = np.int64(SEMAPHORE)
    elif old == S.WAVE_AT_BARRIER:
        state = np.int64(BARRIER)
    elif old == S.WAVE_COMPUTING:  # fences and delays count as memory
        state = np.int64(COMPUTING)
    counters.state[U(_NUM_STATES * cu_number + state)] += spent_ps
    wave.doing = doing
    times.since_ps = now
    times.full_ps = full_ps


@inlined
def queue_item(entities: S.Entities, machine: S.MachineTables, cu_number: Int, item: Int) -> None:
    """Append a line with writes to issue (2 * line), or a poll to repeat (2 * request + 1), to its CU's queue."""
    cu = machine.cus[U(cu_number)]
    last = np.int64(cu.last_item)
    if item & 1 == 1:
        entities.next[U(item >> 1)] = -1
    else:
        machine.lines[U(item >> 1)].next = -1
    if cu.first_item < 0:
        cu.first_item = item
    elif last & 1 == 1:
        entities.next[U(last >> 1)] = item
    else:
        machine.lines[U(last >> 1)].next = item
    cu.last_item = item


@kernel
def finish_states(machine: S.MachineTables, counters: S.RunCounters, clock: Record) -> Int:
    """Add each wavefront's time in its current state to the counters when a run stops."""
    for place in range(len(machine.waves)):
        doing = np.int64(machine.waves[U(place)].doing)
        if doing not in (S.WAVE_GONE, S.WAVE_ENDED):
            do(machine, counters, np.int64(place), doing, clock.now)
    return 0
