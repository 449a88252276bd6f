"""Running a job folded: the classes hold until something reaches them that tells them apart, then finer ones go on.

The first classes leave out what has not happened yet: what ranks exchange along *closed* axes. Tasks that would do so
are held. When the first of them becomes ready, the run stops, the axis is opened for the programs that need it, the
classes are refined with what is left to do, each new class takes over the state of the one that it was in, and the run
goes on. See docs/design/folding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trine.engine import advance, run
from trine.folding.partition import Partition, Sight, identity, refine
from trine.folding.quotient import Links, Quotient, QuotientBuilder, Stretch
from trine.folding.sight import Part, RouteTable, look, whole_parts
from trine.folding.site import Site
from trine.folding.sketch import HOSTS, SELF, Edges, Sketch
from trine.folding.sketching import JobSketch
from trine.model.taskgraph import TRANSFER, Snapshot, TaskGraph
from trine.network.models import Network

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
Progress = Callable[[int, int, int], None]

#: With more classes than this share of the ranks, every rank is simulated by itself.
MOST_CLASSES = 0.25
#: Fewer ranks are always refined to the end: it costs nothing.
FEW_RANKS = 4096
#: Closing an axis must leave at most this share of the classes, or it is not worth a stop.
WORTH_A_STOP = 0.5
#: After so many stops everything is opened.
MAX_EPISODES = 40


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """A stretch of a run on one set of classes. ready_ps, start_ps, end_ps: int64[tasks of the graph], -1 if not yet.

    partition, parts, part_of, base: as in Quotient. begins_ps: when it began. num_tasks: of its graph.
    """

    partition: Partition
    parts: tuple[Part, ...]
    part_of: Int32
    base: Int64
    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64
    begins_ps: int
    num_tasks: int

    def tasks_of(self, number: int) -> slice:
        first = int(self.base[number])
        return slice(first, first + len(self.parts[self.part_of[number]].tasks))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldedRun:
    """What a folded run gave. ``graph``: of the only episode; None where there were several."""

    job: JobSketch
    episodes: tuple[Episode, ...]
    graph: TaskGraph | None
    num_events: int
    engine: str
    network: str
    notes: tuple[str, ...]

    @property
    def last(self) -> Episode:
        return self.episodes[-1]

    def times(self, rank: int) -> tuple[Int64, Int64, Int64]:
        """Ready, start and end of each task of a rank's sketch, ps: int64[tasks of the sketch] each."""
        sketch = self.job.sketches[self.job.sketch_of[rank]]
        columns = [np.full(sketch.num_tasks, -1, np.int64) for _ in range(3)]
        for episode in self.episodes:
            number = int(episode.partition.class_of[rank])
            own, tasks = episode.tasks_of(number), episode.parts[episode.part_of[number]].tasks
            for column, values in zip(columns, (episode.ready_ps, episode.start_ps, episode.end_ps), strict=True):
                column[tasks] = values[own]
        return columns[0], columns[1], columns[2]

    def step_ends(self) -> Int64:
        """When each training step ended on all ranks: int64[steps], ps. Tasks without a step belong to the last."""
        num_steps = 1 + max(int(sketch.labels[5].max(initial=0)) for sketch in self.job.sketches)
        ends = np.zeros(num_steps, np.int64)
        for episode in self.episodes:
            steps = [part.sketch.labels[5][part.tasks] for part in episode.parts]
            for number, at in enumerate(episode.part_of.tolist()):
                step, own = steps[at], episode.end_ps[episode.tasks_of(number)]
                for one in range(num_steps) if num_steps > 1 else ():
                    ends[one] = max(ends[one], own[step == one].max(initial=0))
            ends[-1] = max(ends[-1], int(episode.end_ps.max(initial=0)))
        return np.maximum.accumulate(ends)

    def rank_ends(self) -> Int64:
        """When the last task of each rank has ended: int64[ranks], ps."""
        ends = np.zeros(self.job.grid.num_ranks, np.int64)
        for episode in self.episodes:
            sizes = np.array([len(part.tasks) for part in episode.parts], np.int64)[episode.part_of]
            of_class = np.zeros(len(sizes), np.int64)
            some = np.flatnonzero(sizes)
            if len(some):
                of_class[some] = np.maximum.reduceat(episode.end_ps, episode.base[some])
            np.maximum(ends, of_class[episode.partition.class_of], out=ends)
        return ends


@dataclass(slots=True)
class Folder:
    """Runs one job. ``distinct``: why every rank is simulated by itself, "" to fold.

    colours: int64[ranks], what else tells ranks apart from the beginning. stretch: durations that differ by rank.
    """

    job: JobSketch
    site: Site
    network: str | Network = "fair"
    engine: str = "compiled"
    distinct: str = ""
    colours: Int64 | None = None
    stretch: Stretch | None = None
    progress: Progress | None = None
    on_compile: Callable[[], None] | None = None
    on_stage: Callable[[str], None] | None = None
    notes: list[str] = field(default_factory=list)

    def run(self) -> FoldedRun:
        """Simulate everything."""
        table = RouteTable(self.site.routes, self.site.num_ranks)
        parts = whole_parts(self.job.sketches)
        closed: list[frozenset[str]] = [frozenset()] * len(parts)
        partition, sight = self._classes(parts, closed, table)
        if partition.num_classes > len(parts) and not self.distinct:
            closed, partition, sight = self._close(parts, partition, sight, table)
        quotient = self._quotient(parts, closed, partition, sight, table, bare=any(closed))
        self._say(quotient, 0)
        if not any(closed):
            return self._whole(quotient)
        return self._in_episodes(quotient, closed, table)

    # -- classes ---------------------------------------------------------------------------------------------------

    def _classes(
        self, parts: Sequence[Part], closed: Sequence[frozenset[str]], table: RouteTable
    ) -> tuple[Partition, Sight]:
        """The classes of ranks that see the same along open axes, each by itself if they are too many."""
        num_ranks = self.site.num_ranks
        sight = look(parts, num_ranks, table, closed)
        if self.distinct:
            return identity(num_ranks, len(sight.links)), sight
        colours = np.empty(num_ranks, np.int64)
        for number, part in enumerate(parts):
            colours[part.ranks] = number
        if self.colours is not None:
            colours = colours * (int(self.colours.max(initial=0)) + 1) + self.colours
        links = _colours_of_links(self.site, sight)
        limit = num_ranks if num_ranks <= FEW_RANKS else int(MOST_CLASSES * num_ranks)
        partition = refine(colours, links, sight, limit)
        if partition is None:
            self.notes.append(f"more than a quarter of the {num_ranks} ranks behave differently: each is simulated")
        return partition if partition is not None else identity(num_ranks, len(sight.links)), sight

    def _close(
        self, parts: Sequence[Part], partition: Partition, sight: Sight, table: RouteTable
    ) -> tuple[list[frozenset[str]], Partition, Sight]:
        """Close axes to begin with, as long as that at least halves the classes."""
        shut: frozenset[str] = frozenset()
        axes = sorted({axis for part in parts for axis in part.sketch.role_axes})
        while partition.num_classes > len(parts):
            tried = {
                axis: self._classes(parts, [shut | {axis}] * len(parts), table) for axis in axes if axis not in shut
            }
            if not tried:
                break
            best = min(tried, key=lambda axis: (tried[axis][0].num_classes, axis))
            if tried[best][0].num_classes > WORTH_A_STOP * partition.num_classes:
                break
            shut, (partition, sight) = shut | {best}, tried[best]
        return [shut] * len(parts), partition, sight

    def _quotient(
        self,
        parts: Sequence[Part],
        closed: Sequence[frozenset[str]],
        partition: Partition,
        sight: Sight,
        table: RouteTable,
        *,
        bare: bool,
    ) -> Quotient:
        site = self.site
        return QuotientBuilder(
            self.job,
            parts,
            partition,
            sight,
            table,
            Links(bytes_per_s=site.link_bytes_per_s, latency_ps=site.link_latency_ps, name=site.link_name),
            rank_name=site.rank_name,
            closed=closed,
            stretch=self.stretch,
            bare=bare,
        ).build()

    def _say(self, quotient: Quotient, now_ps: int) -> None:
        if self.on_stage is not None:
            classes, tasks = quotient.partition.num_classes, quotient.graph.num_tasks
            self.on_stage(f"{self.site.num_ranks} ranks in {classes} classes, {tasks:,} tasks from {now_ps} ps on")

    # -- running ---------------------------------------------------------------------------------------------------

    def _whole(self, quotient: Quotient) -> FoldedRun:
        records = run(
            quotient.graph, network=self.network, engine=self.engine, progress=self.progress, on_compile=self.on_compile
        )
        episode = _episode(quotient, records.ready_ps, records.start_ps, records.end_ps, 0)
        return self._gave([episode], quotient.graph, records.num_events)

    def _in_episodes(self, quotient: Quotient, closed: list[frozenset[str]], table: RouteTable) -> FoldedRun:
        episodes: list[Episode] = []
        snapshot: Snapshot | None = None
        num_events = 0
        while True:
            hold = _held(quotient, closed)
            now_ps = 0 if snapshot is None else snapshot.now_ps
            snapshot = advance(
                quotient.graph,
                hold=hold if hold.any() else None,
                resume=snapshot,
                network=self.network,
                engine=self.engine,
                progress=self.progress,
                on_compile=self.on_compile,
            )
            episodes.append(_episode(quotient, snapshot.ready_ps, snapshot.start_ps, snapshot.end_ps, now_ps))
            num_events += snapshot.num_events
            if snapshot.is_finished:
                break
            closed = self._open(quotient, snapshot, hold, closed, len(episodes))
            quotient, closed, snapshot = self._refined(quotient, snapshot, closed, table)
        return self._gave(episodes, None, num_events)

    def _gave(self, episodes: list[Episode], graph: TaskGraph | None, num_events: int) -> FoldedRun:
        return FoldedRun(
            job=self.job,
            episodes=tuple(episodes),
            graph=graph,
            num_events=num_events,
            engine=self.engine,
            network=self.network if isinstance(self.network, str) else self.network.name,
            notes=tuple(self.notes),
        )

    def _open(
        self, quotient: Quotient, snapshot: Snapshot, hold: Bool, closed: list[frozenset[str]], episode: int
    ) -> list[frozenset[str]]:
        """Open the axes of held tasks that are ready, for all ranks of their programs; of parts, what stays closed."""
        if episode >= MAX_EPISODES:
            return [frozenset()] * len(closed)
        opened: dict[int, set[str]] = {}
        ready = np.flatnonzero(hold & (snapshot.ready_ps >= 0) & (snapshot.start_ps < 0))
        of_class = np.searchsorted(quotient.base, ready, side="right") - 1
        for task, number in zip(ready.tolist(), of_class.tolist(), strict=True):
            part = quotient.parts[quotient.part_of[number]]
            local = int(part.tasks[task - int(quotient.base[number])])
            opened.setdefault(part.sketch.program, set()).update(_axes_of(self.job, part.sketch, local))
        return [
            shut - opened.get(part.sketch.program, set()) for part, shut in zip(quotient.parts, closed, strict=True)
        ]

    def _refined(
        self, quotient: Quotient, snapshot: Snapshot, closed: list[frozenset[str]], table: RouteTable
    ) -> tuple[Quotient, list[frozenset[str]], Snapshot]:
        """The next classes with what is left to do, and the state that each takes over."""
        parts, shut = [], []
        for number in range(quotient.partition.num_classes):
            part = quotient.parts[quotient.part_of[number]]
            left = snapshot.end_ps[quotient.tasks_of(number)] < 0
            parts.append(_left(part, left, number, quotient.partition.class_of))
            shut.append(closed[quotient.part_of[number]])
        partition, sight = self._classes(parts, shut, table)
        if any(shut):
            everything = [frozenset[str]()] * len(parts)
            finest = self._classes(parts, everything, table)
            if finest[0].num_classes * WORTH_A_STOP <= partition.num_classes:
                shut, (partition, sight) = everything, finest
        finer = self._quotient(parts, shut, partition, sight, table, bare=True)
        self._say(finer, snapshot.now_ps)
        return finer, shut, _taken_over(quotient, snapshot, finer)


def _colours_of_links(site: Site, sight: Sight) -> Int64:
    """Equal numbers for links of equal bandwidth and latency."""
    rate = np.unique(site.link_bytes_per_s[sight.links], return_inverse=True)[1].ravel()
    latency = np.unique(site.link_latency_ps[sight.links], return_inverse=True)[1].ravel()
    return rate.astype(np.int64) * (int(latency.max(initial=0)) + 1) + latency


def _episode(quotient: Quotient, ready_ps: Int64, start_ps: Int64, end_ps: Int64, begins_ps: int) -> Episode:
    return Episode(
        partition=quotient.partition,
        parts=quotient.parts,
        part_of=quotient.part_of,
        base=quotient.base,
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=end_ps,
        begins_ps=begins_ps,
        num_tasks=quotient.graph.num_tasks,
    )


def _held(quotient: Quotient, closed: Sequence[frozenset[str]]) -> Bool:
    """Which tasks begin an exchange along an axis that is closed to their part."""
    of_part = [_begins(part, shut) for part, shut in zip(quotient.parts, closed, strict=True)]
    hold = np.zeros(quotient.graph.num_tasks, np.bool_)
    for number, at in enumerate(quotient.part_of.tolist()):
        hold[quotient.tasks_of(number)] = of_part[at]
    return hold


def _begins(part: Part, shut: frozenset[str]) -> Bool:
    """bool[tasks that are left]: entries into collectives, and messages, along closed axes."""
    sketch = part.sketch
    begins = np.zeros(sketch.num_tasks, np.bool_)
    if shut:
        closed_role = np.array([axis in shut for axis in sketch.role_axes] + [False] * (1 + len(HOSTS)))
        begins[(sketch.kind == TRANSFER) & closed_role[sketch.role]] = True
        for key in sketch.algorithm_of:
            if sketch.key_axes[key] in shut:
                begins[sketch.entered[key]] = True
    return begins[part.tasks]


def _axes_of(job: JobSketch, sketch: Sketch, task: int) -> set[str]:
    """The axis along which a held task begins something."""
    if sketch.key[task] >= 0:
        return {job.keys[sketch.key[task]][0]}
    return {sketch.role_axes[sketch.role[task]]}


def _left(part: Part, left: Bool, number: int, class_of: Int32) -> Part:
    """Ranks of class ``number`` with what is left of their tasks."""
    sketch = part.sketch
    mine = class_of[part.ranks] == number
    tasks = part.tasks[left]
    number_of = np.full(sketch.num_tasks, -1, np.int32)
    number_of[tasks] = np.arange(len(tasks), dtype=np.int32)
    edges = part.edges
    keep = number_of[edges.task] >= 0
    own = edges.role == SELF
    keep[own] &= number_of[edges.key[own]] >= 0
    return Part(
        sketch=sketch,
        number=number,
        ranks=part.ranks[mine],
        rows=part.rows[mine],
        tasks=tasks,
        number_of=number_of,
        edges=Edges(
            task=edges.task[keep],
            role=edges.role[keep],
            what=edges.what[keep],
            key=edges.key[keep],
            number=edges.number[keep],
        ),
        before=number,
    )


def _taken_over(coarse: Quotient, snapshot: Snapshot, fine: Quotient) -> Snapshot:
    """The state of every finer class is that of the class that it was in."""
    origin = np.empty(fine.graph.num_tasks, np.int32)
    left_of = [
        np.flatnonzero(snapshot.end_ps[coarse.tasks_of(number)] < 0) + int(coarse.base[number])
        for number in range(coarse.partition.num_classes)
    ]
    for number in range(fine.partition.num_classes):
        origin[fine.tasks_of(number)] = left_of[fine.parts[fine.part_of[number]].before]
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
