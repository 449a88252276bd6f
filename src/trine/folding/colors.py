"""Colour refinement of ranks and links by arrays: one round, how many colours there are, and the proof of the result.

Nothing here is compiled: a kernel would be three times as fast, but loading one costs more than all rounds of a job.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int32, Int64, UInt64

U = np.uint64

#: Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN, FIRST, SECOND = U(0x9E3779B97F4A7C15), U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
THIRTY, TWENTY_SEVEN, THIRTY_ONE = U(30), U(27), U(31)
SEPARATOR = -1


class ColorRounds:
    """Rounds of refinement over one neighbourhood.

    items[ptr[r]:ptr[r+1]]: what rank r sees, in order: the number of another rank, ranks + number of a link that it
    crosses, or SEPARATOR. slots: which of its routes an item belongs to. A link sees who crosses it, in no order. Both
    are sums: of colors mixed with their places, and of colors mixed with their slots. A sum of 64 bits can lie, and
    the result is checked without sums afterwards.
    """

    def __init__(self, ptr: Int64, items: Int32, slots: Int32, num_links: int) -> None:
        num_ranks = len(ptr) - 1
        counts = np.diff(ptr)
        self._items = np.where(items < 0, num_ranks + num_links, items)
        self._places = _term(np.arange(len(items)) - np.repeat(ptr[:-1], counts))
        self._seen = _Sums(counts)
        at = np.flatnonzero(items >= num_ranks)
        at = at[np.argsort(items[at], kind="stable")]
        self._owners = np.repeat(np.arange(num_ranks, dtype=np.int32), counts)[at]
        self._slots = _term(slots[at])
        self._crossed = _Sums(np.bincount(items[at] - num_ranks, minlength=num_links))

    def round(self, ranks: UInt64, links: UInt64) -> tuple[UInt64, UInt64]:
        """The colors of the next round."""
        colors = np.concatenate([ranks, links, [GOLDEN]])
        seen = self._seen.of(mixed(colors[self._items] + self._places))
        crossed = self._crossed.of(mixed(ranks[self._owners] + self._slots))
        return _combined(ranks, seen), _combined(links, crossed)


class _Sums:
    """Sums of consecutive values, so many for each."""

    def __init__(self, counts: npt.NDArray[np.integer]) -> None:
        self._size = len(counts)
        self._some = np.flatnonzero(counts)
        self._firsts = (np.cumsum(counts) - counts)[self._some]

    def of(self, values: UInt64) -> UInt64:
        sums = np.zeros(self._size, U)
        if len(self._some):
            sums[self._some] = np.add.reduceat(values, self._firsts)
        return sums


def _term(numbers: npt.NDArray[np.integer]) -> UInt64:
    """What makes the same color another one in another place."""
    return (numbers.astype(U) + U(1)) * GOLDEN


def _combined(own: UInt64, seen: UInt64) -> UInt64:
    """Apart from what is seen, whose places begin with 1: else a rank that sees another would pass for that one."""
    return mixed(mixed(own) + seen)


def mixed(value: UInt64) -> UInt64:
    """The finaliser of splitmix64: different numbers stay different (every step can be undone)."""
    value = (value ^ (value >> THIRTY)) * FIRST
    value = (value ^ (value >> TWENTY_SEVEN)) * SECOND
    return value ^ (value >> THIRTY_ONE)


def distinct(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The different values, rising."""
    rising = np.sort(values)
    return rising[np.concatenate(([True], rising[1:] != rising[:-1]))] if len(rising) else rising


def count_distinct(values: UInt64) -> int:
    """How many different values there are."""
    return len(distinct(values))


def join_components(ptr: Int64, items: Int32, num_links: int) -> Int32:
    """Join every rank with all that it sees: the smallest member of the component of each rank, then of each link."""
    num_ranks = len(ptr) - 1
    owner = np.repeat(np.arange(num_ranks, dtype=np.int32), np.diff(ptr))
    owner, seen = owner[items >= 0], items[items >= 0]
    least = np.arange(num_ranks + num_links, dtype=np.int32)
    while True:
        first, second = least[owner], least[seen]
        apart = first != second
        if not apart.any():
            return least
        owner, seen, first, second = owner[apart], seen[apart], first[apart], second[apart]
        np.minimum.at(least, np.maximum(first, second), np.minimum(first, second))
        while (least[least] != least).any():
            least = least[least]


def ranks_agree(ptr: Int64, items: Int32, class_of: Int32, link_class_of: Int32, representatives: Int64) -> bool:
    """Whether every rank sees what the representative of its class sees, place for place.

    ptr, items: as in :class:`ColorRounds`; all numbers are of the ranks that the partition is about.
    """
    counts, same = np.diff(ptr), representatives[class_of]
    if (counts != counts[same]).any():
        return False
    codes = np.concatenate([class_of, link_class_of + np.int32(len(representatives)), [np.int32(SEPARATOR)]])[items]
    there = np.arange(len(items)) + np.repeat(ptr[same] - ptr[:-1], counts)
    agree: Bool = codes == codes[there]
    return bool(agree.all())
