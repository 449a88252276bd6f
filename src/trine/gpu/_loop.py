"""The load-store event loop, compiled. Its semantics are those of reference.py (docs/design/gpu-model.md).

What a turn of the loop hands on is in the scalars ``n``: set by what happens (in the modules beside this one), taken
back to -1 by who deals with it.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined, kernel
from trine.arrays import Int64
from trine.engine._limits import MAX_PS
from trine.engine._state import TaskTables
from trine.gpu._acts import give_request, go_later, wake_group
from trine.gpu._after import settle
from trine.gpu._flows import deliver, flow_event, inject
from trine.gpu._go import go_on
from trine.gpu._issue import issue, kick_cu
from trine.gpu._lanes import cross
from trine.gpu._later import push
from trine.gpu._legs import GONE, next_leg
from trine.gpu._outside import arrive
from trine.gpu._stages import answer, done, hop, memory, wake
from trine.gpu._starts import begin, begin_ready, dispatch, end_task, far_event, kick_gpu
from trine.gpu._state import (
    BEGIN,
    D_BARRIER,
    DELIVER,
    ENDED,
    ENTITY_HALVES,
    ENTITY_WORDS,
    FINISHED,
    IDLE,
    INJECT,
    KEY,
    KICK_CU,
    KICK_GPU,
    LINE,
    LINES_FULL,
    LOG_FULL,
    LOG_ROOM,
    MARGIN,
    N_FIRST_DISPATCHER,
    N_FIRST_REQUEST,
    N_FIRST_WAVE,
    N_TASKS,
    NEXT_OUTSIDE,
    NO_ANSWER,
    NUM_EVENTS,
    NUM_FREE_LINES,
    NUM_FREE_REQUESTS,
    NUM_HEAP,
    NUM_LOG,
    NUM_READY,
    NUM_TODO,
    ONWARD,
    OTHER,
    OVERFLOW,
    OWN_KEY,
    POLL,
    READY_LINE,
    REQUESTS_FULL,
    RETRIED,
    S_ALU,
    S_ANSWER,
    S_CHANNEL,
    S_DONE,
    S_HOP,
    S_LEFT,
    S_RETRY,
    SCHEDULED,
    SHIFT_LABEL,
    SIZE,
    STAGE,
    STOP_PS,
    STOPPED,
    STUCK,
    TIME_PS,
    UNRECORDED,
    W_DOING,
    W_GROUP,
    WAKE,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Outside,
    Seen,
    Ways,
    Wheel,
)
from trine.gpu._wheel import FROM_HEAP, next_event, schedule, take_far

U = np.uint64


@kernel
def advance(
    work: TaskTables, c: Code, w: Ways, o: Outside, e: Entities, wheel: Wheel, m: Machine, seen: Seen, n: Int64,
    k: Int64, budget: Int,
) -> Int:  # fmt: skip
    """Run until nothing can happen, ``budget`` events have, an array is full or it is time to stop; returns why.

    All state is in the arguments, so that the shell may grow arrays and call again. One turn does one thing: what
    follows at once from the last event, in the order of the branches below, else the next event. Each function is
    called from one place: every call is compiled as a copy.
    """
    half, word = e.half, e.word
    limit = n[NUM_EVENTS] + budget
    first_request = k[N_FIRST_REQUEST]
    # In the heap: ends of tasks (2 * task), launches (+ 1), the next write of a replayed peer, then entities.
    first_far = 2 * k[N_TASKS] + 1
    follows = True  # something may follow from the last event: most events are hops, from which nothing does
    status = np.int64(FINISHED)
    while True:
        r = np.int64(-1)  # the request whose event it is
        if follows:
            if n[NUM_FREE_REQUESTS] < MARGIN:
                status = np.int64(REQUESTS_FULL)
                break
            if n[NUM_FREE_LINES] < MARGIN:
                status = np.int64(LINES_FULL)
                break
            if n[NUM_TODO] > 0:
                go_on(e, c, m, seen, n, k)
            elif n[KICK_CU] >= 0:
                kick_cu(e, c, m, n, k)
            elif n[WAKE] >= 0:
                wake(e, c, m, seen, n, k)
            elif n[INJECT] >= 0:
                inject(e, c, w, m, seen, n, k)
            elif n[DELIVER] >= 0:
                deliver(e, c, w, m, n, k)
            elif n[BEGIN] >= 0:
                if begin(work, e, c, w, wheel, n, k):
                    status = np.int64(OVERFLOW)
                    break
            elif n[NUM_READY] > 0:
                begin_ready(work, n)
            elif n[KICK_GPU] >= 0:
                kick_gpu(e, m, n, k)
            else:
                follows = False
                continue
        else:
            entity = next_event(e, wheel, n, limit)
            idle = n[IDLE]
            n[IDLE] = 0
            if entity >= first_request:
                r = entity
                if half[U(ENTITY_HALVES * r + SIZE)] >= POLL:
                    n[IDLE] = idle + 1
            else:
                follows = True
                if entity >= k[N_FIRST_DISPATCHER]:
                    dispatch(c, m, seen, n, k, entity - k[N_FIRST_DISPATCHER])
                elif entity >= k[N_FIRST_WAVE]:
                    wave_event(m, n, entity - k[N_FIRST_WAVE])
                elif entity >= 0:
                    r = issue(e, c, w, m, o, seen, n, k, entity, idle)
                elif entity == FROM_HEAP:
                    if wheel.heap[U(0)] > n[STOP_PS]:
                        n[IDLE] = idle
                        status = np.int64(STOPPED)
                        break
                    payload = take_far(wheel, n)
                    if payload == first_far - 1:
                        arrive(e, w, m, o, n, k)
                        if n[NEXT_OUTSIDE] < len(o.time_ps):
                            n[NUM_HEAP] = push(wheel.heap, n[NUM_HEAP], o.time_ps[U(n[NEXT_OUTSIDE])], payload)
                    else:
                        if payload >= first_far:
                            n[IDLE] = idle  # on its way into the wheel: nothing has happened
                        far_event(c, m, n, first_far, payload)
                else:
                    n[IDLE] = idle
                    status = FROM_HEAP - 1 - entity
                    break
        if r >= 0:
            stage = np.int64(half[U(ENTITY_HALVES * r + STAGE)])
            if stage == S_HOP:
                hop(e, w, m, n, r)
            elif stage <= S_LEFT:
                follows = True
                cross(e, c, w, m, n, k, r, stage)
            elif stage <= S_CHANNEL:
                memory(e, m, seen, n, k, r, stage)
            elif stage == S_DONE:
                follows = True
                done(e, c, m, seen, n, k, r)
            elif stage == S_ANSWER:
                follows = True
                if answer(e, c, m, seen, n, k, r):
                    status = np.int64(STUCK)
                    break
            else:
                follows = True
                if stage == S_ALU:
                    n[READY_LINE] = half[U(ENTITY_HALVES * r + LINE)]
                    give_request(e.fresh, n, r)
                elif stage == S_RETRY:
                    n[RETRIED] = r
                else:
                    flow_event(e, w, m, n, k, r, stage)
        if follows:
            settle(e, m, n, k)
            if n[ENDED] >= 0:
                end_task(work, n)
        scheduled = n[SCHEDULED]
        if n[ONWARD] >= 0:
            scheduled = n[ONWARD]
            n[ONWARD] = -1
            label = next_leg(e, w, c, m, o, n, k, scheduled)
            if label == GONE:
                give_request(e.fresh, n, scheduled)
                scheduled = n[OTHER]
                n[OTHER] = -1
            else:
                own_key = word[U(ENTITY_WORDS * scheduled + OWN_KEY)]
                word[U(ENTITY_WORDS * scheduled + KEY)] = own_key | (label << SHIFT_LABEL)
        while scheduled >= 0:
            if word[U(ENTITY_WORDS * scheduled + TIME_PS)] > MAX_PS:
                status = np.int64(OVERFLOW)
                break
            schedule(e, wheel, n, first_far, scheduled)
            scheduled = n[OTHER]
            n[OTHER] = -1
        n[SCHEDULED] = -1
        if n[NUM_LOG] > n[LOG_ROOM]:
            status = np.int64(LOG_FULL) if n[UNRECORDED] < 0 else np.int64(NO_ANSWER)
        if status != FINISHED:
            break
    return status


@inlined
def wave_event(m: Machine, n: Int64, place: Int) -> None:
    """A wavefront goes on: from the ALU, or with all others from a barrier."""
    if m.wave[U(WAVE_HALVES * place + W_DOING)] == D_BARRIER:
        wake_group(m, n, np.int64(m.group_first[U(m.wave[U(WAVE_HALVES * place + W_GROUP)])]))
    else:
        go_later(m.todo, n, place)
