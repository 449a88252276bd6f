"""Unions of time intervals, many groups at once and exact in integer picoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.model.taskgraph import Int64

_KEY_LIMIT = 2**62


class Intervals(NamedTuple):
    """Disjoint intervals that do not touch, sorted by group and then by start; int64 arrays of one length, times in ps."""

    group: Int64
    start_ps: Int64
    end_ps: Int64


def merge(group: Int64, start_ps: Int64, end_ps: Int64) -> Intervals:
    """Return the union of the intervals of each group; empty intervals vanish, touching ones become one.

    A start or an end becomes one integer, (group, time, is_end), so that a single sort of plain integers puts all groups
    in order: several times faster than sorting by two keys. Where a key would not fit into 63 bits, times are replaced by
    their rank among all times, which leaves their order alone.
    """
    keep = end_ps > start_ps
    if not keep.any():
        none = np.empty(0, np.int64)
        return Intervals(none, none, none)
    group, times = group[keep].astype(np.int64), np.concatenate((start_ps[keep], end_ps[keep]))
    table, origin = None, times.min()
    if (int(group.max()) + 1) * (int(times.max()) - int(origin) + 1) >= _KEY_LIMIT:
        table, times = np.unique(times, return_inverse=True)
        origin = np.int64(0)
    span = times.max() - origin + 1
    keys = (np.tile(group, 2) * span + (times - origin)) << 1
    keys[len(group) :] |= 1
    keys.sort()
    closes = np.flatnonzero(np.cumsum(1 - ((keys & 1) << 1)) == 0)
    opens = np.concatenate(([0], closes[:-1] + 1))
    begin, finish = keys[opens] >> 1, keys[closes] >> 1
    owner = begin // span
    begin, finish = begin - owner * span + origin, finish - owner * span + origin
    return Intervals(owner, begin, finish) if table is None else Intervals(owner, table[begin], table[finish])


def lengths(intervals: Intervals, num_groups: int) -> Int64:
    """Return the total length of each group's intervals: int64[num_groups], ps."""
    return sum_by_group(intervals.group, intervals.end_ps - intervals.start_ps, num_groups)


def sum_by_group(group: Int64, values: Int64, num_groups: int) -> Int64:
    """Return the exact sum of ``values`` of each group: int64[num_groups]; ``np.bincount`` would go through floats."""
    total = np.zeros(num_groups, np.int64)
    np.add.at(total, group, values)
    return total


def gaps(intervals: Intervals, num_groups: int, start_ps: int, end_ps: int) -> Intervals:
    """Return what the intervals leave uncovered between ``start_ps`` and ``end_ps``, for each of the groups."""
    everyone = np.arange(num_groups)
    first = np.searchsorted(intervals.group, everyone)
    last = np.searchsorted(intervals.group, everyone, side="right")
    group = np.insert(intervals.group, first, everyone)
    begin = np.insert(intervals.end_ps, first, start_ps)
    finish = np.insert(intervals.start_ps, last, end_ps)
    keep = finish > begin
    return Intervals(group[keep], begin[keep], finish[keep])


def first_at(intervals: Intervals, group: Int64, time_ps: Int64, items: Int64) -> Int64:
    """Return for each interval the lowest of ``items`` whose group and time are the interval's group and end, or -1.

    ``group``, ``time_ps`` and ``items`` have one entry an item, with ``items`` ascending.
    """
    found = np.full(len(intervals.group), -1, np.int64)
    if not len(found) or not len(items):
        return found
    table = np.unique(np.concatenate((intervals.end_ps, time_ps)))
    wanted = intervals.group * len(table) + np.searchsorted(table, intervals.end_ps)
    keys = group * len(table) + np.searchsorted(table, time_ps)
    place = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
    hit = np.flatnonzero(wanted[place] == keys)[::-1]
    found[place[hit]] = items[hit]  # written from the highest item to the lowest: the lowest stays
    return found
