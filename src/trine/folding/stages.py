"""Folded simulation of a job: coarse classes of ranks run until a difference reaches them, then finer ones continue.

The first classes ignore later exchanges along *deferred* axes, and hold back the tasks that begin one. When the first
held task becomes ready, the run stops and the axis is activated for the programs that need it. The remaining
tasks are refined into new classes, which take over the state of their old classes. Ranks that no longer interact
continue in separate runs. See docs/design/folding.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.common.observer import announce_stage
from trine.common.units import format_time
from trine.engine import run
from trine.engine.models import Network, QueueModel, network_model
from trine.errors import TooManyTasksError
from trine.folding import deferral
from trine.folding.classes import ClassSearch, Partition, RankClasses
from trine.folding.neighbourhood import SHARED, PatternPart, RouteTable, link_places, whole_parts, without_signals
from trine.folding.orbits import orbits_of
from trine.folding.pattern import JobPatterns
from trine.folding.quotient import ClassTasks, DurationScaling, Quotient, QuotientBuilder
from trine.graph.placement import Placement
from trine.graph.taskgraph import Records, Snapshot

#: Signals between ranks are simulated one by one up to this many tasks (about 0.3 s).
FEW_TASKS = 500_000
#: Simulating more tasks at a time (about 10 GB) is refused before they are built.
MAX_TASKS = 60_000_000
#: ... and above this number (about 3 GB) if :mod:`trine.training.run` can estimate the result instead.
ESTIMATE_TASKS = 24_000_000
#: All axes are activated after this many stops.
MAX_STOPS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunStage(ClassTasks):
    """Result of one run of a set of classes. ready_ps, start_ps, end_ps: int64[tasks of the graph], -1 if not yet.

    begins_ps: start of the run. num_tasks: tasks of its graph. num_events: events of the engine.
    """

    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64
    begins_ps: int
    num_tasks: int
    num_events: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldedRun:
    """Result of a folded simulation. ``table``: the routes of its ranks."""

    job: JobPatterns
    stages: tuple[RunStage, ...]
    num_events: int
    engine: str
    network: str
    table: RouteTable

    @property
    def leaves_signals_out(self) -> bool:
        """Whether the signals of collectives with mutual waits were skipped."""
        part = next((part for part in self.stages[0].parts if part.pattern.together), None)
        return part is not None and bool(part.number_of[part.pattern.together[0].signals[0, -1]] < 0)

    @property
    def most_classes(self) -> int:
        """The largest number of classes simulated at a time."""
        return max(stage.partition.num_classes for stage in self.stages)

    def class_of(self, rank: int) -> tuple[int, int]:
        """Return the last class of a rank, and the size of that class."""
        partition = next(s.partition for s in reversed(self.stages) if s.partition.class_of[rank] >= 0)
        number = int(partition.class_of[rank])
        return number, int(partition.sizes[number])

    def classes_of(self, rank: int) -> tuple[int, ...]:
        """Return the class of a rank in each stage, -1 if it has no tasks left."""
        return tuple(int(stage.partition.class_of[rank]) for stage in self.stages)

    def times(self, rank: int) -> tuple[Int64, Int64, Int64]:
        """Return ready, start and end of each task of a rank's pattern, ps: int64[tasks of the pattern] each.

        Skipped signals have -1 here: see :func:`trine.folding.signals.whole_times`.
        """
        pattern = self.job.patterns[self.job.pattern_of[rank]]
        columns = [np.full(pattern.num_tasks, -1, np.int64) for _ in range(3)]
        for stage in self.stages:
            number = int(stage.partition.class_of[rank])
            if number < 0:
                continue
            in_stage, in_pattern = stage.tasks_of(number), stage.parts[stage.part_of[number]].tasks
            for column, values in zip(columns, (stage.ready_ps, stage.start_ps, stage.end_ps), strict=True):
                column[in_pattern] = values[in_stage]
        return columns[0], columns[1], columns[2]

    def step_ends(self) -> Int64:
        """Return when each training step ended on all ranks: int64[steps], ps. Unlabelled tasks belong to the last."""
        num_steps = 1 + max(int(pattern.labels[5].max(initial=0)) for pattern in self.job.patterns)
        ends = np.zeros(num_steps, np.int64)
        for stage in self.stages:
            steps_of = [part.pattern.labels[5][part.tasks] for part in stage.parts]
            for number, part_number in enumerate(stage.part_of.tolist()):
                steps, task_ends = steps_of[part_number], stage.end_ps[stage.tasks_of(number)]
                for step in range(num_steps) if num_steps > 1 else ():
                    ends[step] = max(ends[step], task_ends[steps == step].max(initial=0))
            ends[-1] = max(int(ends[-1]), int(stage.end_ps.max(initial=0)))
        return np.maximum.accumulate(ends)

    def rank_ends(self) -> Int64:
        """Return the end of the last task of each rank: int64[ranks], ps."""
        ends = np.zeros(self.job.grid.num_ranks, np.int64)
        for stage in self.stages:
            sizes = np.array([len(part.tasks) for part in stage.parts], np.int64)[stage.part_of]
            class_ends = np.zeros(len(sizes), np.int64)
            with_tasks = np.flatnonzero(sizes)
            if len(with_tasks):
                class_ends[with_tasks] = np.maximum.reduceat(stage.end_ps, stage.base[with_tasks])
            np.maximum(ends, np.append(class_ends, 0)[stage.partition.class_of], out=ends)
        return ends


class UnfoldedTimes(NamedTuple):
    """Records of all tasks of all ranks; ``numbers``: maps a rank to the record number of each task of its pattern."""

    records: Records
    numbers: Callable[[int], Int64]


@dataclass(slots=True)
class Folder:
    """Folded simulation of one job.

    initial_colors: int64[ranks], further initial differences between ranks. scaling: durations by rank. places: see
    :func:`trine.folding.neighbourhood.link_places`; None on networks of flows. has_estimate: tells, when needed,
    whether an estimate can replace more than ESTIMATE_TASKS tasks.
    """

    job: JobPatterns
    placement: Placement
    network: str | Network = "fair"
    engine: str = "compiled"
    initial_colors: Int64 | None = None
    scaling: DurationScaling | None = None
    has_estimate: Callable[[], bool] | None = None
    table: RouteTable = field(init=False)
    places: Int64 | None = field(init=False)
    _search: ClassSearch = field(init=False)

    def __post_init__(self) -> None:
        num_links = len(self.placement.link_bytes_per_s)
        self.table = RouteTable(self.placement.routes, self.job.grid, num_links)
        queues = isinstance(network_model(self.network), QueueModel)
        self.places = link_places(self.job.patterns, self.table, num_links) if queues else None
        orbits = None if queues else orbits_of(self.job, self.placement, self.initial_colors)
        self._search = ClassSearch(self.placement, self.table, self.places, self.initial_colors, orbits)

    @property
    def shared_link(self) -> str:
        """A link shared by several routes in a network that serves messages in turn, or "" if no link is shared."""
        if self.places is None:
            return ""
        shared = np.flatnonzero(self.places == SHARED)
        return self.placement.link_name(int(shared[0])) if len(shared) else ""

    def run(self, unfolded: Callable[[], UnfoldedTimes] | None = None) -> FoldedRun:
        """Simulate everything. Raises PlanError if more than MAX_TASKS tasks have to be simulated at a time.

        unfolded: simulates all tasks of all ranks, for a caller that shows them; used if no two ranks are alike.
        """
        classes = _initial_classes(self.job, self._search)
        if self.places is None:  # runs of queues cannot stop
            classes = deferral.defer_axes(self._search, classes)
        is_folded = classes.partition.num_classes < self.placement.num_ranks or classes.has_deferred_axes
        if unfolded is not None and not is_folded:
            self._refuse_many(classes)
            _announce(classes.partition, classes.num_tasks, 0)
            return self._from_unfolded(classes, unfolded())
        quotient = self._quotient(classes, 0)
        return self._run_in_stages(quotient) if classes.has_deferred_axes else self._run_whole(quotient)

    def first_classes(self) -> Int64:
        """Return the finest class of each rank, int64[ranks], or its initial class if that makes too many tasks."""
        classes = _initial_classes(self.job, self._search)
        if classes.num_tasks > deferral.RUN_TASKS:
            classes = deferral.defer_axes(self._search, classes)
        return classes.partition.class_of.astype(np.int64)

    def _quotient(self, classes: RankClasses, now_ps: int) -> Quotient:
        """Build the graph of ``classes`` for a run from ``now_ps`` on."""
        self._refuse_many(classes)
        self._search.latest.clear()
        quotient = QuotientBuilder(self.job, classes, self.table, self.placement, self.scaling).build()
        _announce(classes.partition, quotient.graph.num_tasks, now_ps)
        return quotient

    def _refuse_many(self, classes: RankClasses) -> None:
        limit, num_tasks = MAX_TASKS, classes.num_tasks
        if num_tasks > ESTIMATE_TASKS and self.has_estimate is not None and self.has_estimate():
            limit = ESTIMATE_TASKS
        if num_tasks > limit:
            raise TooManyTasksError.of(classes.partition.num_classes, self.placement.num_ranks, num_tasks, limit)

    # -- running ---------------------------------------------------------------------------------------------------

    def _run_whole(self, quotient: Quotient) -> FoldedRun:
        records = run(quotient.graph, network=self.network, engine=self.engine)
        return self._result([_stage_of(quotient, records, 0)])

    def _from_unfolded(self, classes: RankClasses, times: UnfoldedTimes) -> FoldedRun:
        """Build a run with one class per rank from the times of all tasks."""
        parts, records = classes.parts, times.records
        part_of = np.empty(len(classes.partition.sizes), np.int32)
        for number, part in enumerate(parts):
            part_of[part.ranks] = number
        sizes = np.array([len(part.tasks) for part in parts], np.int64)[part_of]
        tasks = np.concatenate([times.numbers(rank)[parts[p].tasks] for rank, p in enumerate(part_of.tolist())])
        stage = RunStage(
            partition=classes.partition,
            parts=tuple(parts),
            part_of=part_of,
            base=np.cumsum(sizes) - sizes,
            ready_ps=records.ready_ps[tasks],
            start_ps=records.start_ps[tasks],
            end_ps=records.end_ps[tasks],
            begins_ps=0,
            num_tasks=len(tasks),
            num_events=records.num_events,
        )
        return self._result([stage])

    def _run_in_stages(self, quotient: Quotient) -> FoldedRun:
        """Run ``quotient`` until a held task becomes ready, then its remaining tasks in finer classes, and so on."""
        from trine.engine import advance
        from trine.folding.after_stop import activated, held_tasks, independent_runs, readers_along, remaining_parts

        readers = cache(lambda axis: readers_along(self.job, axis))
        stages: list[RunStage] = []
        pending: list[tuple[list[PatternPart], Quotient, Snapshot]] = []  # parts, and the stopped run to continue
        resume, stops = None, 0
        while True:
            hold = held_tasks(quotient)
            now_ps = 0 if resume is None else resume.now_ps
            snapshot = advance(quotient.graph, hold=hold, resume=resume, network=self.network, engine=self.engine)
            stages.append(_stage_of(quotient, snapshot, now_ps))
            if not snapshot.is_finished:
                stops += 1
                active = activated(self.job, quotient, snapshot, hold, readers) if stops <= MAX_STOPS else None
                parts = remaining_parts(self._search, quotient, snapshot, active)
                pending += [(run_parts, quotient, snapshot) for run_parts in independent_runs(self._search, parts)]
            if not pending:
                return self._result(stages)
            quotient, resume = self._continued(*pending.pop())

    def _continued(self, parts: list[PatternPart], before: Quotient, snapshot: Snapshot) -> tuple[Quotient, Snapshot]:
        """Return the graph of ``parts``, and the state of its tasks when the run of ``before`` stopped."""
        from trine.folding.after_stop import taken_over

        quotient = self._quotient(self._search.classes(parts), snapshot.now_ps)
        return quotient, taken_over(before, snapshot, quotient)

    def _result(self, stages: list[RunStage]) -> FoldedRun:
        return FoldedRun(
            job=self.job,
            stages=tuple(stages),
            num_events=sum(stage.num_events for stage in stages),
            engine=self.engine,
            network=self.network if isinstance(self.network, str) else self.network.name,
            table=self.table,
        )


def _announce(partition: Partition, num_tasks: int, now_ps: int) -> None:
    ranks, since = int(partition.sizes.sum()), f" from {format_time(now_ps)} on" if now_ps else ""
    classes = f"{partition.num_classes} class{'' if partition.num_classes == 1 else 'es'}"
    announce_stage(f"{ranks} ranks in {classes}, {num_tasks:,} tasks{since}")


def _initial_classes(job: JobPatterns, search: ClassSearch) -> RankClasses:
    """Return the classes at the beginning; drops signals if the rank differences that they cause make many tasks."""
    parts = whole_parts(job.patterns)
    if any(pattern.together for pattern in job.patterns):
        limit = max(len(parts), FEW_TASKS // max(1, min(pattern.num_tasks for pattern in job.patterns)))
        classes = search.classes(parts, limit)
        is_few = classes.partition.num_classes == len(parts) or classes.num_tasks <= FEW_TASKS
        if is_few and classes.partition.num_classes <= limit:
            return classes
        parts = parts if is_few else [without_signals(part) for part in parts]
    return search.classes(parts)


def _stage_of(quotient: Quotient, times: Records | Snapshot, begins_ps: int) -> RunStage:
    return RunStage(
        partition=quotient.partition,
        parts=quotient.parts,
        part_of=quotient.part_of,
        base=quotient.base,
        ready_ps=times.ready_ps,
        start_ps=times.start_ps,
        end_ps=times.end_ps,
        begins_ps=begins_ps,
        num_tasks=quotient.graph.num_tasks,
        num_events=times.num_events,
    )
