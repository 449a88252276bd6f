"""The first number of GPUs whose days or dollars cross a limit, with few tries.

Days fall and dollars rise with the number of GPUs, both nearly by a power law. So the search goes to the number at
which the law through the two nearest tries crosses the limit, and falls back to doubling and halving where it fails.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

#: Exponent of the first guess from a single try: nearly proportional to the number of GPUs.
USUAL_EXPONENT = 0.97
#: The search ends if the law puts the crossing within this factor of the smallest number known to cross.
CLOSE = 1.02


def first_count(
    counts: Sequence[int], guess: float, amount: Callable[[int], float | None], limit: float, is_falling: bool
) -> int | None:
    """Return the first of ``counts`` whose amount is at most ``limit`` (falling) or above it (rising), or None.

    counts: in ascending order; the search begins next to ``guess``. amount: tries one; None: no layout.
    """
    known: dict[int, float] = {}
    low, high = -1, len(counts)  # places: no amount at or below low crosses, that at high does
    place = min(range(len(counts)), key=lambda i: (abs(counts[i] - guess), i))
    while True:
        value = amount(counts[place])
        if value is not None:
            known[place] = value
        crosses = value is not None and (value <= limit if is_falling else value > limit)
        low, high = (low, place) if crosses else (place, high)
        if high - low <= 1:
            return None if high == len(counts) else counts[high]
        crossing = _crossing(counts, known, low, high, limit, is_falling)
        if crossing is None:
            place = _without_law(counts, low, high)
            continue
        if high < len(counts) and counts[high] <= CLOSE * crossing:
            return counts[high]
        expected = bisect_left(counts, crossing, low + 1, high)
        place = min(expected, high - 1)


def _crossing(
    counts: Sequence[int], known: dict[int, float], low: int, high: int, limit: float, is_falling: bool
) -> float | None:
    """Return the number of GPUs at which a power law crosses the limit between two places; None without a law."""
    around = [place for place in (low, high) if place in known]
    if len(around) == 2:
        tries = around
    else:
        tries = sorted(known, key=lambda each: min(abs(each - low), abs(each - high)))[:2]
    if not tries or (len(tries) == 1 and not is_falling):
        return None
    first = min(tries)
    exponent = -USUAL_EXPONENT
    if len(tries) == 2 and known[tries[0]] != known[tries[1]]:
        second = max(tries)
        exponent = math.log(known[second] / known[first]) / math.log(counts[second] / counts[first])
        if (exponent < 0) is not is_falling or abs(exponent) < 0.01:
            return None
    try:
        crossing = counts[first] * (limit / known[first]) ** (1 / exponent)
    except OverflowError:
        return None
    is_inside = (low < 0 or crossing > counts[low]) and (high == len(counts) or crossing <= counts[high] * CLOSE)
    return crossing if is_inside else None


def _without_law(counts: Sequence[int], low: int, high: int) -> int:
    """Return the next place: the geometric middle, or twice the number, or half of it."""
    if high == len(counts):
        return min(bisect_left(counts, 2 * counts[low], low + 1), high - 1)
    middle = counts[high] / 2 if low < 0 else math.sqrt(counts[low] * counts[high])
    return min(max(bisect_left(counts, middle, low + 1, high), low + 1), high - 1)
