"""A simulated step in the form of the PyTorch profiler's traces (Kineto): one JSON file per rank.

Tools for measured traces read it: ``trine check``, ``trine compare``, Holistic Trace Analysis, chrome://tracing.
Kernels of the compute streams carry the names of their operators, because a simulation knows no kernel names. A
collective is one kernel per rank, from the moment the rank enters it to the moment the rank leaves it. Names of
events and arguments: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.common.outputs import OutputFolder
from trine.common.units import PS_PER_US
from trine.errors import InputError
from trine.graph.program import Phase
from trine.graph.taskgraph import JOIN, TRANSFER
from trine.results.activity import computing, input_copies, launches, offloads
from trine.results.records import task_names

if TYPE_CHECKING:
    from trine.results.run import TaskRun

Event = dict[str, Any]

#: Call of torch.distributed, name of the collective in its arguments, and NCCL's name, by trine's kind.
_CALLS = {
    "all_reduce": ("c10d::allreduce_", "allreduce", "AllReduce_Sum"),
    "all_gather": ("c10d::_allgather_base_", "_allgather_base", "AllGather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "_reduce_scatter_base", "ReduceScatter_Sum"),
    "all_to_all": ("c10d::alltoall_base_", "all_to_allv", "SendRecv"),
    "broadcast": ("c10d::broadcast_", "broadcast", "Broadcast"),
}
_AUTOGRAD = "autograd::engine::evaluate_function: "
#: Threads of the file: the training loop and PyTorch's thread for the backward pass; kernels' streams start higher.
_MAIN_THREAD, _BACKWARD_THREAD, _FIRST_STREAM = 1, 2, 7
#: Streams of copies, and of the first process group.
_COPY_STREAM, _FIRST_GROUP_STREAM = 1_000, 2_000
_PS_PER_NS = 1_000
_FORMAT = "trine simulation"


@dataclass(slots=True)
class _Kernel:
    """A GPU activity of one rank.

    task: the first of its tasks, for the order. launch: its launch task, -1 if the simulation left it out. has_launch:
    False for a receive, which the simulation does not launch. event_waits: collectives and messages it waits for.
    """

    task: int
    name: str
    category: str
    stream: int
    start_ps: int
    end_ps: int
    call: str
    phase: int = -1
    layer: str = ""
    launch: int = -1
    args: Event = field(default_factory=dict)
    is_collective: bool = False
    has_launch: bool = True
    event_waits: int = 0


@dataclass(frozen=True, slots=True)
class _CpuTime:
    """When the CPU thread launches a kernel, in ps."""

    start_ps: int
    end_ps: int


def write_kineto(run: TaskRun, folder: str | Path) -> None:
    """Write ``rankN.json.gz`` for each rank of the run into ``folder``.

    Raises InputError if the run lacks tasks of some ranks, micro-batches or steps, or a file cannot be written.
    """
    num_ranks = len(run.graph.rank_names)
    if num_ranks < run.num_ranks or run.repeats is not None or run.repeated_steps is not None:
        raise InputError("needs every rank, micro-batch and step of the run: add --no-fold", file=folder)
    writer = _RankWriter(run)
    with OutputFolder(folder) as output:
        for rank in range(num_ranks):
            name = f"rank{rank}.json.gz"
            with output.open(name) as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                for line in _lines(writer, rank, num_ranks):
                    packed.write(line.encode())


def _lines(writer: _RankWriter, rank: int, num_ranks: int) -> Iterator[str]:
    header = {
        "schemaVersion": 1,
        "traceName": _FORMAT,
        "deviceProperties": [{"id": 0, "name": writer.gpu_name(rank)}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": num_ranks, "pg_config": writer.process_groups(rank),
        },
    }  # fmt: skip
    yield json.dumps(header)[:-1] + ', "traceEvents": [\n'
    comma = ""
    for event in writer.events(rank):
        yield comma + json.dumps(event)
        comma = ",\n"
    yield "\n]}\n"


class _RankWriter:
    """The events of each rank of one run."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._graph = run.graph
        self._records = run.records
        codes, words = task_names(run.graph)
        self._name_codes, self._words = codes, words
        self._groups = _number_groups(run)
        self._sequence = _sequence_numbers(run, self._groups)
        self._is_launch = launches(run.graph)
        self._is_kernel = computing(run.graph)
        self._is_copy = input_copies(run.graph) | (offloads(run.graph) & (run.graph.kind == TRANSFER))

    def gpu_name(self, rank: int) -> str:
        """Return the GPU model of a rank."""
        if self._run.gpu_models:
            return self._run.gpu_models[rank]
        return str(self._run.plan.get("gpu") or "GPU")

    def process_groups(self, rank: int) -> list[Event]:
        """Return the process groups of a rank as in the profiler's ``distributedInfo``."""
        groups = []
        for ranks, number in self._groups.items():
            if rank in ranks:
                groups.append({"pg_name": str(number), "pg_desc": self._axis_of(ranks), "ranks": list(ranks)})
        return groups

    def _axis_of(self, ranks: tuple[int, ...]) -> str:
        return next(label.axis for label in self._graph.collectives if label.ranks == ranks)

    def events(self, rank: int) -> Iterator[Event]:
        """Yield the events of one rank, in no order that readers may rely on."""
        kernels = [*self._compute_kernels(rank), *self._collective_kernels(rank), *self._messages(rank)]
        kernels.sort(key=lambda kernel: kernel.task)
        yield from self._steps(rank)
        times = self._launch_times(kernels)
        yield from self._optimizer_annotation(kernels, times)
        for number, (kernel, time) in enumerate(zip(kernels, times, strict=True), 1):
            yield from _kernel_events(kernel, time, number, rank)
        yield from self._copies(rank)
        yield from self._host_waits(rank)

    def _steps(self, rank: int) -> Iterator[Event]:
        before_ps = 0
        for number, end_ps in enumerate(self._run.step_ends_ps.tolist()):
            yield _complete(f"ProfilerStep#{number}", "user_annotation", before_ps, end_ps, rank, _MAIN_THREAD, {})
            before_ps = end_ps

    def _compute_kernels(self, rank: int) -> Iterator[_Kernel]:
        graph, records = self._graph, self._records
        mask = self._is_kernel & (graph.rank == rank) & (graph.labels.collective < 0)
        for task in np.flatnonzero(mask).tolist():
            name = self._words[self._name_codes[task]]
            yield _Kernel(
                task, name, "kernel", _FIRST_STREAM + int(graph.stream[task]), int(records.start_ps[task]),
                int(records.end_ps[task]), name, int(graph.labels.phase[task]), self._layer(task),
                self._launch_of(task), event_waits=self._awaited(task),
            )  # fmt: skip

    def _awaited(self, task: int) -> int:
        """Return the number of collectives and messages that a compute task waits for."""
        graph = self._graph
        awaited: set[tuple[str, int]] = set()
        for each in map(int, graph.predecessors(task)):
            collective = int(graph.labels.collective[each])
            if collective >= 0:
                awaited.add(("collective", collective))
            elif graph.kind[each] == JOIN:
                messages = [int(other) for other in graph.predecessors(each) if graph.kind[other] == TRANSFER]
                awaited.update(("message", other) for other in messages if not self._is_copy[other])
        return len(awaited)

    def _layer(self, task: int) -> str:
        layer = int(self._graph.labels.layer[task])
        return self._graph.layer_names[layer] if layer >= 0 else ""

    def _launch_of(self, task: int) -> int:
        """Return the launch that the task waits for, -1 if none is written."""
        return next((int(each) for each in self._graph.predecessors(task) if self._is_launch[each]), -1)

    def _collective_kernels(self, rank: int) -> Iterator[_Kernel]:
        """Yield one kernel per collective of the rank: from its first task's readiness to its last task's end."""
        graph, records = self._graph, self._records
        labels = graph.labels.collective
        is_sender, is_receiver = graph.rank == rank, graph.peer == rank
        tasks = np.flatnonzero((labels >= 0) & (is_sender | is_receiver) & ~self._is_launch)
        tasks = tasks[np.argsort(labels[tasks], kind="stable")]
        for members in np.split(tasks, np.flatnonzero(np.diff(labels[tasks])) + 1):
            own = members[is_sender[members]]
            if not len(own):
                continue
            label = graph.collectives[int(labels[own[0]])]
            if len(label.ranks) < 2:
                continue
            first = int(own[np.argmin(records.ready_ps[own])])
            call, name, kernel = _CALLS.get(label.kind, (f"c10d::{label.kind}_", label.kind, label.kind))
            algorithm = label.algorithm.replace("/", "_").upper()
            sent = int(graph.size_bytes[members[is_sender[members]]].sum())
            received = int(graph.size_bytes[members[is_receiver[members]]].sum())
            group = self._groups[label.ranks]
            args = {
                "Collective name": name, "dtype": "Byte", **_elements(label.kind, label.size_bytes, label.num_ranks,
                                                                    sent, received),
                "Group size": label.num_ranks, "Process Group Name": str(group),
                "Process Group Description": label.axis, "Process Group Ranks": str(list(label.ranks)),
                "Seq": self._sequence[int(labels[own[0]])],
            }  # fmt: skip
            yield _Kernel(
                first, f"ncclDevKernel_{kernel}_{algorithm}", "kernel", _FIRST_GROUP_STREAM + group,
                int(records.ready_ps[first]), int(records.end_ps[members].max()), call,
                int(graph.labels.phase[first]), self._layer(first), self._launch_of(first), args, True,
            )  # fmt: skip

    def _messages(self, rank: int) -> Iterator[_Kernel]:
        """Yield a send or receive kernel per message between two ranks outside collectives.

        A receiver enters its kernel as soon as its previous operator has ended, as Megatron's schedules do.
        """
        graph, records = self._graph, self._records
        is_message = (graph.kind == TRANSFER) & (graph.labels.collective < 0) & ~self._is_copy
        is_message &= (graph.rank != graph.peer) & (graph.rank >= 0) & (graph.peer >= 0)
        ends = np.sort(records.end_ps[self._is_kernel & (graph.rank == rank)])
        for task in np.flatnonzero(is_message & ((graph.rank == rank) | (graph.peer == rank))).tolist():
            source, target = int(graph.rank[task]), int(graph.peer[task])
            is_send = source == rank
            start = int(records.ready_ps[task])
            if not is_send:
                before = int(np.searchsorted(ends, start, side="right")) - 1
                start = int(ends[before]) if before >= 0 else 0
            name = "send" if is_send else "recv"
            size = int(graph.size_bytes[task])
            args = {
                "Collective name": name, "dtype": "Byte", "In msg nelems": size, "Out msg nelems": size,
                "Group size": 2, "Process Group Name": f"pp {source}-{target}", "Process Group Description": "pp",
                "Process Group Ranks": str(sorted((source, target))), "Src Rank": source, "Dst Rank": target,
            }  # fmt: skip
            yield _Kernel(
                task, "ncclDevKernel_SendRecv", "kernel",
                _FIRST_GROUP_STREAM + 500 + 2 * (target if is_send else source) + is_send, start,
                int(records.end_ps[task]), f"c10d::{name}", int(graph.labels.phase[task]), "",
                self._message_launch(task) if is_send else -1, args, True, is_send,
            )  # fmt: skip

    def _message_launch(self, task: int) -> int:
        """Return the launch that a message, or the join before it, waits for."""
        for each in (task, *map(int, self._graph.predecessors(task))):
            if (launch := self._launch_of(each)) >= 0:
                return launch
        return -1

    def _launch_times(self, kernels: list[_Kernel]) -> list[_CpuTime | None]:
        """Return the CPU time of each kernel's launch; None for a receive, which the simulation does not launch.

        The simulation leaves out launches that delay nothing and adds their time to the next one. They share its
        interval in equal parts, but end before their kernels begin. After the last launch, they take a nanosecond
        each.
        """
        records = self._records
        times: list[_CpuTime | None] = [None] * len(kernels)
        waiting: list[int] = []
        before_ps = 0
        for place, kernel in enumerate(kernels):
            if not kernel.has_launch:
                continue
            waiting.append(place)
            if kernel.launch < 0:
                continue
            begin_ps, end_ps = int(records.start_ps[kernel.launch]), int(records.end_ps[kernel.launch])
            for number, other in enumerate(waiting, 1):
                share_ps = begin_ps + (end_ps - begin_ps) * (number - 1) // len(waiting)
                last_ps = begin_ps + (end_ps - begin_ps) * number // len(waiting)
                if other != place:
                    last_ps = min(last_ps, kernels[other].start_ps)
                time = _launched(max(before_ps, min(share_ps, last_ps - _PS_PER_NS)), last_ps)
                times[other], before_ps = time, time.end_ps
            waiting = []
        for other in waiting:
            time = _launched(before_ps, min(before_ps + _PS_PER_NS, kernels[other].start_ps))
            times[other], before_ps = time, time.end_ps
        return times

    def _optimizer_annotation(self, kernels: list[_Kernel], times: list[_CpuTime | None]) -> Iterator[Event]:
        """Yield the annotation around the calls of each optimizer's step."""
        spans: list[list[int]] = []
        is_before = False
        for kernel, time in zip(kernels, times, strict=True):
            is_optimizer = kernel.phase == Phase.OPTIMIZER
            if is_optimizer and time is not None:
                if not is_before:
                    spans.append([time.start_ps, time.end_ps])
                spans[-1][1] = max(spans[-1][1], time.end_ps)
            is_before = is_optimizer
        for start, end in spans:
            yield _complete("Optimizer.step#trine", "user_annotation", start, end + 1, 0, _MAIN_THREAD, {})

    def _copies(self, rank: int) -> Iterator[Event]:
        graph, records = self._graph, self._records
        mine = self._is_copy & ((graph.rank == rank) | (graph.peer == rank))
        for task in np.flatnonzero(mine).tolist():
            args = {"device": 0, "stream": _COPY_STREAM, "bytes": int(graph.size_bytes[task])}
            yield _complete(
                "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", int(records.start_ps[task]),
                int(records.end_ps[task]), 0, _COPY_STREAM, args,
            )  # fmt: skip

    def _host_waits(self, rank: int) -> Iterator[Event]:
        """Yield a synchronisation where the launching thread waits for the GPU."""
        graph, records = self._graph, self._records
        mine = np.flatnonzero(self._is_launch & (graph.rank == rank))
        before_ps = 0
        for task in mine[np.argsort(records.start_ps[mine], kind="stable")].tolist():
            start_ps = int(records.start_ps[task])
            releasing = [int(each) for each in graph.predecessors(task) if not self._is_launch[each]]
            if start_ps > before_ps and any(records.end_ps[each] == start_ps for each in releasing):
                yield _complete("cudaStreamSynchronize", "cuda_runtime", before_ps, start_ps, rank, _MAIN_THREAD, {})
            before_ps = int(records.end_ps[task])


def _launched(start_ps: int, end_ps: int) -> _CpuTime:
    return _CpuTime(start_ps, max(start_ps, end_ps))


def _number_groups(run: TaskRun) -> dict[tuple[int, ...], int]:
    """Return the number of each process group of two ranks or more, in order of appearance."""
    groups: dict[tuple[int, ...], int] = {}
    for label in run.graph.collectives:
        if len(label.ranks) > 1:
            groups.setdefault(label.ranks, len(groups))
    return groups


def _sequence_numbers(run: TaskRun, groups: Mapping[tuple[int, ...], int]) -> list[int]:
    """Return the number of each collective within its process group, from 0; -1 for a group of one rank."""
    counts = dict.fromkeys(groups.values(), 0)
    numbers = []
    for label in run.graph.collectives:
        group = groups.get(label.ranks, -1)
        numbers.append(counts.get(group, -1))
        if group >= 0:
            counts[group] += 1
    return numbers


def _elements(kind: str, size_bytes: int, num_ranks: int, sent: int, received: int) -> Event:
    """Return the elements of one byte that a rank passes in and gets out."""
    if kind == "all_gather":
        return {"In msg nelems": size_bytes // num_ranks, "Out msg nelems": size_bytes}
    if kind == "reduce_scatter":
        return {"In msg nelems": size_bytes, "Out msg nelems": size_bytes // num_ranks}
    if kind == "all_to_all":
        return {"In msg nelems": sent, "Out msg nelems": received}
    return {"In msg nelems": size_bytes, "Out msg nelems": size_bytes}


def _kernel_events(kernel: _Kernel, time: _CpuTime | None, number: int, rank: int) -> Iterator[Event]:
    """Yield the kernel, its launch, and the calls around the launch."""
    args = {"device": 0, "stream": kernel.stream, "External id": number, "correlation": number, **kernel.args}
    yield _complete(kernel.name, kernel.category, kernel.start_ps, kernel.end_ps, 0, kernel.stream, args)
    if time is None:
        return
    is_backward = kernel.phase in (Phase.BACKWARD, Phase.RECOMPUTE)
    thread = _BACKWARD_THREAD if is_backward else _MAIN_THREAD
    call_args: Event = {"External id": number}
    if kernel.layer:
        call_args["Module Hierarchy"] = kernel.layer
    span = (time.start_ps, time.end_ps)
    if is_backward and not kernel.is_collective:
        yield _complete(_AUTOGRAD + kernel.call, "cpu_op", *span, rank, thread, {})
    yield _complete(kernel.call, "cpu_op", *span, rank, thread, call_args)
    if kernel.is_collective:
        yield _complete("record_param_comms", "cpu_op", *span, rank, thread, {**call_args, **kernel.args})
    for _ in range(kernel.event_waits):
        yield _complete("cudaStreamWaitEvent", "cuda_runtime", span[0], span[0], rank, thread, {})
    launch = {"External id": number, "correlation": number}
    yield _complete("cudaLaunchKernel", "cuda_runtime", *span, rank, thread, launch)


def _complete(name: str, category: str, start_ps: int, end_ps: int, pid: int, tid: int, args: Event) -> Event:
    """Return a complete event; times in microseconds, exact to the picosecond in the first 1,000 s of a run."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_ps / PS_PER_US,
        "dur": (end_ps - start_ps) / PS_PER_US, "args": args,
    }  # fmt: skip
