"""Memory of each rank over time, its peak, and what the peak consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.graph.memory import MEMORY_CATEGORIES, MemoryEvents
from trine.graph.taskgraph import Records


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryTimeline:
    """Memory of all ranks after each change, sorted by rank and then by time.

    rank_ptr: int64[ranks + 1]; changes of rank r are entries rank_ptr[r]:rank_ptr[r+1]. time_ps, total_bytes (what the
    rank holds after the change), delta_bytes, category: int64[changes]. resident_bytes: int64[ranks, categories].
    """

    rank_ptr: Int64
    time_ps: Int64
    total_bytes: Int64
    delta_bytes: Int64
    category: Int64
    resident_bytes: Int64

    @property
    def num_ranks(self) -> int:
        return len(self.rank_ptr) - 1

    def of_rank(self, rank: int) -> tuple[Int64, Int64]:
        """Return times (ps) and bytes held from each of them on, beginning with time 0; one entry an instant."""
        part = slice(int(self.rank_ptr[rank]), int(self.rank_ptr[rank + 1]))
        time = np.concatenate(([0], self.time_ps[part]))
        total = np.concatenate(([self.resident_bytes[rank].sum()], self.total_bytes[part]))
        last = np.append(time[1:] != time[:-1], True)
        return time[last], total[last]


class MemoryPeak(NamedTuple):
    """The most that a rank holds: when for the first time (ps), how much, and of what (category -> bytes)."""

    time_ps: int
    total_bytes: int
    by_category: dict[str, int]


def memory_timeline(memory: MemoryEvents, records: Records) -> MemoryTimeline:
    """Put the changes of memory in order of time.

    At one instant the changes at the ends of tasks that began earlier come first: what they free is free for a task
    that starts then. After them come the changes of tasks that start at this instant (and of tasks that take no time),
    in the order of the tasks, start before end; ties keep the order in which they are given.
    """
    task, at_end = memory.task.astype(np.int64), memory.at_end != 0
    start, end = records.start_ps[task], records.end_ps[task]
    time = np.where(at_end, end, start)
    after = ~(at_end & (end > start))
    order = np.lexsort((task * 2 + at_end, time * 2 + after, memory.rank))
    rank, delta = memory.rank[order], memory.delta_bytes[order]
    num_ranks = len(memory.resident_bytes)
    rank_ptr = np.searchsorted(rank, np.arange(num_ranks + 1))
    running = np.concatenate(([0], np.cumsum(delta)))
    base = memory.resident_bytes.sum(axis=1) - running[rank_ptr[:-1]]
    return MemoryTimeline(
        rank_ptr=rank_ptr,
        time_ps=time[order],
        total_bytes=running[1:] + base[rank],
        delta_bytes=delta,
        category=memory.category[order].astype(np.int64),
        resident_bytes=memory.resident_bytes,
    )


def memory_peak(timeline: MemoryTimeline, rank: int) -> MemoryPeak:
    """Return the peak of a rank, with its breakdown in the order of MEMORY_CATEGORIES."""
    first, last = int(timeline.rank_ptr[rank]), int(timeline.rank_ptr[rank + 1])
    held = timeline.resident_bytes[rank].astype(np.int64)
    time, total = 0, int(held.sum())
    if last > first and timeline.total_bytes[first:last].max() > total:
        top = first + int(np.argmax(timeline.total_bytes[first:last]))
        np.add.at(held, timeline.category[first : top + 1], timeline.delta_bytes[first : top + 1])
        time, total = int(timeline.time_ps[top]), int(timeline.total_bytes[top])
    return MemoryPeak(time, total, dict(zip(MEMORY_CATEGORIES, held.tolist(), strict=True)))
