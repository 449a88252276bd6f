"""The load-store event loop, compiled. ``reference/`` defines its semantics (docs/design/gpu-model.md)."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined, kernel, make_by_reference
from trine.common._records import Record
from trine.engine._heap import BY_PAYLOAD, push
from trine.engine._limits import MAX_PS
from trine.gpu import _state as S
from trine.gpu._dispatch import begin, begin_ready, dispatch, end_task, far_event, kick_gpu
from trine.gpu._fabric import cross
from trine.gpu._issue import issue, kick_cu
from trine.gpu._packets import deliver, flow_event, inject
from trine.gpu._peers import arrive
from trine.gpu._requests import HAS_LEFT, answer, copy_for_member, hop, leave_memory, next_segment, reach_memory, wake
from trine.gpu._scheduler import give_request
from trine.gpu._settle import settle
from trine.gpu._waves import go_on, wave_event
from trine.gpu._wheel import FROM_HEAP, next_event, schedule, take_far

U = np.uint64
by_reference = make_by_reference()


@kernel
def advance(tables: S.LoopTables, clock: Record, model: Record, budget: Int) -> Int:
    """Run until no event remains, ``budget`` events are done, an array is full or it is time to stop; return why.

    All state is in the arguments, so the caller can grow arrays and call again. One turn does one thing: an immediate
    consequence of the last event, or else the next event. Each function has a single call site, because every call is
    compiled as a copy.

    Consequences are in registers: fields of ``clock`` that hold a number, or -1. Later turns handle these, one a turn,
    the first row first, before the next event ("at last": the handler has several things to do, one a turn)::

        register         holds                        set by                                    cleared by
        num_to_do        (stack) wavefronts           go_later                                  go_on
        kick_cu          CU that may have work        go_on, issue, settle                      kick_cu
        wake             changed semaphore            arrive, deliver, flow_event, leave_memory wake, at last
        inject           flow, from _number to _end   after_packet, flow_event                  inject, at last
        copy_for_members multimem request at a switch next_segment                              copy_for_member, at last
        deliver          pair with an arrived dma     flow_event                                deliver, at last
        begin            task                         begin_ready, end_task                     begin
        num_ready        (stack) tasks                end_task                                  begin_ready
        kick_gpu         GPU that may have work       dispatch, far_event, go_on                kick_gpu

    The end of the same turn handles these, the first row first::

        ready_line       line with complete reads     answer, advance (STAGE_ALU)               settle
        queue_poll       poll to repeat               advance (STAGE_RETRY)                     settle
        free_line        finished line                answer, cross, ready_line                 settle
        free_slot        wavefront to give a slot to  answer, cross, leave_memory, ready_line   settle
        finish_item      wavefront of a finished item answer, cross, flow_event, ready_line     settle
        end_task         ended task                   begin, far_event, flow_event, go_on       end_task
        next_segment     request at a segment's end   arrive, cross, hop, *_memory, wake        _schedule
        new_event        entity with a new event      all that schedule one                     _schedule
        lane_event       next message of a fair lane  cross                                     _schedule

    ``unrecorded``, a request without a recorded answer (next_segment, deliver), ends the run.
    """
    tables = by_reference(tables)
    work, program, paths, peers = tables.work, tables.program, tables.paths, tables.peers
    entities, wheel, machine = tables.entities, tables.wheel, tables.machine
    limit = clock.num_events + budget
    # In the heap: ends of tasks (2 * task), launches (+ 1), the next write of a replayed peer, then entities.
    first_far = 2 * model.tasks + 1
    follows = True  # the last event may have consequences; hops, most events, never do
    status = np.int64(S.FINISHED)
    while True:
        number = np.int64(-1)  # the request with the current event
        if follows:
            if clock.num_free_requests < S.MARGIN:
                status = np.int64(S.REQUESTS_FULL)
                break
            if clock.num_free_lines < S.MARGIN:
                status = np.int64(S.LINES_FULL)
                break
            if clock.num_to_do > 0:
                go_on(tables, clock, model)
            elif clock.kick_cu >= 0:
                kick_cu(tables, clock, model)
            elif clock.wake >= 0:
                wake(tables, clock, model)
            elif clock.inject >= 0:
                inject(tables, clock, model)
            elif clock.copy_for_members >= 0:
                copy_for_member(entities, program, paths, clock)
            elif clock.deliver >= 0:
                deliver(tables, clock, model)
            elif clock.begin >= 0:
                if begin(tables, clock, model):
                    status = np.int64(S.OVERFLOW)
                    break
            elif clock.num_ready > 0:
                begin_ready(work, clock)
            elif clock.kick_gpu >= 0:
                kick_gpu(entities, machine, clock, model)
            else:
                follows = False
                continue
        else:
            entity = next_event(entities, wheel, clock, limit)
            idle = clock.idle
            clock.idle = 0
            if entity >= model.first_request:
                number = entity
                if entities.events[U(number)].form >= S.POLL:
                    clock.idle = idle + 1
            else:
                follows = True
                if entity >= model.first_dispatcher:
                    dispatch(tables, clock, model, entity - model.first_dispatcher)
                elif entity >= model.first_wave:
                    wave_event(machine, clock, entity - model.first_wave)
                elif entity >= 0:
                    number = issue(tables, clock, model, entity, idle)
                elif entity == FROM_HEAP:
                    if wheel.heap[U(0)].time_ps > clock.stop_ps:
                        clock.idle = idle
                        status = np.int64(S.STOPPED)
                        break
                    payload = take_far(wheel, clock)
                    if payload == first_far - 1:
                        arrive(tables, clock, model)
                        if clock.next_write < len(peers.writes):
                            push(wheel.heap, clock, peers.writes[U(clock.next_write)].time_ps, payload, BY_PAYLOAD)
                    else:
                        if payload >= first_far:
                            clock.idle = idle  # only moves into the wheel: not an event
                        far_event(program, machine, clock, first_far, payload)
                else:
                    clock.idle = idle
                    status = FROM_HEAP - 1 - entity
                    break
        if number >= 0:
            stage = np.int64(entities.events[U(number)].stage)
            if stage == S.STAGE_HOP:
                hop(tables, clock, model, number)
            elif stage <= S.STAGE_LEFT:
                follows = True
                cross(tables, clock, model, number, stage)
            elif stage <= S.STAGE_CHANNEL:
                reach_memory(tables, clock, model, number, stage)
            elif stage == S.STAGE_DONE:
                follows = True
                leave_memory(tables, clock, model, number)
            elif stage == S.STAGE_ANSWER:
                follows = True
                if answer(tables, clock, model, number):
                    status = np.int64(S.STUCK)
            else:
                follows = True
                if stage == S.STAGE_ALU:
                    clock.ready_line = entities.requests[U(number)].line
                    give_request(entities, clock, number)
                elif stage == S.STAGE_RETRY:
                    clock.queue_poll = number
                else:
                    flow_event(tables, clock, model, number, stage)
        if follows:
            settle(entities, machine, clock, model)
            if clock.end_task >= 0:
                end_task(work, clock)
        if not _schedule(tables, clock, model, first_far):
            status = np.int64(S.OVERFLOW)
        if clock.num_log > clock.log_room:
            status = np.int64(S.LOG_FULL) if clock.unrecorded < 0 else np.int64(S.NO_ANSWER)
        if status != S.FINISHED:
            break
    return status


@inlined
def _schedule(tables: S.LoopTables, clock: Record, model: Record, first_far: Int) -> bool:
    """Queue the events of this turn; return False if one would be after MAX_PS."""
    entities = tables.entities
    scheduled = clock.new_event
    if clock.next_segment >= 0:
        scheduled = clock.next_segment
        clock.next_segment = -1
        label = next_segment(tables, clock, model, scheduled)
        if label < 0:
            if label == HAS_LEFT:
                give_request(entities, clock, scheduled)
            scheduled = clock.new_event  # a multimem request that continues, or -1
            if scheduled < 0:
                scheduled = clock.lane_event
                clock.lane_event = -1
        else:
            event = entities.events[U(scheduled)]
            event.key = (event.key & S.OWN_KEY) | (label << S.SHIFT_LABEL)
    is_in_time = True
    while scheduled >= 0:
        if entities.events[U(scheduled)].time_ps > MAX_PS:
            is_in_time = False
            break
        schedule(entities, tables.wheel, clock, first_far, scheduled)
        scheduled = clock.lane_event
        clock.lane_event = -1
    clock.new_event = -1
    return is_in_time
