"""Running a job, folded where that is possible, and choosing which ranks the result shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.engine import run
from trine.engine.models import Network, QueueModel, network_model, why_unfolded
from trine.errors import InputError, nearest
from trine.folding.episodes import FoldedRun, Folder
from trine.folding.hungry import hungry_ranks
from trine.folding.observe import Observation, observe
from trine.folding.sketching import JobSketch, sketch_job
from trine.folding.stretch import StretchOf
from trine.folding.traffic import collective_totals, link_bytes, link_uses
from trine.folding.verify import check_fold, unfolded_records
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.program import Job
from trine.graph.taskgraph import Records, TaskGraph
from trine.parallel.instantiate import instantiate
from trine.parallel.stragglers import Stragglers
from trine.results import Result
from trine.results.records import Ends
from trine.results.run import FoldStage, Scope
from trine.results.traffic import LinkUse

FOLDING = ("on", "off", "verify")
#: Results of up to so many ranks show all of them.
SHOW_ALL = 64
#: Results of more ranks show so many of them: of each kind of program the one that ends last.
SHOWN = 32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobRun:
    """What a run gave: the graph of the ranks that are shown, and their records.

    ranks: of each row of the graph. num_simulated: ranks that were simulated, at most at a time. folded: None where
    every rank was simulated without a try; why: the reason. sentence: what --verify-fold found.
    """

    graph: TaskGraph
    records: Records
    memory: MemoryEvents
    ranks: tuple[int, ...]
    num_ranks: int
    num_simulated: int
    folded: FoldedRun | None
    placement: Placement
    why: str = ""
    sentence: str = ""
    ends: Ends | None = None
    reasons: npt.NDArray[np.int8] | None = None


@dataclass(slots=True)
class JobRunner:
    """Runs one job. fold: one of FOLDING. stragglers: slow ranks and jitter."""

    job: Job
    placement: Placement
    network: str | Network = "fair"
    engine: str = "compiled"
    fold: str = "on"
    stragglers: Stragglers | None = None
    progress: Callable[[int, int, int], None] | None = None
    on_compile: Callable[[], None] | None = None
    on_stage: Callable[[str], None] | None = None

    def run(self) -> JobRun:
        """Simulate; raises SimulationError where ``verify`` finds a difference."""
        if self.fold not in FOLDING:
            raise InputError(f"unknown folding {self.fold!r}{nearest(self.fold, FOLDING)}", field="fold")
        why = self._why_unfolded()
        if self.fold == "off" or (why and self.stragglers is None and self.fold != "verify"):
            return self._unfolded(None, why)
        sketch = sketch_job(self.job, self.placement.group_costs)
        stretch = self._stretch(sketch)
        folder = self._folder(sketch, stretch)
        why = why or _why_queues(folder)
        if self.fold == "verify" and (why or self.placement.num_ranks == 1):
            raise InputError(f"nothing is folded, so nothing can be verified: {why or 'one rank'}", field="fold")
        if why:
            return self._unfolded(stretch, why)
        folded = folder.run()
        sentence = self._verify(folded, stretch) if self.fold == "verify" else ""
        return self._shown(folded, stretch, sentence)

    def _folder(self, sketch: JobSketch, stretch: StretchOf | None) -> Folder:
        return Folder(
            job=sketch,
            placement=self.placement,
            network=self.network,
            engine=self.engine,
            colours=None if stretch is None else stretch.colours(),
            stretch=stretch,
            progress=self.progress,
            on_compile=self.on_compile,
            on_stage=self.on_stage,
        )

    def _stretch(self, sketch: JobSketch) -> StretchOf | None:
        """Factors on durations; where each class draws, the classes are those without jitter."""
        if self.stragglers is None:
            return None
        stretch = StretchOf(sketch, self.stragglers)
        if self.stragglers.jitter is None or self.stragglers.tells_ranks_apart:
            return stretch
        return replace(stretch, draws_as=self._folder(sketch, stretch).first_classes())

    def _why_unfolded(self) -> str:
        """Why every rank must be simulated by itself; "" where ranks may be folded."""
        if self.placement.num_ranks == 1:
            return ""
        if self.stragglers is not None and self.stragglers.tells_ranks_apart:
            return "jitter makes every rank different"
        model = network_model(self.network)
        return "" if isinstance(model, QueueModel) else why_unfolded(model) or ""

    def _unfolded(self, stretch: StretchOf | None, why: str) -> JobRun:
        if stretch is None and self.stragglers is not None:
            stretch = self._stretch(sketch_job(self.job, self.placement.group_costs))
        graph, memory = instantiate(self.job, self.placement)
        if stretch is not None:
            graph = stretch.on_graph(graph)
        records = self._run(graph)
        return self._all(graph, records, memory, None, why=why if self.fold != "off" else "")

    def _run(self, graph: TaskGraph) -> Records:
        return run(graph, network=self.network, engine=self.engine, progress=self.progress, on_compile=self.on_compile)

    def _verify(self, folded: FoldedRun, stretch: StretchOf | None) -> str:
        graph, _ = instantiate(self.job, self.placement)
        if stretch is not None:
            graph = stretch.on_graph(graph)
        return check_fold(folded, graph, self._run(graph)).sentence()

    def _shown(self, folded: FoldedRun, stretch: StretchOf | None, sentence: str) -> JobRun:
        if self.placement.num_ranks <= SHOW_ALL:
            graph, memory = instantiate(self.job, self.placement)
            if stretch is not None:
                graph = stretch.on_graph(graph)
            return self._all(graph, unfolded_records(folded, graph), memory, folded, sentence=sentence)
        ranks = telling_ranks(folded)
        seen = observe(folded, self.placement, ranks)
        return JobRun(
            graph=seen.graph,
            records=seen.records,
            memory=seen.memory,
            ends=seen.ends,
            reasons=seen.reasons,
            ranks=tuple(ranks),
            num_ranks=self.placement.num_ranks,
            num_simulated=max(episode.partition.num_classes for episode in folded.episodes),
            folded=folded,
            placement=self.placement,
            sentence=sentence,
        )

    def _all(
        self, graph: TaskGraph, records: Records, memory: MemoryEvents, folded: FoldedRun | None, *,
        why: str = "", sentence: str = "",
    ) -> JobRun:  # fmt: skip
        num_ranks = self.placement.num_ranks
        return JobRun(
            graph=graph,
            records=records,
            memory=memory,
            ranks=tuple(range(num_ranks)),
            num_ranks=num_ranks,
            num_simulated=num_ranks
            if folded is None
            else max(episode.partition.num_classes for episode in folded.episodes),
            folded=folded,
            placement=self.placement,
            why=why,
            sentence=sentence,
        )


def _why_queues(folder: Folder) -> str:
    """Why a run on a network of queues does not fold; "" where it does, and on other networks."""
    if not folder.shared_link:
        return ""
    why = why_unfolded(network_model(folder.network))
    return f"{why}, and link {folder.shared_link} carries those of several routes"


def telling_ranks(folded: FoldedRun, limit: int = SHOWN) -> list[int]:
    """The ranks to show, at most ``limit``: the one that ends last of all, and of each sketch; and of each sketch the
    one that holds most memory.
    """
    ends = folded.rank_ends()
    last = int(np.argmax(ends))
    found = {last}
    telling = [int(sketch.ranks[np.argmax(ends[sketch.ranks])]) for sketch in folded.job.sketches]
    for rank in (*telling, *hungry_ranks(folded)):
        if len(found) >= limit:
            break
        found.add(rank)
    return sorted(found)


def spread_ranks(folded: FoldedRun, limit: int = SHOWN) -> dict[int, float]:
    """Rank -> how many it stands for: of each sketch those that end at evenly spaced places of its order."""
    ends = folded.rank_ends()
    found: dict[int, float] = {}
    for sketch in folded.job.sketches:
        count = min(len(sketch.ranks), max(1, limit // len(folded.job.sketches)))
        order = sketch.ranks[np.argsort(ends[sketch.ranks], kind="stable")]
        places = (2 * np.arange(count) + 1) * len(order) // (2 * count)
        found.update(dict.fromkeys(order[places].tolist(), len(order) / count))
    return found


def scope_of(done: JobRun, observed: Callable[[Observation, Sequence[int], Scope], Result]) -> Scope | None:
    """What stands behind the rows of a result; ``observed`` makes a result of the ranks that somebody asks for."""
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

    scope = Scope(
        ranks=done.ranks,
        num_ranks=done.num_ranks,
        stages=tuple(
            FoldStage(
                begins_ps=episode.begins_ps,
                num_classes=episode.partition.num_classes,
                num_link_classes=len(episode.partition.link_sizes),
                num_tasks=episode.num_tasks,
                num_events=episode.num_events,
                num_ranks=int(episode.partition.sizes.sum()),
            )
            for episode in folded.episodes
        ),
        notes=(*folded.notes, *_why_so_many(folded.job, folded), *([done.sentence] if done.sentence else [])),
        links=None if shows_all else uses(),
        link_bytes=carried(),
        totals=None if shows_all else collective_totals(folded.job, step),
        observe=lambda ranks: observed(
            observe(folded, done.placement, ranks),
            ranks,
            replace(scope, ranks=tuple(ranks), links=uses(), totals=collective_totals(folded.job, step)),
        ),
        class_of=lambda rank: folded.class_of(rank)[0],
        class_size=lambda rank: folded.class_of(rank)[1],
        program_of=folded.job.program_of,
        spread=lambda: spread_ranks(folded),
        step_ends_ps=step_ends,
    )
    return scope


def _why_so_many(job: JobSketch, folded: FoldedRun) -> list[str]:
    """What tells the classes apart."""
    programs, kinds = len(job.job.programs), len(job.sketches)
    if all(episode.partition.num_classes == 1 for episode in folded.episodes):
        return []
    parts = [f"{programs} program{'s' if programs > 1 else ''}"]
    if kinds > programs:
        parts.append(f"{kinds} with their places in collectives")
    finest = max(episode.partition.num_classes for episode in folded.episodes)
    if finest > kinds:
        parts.append(f"{finest} with the links and neighbours that they see")
    return [", ".join(parts)]
