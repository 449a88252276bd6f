"""Traces as a task graph without a rank grid: groups may be any sets of ranks.

Task numbers: the steps of rank 0, then of rank 1, ...; a collective has two joins (entered, ended). Then the transfers
of the collectives, group by group.
"""

from __future__ import annotations

import numpy as np

from trine.cluster import Cluster
from trine.collectives.library_flows import message_of
from trine.collectives.one_operation import schedule_of
from trine.collectives.transfers import append_transfers
from trine.errors import PlanError
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.assembler import PlacedAssembler, TaskRow
from trine.graph.placement import CollectiveCosts, Placement
from trine.graph.program import Collective, Compute, HostCopy, Label, Recv, Send
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, CollectiveLabel, TaskGraph
from trine.parallel.instantiate import MAX_TASKS


def trace_graph(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None = None) -> TaskGraph:
    """Return all tasks of the traces, rank i on the i-th GPU of ``cluster``.

    ``costs``: a library's software time per message; None: no software time.

    Raises PlanError: a missing host, a schedule that needs switches that reduce, or more tasks than fit into memory.
    """
    devices = np.asarray(cluster.gpus[: trace.num_ranks], np.int64)
    tasks = _TraceInstantiation(trace, Placement(devices=devices, cluster=cluster, costs=costs))
    tasks.ranks()
    tasks.match()
    for axis, ranks in trace.groups.items():
        tasks.collectives(axis, ranks)
    return tasks.graph()


class _TraceInstantiation:
    """Builder of every rank's tasks, numbered rank after rank; then the collectives' tasks."""

    def __init__(self, trace: ChakraTrace, placement: Placement) -> None:
        self.trace, self.placement = trace, placement
        self.assembler = PlacedAssembler(placement)
        self.rows: list[TaskRow] = []
        self.labels: list[tuple[int, ...]] = []
        self.collective = np.zeros(0, np.int32)
        self.sent: dict[tuple[object, ...], int] = {}
        self.received: dict[tuple[object, ...], int] = {}
        #: (group, turn) -> the entry task of each member
        self.entries: dict[tuple[str, int], dict[int, int]] = {}
        self.uses: list[CollectiveLabel] = []

    # -- tasks of the ranks --------------------------------------------------------------------------------------

    def ranks(self) -> None:
        for rank in range(self.trace.num_ranks):
            self._rank(rank)
        self.collective = np.full(len(self.rows), -1, np.int32)
        labels = np.array(self.labels, np.int32).reshape(len(self.rows), len(Label._fields)).T
        self.assembler.rows(self.rows, collective=self.collective, **dict(zip(Label._fields, labels, strict=True)))

    def _rank(self, rank: int) -> None:
        """Add a rank's tasks: one per step, two per collective."""
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
                self._add(TaskRow(JOIN, rank), step.label)
                tasks.append(task + 1)
                predecessors.append(task)
                previous[queue] = task + 1
                self._add(TaskRow(JOIN, rank), step.label)
            else:
                self._add(self._row(rank, step, task), step.label)
            tasks += [task] * len(before)
            predecessors += before
            last.append(len(self.rows) - 1)
        self.assembler.connect(tasks, predecessors)

    def _row(self, rank: int, step: Compute | Send | Recv | HostCopy, task: int) -> TaskRow:
        if isinstance(step, Compute):
            stream = self.assembler.stream(rank, step.stream)
            return TaskRow(COMPUTE, rank, stream=stream, duration_ps=step.duration_ps)
        if isinstance(step, Send):
            target = step.peer.position
            self.sent[rank, target, step.tag] = task
            answer = self.placement.collective("send_recv", step.size_bytes, (rank, target), None)
            sent = message_of(step.size_bytes, *answer)
            route = self.assembler.between(rank, target, sent.software_ps, sent.cap)
            return TaskRow(TRANSFER, rank, target, size_bytes=sent.size_bytes, route=route)
        if isinstance(step, Recv):
            self.received[step.peer.position, rank, step.tag] = task
            return TaskRow(JOIN, rank)
        route = self.assembler.to_host(rank) if step.to_host else self.assembler.from_host(rank)
        return TaskRow(TRANSFER, rank, rank, size_bytes=step.size_bytes, route=route)

    def _add(self, row: TaskRow, label: Label) -> None:
        if len(self.rows) >= MAX_TASKS:
            raise PlanError(f"the traces have more than {MAX_TASKS:,} tasks, which do not fit into memory")
        self.rows.append(row)
        self.labels.append(label)

    def match(self) -> None:
        """Let each receive wait for its send; the traces are known to match."""
        self.assembler.connect(list(self.received.values()), [self.sent[key] for key in self.received])

    # -- transfers of the collectives ----------------------------------------------------------------------------

    def collectives(self, axis: str, ranks: tuple[int, ...]) -> None:
        """Add all collectives of one group, in order."""
        program = self.trace.programs[self.trace.program_of[ranks[0]]]
        for step in program.steps:
            if isinstance(step, Collective) and step.axis == axis:
                self._collective(step, ranks)

    def _collective(self, step: Collective, ranks: tuple[int, ...]) -> None:
        algorithm, software_ps = self.placement.collective(step.kind, step.size_bytes, ranks, step.algorithm)
        schedule = schedule_of(step.kind, len(ranks), step.size_bytes, algorithm, step.root)
        if schedule.num_switches:
            raise PlanError(f"{step.kind} by {schedule.algorithm} needs switches that add up, which have no place here")
        entered = np.array([self.entries[step.axis, int(step.key[0])][rank] for rank in ranks], np.int64)
        self.collective[entered] = self.collective[entered + 1] = number = len(self.uses)
        labels = step.label._asdict()
        append_transfers(self.assembler, schedule, ranks, entered, software_ps, collective=number, **labels)
        if self.assembler.num_tasks > MAX_TASKS:
            raise PlanError(f"the collectives have more than {MAX_TASKS:,} transfers, which do not fit into memory")
        self.uses.append(CollectiveLabel.of(step, schedule.algorithm, ranks))

    def graph(self) -> TaskGraph:
        return self.assembler.build(
            rank_names=[self.placement.rank_name(rank) for rank in range(self.trace.num_ranks)],
            operator_names=self.trace.operator_names,
            layer_names=self.trace.layer_names,
            collectives=tuple(self.uses),
        )
