"""Folding in time with a bound: a run that nearly repeats stands for a longer one, within some picoseconds.

The paces of ranks with unlike work approach each other, but may never agree to the picosecond. The *shifts* of a task
are the differences of its ready, start and end to the equal task one period later. trine looks for two periods with
similar shifts. The second one is the window that the longer run repeats.

Bound. A task starts at the latest end of its predecessors. If all durations are fixed, the shifts of the future lie
between the smallest and the largest shift of one period. The durations of flows that share links vary a little with
them. So trine requires that the range of shifts does not grow from the first period to the second, and allows each
repetition SAFETY times the range of the second.

Parts of a rank's time, such as the bubble, are sums over many tasks. If they change by d from the first period to the
second (:mod:`trine.folding.term_drift`), they may change by d in each of n repetitions: n (n + 1) / 2 times d in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.period import DISTANCES, repeated_micro_batches
from trine.folding.shifts import Compared, Shifts, TasksByStart
from trine.folding.term_drift import drift_ps
from trine.results.repeats import Repeat, Repeats

#: Ranges of shifts that each repetition may be off.
SAFETY = 2
#: The largest bound, as a part of the run: it leaves the three or four digits that an answer shows.
MAX_BOUND = 1e-4
#: The largest bound of the parts of a rank's time, as a part of the run; the parts are sums over many tasks.
MAX_TERMS_BOUND = 1e-3
#: The largest range of shifts in two periods, as a part of a period.
MAX_RANGE = 1e-3
#: The range of shifts is known for this many intervals in a typical period.
_INTERVALS = 64
#: Windows that are tried for each length of the period.
MAX_TRIES = 12


def find_bounded(tasks: Compared, micro_batches: int, simulated: int, first: int = -1) -> Repeats | None:
    """Return the windows that a run of ``simulated`` micro-batches nearly repeats, with their bound, or None.

    first: as in :func:`trine.folding.period.find_repeats`.
    """
    tracks = tasks.tracks
    for distance in DISTANCES:
        if 3 * distance > simulated:
            break
        windows, keys, spread = _windows(_ByStart.of(tasks.by_start.shifts(distance, first)), distance)
        numbers = repeated_micro_batches(tracks, keys, distance) if windows else ()
        if not numbers or (micro_batches - simulated) % len(numbers):
            continue
        count = (micro_batches - simulated) // len(numbers)
        bound_ps = SAFETY * (count + 1) * spread
        end_ps = max(int(track.times.end.max()) for track in tracks)
        length_ps = end_ps + count * sum(w.end_ps - w.start_ps for w in windows)
        if bound_ps > MAX_BOUND * length_ps:
            continue
        terms_bound_ps = bound_ps + SAFETY * count * (count + 1) // 2 * drift_ps(tasks.run, windows)
        if terms_bound_ps <= MAX_TERMS_BOUND * length_ps:
            return Repeats(
                windows=tuple(windows), count=count, repeated=numbers, micro_batches=micro_batches,
                simulated=simulated, bound_ps=bound_ps, terms_bound_ps=terms_bound_ps,
            )  # fmt: skip
    return None


class _ByStart(NamedTuple):
    """Shifts of all tasks in order of start: int64[tasks], ps; -1 without a later task. later_ready: ps."""

    tasks: TasksByStart
    ready_shift: Int64
    start_shift: Int64
    end_shift: Int64
    later_ready: Int64

    @staticmethod
    def of(shifts: Shifts) -> _ByStart:
        columns = shifts.ready_shift, shifts.start_shift, shifts.end_shift, shifts.later_ready
        return _ByStart(shifts.tasks, *map(shifts.by_start, columns))


def _windows(table: _ByStart, distance: int) -> tuple[list[Repeat], Int64, int]:
    """Return windows that cover each place of a sequence ``distance`` times or not at all, their keys, and the sum of
    their ranges of shifts.
    """
    tasks = table.tasks
    start, latest_end = tasks.start, tasks.latest_end
    covered: set[int] = set()
    windows: list[Repeat] = []
    keys, spread, tries = [], 0, 0
    for last in _ends(table):
        if tries == MAX_TRIES or int(tasks.key[last]) in covered:
            continue
        tries += 1
        begins = np.searchsorted(start, start[last] - table.start_shift[last])
        period = int(np.median(table.start_shift[begins : last + 1]))
        end_ps = _quietest(start, last, period)
        first, begins, ends = np.searchsorted(start, [end_ps - 2 * period, end_ps - period, end_ps]).tolist()
        if any(end_ps > w.start_ps and end_ps - period < w.end_ps for w in windows):
            continue
        if not 0 < first < begins < ends or latest_end[first - 1] > end_ps - period:
            continue
        before, after, both = (_range(table, *part) for part in ((first, begins), (begins, ends), (first, ends)))
        if after > before or both > MAX_RANGE * period:
            continue
        places, counts = np.unique(tasks.key[begins:ends], return_counts=True)
        if (counts != distance).any() or not covered.isdisjoint(places.tolist()):
            continue
        covered.update(places.tolist())
        keys.append(places)
        windows.append(Repeat(end_ps - period, end_ps, frozenset(tasks.phase[begins:ends].tolist())))
        spread += after + 1
    return sorted(windows), np.concatenate(keys) if keys else np.zeros(0, np.int64), spread


def _range(table: _ByStart, first: int, last: int) -> int:
    """Return the range of the shifts of the tasks ``first`` to ``last``, without tasks that were ready long before."""
    tasks = slice(first, last)
    is_recent = table.later_ready[tasks] > table.tasks.start[first]
    parts = (table.start_shift[tasks], table.end_shift[tasks], table.ready_shift[tasks][is_recent])
    each = np.concatenate(parts)
    return int(each.max() - each.min())


def _ends(table: _ByStart) -> Iterator[int]:
    """Yield tasks that may end a window: those that end two periods with the smallest range of shifts first."""
    start = table.tasks.start
    positive = table.start_shift[table.start_shift > 0]
    if not len(positive):
        return
    interval = np.unique(start // max(1, int(np.median(positive)) // _INTERVALS), return_index=True)[1]
    low = np.minimum.reduceat(np.minimum(table.start_shift, table.end_shift), interval)
    high = np.maximum.reduceat(np.maximum(table.start_shift, table.end_shift), interval)
    begin_ps, last = start[interval], np.append(interval[1:], len(start)) - 1
    found = []
    for number, task in enumerate(last.tolist()):
        period = int(table.start_shift[task])
        begin = int(np.searchsorted(begin_ps, start[task] - 2 * period, "right")) - 1
        if period > 0 and begin >= 0:
            spread = int(high[begin : number + 1].max() - low[begin : number + 1].min())
            if spread <= MAX_RANGE * period:
                found.append((spread / period, -int(start[task]), task, period))
    yielded = np.zeros(0, np.int64)
    for _, _, task, period in sorted(found):
        if (np.abs(yielded - start[task]) > period // 8).all():
            yielded = np.append(yielded, start[task])
            yield task


def _quietest(start: Int64, last: int, period: int) -> int:
    """Return the middle of the longest time without a start in the last quarter of a period up to task ``last``."""
    first = int(np.searchsorted(start, start[last] - period // 4))
    task = first + int(np.argmax(np.diff(start[first : last + 1]))) if last > first else last - 1
    return int(start[task] + start[task + 1] + 1) // 2
