"""A wavefront goes on with its operations until it has to wait."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int32, Int64
from trine.gpu._acts import do, wake_group, wave_key
from trine.gpu._state import (
    C_ALU_PS,
    C_GROUPS,
    C_HEAD,
    C_TAIL,
    C_WAVES,
    CU_HALVES,
    CU_WORDS,
    D_BARRIER,
    D_COMPUTING,
    D_COUNTING,
    D_DRAINING,
    D_FULL,
    D_GONE,
    D_OVER,
    D_QUEUED,
    ENDED,
    KICK_CU,
    KICK_GPU,
    LOOKED_FOR,
    N_BARRIER_PS,
    N_CYCLE_PS,
    N_FIRST_WAVE,
    N_UNROLL,
    NOT_WAITING,
    NOW,
    NUM_TODO,
    STOP_PS,
    W_COUNT,
    W_CU,
    W_DOING,
    W_END,
    W_GROUP,
    W_INDEX,
    W_LINE,
    W_OP,
    W_OPERAND,
    W_PLACES,
    W_QUEUE,
    W_SIBLING,
    W_UNFINISHED,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Seen,
)
from trine.gpu._wheel import give_event
from trine.gpu.program import ACQUIRE, BARRIER, COMPUTE, DMA, NOP, REDUCE, RELEASE, WAITCNT

U = np.uint64


@inlined
def go_on(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64) -> None:
    """The wavefront on top of the stack goes on."""
    wave, now = m.wave, n[NOW]
    n[NUM_TODO] -= 1
    place = np.int64(m.todo[U(n[NUM_TODO])])
    doing = _pass_operations(c, m, seen, n, k, place)
    do(m, seen, place, doing, now)
    cu = np.int64(wave[U(WAVE_HALVES * place + W_CU)])
    if doing == D_QUEUED:
        _queue(m, cu, place)
        n[KICK_CU] = cu
    elif doing == D_COMPUTING:
        alu = CU_WORDS * cu + C_ALU_PS
        amount = c.amount[U(wave[U(WAVE_HALVES * place + W_OP)])]
        done_ps = max(now, m.cu_word[U(alu)]) + amount * k[N_CYCLE_PS]
        m.cu_word[U(alu)] = done_ps
        give_event(e.word, n, k[N_FIRST_WAVE] + place, done_ps, wave_key(c, k, cu, place))
    elif doing == D_BARRIER:
        _come_to_barrier(e, c, m, n, k, place)
    elif doing == D_OVER:
        _end(c, m, seen, n, place)


@inlined
def _pass_operations(c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, place: Int) -> Int:
    """Pass operations that are over or another wavefront's; returns what it does now."""
    wave, op_start, now = m.wave, seen.op_start, n[NOW]
    at = WAVE_HALVES * place
    index = np.int64(wave[U(at + W_INDEX)])
    while True:
        op = np.int64(wave[U(at + W_OP)])
        if op == wave[U(at + W_END)]:
            return D_OVER if wave[U(at + W_UNFINISHED)] == 0 else D_DRAINING
        kind = np.int64(c.kind[U(op)])
        mine = index == 0 or kind not in (ACQUIRE, RELEASE, DMA)
        if mine:
            if op_start[U(op)] < 0:
                if op_start[U(op)] == LOOKED_FOR:
                    _begin_to_wait(n)
                op_start[U(op)] = now
            doing = _begin_or_wait(c, wave, k, at, op, kind)
            if doing >= 0:
                return doing
            seen.op_end[U(op)] = now
        wave[U(at + W_OP)] = op + 1
        wave[U(at + W_LINE)] = index
        wave[U(at + W_OPERAND)] = 0


@inlined
def _begin_to_wait(n: Int64) -> None:
    """A workgroup waits from now on; with the last one, this instant is the last that happens."""
    n[NOT_WAITING] -= 1
    if n[NOT_WAITING] == 0:
        n[STOP_PS] = n[NOW]


@inlined
def _begin_or_wait(c: Code, wave: Int32, k: Int64, at: Int, op: Int, kind: Int) -> Int:
    """What the wavefront does in an operation, -1: it is through with it.

    ``unroll`` limits the places of data operations.
    """
    issued = np.int64(wave[U(at + W_OPERAND)])
    if kind <= REDUCE:
        if wave[U(at + W_LINE)] >= c.amount[U(op)]:
            return -1
        unroll = np.int64(c.unroll[U(op)])
        if unroll == 0:
            unroll = k[N_UNROLL]
        return D_FULL if wave[U(at + W_PLACES)] >= unroll else D_QUEUED
    if kind == RELEASE:
        return D_QUEUED if issued < c.operands[U(op + 1)] - c.operands[U(op)] else -1
    if kind == WAITCNT:
        return D_COUNTING if wave[U(at + W_UNFINISHED)] > c.amount[U(op)] else -1
    if issued > 0 or kind == NOP:
        return -1
    if kind in (BARRIER, COMPUTE):
        wave[U(at + W_OPERAND)] = 1
        return D_BARRIER if kind == BARRIER else D_COMPUTING
    return D_QUEUED


@inlined
def _queue(m: Machine, cu: Int, place: Int) -> None:
    """The wavefront joins the end of its CU's queue."""
    wave, words = m.wave, m.cu
    at = CU_HALVES * cu
    wave[U(WAVE_HALVES * place + W_QUEUE)] = -1
    if words[U(at + C_HEAD)] < 0:
        words[U(at + C_HEAD)] = place
    else:
        wave[U(WAVE_HALVES * np.int64(words[U(at + C_TAIL)]) + W_QUEUE)] = place
    words[U(at + C_TAIL)] = place


@inlined
def _come_to_barrier(e: Entities, c: Code, m: Machine, n: Int64, k: Int64, place: Int) -> None:
    """With the last wavefront of the workgroup all go on, a while later."""
    wave, group_at = m.wave, m.group_at
    group = np.int64(wave[U(WAVE_HALVES * place + W_GROUP)])
    group_at[U(group)] += 1
    if group_at[U(group)] < wave[U(WAVE_HALVES * place + W_COUNT)]:
        return
    group_at[U(group)] = 0
    first = np.int64(m.group_first[U(group)])
    if k[N_BARRIER_PS] == 0:
        wake_group(m, n, first)
        return
    while wave[U(WAVE_HALVES * first + W_SIBLING)] >= 0:
        first = np.int64(wave[U(WAVE_HALVES * first + W_SIBLING)])
    cu = np.int64(wave[U(WAVE_HALVES * first + W_CU)])
    give_event(e.word, n, k[N_FIRST_WAVE] + first, n[NOW] + k[N_BARRIER_PS], wave_key(c, k, cu, first))


@inlined
def _end(c: Code, m: Machine, seen: Seen, n: Int64, place: Int) -> None:
    """A wavefront has ended; with the last one its workgroup, with the last of these the kernel."""
    wave, words, kernel = m.wave, m.cu, m.kernel
    at = WAVE_HALVES * place
    group = np.int64(wave[U(at + W_GROUP)])
    m.group_left[U(group)] -= 1
    if m.group_left[U(group)] > 0:
        return
    cu = np.int64(wave[U(at + W_CU)])
    seen.group_end[U(group)] = n[NOW]
    words[U(CU_HALVES * cu + C_GROUPS)] -= 1
    words[U(CU_HALVES * cu + C_WAVES)] -= wave[U(at + W_COUNT)]
    sibling = np.int64(m.group_first[U(group)])
    while sibling >= 0:
        wave[U(WAVE_HALVES * sibling + W_DOING)] = D_GONE
        sibling = np.int64(wave[U(WAVE_HALVES * sibling + W_SIBLING)])
    n[KICK_GPU] = c.cu_gpu[U(cu)]
    number = np.int64(c.group_kernel[U(group)])
    kernel[U(3 * number + 1)] -= 1
    if kernel[U(3 * number + 1)] == 0:
        n[ENDED] = c.kernel_task[U(number)]
