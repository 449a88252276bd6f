"""Wavefronts that sleep until a line is written (docs/design/replay.md, ways to wait).

Who is armed is in the list of the line of its semaphore, linked by the LINE that an acquire has no other use for.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._acts import wait_key
from trine.gpu._state import (
    BASE,
    COLD,
    ENTITY_HALVES,
    LINE,
    M_AGAIN,
    M_ARMED,
    M_ASLEEP,
    M_POLLS,
    M_WOKEN,
    MONITOR,
    N_FIRST_REQUEST,
    N_MONITOR_FULL,
    N_MONITORS,
    N_RESOURCES,
    N_SPURIOUS,
    N_WAKEUP_PS,
    N_WAKEUPS,
    NOW,
    NUM_COUNTS,
    POLL,
    POLLERS,
    S_RETRY,
    SEMAPHORE,
    SIZE,
    STAGE,
    WAKE,
    Code,
    Entities,
    Machine,
    Seen,
)  # fmt: skip
from trine.gpu._wheel import give_event

U = np.uint64


@inlined
def arm(e: Entities, c: Code, m: Machine, seen: Seen, k: Int64, r: Int) -> None:
    """The memory refuses an acquire: it takes an entry of the monitor table, if there is one."""
    half, armed = e.half, m.armed
    at = COLD * (r - k[N_FIRST_REQUEST])
    gpu = half[U(ENTITY_HALVES * r + BASE)] // k[N_RESOURCES]
    if e.cold[U(at + MONITOR)] == M_AGAIN:
        seen.counts[U(NUM_COUNTS * gpu + N_SPURIOUS)] += 1
    e.cold[U(at + MONITOR)] = M_POLLS
    line = np.int64(c.flag_line[U(e.cold[U(at + SEMAPHORE)])])
    if line < 0:
        return
    if m.sleepers[U(gpu)] >= k[N_MONITORS]:
        seen.counts[U(NUM_COUNTS * gpu + N_MONITOR_FULL)] += 1
        return
    m.sleepers[U(gpu)] += 1
    e.cold[U(at + MONITOR)] = M_ARMED
    half[U(ENTITY_HALVES * r + LINE)] = -1
    if armed[U(2 * line)] < 0:
        armed[U(2 * line)] = r
    else:
        half[U(ENTITY_HALVES * np.int64(armed[U(2 * line + 1)]) + LINE)] = r
    armed[U(2 * line + 1)] = r


@inlined
def rouse(e: Entities, c: Code, m: Machine, seen: Seen, n: Int64, k: Int64) -> bool:
    """Wake who armed first of those on the line of the semaphore WAKE; False: nobody is."""
    if k[N_MONITORS] < 0:
        return False
    line = np.int64(c.flag_line[U(n[WAKE])])
    if line < 0 or m.armed[U(2 * line)] < 0:
        return False
    r = np.int64(m.armed[U(2 * line)])
    h = ENTITY_HALVES * r
    at = COLD * (r - k[N_FIRST_REQUEST])
    m.armed[U(2 * line)] = e.half[U(h + LINE)]
    e.half[U(h + LINE)] = -1
    gpu = e.half[U(h + BASE)] // k[N_RESOURCES]
    m.sleepers[U(gpu)] -= 1
    seen.counts[U(NUM_COUNTS * gpu + N_WAKEUPS)] += 1
    if e.cold[U(at + MONITOR)] == M_ARMED:
        e.cold[U(at + MONITOR)] = M_WOKEN
        return True
    e.cold[U(at + MONITOR)] = M_AGAIN
    n[POLLERS] += 1
    e.half[U(h + SIZE)] |= POLL
    e.half[U(h + STAGE)] = S_RETRY
    give_event(e.word, n, r, n[NOW] + k[N_WAKEUP_PS], wait_key(e, c, k, m, r))
    return True


@inlined
def fall_asleep(e: Entities, n: Int64, k: Int64, r: Int) -> None:
    """The answer of an armed acquire is back: nothing happens to it until it is woken."""
    h = ENTITY_HALVES * r
    if e.half[U(h + SIZE)] >= POLL:
        n[POLLERS] -= 1
        e.half[U(h + SIZE)] &= POLL - 1
    e.cold[U(COLD * (r - k[N_FIRST_REQUEST]) + MONITOR)] = M_ASLEEP
