"""Unions of time intervals, many groups at once and exact in integer picoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64

_KEY_LIMIT = 2**62


class Intervals(NamedTuple):
    """Disjoint intervals with gaps between them, sorted by group, then start: int64 arrays of one length, in ps."""

    group: Int64
    start_ps: Int64
    end_ps: Int64


def merge(group: Int64, start_ps: Int64, end_ps: Int64) -> Intervals:
    """Return the union of the intervals of each group; empty intervals vanish, touching ones are merged.

    Each start and end becomes one integer, (group, time, is_end), so one sort of plain integers orders all groups. This
    is several times faster than a sort by two keys. If a key would exceed 63 bits, times are replaced by their rank
    among all times, which preserves their order.
    """
    keep = end_ps > start_ps
    if not keep.any():
        none = np.empty(0, np.int64)
        return Intervals(none, none, none)
    times, span, table = _codes(np.concatenate((start_ps[keep], end_ps[keep])), int(group.max()) + 1)
    keys = np.tile(group[keep].astype(np.int64, copy=False), 2)
    keys *= span
    keys += times
    keys <<= 1
    keys[len(times) // 2 :] |= 1
    del times
    keys.sort()
    steps = 1 - ((keys & 1).astype(np.int8) << 1)
    closes = np.flatnonzero(np.cumsum(steps, dtype=np.int32) == 0)
    opens = np.concatenate(([0], closes[:-1] + 1))
    begin, finish = keys[opens] >> 1, keys[closes] >> 1
    owner = begin // span
    begin, finish = begin - owner * span, finish - owner * span
    origin = int(start_ps[keep].min())
    if table is None:
        return Intervals(owner, begin + origin, finish + origin)
    return Intervals(owner, table[begin], table[finish])


class _Codes(NamedTuple):
    """Times as numbers below ``bound``, in the order of the times.

    table: from number to time; usually None, and the numbers are the times since the first one.
    """

    numbers: Int64
    bound: int
    table: Int64 | None


def _codes(times: Int64, num_groups: int) -> _Codes:
    """Return numbers in the order of ``times`` that fit into 62 bits together with a group."""
    origin = int(times.min())
    span = int(times.max()) - origin + 1
    if num_groups * span < _KEY_LIMIT:
        times -= origin
        return _Codes(times, span, None)
    table = np.sort(times)
    table = table[np.concatenate(([True], table[1:] != table[:-1]))]
    return _Codes(np.searchsorted(table, times), len(table), table)


def lengths(intervals: Intervals, num_groups: int) -> Int64:
    """Return the total length of each group's intervals: int64[num_groups], ps."""
    return sum_by_group(intervals.group, intervals.end_ps - intervals.start_ps, num_groups)


def sum_by_group(group: Int64, values: Int64, num_groups: int) -> Int64:
    """Return the sum of ``values`` of each group: int64[num_groups]; exact, while ``np.bincount`` uses floats."""
    total = np.zeros(num_groups, np.int64)
    np.add.at(total, group, values)
    return total


def gaps(intervals: Intervals, num_groups: int, start_ps: int, end_ps: int) -> Intervals:
    """Return the gaps between the intervals from ``start_ps`` to ``end_ps``, for each group."""
    everyone = np.arange(num_groups)
    first = np.searchsorted(intervals.group, everyone)
    last = np.searchsorted(intervals.group, everyone, side="right")
    group = np.insert(intervals.group, first, everyone)
    begin = np.insert(intervals.end_ps, first, start_ps)
    finish = np.insert(intervals.start_ps, last, end_ps)
    keep = finish > begin
    return Intervals(group[keep], begin[keep], finish[keep])


def first_at(intervals: Intervals, group: Int64, time_ps: Int64, items: Int64) -> Int64:
    """Return for each interval the lowest of ``items`` whose group and time equal its group and end, or -1.

    ``group``, ``time_ps`` and ``items`` have one entry per item; ``items`` is ascending.
    """
    first_items = np.full(len(intervals.group), -1, np.int64)
    if not len(first_items) or not len(items):
        return first_items
    num_groups = 1 + int(max(intervals.group.max(), group.max()))
    times, span, _ = _codes(np.concatenate((intervals.end_ps, time_ps)), num_groups)
    wanted_keys = intervals.group * span + times[: len(first_items)]
    keys = group * span + times[len(first_items) :]
    place = np.minimum(np.searchsorted(wanted_keys, keys), len(wanted_keys) - 1)
    hit = np.flatnonzero(wanted_keys[place] == keys)[::-1]
    first_items[place[hit]] = items[hit]  # written from the highest item to the lowest, so the lowest stays
    return first_items
