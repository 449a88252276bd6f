"""What an event means for wavefronts and their CUs: lines to write, polls to repeat, places and counts."""

from __future__ import annotations

import numpy as np

from trine._jit import inlined
from trine.arrays import Int64
from trine.gpu._acts import go_later, queue_line
from trine.gpu._state import (
    C_FULL_PS,
    C_FULL_SINCE,
    C_PLACES,
    CU_HALVES,
    CU_WORDS,
    D_COUNTING,
    D_DRAINING,
    D_FULL,
    ENTITY_HALVES,
    FEWER,
    FREED,
    KICK_CU,
    L_WAVE,
    L_WRITES,
    LINE_HALVES,
    N_MAX_PLACES,
    NOW,
    NUM_FREE_LINES,
    OVER_LINE,
    QUEUED_POLLS,
    READY_LINE,
    RETRIED,
    W_CU,
    W_DOING,
    W_PLACES,
    W_UNFINISHED,
    WAVE,
    WAVE_HALVES,
    Entities,
    Machine,
)

U = np.uint64


@inlined
def settle(e: Entities, m: Machine, n: Int64, k: Int64) -> None:
    """Do what the turn has left to do, and forget it."""
    if n[READY_LINE] >= 0:
        _ready(e, m, n)
        n[READY_LINE] = -1
    if n[RETRIED] >= 0:
        place = np.int64(e.half[U(ENTITY_HALVES * n[RETRIED] + WAVE)])
        cu = np.int64(m.wave[U(WAVE_HALVES * place + W_CU)])
        queue_line(e, m, cu, 2 * n[RETRIED] + 1)
        n[QUEUED_POLLS] += 1
        n[KICK_CU] = cu
        n[RETRIED] = -1
    if n[OVER_LINE] >= 0:
        m.free_lines[U(n[NUM_FREE_LINES])] = n[OVER_LINE]
        n[NUM_FREE_LINES] += 1
        n[OVER_LINE] = -1
    if n[FREED] >= 0:
        _free_place(m, n, k)
        n[FREED] = -1
    if n[FEWER] >= 0:
        wave = WAVE_HALVES * n[FEWER]
        m.wave[U(wave + W_UNFINISHED)] -= 1
        doing = m.wave[U(wave + W_DOING)]
        if doing in (D_COUNTING, D_DRAINING):
            go_later(m.todo, n, n[FEWER])
        n[FEWER] = -1


@inlined
def _ready(e: Entities, m: Machine, n: Int64) -> None:
    """A line that has all its reads: its writes are issued; without any it is over."""
    line_id = n[READY_LINE]
    place = np.int64(m.line[U(LINE_HALVES * line_id + L_WAVE)])
    if m.line[U(LINE_HALVES * line_id + L_WRITES)] == 0:
        n[FREED] = place
        n[FEWER] = place
        n[OVER_LINE] = line_id
    else:
        cu = np.int64(m.wave[U(WAVE_HALVES * place + W_CU)])
        queue_line(e, m, cu, 2 * line_id)
        n[KICK_CU] = cu


@inlined
def _free_place(m: Machine, n: Int64, k: Int64) -> None:
    """The wavefront FREED, and its CU, have a place back."""
    wave, cu_word = WAVE_HALVES * n[FREED], m.cu_word
    cu = np.int64(m.wave[U(wave + W_CU)])
    m.wave[U(wave + W_PLACES)] -= 1
    m.cu[U(CU_HALVES * cu + C_PLACES)] -= 1
    if m.cu[U(CU_HALVES * cu + C_PLACES)] == k[N_MAX_PLACES] - 1:
        cu_word[U(CU_WORDS * cu + C_FULL_PS)] += n[NOW] - cu_word[U(CU_WORDS * cu + C_FULL_SINCE)]
        cu_word[U(CU_WORDS * cu + C_FULL_SINCE)] = -1
    if m.wave[U(wave + W_DOING)] == D_FULL:
        go_later(m.todo, n, n[FREED])
    n[KICK_CU] = cu
