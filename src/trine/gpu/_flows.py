"""What moves as packets: dmas of wavefronts (one to a peer after the other), transfers of the task graph."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._acts import give_request, own_key, take_request, wait_key
from trine.gpu._legs import cross_fabric
from trine.gpu._state import (
    ADDRESS,
    AMOUNT,
    COLD,
    DELIVER,
    DMA_CLASS,
    ENDED,
    ENTITY_HALVES,
    ENTITY_WORDS,
    FEWER,
    FIRST_WAY,
    INJECT,
    INJECT_END,
    INJECT_NUMBER,
    KIND,
    KIND_FLOW,
    KIND_PACKET,
    L_FABRIC,
    LINE,
    N_DMA_PS,
    N_FIRST_REQUEST,
    N_PACKET_BYTES,
    N_PACKET_HEADER,
    N_PACKETS,
    NOT_ARRIVED,
    NOT_LEFT,
    NOW,
    NUM_COUNTS,
    NUMBER,
    OWN_KEY,
    PACKET,
    PAIR,
    S_ARRIVED,
    S_DELIVERED,
    S_FLOW,
    S_KNOWN,
    S_SENDING,
    SEMAPHORE,
    SHIFT_CLASS,
    SHIFT_LABEL,
    SHIFT_SEQ,
    SIZE,
    STAGE,
    TASK,
    TOTAL_BYTES,
    TRANSFER_CLASS,
    W_CU,
    W_OP,
    WAKE,
    WAVE,
    WAVE_HALVES,
    WAY_HALVES,
    WAY_OUT,
    Y_END,
    Y_FIRST,
    Code,
    Entities,
    Machine,
    Seen,
    Ways,
)
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def make_flow(e: Entities, c: Code, m: Machine, n: Int64, k: Int64, flow: Int, place: Int, operand: Int) -> None:
    """A wavefront hands bytes to the copy engine."""
    op = np.int64(m.wave[U(WAVE_HALVES * place + W_OP)])
    _describe(e, k, flow, c.amount[U(op)], np.int64(-1), np.int64(c.semaphore[U(operand)]))
    pair = np.int64(c.pair[U(operand)])
    e.half[U(ENTITY_HALVES * flow + PAIR)] = pair
    e.half[U(ENTITY_HALVES * flow + WAVE)] = place
    if pair >= 0:
        _chain(e, m, flow, pair)
    key = own_key(c, m, k, place, np.int64(DMA_CLASS))
    e.word[U(ENTITY_WORDS * flow + OWN_KEY)] = key
    give_event(e.word, n, flow, n[NOW] + k[N_DMA_PS], key)


@inlined
def make_transfer(e: Entities, c: Code, w: Ways, n: Int64, k: Int64, flow: Int, task: Int, size_bytes: Int) -> None:
    """A transfer of the task graph begins."""
    route = np.int64(c.task_route[U(task)])
    _describe(e, k, flow, size_bytes, task, np.int64(-1))
    e.cold[U(COLD * (flow - k[N_FIRST_REQUEST]) + FIRST_WAY)] = w.route_way[U(route)]
    e.half[U(ENTITY_HALVES * flow + PAIR)] = -1
    e.half[U(ENTITY_HALVES * flow + WAVE)] = -1
    key = (np.int64(TRANSFER_CLASS) << SHIFT_CLASS) | (task << SHIFT_SEQ)
    e.word[U(ENTITY_WORDS * flow + OWN_KEY)] = key
    latency_ps = c.entry_ps[U(route)] if size_bytes > 0 else c.route_ps[U(route)]
    give_event(e.word, n, flow, n[NOW] + latency_ps, key)


@inlined
def _describe(e: Entities, k: Int64, flow: Int, size_bytes: Int, task: Int, semaphore: Int) -> None:
    cold = e.cold
    at = COLD * (flow - k[N_FIRST_REQUEST])
    packets = _packets_of(k, size_bytes)
    cold[U(at + TOTAL_BYTES)] = size_bytes
    cold[U(at + NOT_LEFT)] = packets
    cold[U(at + NOT_ARRIVED)] = packets
    cold[U(at + KIND)] = KIND_FLOW
    cold[U(at + TASK)] = task
    cold[U(at + SEMAPHORE)] = semaphore
    cold[U(at + AMOUNT)] = 1
    e.half[U(ENTITY_HALVES * flow + STAGE)] = S_FLOW


@inlined
def _packets_of(k: Int64, size_bytes: Int) -> Int:
    """How many packets carry so many bytes: at least one."""
    return max(1, (size_bytes + k[N_PACKET_BYTES] - 1) // k[N_PACKET_BYTES])


@inlined
def inject(e: Entities, c: Code, w: Ways, m: Machine, seen: Seen, n: Int64, k: Int64) -> None:
    """The next packet of a flow enters its first link."""
    half, cold, word = e.half, e.cold, e.word
    flow, number = n[INJECT], n[INJECT_NUMBER]
    f, r = COLD * (flow - k[N_FIRST_REQUEST]), take_request(e.fresh, n)
    size_bytes = min(cold[U(f + TOTAL_BYTES)] - number * k[N_PACKET_BYTES], k[N_PACKET_BYTES])
    pair = np.int64(half[U(ENTITY_HALVES * flow + PAIR)])
    way = cold[U(f + FIRST_WAY)]
    if pair >= 0:
        first = np.int64(w.pair_out[U(pair)])
        way = first + number % (np.int64(w.pair_out[U(pair + 1)]) - first)
    at = COLD * (r - k[N_FIRST_REQUEST])
    cold[U(at + KIND)] = KIND_PACKET
    cold[U(at + ADDRESS)] = flow
    cold[U(at + NUMBER)] = number
    cold[U(at + WAY_OUT)] = way
    cold[U(at + AMOUNT)] = size_bytes + k[N_PACKET_HEADER]
    h = ENTITY_HALVES * r
    place = np.int64(half[U(ENTITY_HALVES * flow + WAVE)])
    half[U(h + SIZE)] = PACKET if size_bytes > 0 else PACKET + 1
    half[U(h + PAIR)] = pair
    half[U(h + WAVE)] = place
    own = word[U(ENTITY_WORDS * flow + OWN_KEY)]
    word[U(ENTITY_WORDS * r + OWN_KEY)] = own
    if place >= 0:
        gpu = np.int64(c.cu_gpu[U(m.wave[U(WAVE_HALVES * place + W_CU)])])
        seen.counts[U(NUM_COUNTS * gpu + N_PACKETS)] += 1
    label = cross_fabric(half, w, h, L_FABRIC, way)
    give_event(word, n, r, n[NOW], own | (label << SHIFT_LABEL))
    n[INJECT_NUMBER] = number + 1
    if number + 1 == n[INJECT_END]:
        n[INJECT] = -1


@inlined
def after_packet(e: Entities, w: Ways, m: Machine, n: Int64, k: Int64, r: Int) -> None:
    """A packet has left its GPU: the next of its way enters, or with the last of a flow the next flow to that peer."""
    at = COLD * (r - k[N_FIRST_REQUEST])
    flow = e.cold[U(at + ADDRESS)]
    f = COLD * (flow - k[N_FIRST_REQUEST])
    pair = np.int64(e.half[U(ENTITY_HALVES * r + PAIR)])
    lanes = np.int64(1)
    if pair >= 0:
        lanes = np.int64(w.pair_out[U(pair + 1)]) - w.pair_out[U(pair)]
    e.cold[U(f + NOT_LEFT)] -= 1
    number = e.cold[U(at + NUMBER)] + lanes
    if number < _packets_of(k, e.cold[U(f + TOTAL_BYTES)]):
        n[INJECT], n[INJECT_NUMBER], n[INJECT_END] = flow, number, number + 1
    elif pair >= 0 and e.cold[U(f + NOT_LEFT)] == 0:
        following = np.int64(e.half[U(ENTITY_HALVES * flow + LINE)])
        m.chain[U(3 * pair + 2)] = following
        if following >= 0 and e.half[U(ENTITY_HALVES * following + STAGE)] == S_SENDING:
            _enter(e, w, n, k, following, pair)


@inlined
def _enter(e: Entities, w: Ways, n: Int64, k: Int64, flow: Int, pair: Int) -> None:
    """The first packets of a flow enter, one each way."""
    ways = np.int64(w.pair_out[U(pair + 1)]) - w.pair_out[U(pair)]
    total = e.cold[U(COLD * (flow - k[N_FIRST_REQUEST]) + TOTAL_BYTES)]
    n[INJECT], n[INJECT_NUMBER], n[INJECT_END] = flow, 0, min(ways, _packets_of(k, total))


@inlined
def flow_event(e: Entities, w: Ways, m: Machine, n: Int64, k: Int64, r: Int, stage: Int) -> None:
    """A flow begins (S_FLOW), a packet has arrived, or the wavefront knows that all of its flow has (S_KNOWN)."""
    half, cold = e.half, e.cold
    at = COLD * (r - k[N_FIRST_REQUEST])
    pair = np.int64(half[U(ENTITY_HALVES * r + PAIR)])
    if stage == S_FLOW and pair >= 0:
        half[U(ENTITY_HALVES * r + STAGE)] = S_SENDING
        if m.chain[U(3 * pair + 2)] == r:
            _enter(e, w, n, k, r, pair)
        return
    if stage == S_FLOW and cold[U(at + TASK)] >= 0:
        way = WAY_HALVES * cold[U(at + FIRST_WAY)]
        if cold[U(at + TOTAL_BYTES)] > 0 and w.way[U(way + Y_FIRST)] < w.way[U(way + Y_END)]:
            n[INJECT], n[INJECT_NUMBER], n[INJECT_END] = r, 0, 1
            return
        n[ENDED] = cold[U(at + TASK)]
    elif stage == S_ARRIVED:
        flow = cold[U(at + ADDRESS)]
        f = COLD * (flow - k[N_FIRST_REQUEST])
        cold[U(f + NOT_ARRIVED)] -= 1
        if cold[U(f + NOT_ARRIVED)] == 0 and pair < 0:
            n[ENDED] = cold[U(f + TASK)]
            give_request(e.fresh, n, flow)
        elif cold[U(f + NOT_ARRIVED)] == 0:
            half[U(ENTITY_HALVES * flow + STAGE)] = S_DELIVERED
            n[DELIVER] = pair
    else:
        n[FEWER] = half[U(ENTITY_HALVES * r + WAVE)]
        if stage == S_FLOW and cold[U(at + SEMAPHORE)] >= 0:  # to its own GPU
            n[WAKE] = cold[U(at + SEMAPHORE)]
            m.semaphore[U(n[WAKE])] += cold[U(at + AMOUNT)]
    give_request(e.fresh, n, r)


@inlined
def _chain(e: Entities, m: Machine, flow: Int, pair: Int) -> None:
    """A dma comes after those to the same peer that were handed over before it."""
    half, chain = e.half, m.chain
    half[U(ENTITY_HALVES * flow + LINE)] = -1
    if chain[U(3 * pair)] < 0:
        chain[U(3 * pair)] = flow
    else:
        half[U(ENTITY_HALVES * np.int64(chain[U(3 * pair + 1)]) + LINE)] = flow
    chain[U(3 * pair + 1)] = flow
    if chain[U(3 * pair + 2)] < 0:
        chain[U(3 * pair + 2)] = flow


@inlined
def deliver(e: Entities, c: Code, w: Ways, m: Machine, n: Int64, k: Int64) -> None:
    """The first dma to a peer has arrived, if it has: its semaphore is released, and its wavefront will know."""
    half, cold, pair = e.half, e.cold, n[DELIVER]
    flow = np.int64(m.chain[U(3 * pair)])
    if flow < 0 or half[U(ENTITY_HALVES * flow + STAGE)] != S_DELIVERED:
        n[DELIVER] = -1
        return
    m.chain[U(3 * pair)] = half[U(ENTITY_HALVES * flow + LINE)]
    semaphore = cold[U(COLD * (flow - k[N_FIRST_REQUEST]) + SEMAPHORE)]
    if semaphore >= 0:
        m.semaphore[U(semaphore)] += cold[U(COLD * (flow - k[N_FIRST_REQUEST]) + AMOUNT)]
        n[WAKE] = semaphore
    half[U(ENTITY_HALVES * flow + STAGE)] = S_KNOWN
    give_event(e.word, n, flow, n[NOW] + w.pair_latency[U(pair)], wait_key(e, c, k, m, flow))
