"""What many events do: keys of events, requests taken and given back, wavefronts that go on or do something else."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined, kernel
from trine._records import Record
from trine.gpu._state import (
    SHIFT_CLASS,
    SHIFT_SEQUENCE,
    SHIFT_WAVE,
    STAGE_EGRESS,
    STAGE_HOP,
    WAVE_ACQUIRING,
    WAVE_AT_BARRIER,
    WAVE_CLASS,
    WAVE_COMPUTING,
    WAVE_ENDED,
    WAVE_GONE,
    WAVE_QUEUED,
    Entities,
    MachineTables,
    PathTable,
    ProgramTable,
    RunCounters,
)
from trine.gpu.program import RELEASE, STORE
from trine.gpu.records import BARRIER, COMPUTING, ISSUE, MEMORY, SEMAPHORE, STATE_NAMES

U = np.uint64
_NUM_STATES = len(STATE_NAMES)
_MAX_SEQUENCE = (1 << (SHIFT_WAVE - SHIFT_SEQUENCE)) - 1


# Keys of events


@inlined
def wave_key(program: ProgramTable, model: Record, cu: Int, place: Int) -> Int:
    """The key of a wavefront's event."""
    own = place - np.int64(program.cu_gpu[U(cu)]) * model.cus * model.waves
    return (np.int64(WAVE_CLASS) << SHIFT_CLASS) | (own << SHIFT_WAVE)


@inlined
def wait_key(entities: Entities, program: ProgramTable, machine: MachineTables, model: Record, number: Int) -> Int:
    """The key of an event of the wavefront whose request it is; those of one wavefront come as they were issued."""
    event = entities.events[U(number)]
    place = np.int64(event.wave)
    key = wave_key(program, model, np.int64(machine.waves[U(place)].cu), place)
    return key | (event.key & ((1 << SHIFT_WAVE) - 1))


@inlined
def own_key(program: ProgramTable, machine: MachineTables, model: Record, place: Int, class_of_event: Int) -> Int:
    """The key of the wavefront's next request at its own GPU."""
    wave = machine.waves[U(place)]
    gpu = np.int64(program.cu_gpu[U(wave.cu)])
    sequence = np.int64(wave.sequence)
    wave.sequence = (sequence + 1) & _MAX_SEQUENCE
    own = place - gpu * model.cus * model.waves
    key = (np.int64(class_of_event) << SHIFT_CLASS) | (own << SHIFT_WAVE)
    return key | (sequence << SHIFT_SEQUENCE) | program.rank_bits[U(gpu)]


# Requests


@inlined
def take_request(entities: Entities, clock: Record) -> Int:
    """A free request; the loop has made sure that there is one."""
    clock.num_free_requests -= 1
    return np.int64(entities.free_requests[U(clock.num_free_requests)])


@inlined
def give_request(entities: Entities, clock: Record, number: Int) -> None:
    """The request is free again."""
    entities.free_requests[U(clock.num_free_requests)] = number
    clock.num_free_requests += 1


@inlined
def channel_of(model: Record, address: Int) -> Int:
    """The channel of the memory that has ``address``."""
    return (address // model.memory_interleave_bytes) % model.channels


@inlined
def choose_path(num_paths: Int, model: Record, address: Int) -> Int:
    """Which of ``num_paths`` paths the line at ``address`` takes (``Fabric`` in fabric.py has the rule)."""
    if num_paths == 1:
        return np.int64(0)
    block = address // model.port_interleave_bytes
    if model.is_hashed == 1:
        mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF
        block = ((mixed * 2654435761) & 0xFFFFFFFF) >> 1
    return block % num_paths


@inlined
def path_out(entities: Entities, paths: PathTable, number: Int) -> Int:
    """The path of a request over the fabric."""
    event = entities.events[U(number)]
    return np.int64(paths.pairs[U(event.pair)].first_out) + event.choice


@inlined
def path_back(entities: Entities, paths: PathTable, model: Record, number: Int) -> Int:
    """The path of its answer: the same of as many, else by the address too."""
    event = entities.events[U(number)]
    pair = paths.pairs[U(event.pair)]
    first, num_paths = np.int64(pair.first_back), np.int64(pair.end_back) - pair.first_back
    if num_paths == np.int64(pair.end_out) - pair.first_out:
        return first + event.choice
    return first + choose_path(num_paths, model, event.address)


@inlined
def enter_fabric(entities: Entities, paths: PathTable, number: Int, segment: Int, path_number: Int) -> Int:
    """Begin a segment over the fabric; returns the label of its first lane."""
    event, path = entities.events[U(number)], paths.paths[U(path_number)]
    event.segment = segment
    event.position = path.first
    event.stage = STAGE_EGRESS
    return paths.lanes[U(path.first)].label


@inlined
def enter_gpu(entities: Entities, paths: PathTable, number: Int, segment: Int, noc_path: Int) -> bool:
    """Begin a segment inside a GPU, if there is anything on its path."""
    event = entities.events[U(number)]
    first, end = paths.noc_paths[U(noc_path)], paths.noc_paths[U(noc_path + 1)]
    event.segment = segment
    event.position = first
    event.stage = STAGE_HOP
    return bool(first < end)


@inlined
def serve(machine: MachineTables, number: Int, now: Int, service_ps: Int, control: Int) -> Int:
    """A resource serves a message (``control`` 1: without data) after all that came before; returns when it has."""
    resource = machine.resources[U(number)]
    end_ps = max(now, resource.free_ps) + service_ps
    resource.free_ps = end_ps
    resource.messages[U(control)] += 1
    resource.busy_ps += service_ps
    return end_ps


@inlined
def post(entities: Entities, program: ProgramTable, machine: MachineTables, clock: Record, number: Int) -> None:
    """A write, or a release, has been posted: with the last one of its line (of a store, with each) a slot is free."""
    event = entities.events[U(number)]
    line = machine.lines[U(event.line)]
    line.unposted -= 1
    if program.op_kind[U(line.op)] in (STORE, RELEASE) or line.unposted == 0:
        clock.freed = event.wave


# Wavefronts


@inlined
def go_later(machine: MachineTables, clock: Record, place: Int) -> None:
    """The wavefront goes on in a turn of its own, before what has been put there before."""
    machine.to_do[U(clock.num_to_do)] = place
    clock.num_to_do += 1


@inlined
def wake_group(machine: MachineTables, clock: Record, place: Int) -> None:
    """All wavefronts of a workgroup go on, the first one first; ``place``: of the last one."""
    while place >= 0:
        go_later(machine, clock, place)
        place = np.int64(machine.waves[U(place)].sibling)


@inlined
def do(machine: MachineTables, counters: RunCounters, place: Int, doing: Int, now: Int) -> None:
    """The wavefront does something else from now on; its time so far goes to what it did."""
    wave, times = machine.waves[U(place)], machine.wave_times[U(place)]
    cu_number = np.int64(wave.cu)
    cu = machine.cus[U(cu_number)]
    before = wave.doing
    spent_ps = now - times.since_ps
    full_ps = cu.full_ps
    if cu.full_since_ps >= 0:
        full_ps += now - cu.full_since_ps
    was = np.int64(MEMORY)
    if before == WAVE_QUEUED:
        waited_ps = full_ps - times.full_ps
        counters.state[U(_NUM_STATES * cu_number + MEMORY)] += waited_ps
        spent_ps -= waited_ps
        was = np.int64(ISSUE)
    elif before == WAVE_ACQUIRING:
        was = np.int64(SEMAPHORE)
    elif before == WAVE_AT_BARRIER:
        was = np.int64(BARRIER)
    elif before == WAVE_COMPUTING:  # of fences and delays: memory
        was = np.int64(COMPUTING)
    counters.state[U(_NUM_STATES * cu_number + was)] += spent_ps
    wave.doing = doing
    times.since_ps = now
    times.full_ps = full_ps


@inlined
def queue_item(entities: Entities, machine: MachineTables, cu_number: Int, item: Int) -> None:
    """A line with writes to issue (2 * line), or a poll to repeat (2 * request + 1), joins its CU's queue of those."""
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
def finish_states(machine: MachineTables, counters: RunCounters, clock: Record) -> Int:
    """Of a run that stops here: what wavefronts have been doing up to now goes to the records."""
    for place in range(len(machine.waves)):
        doing = np.int64(machine.waves[U(place)].doing)
        if doing not in (WAVE_GONE, WAVE_ENDED):
            do(machine, counters, np.int64(place), doing, clock.now)
    return 0
