"""Memory of each rank over time, its peak, and what the peak consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64, pointers
from trine.graph.memory import MEMORY_CATEGORIES, SELDOM, MemoryEvents
from trine.graph.taskgraph import Records
from trine.results.allocator import ROUNDING, LateBlocks, ReplayedPeak, peak_of

_STATES = MEMORY_CATEGORIES.index("optimizer_state")
FITS, TIGHT, DOES_NOT_FIT, UNKNOWN = "fits", "tight", "does not fit", "capacity unknown"
_WORST_FIRST = (DOES_NOT_FIT, TIGHT, FITS, UNKNOWN)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """What a rank's memory rests on besides its tensors, from the software's profile.

    outside_bytes: beside the allocator (CUDA context, communicators). fragmentation: of the reserved memory, beyond
    what the modelled allocator reserves. error: how far measured memory is from the modelled at the 90th percentile.
    software: the profile's name; empty for none. state_blocks: blocks in which the part ``late_states`` of the
    optimizer's state is taken behind the first step; 0: all of it before.
    """

    rounding_bytes: int = ROUNDING
    fragmentation: float = 0.0
    outside_bytes: int = 0
    error: float = 0.0
    software: str = ""
    state_blocks: int = 0
    late_states: float = 0.0

    def late(self, resident: Sequence[int]) -> LateBlocks | None:
        """What of ``resident`` (bytes by category) is taken behind the first step."""
        if not self.state_blocks or len(resident) <= _STATES:
            return None
        return LateBlocks(_STATES, int(resident[_STATES] * self.late_states), self.state_blocks)


NO_FACTS = MemoryFacts()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """What a rank needs of its GPU, in bytes.

    allocated_bytes: the most that tensors and workspaces take, as ``torch.cuda.max_memory_allocated`` counts it.
    reserved_bytes: the most that the allocator takes for them. outside_bytes: context and communicators. low_bytes,
    high_bytes: between what the job can and what it will want to have, with the error of the model. capacity_bytes: of
    the GPU, 0 where unknown.
    """

    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int
    low_bytes: int
    high_bytes: int
    capacity_bytes: int

    @property
    def needed_bytes(self) -> int:
        """All that the GPU has to hold: reserved and outside."""
        return self.reserved_bytes + self.outside_bytes

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` (only with more memory than predicted, within the error of the model, it does not),
        ``does not fit`` (the predicted need is above the capacity), or ``capacity unknown``."""
        if not self.capacity_bytes:
            return UNKNOWN
        if self.needed_bytes > self.capacity_bytes:
            return DOES_NOT_FIT
        return FITS if self.high_bytes <= self.capacity_bytes else TIGHT

    @property
    def margin_bytes(self) -> int | None:
        """What is left of the capacity; negative where it is exceeded; None where nobody knows the capacity."""
        return self.capacity_bytes - self.needed_bytes if self.capacity_bytes else None

    @property
    def available_bytes(self) -> int | None:
        """What the GPU has for the allocator: the capacity less what is outside; None where nobody knows it."""
        return max(0, self.capacity_bytes - self.outside_bytes) if self.capacity_bytes else None


def least_headroom(uses: Sequence[MemoryUse]) -> int:
    """Return the index of the rank that comes first to its GPU's capacity: by verdict, then by the bytes left.

    Ranks whose GPU's capacity is unknown come last, by their need. Of equal ones the first.
    """

    def order(index: int) -> tuple[int, int, int]:
        use = uses[index]
        margin = use.margin_bytes
        return _WORST_FIRST.index(use.verdict), -use.needed_bytes if margin is None else margin, index

    return min(range(len(uses)), key=order)


def use_of(allocated: int, reserved: int, facts: MemoryFacts, capacity: int = 0) -> MemoryUse:
    """What a rank needs, given what its blocks take and what a replayed allocator reserves for them."""
    reserved = max(reserved + int(reserved * facts.fragmentation), allocated)
    outside = facts.outside_bytes
    return MemoryUse(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        outside_bytes=outside,
        low_bytes=int(allocated * (1 - facts.error)) + outside,
        high_bytes=int(reserved * (1 + facts.error)) + outside,
        capacity_bytes=capacity,
    )


def memory_uses(
    memory: MemoryEvents, facts: MemoryFacts, capacities: tuple[int, ...], records: Records | None = None
) -> tuple[MemoryUse, ...]:
    """What each rank needs: its changes of memory in the order of its program, through the allocator.

    records: times, for blocks that are held for collectives.
    """
    found: list[MemoryUse] = []
    known: dict[object, ReplayedPeak] = {}  # ranks of a job do alike
    order = np.lexsort((memory.task.astype(np.int64) * 2 + memory.at_end, memory.rank))
    block = np.full(len(order), -1, np.int64) if memory.block is None else memory.block
    ptr = np.searchsorted(memory.rank[order], np.arange(len(memory.resident_bytes) + 1))
    times = _hold_times(memory, records)
    for rank, resident in enumerate(memory.resident_bytes.tolist()):
        own = order[ptr[rank] : ptr[rank + 1]]
        columns = (memory.delta_bytes[own], memory.category[own], block[own])
        held = np.zeros(0, np.int64) if times is None else times[own]
        key = (*(column.tobytes() for column in (*columns, held)), *resident)
        if key not in known:
            changes = zip(*(column.tolist() for column in columns), strict=True)
            late = facts.late(resident)
            known[key] = peak_of(changes, resident, facts.rounding_bytes, late, held.tolist())
        peak = known[key]
        found.append(use_of(peak.allocated_bytes, peak.reserved_bytes, facts, capacities[rank] if capacities else 0))
    return tuple(found)


def _hold_times(memory: MemoryEvents, records: Records | None) -> Int64 | None:
    """Return for each change the time at which the launching thread takes a block, or until which it is held (ps)."""
    if memory.held is None or records is None:
        return None
    launch, more, behind, user = memory.held.T
    end = np.append(records.end_ps, 0)  # of no task: 0
    clock = np.maximum(end[launch] + np.maximum(more, 0), end[behind])
    times: Int64 = np.where(memory.delta_bytes > 0, clock, end[user])
    return times


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
    running = pointers(delta)
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
    return MemoryPeak(time, total, by_category(held.tolist()))


def by_category(held: Sequence[int]) -> dict[str, int]:
    """Bytes by the name of their category, without those that seldom hold anything and do not."""
    pairs = zip(MEMORY_CATEGORIES, held, strict=False)
    return {name: size for name, size in pairs if size or name not in SELDOM}
