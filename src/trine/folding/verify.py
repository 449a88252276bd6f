"""Comparing a folded run with an unfolded one, task by task and rank by rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.arrays import Int64, spans
from trine.errors import SimulationError
from trine.folding.pattern import JobPatterns
from trine.folding.signals import whole_times
from trine.folding.stages import FoldedRun
from trine.graph.taskgraph import Records, TaskGraph
from trine.units import format_time


class UnfoldedNumbers:
    """Where the tasks of each rank are in the graph that :func:`trine.parallel.instantiate.instantiate` makes."""

    def __init__(self, job: JobPatterns, graph: TaskGraph) -> None:
        self.job = job
        self.collective = graph.labels.collective
        self.num_ranks = job.grid.num_ranks
        own = np.array([len(template.kind) for template in job.templates], np.int64)
        sizes = own[np.asarray(job.job.program_of, np.int64)]
        self.base = np.cumsum(sizes) - sizes
        self.own = own
        sends = np.arange(int(sizes.sum()), graph.num_tasks)
        names = self.collective[sends].astype(np.int64) * self.num_ranks + graph.rank[sends]
        self.names, first = np.unique(names, return_index=True)
        self.firsts = sends[first]

    def of_rank(self, rank: int) -> Int64:
        """int64[tasks of the rank's pattern]: the number of each in the graph."""
        pattern = self.job.patterns[self.job.pattern_of[rank]]
        own, base = int(self.own[pattern.program]), int(self.base[rank])
        numbers = np.arange(base, base + pattern.num_tasks)
        keys = np.array(list(pattern.algorithm_of), np.int64)
        ends = np.append(pattern.first_sent[keys[1:]], pattern.num_tasks) if len(keys) else np.zeros(0, np.int64)
        counts = ends - pattern.first_sent[keys]
        keys, counts = keys[counts > 0], counts[counts > 0]
        which = self.collective[base + pattern.entered[keys]].astype(np.int64)
        firsts = self.firsts[np.searchsorted(self.names, which * self.num_ranks + rank)]
        numbers[own:] = spans(firsts, counts)
        return numbers


def unfolded_records(run: FoldedRun, graph: TaskGraph) -> Records:
    """The records of every rank's tasks, numbered as in the unfolded ``graph``."""
    numbers = UnfoldedNumbers(run.job, graph)
    columns = [np.full(graph.num_tasks, -1, np.int64) for _ in range(3)]
    ranks = range(run.job.grid.num_ranks)
    for rank, times in zip(ranks, whole_times(run, ranks), strict=True):
        own = numbers.of_rank(rank)
        for column, values in zip(columns, times, strict=True):
            column[own] = values
    return Records(
        ready_ps=columns[0],
        start_ps=columns[1],
        end_ps=columns[2],
        num_events=run.num_events,
        engine=run.engine,
        network=run.network,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldCheck:
    """Folded and unfolded agreed: how many tasks of how many ranks were compared, and simulated."""

    num_ranks: int
    num_tasks: int
    num_classes: int
    num_simulated: int

    def sentence(self) -> str:
        classes = f"{self.num_classes} class{'' if self.num_classes == 1 else 'es'}"
        return (
            f"verified: {self.num_tasks:,} tasks of {self.num_ranks} ranks are equal to the picosecond in the "
            f"folded run ({classes}, {self.num_simulated:,} tasks) and in the unfolded one"
        )


def check_fold(run: FoldedRun, graph: TaskGraph, unfolded: Records) -> FoldCheck:
    """Compare every task of every rank. Raises SimulationError that names the first that differs."""
    folded = unfolded_records(run, graph)
    for name in ("ready_ps", "start_ps", "end_ps"):
        differs = np.flatnonzero(getattr(folded, name) != getattr(unfolded, name))
        if len(differs):
            task = int(differs[np.argmin(unfolded.end_ps[differs])])
            times = [format_time(int(getattr(one, name)[task])) for one in (folded, unfolded)]
            raise SimulationError(
                f"folded and unfolded runs differ in {len(differs)} of {graph.num_tasks} tasks: first task {task} of "
                f"rank {int(graph.rank[task])}, {name[:-3]} {times[0]} folded, {times[1]} unfolded. This is a bug of "
                "trine: please report it; --no-fold gives the right times"
            )
    return FoldCheck(
        num_ranks=run.job.grid.num_ranks,
        num_tasks=graph.num_tasks,
        num_classes=run.most_classes,
        num_simulated=max(stage.num_tasks for stage in run.stages),
    )
