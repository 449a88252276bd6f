"""Folding in time with a bound: a run that nearly repeats stands for a longer one, within some picoseconds.

The paces of ranks with unlike work approach each other, but may never agree to the picosecond. The *shifts* of a task
are the differences of its ready, start and end to the equal task one period later. trine looks for two periods with
similar shifts. The second one is the window that the longer run repeats.

Bound. A task starts at the latest end of its predecessors. If all durations are fixed, the shifts of the future lie
between the smallest and the largest shift of one period. The durations of flows that share links vary a little with
them. So trine requires that the range of shifts does not grow from the first period to the second, and allows each
repetition SAFETY times the range of the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.period import DISTANCES, PASS_KINDS, Track, repeated_micro_batches, tracks_of
from trine.folding.run import JobRun
from trine.results.repeats import Repeat, Repeats

#: Ranges of shifts that each repetition may be off.
SAFETY = 2
#: The largest bound, as a part of the run: it leaves the three or four digits that an answer shows.
MAX_BOUND = 1e-4
#: The largest range of shifts in two periods, as a part of a period.
MAX_RANGE = 1e-3
#: The range of shifts is known for this many intervals in a typical period.
_INTERVALS = 64
#: Windows that are tried for each length of the period.
MAX_TRIES = 12


class _Shifts(NamedTuple):
    """All tasks in order of start. shift, low, high: ps to the equal task one period later: of the start; the smallest
    and largest of start and end. -1 without an equal task. ready, ready_ps: shift of ready, and the later task's.

    key, phase: as in :mod:`trine.folding.period`.
    """

    start: Int64
    end: Int64
    shift: Int64
    low: Int64
    high: Int64
    ready: Int64
    ready_ps: Int64
    key: Int64
    phase: Int64


def find_bounded(run: JobRun, micro_batches: int, simulated: int) -> Repeats | None:
    """Return the windows that a run of ``simulated`` micro-batches nearly repeats, with their bound, or None."""
    tracks = tracks_of(run)
    for distance in DISTANCES:
        if 3 * distance > simulated:
            break
        windows, keys, spread = _windows(_shifts(tracks, distance), distance)
        numbers = repeated_micro_batches(tracks, keys, distance) if windows else ()
        if not numbers or (micro_batches - simulated) % len(numbers):
            continue
        count = (micro_batches - simulated) // len(numbers)
        bound_ps = SAFETY * (count + 1) * spread
        end_ps = max(int(track.times.end.max()) for track in tracks)
        if bound_ps <= MAX_BOUND * (end_ps + count * sum(w.end_ps - w.start_ps for w in windows)):
            return Repeats(
                windows=tuple(windows), count=count, repeated=numbers, micro_batches=micro_batches,
                simulated=simulated, bound_ps=bound_ps,
            )  # fmt: skip
    return None


def _shifts(tracks: Sequence[Track], distance: int) -> _Shifts:
    parts, keys = [], 0
    for lists, times in tracks:
        later = lists.later(distance)[lists.of_task]
        has_later = np.flatnonzero(later >= 0)
        now = lists.tasks[has_later]
        then = lists.tasks[lists.begin[later[has_later]] + lists.position[has_later]]
        ready, start, end = (column[then] - column[now] for column in times)
        columns = np.full((7, len(times.start)), -1)
        columns[:5, now] = start, np.minimum(start, end), np.maximum(start, end), ready, times.ready[then]
        columns[5, lists.tasks] = keys + lists.keys
        columns[6, lists.tasks] = lists.passes[lists.of_task] % PASS_KINDS - 1
        keys += lists.num_keys
        done = np.flatnonzero(times.start >= 0)
        parts.append([column[done] for column in (times.start, times.end, *columns)])
    rows = [np.concatenate(row) for row in zip(*parts, strict=True)]
    parts.clear()
    order = np.argsort(rows[0], kind="stable")
    return _Shifts(*(row[order] for row in rows))


def _windows(table: _Shifts, distance: int) -> tuple[list[Repeat], Int64, int]:
    """Return windows that cover each place of a sequence ``distance`` times or not at all, their keys, and the sum of
    their ranges of shifts.
    """
    latest_end = np.maximum.accumulate(table.end)
    covered: set[int] = set()
    windows: list[Repeat] = []
    keys, spread, tries = [], 0, 0
    for last in _ends(table):
        if tries == MAX_TRIES or int(table.key[last]) in covered:
            continue
        tries += 1
        begins = np.searchsorted(table.start, table.start[last] - table.shift[last])
        period = int(np.median(table.shift[begins : last + 1]))
        end_ps = _quietest(table.start, last, period)
        first, begins, ends = np.searchsorted(table.start, [end_ps - 2 * period, end_ps - period, end_ps]).tolist()
        if any(end_ps > w.start_ps and end_ps - period < w.end_ps for w in windows):
            continue
        if not 0 < first < begins < ends or latest_end[first - 1] > end_ps - period:
            continue
        before, after, both = (_range(table, *part) for part in ((first, begins), (begins, ends), (first, ends)))
        if after > before or both > MAX_RANGE * period:
            continue
        places, counts = np.unique(table.key[begins:ends], return_counts=True)
        if (counts != distance).any() or not covered.isdisjoint(places.tolist()):
            continue
        covered.update(places.tolist())
        keys.append(places)
        windows.append(Repeat(end_ps - period, end_ps, frozenset(table.phase[begins:ends].tolist())))
        spread += after + 1
    return sorted(windows), np.concatenate(keys) if keys else np.zeros(0, np.int64), spread


def _range(table: _Shifts, first: int, last: int) -> int:
    """Return the range of the shifts of the tasks ``first`` to ``last``, without tasks that were ready long before."""
    low, high = table.low[first:last].min(), table.high[first:last].max()
    ready = table.ready[first:last][table.ready_ps[first:last] > table.start[first]]
    return int(max(high, ready.max(initial=high)) - min(low, ready.min(initial=low)))


def _ends(table: _Shifts) -> Iterator[int]:
    """Yield tasks that may end a window: those that end two periods with the smallest range of shifts first."""
    positive = table.shift[table.shift > 0]
    if not len(positive):
        return
    interval = np.unique(table.start // max(1, int(np.median(positive)) // _INTERVALS), return_index=True)[1]
    low, high = np.minimum.reduceat(table.low, interval), np.maximum.reduceat(table.high, interval)
    begin_ps, last = table.start[interval], np.append(interval[1:], len(table.start)) - 1
    found = []
    for number, task in enumerate(last.tolist()):
        period = int(table.shift[task])
        begin = int(np.searchsorted(begin_ps, table.start[task] - 2 * period, "right")) - 1
        if period > 0 and begin >= 0:
            spread = int(high[begin : number + 1].max() - low[begin : number + 1].min())
            if spread <= MAX_RANGE * period:
                found.append((spread / period, -int(table.start[task]), task, period))
    yielded = np.zeros(0, np.int64)
    for _, _, task, period in sorted(found):
        if (np.abs(yielded - table.start[task]) > period // 8).all():
            yielded = np.append(yielded, table.start[task])
            yield task


def _quietest(start: Int64, last: int, period: int) -> int:
    """Return the middle of the longest time without a start in the last quarter of a period up to task ``last``."""
    first = int(np.searchsorted(start, start[last] - period // 4))
    task = first + int(np.argmax(np.diff(start[first : last + 1]))) if last > first else last - 1
    return int(start[task] + start[task + 1] + 1) // 2
