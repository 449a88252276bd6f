"""State of the memories: the lines in the L2, and the wavefronts that sleep until a line is written.

Tags change in the order of message arrival (docs/design/gpu-model.md). Armed acquires form one list per line, linked
through ``next_armed`` (docs/design/replay.md, ways to wait).
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._scheduler import wait_key
from trine.gpu._wheel import give_event

U = np.uint64

#: Result of an L2 access, as a sum: 1 for a hit, 2 for a dirty line that is evicted.
HIT, DIRTY = 1, 2


@inlined
def look_up(
    tables: S.LoopTables, clock: Record, model: Record, gpu: Int, channel: Int, address: Int, stores: Int
) -> Int:
    """Make the line of ``address`` the most recent of its set; return HIT, DIRTY (it evicts a dirty line) or 0."""
    machine, counters = tables.machine, tables.counters
    number = address // model.line_bytes
    first_set = (gpu * model.channels + channel) * model.sets
    first = (first_set + (number // model.channels) % model.sets) * model.ways
    clock.tick += 1
    oldest = first
    for way in range(first, first + model.ways):
        line = machine.cache[U(way)]
        if line.stamp > 0 and line.tag == number:
            line.stamp = 2 * clock.tick + (line.stamp & 1 | stores)
            counters.counts[U(gpu)].hits += 1
            return HIT
        if line.stamp < machine.cache[U(oldest)].stamp:
            oldest = np.int64(way)
    victim = machine.cache[U(oldest)]
    was_dirty = victim.stamp & 1
    victim.tag = number
    victim.stamp = 2 * clock.tick + stores
    counters.counts[U(gpu)].misses += 1
    return DIRTY * was_dirty


@inlined
def half_of(line: Int) -> Int:
    """Return the home half of a line in the L2: the parity of its number's bits, which models address hashing."""
    for shift in (32, 16, 8, 4, 2, 1):
        line ^= line >> shift
    return line & 1


@inlined
def monitor_arm(tables: S.LoopTables, model: Record, number: Int) -> None:
    """Arm the monitor for a refused acquire if the table has a free entry."""
    entities, program, machine, counters = tables.entities, tables.program, tables.machine, tables.counters
    request = entities.requests[U(number)]
    gpu_number = np.int64(request.gpu)
    gpu = machine.gpus[U(gpu_number)]
    if request.monitor == S.AGAIN:
        counters.counts[U(gpu_number)].spurious += 1
    request.monitor = S.POLLS
    line = np.int64(program.flag_line[U(request.semaphore)])
    if line < 0:
        return
    if gpu.num_armed >= model.monitors:
        counters.counts[U(gpu_number)].monitor_full += 1
        return
    gpu.num_armed += 1
    request.monitor = S.ARMED
    request.next_armed = -1
    watchers = machine.watchers[U(line)]
    if watchers.first < 0:
        watchers.first = number
    else:
        entities.requests[U(watchers.last)].next_armed = number
    watchers.last = number


@inlined
def monitor_sleep(entities: S.Entities, clock: Record, number: Int) -> None:
    """Put an armed acquire to sleep when its answer is back; it waits until it is woken."""
    request = entities.requests[U(number)]
    if request.form >= S.POLL:
        clock.num_pollers -= 1
        request.form &= S.POLL - 1
    request.monitor = S.ASLEEP


@inlined
def monitor_wake(tables: S.LoopTables, clock: Record, model: Record) -> bool:
    """Wake the first armed acquire on the line of the semaphore ``clock.wake``; return False if no acquire is armed."""
    entities, program, machine, counters = tables.entities, tables.program, tables.machine, tables.counters
    if model.monitors < 0:
        return False
    line = np.int64(program.flag_line[U(clock.wake)])
    if line < 0 or machine.watchers[U(line)].first < 0:
        return False
    watchers = machine.watchers[U(line)]
    number = np.int64(watchers.first)
    request = entities.requests[U(number)]
    watchers.first = request.next_armed
    request.next_armed = -1
    gpu_number = np.int64(request.gpu)
    machine.gpus[U(gpu_number)].num_armed -= 1
    counters.counts[U(gpu_number)].wakeups += 1
    if request.monitor == S.ARMED:
        request.monitor = S.WOKEN
        return True
    request.monitor = S.AGAIN
    clock.num_pollers += 1
    request.form |= S.POLL
    request.stage = S.STAGE_RETRY
    key = wait_key(tables, model, number)
    give_event(entities, clock, number, clock.now + model.wakeup_ps, key)
    return True
