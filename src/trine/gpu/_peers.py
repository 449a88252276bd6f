"""Traffic of replayed peers: their incoming writes, the requests sent to them, and the log of arrivals.

docs/design/replay.md defines the semantics.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._scheduler import channel_of, choose_path, path_back, path_out, take_request

U = np.uint64


@inlined
def is_uncached(model: Record, address: Int) -> bool:
    """Return whether requests to ``address`` bypass the L2."""
    return bool(model.uncached_first <= address < model.uncached_end)


@inlined
def note(entities: S.Entities, peers: S.PeerWriteTable, clock: Record, number: Int, row_kind: Int, label: Int) -> None:
    """Add a log row: a request from another GPU arrives, a request to one departs, or its answer returns."""
    request = entities.requests[U(number)]
    row = peers.log[U(clock.num_log)]
    clock.num_log += 1
    row.what = row_kind
    row.time_ps = request.time_ps
    row.key = request.key & S.OWN_KEY
    row.label = label
    row.kind = request.kind
    row.address = request.address
    row.semaphore = request.semaphore
    row.amount = request.amount


@inlined
def arrive(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Apply the next entry of the write tracking table: change a semaphore, or start a request at ``peers_begin``."""
    entities, paths, machine, peers = tables.entities, tables.paths, tables.machine, tables.peers
    write = peers.writes[U(clock.next_write)]
    clock.next_write += 1
    if model.peers_begin == S.AT_MEMORY and write.kind == S.IS_RELEASE:
        machine.semaphores[U(write.semaphore)].amount += write.amount
        clock.wake = write.semaphore
        return
    number = take_request(entities, clock)
    request = entities.requests[U(number)]
    pair = paths.pairs[U(write.pair)]
    address = write.address
    request.address = address
    request.kind = write.kind
    request.semaphore = write.semaphore
    request.amount = write.amount
    request.choice = choose_path(np.int64(pair.end_out) - pair.first_out, model, address)
    request.pair = write.pair
    request.wave = -1
    request.multimem = -1
    request.form = 0 if write.kind == S.IS_STORE else 1
    request.gpu = 0
    request.key = write.key
    request.time_ps = write.time_ps
    if write.kind == S.IS_FLOW:  # like a local dma, but without a wavefront; ``multimem`` is its ``task``
        request.pair = -1
        request.form = 0
        request.stage = S.STAGE_FLOW
        clock.new_event = number
        if model.recorded_gpu == 0:
            note(entities, peers, clock, number, np.int64(S.HAS_COME), np.int64(pair.label))
    elif model.peers_begin == S.AT_MEMORY:
        request.segment = S.SEGMENT_LANDS
        request.stage = S.STAGE_MEMORY
        clock.new_event = number
    else:
        request.segment = S.SEGMENT_OUT if model.peers_begin == S.AT_LINK else S.SEGMENT_FABRIC
        clock.next_segment = number


@inlined
def number_answer(entities: S.Entities, peers: S.PeerWriteTable, number: Int) -> None:
    """Assign the next answer of the wavefront's slot to a request to a replayed peer; -1 if no answer remains."""
    answers = peers.answers_of[U(entities.events[U(number)].wave)]
    answer = answers.first + answers.issued
    answers.issued += 1
    entities.answer[U(number)] = np.int64(-1) if answer >= answers.end else answer


@inlined
def answer_of_put(entities: S.Entities, peers: S.PeerWriteTable, clock: Record, number: Int) -> Int:
    """Return the recorded time at which a wavefront learns that its dma to a replayed peer arrived; -1 if missing."""
    answer_number = np.int64(entities.answer[U(number)])
    if answer_number < 0 or peers.answers[U(answer_number)].time_ps < clock.now:
        entities.events[U(number)].time_ps = clock.now
        clock.unrecorded = number
        clock.log_room = -1  # makes the loop check ``unrecorded``
        return np.int64(-1)
    return np.int64(peers.answers[U(answer_number)].time_ps)


@inlined
def stay_away(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Set the time of a request to a replayed peer to the time at which its answer leaves the target's port."""
    entities, peers = tables.entities, tables.peers
    request = entities.requests[U(number)]
    amount = np.int64(0)
    time_ps = request.time_ps
    if model.has_answers == 1:
        answer_number = np.int64(entities.answer[U(number)])
        if answer_number < 0 or peers.answers[U(answer_number)].time_ps < time_ps:
            clock.unrecorded = number
            clock.log_room = -1  # makes the loop check ``unrecorded``
            return
        clock.idle = 0  # a poll whose answer is recorded is not a deadlock
        answer = peers.answers[U(answer_number)]
        time_ps = answer.time_ps
        if answer.is_refused == 1:
            amount = request.amount
    else:
        time_ps += _uncontended_ps(tables, model, number)
    request.amount = amount
    poll = request.form & S.POLL
    request.form = poll if request.kind == S.IS_LOAD else poll | 1
    request.time_ps = time_ps


@inlined
def _uncontended_ps(tables: S.LoopTables, model: Record, number: Int) -> Int:
    """Return the uncontended time from behind the first lane to the peer's memory and back."""
    entities, paths, peers = tables.entities, tables.paths, tables.peers
    request = entities.requests[U(number)]
    out, back = path_out(entities, paths, number), path_back(entities, paths, model, number)
    channel = channel_of(model, request.address)
    there = np.int64(paths.paths[U(out)].port_in) * model.channels + channel
    home = channel * model.ports + paths.paths[U(back)].port_out
    control_out = np.int64(0) if request.kind == S.IS_STORE else np.int64(1)
    control_back = np.int64(0) if request.kind == S.IS_LOAD else np.int64(1)
    memory = np.int64(1) if request.kind == S.IS_RELEASE else np.int64(0)
    if model.first_slice < 0 or is_uncached(model, request.address):
        memory += 2
    out_ps = peers.fabric_ps[U(out)].message_ps[U(control_out)] + peers.there_ps[U(there)].message_ps[U(control_out)]
    back_ps = peers.fabric_ps[U(back)].message_ps[U(control_back)] + peers.home_ps[U(home)].message_ps[U(control_back)]
    return out_ps + back_ps + peers.memory_ps[U(memory)]
