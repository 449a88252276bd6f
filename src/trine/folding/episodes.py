"""Running a job folded: the classes hold until something reaches them that tells them apart, then finer ones go on.

The first classes leave out what has not happened yet: what ranks exchange along *closed* axes. Tasks that would do so
are held. When the first of them becomes ready, the run stops, the axis is opened for the programs that need it, the
classes are refined with what is left to do, and each new class takes over the state of the one that it was in. Ranks
that have nothing to do with each other any more go on in runs of their own. See docs/design/folding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trine.arrays import Bool, Int32, Int64
from trine.engine import advance, run
from trine.engine.models import Network, QueueModel, network_model
from trine.errors import PlanError
from trine.folding._refine import join_components
from trine.folding.partition import Partition, Sight, among, identity, refine
from trine.folding.queues import SHARED, link_places
from trine.folding.quotient import Quotient, QuotientBuilder, Stretch
from trine.folding.sight import Part, RouteTable, look, whole_parts
from trine.folding.sketch import HOSTS, SELF, Edges, Sketch
from trine.folding.sketching import JobSketch
from trine.graph.placement import Placement
from trine.graph.taskgraph import TRANSFER, Progress, Records, Snapshot
from trine.units import format_time

#: Axes along which nothing is exchanged yet.
Shut = frozenset[str]

#: With more classes than this share of the ranks, every rank is simulated by itself.
MOST_CLASSES = 0.25
#: Fewer ranks are always refined to the end: it costs nothing.
FEW_RANKS = 4096
#: Axes are closed while more tasks than this would be simulated, and closing one more at least halves them.
MANY_TASKS = 2_000_000
WORTH_A_STOP = 0.5
#: At a stop everything is opened if this share of the tasks would have to be simulated by themselves anyway.
WORTH_WAITING = 0.9
#: Runs of ranks that have nothing to do with each other are cut so that each has about this many tasks.
RUN_TASKS = 6_000_000
#: More tasks at a time (about 10 GB) are refused before they are built.
MAX_TASKS = 60_000_000
#: After so many stops everything is opened.
MAX_STOPS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """A stretch of a run on one set of classes. ready_ps, start_ps, end_ps: int64[tasks of the graph], -1 if not yet.

    partition, parts, part_of, base: as in Quotient. begins_ps: when it began. num_tasks: of its graph. num_events: of
    the engine.
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
    num_events: int

    def tasks_of(self, number: int) -> slice:
        first = int(self.base[number])
        return slice(first, first + len(self.parts[self.part_of[number]].tasks))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldedRun:
    """What a folded run gave. ``table``: the routes of its ranks."""

    job: JobSketch
    episodes: tuple[Episode, ...]
    num_events: int
    engine: str
    network: str
    notes: tuple[str, ...]
    table: RouteTable

    def class_of(self, rank: int) -> tuple[int, int]:
        """The last class that a rank was in, and how many ranks were in it."""
        partition = next(e.partition for e in reversed(self.episodes) if e.partition.class_of[rank] >= 0)
        number = int(partition.class_of[rank])
        return number, int(partition.sizes[number])

    def times(self, rank: int) -> tuple[Int64, Int64, Int64]:
        """Ready, start and end of each task of a rank's sketch, ps: int64[tasks of the sketch] each."""
        sketch = self.job.sketches[self.job.sketch_of[rank]]
        columns = [np.full(sketch.num_tasks, -1, np.int64) for _ in range(3)]
        for episode in self.episodes:
            number = int(episode.partition.class_of[rank])
            if number < 0:
                continue
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
            ends[-1] = max(int(ends[-1]), int(episode.end_ps.max(initial=0)))
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
            np.maximum(ends, np.append(of_class, 0)[episode.partition.class_of], out=ends)
        return ends


@dataclass(slots=True)
class _Waiting:
    """A run that is still to be made: from where its parts were stopped ``before``, or, the first, a quotient."""

    before: tuple[Quotient, Snapshot] | None
    quotient: Quotient | None
    closed: list[Shut]
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Folder:
    """Runs one job. ``distinct``: why every rank is simulated by itself, "" to fold.

    colours: int64[ranks], what else tells ranks apart from the beginning. stretch: durations that differ by rank.
    places: see :func:`trine.folding.queues.link_places`; None on networks of flows.
    """

    job: JobSketch
    placement: Placement
    network: str | Network = "fair"
    engine: str = "compiled"
    distinct: str = ""
    colours: Int64 | None = None
    stretch: Stretch | None = None
    progress: Progress | None = None
    on_compile: Callable[[], None] | None = None
    on_stage: Callable[[str], None] | None = None
    notes: list[str] = field(default_factory=list)
    table: RouteTable = field(init=False)
    places: Int64 | None = field(init=False)
    _known_readers: dict[str, dict[int, set[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = RouteTable(self.placement.routes)
        queues = isinstance(network_model(self.network), QueueModel)
        num_links = len(self.placement.link_bytes_per_s)
        self.places = link_places(self.job.sketches, self.table, num_links) if queues else None

    @property
    def shared_link(self) -> str:
        """A link that several routes cross, where the network serves their messages in turn; "" where there is none."""
        if self.places is None:
            return ""
        shared = np.flatnonzero(self.places == SHARED)
        return self.placement.link_name(int(shared[0])) if len(shared) else ""

    def run(self) -> FoldedRun:
        """Simulate everything. Raises PlanError where more than MAX_TASKS tasks had to be simulated at a time."""
        parts = whole_parts(self.job.sketches)
        closed: list[Shut] = [frozenset()] * len(parts)
        partition, sight = self._classes(parts, closed)
        if not self.distinct and self.places is None:  # runs of queues cannot stop
            closed, partition, sight = self._close(parts, partition, sight)
        quotient = self._quotient(parts, closed, partition, sight)
        self._say(quotient, 0)
        if not any(closed):
            return self._whole(quotient)
        return self._in_episodes(quotient, closed)

    def first_classes(self) -> Int64:
        """The finest class of each rank, int64[ranks]; where they make too many tasks, that in which the run begins."""
        parts = whole_parts(self.job.sketches)
        partition, sight = self._classes(parts, [frozenset[str]()] * len(parts))
        if _num_tasks(parts, partition) > RUN_TASKS:
            partition = self._close(parts, partition, sight)[1]
        return partition.class_of.astype(np.int64)

    # -- classes ---------------------------------------------------------------------------------------------------

    def _classes(self, parts: Sequence[Part], closed: Sequence[Shut]) -> tuple[Partition, Sight]:
        """The classes of ranks that see the same along open axes, each by itself if they are too many."""
        sight, ranks = self._sight(parts, closed)
        colours = np.empty(self.placement.num_ranks, np.int64)
        for number, part in enumerate(parts):
            colours[part.ranks] = number
        if self.colours is not None:
            colours = colours * (int(self.colours.max(initial=0)) + 1) + self.colours
        limit = len(ranks) if len(ranks) <= FEW_RANKS else int(MOST_CLASSES * len(ranks))
        partition = None
        if not self.distinct:
            partition = refine(colours[ranks], self._colours_of_links(sight), sight, limit)
        if partition is None:
            partition = identity(len(ranks), len(sight.links))
        return among(partition, ranks, self.placement.num_ranks), sight

    def _colours_of_links(self, sight: Sight) -> Int64:
        """Equal numbers for links of equal bandwidth, latency and place on their route, where that is of interest."""
        columns = [self.placement.link_bytes_per_s, self.placement.link_latency_ps]
        if self.places is not None:  # a message that crosses two links waits for both
            columns.append(self.places)
        colours = np.zeros(len(sight.links), np.int64)
        for column in columns:
            own = np.unique(column[sight.links], return_inverse=True)[1].ravel().astype(np.int64)
            colours = colours * (int(own.max(initial=0)) + 1) + own
        return colours

    def _sight(self, parts: Sequence[Part], closed: Sequence[Shut]) -> tuple[Sight, Int64]:
        """What the ranks of ``parts`` see, and these ranks, rising."""
        ranks = np.sort(np.concatenate([part.ranks for part in parts]))
        number_of = np.full(self.placement.num_ranks, -1, np.int32)
        number_of[ranks] = np.arange(len(ranks), dtype=np.int32)
        return look(parts, number_of, len(ranks), self.table, closed), ranks

    def _close(self, parts: Sequence[Part], partition: Partition, sight: Sight) -> tuple[list[Shut], Partition, Sight]:
        """Close axes to begin with, as long as there are many tasks and that at least halves them."""
        shut: Shut = frozenset()
        axes = sorted({axis for part in parts for axis in part.sketch.role_axes})
        tasks = _num_tasks(parts, partition)
        while partition.num_classes > len(parts) and tasks > MANY_TASKS:
            tried = {axis: self._classes(parts, [shut | {axis}] * len(parts)) for axis in axes if axis not in shut}
            if not tried:
                break
            best = min(tried, key=lambda axis: (_num_tasks(parts, tried[axis][0]), axis))
            fewer = _num_tasks(parts, tried[best][0])
            if fewer > WORTH_A_STOP * tasks:
                break
            shut, (partition, sight), tasks = shut | {best}, tried[best], fewer
        return [shut] * len(parts), partition, sight

    def _quotient(
        self,
        parts: Sequence[Part],
        closed: Sequence[Shut],
        partition: Partition,
        sight: Sight,
    ) -> Quotient:
        placement, tasks = self.placement, _num_tasks(parts, partition)
        if tasks > MAX_TASKS:
            raise PlanError(
                f"{partition.num_classes} of {placement.num_ranks} ranks behave differently, which makes {tasks:,} "
                f"tasks, more than the {MAX_TASKS:,} that fit into memory: take fewer GPUs, larger buckets "
                '(--bucket "1 GiB"), or reductions behind the backward pass (--no-dp-overlap)'
            )
        return QuotientBuilder(
            self.job,
            parts,
            partition,
            sight,
            self.table,
            placement,
            closed=closed,
            stretch=self.stretch,
        ).build()

    def _say(self, quotient: Quotient, now_ps: int) -> None:
        if self.on_stage is not None:
            partition, tasks = quotient.partition, quotient.graph.num_tasks
            ranks, since = int(partition.sizes.sum()), f" from {format_time(now_ps)} on" if now_ps else ""
            classes = f"{partition.num_classes} class{'' if partition.num_classes == 1 else 'es'}"
            self.on_stage(f"{ranks} ranks in {classes}, {tasks:,} tasks{since}")

    # -- running ---------------------------------------------------------------------------------------------------

    def _whole(self, quotient: Quotient) -> FoldedRun:
        records = run(
            quotient.graph, network=self.network, engine=self.engine, progress=self.progress, on_compile=self.on_compile
        )
        episode = _episode(quotient, records, 0)
        return self._gave([episode], records.num_events)

    def _in_episodes(self, quotient: Quotient, closed: list[Shut]) -> FoldedRun:
        episodes: list[Episode] = []
        waiting: list[_Waiting] = [_Waiting(None, quotient, closed)]
        num_events = stops = 0
        while waiting:
            one = waiting.pop()
            quotient = one.quotient if one.quotient is not None else self._prepared(one)
            hold = _held(quotient, one.closed)
            resume = None if one.before is None else _taken_over(*one.before, quotient)
            now_ps = 0 if resume is None else resume.now_ps
            one.before = one.quotient = None
            snapshot = advance(
                quotient.graph,
                hold=hold if hold.any() else None,
                resume=resume,
                network=self.network,
                engine=self.engine,
                progress=self.progress,
                on_compile=self.on_compile,
            )
            episodes.append(_episode(quotient, snapshot, now_ps))
            num_events += snapshot.num_events
            if not snapshot.is_finished:
                stops += 1
                opened = self._open(quotient, snapshot, hold, one.closed, stops)
                waiting += self._refined(quotient, snapshot, opened)
        return self._gave(episodes, num_events)

    def _gave(self, episodes: list[Episode], num_events: int) -> FoldedRun:
        return FoldedRun(
            job=self.job,
            episodes=tuple(episodes),
            num_events=num_events,
            engine=self.engine,
            network=self.network if isinstance(self.network, str) else self.network.name,
            notes=tuple(self.notes),
            table=self.table,
        )

    def _open(
        self, quotient: Quotient, snapshot: Snapshot, hold: Bool, closed: Sequence[Shut], stops: int
    ) -> list[Shut]:
        """Open the axes of held tasks that are ready, for all ranks that may notice; of parts, what stays closed."""
        if stops > MAX_STOPS:
            return [frozenset()] * len(closed)
        opened: dict[str, set[int]] = {}
        ready = np.flatnonzero(hold & (snapshot.ready_ps >= 0) & (snapshot.start_ps < 0))
        of_class = np.searchsorted(quotient.base, ready, side="right") - 1
        for task, number in zip(ready.tolist(), of_class.tolist(), strict=True):
            part = quotient.parts[quotient.part_of[number]]
            local = int(part.tasks[task - int(quotient.base[number])])
            opened.setdefault(_axis_of(self.job, part.sketch, local), set()).add(part.sketch.program)
        for axis, programs in opened.items():
            self._spread(axis, programs)
        return [
            frozenset(axis for axis in shut if part.sketch.program not in opened.get(axis, ()))
            for part, shut in zip(quotient.parts, closed, strict=True)
        ]

    def _spread(self, axis: str, programs: set[int]) -> None:
        """Add the programs that wait for tasks of ``programs`` along ``axis``: what opens one may reach all of them."""
        readers = self._readers(axis)
        new = set(programs)
        while new:
            new = {reader for program in new for reader in readers.get(program, ())} - programs
            programs |= new

    def _readers(self, axis: str) -> dict[int, set[int]]:
        """Program -> programs whose ranks wait for tasks of its ranks along ``axis``."""
        if axis not in self._known_readers:
            program_of = np.array([sketch.program for sketch in self.job.sketches])[self.job.sketch_of]
            found: dict[int, set[int]] = {}
            for sketch in self.job.sketches:
                for role in np.unique(sketch.edges.role).tolist():
                    if role >= 0 and sketch.role_axes[role] == axis:
                        for program in np.unique(program_of[sketch.peers[:, role]]).tolist():
                            found.setdefault(program, set()).add(sketch.program)
            self._known_readers[axis] = found
        return self._known_readers[axis]

    def _refined(self, quotient: Quotient, snapshot: Snapshot, closed: Sequence[Shut]) -> list[_Waiting]:
        """What is left to do, cut into runs of ranks that have nothing to do with each other."""
        parts, shut = [], []
        masks: dict[tuple[int, bytes], Part] = {}
        for number in range(quotient.partition.num_classes):
            at = int(quotient.part_of[number])
            left = snapshot.end_ps[quotient.tasks_of(number)] < 0
            if left.any():
                parts.append(_left(quotient.parts[at], left, number, quotient.partition.class_of, masks))
                shut.append(closed[at])
        if any(shut) and self._all_at_once(parts, shut):
            shut = [frozenset()] * len(parts)
        before = (quotient, snapshot)
        cuts = self._cut(parts, shut)
        return [_Waiting(before, None, [shut_of for _, shut_of in cut], [part for part, _ in cut]) for cut in cuts]

    def _all_at_once(self, parts: Sequence[Part], shut: Sequence[Shut]) -> bool:
        """Whether opening everything now costs little more than opening what must be."""
        partly, wholly = (
            _num_tasks(parts, self._classes(parts, which)[0]) for which in (shut, [frozenset[str]()] * len(parts))
        )
        return partly >= (WORTH_A_STOP if wholly <= RUN_TASKS else WORTH_WAITING) * wholly

    def _cut(self, parts: Sequence[Part], shut: Sequence[Shut]) -> list[list[tuple[Part, Shut]]]:
        """Parts by run: all that may still be stopped in one, the others in runs of about RUN_TASKS tasks."""
        # What is exchanged along closed axes later may cross the links of others now: it joins ranks too.
        sight, ranks = self._sight(parts, [frozenset[str]()] * len(parts))
        component = np.arange(len(ranks) + len(sight.links), dtype=np.int32)
        join_components(sight.ptr, sight.items, component)
        of_rank = np.zeros(self.placement.num_ranks, np.int64)
        of_rank[ranks] = component[: len(ranks)]
        stoppable = np.zeros(len(component), np.bool_)
        size = np.zeros(len(component), np.int64)
        for part, closed in zip(parts, shut, strict=True):
            stoppable[of_rank[part.ranks]] |= bool(closed)
            np.add.at(size, of_rank[part.ranks], len(part.tasks))
        free = np.flatnonzero((size > 0) & ~stoppable)
        run_of = np.full(len(component), -1, np.int64)  # -1: the run that may be stopped
        run_of[free] = np.cumsum(size[free]) // RUN_TASKS
        if self._fold_well(parts, shut, free):
            run_of[free] = 0
        runs: dict[int, list[tuple[Part, Shut]]] = {}
        for part, closed in zip(parts, shut, strict=True):
            runs_of = run_of[of_rank[part.ranks]]
            for run_number in np.unique(runs_of).tolist():
                runs.setdefault(run_number, []).append((_only(part, runs_of == run_number), closed))
        return [runs[number] for number in sorted(runs)]

    def _fold_well(self, parts: Sequence[Part], shut: Sequence[Shut], free: Int64) -> bool:
        """Whether all that cannot be stopped any more folds into one run of tolerable size."""
        return bool(len(free)) and _num_tasks(parts, self._classes(parts, shut)[0]) <= RUN_TASKS

    def _prepared(self, one: _Waiting) -> Quotient:
        partition, sight = self._classes(one.parts, one.closed)
        quotient = self._quotient(one.parts, one.closed, partition, sight)
        assert one.before is not None
        self._say(quotient, one.before[1].now_ps)
        return quotient


def _num_tasks(parts: Sequence[Part], partition: Partition) -> int:
    """Tasks of the representatives of a partition."""
    total = 0
    for part in parts:
        classes = np.unique(partition.class_of[part.ranks])
        total += len(part.tasks) * len(classes)
    return total


def _episode(quotient: Quotient, times: Records | Snapshot, begins_ps: int) -> Episode:
    return Episode(
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


def _axis_of(job: JobSketch, sketch: Sketch, task: int) -> str:
    """The axis along which a held task begins something."""
    if sketch.key[task] >= 0:
        return job.keys[int(sketch.key[task])][0]
    return sketch.role_axes[int(sketch.role[task])]


def _left(part: Part, left: Bool, number: int, class_of: Int32, known: dict[tuple[int, bytes], Part]) -> Part:
    """Ranks of class ``number`` with what is left of their tasks; ``known`` keeps what only depends on that."""
    name = (id(part), np.packbits(left).tobytes())
    if name not in known:
        known[name] = _trimmed(part, left)
    mine = class_of[part.ranks] == number
    return replace(known[name], number=number, ranks=part.ranks[mine], rows=part.rows[mine], before=number)


def _only(part: Part, mine: Bool) -> Part:
    """Some of the ranks of a part."""
    return replace(part, ranks=part.ranks[mine], rows=part.rows[mine])


def _trimmed(part: Part, left: Bool) -> Part:
    sketch, edges = part.sketch, part.edges
    tasks = part.tasks[left]
    number_of = np.full(sketch.num_tasks, -1, np.int32)
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
    """The state of every finer class is that of the class that it was in."""
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
