"""The task graph of one rank per class; each transfer stands for the transfers of all ranks of its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.names import ChosenNames
from trine.common.arrays import Int32, Int64, distinct, pointers
from trine.errors import PlanError, SimulationError
from trine.folding.classes import Partition, RankClasses
from trine.folding.neighbourhood import PatternPart, RouteTable
from trine.folding.pattern import HOSTS, MESSAGE, SELF, SENT, Edges, JobPatterns, Pattern
from trine.graph.assembler import GraphAssembler, GraphLinks
from trine.graph.grid import RankGrid
from trine.graph.placement import Placement
from trine.graph.program import COMPUTE_STREAM
from trine.graph.taskgraph import TRANSFER, TaskGraph

#: (rank, tasks of its pattern, their durations in ps) -> their durations on that rank, in ps
DurationScaling = Callable[[int, Int64, Int64], Int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassTasks:
    """Tasks of a graph by class. base: int64[classes], first task of each class; its part's remaining tasks follow.

    part_of: int32[classes], index into ``parts``.
    """

    partition: Partition
    parts: tuple[PatternPart, ...]
    part_of: Int32
    base: Int64

    def tasks_of(self, number: int) -> slice:
        """Return the tasks of a class in the graph."""
        first = int(self.base[number])
        return slice(first, first + len(self.parts[self.part_of[number]].tasks))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quotient(ClassTasks):
    """The graph to simulate."""

    graph: TaskGraph


class QuotientBuilder:
    """Builder of the graph of a partition, without labels: only its records count."""

    def __init__(
        self,
        job: JobPatterns,
        classes: RankClasses,
        table: RouteTable,
        placement: Placement,
        scaling: DurationScaling | None = None,
    ) -> None:
        partition, neighbourhood = classes.partition, classes.neighbourhood
        self.job = job
        self.parts = tuple(classes.parts)
        self.partition = partition
        self.table = table
        self.placement = placement
        self.scaling = scaling
        part_of_rank = np.empty(job.grid.num_ranks, np.int32)
        self.row_of_rank = np.empty(job.grid.num_ranks, np.int64)
        for number, part in enumerate(self.parts):
            part_of_rank[part.ranks] = number
            self.row_of_rank[part.ranks] = part.rows
        self.part_of = part_of_rank[partition.representatives]
        self.sizes = np.array([len(part.tasks) for part in self.parts], np.int64)[self.part_of]
        self.base = np.cumsum(self.sizes) - self.sizes
        self.num_tasks = int(self.sizes.sum())
        self.classes = classes
        self._resolved: dict[tuple[int, ...], _Resolved] = {}
        self.real_links = neighbourhood.links[partition.link_representatives].astype(np.int64)
        self.assembler = GraphAssembler(self._links())
        pairs: dict[int, tuple[list[tuple[int, int, int]], Int64]] = {}
        for part in self.parts:
            if id(part.tasks) not in pairs:
                pairs[id(part.tasks)] = _route_pairs(part)
        self._pairs = [pairs[id(part.tasks)] for part in self.parts]

    def build(self) -> Quotient:
        """Return the graph. Raises SimulationError if flows of a class do not spread evenly over links: a bug."""
        self.assembler.repeat_streams(self.job.streams, self.partition.num_classes)
        self.assembler.tasks(
            self.num_tasks,
            kind=self._column(lambda part: part.pattern.kind, np.int8),
            rank=self._ranks(),
            peer=self._peers(),
            stream=self._streams(),
            duration_ps=self._durations(),
            size_bytes=self._column(lambda part: part.pattern.size_bytes, np.int64),
            route=self._route_column(),
            **self._pressure(),
        )
        self.assembler.connect_rows(*self._predecessors())
        # No labels: observe.py describes the tasks of the ranks that the user inspects.
        names = [self.placement.rank_name(rank) for rank in self.partition.representatives.tolist()]
        graph = self.assembler.build(rank_names=names)
        return Quotient(graph=graph, partition=self.partition, parts=self.parts, part_of=self.part_of, base=self.base)

    # -- columns ---------------------------------------------------------------------------------------------------

    def _column(self, column_of: Callable[[PatternPart], npt.NDArray[np.generic]], dtype: npt.DTypeLike) -> npt.NDArray:  # type: ignore[type-arg]
        values_of = [column_of(part)[part.tasks] for part in self.parts]
        column = np.empty(self.num_tasks, dtype)
        for number, first in enumerate(self.base.tolist()):
            values = values_of[self.part_of[number]]
            column[first : first + len(values)] = values
        return column

    def _ranks(self) -> Int32:
        return np.repeat(np.arange(self.partition.num_classes, dtype=np.int32), self.sizes)

    def _peers(self) -> Int32:
        """Return the class that receives the representative's message, -1 for tasks other than transfers."""
        column = np.full(self.num_tasks, -1, np.int32)
        roles = [part.pattern.role[part.tasks] for part in self.parts]
        is_transfer = [part.pattern.kind[part.tasks] == TRANSFER for part in self.parts]
        for number, rank in enumerate(self.partition.representatives.tolist()):
            part_number = self.part_of[number]
            part = self.parts[part_number]
            peers = self.partition.class_of[part.pattern.peers[self.row_of_rank[rank]]]
            # the hosts and the rank itself are at the end
            class_of_role = np.concatenate([peers, np.full(1 + len(HOSTS), number, np.int32)])
            first = int(self.base[number])
            receivers = np.where(is_transfer[part_number], class_of_role[roles[part_number]], -1)
            column[first : first + len(receivers)] = receivers
        return column

    def _streams(self) -> Int32:
        count = len(self.job.streams)
        column: Int32 = self._column(lambda part: part.pattern.stream, np.int32)
        shift = np.repeat(np.arange(self.partition.num_classes, dtype=np.int32) * count, self.sizes)
        return np.where(column >= 0, column + shift, -1).astype(np.int32)

    def _pressure(self) -> dict[str, Int32]:
        """Return how far each task slows down the compute stream of its class; empty if no task does."""
        pressing = any(pattern.pressure_ppm is not None for pattern in self.job.patterns)
        if COMPUTE_STREAM not in self.job.streams or not pressing:
            return {}
        ppm = self._column(lambda part: _pressure_of(part.pattern), np.int32)
        streams = self._ranks() * len(self.job.streams) + self.job.streams.index(COMPUTE_STREAM)
        return {"pressure_ppm": ppm, "pressure_stream": np.where(ppm != 0, streams, -1).astype(np.int32)}

    def _durations(self) -> Int64:
        column: Int64 = self._column(lambda part: part.pattern.duration_ps, np.int64)
        if self.scaling is not None:
            for number, rank in enumerate(self.partition.representatives.tolist()):
                first, part = int(self.base[number]), self.parts[self.part_of[number]]
                tasks = slice(first, first + len(part.tasks))
                column[tasks] = self.scaling(rank, part.tasks, column[tasks])
        return column

    # -- dependencies ----------------------------------------------------------------------------------------------

    def _resolve(self, number: int) -> tuple[_Resolved, Int64]:
        """Return a class's edges, with names resolved to numbers in its peers' parts, and the first task of each."""
        rank = int(self.partition.representatives[number])
        part_number = int(self.part_of[number])
        part = self.parts[part_number]
        roles = part.read_roles
        peers = part.pattern.peers[self.row_of_rank[rank]]
        classes = self.partition.class_of[peers[roles]]
        # Position of this rank on the axis of each role that sends it messages
        own_rank = np.array([rank], np.int64)
        positions = {}
        for role in distinct(part.edges.role[part.edges.kind == MESSAGE]).tolist():
            positions[role] = int(self.job.grid.coordinates(own_rank, part.pattern.role_axes[role])[0])
        parts = [None if c < 0 else self.parts[self.part_of[c]] for c in classes.tolist()]  # None: that rank has ended
        part_ids = (0 if peer is None else id(peer.number_of) for peer in parts)
        key = (id(part.edges), *part_ids, -1, *positions.values())
        if key not in self._resolved:
            by_role = dict(zip(roles, parts, strict=True))
            self._resolved[key] = _resolve_edges(part, by_role, positions, self._describe)
        bases = np.zeros(part.pattern.peers.shape[1] + 1, np.int64)
        bases[roles] = self.base[classes]
        bases[SELF] = self.base[number]
        return self._resolved[key], bases

    def _describe(self, part: PatternPart) -> str:
        return repr(self.job.job.programs[part.pattern.program].name)

    def _predecessors(self) -> tuple[Int64, Int32]:
        """Return the predecessors of all tasks as CSR: pointers, predecessors."""
        resolved = [self._resolve(number) for number in range(self.partition.num_classes)]
        none = np.zeros(0, np.int64)
        counts = np.concatenate([none, *(edges.counts for edges, _ in resolved)])
        predecessors = np.concatenate([none, *(bases[edges.role] + edges.number for edges, bases in resolved)])
        group_waits = GroupWaits(self.job.grid, self.partition, self.parts, self.part_of, self.base)
        return append_to_rows(pointers(counts), predecessors.astype(np.int32), *group_waits.edges())

    # -- routes ----------------------------------------------------------------------------------------------------

    def _links(self) -> GraphLinks:
        """Return one link of each class."""
        placement, real = self.placement, self.real_links
        names = ChosenNames(placement.link_names, real)
        return GraphLinks(placement.link_bytes_per_s[real], placement.link_latency_ps[real], names)

    def _route_column(self) -> Int32:
        column = np.full(self.num_tasks, -1, np.int32)
        for number in range(self.partition.num_classes):
            pairs, index = self._pairs[self.part_of[number]]
            crossings = {role: self._crossing(number, role) for role in dict.fromkeys(role for role, _, _ in pairs)}
            routes = np.array([*(self._route(crossings[role], *rest) for role, *rest in pairs), -1], np.int32)
            first = int(self.base[number])
            column[first : first + len(index)] = routes[index]
        return column

    def _route(self, crossing: _Crossing, software_ps: int, cap: int) -> int:
        """Return the route of a class's messages to one role: with this time before them, and this limit."""
        latency_ps = crossing.latency_ps + software_ps
        return self.assembler.route(crossing.links, latency_ps, counts=crossing.counts, cap=cap)

    def _crossing(self, number: int, role: int) -> _Crossing:
        """Return the links that a class's messages to one role cross."""
        part = self.parts[self.part_of[number]]
        row = int(self.row_of_rank[self.partition.representatives[number]])
        links = self.table.of_row(part.pattern, role, row)
        is_deferred = role >= 0 and part.pattern.role_axes[role] in part.deferred
        classes = self.classes.link_classes(links[:0] if is_deferred else links)  # deferred axes carry no messages now
        crossed: dict[int, int] = {}
        for link in classes.tolist():
            crossed[link] = crossed.get(link, 0) + 1
        counts = []
        for link, times in crossed.items():
            count, remainder = divmod(int(self.partition.sizes[number]) * times, int(self.partition.link_sizes[link]))
            if remainder:
                raise SimulationError("flows of a class do not spread evenly over links: please report this as a bug")
            counts.append(count)
        latency_ps = int(self.placement.link_latency_ps[links].sum())
        if self.placement.software is not None:
            latency_ps += self.placement.software.on(links)
        return _Crossing(tuple(crossed), tuple(counts), latency_ps)


class _Crossing(NamedTuple):
    """Classes of links on a route, and how often the messages of one class cross each. latency_ps: of the route."""

    links: tuple[int, ...]
    counts: tuple[int, ...]
    latency_ps: int


@dataclass(frozen=True, slots=True, eq=False)
class _Resolved:
    """Edges of the remaining tasks: their count per task, and (role, task number in the part of that role) of each."""

    counts: Int32
    role: npt.NDArray[np.int16]
    number: Int32


def append_to_rows(ptr: Int64, values: Int32, rows: Int64, appended: Int64) -> tuple[Int64, Int32]:
    """Append ``appended[i]`` to row ``rows[i]`` of a CSR, for each i in order. Returns the new ``ptr`` and values."""
    order = np.argsort(rows, kind="stable")
    lengths = np.diff(ptr) + np.bincount(rows, minlength=len(ptr) - 1)
    return pointers(lengths), np.insert(values, ptr[rows[order] + 1], appended[order])


def _pressure_of(pattern: Pattern) -> Int32:
    return np.zeros(pattern.num_tasks, np.int32) if pattern.pressure_ppm is None else pattern.pressure_ppm


def _resolve_edges(
    part: PatternPart,
    peers: dict[int, PatternPart | None],
    positions: dict[int, int],
    describe: Callable[[PatternPart], str],
) -> _Resolved:
    edges = part.edges
    number = np.full(len(edges), -1, np.int64)
    local = edges.role == SELF
    number[local] = part.number_of[edges.key[local]]
    assert (part.number_of[edges.task[local]] >= 0).all()
    for role, peer in peers.items():
        if peer is None:
            continue
        edge_numbers = np.flatnonzero(edges.role == role)
        tasks = named_tasks(edges, edge_numbers, peer.pattern, positions.get(role, -1))
        if (tasks < 0).any():
            raise PlanError(
                f"program {describe(part)} waits for something that program {describe(peer)} never does, along axis "
                f"{part.pattern.role_axes[role]}"
            )
        number[edge_numbers] = peer.number_of[tasks]
    is_awaited = number >= 0  # ended tasks are no longer awaited
    counts = np.bincount(part.number_of[edges.task[is_awaited]], minlength=len(part.tasks)).astype(np.int32)
    return _Resolved(counts, edges.role[is_awaited], number[is_awaited].astype(np.int32))


def named_tasks(edges: Edges, edge_numbers: Int64, pattern: Pattern, position: int) -> Int64:
    """Return the tasks of another rank's ``pattern`` named by the edges ``edge_numbers``, -1 for missing tasks."""
    key, number, kind = edges.key[edge_numbers], edges.number[edge_numbers], edges.kind[edge_numbers]
    collective = np.where(kind == MESSAGE, 0, key)
    sent = np.append(pattern.first_sent, -1)[collective].astype(np.int64)  # a job may have no collective at all
    entered = np.append(pattern.entered, -1)[collective].astype(np.int64)
    tasks = np.where(kind == SENT, np.where(sent >= 0, sent + number, -1), entered)
    for index in np.flatnonzero(kind == MESSAGE).tolist():
        tasks[index] = pattern.messages.get((int(key[index]), position), -1)
    return tasks


def _route_pairs(part: PatternPart) -> tuple[list[tuple[int, int, int]], Int64]:
    """Return the distinct (role, software ps, limit) of a part's transfers, and the index per task (last: none)."""
    role, software = part.pattern.role[part.tasks].astype(np.int64), part.pattern.software_ps[part.tasks]
    sends = np.flatnonzero((role >= 0) | np.isin(role, HOSTS))
    columns = [role[sends], software[sends], part.pattern.caps[part.tasks][sends]]
    code = np.zeros(len(sends), np.int64)
    for column in columns:
        values = distinct(column)
        code = code * len(values) + np.searchsorted(values, column)
    rising = distinct(code)
    index = np.full(len(part.tasks), len(rising), np.int64)
    index[sends] = number = np.searchsorted(rising, code)
    first = np.empty(len(rising), np.int64)
    first[number] = np.arange(len(number))
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), index


class _Members(NamedTuple):
    """Remaining tasks of a part's collectives along an axis whose ranks all wait for each other, -1 for ended tasks.

    keys: int64[k]. entered, begun, ended: int64[k], task numbers in the part of entries, of the tasks that mark "all
    have entered", and of ends. key_of, sent: int64[sends], index in ``keys`` and task number of each remaining send.
    """

    keys: Int64
    entered: Int64
    begun: Int64
    ended: Int64
    key_of: Int64
    sent: Int64


class GroupWaits:
    """Dependencies between the classes of a group whose ranks all wait for each other; arguments as in Quotient.

    The first class of a group waits for all classes, and the others wait for it, so edges grow linearly with classes.
    Any member's group will do: the groups of all members of a class have ranks of the same classes.
    """

    def __init__(
        self, grid: RankGrid, partition: Partition, parts: Sequence[PatternPart], part_of: Int32, base: Int64
    ) -> None:
        self.grid = grid
        self.partition = partition
        self.parts = parts
        self.part_of = part_of
        self.base = base
        self._classes: dict[tuple[str, int], list[int]] = {}
        self._members: dict[tuple[int, str], _Members] = {}
        self._edges: list[tuple[Int64, Int64]] = []

    def edges(self) -> tuple[Int64, Int64]:
        """Return (tasks, the predecessor of each): int64[edges], int64[edges]."""
        axes = {id(part.edges): part.together_axes for part in self.parts}
        for number, part_number in enumerate(self.part_of.tolist()):
            for axis in axes[id(self.parts[part_number].edges)]:
                classes = [number] if axis in self.parts[part_number].deferred else self._group_classes(number, axis)
                if classes[0] == number:
                    self._add_group(classes, axis)
        if not self._edges:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        tasks, before = (np.concatenate([edges[side] for edges in self._edges]) for side in (0, 1))
        return tasks, before

    def _group_classes(self, number: int, axis: str) -> list[int]:
        """Return the classes in the group of a class's representative, in rising order."""
        rank = self.partition.representatives[number : number + 1]
        first = int(self.grid.firsts(rank, axis)[0])
        if (axis, first) not in self._classes:
            classes = np.unique(self.partition.class_of[first + self.grid.offsets(axis)]).tolist()
            self._classes[axis, first] = [class_number for class_number in classes if class_number >= 0]
        return self._classes[axis, first]

    def _add_group(self, classes: list[int], axis: str) -> None:
        """Add the edges of all collectives of the groups of ``classes`` along an axis."""
        hub, base = self._members_of(classes[0], axis), int(self.base[classes[0]])
        for number in classes:
            members, first = self._members_of(number, axis), int(self.base[number])
            assert np.array_equal(members.keys, hub.keys)
            entries = np.flatnonzero((hub.begun >= 0) & (members.entered >= 0))
            self._edges.append((base + hub.begun[entries], first + members.entered[entries]))
            is_awaited = hub.ended[members.key_of] >= 0
            self._edges.append((base + hub.ended[members.key_of[is_awaited]], first + members.sent[is_awaited]))
            if number != classes[0]:
                for own_tasks, hub_tasks in ((members.begun, hub.begun), (members.ended, hub.ended)):
                    entries = np.flatnonzero(own_tasks >= 0)
                    assert (hub_tasks[entries] >= 0).all()
                    self._edges.append((first + own_tasks[entries], base + hub_tasks[entries]))

    def _members_of(self, number: int, axis: str) -> _Members:
        part = self.parts[self.part_of[number]]
        name = (id(part.number_of), axis)
        if name not in self._members:
            self._members[name] = _members(part, axis)
        return self._members[name]


def _members(part: PatternPart, axis: str) -> _Members:
    of_axis = [call for call in part.pattern.together if call.axis == axis]
    keys = np.concatenate([call.keys for call in of_axis])
    order = np.argsort(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.arange(len(keys))
    entered, first = (np.concatenate([getattr(call, name) for call in of_axis])[order] for name in ("entered", "first"))
    counts = np.concatenate([np.full(len(call.keys), call.timed.shape[1]) for call in of_axis])
    sent = part.number_of[np.concatenate([call.timed.ravel() for call in of_axis])].astype(np.int64)
    key_of = np.repeat(place, counts)
    return _Members(
        keys=keys[order],
        entered=part.number_of[entered].astype(np.int64),
        begun=part.number_of[first].astype(np.int64),
        ended=part.number_of[entered + 1].astype(np.int64),
        key_of=key_of[sent >= 0],
        sent=sent[sent >= 0],
    )
