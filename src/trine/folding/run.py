"""Runs of a job, folded if possible, and the choice of the ranks that the result shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int8, Int64, spans
from trine.common.units import format_time
from trine.engine import run
from trine.engine.models import Network, QueueModel, network_model, why_unfolded
from trine.errors import InputError, SimulationError
from trine.folding.extract import Extraction, extract_patterns
from trine.folding.modes import FoldMode, fold_of
from trine.folding.pattern import JobPatterns
from trine.folding.signals import whole_times
from trine.folding.stages import FoldedRun, Folder, UnfoldedTimes
from trine.folding.traffic import WORTH_A_WORD, collective_totals, link_bytes, link_uses, rank_skew_ps
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.program import Job
from trine.graph.taskgraph import Records, TaskGraph
from trine.parallel.instantiate import instantiate
from trine.results import Result
from trine.results.ends import Ends
from trine.results.run import FoldStage, Scope

if TYPE_CHECKING:
    from trine.folding.observation import Observation
    from trine.folding.straggler_scaling import StragglerScaling
    from trine.parallel.stragglers import Stragglers
    from trine.results.link_use import LinkUse
    from trine.results.repeats import RepeatedSteps, Repeats

#: Results with at most this number of ranks, and of steps of all their programs (about 2 s), show all of them.
SHOW_ALL, SHOW_ALL_STEPS = 64, 300_000
_SHOWS_FEW: ContextVar[bool] = ContextVar("shows_few", default=False)


@contextmanager
def showing_few(is_few: bool = True) -> Iterator[None]:
    """Show the representatives of few ranks too: all that an answer without tables of ranks needs."""
    token = _SHOWS_FEW.set(is_few)
    try:
        yield
    finally:
        _SHOWS_FEW.reset(token)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobRun:
    """Result of a run: the graph of the shown ranks, and their records.

    ranks: of each row of the graph. folded: None if trine did not try to fold; why: the reason. sentence: the result
    of --verify-fold. ends, reasons: as in :class:`trine.folding.observe.Observation`. repeats, repeated_steps:
    windows that stand for a longer run.
    """

    graph: TaskGraph
    records: Records
    memory: MemoryEvents
    ranks: tuple[int, ...]
    folded: FoldedRun | None
    placement: Placement
    why: str = ""
    sentence: str = ""
    ends: Ends | None = None
    reasons: Callable[[], Int8] | None = None
    repeats: Repeats | None = None
    repeated_steps: RepeatedSteps | None = None

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def is_complete(self) -> bool:
        """Whether the graph has all ranks with their links; one of representatives has no links."""
        return self.ends is None

    @property
    def num_simulated(self) -> int:
        """Maximum number of ranks simulated at a time."""
        return self.num_ranks if self.folded is None else self.folded.most_classes


@dataclass
class JobRunner:
    """Runner of one job. fold: a mode or its text. stragglers: slow ranks, jitter. has_estimate: see :class:`Folder`.
    fullest_program: see :func:`trine.folding.shown_ranks.representative_ranks`.
    """

    job: Job
    placement: Placement
    network: str | Network = "fair"
    engine: str = "compiled"
    fold: str = "on"
    stragglers: Stragglers | None = None
    has_estimate: Callable[[], bool] | None = None
    fullest_program: Callable[[], int] | None = None

    def run(self) -> JobRun:
        """Simulate the job. Raises SimulationError if ``verify`` finds a difference."""
        fold = fold_of(self.fold)
        why = self._why_unfolded()
        if fold is FoldMode.OFF or (why and self.stragglers is None and not fold.verifies):
            return self._unfolded(None, why)
        extraction, whole = Extraction(self.job, self.placement.group_costs), _Whole(self, None)
        if not fold.verifies and not why and self._are_alone(extraction, whole):
            return self._with_all_ranks(whole, None, why="no two ranks have the same place in collectives")
        patterns = extraction.job_patterns()
        scaling = self._scaling(patterns)
        folder = self._folder(patterns, scaling)
        why = why or _why_queues(folder)
        if fold.verifies and (why or self.placement.num_ranks == 1):
            raise InputError(f"no ranks are folded, so there is nothing to verify: {why or 'one rank'}", field="fold")
        if why:
            return self._unfolded(scaling, why)
        whole = whole if scaling is None else _Whole(self, scaling)
        if fold.verifies:
            folded = folder.run()
            return self._with_shown_ranks(folded, whole, check_fold(folded, whole.graph, whole.records))
        if not self._shows_all:
            return self._with_shown_ranks(folder.run(), whole)
        folded = folder.run(lambda: UnfoldedTimes(whole.records, UnfoldedNumbers(patterns, whole.graph).of_rank))
        return self._with_shown_ranks(folded, whole)

    @cached_property
    def _shows_all(self) -> bool:
        if self.placement.num_ranks > SHOW_ALL or _SHOWS_FEW.get():
            return False
        return sum(len(self.job.programs[number].steps) for number in self.job.program_of) <= SHOW_ALL_STEPS

    def _are_alone(self, extraction: Extraction, whole: _Whole) -> bool:
        """Return whether schedules alone distinguish all of a few ranks, as in a chain; patterns are then not needed.

        False if ranks of one program drift apart, since those need a warning (``sensitivity_warning``).
        """
        num_ranks = self.placement.num_ranks
        if self.stragglers is not None or not self._shows_all or len(self.job.programs) == num_ranks:
            return False
        if extraction.num_patterns < num_ranks:
            return False
        return rank_skew_ps(extraction, whole.records) < WORTH_A_WORD * int(whole.records.end_ps.max(initial=0))

    def _folder(self, patterns: JobPatterns, scaling: StragglerScaling | None) -> Folder:
        return Folder(
            job=patterns,
            placement=self.placement,
            network=self.network,
            engine=self.engine,
            initial_colors=None if scaling is None else scaling.initial_colors(),
            scaling=scaling,
            has_estimate=self.has_estimate,
        )

    def _scaling(self, patterns: JobPatterns) -> StragglerScaling | None:
        """Return the factors on durations. If each class draws, the classes are the ones without jitter."""
        if self.stragglers is None:
            return None
        from trine.folding.straggler_scaling import StragglerScaling

        scaling = StragglerScaling(patterns, self.stragglers)
        if self.stragglers.jitter is None or self.stragglers.tells_ranks_apart:
            return scaling
        return replace(scaling, draws_as=self._folder(patterns, scaling).first_classes())

    def _why_unfolded(self) -> str:
        """Return the reason why every rank must be simulated, or "" if ranks may be folded."""
        if self.placement.num_ranks == 1:
            return ""
        if self.stragglers is not None and self.stragglers.tells_ranks_apart:
            return "jitter makes every rank different"
        model = network_model(self.network)
        return "" if isinstance(model, QueueModel) else why_unfolded(model) or ""

    def _unfolded(self, scaling: StragglerScaling | None, why: str) -> JobRun:
        if scaling is None and self.stragglers is not None:
            scaling = self._scaling(extract_patterns(self.job, self.placement.group_costs))
        return self._with_all_ranks(_Whole(self, scaling), None, why=why if self.fold != FoldMode.OFF else "")

    def _with_shown_ranks(self, folded: FoldedRun, whole: _Whole, sentence: str = "") -> JobRun:
        if self._shows_all:
            return self._with_all_ranks(whole, folded, sentence=sentence)
        from trine.folding.shown_ranks import representative_ranks

        ranks = representative_ranks(folded, self.fullest_program)
        from trine.folding.observe import observe

        observation = observe(folded, self.placement, ranks)
        return JobRun(
            graph=observation.graph,
            records=observation.records,
            memory=observation.memory,
            ends=observation.ends,
            reasons=observation.reasons,
            ranks=tuple(ranks),
            folded=folded,
            placement=self.placement,
            sentence=sentence,
        )

    def _with_all_ranks(self, whole: _Whole, folded: FoldedRun | None, *, why: str = "", sentence: str = "") -> JobRun:
        graph, memory = whole.built
        if folded is not None and (self.fold == FoldMode.VERIFY or not whole.is_run):
            records = unfolded_records(folded, graph)
        else:
            records = whole.records
        return JobRun(
            graph=graph,
            records=records,
            memory=memory,
            ranks=tuple(range(self.placement.num_ranks)),
            folded=folded,
            placement=self.placement,
            why=why,
            sentence=sentence,
        )


class _Whole:
    """All tasks of all ranks, built and simulated on demand. The code for this is independent of folding, except for
    storage.
    """

    def __init__(self, runner: JobRunner, scaling: StragglerScaling | None) -> None:
        self._runner = runner
        self._scaling = scaling

    @cached_property
    def built(self) -> tuple[TaskGraph, MemoryEvents]:
        graph, memory = instantiate(self._runner.job, self._runner.placement)
        return graph if self._scaling is None else self._scaling.on_graph(graph), memory

    @property
    def graph(self) -> TaskGraph:
        return self.built[0]

    @cached_property
    def records(self) -> Records:
        runner = self._runner
        return run(self.graph, network=runner.network, engine=runner.engine)

    @property
    def is_run(self) -> bool:
        return "records" in self.__dict__


def _why_queues(folder: Folder) -> str:
    """Return the reason why a run on a queue network does not fold, or "" if it folds or the network has no queues."""
    if not folder.shared_link:
        return ""
    why = why_unfolded(network_model(folder.network))
    return f"{why}, and link {folder.shared_link} carries messages of several routes"


def scope_of(
    job_run: JobRun,
    observed: Callable[[Observation, Sequence[int], Scope], Result],
    judged: Callable[[Result], Result],
) -> Scope | None:
    """Return the scope of a folded result, or None if nothing was folded. ``observed`` builds a result for the
    requested ranks, ``judged`` adds its warnings.
    """
    if job_run.folded is None:
        return None
    scopes = _Scopes(job_run, job_run.folded, observed, judged)
    return scopes.of(job_run.ranks, job_run.is_complete)


@dataclass(frozen=True, eq=False)
class _Scopes:
    """The scopes of a folded result, see :func:`scope_of`.

    A scope refers to this object and not the other way, so a result that is no longer in use is freed at once.
    """

    job_run: JobRun
    folded: FoldedRun
    observed: Callable[[Observation, Sequence[int], Scope], Result]
    judged: Callable[[Result], Result]

    @cached_property
    def step_ends_ps(self) -> Int64:
        ends, repeats = self.folded.step_ends(), self.job_run.repeats
        return ends if repeats is None else repeats.stretch(ends)

    @property
    def step(self) -> int | None:
        """The last of several steps; None for a single one."""
        return None if len(self.step_ends_ps) == 1 else len(self.step_ends_ps) - 1

    @cached_property
    def carried(self) -> Int64:
        return link_bytes(self.folded.job, self.job_run.placement, self.folded.table, self.step, self.job_run.repeats)

    @cached_property
    def uses(self) -> tuple[LinkUse, ...]:
        ends = self.step_ends_ps
        step_ps = int(ends[-1] - (ends[-2] if len(ends) > 1 else 0))
        return link_uses(self.carried, self.job_run.placement, step_ps)

    def of_ranks(self, ranks: Sequence[int]) -> Result:
        from trine.folding.observe import observe

        view = observe(self.folded, self.job_run.placement, ranks)
        return self.judged(self.observed(view, ranks, self.of(tuple(ranks), False)))

    def spread(self) -> tuple[Result, npt.NDArray[np.float64]]:
        from trine.folding.shown_ranks import spread_ranks

        weights, job_run = spread_ranks(self.folded), self.job_run
        ranks = tuple(weights)
        from trine.folding.observe import observe

        busy = observe(self.folded, job_run.placement, ranks, busy_only=True)
        return self.observed(busy, ranks, self.of(ranks, job_run.is_complete)), np.array(list(weights.values()))

    def of(self, ranks: tuple[int, ...], shows_all: bool) -> Scope:
        """Return the scope of a result with these ranks; shows_all: without numbers of the whole system."""
        folded, job_run, step = self.folded, self.job_run, self.step
        return Scope(
            ranks=ranks,
            num_ranks=job_run.num_ranks,
            stages=tuple(
                FoldStage(
                    begins_ps=stage.begins_ps,
                    num_classes=stage.partition.num_classes,
                    num_link_classes=len(stage.partition.link_sizes),
                    num_tasks=stage.num_tasks,
                    num_events=stage.num_events,
                    num_ranks=int(stage.partition.sizes.sum()),
                )
                for stage in folded.stages
            ),
            notes=(*_why_so_many(folded.job, folded), *([job_run.sentence] if job_run.sentence else [])),
            links=None if shows_all else self.uses,
            link_bytes=self.carried,
            totals=None if shows_all else collective_totals(folded.job, step, job_run.repeats),
            observe=self.of_ranks,
            class_of=lambda rank: folded.class_of(rank)[0],
            class_size=lambda rank: folded.class_of(rank)[1],
            program_of=folded.job.program_of,
            spread=self.spread,
            step_ends_ps=self.step_ends_ps,
        )


def _why_so_many(job: JobPatterns, folded: FoldedRun) -> list[str]:
    """Return the reasons for more than one class, as sentences."""
    programs, kinds = len(job.job.programs), len(job.patterns)
    if all(stage.partition.num_classes == 1 for stage in folded.stages):
        return []
    parts = [f"{programs} program{'s' if programs > 1 else ''}"]
    if kinds > programs:
        parts.append(f"{kinds} with their places in collectives")
    finest = folded.most_classes
    if finest > kinds:
        parts.append(f"{finest} with the links and neighbours that they see")
    return [", ".join(parts)]


class UnfoldedNumbers:
    """Task numbers of each rank in the graph from :func:`trine.parallel.instantiate.instantiate`."""

    def __init__(self, job: JobPatterns, graph: TaskGraph) -> None:
        self.job = job
        self.collective = graph.labels.collective
        self.num_ranks = job.grid.num_ranks
        num_steps = np.array([len(template.kind) for template in job.templates], np.int64)
        sizes = num_steps[np.asarray(job.job.program_of, np.int64)]
        self.base = np.cumsum(sizes) - sizes
        self.num_steps = num_steps
        sends = np.arange(int(sizes.sum()), graph.num_tasks)
        names = self.collective[sends].astype(np.int64) * self.num_ranks + graph.rank[sends]
        self.names, first = np.unique(names, return_index=True)
        self.firsts = sends[first]

    def of_rank(self, rank: int) -> Int64:
        """Return the graph's task numbers for the rank's pattern: int64[tasks of the pattern]."""
        pattern = self.job.patterns[self.job.pattern_of[rank]]
        first_send, base = int(self.num_steps[pattern.program]), int(self.base[rank])
        numbers = np.arange(base, base + pattern.num_tasks)
        keys = np.array(list(pattern.algorithm_of), np.int64)
        ends = np.append(pattern.first_sent[keys[1:]], pattern.num_tasks) if len(keys) else np.zeros(0, np.int64)
        counts = ends - pattern.first_sent[keys]
        keys, counts = keys[counts > 0], counts[counts > 0]
        collectives = self.collective[base + pattern.entered[keys]].astype(np.int64)
        firsts = self.firsts[np.searchsorted(self.names, collectives * self.num_ranks + rank)]
        numbers[first_send:] = spans(firsts, counts)
        return numbers


def unfolded_records(run: FoldedRun, graph: TaskGraph) -> Records:
    """Return the records of all ranks' tasks, numbered as in the unfolded ``graph``."""
    numbers = UnfoldedNumbers(run.job, graph)
    columns = [np.full(graph.num_tasks, -1, np.int64) for _ in range(3)]
    ranks = range(run.job.grid.num_ranks)
    for rank, times in zip(ranks, whole_times(run, ranks), strict=True):
        tasks = numbers.of_rank(rank)
        for column, values in zip(columns, times, strict=True):
            column[tasks] = values
    return Records(
        ready_ps=columns[0],
        start_ps=columns[1],
        end_ps=columns[2],
        num_events=run.num_events,
        engine=run.engine,
        network=run.network,
    )


def check_fold(run: FoldedRun, graph: TaskGraph, unfolded: Records) -> str:
    """Compare every task of every rank; returns a sentence. Raises SimulationError with the first difference."""
    folded = unfolded_records(run, graph)
    for name in ("ready_ps", "start_ps", "end_ps"):
        differs = np.flatnonzero(getattr(folded, name) != getattr(unfolded, name))
        if len(differs):
            task = int(differs[np.argmin(unfolded.end_ps[differs])])
            times = [format_time(int(getattr(records, name)[task])) for records in (folded, unfolded)]
            raise SimulationError(
                f"folded and unfolded runs differ in {len(differs)} of {graph.num_tasks} tasks: first task {task} of "
                f"rank {int(graph.rank[task])}, {name[:-3]} {times[0]} folded, {times[1]} unfolded. This is a bug of "
                "trine: please report it; --no-fold gives the right times"
            )
    classes = f"{run.most_classes} class{'' if run.most_classes == 1 else 'es'}"
    num_simulated = max(stage.num_tasks for stage in run.stages)
    return (
        f"verified: {graph.num_tasks:,} tasks of {run.job.grid.num_ranks} ranks are equal to the picosecond in the "
        f"folded run ({classes}, {num_simulated:,} tasks) and in the unfolded one"
    )
