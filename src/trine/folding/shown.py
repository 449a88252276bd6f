"""Which ranks a folded result shows: those that end last, those that hold most memory, and a spread over all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.arrays import Int64
from trine.folding.observe import rank_memory
from trine.folding.pattern import Pattern
from trine.folding.stages import FoldedRun
from trine.graph.taskgraph import Records
from trine.results.memory import memory_timeline

#: Results of more ranks show so many of them: of each kind of program the one that ends last.
SHOWN = 32
#: Classes with more tasks than this in all are not looked at one by one (about 1 s).
MAX_PEAK_TASKS = 4_000_000


def representative_ranks(folded: FoldedRun, fullest_program: Callable[[], int] | None = None) -> list[int]:
    """The ranks to show, at most :data:`SHOWN`: the one that ends last of all, and of each pattern; and of each pattern
    the one that holds most memory.

    fullest_program: the program whose ranks have the least headroom, of which one is shown; asked if not all are.
    """
    ends = folded.rank_ends()
    last = int(np.argmax(ends))
    found = {last}
    last_of_each = [int(pattern.ranks[np.argmax(ends[pattern.ranks])]) for pattern in folded.job.patterns]
    if fullest_program is not None and len({last, *last_of_each}) > SHOWN:
        fullest = fullest_program()
        pairs = zip(folded.job.patterns, last_of_each, strict=True)
        found.add(next(rank for pattern, rank in pairs if pattern.program == fullest))
    for rank in (*last_of_each, *peak_memory_ranks(folded)):
        if len(found) >= SHOWN:
            break
        found.add(rank)
    return sorted(found)


def spread_ranks(folded: FoldedRun) -> dict[int, float]:
    """Rank -> how many it stands for: of each pattern those that end at evenly spaced places of its order."""
    ends = folded.rank_ends()
    found: dict[int, float] = {}
    for pattern in folded.job.patterns:
        count = min(len(pattern.ranks), max(1, SHOWN // len(folded.job.patterns)))
        order = pattern.ranks[np.argsort(ends[pattern.ranks], kind="stable")]
        places = (2 * np.arange(count) + 1) * len(order) // (2 * count)
        found.update(dict.fromkeys(order[places].tolist(), len(order) / count))
    return found


def peak_memory_ranks(run: FoldedRun) -> list[int]:
    """Of each pattern the rank with the highest peak, of several the lowest, where the last classes differ in it.

    Patterns of one class are left out: its ranks are alike. Where classes have more than MAX_PEAK_TASKS tasks: none.
    """
    found = []
    left = MAX_PEAK_TASKS
    for pattern in run.job.patterns:
        ranks = one_of_each_class(run, pattern.ranks)
        left -= len(ranks) * pattern.num_tasks
        if left < 0:
            return []
        if len(ranks) > 1:
            peaks = _peaks(run, pattern, ranks)
            found.append(int(ranks[np.argmax(peaks)]))
    return found


def one_of_each_class(run: FoldedRun, ranks: Int64) -> Int64:
    """The lowest of the given ``ranks`` of each class in which a rank ends."""
    last, count = np.full(len(ranks), -1, np.int64), 0
    for stage in run.stages:
        number = stage.partition.class_of[ranks]
        last[number >= 0] = count + number[number >= 0]
        count += stage.partition.num_classes
    return ranks[np.sort(np.unique(last, return_index=True)[1])]


def _peaks(run: FoldedRun, pattern: Pattern, ranks: Int64) -> list[int]:
    """Bytes that each of the ranks, which follow one pattern, holds at most."""
    memory = rank_memory(run, [pattern], np.zeros(1, np.int64))
    peaks = []
    for rank in ranks.tolist():
        ready, start, end = run.times(rank)
        records = Records(ready_ps=ready, start_ps=start, end_ps=end, num_events=0, engine="", network="")
        peaks.append(int(memory_timeline(memory, records).total_bytes.max(initial=0)))
    return peaks
