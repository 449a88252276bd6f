"""Messages in the fabric: lanes of links, and the arbitration of lanes out of a GPU."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu._packets import after_packet
from trine.gpu._scheduler import post, serve
from trine.gpu._state import (
    IS_PACKET,
    IS_RELEASE,
    IS_STORE,
    OWN_KEY,
    PACKET,
    POLL,
    SEGMENT_FABRIC,
    SHIFT_LABEL,
    STAGE_ARRIVED,
    STAGE_EGRESS,
    STAGE_LANE,
    STAGE_LEFT,
    Entities,
    MachineTables,
    PathTable,
    ProgramTable,
)
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def cross(
    entities: Entities,
    program: ProgramTable,
    paths: PathTable,
    machine: MachineTables,
    clock: Record,
    model: Record,
    number: Int,
    stage: Int,
) -> None:
    """Handle a message's arrival at a lane (STAGE_EGRESS: out of a GPU; STAGE_LANE), or its departure (STAGE_LEFT)."""
    event = entities.events[U(number)]
    row = np.int64(event.position)
    lane = paths.lanes[U(row)]
    if stage == STAGE_LEFT:
        left_ps = clock.now
        _leave(entities, program, paths, machine, clock, model, number)
    elif stage == STAGE_EGRESS and model.is_fair == 1 and machine.lane_queues[U(lane.resource)].is_busy == 1:
        _wait(entities, machine, clock, lane.resource, number)
        return
    else:
        control = np.int64(event.form) & 1
        left_ps = serve(machine, lane.resource, clock.now, _service_ps(entities, paths, number), control)
        if stage == STAGE_EGRESS and (model.is_fair == 1 or _tells(entities, paths, model, number)):
            if model.is_fair == 1:
                queue = machine.lane_queues[U(lane.resource)]
                queue.is_busy = 1
                queue.turn = 1 - control
            event.stage = STAGE_LEFT
            give_event(entities, clock, number, left_ps, event.key)
            return
    event.time_ps = left_ps + lane.after_ps
    if lane.is_last == 0:
        following = paths.lanes[U(row + 1)]
        event.position = row + 1
        event.stage = STAGE_EGRESS if model.is_fair == 1 and following.leaves == 1 else STAGE_LANE
        event.key = (event.key & OWN_KEY) | (following.label << SHIFT_LABEL)
        clock.scheduled = number
    elif event.kind == IS_PACKET:
        event.stage = STAGE_ARRIVED
        if event.pair >= 0:  # at the peer, packets from nearby come first, as with messages
            event.key = (event.key & OWN_KEY) | (np.int64(paths.pairs[U(event.pair)].label) << SHIFT_LABEL)
        clock.scheduled = number
    else:
        clock.onward = number


@inlined
def _service_ps(entities: Entities, paths: PathTable, number: Int) -> Int:
    """Return the service time of a message at its current lane; packets depend on their bytes."""
    event = entities.events[U(number)]
    lane = paths.lanes[U(event.position)]
    form = np.int64(event.form)
    if form & PACKET == 0:
        return lane.service_ps[U(form & 1)]
    return (np.int64(event.amount) * 1_000_000_000_000 + lane.bytes_per_s - 1) // lane.bytes_per_s


@inlined
def _tells(entities: Entities, paths: PathTable, model: Record, number: Int) -> bool:
    """Return whether a message's departure from its GPU has effects: the next packet, or a posted store."""
    event = entities.events[U(number)]
    is_posted = model.is_posted == 1 and (event.kind == IS_STORE or event.kind == IS_RELEASE) and event.wave >= 0
    if event.kind != IS_PACKET and not is_posted:
        return False
    return bool(event.segment == SEGMENT_FABRIC and paths.lanes[U(event.position)].is_first == 1)


@inlined
def _leave(
    entities: Entities,
    program: ProgramTable,
    paths: PathTable,
    machine: MachineTables,
    clock: Record,
    model: Record,
    number: Int,
) -> None:
    """Handle the effects after the last byte of a message has entered a lane out of a GPU."""
    if model.is_fair == 1:
        lane = paths.lanes[U(entities.events[U(number)].position)]
        _serve_next(entities, paths, machine, clock, lane.resource)
    if _tells(entities, paths, model, number):
        if entities.events[U(number)].kind == IS_PACKET:
            after_packet(entities, paths, machine, clock, model, number)
        else:
            post(entities, program, machine, clock, number)
            if paths.pairs[U(entities.events[U(number)].pair)].gpu >= model.first_host:
                _forget(entities, machine, clock, number)


@inlined
def _forget(entities: Entities, machine: MachineTables, clock: Record, number: Int) -> None:
    """Detach a write to host memory from its wavefront: it gets no answer, so the wavefront is done with it."""
    event = entities.events[U(number)]
    line = machine.lines[U(event.line)]
    line.unacknowledged -= 1
    if line.unacknowledged == 0:
        clock.fewer = event.wave
        clock.over_line = event.line
    event.wave = -1
    event.line = -1


@inlined
def _wait(entities: Entities, machine: MachineTables, clock: Record, resource: Int, number: Int) -> None:
    """Queue a message at the lane, behind others of its kind."""
    event, queue = entities.events[U(number)], machine.lane_queues[U(resource)]
    control = np.int64(event.form) & 1
    if event.form >= POLL:
        clock.num_queued_polls += 1
    entities.next[U(number)] = -1
    if queue.first[U(control)] < 0:
        queue.first[U(control)] = number
    else:
        entities.next[U(queue.last[U(control)])] = number
    queue.last[U(control)] = number


@inlined
def _serve_next(entities: Entities, paths: PathTable, machine: MachineTables, clock: Record, resource: Int) -> None:
    """Serve the next message in the lane's queues, data and control in turns."""
    queue = machine.lane_queues[U(resource)]
    control = np.int64(queue.turn)
    if queue.first[U(control)] < 0:
        control = 1 - control
    number = np.int64(queue.first[U(control)])
    if number < 0:
        queue.is_busy = 0
        return
    event = entities.events[U(number)]
    if event.form >= POLL:
        clock.num_queued_polls -= 1
    queue.turn = 1 - control
    queue.first[U(control)] = entities.next[U(number)]
    event.stage = STAGE_LEFT
    event.time_ps = serve(machine, resource, clock.now, _service_ps(entities, paths, number), control)
    clock.other = number
