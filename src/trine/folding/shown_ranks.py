"""The ranks that a folded result shows: the latest, the fullest, and an even spread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trine.common.arrays import Int64
from trine.folding.pattern import Pattern
from trine.folding.stages import FoldedRun
from trine.graph.taskgraph import Records
from trine.results.memory import memory_timeline

#: Results show at most this many ranks; with more ranks, the latest one of each program.
SHOWN = 32

#: Peak memory per class is skipped above this many tasks in all (about 1 s).
MAX_PEAK_TASKS = 4_000_000


def representative_ranks(folded: FoldedRun, fullest_program: Callable[[], int] | None = None) -> list[int]:
    """Return the ranks to show, at most :data:`SHOWN`: the latest of all, and each pattern's latest and fullest rank.

    fullest_program: returns the program with the least headroom, and one of its ranks is shown; called only if the
    latest ranks alone exceed the limit.
    """
    ends = folded.rank_ends()
    last = int(np.argmax(ends))
    shown = {last}
    last_of_each = [int(pattern.ranks[np.argmax(ends[pattern.ranks])]) for pattern in folded.job.patterns]
    if fullest_program is not None and len({last, *last_of_each}) > SHOWN:
        fullest = fullest_program()
        pairs = zip(folded.job.patterns, last_of_each, strict=True)
        shown.add(next(rank for pattern, rank in pairs if pattern.program == fullest))
    for rank in (*last_of_each, *peak_memory_ranks(folded)):
        if len(shown) >= SHOWN:
            break
        shown.add(rank)
    return sorted(shown)


def spread_ranks(folded: FoldedRun) -> dict[int, float]:
    """Return rank -> number of ranks it represents, for ranks of each pattern evenly spaced in order of end time."""
    ends = folded.rank_ends()
    represented: dict[int, float] = {}
    for pattern in folded.job.patterns:
        count = min(len(pattern.ranks), max(1, SHOWN // len(folded.job.patterns)))
        order = pattern.ranks[np.argsort(ends[pattern.ranks], kind="stable")]
        places = (2 * np.arange(count) + 1) * len(order) // (2 * count)
        represented.update(dict.fromkeys(order[places].tolist(), len(order) / count))
    return represented


def peak_memory_ranks(run: FoldedRun) -> list[int]:
    """Return each pattern's rank with the highest peak memory, the lowest such rank in a tie.

    Skips patterns with a single class, because their ranks are alike. Returns [] above MAX_PEAK_TASKS tasks.
    """
    fullest = []
    remaining_tasks = MAX_PEAK_TASKS
    for pattern in run.job.patterns:
        ranks = one_of_each_class(run, pattern.ranks)
        remaining_tasks -= len(ranks) * pattern.num_tasks
        if remaining_tasks < 0:
            return []
        if len(ranks) > 1:
            peaks = _peaks(run, pattern, ranks)
            fullest.append(int(ranks[np.argmax(peaks)]))
    return fullest


def one_of_each_class(run: FoldedRun, ranks: Int64, num_stages: int | None = None) -> Int64:
    """Return the lowest of ``ranks`` in each final class, or in each class after ``num_stages`` of the run's stages."""
    last, count = np.full(len(ranks), -1, np.int64), 0
    for stage in run.stages[:num_stages]:
        number = stage.partition.class_of[ranks]
        last[number >= 0] = count + number[number >= 0]
        count += stage.partition.num_classes
    return ranks[np.sort(np.unique(last, return_index=True)[1])]


def _peaks(run: FoldedRun, pattern: Pattern, ranks: Int64) -> list[int]:
    """Return the peak memory in bytes of each of ``ranks``, which share one pattern."""
    from trine.folding.observe import rank_memory

    memory = rank_memory(run, [pattern], np.zeros(1, np.int64))
    peaks = []
    for rank in ranks.tolist():
        ready, start, end = run.times(rank)
        records = Records(ready_ps=ready, start_ps=start, end_ps=end, num_events=0, engine="", network="")
        peaks.append(int(memory_timeline(memory, records).total_bytes.max(initial=0)))
    return peaks
