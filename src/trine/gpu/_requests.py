"""What a request knows when it is issued: its line, where that lies, and the way there."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._acts import own_key
from trine.gpu._legs import walk
from trine.gpu._outside import note, number_answer, way_of_address
from trine.gpu._state import (
    ADDRESS,
    AMOUNT,
    BASE,
    CHANNEL,
    COLD,
    ENTITY_HALVES,
    ENTITY_WORDS,
    ISSUED_PS,
    KEY,
    KIND,
    KIND_ACQUIRE,
    KIND_LOAD,
    KIND_STORE,
    L_NUMBER,
    L_OUT,
    LINE,
    LINE_HALVES,
    M_POLLS,
    MESSAGE_CLASS,
    MONITOR,
    N_ANSWERS,
    N_CHANNELS,
    N_CU_CHANNEL,
    N_CU_PORT,
    N_CUS,
    N_FIRST_REQUEST,
    N_FLAGGED,
    N_MEM_INTERLEAVE,
    N_POLLS,
    N_PORTS,
    N_RECORD,
    N_RESOURCES,
    NOW,
    NUM_COUNTS,
    OWN_KEY,
    PAIR,
    POLL,
    SEMAPHORE,
    SETS_OUT,
    SIZE,
    W_CU,
    W_OP,
    WAVE,
    WAVE_HALVES,
    WAY_BACK,
    WAY_HALVES,
    WAY_OUT,
    Y_PORT_OUT,
    Code,
    Entities,
    Machine,
    Outside,
    Seen,
    Ways,
)
from trine.gpu.program import READ_FLAGGED

U = np.uint64


@inlined
def make_request(
    e: Entities, c: Code, w: Ways, m: Machine, n: Int64, k: Int64, r: Int, kind: Int, place: Int, operand: Int,
    line: Int,
) -> None:  # fmt: skip
    """A request of ``kind`` for an operand of ``line`` (-1: it has none) is issued."""
    half, cold = e.half, e.cold
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    pair = np.int64(c.pair[U(operand)])
    number = np.int64(0)
    if line >= 0:
        number = np.int64(m.line[U(LINE_HALVES * line + L_NUMBER)])
    address = c.address[U(operand)] + np.int64(c.step[U(operand)]) * number
    semaphore = np.int64(c.semaphore[U(operand)])
    amount = np.int64(1)
    if c.role[U(operand)] >= READ_FLAGGED:
        semaphore += number
    elif kind >= KIND_ACQUIRE:
        amount = c.amount[U(m.wave[U(WAVE_HALVES * place + W_OP)])]
    cold[U(at + ADDRESS)] = address
    cold[U(at + KIND)] = kind
    cold[U(at + CHANNEL)] = (address // k[N_MEM_INTERLEAVE]) % k[N_CHANNELS]
    cold[U(at + SEMAPHORE)] = semaphore
    cold[U(at + AMOUNT)] = amount
    cold[U(at + ISSUED_PS)] = n[NOW]
    if pair >= 0:
        cold[U(at + WAY_OUT)] = way_of_address(w.pair_out, k, pair, address)
        cold[U(at + WAY_BACK)] = way_of_address(w.pair_back, k, pair, address)
    else:
        cold[U(at + MONITOR)] = M_POLLS
    half[U(h + PAIR)] = pair
    half[U(h + WAVE)] = place
    half[U(h + LINE)] = line
    half[U(h + SIZE)] = 0 if kind == KIND_STORE else 1


@inlined
def poll_again(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, r: Int) -> None:
    """A poll is issued again."""
    h = ENTITY_HALVES * r
    e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + ISSUED_PS)] = n[NOW]
    e.half[U(h + SIZE)] = POLL + 1
    gpu = np.int64(c.cu_gpu[U(m.wave[U(WAVE_HALVES * np.int64(e.half[U(h + WAVE)]) + W_CU)])])
    seen.counts[U(NUM_COUNTS * gpu + N_POLLS)] += 1


@inlined
def set_out(
    e: Entities, c: Code, w: Ways, m: Machine, o: Outside, seen: Seen, n: Int64, k: Int64, r: Int
) -> None:  # fmt: skip
    """The request stands at the link out of its CU."""
    half, cold = e.half, e.cold
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    place = np.int64(half[U(h + WAVE)])
    cu = np.int64(m.wave[U(WAVE_HALVES * place + W_CU)])
    gpu = np.int64(c.cu_gpu[U(cu)])
    own_cu = cu - gpu * k[N_CUS]
    path = k[N_CU_CHANNEL] + own_cu * k[N_CHANNELS] + cold[U(at + CHANNEL)]
    if half[U(h + PAIR)] >= 0:
        path = k[N_CU_PORT] + own_cu * k[N_PORTS] + w.way[U(WAY_HALVES * cold[U(at + WAY_OUT)] + Y_PORT_OUT)]
    walk(half, w.path, h, L_OUT, path)
    half[U(h + BASE)] = gpu * k[N_RESOURCES]
    key = own_key(c, m, k, place, np.int64(MESSAGE_CLASS))
    e.word[U(ENTITY_WORDS * r + OWN_KEY)] = key
    e.word[U(ENTITY_WORDS * r + KEY)] = key
    kind = cold[U(at + KIND)]
    seen.counts[U(NUM_COUNTS * gpu + kind)] += 1
    if kind == KIND_LOAD and cold[U(at + SEMAPHORE)] >= 0:
        seen.counts[U(NUM_COUNTS * gpu + N_FLAGGED)] += 1
    if half[U(h + PAIR)] >= 0:
        if k[N_ANSWERS] == 1:
            number_answer(e, o, k, r)
        if k[N_RECORD] == gpu:
            note(e, o, n, k, r, np.int64(SETS_OUT), np.int64(0))
