"""Traces as a task graph whose tasks carry kernels: one task a node and rank, in the order of the programs.

A communication node is two tasks where starting a kernel takes time: the launch, and the kernel. Copies from and to a
host are transfers, as at the operator level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.arrays import Int32
from trine.cluster import Cluster
from trine.errors import PlanError
from trine.formats.chakra.loadstore_kernels import Kernels
from trine.formats.chakra.loadstore_message import RECEIVE_KERNEL, SEND_KERNEL
from trine.formats.chakra.trace import ChakraTrace
from trine.gpu.program import GpuProgram
from trine.graph.builder import csr
from trine.graph.program import HOST_STREAM, LAUNCH_STREAM, Collective, Compute, HostCopy, Send, Step
from trine.graph.taskgraph import COMPUTE, TRANSFER, CollectiveLabel, Labels, TaskGraph

#: Most tasks of a job at this level.
MAX_TASKS = 2_000_000
#: A route without links: that of tasks whose messages are inside their kernels.
_NO_ROUTE = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadStoreGraph:
    """Tasks and the kernel of each.

    graph: what runs. seen: the same tasks as results see them: communication kernels are transfers from their rank to
    itself, sends to their receivers, without links. task_kernel: int32[tasks], -1: none.
    """

    graph: TaskGraph
    seen: TaskGraph
    task_kernel: Int32


class _Row(NamedTuple):
    kind: int
    peer: int = -1
    stream: int = -1
    duration_ps: int = 0
    size_bytes: int = 0
    route: int = -1
    collective: int = -1
    kernel: int = -1
    #: as results see it: the other end of a transfer, -1: no transfer
    seen_peer: int = -1


def is_kernel(step: Compute) -> bool:
    """Whether a compute node is of the GPU, and takes time."""
    return not step.stream.startswith((LAUNCH_STREAM, HOST_STREAM)) and step.duration_ps > 0


class GraphBuilder:
    """Builds the graph of traces, rank i on the i-th GPU of ``cluster``.

    launch_ps: before each communication kernel. compute: (duration, bytes) -> the kernel; none: the task just lasts.
    """

    def __init__(
        self,
        trace: ChakraTrace,
        cluster: Cluster,
        kernels: Kernels,
        launch_ps: int,
        compute: Mapping[tuple[int, int], GpuProgram],
    ) -> None:
        self._trace, self._cluster, self._kernels, self._launch_ps = trace, cluster, kernels, launch_ps
        self._compute = compute
        self._rows: list[_Row] = []
        self._ranks: list[int] = []
        self._labels: list[tuple[int, ...]] = []
        self._before: list[tuple[int, ...]] = []
        self._streams: dict[tuple[int, str], int] = {}
        self._routes: dict[tuple[int, ...], int] = {(): _NO_ROUTE}
        self._uses: list[CollectiveLabel] = []
        #: (group, turn) -> number of the collective, its first kernel
        self._collectives: dict[tuple[str, int], tuple[int, int]] = {}
        self._members = {axis: {rank: i for i, rank in enumerate(ranks)} for axis, ranks in trace.groups.items()}
        #: (sender, receiver, tag) -> kernel of the sender
        self._messages: dict[tuple[object, ...], int] = {}

    def build(self) -> LoadStoreGraph:
        """All tasks.

        Raises
        ------
        PlanError: what has no kernel, a host that is not there, or more than MAX_TASKS tasks.
        """
        self._add_communication()
        for rank in range(self._trace.num_ranks):
            self._add_rank(rank)
        graph = self._graph()
        kernel = np.array([row.kernel for row in self._rows], np.int32)
        return LoadStoreGraph(graph=graph, seen=self._seen(graph), task_kernel=kernel)

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
        first, algorithm = self._kernels.collective(step, ranks)
        self._collectives[step.axis, int(step.key[0])] = len(self._uses), first
        self._uses.append(
            CollectiveLabel(
                kind=step.kind, algorithm=algorithm, size_bytes=step.size_bytes, ranks=ranks, axis=step.axis,
                step=step.label.step,
            )
        )  # fmt: skip

    # -- tasks of the ranks ------------------------------------------------------------------------------------------

    def _add_rank(self, rank: int) -> None:
        program = self._trace.programs[self._trace.program_of[rank]]
        last: list[int] = []
        previous: dict[str, int] = {}
        for step, tensor_bytes in zip(program.steps, program.tensor_bytes, strict=True):
            before = [last[i] for i in step.after]
            if isinstance(step, Collective):
                queue = step.queue or step.axis
                before += [previous[queue]] if queue in previous else []
            for row in self._task_rows(rank, step, tensor_bytes):
                self._add(rank, row, step.label, before)
                before = [len(self._rows) - 1]
            if isinstance(step, Collective):
                previous[queue] = len(self._rows) - 1
            last.append(len(self._rows) - 1)

    def _task_rows(self, rank: int, step: Step, tensor_bytes: int) -> list[_Row]:
        """The tasks of a step, one after the other."""
        if isinstance(step, Compute):
            return [self._compute_row(rank, step, tensor_bytes)]
        if isinstance(step, HostCopy):
            return [_Row(TRANSFER, peer=rank, size_bytes=step.size_bytes, route=self._host_route(rank, step))]
        if isinstance(step, Collective):
            number, first = self._collectives[step.axis, int(step.key[0])]
            stream = self._stream(rank, f"communication {step.queue or step.axis}")
            kernel = first + self._members[step.axis][rank]
            row = _Row(
                COMPUTE, stream=stream, collective=number, kernel=kernel, seen_peer=rank, size_bytes=step.size_bytes
            )
        elif isinstance(step, Send):
            target = step.peer.position
            kernel = self._messages[rank, target, step.tag] + SEND_KERNEL
            row = _Row(COMPUTE, kernel=kernel, seen_peer=target, size_bytes=step.size_bytes)
        else:
            kernel = self._messages[step.peer.position, rank, step.tag] + RECEIVE_KERNEL
            row = _Row(COMPUTE, kernel=kernel, seen_peer=rank)
        if not self._launch_ps:
            return [row]
        return [row._replace(kernel=-1, duration_ps=self._launch_ps, size_bytes=0, seen_peer=rank), row]

    def _compute_row(self, rank: int, step: Compute, tensor_bytes: int) -> _Row:
        row = _Row(COMPUTE, stream=self._stream(rank, step.stream), duration_ps=step.duration_ps)
        program = self._compute.get((step.duration_ps, tensor_bytes)) if is_kernel(step) else None
        return row if program is None else row._replace(kernel=self._kernels.add(program, (rank,), "compute"))

    def _stream(self, rank: int, name: str) -> int:
        return self._streams.setdefault((rank, name), len(self._streams))

    def _host_route(self, rank: int, step: HostCopy) -> int:
        gpu = self._cluster.gpus[rank]
        host = self._cluster.host_of(gpu)
        if host is None:
            raise PlanError(
                f"device {self._cluster.devices[gpu].name!r} has no host memory for the memory nodes of rank {rank}"
            )
        route = self._cluster.route(gpu, host) if step.to_host else self._cluster.route(host, gpu)
        return self._routes.setdefault(route, len(self._routes))

    def _add(self, rank: int, row: _Row, label: tuple[int, ...], before: list[int]) -> None:
        if len(self._rows) >= MAX_TASKS:
            raise PlanError(f"the traces have more than {MAX_TASKS:,} tasks, too many for the load-store level")
        self._rows.append(row)
        self._ranks.append(rank)
        self._labels.append(label)
        self._before.append(tuple(dict.fromkeys(before)))

    # -- the graph -----------------------------------------------------------------------------------------------

    def _graph(self) -> TaskGraph:
        rows = np.array([row[:8] for row in self._rows], np.int64).reshape(-1, 8).T
        column = dict(zip(_Row._fields[:8], rows, strict=True))
        predecessor_ptr, predecessor_idx = csr(self._before)
        is_transfer = column["kind"] == TRANSFER
        cluster, routes = self._cluster, list(self._routes)
        return TaskGraph(
            kind=column["kind"].astype(np.int8),
            rank=np.array(self._ranks, np.int32),
            peer=column["peer"].astype(np.int32),
            stream=column["stream"].astype(np.int32),
            duration_ps=column["duration_ps"].copy(),
            size_bytes=np.where(is_transfer, column["size_bytes"], 0),
            route=column["route"].astype(np.int32),
            need=np.diff(predecessor_ptr).astype(np.int32),
            predecessor_ptr=predecessor_ptr,
            predecessor_idx=predecessor_idx,
            route_ptr=np.cumsum([0, *map(len, routes)]).astype(np.int64),
            route_links=np.array([link for route in routes for link in route], np.int32),
            route_latency_ps=np.array([cluster.route_latency_ps(route) for route in routes], np.int64),
            link_bytes_per_s=cluster.link_bytes_per_s,
            link_latency_ps=cluster.link_latency_ps,
            stream_names=tuple(name for _, name in self._streams),
            stream_ranks=tuple(rank for rank, _ in self._streams),
            rank_names=tuple(map(cluster.device_name, cluster.gpus[: self._trace.num_ranks])),
            link_names=cluster.link_names,
            labels=self._label_columns(column["collective"]),
            operator_names=self._trace.operator_names,
            layer_names=self._trace.layer_names,
            collectives=tuple(self._uses),
        )

    def _label_columns(self, collective: npt.NDArray[np.int64]) -> Labels:
        columns = np.array(self._labels, np.int32).reshape(-1, 6)
        phase, operator, layer, stage, microbatch, step = (column.copy() for column in columns.T)
        return Labels(
            phase=phase.astype(np.int8), operator=operator, layer=layer, collective=collective.astype(np.int32),
            stage=stage, microbatch=microbatch, step=step,
        )  # fmt: skip

    def _seen(self, graph: TaskGraph) -> TaskGraph:
        """Communication kernels, and their launches, as transfers."""
        peer = np.array([row.seen_peer for row in self._rows], np.int32)
        is_kernel = peer >= 0
        size = np.array([row.size_bytes for row in self._rows], np.int64)
        return replace(
            graph,
            kind=np.where(is_kernel, TRANSFER, graph.kind).astype(np.int8),
            peer=np.where(is_kernel, peer, graph.peer).astype(np.int32),
            stream=np.where(is_kernel, -1, graph.stream).astype(np.int32),
            duration_ps=np.where(is_kernel, 0, graph.duration_ps),
            size_bytes=np.where(is_kernel, size, graph.size_bytes),
            route=np.where(is_kernel, _NO_ROUTE, graph.route).astype(np.int32),
        )
