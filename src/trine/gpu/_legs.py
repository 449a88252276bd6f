"""Where a request goes next: through its GPU, the fabric, the other GPU to the memory, and back."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.gpu._state import (
    BASE,
    CHANNEL,
    COLD,
    END,
    ENTITY_HALVES,
    HOP_WORDS,
    KIND,
    KIND_LOAD,
    LEG,
    N_CHANNELS,
    N_CUS,
    N_FIRST_REQUEST,
    N_PORTS,
    N_RESOURCES,
    PAIR,
    POLL,
    POS,
    R_BUSY_PS,
    R_CONTROL,
    R_DATA,
    R_FREE_PS,
    RESOURCE_WORDS,
    S_ANSWER,
    S_EGRESS,
    S_HOP,
    S_MEMORY,
    SIZE,
    STAGE,
    W_CU,
    WAVE,
    WAVE_HALVES,
    WAY_BACK,
    WAY_OUT,
    Code,
    Entities,
    Int64,
    Machine,
    Ways,
)

U = np.uint64

#: Legs: in its GPU, over the fabric, in the other GPU, at the memory; and back.
L_OUT, L_FABRIC, L_THERE, L_MEMORY, L_FROM, L_BACK, L_HOME, L_OVER = range(8)


@inlined
def serve(m: Machine, resource: Int, now: Int, service_ps: Int, size: Int) -> Int:
    """A message is served by ``resource``, after all that came before; returns when it has been."""
    at = RESOURCE_WORDS * resource
    end = max(now, m.resource[U(at + R_FREE_PS)]) + service_ps
    m.resource[U(at + R_FREE_PS)] = end
    m.resource[U(at + (R_CONTROL if size & 1 == 1 else R_DATA))] += 1
    m.resource[U(at + R_BUSY_PS)] += service_ps
    return end


@inlined
def hop_ps(w: Ways, row: Int, size: Int, size_bytes: Int) -> Int:
    """How long a message takes of the resource of a hop."""
    if size & 2 == 0:
        return w.hops[U(HOP_WORDS * row + 1 + (size & 1))]
    rate = w.rate[U(row)]
    return (size_bytes * 1_000_000_000_000 + rate - 1) // rate


@inlined
def next_leg(e: Entities, w: Ways, c: Code, m: Machine, k: Int64, r: Int) -> Int:
    """Let request ``r``, at the end of a leg, begin the next one that has something in it; returns its key's label."""
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    leg = np.int64(e.half[U(h + LEG)])
    pair = np.int64(e.half[U(h + PAIR)])
    if leg == L_OUT and pair >= 0:
        way = e.cold[U(at + WAY_OUT)]
        row = np.int64(w.way[U(4 * way)])
        e.half[U(h + POS)] = row
        e.half[U(h + END)] = w.way[U(4 * way + 1)]
        e.half[U(h + BASE)] = 0
        e.half[U(h + STAGE)] = S_EGRESS
        e.half[U(h + LEG)] = L_FABRIC
        return np.int64(w.label[U(row)])
    channel = e.cold[U(at + CHANNEL)]
    label = np.int64(0)
    if leg < L_FROM and pair >= 0:
        label = np.int64(w.pair_label[U(pair)])
    if leg == L_FABRIC:
        way = e.cold[U(at + WAY_OUT)]
        path = np.int64(w.way[U(4 * way + 3)]) * k[N_CHANNELS] + channel
        first = np.int64(w.port_channel[U(path)])
        last = np.int64(w.port_channel[U(path + 1)])
        e.half[U(h + BASE)] = np.int64(w.pair_gpu[U(pair)]) * k[N_RESOURCES]
        leg = np.int64(L_THERE)
        if first < last:
            return _walk(e, h, leg, first, last, label)
    if leg < L_MEMORY:
        e.half[U(h + LEG)] = L_MEMORY
        e.half[U(h + STAGE)] = S_MEMORY
        return label
    place = np.int64(e.half[U(h + WAVE)])
    cu = np.int64(m.wave[U(WAVE_HALVES * place + W_CU)])
    gpu = np.int64(c.cu_gpu[U(cu)])
    own_cu = cu - gpu * k[N_CUS]
    if leg == L_MEMORY:
        poll = e.half[U(h + SIZE)] & POLL
        e.half[U(h + SIZE)] = poll if e.cold[U(at + KIND)] == KIND_LOAD else poll | 1
        if pair < 0:
            path = channel * k[N_CUS] + own_cu
            first = np.int64(w.channel_cu[U(path)])
            last = np.int64(w.channel_cu[U(path + 1)])
            return _walk(e, h, np.int64(L_HOME), first, last, np.int64(0))
        way = e.cold[U(at + WAY_BACK)]
        path = channel * k[N_PORTS] + w.way[U(4 * way + 2)]
        first = np.int64(w.channel_port[U(path)])
        last = np.int64(w.channel_port[U(path + 1)])
        leg = np.int64(L_FROM)
        if first < last:
            return _walk(e, h, leg, first, last, label)
    if leg == L_FROM:
        way = e.cold[U(at + WAY_BACK)]
        row = np.int64(w.way[U(4 * way)])
        e.half[U(h + POS)] = row
        e.half[U(h + END)] = w.way[U(4 * way + 1)]
        e.half[U(h + BASE)] = 0
        e.half[U(h + STAGE)] = S_EGRESS
        e.half[U(h + LEG)] = L_BACK
        return np.int64(w.label[U(row)])
    if leg == L_BACK:
        way = e.cold[U(at + WAY_BACK)]
        path = np.int64(w.way[U(4 * way + 3)]) * k[N_CUS] + own_cu
        first = np.int64(w.port_cu[U(path)])
        last = np.int64(w.port_cu[U(path + 1)])
        e.half[U(h + BASE)] = gpu * k[N_RESOURCES]
        return _walk(e, h, np.int64(L_HOME), first, last, np.int64(0))
    e.half[U(h + LEG)] = L_OVER
    e.half[U(h + STAGE)] = S_ANSWER
    return np.int64(0)


@inlined
def _walk(e: Entities, h: Int, leg: Int, first: Int, last: Int, label: Int) -> Int:
    """Begin a leg inside a GPU."""
    e.half[U(h + LEG)] = leg
    e.half[U(h + POS)] = first
    e.half[U(h + END)] = last
    e.half[U(h + STAGE)] = S_HOP
    return label
