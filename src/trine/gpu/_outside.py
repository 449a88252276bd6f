"""What comes from GPUs that are not simulated, what goes to them, and the log of what comes (docs/design/replay.md)."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int32, Int64
from trine.gpu._acts import take_request
from trine.gpu._state import (
    ADDRESS,
    AMOUNT,
    AT_LINK,
    AT_MEMORY,
    BASE,
    CHANNEL,
    COLD,
    ENTITY_HALVES,
    ENTITY_WORDS,
    IDLE,
    ISSUED_PS,
    KEY,
    KIND,
    KIND_LOAD,
    KIND_RELEASE,
    KIND_STORE,
    L_FABRIC,
    L_LAND,
    L_OUT,
    LEG,
    LINE,
    LOG_ADDRESS,
    LOG_AMOUNT,
    LOG_KEY,
    LOG_KIND,
    LOG_LABEL,
    LOG_ROOM,
    LOG_SEMAPHORE,
    LOG_TIME_PS,
    LOG_WHAT,
    LOG_WORDS,
    N_ANSWERS,
    N_BEGIN_AT,
    N_CHANNELS,
    N_FIRST_REQUEST,
    N_FIRST_SLICE,
    N_HASHED,
    N_MEM_INTERLEAVE,
    N_PORT_INTERLEAVE,
    N_PORTS,
    N_UNCACHED_END,
    N_UNCACHED_FIRST,
    NEXT_OUTSIDE,
    NUM_LOG,
    ONWARD,
    OWN_KEY,
    PAIR,
    POLL,
    S_MEMORY,
    SCHEDULED,
    SEMAPHORE,
    SIZE,
    STAGE,
    TIME_PS,
    UNRECORDED,
    WAKE,
    WAVE,
    WAY_BACK,
    WAY_HALVES,
    WAY_OUT,
    Y_PORT_IN,
    Y_PORT_OUT,
    Entities,
    Machine,
    Outside,
    Ways,
)  # fmt: skip

U = np.uint64


@inlined
def way_of_address(ways: Int32, k: Int64, pair: Int, address: Int) -> Int:
    """Which way of a pair the line at ``address`` takes (fabric.way_of)."""
    first = np.int64(ways[U(pair)])
    block = address // k[N_PORT_INTERLEAVE]
    if k[N_HASHED] == 1:
        mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF
        block = ((mixed * 2654435761) & 0xFFFFFFFF) >> 1
    return first + block % (np.int64(ways[U(pair + 1)]) - first)


@inlined
def is_uncached(k: Int64, address: Int) -> bool:
    """Whether requests to ``address`` go past the L2."""
    return bool(k[N_UNCACHED_FIRST] <= address < k[N_UNCACHED_END])


@inlined
def arrive(e: Entities, w: Ways, m: Machine, o: Outside, n: Int64, k: Int64) -> None:
    """The next entry of the write tracking table: a semaphore changes, or a request begins where the table says."""
    i = n[NEXT_OUTSIDE]
    n[NEXT_OUTSIDE] = i + 1
    if k[N_BEGIN_AT] == AT_MEMORY and o.kind[U(i)] == KIND_RELEASE:
        m.semaphore[U(o.semaphore[U(i)])] += o.amount[U(i)]
        n[WAKE] = o.semaphore[U(i)]
        return
    half, word, cold = e.half, e.word, e.cold
    r = take_request(e.fresh, n)
    h, at = ENTITY_HALVES * r, COLD * (r - k[N_FIRST_REQUEST])
    pair = np.int64(o.pair[U(i)])
    address = o.address[U(i)]
    kind = np.int64(o.kind[U(i)])
    cold[U(at + ADDRESS)] = address
    cold[U(at + KIND)] = kind
    cold[U(at + CHANNEL)] = (address // k[N_MEM_INTERLEAVE]) % k[N_CHANNELS]
    cold[U(at + SEMAPHORE)] = o.semaphore[U(i)]
    cold[U(at + AMOUNT)] = o.amount[U(i)]
    cold[U(at + WAY_OUT)] = way_of_address(w.pair_out, k, pair, address)
    cold[U(at + WAY_BACK)] = way_of_address(w.pair_back, k, pair, address)
    half[U(h + PAIR)] = pair
    half[U(h + WAVE)] = -1
    half[U(h + LINE)] = -1
    half[U(h + SIZE)] = 0 if kind == KIND_STORE else 1
    half[U(h + BASE)] = 0
    word[U(ENTITY_WORDS * r + OWN_KEY)] = o.key[U(i)]
    word[U(ENTITY_WORDS * r + KEY)] = o.key[U(i)]
    word[U(ENTITY_WORDS * r + TIME_PS)] = o.time_ps[U(i)]
    if k[N_BEGIN_AT] == AT_MEMORY:
        half[U(h + LEG)] = L_LAND
        half[U(h + STAGE)] = S_MEMORY
        n[SCHEDULED] = r
    else:
        half[U(h + LEG)] = L_OUT if k[N_BEGIN_AT] == AT_LINK else L_FABRIC
        n[ONWARD] = r


@inlined
def number_answer(e: Entities, o: Outside, k: Int64, r: Int) -> None:
    """A request to a peer that is replayed is to get the next answer of its wavefront's place; -1: there is none."""
    place = np.int64(e.half[U(ENTITY_HALVES * r + WAVE)])
    number = o.answer_ptr[U(place)] + o.issued[U(place)]
    o.issued[U(place)] += 1
    missing = number >= o.answer_ptr[U(place + 1)]
    e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + WAY_BACK)] = np.int64(-1) if missing else number


@inlined
def stay_away(e: Entities, w: Ways, o: Outside, n: Int64, k: Int64, r: Int) -> None:
    """A request has left for a peer that is replayed: its time becomes that when the answer is out of the port."""
    half, cold, word = e.half, e.cold, e.word
    h, at = ENTITY_HALVES * r, COLD * (r - k[N_FIRST_REQUEST])
    kind, amount = cold[U(at + KIND)], np.int64(0)
    time_ps = word[U(ENTITY_WORDS * r + TIME_PS)]
    if k[N_ANSWERS] == 1:
        number = cold[U(at + WAY_BACK)]
        pair = np.int64(half[U(h + PAIR)])
        cold[U(at + WAY_BACK)] = way_of_address(w.pair_back, k, pair, cold[U(at + ADDRESS)])
        if number < 0 or o.answer_ps[U(number)] < time_ps:
            n[UNRECORDED] = r
            n[LOG_ROOM] = -1  # so that the loop looks
            cold[U(at + ISSUED_PS)] = number
            return
        n[IDLE] = 0  # what the record has to come is no waiting for ever
        time_ps = o.answer_ps[U(number)]
        if o.answer_refused[U(number)] == 1:
            amount = cold[U(at + AMOUNT)]
    else:
        time_ps += _uncontended_ps(e, w, o, k, r)
    cold[U(at + AMOUNT)] = amount
    poll = half[U(h + SIZE)] & POLL
    half[U(h + SIZE)] = poll if kind == KIND_LOAD else poll | 1
    word[U(ENTITY_WORDS * r + TIME_PS)] = time_ps


@inlined
def _uncontended_ps(e: Entities, w: Ways, o: Outside, k: Int64, r: Int) -> Int:
    """What the way from the first lane to the peer's memory and back takes if nobody else is there."""
    at = COLD * (r - k[N_FIRST_REQUEST])
    kind, channel = e.cold[U(at + KIND)], e.cold[U(at + CHANNEL)]
    out, back = e.cold[U(at + WAY_OUT)], e.cold[U(at + WAY_BACK)]
    there = np.int64(w.way[U(WAY_HALVES * out + Y_PORT_IN)]) * k[N_CHANNELS] + channel
    home = channel * k[N_PORTS] + w.way[U(WAY_HALVES * back + Y_PORT_OUT)]
    control_out = np.int64(0) if kind == KIND_STORE else np.int64(1)
    control_back = np.int64(0) if kind == KIND_LOAD else np.int64(1)
    memory = np.int64(1) if kind == KIND_RELEASE else np.int64(0)
    if k[N_FIRST_SLICE] < 0 or is_uncached(k, e.cold[U(at + ADDRESS)]):
        memory += 2
    fabric_ps = o.lanes_ps[U(2 * out + control_out)] + o.lanes_ps[U(2 * back + control_back)]
    inside_ps = o.there_ps[U(2 * there + control_out)] + o.home_ps[U(2 * home + control_back)]
    return fabric_ps + inside_ps + o.memory_ps[U(memory)]


@inlined
def note(e: Entities, o: Outside, n: Int64, k: Int64, r: Int, what: Int, label: Int) -> None:
    """A row of the log: a request has come from another GPU, or has set out for one, or its answer is back."""
    at = LOG_WORDS * n[NUM_LOG]
    n[NUM_LOG] += 1
    cold = COLD * (r - k[N_FIRST_REQUEST])
    o.log[U(at + LOG_WHAT)] = what
    o.log[U(at + LOG_TIME_PS)] = e.word[U(ENTITY_WORDS * r + TIME_PS)]
    o.log[U(at + LOG_KEY)] = e.word[U(ENTITY_WORDS * r + OWN_KEY)]
    o.log[U(at + LOG_LABEL)] = label
    o.log[U(at + LOG_KIND)] = e.cold[U(cold + KIND)]
    o.log[U(at + LOG_ADDRESS)] = e.cold[U(cold + ADDRESS)]
    o.log[U(at + LOG_SEMAPHORE)] = e.cold[U(cold + SEMAPHORE)]
    o.log[U(at + LOG_AMOUNT)] = e.cold[U(cold + AMOUNT)]
