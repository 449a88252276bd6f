"""Comparison of a run of few micro-batches with the run of all: each task, or the first one that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int64, spans
from trine.common.units import format_time
from trine.errors import SimulationError
from trine.folding.lists import PHASE, STEP, Lists, Relabel, Tasks, as_labelled, columns_of
from trine.folding.run import JobRun
from trine.folding.shown_ranks import one_of_each_class
from trine.folding.signals import whole_times
from trine.graph.program import Phase
from trine.parallel.template import LABEL_FIELDS
from trine.results.repeats import Repeats


class RankTasks(NamedTuple):
    """All tasks of one rank, those outside lists in order, copies of inputs last, and the start and end of all."""

    lists: Lists
    others: Int64
    start: Int64
    end: Int64


def check_repeats(few: JobRun, every: JobRun, repeats: Repeats) -> str:
    """Compare each task of the run of all micro-batches with its prediction from the run of few; return a sentence.

    Raises SimulationError with the first difference above the bound.
    """

    def times_of(rank: int) -> Iterator[tuple[Int64, Int64]]:
        found = tasks_of(every, rank)
        numbers = np.concatenate([found.others, _in_sequence(found.lists)])
        return zip(_expected(tasks_of(few, rank), repeats), (found.start[numbers], found.end[numbers]), strict=True)

    return compare_times(every, times_of, f"{repeats.simulated} micro-batches", "micro-batches", repeats.bound_ps)


def compare_times(
    every: JobRun, times_of: Callable[[int], Iterable[tuple[Int64, Int64]]], few: str, what: str, bound_ps: int = 0
) -> str:
    """Compare the starts and ends of each rank's tasks; return a sentence.

    times_of: returns a rank's times, predicted from a run of ``few``, and in ``every``. what: the parts that repeat.
    Raises SimulationError with the first difference above the bound.
    """
    num_tasks, most_ps = 0, 0
    limit = f", above the bound of {format_time(bound_ps)}" if bound_ps else ""
    for rank in _ranks_to_compare(every):
        for name, (wanted, actual) in zip(("start", "end"), times_of(rank), strict=True):
            if len(wanted) != len(actual):
                raise SimulationError(
                    f"rank {rank} has {len(actual)} tasks, and its run of few {what} stands for {len(wanted)}. "
                    "This is a bug of trine: please report it; --no-fold gives the right times"
                )
            num_tasks += len(actual)
            off_ps = np.abs(wanted - actual)
            most_ps = max(most_ps, int(off_ps.max(initial=0)))
            differs = np.flatnonzero(off_ps > bound_ps)
            if len(differs):
                task = int(differs[0])
                raise SimulationError(
                    f"task {task} of rank {rank} {name}s at {format_time(int(actual[task]))}, and at "
                    f"{format_time(int(wanted[task]))} in the run of {few}{limit}. This is "
                    "a bug of trine: please report it; --no-fold gives the right times"
                )
    precision = f"within {format_time(most_ps)} of" if bound_ps else "equal to the picosecond in"
    return f"verified: {num_tasks // 2:,} tasks are {precision} a run of all {what}"


def _ranks_to_compare(run: JobRun) -> list[int]:
    if run.folded is None:
        return list(run.ranks)
    return [rank for p in run.folded.job.patterns for rank in one_of_each_class(run.folded, p.ranks).tolist()]


def tasks_of(run: JobRun, rank: int, relabel: Relabel = as_labelled) -> RankTasks:
    """Return the tasks of a rank; relabel: as in :func:`tracks_of`."""
    if run.folded is not None:
        pattern = run.folded.job.patterns[int(run.folded.job.pattern_of[rank])]
        columns = columns_of(pattern.labels, pattern.kind, pattern.size_bytes)
        labels, ((_, start, end),) = pattern.labels, whole_times(run.folded, [rank])
    else:
        graph, own = run.graph, np.flatnonzero(run.graph.rank == rank)
        labels = np.stack([getattr(graph.labels, name)[own] for name in LABEL_FIELDS]).astype(np.int32)
        columns = columns_of(labels, graph.kind[own], graph.size_bytes[own])
        start, end = run.records.start_ps[own], run.records.end_ps[own]
    lists = Lists.of(Tasks(np.zeros(len(start), np.int64), relabel(labels), columns))
    outside = np.ones(len(start), np.bool_)
    outside[lists.tasks] = False
    others = np.flatnonzero(outside)
    is_input = labels[PHASE, others] == Phase.INPUT  # a program of few micro-batches has the other ones' copies last
    return RankTasks(lists, others[np.lexsort((labels[STEP, others] * is_input, is_input))], start, end)


def _in_sequence(lists: Lists) -> Int64:
    """Return the tasks of all lists, by place in the sequence, then by micro-batch."""
    passes = lists.sequence[lists.of_task]
    order = np.lexsort((lists.microbatch[lists.of_task], lists.position, passes))
    return lists.tasks[order]


def _expected(few: RankTasks, repeats: Repeats) -> tuple[Int64, Int64]:
    """Return start and end of the tasks in the longer run: those outside lists, then as :func:`_in_sequence`."""
    tasks = _in_sequence(few.lists)
    copies = np.zeros(len(tasks), np.int64)  # how often a task is repeated, after all tasks of its window
    start, period_ps = few.start[tasks], np.zeros(len(tasks), np.int64)
    for window in repeats.windows:
        inside = (start >= window.start_ps) & (start < window.end_ps)
        copies[inside], period_ps[inside] = repeats.count, window.end_ps - window.start_ps
    inside = np.append(copies > 0, False)
    place = np.arange(len(tasks))
    block_end = np.where(copies > 0, _next_outside(inside)[place], place + 1)
    repeated, number = np.repeat(place, copies + 1), spans(0, copies + 1)
    order = np.lexsort((repeated, number, block_end[repeated]))
    repeated, number = repeated[order], number[order]
    shift = repeats.later_ps(start)[repeated] + number * period_ps[repeated]
    others = few.others
    outside = repeats.later_ps(few.start[others])
    return (
        np.concatenate([few.start[others] + outside, start[repeated] + shift]),
        np.concatenate([few.end[others] + outside, few.end[tasks][repeated] + shift]),
    )


def _next_outside(inside: Bool) -> Int64:
    """Return for each place the first later place that is False: int64[n]."""
    outside = np.where(inside, len(inside), np.arange(len(inside)))
    following: Int64 = np.minimum.accumulate(outside[::-1])[::-1]
    return following
