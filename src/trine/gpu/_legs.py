"""Where a request goes next: through its GPU, the fabric, the other GPU to the memory, and back."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int32, Int64
from trine.gpu._outside import note, stay_away
from trine.gpu._state import (
    BASE,
    CHANNEL,
    COLD,
    E_LABEL,
    END,
    ENTITY_HALVES,
    HAS_COME,
    IS_BACK,
    KIND,
    KIND_LOAD,
    L_BACK,
    L_FABRIC,
    L_FROM,
    L_HOME,
    L_MEMORY,
    L_OUT,
    L_OVER,
    L_THERE,
    LANE_WORDS,
    LEG,
    N_CHANNEL_CU,
    N_CHANNEL_PORT,
    N_CHANNELS,
    N_CUS,
    N_FIRST_REQUEST,
    N_PORT_CHANNEL,
    N_PORT_CU,
    N_PORTS,
    N_RECORD,
    N_RESOURCES,
    PAIR,
    POLL,
    POS,
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
    WAY_HALVES,
    WAY_OUT,
    Y_END,
    Y_FIRST,
    Y_PORT_IN,
    Y_PORT_OUT,
    Code,
    Entities,
    Machine,
    Outside,
    Ways,
)

U = np.uint64

#: What :func:`next_leg` returns of a request that ends here.
GONE = -1


@inlined
def next_leg(e: Entities, w: Ways, c: Code, m: Machine, o: Outside, n: Int64, k: Int64, r: Int) -> Int:
    """Let request ``r``, at the end of a leg, begin the next one that has something in it; returns its key's label.

    GONE: it was of a GPU that is not simulated, and has left.
    """
    half, cold, path, way = e.half, e.cold, w.path, w.way
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    leg = np.int64(half[U(h + LEG)])
    pair = np.int64(half[U(h + PAIR)])
    if leg == L_OUT and pair >= 0:
        return cross_fabric(half, w, h, L_FABRIC, cold[U(at + WAY_OUT)])
    channel = cold[U(at + CHANNEL)]
    label = np.int64(0)
    if leg < L_FROM and pair >= 0:
        label = np.int64(w.pair_label[U(pair)])
    if leg == L_FABRIC:
        gpu = np.int64(w.pair_gpu[U(pair)])
        if gpu >= 0:
            if gpu == k[N_RECORD]:
                note(e, o, n, k, r, np.int64(HAS_COME), label)
            port = np.int64(way[U(WAY_HALVES * cold[U(at + WAY_OUT)] + Y_PORT_IN)])
            half[U(h + BASE)] = gpu * k[N_RESOURCES]
            if walk(half, path, h, L_THERE, k[N_PORT_CHANNEL] + port * k[N_CHANNELS] + channel):
                return label
        else:
            stay_away(e, w, o, n, k, r)
            leg = np.int64(L_BACK)
    if leg < L_MEMORY:
        half[U(h + LEG)] = L_MEMORY
        half[U(h + STAGE)] = S_MEMORY
        return label
    if leg == L_MEMORY:
        poll = half[U(h + SIZE)] & POLL
        half[U(h + SIZE)] = poll if cold[U(at + KIND)] == KIND_LOAD else poll | 1
        if pair >= 0:
            port = np.int64(way[U(WAY_HALVES * cold[U(at + WAY_BACK)] + Y_PORT_OUT)])
            if walk(half, path, h, L_FROM, k[N_CHANNEL_PORT] + channel * k[N_PORTS] + port):
                return label
            leg = np.int64(L_FROM)
    if leg == L_FROM:
        return cross_fabric(half, w, h, L_BACK, cold[U(at + WAY_BACK)])
    if leg == L_HOME:
        half[U(h + LEG)] = L_OVER
        half[U(h + STAGE)] = S_ANSWER
        return np.int64(0)
    place = np.int64(half[U(h + WAVE)])
    if place < 0:
        return np.int64(GONE)
    cu = np.int64(m.wave[U(WAVE_HALVES * place + W_CU)])
    gpu = np.int64(c.cu_gpu[U(cu)])
    first = k[N_CHANNEL_CU] + channel * k[N_CUS]
    if leg == L_BACK:
        if gpu == k[N_RECORD]:
            note(e, o, n, k, r, np.int64(IS_BACK), np.int64(0))
        port = np.int64(way[U(WAY_HALVES * cold[U(at + WAY_BACK)] + Y_PORT_IN)])
        first = k[N_PORT_CU] + port * k[N_CUS]
        half[U(h + BASE)] = gpu * k[N_RESOURCES]
    walk(half, path, h, L_HOME, first + cu - gpu * k[N_CUS])
    return np.int64(0)


@inlined
def cross_fabric(half: Int32, w: Ways, h: Int, leg: Int, way: Int) -> Int:
    """Begin a leg over the fabric; returns the label of its first link."""
    row = np.int64(w.way[U(WAY_HALVES * way + Y_FIRST)])
    half[U(h + LEG)] = leg
    half[U(h + POS)] = row
    half[U(h + END)] = w.way[U(WAY_HALVES * way + Y_END)]
    half[U(h + BASE)] = 0
    half[U(h + STAGE)] = S_EGRESS
    return w.lane[U(LANE_WORDS * row + E_LABEL)]


@inlined
def walk(half: Int32, paths: Int32, h: Int, leg: Int, path: Int) -> bool:
    """Begin a leg inside a GPU, if there is anything on ``path``."""
    first, last = paths[U(path)], paths[U(path + 1)]
    half[U(h + LEG)] = leg
    half[U(h + POS)] = first
    half[U(h + END)] = last
    half[U(h + STAGE)] = S_HOP
    return bool(first < last)
