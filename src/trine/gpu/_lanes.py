"""A message in the fabric: lanes of links, and their arbitration where they lead out of a GPU."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int32, Int64
from trine.gpu._acts import post
from trine.gpu._flows import after_packet
from trine.gpu._stages import serve
from trine.gpu._state import (
    AMOUNT,
    COLD,
    E_AFTER_PS,
    E_DATA_PS,
    E_LABEL,
    E_LEAVES,
    E_RATE,
    E_RESOURCE,
    END,
    ENTITY_HALVES,
    ENTITY_WORDS,
    KEY,
    KIND,
    KIND_PACKET,
    KIND_RELEASE,
    KIND_STORE,
    L_FABRIC,
    LANE_WORDS,
    LEG,
    N_FAIR,
    N_FIRST_REQUEST,
    N_POSTED,
    NEXT,
    NOW,
    ONWARD,
    OTHER,
    OWN_KEY,
    PACKET,
    PAIR,
    POS,
    QUEUE_HALVES,
    S_ARRIVED,
    S_EGRESS,
    S_LANE,
    S_LEFT,
    SCHEDULED,
    SHIFT_LABEL,
    SIZE,
    STAGE,
    TIME_PS,
    WAVE,
    WAY_HALVES,
    WAY_OUT,
    Y_FIRST,
    Code,
    Entities,
    Machine,
    Ways,
)
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def cross(e: Entities, c: Code, w: Ways, m: Machine, n: Int64, k: Int64, r: Int, stage: Int) -> None:
    """A message comes to a lane (S_EGRESS: that leads out of a GPU; S_LANE), or has left one (S_LEFT)."""
    half, word, lane, now = e.half, e.word, w.lane, n[NOW]
    h = ENTITY_HALVES * r
    kind = e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + KIND)]
    row = np.int64(half[U(h + POS)])
    at = LANE_WORDS * row
    if stage == S_LEFT:
        left_ps = now
        _leave(e, c, w, m, n, k, r, kind)
    elif stage == S_EGRESS and k[N_FAIR] == 1 and m.queue[U(QUEUE_HALVES * lane[U(at + E_RESOURCE)])] == 1:
        _wait(half, m.queue, QUEUE_HALVES * lane[U(at + E_RESOURCE)], r)
        return
    else:
        resource, control = lane[U(at + E_RESOURCE)], np.int64(half[U(h + SIZE)]) & 1
        left_ps = serve(m.resource, resource, now, lane_ps(e, w, k, r), control)
        if stage == S_EGRESS and (k[N_FAIR] == 1 or _tells(e, w, k, r, kind)):
            if k[N_FAIR] == 1:
                m.queue[U(QUEUE_HALVES * resource)] = 1
                m.queue[U(QUEUE_HALVES * resource + 1)] = 1 - control
            half[U(h + STAGE)] = S_LEFT
            give_event(word, n, r, left_ps, word[U(ENTITY_WORDS * r + KEY)])
            return
    word[U(ENTITY_WORDS * r + TIME_PS)] = left_ps + lane[U(at + E_AFTER_PS)]
    if row + 1 < half[U(h + END)]:
        half[U(h + POS)] = row + 1
        leaves = k[N_FAIR] == 1 and lane[U(at + LANE_WORDS + E_LEAVES)] == 1
        half[U(h + STAGE)] = S_EGRESS if leaves else S_LANE
        label = lane[U(at + LANE_WORDS + E_LABEL)]
        word[U(ENTITY_WORDS * r + KEY)] = word[U(ENTITY_WORDS * r + OWN_KEY)] | (label << SHIFT_LABEL)
        n[SCHEDULED] = r
    elif kind == KIND_PACKET:
        half[U(h + STAGE)] = S_ARRIVED
        pair = np.int64(half[U(h + PAIR)])
        if pair >= 0:  # at the peer: first come those from nearby, as with messages
            own = word[U(ENTITY_WORDS * r + OWN_KEY)]
            word[U(ENTITY_WORDS * r + KEY)] = own | (np.int64(w.pair_label[U(pair)]) << SHIFT_LABEL)
        n[SCHEDULED] = r
    else:
        n[ONWARD] = r


@inlined
def lane_ps(e: Entities, w: Ways, k: Int64, r: Int) -> Int:
    """How long a message takes of the lane that it is at; a packet by its bytes."""
    h = ENTITY_HALVES * r
    at = LANE_WORDS * np.int64(e.half[U(h + POS)])
    size = np.int64(e.half[U(h + SIZE)])
    if size & PACKET == 0:
        return w.lane[U(at + E_DATA_PS + (size & 1))]
    rate = w.lane[U(at + E_RATE)]
    return (e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + AMOUNT)] * 1_000_000_000_000 + rate - 1) // rate


@inlined
def _tells(e: Entities, w: Ways, k: Int64, r: Int, kind: Int) -> bool:
    """Whether something happens when the message has left its GPU: the next packet, or the store is posted."""
    h = ENTITY_HALVES * r
    if kind != KIND_PACKET and (k[N_POSTED] == 0 or (kind != KIND_STORE and kind != KIND_RELEASE)):
        return False
    if kind != KIND_PACKET and e.half[U(h + WAVE)] < 0:
        return False
    way = e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + WAY_OUT)]
    return bool(e.half[U(h + LEG)] == L_FABRIC and e.half[U(h + POS)] == w.way[U(WAY_HALVES * way + Y_FIRST)])


@inlined
def _leave(e: Entities, c: Code, w: Ways, m: Machine, n: Int64, k: Int64, r: Int, kind: Int) -> None:
    """The last byte of a message has entered a lane out of a GPU."""
    if k[N_FAIR] == 1:
        row = np.int64(e.half[U(ENTITY_HALVES * r + POS)])
        _serve_next(e, w, m, n, k, w.lane[U(LANE_WORDS * row + E_RESOURCE)])
    if _tells(e, w, k, r, kind):
        if kind == KIND_PACKET:
            after_packet(e, w, m, n, k, r)
        else:
            post(c, m, n, e.half, r)


@inlined
def _wait(half: Int32, queue: Int32, at: Int, r: Int) -> None:
    """The message waits for the lane, behind others of its kind."""
    tail = at + 3 + 2 * (np.int64(half[U(ENTITY_HALVES * r + SIZE)]) & 1)
    half[U(ENTITY_HALVES * r + NEXT)] = -1
    if queue[U(tail - 1)] < 0:
        queue[U(tail - 1)] = r
    else:
        half[U(ENTITY_HALVES * np.int64(queue[U(tail)]) + NEXT)] = r
    queue[U(tail)] = r


@inlined
def _serve_next(e: Entities, w: Ways, m: Machine, n: Int64, k: Int64, resource: Int) -> None:
    """The lane serves the next message that waits for it, data and control in turns."""
    half, queue = e.half, m.queue
    at = QUEUE_HALVES * resource
    which = np.int64(queue[U(at + 1)])
    if queue[U(at + 2 + 2 * which)] < 0:
        which = 1 - which
    r = np.int64(queue[U(at + 2 + 2 * which)])
    if r < 0:
        queue[U(at)] = 0
        return
    queue[U(at + 1)] = 1 - which
    queue[U(at + 2 + 2 * which)] = half[U(ENTITY_HALVES * r + NEXT)]
    half[U(ENTITY_HALVES * r + STAGE)] = S_LEFT
    e.word[U(ENTITY_WORDS * r + TIME_PS)] = serve(m.resource, resource, n[NOW], lane_ps(e, w, k, r), which)
    n[OTHER] = r
