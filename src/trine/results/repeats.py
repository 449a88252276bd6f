"""A run that stands for a longer one: windows of its time that the longer run repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64, spans
from trine.common.units import format_time
from trine.graph.memory import BLOCKS_PER_STREAM, MemoryEvents
from trine.graph.program import Phase
from trine.graph.taskgraph import Labels, Records
from trine.results.intervals import sum_by_group


class Repeat(NamedTuple):
    """A window of the simulated run, in ps, and the phases of its tasks. The longer run repeats it."""

    start_ps: int
    end_ps: int
    phases: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Windows that a longer run repeats ``count`` more times each, in order of time.

    verified: the result of --verify-fold.

    A window's time counts ``count + 1`` times. In *stretched* times each instant t is replaced by the integral of these
    counts up to t: order and equality of times remain, and any length of time is the sum over all its repetitions. So
    metrics of stretched records are exactly the longer run's.
    """

    windows: tuple[Repeat, ...]
    count: int
    verified: str = ""

    @property
    def left_out_words(self) -> str:
        """Repetitions that an excerpt lacks, for pictures."""
        return " and ".join(
            f"{self.count:,} repetitions of {format_time(w.end_ps - w.start_ps)} at {format_time(w.end_ps)}"
            for w in self.windows
        )

    def stretch(self, times_ps: Int64) -> Int64:
        """Return the stretched times of instants of the simulated run: int64[n], ps."""
        stretched = times_ps.copy()
        for window in self.windows:
            inside = np.clip(times_ps - window.start_ps, 0, window.end_ps - window.start_ps)
            stretched += self.count * inside
        return stretched

    def stretched(self, records: Records) -> Records:
        """Return the records with stretched times."""
        return self._mapped(records, self.stretch)

    def later_ps(self, start_ps: Int64) -> Int64:
        """Return the delay in the longer run of tasks with these starts, if after the windows: int64[n], ps."""
        skipped = np.zeros(len(start_ps), np.int64)
        for window in self.windows:
            skipped[start_ps >= window.end_ps] += self.count * (window.end_ps - window.start_ps)
        return skipped

    def unstretched(self, records: Records) -> Records:
        """Return stretched records with the simulated times."""
        return self._mapped(records, self.simulated_ps)

    def later(self, records: Records) -> Records:
        """Return simulated records at their times in the longer run: its further tasks leave a gap.

        Each task keeps its duration; ready and end move with its start.
        """
        skipped = self.later_ps(records.start_ps)
        return self._mapped(records, lambda times_ps: times_ps + skipped)

    def _mapped(self, records: Records, times: Callable[[Int64], Int64]) -> Records:
        return replace(
            records, ready_ps=times(records.ready_ps), start_ps=times(records.start_ps), end_ps=times(records.end_ps)
        )

    def simulated_ps(self, stretched_ps: Int64) -> Int64:
        """Return the times before they were stretched."""
        times, inserted = stretched_ps.copy(), 0
        for window in self.windows:
            period = window.end_ps - window.start_ps
            begin = window.start_ps + inserted
            inside = np.clip(stretched_ps - begin, 0, period * (self.count + 1))
            times -= inside - inside // (self.count + 1)
            inserted += period * self.count
        return times


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats(Repetition):
    """Repeated micro-batches.

    micro_batches, simulated: of one replica and step, in the longer run and in the simulated one. repeated: simulated
    micro-batches that equal the micro-batches in the windows. bound_ps: how far a start or end in the longer run may
    be off; 0 if it repeats to the picosecond. terms_bound_ps: how far the parts of a rank's time may be off.
    """

    repeated: tuple[int, ...]
    micro_batches: int
    simulated: int
    bound_ps: int = 0
    terms_bound_ps: int = 0

    @property
    def period(self) -> int:
        """Number of micro-batches that a window repeats."""
        return len(self.repeated)

    @property
    def left_out(self) -> int:
        """Number of micro-batches that are neither simulated nor repetitions."""
        return self.micro_batches - self.simulated - self.count * self.period

    @property
    def sentence(self) -> str:
        """The repetition in words."""
        micro_batches = "every micro-batch" if self.period == 1 else f"every {self.period} micro-batches"
        lengths = " and ".join(dict.fromkeys(format_time(w.end_ps - w.start_ps) for w in self.windows))
        precision = ", to the picosecond"
        if self.bound_ps:
            limit, of_terms = format_time(self.bound_ps), format_time(self.terms_bound_ps)
            precision = (
                f" nearly; the step time, each start and each end are within {limit}, and each rank's compute, bubble "
                f"and other parts within {of_terms} (--exact simulates all)"
            )
        return (
            f"{self.simulated} of {self.micro_batches:,} micro-batches are simulated: the run repeats {micro_batches} "
            f"({lengths}){precision}{self.verified and f'; {self.verified}'}"
        )

    def shown(self, records: Records) -> Records:
        """Return stretched records at their times in the longer run, see :meth:`later`."""
        return self.later(self.unstretched(records))

    def shown_microbatch(self, labels: Labels, start_ps: Int64) -> npt.NDArray[np.integer]:
        """Return the micro-batch of each task of the longer run; start_ps: as shown, in the longer run."""
        number, inserted, passed = labels.microbatch.copy(), 0, np.zeros(len(start_ps), np.int64)
        for window in self.windows:  # one in each step
            inserted += self.count * (window.end_ps - window.start_ps)
            passed += (start_ps >= window.end_ps + inserted) & np.isin(labels.phase, list(window.phases))
        number[(passed > np.maximum(labels.step, 0)) & (number >= 0)] += self.count * self.period
        return number

    def weights(self, microbatch: npt.NDArray[np.integer], phase: npt.NDArray[np.integer]) -> Int64:
        """Return how many tasks of the longer run each task stands for, by its micro-batch (-1: none) and phase.

        The simulated run copies the inputs of all micro-batches.
        """
        is_repeated: npt.NDArray[np.bool_] = np.isin(microbatch, self.repeated) & (phase != Phase.INPUT)
        return 1 + self.count * is_repeated.astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedSteps(Repetition):
    """Repeated steps: one window, at times of the run with all micro-batches.

    steps, simulated: of the longer run and of the simulated one.
    """

    steps: int
    simulated: int

    @property
    def period(self) -> int:
        """Number of steps that the window repeats."""
        return (self.steps - self.simulated) // self.count

    @property
    def period_ps(self) -> int:
        return self.windows[0].end_ps - self.windows[0].start_ps

    @property
    def skipped_ps(self) -> int:
        """Time of the steps that are not simulated."""
        return self.count * self.period_ps

    @property
    def sentence(self) -> str:
        """The repetition in words."""
        return (
            f"{self.simulated} of {self.steps:,} steps are simulated: the run repeats "
            f"{'every step' if self.period == 1 else f'every {self.period} steps'} ({format_time(self.period_ps)}), "
            f"to the picosecond{self.verified and f'; {self.verified}'}"
        )

    @property
    def left_out_words(self) -> str:
        """Steps that an excerpt lacks, for pictures."""
        steps, end_ps = self.steps - self.simulated, self.windows[0].end_ps
        return f"{steps:,} steps ({format_time(self.skipped_ps)}) at {format_time(end_ps)}"

    def shown_step(self, step: npt.NDArray[np.integer], start_ps: Int64) -> npt.NDArray[np.integer]:
        """Return the step of each task in the longer run; start_ps: in the simulated one."""
        number = step.copy()
        number[(start_ps >= self.windows[0].end_ps) & (step >= 0)] += self.steps - self.simulated
        return number

    def step_ends(self, ends_ps: Int64) -> Int64:
        """Return the end of each step of the longer run: int64[steps], ps. ends_ps: of the simulated steps."""
        first, last = np.searchsorted(ends_ps, self.windows[0][:2])
        repeated = np.arange(1, self.count + 1)[:, None] * self.period_ps + ends_ps[first:last]
        return np.concatenate([ends_ps[:last], repeated.ravel(), ends_ps[last:] + self.skipped_ps])


#: Block numbers of a repetition start at its number times this, above all streams.
_BLOCKS_PER_REPETITION = 256 * BLOCKS_PER_STREAM


def grows(memory: MemoryEvents, records: Records, repeats: Repetition) -> bool:
    """Return whether a rank holds more memory after a window than before it; ``records``: simulated times."""
    start, rank = records.start_ps[memory.task], memory.rank.astype(np.int64)
    for window in repeats.windows:
        inside = (start >= window.start_ps) & (start < window.end_ps)
        if sum_by_group(rank[inside], memory.delta_bytes[inside], len(memory.resident_bytes)).any():
            return True
    return False


def repeated_changes(memory: MemoryEvents, records: Records, repeats: Repeats) -> tuple[MemoryEvents, Records]:
    """Return the memory changes of the longer run over time, without blocks, and records of their tasks.

    records: simulated times. Tasks are numbered in program order.
    """
    start = records.start_ps[memory.task]
    period_ps, copies = np.zeros((2, len(start)), np.int64)
    is_later = np.zeros(len(start), np.bool_)
    for window in repeats.windows:
        inside = (start >= window.start_ps) & (start < window.end_ps)
        period_ps[inside], copies[inside] = window.end_ps - window.start_ps, repeats.count
        is_later |= start >= window.end_ps
    row, number = np.repeat(np.arange(len(start)), copies + 1), spans(0, copies + 1)
    order = np.where(is_later[row] & (copies[row] == 0), repeats.count, number)
    tasks, first, task = np.unique(
        order * len(records.start_ps) + memory.task[row], return_index=True, return_inverse=True
    )
    shift = (repeats.later_ps(start)[row] + number * period_ps[row])[first]
    start_ps, end_ps = (column[tasks % len(column)] + shift for column in (records.start_ps, records.end_ps))
    events = MemoryEvents(
        task=task.ravel().astype(np.int32), at_end=memory.at_end[row], rank=memory.rank[row],
        delta_bytes=memory.delta_bytes[row], category=memory.category[row], resident_bytes=memory.resident_bytes,
    )  # fmt: skip
    return events, replace(records, ready_ps=start_ps, start_ps=start_ps, end_ps=end_ps)


def repeated_memory(
    memory: MemoryEvents, labels: Labels, records: Records, repeats: Repeats
) -> tuple[MemoryEvents, Records]:
    """Return the memory changes of the longer run in program order, with blocks, and records with a task for each.

    The changes of the repeated micro-batches, in each direction, occur again behind them. records: times as shown.
    """
    order = np.lexsort((memory.task.astype(np.int64) * 2 + memory.at_end, memory.rank))
    task, rank = memory.task[order], memory.rank[order].astype(np.int64)
    phase = labels.phase[task]
    is_repeated = np.isin(labels.microbatch[task], repeats.repeated) & (phase != Phase.INPUT)
    if memory.block is not None:  # a block's free goes with its allocation, in whatever micro-batch
        is_block = memory.block[order] >= 0
        block_of = np.unique(np.stack([rank, memory.block[order]]), axis=1, return_inverse=True)[1].ravel()
        made_again = block_of[is_block & is_repeated & (memory.delta_bytes[order] > 0)]
        is_repeated = np.where(is_block, np.isin(block_of, made_again), is_repeated)
    num_steps = 1 + int(labels.step[task].max(initial=0))
    direction = 2 * (rank * num_steps + np.maximum(labels.step[task], 0)) + (phase != Phase.FORWARD)
    last = np.zeros(2 * num_steps * len(memory.resident_bytes), np.int64)
    np.maximum.at(last, direction[is_repeated], np.flatnonzero(is_repeated))
    copies = np.where(is_repeated, repeats.count, 0)
    row, number = np.repeat(np.arange(len(task)), copies + 1), spans(0, copies + 1)
    anchor = np.where(number > 0, last[direction[row]], row)
    arranged = np.lexsort((row, number, anchor))
    row, number = row[arranged], number[arranged]
    period_ps = np.zeros(len(task), np.int64)
    for window in repeats.windows:
        period_ps[np.isin(phase, list(window.phases))] = window.end_ps - window.start_ps
    time_ps = np.where(memory.at_end[order] == 1, records.end_ps[task], records.start_ps[task])
    times = time_ps[row] + number * period_ps[row]
    block = None if memory.block is None else memory.block[order][row]
    events = MemoryEvents(
        task=np.arange(len(row), dtype=np.int32), at_end=np.zeros(len(row), np.int8), rank=rank[row].astype(np.int32),
        delta_bytes=memory.delta_bytes[order][row], category=memory.category[order][row],
        resident_bytes=memory.resident_bytes,
        block=None if block is None else np.where(block < 0, block, block + number * _BLOCKS_PER_REPETITION),
    )  # fmt: skip
    return events, replace(records, ready_ps=times, start_ps=times, end_ps=times)
