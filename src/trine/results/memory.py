"""Memory of each rank over time, its peak, and the peak's breakdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64, pointers
from trine.graph.memory import MEMORY_CATEGORIES, SELDOM, MemoryEvents
from trine.graph.taskgraph import Records
from trine.results.allocator import ROUNDING, LateBlocks, ReplayedPeak
from trine.results.columns import column
from trine.results.peaks import peak_of_columns

_STATES = MEMORY_CATEGORIES.index("optimizer_state")
FITS, TIGHT, DOES_NOT_FIT, UNKNOWN = "fits", "tight", "does not fit", "capacity unknown"
WORST_FIRST = (DOES_NOT_FIT, TIGHT, FITS, UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryTimeline:
    """Memory of all ranks after each change, sorted by rank and then by time.

    rank_ptr: int64[ranks + 1]; changes of rank r are entries rank_ptr[r]:rank_ptr[r+1]. time_ps, total_bytes (bytes in
    use after the change), delta_bytes, category: int64[changes]. resident_bytes: int64[ranks, categories].
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
        """Return the times (ps) and the bytes in use from each time on, starting at 0; one entry per instant."""
        part = slice(int(self.rank_ptr[rank]), int(self.rank_ptr[rank + 1]))
        time = np.concatenate(([0], self.time_ps[part]))
        total = np.concatenate(([self.resident_bytes[rank].sum()], self.total_bytes[part]))
        last = np.append(time[1:] != time[:-1], True)
        return time[last], total[last]


class MemoryPeak(NamedTuple):
    """A rank's peak memory: when it is first reached (ps), its size, and its breakdown (category -> bytes)."""

    time_ps: int
    total_bytes: int
    by_category: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """Memory settings of the software's profile, besides the tensors themselves.

    outside_bytes: memory outside the allocator (CUDA context, communicators). fragmentation: extra reserved memory, as
    a fraction of the modelled allocator's. error: deviation of measured from modelled memory, 90th percentile.
    software: the profile's name, or empty. state_blocks: number of blocks for the optimizer state that is allocated
    after the first step (the fraction ``late_states`` of all state); 0: all state is allocated before it. expandable:
    the allocator's segments are expandable, so that it reserves no more than the blocks at their peak.
    """

    rounding_bytes: int = ROUNDING
    fragmentation: float = 0.0
    outside_bytes: int = 0
    error: float = 0.0
    software: str = ""
    state_blocks: int = 0
    late_states: float = 0.0
    expandable: bool = False

    def late(self, resident: Sequence[int]) -> LateBlocks | None:
        """Return the part of ``resident`` (bytes by category) that is allocated after the first step, or None."""
        if not self.state_blocks or len(resident) <= _STATES:
            return None
        return LateBlocks(_STATES, int(resident[_STATES] * self.late_states), self.state_blocks)


NO_FACTS = MemoryFacts()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """A rank's GPU memory use, in bytes.

    allocated_bytes: peak of tensors and workspaces, as ``torch.cuda.max_memory_allocated`` counts it. reserved_bytes:
    peak of the allocator's reserved memory. outside_bytes: context and communicators. low_bytes, high_bytes: range with
    the model's error, from the allocated minimum to the reserved maximum. capacity_bytes: of the GPU, 0 if unknown.
    """

    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int
    low_bytes: int = field(metadata=column("needed_low_bytes"))
    high_bytes: int = field(metadata=column("needed_high_bytes"))
    capacity_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Total memory on the GPU: reserved and outside."""
        return self.reserved_bytes + self.outside_bytes

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` (the prediction fits, but not with the model's error added), ``does not fit`` (the
        prediction exceeds the capacity), or ``capacity unknown``."""
        if not self.capacity_bytes:
            return UNKNOWN
        if self.needed_bytes > self.capacity_bytes:
            return DOES_NOT_FIT
        return FITS if self.high_bytes <= self.capacity_bytes else TIGHT

    @property
    def margin_bytes(self) -> int | None:
        """Free capacity in bytes; negative if exceeded, None if the capacity is unknown."""
        return self.capacity_bytes - self.needed_bytes if self.capacity_bytes else None

    @property
    def available_bytes(self) -> int | None:
        """Memory available to the allocator: capacity minus outside memory; None if the capacity is unknown."""
        return max(0, self.capacity_bytes - self.outside_bytes) if self.capacity_bytes else None


def least_headroom(uses: Sequence[MemoryUse]) -> int:
    """Return the index of the rank closest to its GPU's capacity: by verdict, then by free bytes.

    Ranks of unknown capacity come last, by bytes needed. The first rank wins a tie.
    """

    def order(index: int) -> tuple[int, int, int]:
        use = uses[index]
        margin = use.margin_bytes
        return WORST_FIRST.index(use.verdict), -use.needed_bytes if margin is None else margin, index

    return min(range(len(uses)), key=order)


def use_of(allocated: int, reserved: int, facts: MemoryFacts, capacity: int = 0) -> MemoryUse:
    """Return a rank's memory use from its allocated bytes and the bytes that the replayed allocator reserves."""
    reserved = allocated if facts.expandable else reserved
    reserved = max(reserved + int(reserved * facts.fragmentation), allocated)
    outside = facts.outside_bytes
    return MemoryUse(
        allocated_bytes=allocated, reserved_bytes=reserved, outside_bytes=outside,
        low_bytes=int(allocated * (1 - facts.error)) + outside,
        high_bytes=int(reserved * (1 + facts.error)) + outside, capacity_bytes=capacity,
    )  # fmt: skip


def memory_uses(
    memory: MemoryEvents, facts: MemoryFacts, capacities: tuple[int, ...], records: Records | None = None
) -> tuple[MemoryUse, ...]:
    """Return the memory use of each rank: replay its memory changes through the allocator, in program order.

    records: times, for blocks held until a collective ends.
    """
    uses: list[MemoryUse] = []
    peaks_by_key: dict[object, ReplayedPeak] = {}  # many ranks have identical changes
    order = np.lexsort((memory.task.astype(np.int64) * 2 + memory.at_end, memory.rank))
    block = np.full(len(order), -1, np.int64) if memory.block is None else memory.block
    ptr = np.searchsorted(memory.rank[order], np.arange(len(memory.resident_bytes) + 1))
    times = _hold_times(memory, records)
    for rank, resident in enumerate(memory.resident_bytes.tolist()):
        changes_of_rank = order[ptr[rank] : ptr[rank + 1]]
        columns = (memory.delta_bytes[changes_of_rank], memory.category[changes_of_rank], block[changes_of_rank])
        hold_ends = np.zeros(0, np.int64) if times is None else times[changes_of_rank]
        key = (*(column.tobytes() for column in (*columns, hold_ends)), *resident)
        if key not in peaks_by_key:
            ends = None if times is None else hold_ends
            peaks_by_key[key] = peak_of_columns(columns, resident, facts.rounding_bytes, facts.late(resident), ends)
        peak = peaks_by_key[key]
        uses.append(use_of(peak.allocated_bytes, peak.reserved_bytes, facts, capacities[rank] if capacities else 0))
    return tuple(uses)


def _hold_times(memory: MemoryEvents, records: Records | None) -> Int64 | None:
    """Return for each change when the launching thread allocates the block, or when its hold ends (ps)."""
    if memory.held is None or records is None:
        return None
    launch, extra_ps, waited_task, user = memory.held.T
    end = np.append(records.end_ps, 0)  # task -1: 0
    clock = np.maximum(end[launch] + np.maximum(extra_ps, 0), end[waited_task])
    times: Int64 = np.where(memory.delta_bytes > 0, clock, end[user])
    return times


def memory_timeline(memory: MemoryEvents, records: Records) -> MemoryTimeline:
    """Sort the memory changes by time.

    At one instant, changes at the ends of tasks that began earlier come first, so a task that starts then can use the
    memory they free. Next come changes of tasks that start at this instant (and of tasks of zero duration), in task
    order, start before end; ties keep their input order.
    """
    task, at_end = memory.task.astype(np.int64), memory.at_end != 0
    start, end = records.start_ps[task], records.end_ps[task]
    time = np.where(at_end, end, start)
    after = ~(at_end & (end > start))
    order = np.lexsort((task * 2 + at_end, time * 2 + after, memory.rank))
    rank, delta = memory.rank[order], memory.delta_bytes[order]
    num_ranks = len(memory.resident_bytes)
    rank_ptr = np.searchsorted(rank, np.arange(num_ranks + 1))
    running = pointers(delta)
    base = memory.resident_bytes.sum(axis=1) - running[rank_ptr[:-1]]
    return MemoryTimeline(
        rank_ptr=rank_ptr, time_ps=time[order], total_bytes=running[1:] + base[rank], delta_bytes=delta,
        category=memory.category[order].astype(np.int64), resident_bytes=memory.resident_bytes,
    )  # fmt: skip


def memory_peak(timeline: MemoryTimeline, rank: int) -> MemoryPeak:
    """Return the peak of a rank, with its breakdown in the order of MEMORY_CATEGORIES."""
    first, last = int(timeline.rank_ptr[rank]), int(timeline.rank_ptr[rank + 1])
    by_category_bytes = timeline.resident_bytes[rank].astype(np.int64)
    time, total = 0, int(by_category_bytes.sum())
    if last > first and timeline.total_bytes[first:last].max() > total:
        top = first + int(np.argmax(timeline.total_bytes[first:last]))
        np.add.at(by_category_bytes, timeline.category[first : top + 1], timeline.delta_bytes[first : top + 1])
        time, total = int(timeline.time_ps[top]), int(timeline.total_bytes[top])
    return MemoryPeak(time, total, by_category(by_category_bytes.tolist()))


def by_category(sizes: Sequence[int]) -> dict[str, int]:
    """Return bytes by category name; skip rarely used categories that are empty."""
    pairs = zip(MEMORY_CATEGORIES, sizes, strict=False)
    return {name: size for name, size in pairs if size or name not in SELDOM}
