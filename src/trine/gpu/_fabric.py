"""Messages in the fabric: lanes of links, and the arbitration of lanes out of a GPU."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._packets import after_packet
from trine.gpu._scheduler import post, serve
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def cross(tables: S.LoopTables, clock: Record, model: Record, number: Int, stage: Int) -> None:
    """Handle a message's arrival at a lane (STAGE_EGRESS: out of a GPU; STAGE_LANE), or its departure (STAGE_LEFT)."""
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    message = entities.messages[U(number)]
    row = np.int64(message.position)
    lane = paths.lanes[U(row)]
    if stage == S.STAGE_LEFT:
        left_ps = clock.now
        _leave(tables, clock, model, number)
    elif stage == S.STAGE_EGRESS and model.is_fair == 1 and machine.lane_queues[U(lane.resource)].is_busy == 1:
        _wait(entities, machine, clock, lane.resource, number)
        return
    else:
        control = np.int64(message.form) & 1
        left_ps = serve(machine, lane.resource, clock.now, _service_ps(entities, paths, number), control)
        if stage == S.STAGE_EGRESS and (model.is_fair == 1 or _tells(entities, paths, model, number)):
            if model.is_fair == 1:
                queue = machine.lane_queues[U(lane.resource)]
                queue.is_busy = 1
                queue.turn = 1 - control
            message.stage = S.STAGE_LEFT
            give_event(entities, clock, number, left_ps, message.key)
            return
    message.time_ps = left_ps + lane.after_ps
    if lane.is_last == 0:
        following = paths.lanes[U(row + 1)]
        message.position = row + 1
        message.stage = S.STAGE_EGRESS if model.is_fair == 1 and following.leaves == 1 else S.STAGE_LANE
        message.key = (message.key & S.OWN_KEY) | (following.label << S.SHIFT_LABEL)
        clock.new_event = number
    elif message.kind == S.IS_PACKET:
        message.stage = S.STAGE_ARRIVED
        if message.pair >= 0:  # at the peer, packets from nearby come first, as with messages
            message.key = (message.key & S.OWN_KEY) | (np.int64(paths.pairs[U(message.pair)].label) << S.SHIFT_LABEL)
        clock.new_event = number
    else:
        clock.next_segment = number


@inlined
def _service_ps(entities: S.Entities, paths: S.PathTable, number: Int) -> Int:
    """Return the service time of a message at its current lane; packets depend on their bytes."""
    message = entities.messages[U(number)]
    lane = paths.lanes[U(message.position)]
    form = np.int64(message.form)
    if form & S.PACKET_FORM == 0:
        return lane.service_ps[U(form & 1)]
    return (np.int64(message.amount) * 1_000_000_000_000 + lane.bytes_per_s - 1) // lane.bytes_per_s


@inlined
def _tells(entities: S.Entities, paths: S.PathTable, model: Record, number: Int) -> bool:
    """Return whether a message's departure from its GPU has effects: the next packet, or a posted store."""
    message = entities.messages[U(number)]
    is_posted = (
        model.is_posted == 1 and (message.kind == S.IS_STORE or message.kind == S.IS_RELEASE) and message.wave >= 0
    )
    if message.kind != S.IS_PACKET and not is_posted:
        return False
    return bool(message.segment == S.SEGMENT_FABRIC and paths.lanes[U(message.position)].is_first == 1)


@inlined
def _leave(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Handle the effects after the last byte of a message has entered a lane out of a GPU."""
    entities, program, paths, machine = tables.entities, tables.program, tables.paths, tables.machine
    if model.is_fair == 1:
        lane = paths.lanes[U(entities.messages[U(number)].position)]
        _serve_next(tables, clock, lane.resource)
    if _tells(entities, paths, model, number):
        if entities.messages[U(number)].kind == S.IS_PACKET:
            after_packet(tables, clock, model, number)
        else:
            post(entities, program, machine, clock, number)
            if paths.pairs[U(entities.messages[U(number)].pair)].gpu >= model.first_host:
                _forget(entities, machine, clock, number)


@inlined
def _forget(entities: S.Entities, machine: S.MachineTables, clock: Record, number: Int) -> None:
    """Detach a write to host memory from its wavefront: it gets no answer, so the wavefront is done with it."""
    request = entities.requests[U(number)]
    line = machine.lines[U(request.line)]
    line.unacknowledged -= 1
    if line.unacknowledged == 0:
        clock.finish_item = request.wave
        clock.free_line = request.line
    request.wave = -1
    request.multimem = -1


@inlined
def _wait(entities: S.Entities, machine: S.MachineTables, clock: Record, resource: Int, number: Int) -> None:
    """Queue a message at the lane, behind others of its kind."""
    message, queue = entities.messages[U(number)], machine.lane_queues[U(resource)]
    control = np.int64(message.form) & 1
    if message.form >= S.POLL:
        clock.num_queued_polls += 1
    entities.next[U(number)] = -1
    if queue.first[U(control)] < 0:
        queue.first[U(control)] = number
    else:
        entities.next[U(queue.last[U(control)])] = number
    queue.last[U(control)] = number


@inlined
def _serve_next(tables: S.LoopTables, clock: Record, resource: Int) -> None:
    """Serve the next message in the lane's queues, data and control in turns."""
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    queue = machine.lane_queues[U(resource)]
    control = np.int64(queue.turn)
    if queue.first[U(control)] < 0:
        control = 1 - control
    number = np.int64(queue.first[U(control)])
    if number < 0:
        queue.is_busy = 0
        return
    message = entities.messages[U(number)]
    if message.form >= S.POLL:
        clock.num_queued_polls -= 1
    queue.turn = 1 - control
    queue.first[U(control)] = entities.next[U(number)]
    message.stage = S.STAGE_LEFT
    message.time_ps = serve(machine, resource, clock.now, _service_ps(entities, paths, number), control)
    clock.lane_event = number
