"""Colour refinement of ranks and links, compiled: one round, and how many colors there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine._jit import Int, kernel
from trine.arrays import Int32, Int64, UInt64

U = np.uint64

#: Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN, FIRST, SECOND = U(0x9E3779B97F4A7C15), U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
THIRTY, TWENTY_SEVEN, THIRTY_ONE = U(30), U(27), U(31)
SEPARATOR = -1


@kernel
def refine_round(
    ranks: UInt64, links: UInt64, ptr: Int64, items: Int32, slots: Int32, new_ranks: UInt64, new_links: UInt64
) -> Int:
    """Write the colors of the next round into ``new_ranks`` and ``new_links``.

    items[ptr[r]:ptr[r+1]]: what rank r sees, in order: the number of another rank, len(ranks) + number of a link that
    it crosses, or SEPARATOR. slots: which of its routes an item belongs to. A link sees who crosses it, in no order, so
    that sums are enough; a sum of 64 bits can lie, and the result is checked without sums afterwards.
    """
    num_ranks = np.int64(len(ranks))
    for link in range(len(links)):
        new_links[U(link)] = U(0)
    for rank in range(num_ranks):
        own = ranks[U(rank)]
        mixed = own
        for at in range(ptr[U(rank)], ptr[U(rank + 1)]):
            item = np.int64(items[U(at)])
            seen = GOLDEN
            if item >= num_ranks:
                seen = links[U(item - num_ranks)]
                crossing = own + GOLDEN * U(np.int64(slots[U(at)]) + 1)
                crossing = (crossing ^ (crossing >> THIRTY)) * FIRST
                crossing = (crossing ^ (crossing >> TWENTY_SEVEN)) * SECOND
                new_links[U(item - num_ranks)] += crossing ^ (crossing >> THIRTY_ONE)
            elif item >= 0:
                seen = ranks[U(item)]
            mixed = mixed * FIRST + seen + GOLDEN
            mixed = (mixed ^ (mixed >> THIRTY)) * SECOND
            mixed = mixed ^ (mixed >> TWENTY_SEVEN)
        new_ranks[U(rank)] = mixed
    for link in range(len(links)):
        mixed = links[U(link)] + GOLDEN
        mixed = (mixed ^ (mixed >> THIRTY)) * FIRST + new_links[U(link)]
        mixed = (mixed ^ (mixed >> TWENTY_SEVEN)) * SECOND
        new_links[U(link)] = mixed ^ (mixed >> THIRTY_ONE)
    return num_ranks


@kernel
def count_distinct(values: UInt64, table: UInt64, used: npt.NDArray[np.uint8]) -> Int:
    """How many different values there are. table, used: scratch of a power of two, larger than len(values)."""
    mask = U(len(table) - 1)
    found = np.int64(0)
    for at in range(len(used)):
        used[U(at)] = 0
    for at in range(len(values)):
        value = values[U(at)]
        slot = (value ^ (value >> THIRTY_ONE)) & mask
        while used[slot] == 1 and table[slot] != value:
            slot = (slot + U(1)) & mask
        if used[slot] == 0:
            used[slot] = 1
            table[slot] = value
            found += 1
    return found


@kernel
def join_components(ptr: Int64, items: Int32, parent: Int32) -> Int:
    """Join every rank with all that it sees; ``parent``: int32[ranks + links], each its own to begin with.

    Afterwards parent[i] is the smallest member of the component of i.
    """
    for rank in range(len(ptr) - 1):
        for at in range(ptr[U(rank)], ptr[U(rank + 1)]):
            item = np.int64(items[U(at)])
            if item < 0:
                continue
            first = np.int64(rank)
            while parent[U(first)] != first:
                parent[U(first)] = parent[U(parent[U(first)])]
                first = np.int64(parent[U(first)])
            second = item
            while parent[U(second)] != second:
                parent[U(second)] = parent[U(parent[U(second)])]
                second = np.int64(parent[U(second)])
            if first < second:
                parent[U(second)] = first
            else:
                parent[U(first)] = second
    for member in range(len(parent)):  # parents are smaller than children, so theirs are final
        parent[U(member)] = parent[U(parent[U(member)])]
    return np.int64(len(parent))


@kernel
def ranks_agree(ptr: Int64, items: Int32, class_of: Int32, link_class_of: Int32, representatives: Int64) -> Int:
    """1 if every rank sees what the representative of its class sees, place for place, else 0.

    ptr, items: as in :func:`refine_round`; all numbers are of the ranks that the partition is about.
    """
    num_ranks = np.int64(len(class_of))
    for rank in range(num_ranks):
        same = np.int64(representatives[U(class_of[U(rank)])])
        first, other = ptr[U(rank)], ptr[U(same)]
        if ptr[U(rank + 1)] - first != ptr[U(same + 1)] - other:
            return np.int64(0)
        for at in range(ptr[U(rank + 1)] - first):
            one, two = np.int64(items[U(first + at)]), np.int64(items[U(other + at)])
            if one < 0 or two < 0:
                if one != two:
                    return np.int64(0)
            elif one >= num_ranks or two >= num_ranks:
                if one < num_ranks or two < num_ranks:
                    return np.int64(0)
                if link_class_of[U(one - num_ranks)] != link_class_of[U(two - num_ranks)]:
                    return np.int64(0)
            elif class_of[U(one)] != class_of[U(two)]:
                return np.int64(0)
    return np.int64(1)
