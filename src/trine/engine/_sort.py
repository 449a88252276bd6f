"""Sorting in kernels, which allocate nothing."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.arrays import Int32

U = np.uint64


@inlined
def sort(values: Int32, count: Int) -> None:
    """Sort values[:count] in place, ascending: heapsort, as the number may be large and kernels allocate nothing."""
    for start in range(count // 2 - 1, -1, -1):
        _sift(values, np.int64(start), count)
    for last in range(count - 1, 0, -1):
        values[U(0)], values[U(last)] = values[U(last)], values[U(0)]
        _sift(values, np.int64(0), np.int64(last))


@inlined
def _sift(values: Int32, at: Int, count: Int) -> None:
    """Move values[at] down until none of its two children is larger."""
    value = values[U(at)]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and values[U(child + 1)] > values[U(child)]:
            child += 1
        if values[U(child)] <= value:
            break
        values[U(at)] = values[U(child)]
        at = child
    values[U(at)] = value
