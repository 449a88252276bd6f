"""What a request does where it is: at a link inside a GPU, at the memory, and back at its wavefront."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._acts import give_request, go_later, post, wait_key
from trine.gpu._cache import DIRTY, HIT, look_up
from trine.gpu._monitor import arm, fall_asleep, rouse
from trine.gpu._outside import is_uncached
from trine.gpu._state import (
    ADDRESS,
    AMOUNT,
    AT_OPEN,
    BASE,
    C_ALU_PS,
    CHANNEL,
    COLD,
    CU_EVENTS,
    CU_WORDS,
    END,
    ENTITY_HALVES,
    ENTITY_WORDS,
    FEWER,
    FREED,
    IDLE,
    IN_WHEEL,
    ISSUED_PS,
    KEY,
    KIND,
    KIND_ACQUIRE,
    KIND_LOAD,
    KIND_RELEASE,
    KIND_STORE,
    L_OP,
    L_READS,
    L_UNACKED,
    LINE,
    LINE_HALVES,
    M_AGAIN,
    M_ARMED,
    M_POLLS,
    M_WOKEN,
    MONITOR,
    N_CYCLE_PS,
    N_FIRST_CHANNEL,
    N_FIRST_REQUEST,
    N_FIRST_SLICE,
    N_L2_DATA_PS,
    N_L2_PS,
    N_LINE_BYTES,
    N_LOAD_PS,
    N_MEM_DATA_PS,
    N_MEMORY_PS,
    N_MONITORS,
    N_POLL_PS,
    N_POSTED,
    N_REDUCE_PER_CYCLE,
    N_RESOURCES,
    N_WAKEUP_PS,
    NEXT,
    NOW,
    NUM_COUNTS,
    NUM_HEAP,
    NUM_OPEN,
    ONWARD,
    OVER_LINE,
    PAIR,
    POLL,
    POLLERS,
    POS,
    QUEUED_POLLS,
    R_AFTER_PS,
    R_BUSY_PS,
    R_DATA,
    R_DATA_PS,
    R_FREE_PS,
    READY_LINE,
    RESOURCE_WORDS,
    S_ALU,
    S_CHANNEL,
    S_DONE,
    S_RETRY,
    SCHEDULED,
    SEMAPHORE,
    SIZE,
    STAGE,
    TIME_PS,
    W_CU,
    WAKE,
    WAVE,
    WAVE_HALVES,
    Code,
    Entities,
    Machine,
    Seen,
    Ways,
)
from trine.gpu._wheel import give_event
from trine.gpu.program import REDUCE

U = np.uint64


@inlined
def serve(resources: Int64, resource: Int, now: Int, service_ps: Int, control: Int) -> Int:
    """A message (``control`` 1: without data) is served after all that came before; returns when it has been."""
    at = RESOURCE_WORDS * resource
    end_ps = max(now, resources[U(at + R_FREE_PS)]) + service_ps
    resources[U(at + R_FREE_PS)] = end_ps
    resources[U(at + R_DATA + control)] += 1
    resources[U(at + R_BUSY_PS)] += service_ps
    return end_ps


@inlined
def hop(e: Entities, w: Ways, m: Machine, n: Int64, r: Int) -> None:
    """A message at a link inside a GPU."""
    half, resources = e.half, m.resource
    h = ENTITY_HALVES * r
    row = np.int64(half[U(h + POS)])
    resource = np.int64(w.hops[U(row)]) + half[U(h + BASE)]
    control = np.int64(half[U(h + SIZE)]) & 1
    at = RESOURCE_WORDS * resource
    left_ps = serve(resources, resource, n[NOW], resources[U(at + R_DATA_PS + control)], control)
    e.word[U(ENTITY_WORDS * r + TIME_PS)] = left_ps + resources[U(at + R_AFTER_PS)]
    half[U(h + POS)] = row + 1
    if row + 1 < half[U(h + END)]:
        n[SCHEDULED] = r
    else:
        n[ONWARD] = r


@inlined
def memory(e: Entities, m: Machine, seen: Seen, n: Int64, k: Int64, r: Int, stage: Int) -> None:
    """A request at the L2 or the channel (S_MEMORY), or at the channel behind the L2 (S_CHANNEL)."""
    half, cold, word, resources, now = e.half, e.cold, e.word, m.resource, n[NOW]
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    kind = cold[U(at + KIND)]
    control = np.int64(1) if kind >= KIND_ACQUIRE else np.int64(0)
    channel = half[U(h + BASE)] + k[N_FIRST_CHANNEL] + cold[U(at + CHANNEL)]
    past_l2 = is_uncached(k, cold[U(at + ADDRESS)])
    if k[N_FIRST_SLICE] < 0 or stage == S_CHANNEL or past_l2:
        done_ps = serve(resources, channel, now, k[N_MEM_DATA_PS + control], control) + k[N_MEMORY_PS]
    else:
        found = np.int64(HIT)
        if control == 0:
            gpu = half[U(h + BASE)] // k[N_RESOURCES]
            found = look_up(m, seen, n, k, gpu, cold[U(at + CHANNEL)], cold[U(at + ADDRESS)], kind)
        slice_ = channel - k[N_FIRST_CHANNEL] + k[N_FIRST_SLICE]
        done_ps = serve(resources, slice_, now, k[N_L2_DATA_PS + control], control) + k[N_L2_PS]
        if found & DIRTY:
            free = RESOURCE_WORDS * channel + R_FREE_PS
            resources[U(free)] = max(now, resources[U(free)]) + k[N_MEM_DATA_PS]
            resources[U(RESOURCE_WORDS * channel + R_BUSY_PS)] += k[N_MEM_DATA_PS]
        if found & HIT == 0 and kind == KIND_LOAD:
            half[U(h + STAGE)] = S_CHANNEL
            give_event(word, n, r, done_ps, word[U(ENTITY_WORDS * r + KEY)])
            return
    word[U(ENTITY_WORDS * r + TIME_PS)] = done_ps
    is_local_store = kind == KIND_STORE and k[N_POSTED] == 1 and half[U(h + PAIR)] < 0
    if cold[U(at + SEMAPHORE)] >= 0 or is_local_store:
        half[U(h + STAGE)] = S_DONE
        n[SCHEDULED] = r
    else:
        n[ONWARD] = r


@inlined
def done(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, r: Int) -> None:
    """The memory has done what it was asked: semaphores change, others look at them, the answer leaves."""
    half, cold, semaphores, waiting = e.half, e.cold, m.semaphore, m.waiting
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    semaphore = cold[U(at + SEMAPHORE)]
    kind = cold[U(at + KIND)]
    if kind in (KIND_STORE, KIND_RELEASE):
        if semaphore >= 0:
            semaphores[U(semaphore)] += cold[U(at + AMOUNT)]
            n[WAKE] = semaphore
        if k[N_POSTED] == 1 and half[U(h + PAIR)] < 0:
            post(c, m, n, half, r)
    else:
        waits = waiting[U(2 * semaphore)] >= 0
        if not waits and semaphores[U(semaphore)] >= cold[U(at + AMOUNT)]:
            semaphores[U(semaphore)] -= cold[U(at + AMOUNT)]
            cold[U(at + AMOUNT)] = 0
        elif k[N_POLL_PS] < 0:
            half[U(h + NEXT)] = -1
            if waits:
                half[U(ENTITY_HALVES * np.int64(waiting[U(2 * semaphore + 1)]) + NEXT)] = r
            else:
                waiting[U(2 * semaphore)] = r
            waiting[U(2 * semaphore + 1)] = r
            return
        elif k[N_MONITORS] >= 0 and kind == KIND_ACQUIRE:
            arm(e, c, m, seen, k, r)
    e.word[U(ENTITY_WORDS * r + TIME_PS)] = n[NOW]
    n[ONWARD] = r


@inlined
def wake(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64) -> None:
    """The semaphore has changed: who waits for it first is answered, if it can be; who sleeps on its line wakes up."""
    cold, semaphore = e.cold, n[WAKE]
    r = np.int64(m.waiting[U(2 * semaphore)])
    amount = COLD * (r - k[N_FIRST_REQUEST]) + AMOUNT
    if r < 0 or cold[U(amount)] > m.semaphore[U(semaphore)]:
        if not rouse(e, c, m, seen, n, k):
            n[WAKE] = -1
        return
    m.waiting[U(2 * semaphore)] = e.half[U(ENTITY_HALVES * r + NEXT)]
    m.semaphore[U(semaphore)] -= cold[U(amount)]
    cold[U(amount)] = 0
    e.word[U(ENTITY_WORDS * r + TIME_PS)] = n[NOW]
    n[ONWARD] = r


@inlined
def answer(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64, r: Int) -> bool:
    """The answer is back at the CU; returns whether nothing will ever happen but polls."""
    half, cold, line = e.half, e.cold, m.line
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    place = np.int64(half[U(h + WAVE)])
    kind = cold[U(at + KIND)]
    if kind in (KIND_LOAD, KIND_ACQUIRE):
        if kind == KIND_LOAD:
            gpu = np.int64(c.cu_gpu[U(m.wave[U(WAVE_HALVES * place + W_CU)])])
            seen.counts[U(NUM_COUNTS * gpu + N_LOAD_PS)] += n[NOW] - cold[U(at + ISSUED_PS)]
        was_poll = half[U(h + SIZE)] >= POLL
        if cold[U(at + SEMAPHORE)] >= 0 and cold[U(at + AMOUNT)] > 0:
            waits = cold[U(at + MONITOR)] if kind == KIND_ACQUIRE else np.int64(M_POLLS)
            if waits == M_ARMED:
                fall_asleep(e, n, k, r)
                return False
            if not was_poll:
                n[POLLERS] += 1
                half[U(h + SIZE)] |= POLL
            if n[IDLE] > 64 * (n[POLLERS] + 2) and _only_polls(n):
                return True
            half[U(h + STAGE)] = S_RETRY
            pause_ps = k[N_POLL_PS]
            if waits == M_WOKEN:
                cold[U(at + MONITOR)] = M_AGAIN
                pause_ps = k[N_WAKEUP_PS]
            give_event(e.word, n, r, n[NOW] + pause_ps, wait_key(e, c, k, m, r))
            return False
        if was_poll:
            n[POLLERS] -= 1
        if kind == KIND_LOAD:
            _read(e, c, m, n, k, r)
            return False
        n[FREED] = place
        go_later(m.todo, n, place)
    else:
        if k[N_POSTED] == 0:
            post(c, m, n, half, r)
        line_id = np.int64(half[U(h + LINE)])
        line[U(LINE_HALVES * line_id + L_UNACKED)] -= 1
        if line[U(LINE_HALVES * line_id + L_UNACKED)] == 0:
            n[FEWER] = place
            n[OVER_LINE] = line_id
    give_request(e.fresh, n, r)
    return False


@inlined
def _read(e: Entities, c: Code, m: Machine, n: Int64, k: Int64, r: Int) -> None:
    """A read is back; the last of its line goes to the ALU if there is something to reduce, else the line is ready."""
    half, line = e.half, m.line
    line_id = np.int64(half[U(ENTITY_HALVES * r + LINE)])
    place = np.int64(half[U(ENTITY_HALVES * r + WAVE)])
    left = line[U(LINE_HALVES * line_id + L_READS)] - 1
    line[U(LINE_HALVES * line_id + L_READS)] = left
    op = np.int64(line[U(LINE_HALVES * line_id + L_OP)])
    reads = np.int64(c.reads[U(op)])
    if left == 0 and c.kind[U(op)] == REDUCE and reads > 1:
        total = (reads - 1) * k[N_LINE_BYTES]
        cycles = (total + k[N_REDUCE_PER_CYCLE] - 1) // k[N_REDUCE_PER_CYCLE]
        alu = CU_WORDS * np.int64(m.wave[U(WAVE_HALVES * place + W_CU)]) + C_ALU_PS
        at_ps = max(n[NOW], m.cu_word[U(alu)]) + cycles * k[N_CYCLE_PS]
        m.cu_word[U(alu)] = at_ps
        half[U(ENTITY_HALVES * r + STAGE)] = S_ALU
        give_event(e.word, n, r, at_ps, wait_key(e, c, k, m, r))
        return
    if left > 0:
        n[FREED] = place
    else:
        n[READY_LINE] = line_id
    give_request(e.fresh, n, r)


@inlined
def _only_polls(n: Int64) -> bool:
    """Whether all events to come are of polls (but the one whose event it is), or of CUs that have polls to repeat."""
    events = n[IN_WHEEL] + n[NUM_OPEN] - n[AT_OPEN] + n[NUM_HEAP] + 1
    return bool(events - n[CU_EVENTS] + n[QUEUED_POLLS] == n[POLLERS])
