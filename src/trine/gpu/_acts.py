"""Small steps of the loop: keys, requests, queues, and what wavefronts do."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined, kernel
from trine.arrays import Int32, Int64
from trine.gpu._state import (
    C_FULL_PS,
    C_FULL_SINCE,
    C_LAST_LINE,
    C_LINES,
    CU_HALVES,
    CU_WORDS,
    D_ACQUIRING,
    D_BARRIER,
    D_COMPUTING,
    D_GONE,
    D_OVER,
    D_QUEUED,
    ENTITY_HALVES,
    ENTITY_WORDS,
    FREED,
    L_NEXT,
    L_OP,
    L_UNPOSTED,
    LINE,
    LINE_HALVES,
    N_CUS,
    N_WAVES,
    NEXT,
    NOW,
    NUM_FREE_REQUESTS,
    NUM_TODO,
    OWN_KEY,
    SHIFT_CLASS,
    SHIFT_SEQ,
    SHIFT_WAVE,
    W_CU,
    W_DOING,
    W_SEQ,
    W_SIBLING,
    WAVE,
    WAVE_CLASS,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Seen,
)
from trine.gpu.program import RELEASE, STORE
from trine.gpu.records import BARRIER as AT_BARRIER
from trine.gpu.records import COMPUTING, ISSUE, MEMORY, SEMAPHORE, STATE_NAMES

U = np.uint64
_NUM_STATES = len(STATE_NAMES)
_MAX_SEQ = (1 << (SHIFT_WAVE - SHIFT_SEQ)) - 1


@inlined
def wave_key(c: Code, k: Int64, cu: Int, place: Int) -> Int:
    """The key of a wavefront's event."""
    own = place - np.int64(c.cu_gpu[U(cu)]) * k[N_CUS] * k[N_WAVES]
    return (np.int64(WAVE_CLASS) << SHIFT_CLASS) | (own << SHIFT_WAVE)


@inlined
def wait_key(e: Entities, c: Code, k: Int64, m: Machine, r: Int) -> Int:
    """The key of an event of the wavefront whose request ``r`` is; those of one wavefront come as they were issued."""
    place = np.int64(e.half[U(ENTITY_HALVES * r + WAVE)])
    key = wave_key(c, k, np.int64(m.wave[U(WAVE_HALVES * place + W_CU)]), place)
    return key | (e.word[U(ENTITY_WORDS * r + OWN_KEY)] & ((1 << SHIFT_WAVE) - 1))


@inlined
def own_key(c: Code, m: Machine, k: Int64, place: Int, kind_of_event: Int) -> Int:
    """The key of the wavefront's next request at its own GPU."""
    wave = m.wave
    at = WAVE_HALVES * place
    gpu = np.int64(c.cu_gpu[U(wave[U(at + W_CU)])])
    seq = np.int64(wave[U(at + W_SEQ)])
    wave[U(at + W_SEQ)] = (seq + 1) & _MAX_SEQ
    own = place - gpu * k[N_CUS] * k[N_WAVES]
    key = (np.int64(kind_of_event) << SHIFT_CLASS) | (own << SHIFT_WAVE)
    return key | (seq << SHIFT_SEQ) | c.rank_bits[U(gpu)]


@inlined
def take_request(fresh: Int32, n: Int64) -> Int:
    """A free request; the loop has made sure that there is one."""
    n[NUM_FREE_REQUESTS] -= 1
    return np.int64(fresh[U(n[NUM_FREE_REQUESTS])])


@inlined
def give_request(fresh: Int32, n: Int64, r: Int) -> None:
    """The request is free again."""
    fresh[U(n[NUM_FREE_REQUESTS])] = r
    n[NUM_FREE_REQUESTS] += 1


@inlined
def go_later(todo: Int32, n: Int64, place: Int) -> None:
    """The wavefront goes on in a turn of its own, before what has been put there before."""
    todo[U(n[NUM_TODO])] = place
    n[NUM_TODO] += 1


@inlined
def wake_group(m: Machine, n: Int64, place: Int) -> None:
    """All wavefronts of a workgroup go on, the first one first; ``place``: of the last one."""
    while place >= 0:
        go_later(m.todo, n, place)
        place = np.int64(m.wave[U(WAVE_HALVES * place + W_SIBLING)])


@inlined
def do(m: Machine, seen: Seen, place: Int, doing: Int, now: Int) -> None:
    """The wavefront does something else from now on; its time so far goes to what it did."""
    wave, cu_word, state = m.wave, m.cu_word, seen.state
    at = WAVE_HALVES * place
    before = wave[U(at + W_DOING)]
    cu = np.int64(wave[U(at + W_CU)])
    spent_ps = now - m.wave_since[U(place)]
    full_ps = cu_word[U(CU_WORDS * cu + C_FULL_PS)]
    since_ps = cu_word[U(CU_WORDS * cu + C_FULL_SINCE)]
    if since_ps >= 0:
        full_ps += now - since_ps
    was = np.int64(MEMORY)
    if before == D_QUEUED:
        waited_ps = full_ps - m.wave_full[U(place)]
        state[U(_NUM_STATES * cu + MEMORY)] += waited_ps
        spent_ps -= waited_ps
        was = np.int64(ISSUE)
    elif before == D_ACQUIRING:
        was = np.int64(SEMAPHORE)
    elif before == D_BARRIER:
        was = np.int64(AT_BARRIER)
    elif before == D_COMPUTING:
        was = np.int64(COMPUTING)
    state[U(_NUM_STATES * cu + was)] += spent_ps
    wave[U(at + W_DOING)] = doing
    m.wave_since[U(place)] = now
    m.wave_full[U(place)] = full_ps


@inlined
def queue_line(e: Entities, m: Machine, cu: Int, item: Int) -> None:
    """A line with writes to issue (2 * line), or a poll to repeat (2 * request + 1), joins its CU's queue of those."""
    half, line, words = e.half, m.line, m.cu
    at = CU_HALVES * cu
    last = np.int64(words[U(at + C_LAST_LINE)])
    if item & 1 == 1:
        half[U(ENTITY_HALVES * (item >> 1) + NEXT)] = -1
    else:
        line[U(LINE_HALVES * (item >> 1) + L_NEXT)] = -1
    if words[U(at + C_LINES)] < 0:
        words[U(at + C_LINES)] = item
    elif last & 1 == 1:
        half[U(ENTITY_HALVES * (last >> 1) + NEXT)] = item
    else:
        line[U(LINE_HALVES * (last >> 1) + L_NEXT)] = item
    words[U(at + C_LAST_LINE)] = item


@inlined
def post(c: Code, m: Machine, n: Int64, half: Int32, r: Int) -> None:
    """A write, or a release, has been posted: with the last one of its line (of a store, with each) a place is free."""
    at = LINE_HALVES * np.int64(half[U(ENTITY_HALVES * r + LINE)])
    m.line[U(at + L_UNPOSTED)] -= 1
    kind = c.kind[U(m.line[U(at + L_OP)])]
    if kind in (STORE, RELEASE) or m.line[U(at + L_UNPOSTED)] == 0:
        n[FREED] = half[U(ENTITY_HALVES * r + WAVE)]


@kernel
def finish_states(c: Code, m: Machine, seen: Seen, n: Int64) -> Int:
    """Of a run that stops here: what wavefronts have been doing up to now goes to the records."""
    for place in range(len(m.wave_since)):
        doing = np.int64(m.wave[U(WAVE_HALVES * place + W_DOING)])
        if doing not in (D_GONE, D_OVER):
            do(m, seen, np.int64(place), doing, n[NOW])
    return 0
