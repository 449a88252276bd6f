"""Traces as a task graph without a rank grid: groups may be any sets of ranks.

Task numbers: the steps of rank 0, then of rank 1, ...; a collective is two joins (entered, ended). Then the transfers
of the collectives, group by group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.cluster import Cluster
from trine.collectives import expand, make_schedule
from trine.collectives.schedule import ExpandedSchedule
from trine.errors import PlanError
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.placement import CollectiveCosts
from trine.graph.program import Collective, Compute, HostCopy, Recv, Send
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, CollectiveLabel, Labels, TaskGraph
from trine.parallel.instantiate import MAX_TASKS


def trace_graph(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None = None) -> TaskGraph:
    """All tasks of the traces, rank i on the i-th GPU of ``cluster``.

    ``costs``: what a library's software adds to messages; None: nothing.

    Raises
    ------
    PlanError: a host that is not there, a schedule that needs switches that reduce, or more tasks than fit into memory.
    """
    assembly = _Assembly(trace, cluster, costs)
    for rank in range(trace.num_ranks):
        assembly.rank(rank)
    assembly.match()
    for axis, ranks in trace.groups.items():
        assembly.collectives(axis, ranks)
    return assembly.graph()


class _Routes:
    """Numbers of routes, each with the software before its messages."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.links: list[tuple[int, ...]] = []
        self.latency_ps: list[int] = []
        self._numbers: dict[tuple[int, int, int], int] = {}

    def number(self, source: int, target: int, software_ps: int = 0) -> int:
        """The route from one device to another."""
        key = source, target, software_ps
        if key not in self._numbers:
            self._numbers[key] = len(self.links)
            route = () if source == target else self.cluster.route(source, target)
            self.links.append(route)
            self.latency_ps.append(self.cluster.route_latency_ps(route) + software_ps)
        return self._numbers[key]


class _Row(NamedTuple):
    """One task of a rank."""

    kind: int
    peer: int = -1
    stream: int = -1
    duration_ps: int = 0
    size_bytes: int = 0
    route: int = -1
    collective: int = -1


class _Assembly:
    def __init__(self, trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None) -> None:
        self.trace, self.cluster, self.costs = trace, cluster, costs
        self.routes = _Routes(cluster)
        self.rows: list[_Row] = []
        self.ranks: list[int] = []
        self.labels: list[tuple[int, ...]] = []
        self.edges: list[tuple[Int64, Int64]] = []
        self.streams: dict[tuple[int, str], int] = {}
        self.sent: dict[tuple[object, ...], int] = {}
        self.received: dict[tuple[object, ...], int] = {}
        #: (group, turn) -> the entry task of each member
        self.entries: dict[tuple[str, int], dict[int, int]] = {}
        self.uses: list[CollectiveLabel] = []
        self.parts: list[tuple[ExpandedSchedule, npt.NDArray[np.int32], npt.NDArray[np.int32], Collective]] = []
        self.num_transfers = 0

    # -- tasks of the ranks --------------------------------------------------------------------------------------

    def rank(self, rank: int) -> None:
        """One task a step, two a collective."""
        tasks: list[int] = []
        predecessors: list[int] = []
        last: list[int] = []
        previous: dict[str, int] = {}
        for step in self.trace.programs[self.trace.program_of[rank]].steps:
            task = len(self.rows)
            before = [last[i] for i in step.after]
            if isinstance(step, Collective):
                queue = step.queue or step.axis
                before += [previous[queue]] if queue in previous else []
                self.entries.setdefault((step.axis, int(step.key[0])), {})[rank] = task
                self._add(rank, _Row(JOIN), step.label)
                tasks.append(task + 1)
                predecessors.append(task)
                previous[queue] = task + 1
                self._add(rank, _Row(JOIN), step.label)
            else:
                self._add(rank, self._row(rank, step, task), step.label)
            tasks += [task] * len(before)
            predecessors += before
            last.append(len(self.rows) - 1)
        self._connect(tasks, predecessors)

    def _row(self, rank: int, step: Compute | Send | Recv | HostCopy, task: int) -> _Row:
        if isinstance(step, Compute):
            stream = self.streams.setdefault((rank, step.stream), len(self.streams))
            return _Row(COMPUTE, stream=stream, duration_ps=step.duration_ps)
        if isinstance(step, Send):
            target = step.peer.position
            self.sent[rank, target, step.tag] = task
            _, software_ps = self._costs("send_recv", step.size_bytes, (rank, target), None)
            route = self._between(rank, target, software_ps)
            return _Row(TRANSFER, peer=target, size_bytes=step.size_bytes, route=route)
        if isinstance(step, Recv):
            self.received[step.peer.position, rank, step.tag] = task
            return _Row(JOIN)
        return _Row(TRANSFER, peer=rank, size_bytes=step.size_bytes, route=self._host_route(rank, step))

    def _host_route(self, rank: int, step: HostCopy) -> int:
        gpu = self.cluster.gpus[rank]
        host = self.cluster.host_of(gpu)
        if host is None:
            raise PlanError(
                f"device {self.cluster.devices[gpu].name!r} has no host memory for the memory nodes of rank {rank}"
            )
        ends = (gpu, host) if step.to_host else (host, gpu)
        return self.routes.number(*ends)

    def _add(self, rank: int, row: _Row, label: tuple[int, ...]) -> None:
        if len(self.rows) >= MAX_TASKS:
            raise PlanError(f"the traces have more than {MAX_TASKS:,} tasks, which do not fit into memory")
        self.rows.append(row)
        self.ranks.append(rank)
        self.labels.append(label)

    def match(self) -> None:
        """Let each receive wait for its send; the traces were checked to have one for each."""
        self._connect(list(self.received.values()), [self.sent[key] for key in self.received])

    # -- transfers of the collectives ----------------------------------------------------------------------------

    def collectives(self, axis: str, ranks: tuple[int, ...]) -> None:
        """All collectives of one group, in order."""
        program = self.trace.programs[self.trace.program_of[ranks[0]]]
        for step in program.steps:
            if isinstance(step, Collective) and step.axis == axis:
                self._collective(step, ranks)

    def _collective(self, step: Collective, ranks: tuple[int, ...]) -> None:
        algorithm, software_ps = self._costs(step.kind, step.size_bytes, ranks, step.algorithm)
        schedule = make_schedule(step.kind, len(ranks), step.size_bytes, algorithm, step.root)
        if schedule.num_agents:
            raise PlanError(f"{step.kind} by {schedule.algorithm} needs switches that add up, which have no place here")
        expanded = expand(schedule)
        entered = np.array([self.entries[step.axis, int(step.key[0])][rank] for rank in ranks], np.int64)
        first = len(self.rows) + self.num_transfers
        self.num_transfers += expanded.num_transfers
        if len(self.rows) + self.num_transfers > MAX_TASKS:
            raise PlanError(f"the collectives have more than {MAX_TASKS:,} transfers, which do not fit into memory")
        self._depend(expanded, entered, first)
        for task in entered.tolist():
            for number in (task, task + 1):
                self.rows[number] = self.rows[number]._replace(collective=len(self.uses))
        members = np.array(ranks, np.int32)
        pairs, which = np.unique(expanded.src.astype(np.int64) * len(ranks) + expanded.dst, return_inverse=True)
        routes = [
            self._between(ranks[pair // len(ranks)], ranks[pair % len(ranks)], software_ps) for pair in pairs.tolist()
        ]
        self.parts.append((expanded, members, np.array(routes, np.int32)[which], step))
        self.uses.append(
            CollectiveLabel(
                kind=step.kind,
                algorithm=schedule.algorithm,
                size_bytes=step.size_bytes,
                ranks=ranks,
                axis=step.axis,
                step=step.label.step,
            )
        )

    def _depend(self, expanded: ExpandedSchedule, entered: Int64, first: int) -> None:
        own = np.arange(first, first + expanded.num_transfers, dtype=np.int64)
        self.edges += [
            (np.repeat(own, np.diff(expanded.predecessor_ptr)), expanded.predecessor_idx.astype(np.int64) + first),
            (own[expanded.entry_src], entered[expanded.src[expanded.entry_src]]),
            (own[expanded.entry_dst], entered[expanded.dst[expanded.entry_dst]]),
            (
                np.repeat(entered + 1, np.diff(expanded.completion_ptr)),
                expanded.completion_idx.astype(np.int64) + first,
            ),
        ]

    def _costs(self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None) -> tuple[str | None, int]:
        return (algorithm, 0) if self.costs is None else self.costs(kind, size_bytes, ranks, algorithm)

    def _between(self, source: int, target: int, software_ps: int) -> int:
        return self.routes.number(self.cluster.gpus[source], self.cluster.gpus[target], software_ps)

    def _connect(self, tasks: list[int], predecessors: list[int]) -> None:
        self.edges.append((np.array(tasks, np.int64), np.array(predecessors, np.int64)))

    # -- the graph -----------------------------------------------------------------------------------------------

    def graph(self) -> TaskGraph:
        total = len(self.rows) + self.num_transfers
        tasks, predecessors = (np.concatenate([edge[i] for edge in self.edges]) for i in (0, 1))
        order = np.argsort(tasks, kind="stable")
        counts = np.bincount(tasks, minlength=total)
        rows = np.array(self.rows, np.int64).reshape(-1, len(_Row._fields)).T
        column = dict(zip(_Row._fields, rows, strict=True))
        expanded = [part[0] for part in self.parts]
        sizes = [part.num_transfers for part in expanded]
        zeros, none = np.zeros(self.num_transfers, np.int64), np.full(self.num_transfers, -1, np.int64)
        return TaskGraph(
            kind=_joined((column["kind"], zeros + TRANSFER)).astype(np.int8),
            rank=_joined((np.array(self.ranks), *(part[1][part[0].src] for part in self.parts))).astype(np.int32),
            peer=_joined((column["peer"], *(part[1][part[0].dst] for part in self.parts))).astype(np.int32),
            stream=_joined((column["stream"], none)).astype(np.int32),
            duration_ps=_joined((column["duration_ps"], zeros)),
            size_bytes=_joined((column["size_bytes"], *(part.size_bytes for part in expanded))),
            route=_joined((column["route"], *(part[2] for part in self.parts))).astype(np.int32),
            need=counts.astype(np.int32),
            predecessor_ptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            predecessor_idx=predecessors[order].astype(np.int32),
            route_ptr=np.cumsum([0, *map(len, self.routes.links)]).astype(np.int64),
            route_links=np.array([link for route in self.routes.links for link in route], np.int32),
            route_latency_ps=np.array(self.routes.latency_ps, np.int64),
            link_bytes_per_s=self.cluster.link_bytes_per_s,
            link_latency_ps=self.cluster.link_latency_ps,
            stream_names=tuple(name for _, name in self.streams),
            stream_ranks=tuple(rank for rank, _ in self.streams),
            rank_names=tuple(map(self.cluster.device_name, self.cluster.gpus[: self.trace.num_ranks])),
            link_names=self.cluster.link_names,
            labels=self._label_columns(column["collective"], sizes),
            operator_names=self.trace.operator_names,
            layer_names=self.trace.layer_names,
            collectives=tuple(self.uses),
        )

    def _label_columns(self, collective: Int64, sizes: list[int]) -> Labels:
        own = np.array(self.labels, np.int32).reshape(len(self.rows), -1)
        theirs = np.repeat(np.array([part[3].label for part in self.parts], np.int32).reshape(-1, 6), sizes, axis=0)
        phase, operator, layer, stage, microbatch, step = np.concatenate((own.reshape(-1, 6), theirs)).T
        return Labels(
            phase=phase.astype(np.int8),
            operator=operator,
            layer=layer,
            collective=_joined((collective, np.repeat(np.arange(len(sizes)), sizes))).astype(np.int32),
            stage=stage,
            microbatch=microbatch,
            step=step,
        )


def _joined(parts: Iterable[npt.NDArray[np.integer]]) -> Int64:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
