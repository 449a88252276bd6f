"""Traces as a task graph whose tasks carry kernels: one task per node and rank, in the order of the programs.

A communication node has two tasks if a launch takes time: the launch, and the kernel. Copies from and to a host are
transfers, as at the operator level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trine.cluster import Cluster
from trine.common.arrays import Int32
from trine.errors import PlanError
from trine.formats.chakra.trace import ChakraTrace
from trine.gpu.chakra.kernels import RECEIVE_KERNEL, SEND_KERNEL, JobKernels
from trine.gpu.program import GpuProgram
from trine.graph.assembler import PlacedAssembler, TaskRow, csr
from trine.graph.placement import Placement
from trine.graph.program import HOST_STREAM, LAUNCH_STREAM, Collective, Compute, HostCopy, Label, Send, Step
from trine.graph.taskgraph import COMPUTE, TRANSFER, CollectiveLabel, TaskGraph

#: Maximum number of tasks of a job at this level.
MAX_TASKS = 2_000_000
#: A route without links, for tasks with messages inside their kernels.
_NO_ROUTE = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadStoreGraph:
    """Tasks and the kernel of each.

    graph: the graph to run. seen: the same tasks for results: communication kernels are transfers from their rank to
    itself, sends are transfers to their receivers, without links. task_kernel: int32[tasks], -1: none.
    """

    graph: TaskGraph
    seen: TaskGraph
    task_kernel: Int32


class _TaskKernel(NamedTuple):
    """A task's kernel (-1: none), and its peer and size_bytes in results; peer -1: no transfer."""

    kernel: int = -1
    peer: int = -1
    size_bytes: int = 0


def is_kernel(step: Compute) -> bool:
    """Return whether a compute node runs on the GPU and takes time."""
    return not step.stream.startswith((LAUNCH_STREAM, HOST_STREAM)) and step.duration_ps > 0


class GraphBuilder:
    """Builder of the graph of traces, rank i on the i-th GPU of ``cluster``.

    launch_ps: before each communication kernel. compute: (duration, bytes) -> kernel; missing: a task of this duration.
    """

    def __init__(
        self,
        trace: ChakraTrace,
        cluster: Cluster,
        kernels: JobKernels,
        launch_ps: int,
        compute: Mapping[tuple[int, int], GpuProgram],
    ) -> None:
        self._trace, self._cluster, self._kernels, self._launch_ps = trace, cluster, kernels, launch_ps
        self._programs = compute
        placement = Placement(devices=np.asarray(cluster.gpus[: trace.num_ranks], np.int64), cluster=cluster)
        self._assembler = PlacedAssembler(placement)
        self._assembler.route((), 0)
        self._rows: list[TaskRow] = []
        self._task_kernels: list[_TaskKernel] = []
        self._collective: list[int] = []
        self._labels: list[tuple[int, ...]] = []
        self._predecessors: list[tuple[int, ...]] = []
        self._uses: list[CollectiveLabel] = []
        #: (group, turn) -> number of the collective, its first kernel
        self._collectives: dict[tuple[str, int], tuple[int, int]] = {}
        self._members = {}
        for axis, ranks in trace.groups.items():
            self._members[axis] = {rank: i for i, rank in enumerate(ranks)}
        #: (sender, receiver, tag) -> kernel of the sender
        self._messages: dict[tuple[object, ...], int] = {}

    def build(self) -> LoadStoreGraph:
        """Return all tasks. Raises PlanError: a missing kernel or host, or more than MAX_TASKS tasks."""
        self._add_communication()
        for rank in range(self._trace.num_ranks):
            self._add_rank(rank)
        graph = self._graph()
        kernel = np.array([task_kernel.kernel for task_kernel in self._task_kernels], np.int32)
        return LoadStoreGraph(graph=graph, seen=self._result_graph(graph), task_kernel=kernel)

    # -- kernels of collectives and messages, in the order of the programs ------------------------------------------

    def _add_communication(self) -> None:
        trace = self._trace
        for axis, ranks in trace.groups.items():
            for step in trace.programs[trace.program_of[ranks[0]]].steps:
                if isinstance(step, Collective) and step.axis == axis:
                    self._add_collective(step, ranks)
        for rank in range(trace.num_ranks):
            for step in trace.programs[trace.program_of[rank]].steps:
                if isinstance(step, Send):
                    target = step.peer.position
                    self._messages[rank, target, step.tag] = self._kernels.message(rank, target, step.size_bytes)

    def _add_collective(self, step: Collective, ranks: tuple[int, ...]) -> None:
        first_kernel, algorithm = self._kernels.collective(step, ranks)
        self._collectives[step.axis, int(step.key[0])] = len(self._uses), first_kernel
        self._uses.append(CollectiveLabel.of(step, algorithm, ranks))

    # -- tasks of the ranks ------------------------------------------------------------------------------------------

    def _add_rank(self, rank: int) -> None:
        program = self._trace.programs[self._trace.program_of[rank]]
        last_tasks: list[int] = []
        previous: dict[str, int] = {}
        for step, tensor_bytes in zip(program.steps, program.tensor_bytes, strict=True):
            predecessors = [last_tasks[i] for i in step.after]
            if isinstance(step, Collective):
                queue = step.queue or step.axis
                predecessors += [previous[queue]] if queue in previous else []
            number = self._collectives[step.axis, int(step.key[0])][0] if isinstance(step, Collective) else -1
            tasks = self._tasks(rank, step, tensor_bytes)
            for row, task_kernel in tasks:
                if len(self._rows) >= MAX_TASKS:
                    raise PlanError(f"the traces have more than {MAX_TASKS:,} tasks, too many for the load-store level")
                self._rows.append(row)
                self._task_kernels.append(task_kernel)
                self._labels.append(step.label)
                self._predecessors.append(tuple(dict.fromkeys(predecessors)))
                self._collective.append(number)
                predecessors = [len(self._rows) - 1]
            if isinstance(step, Collective):
                previous[queue] = len(self._rows) - 1
            last_tasks.append(len(self._rows) - 1)

    def _tasks(self, rank: int, step: Step, tensor_bytes: int) -> list[tuple[TaskRow, _TaskKernel]]:
        """Return the tasks of a step, one after the other."""
        if isinstance(step, Compute):
            return [self._compute(rank, step, tensor_bytes)]
        if isinstance(step, HostCopy):
            route = self._assembler.to_host(rank) if step.to_host else self._assembler.from_host(rank)
            return [(TaskRow(TRANSFER, rank, rank, size_bytes=step.size_bytes, route=route), _TaskKernel())]
        row = TaskRow(COMPUTE, rank)
        if isinstance(step, Collective):
            first_kernel = self._collectives[step.axis, int(step.key[0])][1]
            row = row._replace(stream=self._assembler.stream(rank, f"communication {step.queue or step.axis}"))
            task_kernel = _TaskKernel(first_kernel + self._members[step.axis][rank], rank, step.size_bytes)
        elif isinstance(step, Send):
            target = step.peer.position
            task_kernel = _TaskKernel(self._messages[rank, target, step.tag] + SEND_KERNEL, target, step.size_bytes)
        else:
            task_kernel = _TaskKernel(self._messages[step.peer.position, rank, step.tag] + RECEIVE_KERNEL, rank)
        if not self._launch_ps:
            return [(row, task_kernel)]
        return [(row._replace(duration_ps=self._launch_ps), _TaskKernel(peer=rank)), (row, task_kernel)]

    def _compute(self, rank: int, step: Compute, tensor_bytes: int) -> tuple[TaskRow, _TaskKernel]:
        stream = self._assembler.stream(rank, step.stream)
        program = self._programs.get((step.duration_ps, tensor_bytes)) if is_kernel(step) else None
        kernel = -1 if program is None else self._kernels.add(program, (rank,), "compute")
        return TaskRow(COMPUTE, rank, stream=stream, duration_ps=step.duration_ps), _TaskKernel(kernel)

    # -- the graph -----------------------------------------------------------------------------------------------

    def _graph(self) -> TaskGraph:
        labels = np.array(self._labels, np.int32).reshape(len(self._rows), len(Label._fields)).T
        columns = dict(zip(Label._fields, labels, strict=True))
        self._assembler.rows(self._rows, collective=np.array(self._collective, np.int32), **columns)
        self._assembler.connect_rows(*csr(self._predecessors))
        placement = self._assembler.placement
        return self._assembler.build(
            rank_names=[placement.rank_name(rank) for rank in range(self._trace.num_ranks)],
            operator_names=self._trace.operator_names,
            layer_names=self._trace.layer_names,
            collectives=tuple(self._uses),
        )

    def _result_graph(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph with communication kernels, and their launches, as transfers."""
        peer = np.array([task_kernel.peer for task_kernel in self._task_kernels], np.int32)
        is_kernel = peer >= 0
        size = np.array([task_kernel.size_bytes for task_kernel in self._task_kernels], np.int64)
        return replace(
            graph,
            kind=np.where(is_kernel, TRANSFER, graph.kind).astype(np.int8),
            peer=np.where(is_kernel, peer, graph.peer).astype(np.int32),
            stream=np.where(is_kernel, -1, graph.stream).astype(np.int32),
            duration_ps=np.where(is_kernel, 0, graph.duration_ps),
            size_bytes=np.where(is_kernel, size, graph.size_bytes),
            route=np.where(is_kernel, _NO_ROUTE, graph.route).astype(np.int32),
        )
