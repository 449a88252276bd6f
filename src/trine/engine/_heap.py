"""A 4-ary heap of events, and sorting in kernels, which allocate nothing.

Four children of 16 bytes share a cache line or two; measured against a binary heap: 1.0 to 1.4 times as fast, against
one with decrease-key: 1.0 to 1.8 times.
"""

from __future__ import annotations

import numpy as np

from trine.common._jit import Int, inlined
from trine.common._records import Record, RecordArray
from trine.common.arrays import Int32

U = np.uint64

#: How entries of one time come out of a heap: in no particular order, which is faster, or by their payload.
ANY_ORDER, BY_PAYLOAD = False, True


@inlined
def push(heap: RecordArray, clock: Record, time_ps: Int, payload: Int, by_payload: bool) -> None:
    """Add an entry to the first ``clock.num_queued`` of ``heap``. The caller has made sure of the room."""
    place = np.int64(clock.num_queued)
    clock.num_queued = place + 1
    while place > 0:
        parent = (place - 1) >> 2
        parent_ps = heap[U(parent)].time_ps
        if parent_ps < time_ps or (parent_ps == time_ps and (not by_payload or heap[U(parent)].payload <= payload)):
            break
        heap[U(place)].time_ps = parent_ps
        heap[U(place)].payload = heap[U(parent)].payload
        place = parent
    heap[U(place)].time_ps = time_ps
    heap[U(place)].payload = payload


@inlined
def pop(heap: RecordArray, clock: Record, by_payload: bool) -> None:
    """Drop the entry at the top."""
    count = np.int64(clock.num_queued) - 1
    clock.num_queued = count
    time_ps = heap[U(count)].time_ps
    payload = heap[U(count)].payload
    place: Int = np.int64(0)
    while True:
        child = 4 * place + 1
        if child >= count:
            break
        best = child
        best_ps = heap[U(child)].time_ps
        for sibling in range(child + 1, min(child + 4, count)):
            sibling_ps = heap[U(sibling)].time_ps
            if sibling_ps < best_ps or (
                by_payload and sibling_ps == best_ps and heap[U(sibling)].payload < heap[U(best)].payload
            ):
                best = sibling
                best_ps = sibling_ps
        if best_ps > time_ps or (best_ps == time_ps and (not by_payload or heap[U(best)].payload >= payload)):
            break
        heap[U(place)].time_ps = best_ps
        heap[U(place)].payload = heap[U(best)].payload
        place = best
    heap[U(place)].time_ps = time_ps
    heap[U(place)].payload = payload


@inlined
def sort(values: Int32, count: Int) -> None:
    """Sort values[:count] in place, ascending: heapsort, as the number may be large."""
    for start in range(count // 2 - 1, -1, -1):
        _sift(values, np.int64(start), count)
    for last in range(count - 1, 0, -1):
        values[U(0)], values[U(last)] = values[U(last)], values[U(0)]
        _sift(values, np.int64(0), np.int64(last))


@inlined
def _sift(values: Int32, place: Int, count: Int) -> None:
    """Move values[place] down until it is at least as large as its two children."""
    value = values[U(place)]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and values[U(child + 1)] > values[U(child)]:
            child += 1
        if values[U(child)] <= value:
            break
        values[U(place)] = values[U(child)]
        place = child
    values[U(place)] = value
