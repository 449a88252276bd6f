"""Folded simulation of a job: coarse classes of ranks run until a difference reaches them, then finer ones continue.

The first classes ignore later exchanges along *deferred* axes, and hold back the tasks that begin one. When the first
held task becomes ready, the run stops and the axis is activated for the programs that need it. The remaining
tasks are refined into new classes, which take over the state of their old classes. Ranks that no longer interact
continue in separate runs. See docs/design/folding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int32, Int64
from trine.common.observer import announce_stage
from trine.common.units import format_time
from trine.engine import advance, run
from trine.engine.models import Network, QueueModel, network_model
from trine.errors import TooManyTasksError
from trine.folding.colors import join_components
from trine.folding.neighbourhood import (
    SHARED,
    Neighbourhood,
    PatternPart,
    RouteTable,
    link_places,
    neighbourhood_of,
    whole_parts,
    without_signals,
)
from trine.folding.pattern import HOSTS, SELF, Edges, JobPatterns, Pattern
from trine.folding.quotient import ClassTasks, DurationScaling, Quotient, QuotientBuilder
from trine.folding.refine import Partition, among, identity, refine
from trine.graph.placement import Placement
from trine.graph.taskgraph import COMPUTE, TRANSFER, Records, Snapshot

#: If the classes exceed this share of the ranks, every rank is simulated by itself.
MOST_CLASSES = 0.25
#: Up to this many ranks are always refined to the end, because it costs nothing.
FEW_RANKS = 4096
#: Axes are deferred while more tasks than this would be simulated, and deferring one more at least halves them.
MANY_TASKS = 2_000_000
WORTH_A_STOP = 0.5
#: Signals between ranks are simulated one by one up to this many tasks (about 0.3 s).
FEW_TASKS = 500_000
#: A stop activates all axes if the necessary ones alone already need this share of the tasks.
WORTH_WAITING = 0.9
#: Ranks without interaction are divided into runs of about this many tasks.
RUN_TASKS = 6_000_000
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
        partition = next(e.partition for e in reversed(self.stages) if e.partition.class_of[rank] >= 0)
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
            own, tasks = stage.tasks_of(number), stage.parts[stage.part_of[number]].tasks
            for column, values in zip(columns, (stage.ready_ps, stage.start_ps, stage.end_ps), strict=True):
                column[tasks] = values[own]
        return columns[0], columns[1], columns[2]

    def step_ends(self) -> Int64:
        """Return when each training step ended on all ranks: int64[steps], ps. Unlabelled tasks belong to the last."""
        num_steps = 1 + max(int(pattern.labels[5].max(initial=0)) for pattern in self.job.patterns)
        ends = np.zeros(num_steps, np.int64)
        for stage in self.stages:
            steps = [part.pattern.labels[5][part.tasks] for part in stage.parts]
            for number, at in enumerate(stage.part_of.tolist()):
                step, own = steps[at], stage.end_ps[stage.tasks_of(number)]
                for one in range(num_steps) if num_steps > 1 else ():
                    ends[one] = max(ends[one], own[step == one].max(initial=0))
            ends[-1] = max(int(ends[-1]), int(stage.end_ps.max(initial=0)))
        return np.maximum.accumulate(ends)

    def rank_ends(self) -> Int64:
        """Return the end of the last task of each rank: int64[ranks], ps."""
        ends = np.zeros(self.job.grid.num_ranks, np.int64)
        for stage in self.stages:
            sizes = np.array([len(part.tasks) for part in stage.parts], np.int64)[stage.part_of]
            of_class = np.zeros(len(sizes), np.int64)
            some = np.flatnonzero(sizes)
            if len(some):
                of_class[some] = np.maximum.reduceat(stage.end_ps, stage.base[some])
            np.maximum(ends, np.append(of_class, 0)[stage.partition.class_of], out=ends)
        return ends


class UnfoldedTimes(NamedTuple):
    """Records of all tasks of all ranks; ``numbers``: maps a rank to the record number of each task of its pattern."""

    records: Records
    numbers: Callable[[int], Int64]


@dataclass(slots=True)
class _Waiting:
    """A pending run: continues ``parts`` from the state ``before``; the first run has a quotient instead."""

    before: tuple[Quotient, Snapshot] | None
    quotient: Quotient | None
    parts: list[PatternPart] = field(default_factory=list)


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
    _known_readers: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    #: the latest results of _classes since the last run began: key, parts, and their classes
    _latest: list[tuple[object, Sequence[PatternPart], tuple[Partition, Neighbourhood]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        num_links = len(self.placement.link_bytes_per_s)
        self.table = RouteTable(self.placement.routes, self.job.grid, num_links)
        queues = isinstance(network_model(self.network), QueueModel)
        self.places = link_places(self.job.patterns, self.table, num_links) if queues else None

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
        parts, partition, neighbourhood = self._first()
        if self.places is None:  # runs of queues cannot stop
            parts, partition, neighbourhood = self._deferred(parts, partition, neighbourhood)
        is_folded = partition.num_classes < self.placement.num_ranks or any(part.deferred for part in parts)
        if unfolded is not None and not is_folded:
            self._refuse_many(parts, partition)
            self._say(partition, _num_tasks(parts, partition), 0)
            return self._as_simulated(parts, partition, unfolded())
        quotient = self._quotient(parts, partition, neighbourhood)
        self._say(partition, quotient.graph.num_tasks, 0)
        if not any(part.deferred for part in parts):
            return self._whole(quotient)
        return self._in_stages(quotient)

    def first_classes(self) -> Int64:
        """Return the finest class of each rank, int64[ranks], or its initial class if that makes too many tasks."""
        parts, partition, neighbourhood = self._first()
        if _num_tasks(parts, partition) > RUN_TASKS:
            partition = self._deferred(parts, partition, neighbourhood)[1]
        return partition.class_of.astype(np.int64)

    # -- classes ---------------------------------------------------------------------------------------------------

    def _first(self) -> tuple[list[PatternPart], Partition, Neighbourhood]:
        """Return all ranks at the beginning, with their classes; drops signals if the rank differences that they cause
        make many tasks.
        """
        parts = whole_parts(self.job.patterns)
        if any(pattern.together for pattern in self.job.patterns):
            most = max(len(parts), FEW_TASKS // max(1, min(pattern.num_tasks for pattern in self.job.patterns)))
            partition, neighbourhood = self._classes(parts, most)
            is_few = partition.num_classes == len(parts) or _num_tasks(parts, partition) <= FEW_TASKS
            if is_few and partition.num_classes <= most:
                return parts, partition, neighbourhood
            parts = parts if is_few else [without_signals(part) for part in parts]
        return parts, *self._classes(parts)

    def _classes(self, parts: Sequence[PatternPart], most: int | None = None) -> tuple[Partition, Neighbourhood]:
        """Return the classes of ranks with equal views along active axes; each rank alone above ``most`` classes."""
        key = _identity(parts), most
        for known, _, answer in self._latest:
            if known == key:
                return answer
        answer = self._found_classes(parts, most)
        self._latest = [*self._latest[-2:], (key, parts, answer)]  # the parts too: the key holds ids of their arrays
        return answer

    def _found_classes(self, parts: Sequence[PatternPart], most: int | None) -> tuple[Partition, Neighbourhood]:
        neighbourhood, ranks = self._neighbourhood(parts)
        colors = np.empty(self.placement.num_ranks, np.int64)
        for number, part in enumerate(parts):
            colors[part.ranks] = number
        if self.initial_colors is not None:
            colors = colors * (int(self.initial_colors.max(initial=0)) + 1) + self.initial_colors
        limit = len(ranks) if len(ranks) <= FEW_RANKS else int(MOST_CLASSES * len(ranks))
        limit = limit if most is None else min(limit, most)
        partition = refine(colors[ranks], self._link_colors(neighbourhood), neighbourhood, limit)
        if partition is None:
            partition = identity(len(ranks), len(neighbourhood.links))
        return among(partition, ranks, self.placement.num_ranks, len(neighbourhood.real_links)), neighbourhood

    def _link_colors(self, neighbourhood: Neighbourhood) -> Int64:
        """Return equal numbers for links of equal bandwidth, latency and, in networks of queues, place on their route;
        and for groups along one axis.
        """
        columns = [self.placement.link_bytes_per_s, self.placement.link_latency_ps]
        if self.places is not None:  # a message that crosses two links waits for both
            columns.append(self.places)
        if self.placement.software is not None:
            columns.append(self.placement.software.is_outer.astype(np.int64))
        real = neighbourhood.real_links
        colors = np.zeros(len(real), np.int64)
        for column in columns:
            own = np.unique(column[real], return_inverse=True)[1].ravel().astype(np.int64)
            colors = colors * (int(own.max(initial=0)) + 1) + own
        groups = neighbourhood.links[len(real) :].astype(np.int64) - self.table.num_links
        axis = groups // self.placement.num_ranks
        return np.concatenate([colors, int(colors.max(initial=0)) + 1 + axis])

    def _neighbourhood(self, parts: Sequence[PatternPart]) -> tuple[Neighbourhood, Int64]:
        """Return the neighbourhood of the ranks of ``parts``, and these ranks in ascending order."""
        ranks = np.sort(np.concatenate([part.ranks for part in parts]))
        number_of = np.full(self.placement.num_ranks, -1, np.int32)
        number_of[ranks] = np.arange(len(ranks), dtype=np.int32)
        return neighbourhood_of(parts, number_of, len(ranks), self.table), ranks

    def _deferred(
        self, parts: list[PatternPart], partition: Partition, neighbourhood: Neighbourhood
    ) -> tuple[list[PatternPart], Partition, Neighbourhood]:
        """Defer axes at the beginning, while there are many tasks and one more axis at least halves them.

        Prefers the axis that is used last among those that leave few tasks, else the axis that leaves the fewest.
        """
        axes = sorted({axis for part in parts for axis in part.pattern.role_axes})
        while partition.num_classes > len(parts) and (tasks := _num_tasks(parts, partition)) > MANY_TASKS:
            deferred = parts[0].deferred
            tried = {axis: _deferring(parts, deferred | {axis}) for axis in axes if axis not in deferred}
            found = {axis: self._classes(fewer) for axis, fewer in tried.items()}
            num_tasks = {axis: _num_tasks(parts, classes) for axis, (classes, _) in found.items()}
            few = {axis: -_first_use_ps(tried[axis], axis) for axis, left in num_tasks.items() if left <= MANY_TASKS}
            best = min(
                few or num_tasks, key=lambda axis: ((few or num_tasks)[axis], num_tasks[axis], axis), default=None
            )
            if best is None or num_tasks[best] > WORTH_A_STOP * tasks:
                break
            parts, (partition, neighbourhood) = tried[best], found[best]
        return parts, partition, neighbourhood

    def _quotient(self, parts: Sequence[PatternPart], partition: Partition, neighbourhood: Neighbourhood) -> Quotient:
        self._refuse_many(parts, partition)
        self._latest.clear()
        builder = QuotientBuilder(self.job, parts, partition, neighbourhood, self.table, self.placement, self.scaling)
        return builder.build()

    def _refuse_many(self, parts: Sequence[PatternPart], partition: Partition) -> None:
        most, tasks = MAX_TASKS, _num_tasks(parts, partition)
        if tasks > ESTIMATE_TASKS and self.has_estimate is not None and self.has_estimate():
            most = ESTIMATE_TASKS
        if tasks > most:
            raise TooManyTasksError.of(partition.num_classes, self.placement.num_ranks, tasks, most)

    def _say(self, partition: Partition, tasks: int, now_ps: int) -> None:
        ranks, since = int(partition.sizes.sum()), f" from {format_time(now_ps)} on" if now_ps else ""
        classes = f"{partition.num_classes} class{'' if partition.num_classes == 1 else 'es'}"
        announce_stage(f"{ranks} ranks in {classes}, {tasks:,} tasks{since}")

    # -- running ---------------------------------------------------------------------------------------------------

    def _whole(self, quotient: Quotient) -> FoldedRun:
        records = run(quotient.graph, network=self.network, engine=self.engine)
        return self._gave([_stage_of(quotient, records, 0)], records.num_events)

    def _as_simulated(self, parts: list[PatternPart], partition: Partition, times: UnfoldedTimes) -> FoldedRun:
        """Build a run with one class per rank from the times of all tasks."""
        part_of = np.empty(len(partition.sizes), np.int32)
        for number, part in enumerate(parts):
            part_of[part.ranks] = number
        sizes = np.array([len(part.tasks) for part in parts], np.int64)[part_of]
        tasks = [times.numbers(rank)[parts[at].tasks] for rank, at in enumerate(part_of.tolist())]
        at, records = np.concatenate(tasks), times.records
        stage = RunStage(
            partition=partition,
            parts=tuple(parts),
            part_of=part_of,
            base=np.cumsum(sizes) - sizes,
            ready_ps=records.ready_ps[at],
            start_ps=records.start_ps[at],
            end_ps=records.end_ps[at],
            begins_ps=0,
            num_tasks=len(at),
            num_events=records.num_events,
        )
        return self._gave([stage], records.num_events)

    def _in_stages(self, quotient: Quotient) -> FoldedRun:
        stages: list[RunStage] = []
        waiting: list[_Waiting] = [_Waiting(None, quotient)]
        num_events = stops = 0
        while waiting:
            one = waiting.pop()
            quotient = one.quotient if one.quotient is not None else self._prepared(one)
            hold = _held(quotient)
            resume = None if one.before is None else _taken_over(*one.before, quotient)
            now_ps = 0 if resume is None else resume.now_ps
            one.before = one.quotient = None
            snapshot = advance(
                quotient.graph,
                hold=hold if hold.any() else None,
                resume=resume,
                network=self.network,
                engine=self.engine,
            )
            stages.append(_stage_of(quotient, snapshot, now_ps))
            num_events += snapshot.num_events
            if not snapshot.is_finished:
                stops += 1
                active = self._activated(quotient, snapshot, hold) if stops <= MAX_STOPS else None
                waiting += self._refined(quotient, snapshot, active)
        return self._gave(stages, num_events)

    def _gave(self, stages: list[RunStage], num_events: int) -> FoldedRun:
        return FoldedRun(
            job=self.job,
            stages=tuple(stages),
            num_events=num_events,
            engine=self.engine,
            network=self.network if isinstance(self.network, str) else self.network.name,
            table=self.table,
        )

    def _activated(self, quotient: Quotient, snapshot: Snapshot, hold: Bool) -> dict[str, set[int]]:
        """Return the axes of ready held tasks -> the programs whose ranks may be affected."""
        active: dict[str, set[int]] = {}
        ready = np.flatnonzero(hold & (snapshot.ready_ps >= 0) & (snapshot.start_ps < 0))
        of_class = np.searchsorted(quotient.base, ready, side="right") - 1
        for task, number in zip(ready.tolist(), of_class.tolist(), strict=True):
            part = quotient.parts[quotient.part_of[number]]
            local = int(part.tasks[task - int(quotient.base[number])])
            active.setdefault(_axis_of(self.job, part.pattern, local), set()).add(part.pattern.program)
        for axis, programs in active.items():
            self._spread(axis, programs)
        return active

    def _spread(self, axis: str, programs: set[int]) -> None:
        """Add the programs that wait for tasks of ``programs`` along ``axis``, and so on."""
        readers = self._readers(axis)
        new = set(programs)
        while new:
            new = {reader for program in new for reader in readers.get(program, ())} - programs
            programs |= new

    def _readers(self, axis: str) -> dict[int, set[int]]:
        """Return program -> programs whose ranks wait for tasks of its ranks along ``axis``."""
        if axis not in self._known_readers:
            program_of = np.array([pattern.program for pattern in self.job.patterns])[self.job.pattern_of]
            found: dict[int, set[int]] = {}
            for pattern in self.job.patterns:
                for role in np.unique(pattern.edges.role).tolist():
                    if role >= 0 and pattern.role_axes[role] == axis:
                        for program in np.unique(program_of[pattern.peers[:, role]]).tolist():
                            found.setdefault(program, set()).add(pattern.program)
            self._known_readers[axis] = found
        return self._known_readers[axis]

    def _refined(self, quotient: Quotient, snapshot: Snapshot, active: dict[str, set[int]] | None) -> list[_Waiting]:
        """Return the remaining tasks, divided into runs of independent ranks.

        active: axis -> the programs that activate it now; None: all axes for all programs.
        """
        parts = []
        masks: dict[tuple[int, bytes], PatternPart] = {}
        for number in range(quotient.partition.num_classes):
            part = quotient.parts[quotient.part_of[number]]
            left = snapshot.end_ps[quotient.tasks_of(number)] < 0
            if left.any():
                rest = _left(part, left, number, quotient.partition.class_of, masks)
                axes = (axis for axis in part.deferred if active is not None and _is_deferred(part, axis, active))
                parts.append(replace(rest, deferred=frozenset(axes)))
        if any(part.deferred for part in parts) and self._all_at_once(parts):
            parts = _deferring(parts, frozenset())
        return [_Waiting((quotient, snapshot), None, cut) for cut in self._cut(parts)]

    def _all_at_once(self, parts: Sequence[PatternPart]) -> bool:
        """Return whether activating all axes now costs little more than activating the necessary ones."""
        partly, wholly = (
            _num_tasks(parts, self._classes(which)[0]) for which in (parts, _deferring(parts, frozenset()))
        )
        return partly >= (WORTH_A_STOP if wholly <= RUN_TASKS else WORTH_WAITING) * wholly

    def _cut(self, parts: Sequence[PatternPart]) -> list[list[PatternPart]]:
        """Divide parts into runs: one for all that may stop again, the others with about RUN_TASKS tasks each."""
        # Later exchanges along deferred axes may cross links that other ranks use now, so they join ranks too.
        _, neighbourhood = self._classes(_deferring(parts, frozenset()))
        ranks = np.sort(np.concatenate([part.ranks for part in parts]))
        component = join_components(neighbourhood.ptr, neighbourhood.items, len(neighbourhood.links))
        of_rank = np.zeros(self.placement.num_ranks, np.int64)
        of_rank[ranks] = component[: len(ranks)]
        stoppable = np.zeros(len(component), np.bool_)
        size = np.zeros(len(component), np.int64)
        for part in parts:
            stoppable[of_rank[part.ranks]] |= bool(part.deferred)
            np.add.at(size, of_rank[part.ranks], len(part.tasks))
        free = np.flatnonzero((size > 0) & ~stoppable)
        run_of = np.full(len(component), -1, np.int64)  # -1: the run that may be stopped
        run_of[free] = np.cumsum(size[free]) // RUN_TASKS
        if (
            len(free) and _num_tasks(parts, self._classes(parts)[0]) <= RUN_TASKS
        ):  # all that cannot be stopped folds well
            run_of[free] = 0
        runs: dict[int, list[PatternPart]] = {}
        for part in parts:
            runs_of = run_of[of_rank[part.ranks]]
            for run_number in np.unique(runs_of).tolist():
                mine = runs_of == run_number
                runs.setdefault(run_number, []).append(replace(part, ranks=part.ranks[mine], rows=part.rows[mine]))
        return [runs[number] for number in sorted(runs)]

    def _prepared(self, one: _Waiting) -> Quotient:
        quotient = self._quotient(one.parts, *self._classes(one.parts))
        assert one.before is not None
        self._say(quotient.partition, quotient.graph.num_tasks, one.before[1].now_ps)
        return quotient


def _identity(parts: Sequence[PatternPart]) -> list[tuple[object, ...]]:
    """Return equal keys for parts with the same ranks and the same remaining tasks, as long as one of them is alive."""
    return [(id(part.pattern), id(part.tasks), id(part.edges), part.deferred, part.ranks.tobytes()) for part in parts]


def _num_tasks(parts: Sequence[PatternPart], partition: Partition) -> int:
    """Return the number of tasks of a partition's representatives."""
    total = 0
    for part in parts:
        classes = np.unique(partition.class_of[part.ranks])
        total += len(part.tasks) * len(classes)
    return total


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


def _deferring(parts: Sequence[PatternPart], axes: frozenset[str]) -> list[PatternPart]:
    """Return the same parts with ``axes`` deferred."""
    return [replace(part, deferred=axes) for part in parts]


def _is_deferred(part: PatternPart, axis: str, active: dict[str, set[int]]) -> bool:
    return part.pattern.program not in active.get(axis, ())


def _held(quotient: Quotient) -> Bool:
    """Return which tasks begin an exchange along an axis that is deferred for their part."""
    of_part = [_begins(part) for part in quotient.parts]
    hold = np.zeros(quotient.graph.num_tasks, np.bool_)
    for number, at in enumerate(quotient.part_of.tolist()):
        hold[quotient.tasks_of(number)] = of_part[at]
    return hold


def _begins(part: PatternPart) -> Bool:
    """Return bool[remaining tasks]: entries into collectives, and messages, along deferred axes."""
    pattern, deferred = part.pattern, part.deferred
    begins = np.zeros(pattern.num_tasks, np.bool_)
    if deferred:
        is_deferred = np.array([axis in deferred for axis in pattern.role_axes] + [False] * (1 + len(HOSTS)))
        begins[(pattern.kind == TRANSFER) & is_deferred[pattern.role]] = True
        for key in pattern.algorithm_of:
            if pattern.key_axes[key] in deferred:
                begins[pattern.entered[key]] = True
    return begins[part.tasks]


def _first_use_ps(parts: Sequence[PatternPart], axis: str) -> int:
    """Return the minimum compute time before any rank begins an exchange along ``axis``."""
    first_ps = []
    for part in parts:
        begins = np.flatnonzero(_begins(replace(part, deferred=frozenset({axis}))))
        if len(begins):
            before = part.tasks[: begins[0]]
            is_compute = part.pattern.kind[before] == COMPUTE
            first_ps.append(int(part.pattern.duration_ps[before[is_compute]].sum()))
    return min(first_ps, default=0)


def _axis_of(job: JobPatterns, pattern: Pattern, task: int) -> str:
    """Return the axis of the exchange that a held task begins."""
    if pattern.key[task] >= 0:
        return job.keys[int(pattern.key[task])][0]
    return pattern.role_axes[int(pattern.role[task])]


def _left(
    part: PatternPart, left: Bool, number: int, class_of: Int32, known: dict[tuple[int, bytes], PatternPart]
) -> PatternPart:
    """Return the ranks of class ``number`` with their remaining tasks; ``known`` caches the rank-independent fields."""
    name = (id(part), np.packbits(left).tobytes())
    if name not in known:
        known[name] = _trimmed(part, left)
    mine = class_of[part.ranks] == number
    return replace(known[name], number=number, ranks=part.ranks[mine], rows=part.rows[mine], before=number)


def _trimmed(part: PatternPart, left: Bool) -> PatternPart:
    pattern, edges = part.pattern, part.edges
    tasks = part.tasks[left]
    number_of = np.full(pattern.num_tasks, -1, np.int32)
    number_of[tasks] = np.arange(len(tasks), dtype=np.int32)
    keep = number_of[edges.task] >= 0
    own = edges.role == SELF
    keep[own] &= number_of[edges.key[own]] >= 0
    trimmed = Edges(
        task=edges.task[keep],
        role=edges.role[keep],
        what=edges.what[keep],
        key=edges.key[keep],
        number=edges.number[keep],
    )
    return replace(part, tasks=tasks, number_of=number_of, edges=trimmed)


def _taken_over(coarse: Quotient, snapshot: Snapshot, fine: Quotient) -> Snapshot:
    """Return a snapshot that gives each finer class the state of its former class."""
    origin = np.empty(fine.graph.num_tasks, np.int32)
    left_of: dict[int, Int64] = {}
    for number in range(fine.partition.num_classes):
        before = fine.parts[fine.part_of[number]].before
        if before not in left_of:
            left = snapshot.end_ps[coarse.tasks_of(before)] < 0
            left_of[before] = np.flatnonzero(left) + int(coarse.base[before])
        origin[fine.tasks_of(number)] = left_of[before]
    row_of = np.full(coarse.graph.num_tasks, -1, np.int32)
    row_of[snapshot.active] = np.arange(len(snapshot.active), dtype=np.int32)
    rows = row_of[origin]
    active = np.flatnonzero(rows >= 0).astype(np.int32)
    rows = rows[active]
    streams = len(fine.graph.stream_names) // max(1, fine.partition.num_classes)
    return replace(
        snapshot,
        ready_ps=snapshot.ready_ps[origin],
        start_ps=snapshot.start_ps[origin],
        end_ps=snapshot.end_ps[origin],
        active=active,
        due_ps=snapshot.due_ps[rows],
        since_ps=snapshot.since_ps[rows],
        remaining_bytes=snapshot.remaining_bytes[rows],
        bytes_per_s=snapshot.bytes_per_s[rows],
        flow_end_ps=snapshot.flow_end_ps[rows],
        num_events=0,
        speed_ppm=_streams_taken_over(snapshot.speed_ppm, fine, streams),
        stream_left_as=_streams_taken_over(snapshot.stream_left_as, fine, streams),
    )


def _streams_taken_over(column: Int64 | None, fine: Quotient, streams: int) -> Int64 | None:
    if column is None:
        return None
    before = np.array([fine.parts[at].before for at in fine.part_of.tolist()], np.int64)
    return column.reshape(-1, streams)[before].ravel()
