"""A folded run as seen from some of its ranks: their tasks, with the times on exactly these ranks.

Tasks of unobserved ranks that an observed rank waits for are kept as *arrivals*: copies of the tasks, on the rank that
waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64, spans
from trine.folding.observation import Observation
from trine.folding.pattern import HOSTS, MESSAGE, SELF, Pattern
from trine.folding.quotient import named_tasks
from trine.folding.signals import Times, whole_times
from trine.folding.stages import FoldedRun
from trine.graph.assembler import GraphAssembler, GraphLinks
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.taskgraph import TRANSFER, CollectiveLabel, Records, TaskGraph
from trine.parallel.instantiate import memory_events
from trine.parallel.template import LABEL_FIELDS
from trine.results.ends import Ends
from trine.results.waits import releasers, wait_reasons

#: Largest number of tasks to examine for the wait reasons of arrivals.
MAX_TASKS_AROUND = 1_000_000


def observe(run: FoldedRun, placement: Placement, ranks: Sequence[int], *, busy_only: bool = False) -> Observation:
    """Return the tasks and records of ``ranks``, each rank one row of the result's graph.

    busy_only: for callers that need only the busy time of ranks; omits the times of signals, the dependencies of tasks,
    and the names of collectives.
    """
    observer = _Observer(run, placement, ranks, busy_only)
    observation = observer.observe()
    return observation if busy_only else replace(observation, reasons=lambda: _reasons(observer, observation))


def _reasons(observer: _Observer, observation: Observation) -> npt.NDArray[np.int8]:
    """Return the wait reason of each task.

    The reason for an arrival's time lies on its sender, so senders are observed too, if they have few tasks. This is
    skipped if each sender behaved like the row whose edges its arrivals use: its predecessors ended at the same times.
    """
    senders = list(dict.fromkeys(arrival.peer for arrival in observer.arrivals))
    num_tasks = sum(observer.size_of(rank) for rank in (*senders, *observer.ranks))
    if all(map(observer.is_shown_alike, senders)) or num_tasks > MAX_TASKS_AROUND:
        return wait_reasons(observation.graph, observation.records, releasers(observation.graph, observation.records))
    wide = _Observer(observer.run, observer.placement, [*observer.ranks, *senders])
    view = wide.observe()
    return wait_reasons(view.graph, view.records, releasers(view.graph, view.records))[observer.numbers_in(wide)]


@dataclass(slots=True)
class _Arrivals:
    """Tasks of one unobserved rank that one row waits for: ascending numbers in its pattern, and the first task."""

    row: int
    peer: int
    pattern: Pattern
    tasks: Int64
    first: int


class _Observer:
    def __init__(self, run: FoldedRun, placement: Placement, ranks: Sequence[int], busy_only: bool = False) -> None:
        self.run = run
        self.busy_only = busy_only
        self.job = run.job
        self.placement = placement
        self.ranks = list(ranks)
        self.patterns = [self._pattern(rank) for rank in self.ranks]
        self.sizes = np.array([pattern.num_tasks for pattern in self.patterns], np.int64)
        self.base = np.cumsum(self.sizes) - self.sizes
        self.row_of = {rank: row for row, rank in enumerate(self.ranks)}
        self.row_of_pattern = {
            int(self.job.pattern_of[rank]): row for row, rank in reversed(list(enumerate(self.ranks)))
        }
        self.arrivals: list[_Arrivals] = []
        self.num_tasks = int(self.sizes.sum())
        self._times: dict[int, Times] = {}
        self._labels: dict[tuple[int, int], int] = {}
        self._collectives: list[CollectiveLabel] = []
        self._rows: dict[tuple[str, int], tuple[int, ...]] = {}
        self._alike: dict[tuple[object, ...], CollectiveLabel] = {}

    def _pattern(self, rank: int) -> Pattern:
        return self.job.patterns[int(self.job.pattern_of[rank])]

    def size_of(self, rank: int) -> int:
        """Return the number of tasks of a rank."""
        return self._pattern(rank).num_tasks

    def is_shown_alike(self, rank: int) -> bool:
        """Return whether a rank was always in the same class as the first row of its pattern."""
        row = self.row_of_pattern.get(int(self.job.pattern_of[rank]))
        return row is not None and self.run.classes_of(rank) == self.run.classes_of(self.ranks[row])

    def numbers_in(self, wide: _Observer) -> Int64:
        """Return the positions of the tasks in ``wide``, an observer of the same ranks first and then the senders."""
        observed = np.arange(int(self.sizes.sum()))
        senders = [int(wide.base[wide.row_of[arrival.peer]]) + arrival.tasks for arrival in self.arrivals]
        return np.concatenate([observed, *senders])

    def observe(self) -> Observation:
        edges = [self._edges(row) for row in range(len(self.ranks))]
        edges = [] if self.busy_only else [*edges, *self._edges_of_arrivals(edges)]
        ranks = list(dict.fromkeys([*self.ranks, *(arrival.peer for arrival in self.arrivals)]))
        self._times = dict(zip(ranks, whole_times(self.run, ranks, not self.busy_only), strict=True))
        ready, start, end = (self._column_of_times(which) for which in range(3))
        records = Records(
            ready_ps=ready,
            start_ps=start,
            end_ps=end,
            num_events=self.run.num_events,
            engine=self.run.engine,
            network=self.run.network,
        )
        graph = self._graph(edges)
        return Observation(graph=graph, records=records, memory=self._memory(), ends=self._ends(graph))

    def _ends(self, graph: TaskGraph) -> Ends:
        """Return the ranks at both ends of each task."""
        rank_of_row = np.array(self.ranks, np.int64)
        sender, peer = rank_of_row[graph.rank], np.full(self.num_tasks, -1, np.int64)
        for row, (pattern, rank) in enumerate(zip(self.patterns, self.ranks, strict=True)):
            first = int(self.base[row])
            peers = self._ends_of(pattern, rank)
            peer[first : first + pattern.num_tasks] = np.where(pattern.kind == TRANSFER, peers, -1)
        is_copy = np.zeros(self.num_tasks, np.bool_)
        for arrival in self.arrivals:
            tasks = slice(arrival.first, arrival.first + len(arrival.tasks))
            kind = arrival.pattern.kind[arrival.tasks]
            sender[tasks] = arrival.peer
            peer[tasks] = np.where(kind == TRANSFER, self._ends_of(arrival.pattern, arrival.peer)[arrival.tasks], -1)
            is_copy[tasks] = kind != TRANSFER
        return Ends(rank=sender, peer=peer, is_copy=is_copy)

    def _ends_of(self, pattern: Pattern, rank: int) -> Int64:
        """Return the target of each task of a rank; the rank itself for copies from or to its host."""
        peers = pattern.peers[self.job.row_of[rank]].astype(np.int64)
        return np.concatenate([peers, [rank] * (1 + len(HOSTS))])[pattern.role]

    # -- dependencies ----------------------------------------------------------------------------------------------

    def _edges(self, row: int) -> tuple[Int64, Int64]:
        """Return (task, predecessor) of a row; predecessors on unobserved ranks become arrivals."""
        rank, pattern, base = self.ranks[row], self.patterns[row], int(self.base[row])
        edges = pattern.edges
        predecessors = np.empty(len(edges), np.int64)
        local = edges.role == SELF
        predecessors[local] = base + edges.key[local]
        peers = pattern.peers[self.job.row_of[rank]]
        for peer, roles in _roles_by_peer(peers, np.unique(edges.role[~local])).items():
            peer_pattern = self._pattern(peer)
            parts = [(np.flatnonzero(edges.role == role), role) for role in roles]
            edge_numbers = np.concatenate([part for part, _ in parts])
            tasks = np.concatenate(
                [
                    named_tasks(edges, part, peer_pattern, self._position(pattern, role, rank, edges.kind[part]))
                    for part, role in parts
                ]
            )
            if peer in self.row_of:
                predecessors[edge_numbers] = self.base[self.row_of[peer]] + tasks
            else:
                predecessors[edge_numbers] = self._arrive(row, peer, peer_pattern, tasks)
        return base + edges.task, predecessors

    def _position(self, pattern: Pattern, role: int, rank: int, kind: npt.NDArray[np.int8]) -> int:
        if not (kind == MESSAGE).any():
            return -1
        return self.job.grid.coordinate(rank, pattern.role_axes[role])

    def _arrive(self, row: int, peer: int, pattern: Pattern, tasks: Int64) -> Int64:
        """Copy the tasks of an unobserved peer that a row waits for, and the peer's other transfers to that row."""
        to_row = np.append(pattern.peers[self.job.row_of[peer]] == self.ranks[row], [False] * (1 + len(HOSTS)))
        sent = np.flatnonzero((pattern.kind == TRANSFER) & to_row[pattern.role])
        arrives = np.zeros(pattern.num_tasks, np.bool_)
        arrives[tasks] = arrives[sent] = True
        self.arrivals.append(_Arrivals(row, peer, pattern, np.flatnonzero(arrives), self.num_tasks))
        first, place = self.num_tasks, np.cumsum(arrives) - 1
        self.num_tasks += len(self.arrivals[-1].tasks)
        return first + place[tasks]

    def _edges_of_arrivals(self, edges: list[tuple[Int64, Int64]]) -> list[tuple[Int64, Int64]]:
        """Return the edges of arrivals, copied from the same tasks of an observed rank with the same pattern."""
        arrival_edges = []
        numbers = {id(pattern): number for number, pattern in enumerate(self.job.patterns)}
        for arrival in self.arrivals:
            row = self.row_of_pattern.get(numbers[id(arrival.pattern)])
            if row is None:
                continue
            tasks, predecessors = edges[row]  # sorted by task, as the edges of a pattern are
            wanted = int(self.base[row]) + arrival.tasks
            first = np.searchsorted(tasks, wanted)
            counts = np.searchsorted(tasks, wanted, "right") - first
            place = np.repeat(np.arange(len(wanted)), counts)
            arrival_edges.append((arrival.first + place, predecessors[spans(first, counts)]))
        return arrival_edges

    # -- columns ---------------------------------------------------------------------------------------------------

    def _column_of_times(self, column: int) -> Int64:
        times = [self._times[rank][column] for rank in self.ranks]
        return np.concatenate(times + [self._times[a.peer][column][a.tasks] for a in self.arrivals])

    def _with_arrivals(self, column_of: Callable[[Pattern], npt.NDArray[np.generic]]) -> npt.NDArray:  # type: ignore[type-arg]
        columns = [column_of(pattern) for pattern in self.patterns]
        return np.concatenate(columns + [column_of(arrival.pattern)[arrival.tasks] for arrival in self.arrivals])

    def _without_arrivals(self, column_of: Callable[[int, Pattern], npt.NDArray[np.generic]], fill: int) -> npt.NDArray:  # type: ignore[type-arg]
        columns = [column_of(row, pattern) for row, pattern in enumerate(self.patterns)]
        num_arrivals = self.num_tasks - int(self.sizes.sum())
        return np.concatenate([*columns, np.full(num_arrivals, fill, columns[0].dtype if columns else np.int64)])

    def _graph(self, edges: list[tuple[Int64, Int64]]) -> TaskGraph:
        assembler = GraphAssembler(GraphLinks.none())
        assembler.route((), 0)  # own transfers get a route without links, to tell them from arrivals
        assembler.repeat_streams(self.job.streams, len(self.ranks))
        num_streams = len(self.job.streams)
        kind = self._with_arrivals(lambda pattern: pattern.kind)
        rank = np.concatenate(
            [np.repeat(np.arange(len(self.ranks)), self.sizes)]
            + [np.full(len(arrival.tasks), arrival.row) for arrival in self.arrivals]
        )
        assembler.tasks(
            self.num_tasks,
            kind=kind,
            rank=rank,
            peer=np.where(kind == TRANSFER, self._peers(rank), -1),
            stream=self._without_arrivals(
                lambda row, pattern: np.where(pattern.stream >= 0, pattern.stream + row * num_streams, -1), -1
            ),
            duration_ps=self._durations(),
            size_bytes=self._with_arrivals(lambda pattern: pattern.size_bytes),
            route=self._without_arrivals(lambda row, pattern: np.where(pattern.kind == TRANSFER, 0, -1), -1),
            collective=self._collective_column(),
            **{name: self._with_arrivals(lambda p, i=i: p.labels[i]) for i, name in enumerate(LABEL_FIELDS)},  # type: ignore[misc]
        )
        for tasks, predecessors in edges:
            assembler.connect(tasks, predecessors)
        return assembler.build(
            rank_names=[self.placement.rank_name(rank) for rank in self.ranks],
            operator_names=self.job.job.operator_names,
            layer_names=self.job.job.layer_names,
            collectives=tuple(self._collectives),
        )

    def _durations(self) -> Int64:
        """Return the durations of compute tasks, which may differ from the program's (slow ranks, jitter)."""
        start, end = self._column_of_times(1), self._column_of_times(2)
        is_compute = self._with_arrivals(lambda pattern: pattern.kind) == 0
        return np.where(is_compute, end - start, 0).astype(np.int64)

    def _peers(self, rank: Int64) -> Int64:
        """Return the target row of each transfer; the own row for unobserved receivers and for arrivals."""
        peer_rows = []
        for row, pattern in enumerate(self.patterns):
            peers = pattern.peers[self.job.row_of[self.ranks[row]]]
            rows = [self.row_of.get(int(peer), row) for peer in peers]
            peer_rows.append(np.array([*rows, row, *[row] * len(HOSTS)], np.int64)[pattern.role])
        targets = np.concatenate(peer_rows) if peer_rows else np.zeros(0, np.int64)
        return np.concatenate([targets, rank[len(targets) :]])

    def _collective_column(self) -> Int32:
        if self.busy_only:
            return self._with_arrivals(lambda pattern: pattern.key)
        of_row = [self._numbers(pattern, rank) for pattern, rank in zip(self.patterns, self.ranks, strict=True)]
        columns = [numbers[pattern.key] for numbers, pattern in zip(of_row, self.patterns, strict=True)]
        return np.concatenate(columns + [of_row[a.row][a.pattern.key[a.tasks]] for a in self.arrivals])

    def _numbers(self, pattern: Pattern, rank: int) -> Int32:
        """Return the label of each collective for a rank; the last entry stands for no collective and is -1."""
        numbers = np.full(len(self.job.keys) + 1, -1, np.int32)
        firsts: dict[str, int] = {}
        known, found = self._labels, []
        for key in pattern.algorithm_of:
            axis = pattern.key_axes[key]
            if axis not in firsts:
                firsts[axis] = int(self.job.grid.firsts(np.array([rank], np.int64), axis)[0])
            name = (key, firsts[axis])
            number = known.get(name)
            if number is None:
                number = known[name] = len(self._collectives)
                self._collectives.append(self._label(pattern, firsts[axis], key))
            found.append(number)
        numbers[list(pattern.algorithm_of)] = found
        return numbers

    def _label(self, pattern: Pattern, first: int, key: int) -> CollectiveLabel:
        """Return the label of a collective of the group that begins with rank ``first``; equal ones are one object."""
        axis, name = self.job.keys[key]
        step, algorithm = self.job.templates[pattern.program].collectives[name][1], pattern.algorithm_of[key]
        alike = (step.kind, algorithm, step.size_bytes, axis, first, step.label.step)
        label = self._alike.get(alike)
        if label is None:
            label = self._alike[alike] = CollectiveLabel(
                kind=step.kind,
                algorithm=algorithm,
                size_bytes=step.size_bytes,
                ranks=self._rows_of_group(axis, first),
                axis=axis,
                step=step.label.step,
                group_size=self.job.grid.size(axis),
            )
        return label

    def _rows_of_group(self, axis: str, first: int) -> tuple[int, ...]:
        """Return the rows of the observed ranks of the group that begins with rank ``first``, by position."""
        if (axis, first) not in self._rows:
            ranks = np.array(list(self.row_of), np.int64)
            ranks = ranks[self.job.grid.firsts(ranks, axis) == first]
            order = np.argsort(self.job.grid.coordinates(ranks, axis), kind="stable")
            self._rows[axis, first] = tuple(self.row_of[rank] for rank in ranks[order].tolist())
        return self._rows[axis, first]

    def _memory(self) -> MemoryEvents:
        return rank_memory(self.run, self.patterns, self.base)


def _roles_by_peer(peers: Int32, roles: npt.NDArray[np.int16]) -> dict[int, list[int]]:
    """Return peer -> its roles, for the peers in any of ``roles``."""
    roles_of: dict[int, list[int]] = {}
    for role in roles.tolist():
        roles_of.setdefault(int(peers[role]), []).append(role)
    return roles_of


def rank_memory(run: FoldedRun, patterns: Sequence[Pattern], base: Int64) -> MemoryEvents:
    """Return the memory changes of rows that follow ``patterns`` and whose tasks begin at ``base``."""
    return memory_events(run.job.job, run.job.templates, [pattern.program for pattern in patterns], base)
