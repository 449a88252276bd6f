"""A 4-ary heap of (time, payload) pairs, ties by payload: what the wheel cannot reach, and tasks, in their order.

Like engine/_heap.py, but for the ties, whose order there does not matter and would cost time.
"""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int64

U = np.uint64


@inlined
def push(heap: Int64, size: Int, time_ps: Int, payload: Int) -> Int:
    """Add an entry; returns the new size. The caller has made sure of the room."""
    at = np.int64(size)
    while at > 0:
        parent = (at - 1) >> 2
        parent_ps = heap[U(2 * parent)]
        if parent_ps < time_ps or (parent_ps == time_ps and heap[U(2 * parent + 1)] <= payload):
            break
        heap[U(2 * at)] = parent_ps
        heap[U(2 * at + 1)] = heap[U(2 * parent + 1)]
        at = parent
    heap[U(2 * at)] = time_ps
    heap[U(2 * at + 1)] = payload
    return size + 1


@inlined
def pop(heap: Int64, size: Int) -> Int:
    """Drop the entry at the top; returns the new size."""
    size -= 1
    time_ps = heap[U(2 * size)]
    payload = heap[U(2 * size + 1)]
    at: Int = np.int64(0)
    while True:
        child = 4 * at + 1
        if child >= size:
            break
        best = child
        for other in range(child + 1, min(child + 4, size)):
            earlier = heap[U(2 * other)] < heap[U(2 * best)]
            tie = heap[U(2 * other)] == heap[U(2 * best)]
            if earlier or (tie and heap[U(2 * other + 1)] < heap[U(2 * best + 1)]):
                best = other
        best_ps = heap[U(2 * best)]
        if best_ps > time_ps or (best_ps == time_ps and heap[U(2 * best + 1)] >= payload):
            break
        heap[U(2 * at)] = best_ps
        heap[U(2 * at + 1)] = heap[U(2 * best + 1)]
        at = best
    heap[U(2 * at)] = time_ps
    heap[U(2 * at + 1)] = payload
    return size
