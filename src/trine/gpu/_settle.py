"""Consequences of an event for wavefronts and their CUs: freed slots and lines, writes that can go, and polls."""

from __future__ import annotations

import numpy as np

from trine.common._jit import inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._scheduler import go_later, queue_item

U = np.uint64


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
