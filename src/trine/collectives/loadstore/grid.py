"""Durations between a grid of sizes, so that jobs with many sizes need few runs."""

from __future__ import annotations

from collections.abc import Callable

#: The smallest and the largest size that is run; beyond, bytes are taken to cost what they cost between half of the
#: largest and the largest.
LEAST, MOST = 16, 16 << 20
#: Sizes of the grid in each doubling.
STEPS = 4


def around(size_bytes: int) -> tuple[int, int]:
    """The sizes of the grid that a duration is interpolated between: twice the size itself where that is one of them.

    Below the grid its first one; above it the two that it is continued from.
    """
    if size_bytes <= LEAST:
        return LEAST, LEAST
    if size_bytes > MOST:
        return MOST // 2, MOST
    step = (1 << (size_bytes.bit_length() - 1)) // STEPS
    low = size_bytes // step * step
    return (low, low) if low == size_bytes else (low, low + step)


def duration_ps(size_bytes: int, at: Callable[[int], int]) -> int:
    """Interpolate linearly; ``at`` gives the duration of a size of the grid. Never shorter than the lower one's."""
    low, high = around(size_bytes)
    first = at(low)
    if low == high:
        return first
    rise = max(0, at(high) - first)
    return first + rise * (size_bytes - low) // (high - low)
