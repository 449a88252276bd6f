"""Colour refinement of ranks and links with arrays: single rounds, colour counts, and the proof of the result.

Nothing here is compiled: a kernel would be three times as fast, but loading one costs more than all rounds of a job.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int32, Int64, UInt64, distinct, spans

U = np.uint64

#: Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN, FIRST, SECOND = U(0x9E3779B97F4A7C15), U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
THIRTY, TWENTY_SEVEN, THIRTY_ONE = U(30), U(27), U(31)
SEPARATOR = -1
#: Items per block of colour lookups; the block fits a core's cache.
AT_A_TIME = 1 << 15


class ColorRounds:
    """Classes of ranks and links, split round by round until all members of a class have equal views.

    items[ptr[r]:ptr[r+1]]: view of rank r, in order: the number of another rank, ranks + number of a crossed link, or
    SEPARATOR. slots: the route of each item. A link's view is the unordered set of ranks that cross it. Both views are
    sums: of colors mixed with their places, and of colors mixed with their slots. Sums of 64 bits can collide, so the
    result is checked without sums afterwards. ranks, links: int64, equal numbers for members that are initially alike.

    When a class splits, members with unchanged sums keep its color, else the largest part does. The next round then
    examines only ranks and links that see a changed color. Most rounds of a long ring touch few of them, because a
    difference moves from rank to rank.
    """

    def __init__(self, ptr: Int64, items: Int32, slots: Int32, ranks: Int64, links: Int64, seed: int) -> None:
        self._ptr, self._items, self._slots = ptr, items, slots
        self._num_ranks, self._seed = len(ranks), U(seed)
        counts = np.diff(ptr)
        self._owners = np.repeat(np.arange(len(ranks), dtype=np.int32), counts)
        first = ptr[:-1].astype(np.uint32)  # modulo 2**32
        self._places = (np.arange(len(items), dtype=np.uint32) - np.repeat(first, counts)).view(np.int32)
        of_ranks, firsts, sizes = numbered(ranks)
        of_links, _, link_sizes = numbered(links)
        self.num_classes = len(firsts)
        self._class_of = np.concatenate([of_ranks, of_links + np.int32(len(firsts))])
        self._sizes = np.concatenate([sizes, link_sizes])
        self._colors = np.append(self._color_of(self._class_of), GOLDEN)  # the last: of separators
        self._sums: UInt64 | None = None  # of ranks, then of links
        self._old_colors = self._colors.copy()  # before the last round, which changed the colors of:
        self._changed = np.zeros(0, np.int64)

    @property
    def class_of(self) -> Int32:
        """int32[ranks]: a number for each class."""
        return self._class_of[: self._num_ranks]

    @property
    def link_class_of(self) -> Int32:
        """int32[links]: a number for each class."""
        return self._class_of[self._num_ranks :]

    def round(self) -> bool:
        """Split classes by their members' views; return whether any class was split."""
        if self._sums is None:
            self._sums = self._all_sums()
            touched = np.arange(len(self._class_of))
        else:
            touched = self._update(self._sums)
        self._split(touched, self._sums[touched])
        return len(self._changed) > 0

    def _split(self, touched: Int64, sums: UInt64) -> None:
        """Split the classes of ``touched``; the views of all others are unchanged."""
        classes = self._class_of[touched]
        group_of, firsts, counts = numbered(mixed(self._color_of(classes) + sums))
        old_class = classes[firsts]
        is_whole = np.bincount(old_class, weights=counts)[old_class] == self._sizes[old_class]
        order = np.lexsort((-counts, old_class))
        keeps_number = np.zeros(len(old_class), np.bool_)
        keeps_number[order[np.diff(old_class[order], prepend=-1) > 0]] = True  # the largest part of each class
        is_new = ~(keeps_number & is_whole)
        number = np.where(is_new, len(self._sizes) + np.cumsum(is_new) - 1, old_class).astype(np.int32)
        np.subtract.at(self._sizes, old_class[is_new], counts[is_new])
        self._sizes = np.append(self._sizes, counts[is_new])
        self.num_classes += int((touched[firsts[is_new]] < self._num_ranks).sum())
        self._old_colors[self._changed] = self._colors[self._changed]
        is_changed = is_new[group_of]
        self._changed = touched[is_changed]
        self._class_of[self._changed] = number[group_of[is_changed]]
        self._colors[self._changed] = self._color_of(self._class_of[self._changed])

    def _color_of(self, classes: Int32) -> UInt64:
        """Return colors that differ between classes."""
        return mixed(classes.astype(U) + self._seed)

    # -- sums ------------------------------------------------------------------------------------------------------

    def _all_sums(self) -> UInt64:
        sums = np.zeros(len(self._class_of), U)
        for block in _slices(len(self._items)):
            items, owners = self._items[block], self._owners[block]
            np.add.at(sums, owners, mixed(self._colors[items] + _term(self._places[block])))
            crosses = items >= self._num_ranks
            slots = _term(self._slots[block][crosses])
            np.add.at(sums, items[crosses], mixed(self._colors[owners[crosses]] + slots))
        return sums

    def _update(self, sums: UInt64) -> Int64:
        """Update the sums that contain changed colors; return the affected ranks and links in ascending order."""
        is_changed = np.zeros(len(self._colors), np.bool_)
        is_changed[self._changed] = True
        shows = np.empty(len(self._items), np.bool_)
        for block in _slices(len(shows)):
            shows[block] = is_changed.take(self._items[block], mode="wrap")
        entries = np.flatnonzero(shows)
        touched = self._replace(sums, self._owners[entries], self._items[entries], self._places[entries])
        entries = np.flatnonzero(np.repeat(is_changed[: self._num_ranks], np.diff(self._ptr)))
        entries = entries[self._items[entries] >= self._num_ranks]
        crossed = self._replace(sums, self._items[entries], self._owners[entries], self._slots[entries])
        return np.flatnonzero(touched | crossed)

    def _replace(self, sums: UInt64, viewers: Int32, viewed: Int32, places: Int32) -> Bool:
        """Replace the changed colors of ``viewed`` in the sums of ``viewers``; return these, bool[all]."""
        for block in _slices(len(viewers)):
            term = _term(places[block])
            replaced = mixed(self._old_colors[viewed[block]] + term)
            np.add.at(sums, viewers[block], mixed(self._colors[viewed[block]] + term) - replaced)
        is_touched = np.zeros(len(sums), np.bool_)
        is_touched[viewers] = True
        return is_touched


def _slices(length: int) -> Iterator[slice]:
    return (slice(first, first + AT_A_TIME) for first in range(0, length, AT_A_TIME))


def _term(numbers: npt.NDArray[np.integer]) -> UInt64:
    """Return the term that gives a color a different value in each place."""
    return (numbers.astype(U) + U(1)) * GOLDEN


def mixed(value: UInt64) -> UInt64:
    """Apply the finaliser of splitmix64: different numbers stay different, as every step is invertible."""
    value = value ^ (value >> THIRTY)
    value *= FIRST
    value ^= value >> TWENTY_SEVEN
    value *= SECOND
    value ^= value >> THIRTY_ONE
    return value


def numbered(values: npt.NDArray[np.generic]) -> tuple[Int32, Int64, Int64]:
    """Group equal values into classes by first occurrence; return each value's class, first occurrences, and sizes."""
    inverse = np.searchsorted(distinct(values), values)  # few are distinct, as a rule: faster than sorting with indices
    first = np.empty(int(inverse.max(initial=-1)) + 1, np.int64)
    first[inverse[::-1]] = np.arange(len(values) - 1, -1, -1)
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    class_of = number[inverse]
    return class_of, first[order], np.bincount(class_of, minlength=len(order))


def join_components(ptr: Int64, items: Int32, num_links: int) -> Int32:
    """Return the smallest member of the connected component of each rank, then of each link."""
    num_ranks = len(ptr) - 1
    owner = np.repeat(np.arange(num_ranks, dtype=np.int32), np.diff(ptr))
    owner, member = owner[items >= 0], items[items >= 0]
    least = np.arange(num_ranks + num_links, dtype=np.int32)
    while True:
        first, second = least[owner], least[member]
        differs = first != second
        if not differs.any():
            return least
        owner, member, first, second = owner[differs], member[differs], first[differs], second[differs]
        np.minimum.at(least, np.maximum(first, second), np.minimum(first, second))
        while (least[least] != least).any():
            least = least[least]


def ranks_agree(ptr: Int64, items: Int32, class_of: Int32, link_class_of: Int32, representatives: Int64) -> bool:
    """Return whether every rank's view equals the view of its class representative, place for place.

    ptr, items: as in :class:`ColorRounds`; all numbers refer to the ranks of the partition.
    """
    counts, representative = np.diff(ptr), representatives[class_of]
    if (counts != counts[representative]).any():
        return False
    codes = np.concatenate([class_of, link_class_of + np.int32(len(representatives)), [np.int32(SEPARATOR)]])
    for first in range(0, len(counts), AT_A_TIME):
        end = min(first + AT_A_TIME, len(counts))
        expected = items[spans(ptr[representative[first:end]], counts[first:end])]
        if (codes[items[ptr[first] : ptr[end]]] != codes[expected]).any():
            return False
    return True
