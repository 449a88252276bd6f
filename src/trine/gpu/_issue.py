"""A CU issues: writes of lines that are ready, polls again, reads of wavefronts in turns."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._acts import do, go_later, take_request
from trine.gpu._flows import make_flow
from trine.gpu._requests import make_request, poll_again, set_out
from trine.gpu._state import (
    C_FULL_SINCE,
    C_HEAD,
    C_LINES,
    C_PENDING,
    C_PLACES,
    C_READY_PS,
    CU_CLASS,
    CU_EVENTS,
    CU_HALVES,
    CU_WORDS,
    D_ACQUIRING,
    ENTITY_HALVES,
    IDLE,
    KICK_CU,
    KIND_ACQUIRE,
    KIND_FLOW,
    KIND_LOAD,
    KIND_RELEASE,
    KIND_STORE,
    L_NEXT,
    L_NUMBER,
    L_OP,
    L_READS,
    L_UNACKED,
    L_UNPOSTED,
    L_WAVE,
    L_WRITES,
    LINE_HALVES,
    N_CUS,
    N_ISSUE_PS,
    N_MAX_PLACES,
    NEXT,
    NOW,
    NUM_FREE_LINES,
    NUM_ISSUED,
    QUEUED_POLLS,
    SHIFT_CLASS,
    SHIFT_WAVE,
    W_COUNT,
    W_CURRENT,
    W_LINE,
    W_OP,
    W_OPERAND,
    W_PLACES,
    W_QUEUE,
    W_UNFINISHED,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Outside,
    Seen,
    Ways,
)
from trine.gpu._wheel import give_event
from trine.gpu.program import ACQUIRE, DMA, RELEASE, STORE

U = np.uint64


@inlined
def kick_cu(e: Entities, c: Code, m: Machine, n: Int64, k: Int64) -> None:
    """The CU gets an event, if it has none and may issue something."""
    words = m.cu
    cu = n[KICK_CU]
    n[KICK_CU] = -1
    at = CU_HALVES * cu
    has_place = words[U(at + C_HEAD)] >= 0 and words[U(at + C_PLACES)] < k[N_MAX_PLACES]
    if words[U(at + C_PENDING)] == 0 and (has_place or words[U(at + C_LINES)] >= 0):
        words[U(at + C_PENDING)] = 1
        n[CU_EVENTS] += 1
        at_ps = max(n[NOW], m.cu_word[U(CU_WORDS * cu + C_READY_PS)])
        own = cu - c.cu_gpu[U(cu)] * k[N_CUS]
        give_event(e.word, n, cu, at_ps, (np.int64(CU_CLASS) << SHIFT_CLASS) | (own << SHIFT_WAVE))


@inlined
def issue(
    e: Entities, c: Code, w: Ways, m: Machine, o: Outside, seen: Seen, n: Int64, k: Int64, cu: Int, idle: Int
) -> Int:  # fmt: skip
    """The event of a CU; returns the request that it issues, which stands at the link out of the CU now, or -1."""
    half, words = e.half, m.cu
    at = CU_HALVES * cu
    words[U(at + C_PENDING)] = 0
    n[CU_EVENTS] -= 1
    m.cu_word[U(CU_WORDS * cu + C_READY_PS)] = n[NOW] + k[N_ISSUE_PS]
    n[KICK_CU] = cu
    item = np.int64(words[U(at + C_LINES)])
    place = np.int64(words[U(at + C_HEAD)])
    kind, operand, line = np.int64(-1), np.int64(0), np.int64(-1)
    r = np.int64(-1)
    if item >= 0 and item & 1 == 1:
        r = item >> 1
        words[U(at + C_LINES)] = half[U(ENTITY_HALVES * r + NEXT)]
        n[IDLE] = idle + 1
        n[QUEUED_POLLS] -= 1
        poll_again(e, c, m, seen, n, k, r)
    elif item >= 0:
        line = item >> 1
        place = np.int64(m.line[U(LINE_HALVES * line + L_WAVE)])
        kind, operand = np.int64(KIND_STORE), _next_write(c, m, cu, line)
    elif place >= 0 and words[U(at + C_PLACES)] < k[N_MAX_PLACES]:
        words[U(at + C_HEAD)] = m.wave[U(WAVE_HALVES * place + W_QUEUE)]
        kind, operand, line = _next_of_wave(c, m, seen, n, k, place)
        if kind == KIND_FLOW:
            m.wave[U(WAVE_HALVES * place + W_UNFINISHED)] += 1
            flow = take_request(e.fresh, n)
            make_flow(e, c, m, n, k, flow, place, operand)
            return r
        _take_place(m, n, k, cu, place)
    if kind >= 0:
        r = take_request(e.fresh, n)
        make_request(e, c, w, m, n, k, r, kind, place, operand, line)
        n[NUM_ISSUED] += 1
    if r >= 0:
        set_out(e, c, w, m, o, seen, n, k, r)
    return r


@inlined
def _next_write(c: Code, m: Machine, cu: Int, line_id: Int) -> Int:
    """The operand of the next write of a line; with the last one the line leaves the queue."""
    line = m.line
    at = LINE_HALVES * line_id
    left = line[U(at + L_WRITES)]
    line[U(at + L_WRITES)] = left - 1
    if left == 1:
        m.cu[U(CU_HALVES * cu + C_LINES)] = line[U(at + L_NEXT)]
    return c.operands[U(line[U(at + L_OP)] + 1)] - left


@inlined
def _next_of_wave(c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, place: Int) -> tuple[Int, Int, Int]:
    """What a wavefront issues next: kind of request, operand, line (-1: none)."""
    wave, operands = m.wave, c.operands
    at = WAVE_HALVES * place
    op = np.int64(wave[U(at + W_OP)])
    issued = np.int64(wave[U(at + W_OPERAND)])
    wave[U(at + W_OPERAND)] = issued + 1
    kind_of_op = c.kind[U(op)]
    first, last = operands[U(op)], operands[U(op + 1)]
    if kind_of_op == ACQUIRE:
        do(m, seen, place, np.int64(D_ACQUIRING), n[NOW])
        return np.int64(KIND_ACQUIRE), first, np.int64(-1)
    go_later(m.todo, n, place)
    if kind_of_op == DMA:
        return np.int64(KIND_FLOW), last - 1, np.int64(-1)
    reads = np.int64(c.reads[U(op)])
    if issued == 0:
        _begin_line(m, n, place, op, reads, last - first)
    line = np.int64(wave[U(at + W_CURRENT)])
    if kind_of_op == RELEASE:
        return np.int64(KIND_RELEASE), first + issued, line
    kind = np.int64(KIND_LOAD)
    wanted = reads
    if kind_of_op == STORE:
        kind = np.int64(KIND_STORE)
        wanted = last - first
    if issued + 1 == wanted:
        wave[U(at + W_OPERAND)] = 0
        wave[U(at + W_LINE)] += wave[U(at + W_COUNT)]
    return kind, first + issued, line


@inlined
def _begin_line(m: Machine, n: Int64, place: Int, op: Int, reads: Int, operands: Int) -> None:
    """The next line of the wavefront's operation."""
    wave, line = m.wave, m.line
    n[NUM_FREE_LINES] -= 1
    found = np.int64(m.free_lines[U(n[NUM_FREE_LINES])])
    at = LINE_HALVES * found
    line[U(at + L_WAVE)] = place
    line[U(at + L_OP)] = op
    line[U(at + L_NUMBER)] = wave[U(WAVE_HALVES * place + W_LINE)]
    line[U(at + L_READS)] = reads
    line[U(at + L_WRITES)] = operands - reads
    line[U(at + L_UNPOSTED)] = operands - reads
    line[U(at + L_UNACKED)] = operands - reads
    wave[U(WAVE_HALVES * place + W_CURRENT)] = found
    wave[U(WAVE_HALVES * place + W_UNFINISHED)] += 1


@inlined
def _take_place(m: Machine, n: Int64, k: Int64, cu: Int, place: Int) -> None:
    """A request of a wavefront holds a place, of it and of its CU."""
    m.wave[U(WAVE_HALVES * place + W_PLACES)] += 1
    m.cu[U(CU_HALVES * cu + C_PLACES)] += 1
    if m.cu[U(CU_HALVES * cu + C_PLACES)] == k[N_MAX_PLACES]:
        m.cu_word[U(CU_WORDS * cu + C_FULL_SINCE)] = n[NOW]
