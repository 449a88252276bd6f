"""The life of a flow of packets: dmas of wavefronts (one to a peer after the other), transfers of the task graph."""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record
from trine.gpu import _state as S
from trine.gpu._peers import answer_of_put, note, number_answer
from trine.gpu._scheduler import enter_fabric, give_request, own_key, take_request, wait_key
from trine.gpu._wheel import give_event

U = np.uint64


# A flow begins


@inlined
def make_flow(tables: S.LoopTables, clock: Record, model: Record, number: Int, place: Int, operand: Int) -> None:
    """Create the flow of bytes that a wavefront hands to the copy engine, and schedule its start."""
    entities, program, machine = tables.entities, tables.program, tables.machine
    op = np.int64(machine.waves[U(place)].op)
    semaphore = np.int64(program.operand_semaphore[U(operand)])
    _describe(entities, model, number, program.op_amount[U(op)], np.int64(-1), semaphore)
    pair = np.int64(program.operand_pair[U(operand)])
    flow = entities.flows[U(number)]
    flow.pair = pair
    flow.wave = place
    flow.operand = operand
    begins_ps = clock.now + model.dma_ps
    gpu_number = np.int64(program.cu_gpu[U(machine.waves[U(place)].cu)])
    if pair >= 0:
        chain = machine.chains[U(pair)]
        begins_ps = clock.now + chain.initiation_ps
        if chain.interval_ps > 0:
            gpu = machine.gpus[U(gpu_number)]
            begins_ps = max(begins_ps, gpu.nic_free_ps)
            gpu.nic_free_ps = begins_ps + chain.interval_ps
        _join_chain(entities, machine, number, pair)
    key = own_key(program, machine, model, place, np.int64(S.DMA_CLASS))
    give_event(entities, clock, number, begins_ps, key)
    if pair >= 0 and model.has_answers == 1:
        number_answer(entities, tables.peers, number)
    if pair >= 0 and model.recorded_gpu == gpu_number:
        note(entities, tables.peers, clock, number, np.int64(S.SETS_OUT), np.int64(0))


@inlined
def make_transfer(tables: S.LoopTables, clock: Record, model: Record, number: Int, task: Int, size_bytes: Int) -> None:
    """Create the flow of a transfer of the task graph, and schedule its start."""
    entities, program, paths = tables.entities, tables.program, tables.paths
    route = np.int64(program.task_route[U(task)])
    _describe(entities, model, number, size_bytes, task, np.int64(-1))
    flow = entities.flows[U(number)]
    flow.first_path = paths.route_path[U(route)]
    flow.pair = -1
    flow.wave = -1
    key = (np.int64(S.TRANSFER_CLASS) << S.SHIFT_CLASS) | (task << S.SHIFT_SEQUENCE)
    latency_ps = program.software_latency_ps[U(route)] if size_bytes > 0 else program.route_latency_ps[U(route)]
    give_event(entities, clock, number, clock.now + latency_ps, key)


@inlined
def _describe(entities: S.Entities, model: Record, number: Int, size_bytes: Int, task: Int, semaphore: Int) -> None:
    flow = entities.flows[U(number)]
    packets = _count_packets(model, size_bytes)
    flow.total_bytes = size_bytes
    flow.not_left = packets
    flow.not_arrived = packets
    flow.kind = S.IS_FLOW
    flow.task = task
    flow.semaphore = semaphore
    flow.stage = S.STAGE_FLOW


@inlined
def _count_packets(model: Record, size_bytes: Int) -> Int:
    """Return the number of packets that carry these bytes, at least one."""
    return max(1, (size_bytes + model.packet_bytes - 1) // model.packet_bytes)


@inlined
def _join_chain(entities: S.Entities, machine: S.MachineTables, number: Int, pair: Int) -> None:
    """Append a dma to the chain of its peer, behind those handed over before."""
    chain = machine.chains[U(pair)]
    entities.flows[U(number)].next_in_chain = -1
    if chain.first < 0:
        chain.first = number
    else:
        entities.flows[U(chain.last)].next_in_chain = number
    chain.last = number
    if chain.entering < 0:
        chain.entering = number


@inlined
def flow_event(tables: S.LoopTables, clock: Record, model: Record, number: Int, stage: Int) -> None:
    """Handle a flow's start (STAGE_FLOW), a packet's arrival, or the wavefront's notice of the last (STAGE_KNOWN)."""
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    pair = np.int64(entities.events[U(number)].pair)
    flow = entities.flows[U(number)]  # unless a packet arrives
    if stage == S.STAGE_FLOW and pair >= 0:
        flow.stage = S.STAGE_SENDING
        if machine.chains[U(pair)].entering == number:
            _enter(tables, clock, model, number, pair)
        return
    if stage == S.STAGE_FLOW and flow.task >= 0:
        path = paths.paths[U(flow.first_path)]
        if flow.total_bytes > 0 and path.first < path.end:
            clock.inject, clock.inject_number, clock.inject_end = number, 0, 1
            return
        clock.end_task = flow.task
    elif stage == S.STAGE_ARRIVED:
        flow_number = np.int64(entities.packets[U(number)].flow)
        flow = entities.flows[U(flow_number)]
        flow.not_arrived -= 1
        if flow.not_arrived == 0 and pair < 0:
            clock.end_task = flow.task
            give_request(entities, clock, flow_number)
        elif flow.not_arrived == 0:
            flow.stage = S.STAGE_DELIVERED
            clock.deliver = pair
    else:
        clock.finish_item = flow.wave
        if stage == S.STAGE_FLOW and flow.semaphore >= 0:  # to its own GPU
            clock.wake = flow.semaphore
            machine.semaphores[U(flow.semaphore)].amount += 1
    give_request(entities, clock, number)


# Its packets


@inlined
def inject(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Send the next packet of a flow into its first link."""
    entities, program, paths, machine = tables.entities, tables.program, tables.paths, tables.machine
    counters = tables.counters
    flow_number, packet_number = clock.inject, clock.inject_number
    flow, number = entities.flows[U(flow_number)], take_request(entities, clock)
    size_bytes = min(flow.total_bytes - packet_number * model.packet_bytes, model.packet_bytes)
    packet = entities.packets[U(number)]
    pair_number, place = np.int64(flow.pair), np.int64(flow.wave)
    path = np.int64(flow.first_path)
    if pair_number >= 0:
        pair = paths.pairs[U(pair_number)]
        path = pair.first_out + packet_number % (np.int64(pair.end_out) - pair.first_out)
    packet.kind = S.IS_PACKET
    packet.flow = flow_number
    packet.number = packet_number
    packet.amount = size_bytes + model.packet_header_bytes
    packet.form = S.PACKET_FORM if size_bytes > 0 else S.PACKET_FORM + 1
    packet.pair = pair_number
    packet.wave = place
    if place >= 0:
        gpu = np.int64(program.cu_gpu[U(machine.waves[U(place)].cu)])
        counters.counts[U(gpu)].packets += 1
    label = enter_fabric(entities, paths, number, np.int64(S.SEGMENT_FABRIC), path)
    give_event(entities, clock, number, clock.now, flow.key | (label << S.SHIFT_LABEL))
    clock.inject_number = packet_number + 1
    if packet_number + 1 == clock.inject_end:
        clock.inject = -1


@inlined
def after_packet(tables: S.LoopTables, clock: Record, model: Record, number: Int) -> None:
    """Send the path's next packet after one has left its GPU; after the flow's last, start the peer's next flow."""
    entities, paths, machine = tables.entities, tables.paths, tables.machine
    packet = entities.packets[U(number)]
    flow_number, pair_number = np.int64(packet.flow), np.int64(packet.pair)
    flow = entities.flows[U(flow_number)]
    num_paths = np.int64(1)
    if pair_number >= 0:
        pair = paths.pairs[U(pair_number)]
        num_paths = np.int64(pair.end_out) - pair.first_out
    flow.not_left -= 1
    following_packet = packet.number + num_paths
    if following_packet < _count_packets(model, flow.total_bytes):
        clock.inject, clock.inject_number = flow_number, following_packet
        clock.inject_end = following_packet + 1
    elif pair_number >= 0 and flow.not_left == 0:
        following = np.int64(flow.next_in_chain)
        machine.chains[U(pair_number)].entering = following
        if following >= 0 and entities.flows[U(following)].stage == S.STAGE_SENDING:
            _enter(tables, clock, model, following, pair_number)


@inlined
def _enter(tables: S.LoopTables, clock: Record, model: Record, flow_number: Int, pair_number: Int) -> None:
    """Send the first packets of a flow, one per path."""
    entities, paths = tables.entities, tables.paths
    pair = paths.pairs[U(pair_number)]
    total_bytes = entities.flows[U(flow_number)].total_bytes
    clock.inject, clock.inject_number = flow_number, 0
    clock.inject_end = min(np.int64(pair.end_out) - pair.first_out, _count_packets(model, total_bytes))


@inlined
def deliver(tables: S.LoopTables, clock: Record, model: Record) -> None:
    """Complete the first dma to a peer if it has arrived: release its semaphore, and schedule the wavefront's notice.

    A dma to a replayed peer has left; the record has the time of the wavefront's notice.
    """
    entities, program, machine = tables.entities, tables.program, tables.machine
    pair_number = clock.deliver
    chain = machine.chains[U(pair_number)]
    number = np.int64(chain.first)
    if number < 0 or entities.flows[U(number)].stage != S.STAGE_DELIVERED:
        clock.deliver = -1
        return
    flow = entities.flows[U(number)]
    chain.first = flow.next_in_chain
    pair = tables.paths.pairs[U(pair_number)]
    known_ps = clock.now + pair.latency_ps
    if pair.gpu < 0:
        known_ps = answer_of_put(entities, tables.peers, clock, number)
        if known_ps < 0:
            return
    elif flow.semaphore >= 0:
        machine.semaphores[U(flow.semaphore)].amount += 1
        clock.wake = flow.semaphore
        if pair.gpu == model.recorded_gpu:
            request = entities.requests[U(number)]  # the log describes a dma as a request
            request.time_ps = clock.now
            request.address = program.operand_address[U(flow.operand)]
            request.amount = 1
            note(entities, tables.peers, clock, number, np.int64(S.HAS_COME), np.int64(pair.label))
    if model.recorded_gpu == np.int64(program.cu_gpu[U(machine.waves[U(flow.wave)].cu)]):
        flow.time_ps = known_ps
        note(entities, tables.peers, clock, number, np.int64(S.IS_BACK), np.int64(0))
    flow.stage = S.STAGE_KNOWN
    key = wait_key(tables, model, number)
    give_event(entities, clock, number, known_ps, key)
