"""The L2: which lines are there. Tags change in the order in which messages arrive (docs/design/gpu-model.md)."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64
from trine.gpu._state import N_CHANNELS, N_HITS, N_LINE_BYTES, N_MISSES, N_SETS, N_WAYS, NUM_COUNTS, TICK, Machine, Seen

U = np.uint64

#: What an access finds, as sum: 1 a hit; 2 a dirty line has to go.
HIT, DIRTY = 1, 2


@inlined
def look_up(m: Machine, seen: Seen, n: Int64, k: Int64, gpu: Int, channel: Int, address: Int, stores: Int) -> Int:
    """The line of ``address`` is there from now on, the most recent of its set; returns what had to happen for that.

    A stamp is the number of the access, twice, and 1 more where the line is dirty; 0: the place is empty.
    """
    number = address // k[N_LINE_BYTES]
    ways = k[N_WAYS]
    first = ((gpu * k[N_CHANNELS] + channel) * k[N_SETS] + (number // k[N_CHANNELS]) % k[N_SETS]) * ways
    n[TICK] += 1
    oldest = first
    for place in range(first, first + ways):
        if m.stamp[U(place)] > 0 and m.tag[U(place)] == number:
            m.stamp[U(place)] = 2 * n[TICK] + (m.stamp[U(place)] & 1 | stores)
            seen.counts[U(NUM_COUNTS * gpu + N_HITS)] += 1
            return HIT
        if m.stamp[U(place)] < m.stamp[U(oldest)]:
            oldest = np.int64(place)
    was_dirty = m.stamp[U(oldest)] & 1
    m.tag[U(oldest)] = number
    m.stamp[U(oldest)] = 2 * n[TICK] + stores
    seen.counts[U(NUM_COUNTS * gpu + N_MISSES)] += 1
    return DIRTY * was_dirty
