"""Running a job, folded where that is possible, and choosing which ranks the result shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int8, Int32, Int64, spans
from trine.engine import run
from trine.engine.models import Network, QueueModel, network_model, why_unfolded
from trine.errors import InputError, SimulationError, nearest
from trine.folding.extract import Extraction, extract_patterns
from trine.folding.observe import Observation, observe
from trine.folding.pattern import JobPatterns
from trine.folding.shown import representative_ranks, spread_ranks
from trine.folding.signals import whole_times
from trine.folding.stages import FoldedRun, Folder, UnfoldedTimes
from trine.folding.traffic import WORTH_A_WORD, apart_in_ps, collective_totals, link_bytes, link_uses
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.program import COMPUTE_STREAM, Job
from trine.graph.taskgraph import COMPUTE, Records, TaskGraph
from trine.parallel.instantiate import instantiate
from trine.parallel.stragglers import Stragglers, scaled_ps
from trine.results import Result
from trine.results.records import Ends
from trine.results.run import FoldStage, Scope
from trine.results.traffic import LinkUse
from trine.units import format_time

FOLDING = ("on", "exact", "off", "verify")
#: Results of up to so many ranks show all of them.
SHOW_ALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class StragglerScaling:
    """Factors of ``stragglers`` on the operators of a job. What is drawn depends on the seed, the rank and the number
    of the task in the program (or of the training step), so that a rank drawn alone gets what it gets among all.
    draws_as: int64[ranks], the number that a rank draws by; None: its own.
    """

    job: JobPatterns
    stragglers: Stragglers
    draws_as: Int64 | None = None

    def __call__(self, rank: int, tasks: Int64, duration_ps: Int64) -> Int64:
        """Durations of ``tasks`` of the pattern of ``rank``."""
        pattern = self.job.patterns[int(self.job.pattern_of[rank])]
        chosen = np.flatnonzero((pattern.kind[tasks] == COMPUTE) & self._on_gpu(pattern.stream[tasks]))
        index = pattern.labels[5][tasks[chosen]] if self.stragglers.per == "step" else tasks[chosen]
        scaled = duration_ps.copy()
        number = None if self.draws_as is None else self.draws_as[rank]
        factors = self.stragglers.factors(np.array(rank), index.astype(np.int64), number)
        scaled[chosen] = scaled_ps(duration_ps[chosen], factors)
        return scaled

    def _on_gpu(self, stream: Int32) -> Bool:
        wanted = self.job.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in self.job.streams else -2
        return np.asarray(stream == wanted)

    def initial_colors(self) -> Int64:
        """int64[ranks]: equal numbers for ranks that are equally slow and draw alike."""
        factors = self.stragglers.slow_factors(np.arange(self.job.grid.num_ranks))
        slow = np.unique(factors, return_inverse=True)[1].ravel().astype(np.int64)
        if self.draws_as is None:
            return slow
        return slow * (int(self.draws_as.max(initial=0)) + 1) + self.draws_as

    def on_graph(self, graph: TaskGraph) -> TaskGraph:
        """The same durations on the tasks of all ranks, as :func:`trine.parallel.instantiate.instantiate` numbers."""
        duration_ps = graph.duration_ps.copy()
        own = np.array([len(template.kind) for template in self.job.templates], np.int64)
        sizes = own[np.asarray(self.job.job.program_of, np.int64)]
        for rank, (first, size) in enumerate(zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True)):
            tasks = slice(first, first + size)
            duration_ps[tasks] = self(rank, np.arange(size), duration_ps[tasks])
        return replace(graph, duration_ps=duration_ps)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobRun:
    """What a run gave: the graph of the ranks that are shown, and their records.

    ranks: of each row of the graph. folded: None where every rank was simulated without a try; why: the reason.
    sentence: what --verify-fold found. ends, reasons: as in :class:`trine.folding.observe.Observation`.
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

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_simulated(self) -> int:
        """Ranks that were simulated, the most at a time."""
        return self.num_ranks if self.folded is None else self.folded.most_classes


@dataclass(slots=True)
class JobRunner:
    """Runs one job. fold: one of FOLDING. stragglers: slow ranks and jitter. has_estimate: as of :class:`Folder`.
    fullest_program: as of :func:`trine.folding.shown.representative_ranks`.
    """

    job: Job
    placement: Placement
    network: str | Network = "fair"
    engine: str = "compiled"
    fold: str = "on"
    stragglers: Stragglers | None = None
    progress: Callable[[int, int, int], None] | None = None
    on_compile: Callable[[], None] | None = None
    on_stage: Callable[[str], None] | None = None
    has_estimate: Callable[[], bool] | None = None
    fullest_program: Callable[[], int] | None = None

    def run(self) -> JobRun:
        """Simulate; raises SimulationError where ``verify`` finds a difference."""
        if self.fold not in FOLDING:
            raise InputError(f"unknown folding {self.fold!r}{nearest(self.fold, FOLDING)}", field="fold")
        why = self._why_unfolded()
        if self.fold == "off" or (why and self.stragglers is None and self.fold != "verify"):
            return self._unfolded(None, why)
        extraction, whole = Extraction(self.job, self.placement.group_costs), _Whole(self, None)
        if self.fold != "verify" and not why and self._are_alone(extraction, whole):
            return self._all(whole, None, why="no two ranks have the same place in collectives")
        patterns = extraction.job_patterns()
        scaling = self._scaling(patterns)
        folder = self._folder(patterns, scaling)
        why = why or _why_queues(folder)
        if self.fold == "verify" and (why or self.placement.num_ranks == 1):
            raise InputError(f"no ranks are folded, so there is nothing to verify: {why or 'one rank'}", field="fold")
        if why:
            return self._unfolded(scaling, why)
        whole = whole if scaling is None else _Whole(self, scaling)
        if self.fold == "verify":
            folded = folder.run()
            return self._shown(folded, whole, check_fold(folded, whole.graph, whole.records).sentence())
        if self.placement.num_ranks > SHOW_ALL:
            return self._shown(folder.run(), whole)
        folded = folder.run(lambda: UnfoldedTimes(whole.records, UnfoldedNumbers(patterns, whole.graph).of_rank))
        return self._shown(folded, whole)

    def _are_alone(self, extraction: Extraction, whole: _Whole) -> bool:
        """Whether schedules alone tell all of few ranks apart, as a chain does: their patterns need not be made.

        Not where ranks of one program drift apart: then there is more to say of them (``sensitivity_warning``).
        """
        num_ranks = self.placement.num_ranks
        if self.stragglers is not None or num_ranks > SHOW_ALL or len(self.job.programs) == num_ranks:
            return False
        if extraction.num_patterns < num_ranks:
            return False
        return apart_in_ps(extraction, whole.records) < WORTH_A_WORD * int(whole.records.end_ps.max(initial=0))

    def _folder(self, patterns: JobPatterns, scaling: StragglerScaling | None) -> Folder:
        return Folder(
            job=patterns,
            placement=self.placement,
            network=self.network,
            engine=self.engine,
            initial_colors=None if scaling is None else scaling.initial_colors(),
            scaling=scaling,
            progress=self.progress,
            on_compile=self.on_compile,
            on_stage=self.on_stage,
            has_estimate=self.has_estimate,
        )

    def _scaling(self, patterns: JobPatterns) -> StragglerScaling | None:
        """Factors on durations; where each class draws, the classes are those without jitter."""
        if self.stragglers is None:
            return None
        scaling = StragglerScaling(patterns, self.stragglers)
        if self.stragglers.jitter is None or self.stragglers.tells_ranks_apart:
            return scaling
        return replace(scaling, draws_as=self._folder(patterns, scaling).first_classes())

    def _why_unfolded(self) -> str:
        """Why every rank must be simulated by itself; "" where ranks may be folded."""
        if self.placement.num_ranks == 1:
            return ""
        if self.stragglers is not None and self.stragglers.tells_ranks_apart:
            return "jitter makes every rank different"
        model = network_model(self.network)
        return "" if isinstance(model, QueueModel) else why_unfolded(model) or ""

    def _unfolded(self, scaling: StragglerScaling | None, why: str) -> JobRun:
        if scaling is None and self.stragglers is not None:
            scaling = self._scaling(extract_patterns(self.job, self.placement.group_costs))
        return self._all(_Whole(self, scaling), None, why=why if self.fold != "off" else "")

    def _shown(self, folded: FoldedRun, whole: _Whole, sentence: str = "") -> JobRun:
        if self.placement.num_ranks <= SHOW_ALL:
            return self._all(whole, folded, sentence=sentence)
        ranks = representative_ranks(folded, self.fullest_program)
        seen = observe(folded, self.placement, ranks)
        return JobRun(
            graph=seen.graph,
            records=seen.records,
            memory=seen.memory,
            ends=seen.ends,
            reasons=seen.reasons,
            ranks=tuple(ranks),
            folded=folded,
            placement=self.placement,
            sentence=sentence,
        )

    def _all(self, whole: _Whole, folded: FoldedRun | None, *, why: str = "", sentence: str = "") -> JobRun:
        graph, memory = whole.made
        if folded is not None and (self.fold == "verify" or not whole.is_run):
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
    """All tasks of all ranks, made and simulated when they are asked for, by code that folding shares nothing but
    storage with.
    """

    def __init__(self, runner: JobRunner, scaling: StragglerScaling | None) -> None:
        self._runner = runner
        self._scaling = scaling

    @cached_property
    def made(self) -> tuple[TaskGraph, MemoryEvents]:
        graph, memory = instantiate(self._runner.job, self._runner.placement)
        return graph if self._scaling is None else self._scaling.on_graph(graph), memory

    @property
    def graph(self) -> TaskGraph:
        return self.made[0]

    @cached_property
    def records(self) -> Records:
        runner = self._runner
        return run(
            self.graph, network=runner.network, engine=runner.engine, progress=runner.progress,
            on_compile=runner.on_compile,
        )  # fmt: skip

    @property
    def is_run(self) -> bool:
        return "records" in self.__dict__


def _why_queues(folder: Folder) -> str:
    """Why a run on a network of queues does not fold; "" where it does, and on other networks."""
    if not folder.shared_link:
        return ""
    why = why_unfolded(network_model(folder.network))
    return f"{why}, and link {folder.shared_link} carries messages of several routes"


def scope_of(
    done: JobRun,
    observed: Callable[[Observation, Sequence[int], Scope], Result],
    judged: Callable[[Result], Result],
) -> Scope | None:
    """What stands behind the rows of a result; ``observed`` makes a result of the ranks that somebody asks for,
    ``judged`` adds what it warns of.
    """
    folded = done.folded
    if folded is None:
        return None
    step_ends = folded.step_ends()
    shows_all = len(done.ranks) == done.num_ranks
    step = None if len(step_ends) == 1 else len(step_ends) - 1
    step_ps = int(step_ends[-1] - (step_ends[-2] if len(step_ends) > 1 else 0))

    @cache
    def carried() -> Int64:
        return link_bytes(folded.job, done.placement, folded.table, step)

    @cache
    def uses() -> tuple[LinkUse, ...]:
        return link_uses(carried(), done.placement, step_ps)

    def of_ranks(ranks: Sequence[int]) -> Result:
        shown = replace(scope, ranks=tuple(ranks), links=uses(), totals=collective_totals(folded.job, step))
        return observed(observe(folded, done.placement, ranks), ranks, shown)

    def spread() -> tuple[Result, npt.NDArray[np.float64]]:
        weights = spread_ranks(folded)
        busy = observe(folded, done.placement, list(weights), busy_only=True)
        return observed(busy, list(weights), replace(scope, ranks=tuple(weights))), np.array(list(weights.values()))

    scope = Scope(
        ranks=done.ranks,
        num_ranks=done.num_ranks,
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
        notes=(*_why_so_many(folded.job, folded), *([done.sentence] if done.sentence else [])),
        links=None if shows_all else uses(),
        link_bytes=carried(),
        totals=None if shows_all else collective_totals(folded.job, step),
        observe=lambda ranks: judged(of_ranks(ranks)),
        class_of=lambda rank: folded.class_of(rank)[0],
        class_size=lambda rank: folded.class_of(rank)[1],
        program_of=folded.job.program_of,
        spread=spread,
        step_ends_ps=step_ends,
    )
    return scope


def _why_so_many(job: JobPatterns, folded: FoldedRun) -> list[str]:
    """What tells the classes apart."""
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
