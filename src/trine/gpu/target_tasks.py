"""The tasks of one rank, cut out of the graph of all ranks; recorded end times replace tasks on other ranks.

A remote task becomes one that lasts from the start of the run to its recorded end. So the rank's own tasks become
ready at the same times as in the recorded run (docs/design/replay.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int32, Int64, members, pointers, row_sums
from trine.common.units import format_time
from trine.engine.describe import describe_task
from trine.engine.validate import software_latency_ps
from trine.errors import InputError
from trine.gpu.fabric import GpuFabric
from trine.gpu.peers import Arrivals
from trine.gpu.program import DMA, kernels_of_rank
from trine.gpu.records import GpuOutcome
from trine.gpu.system import GpuSystem, KernelTasks
from trine.graph.assembler import take_alone
from trine.graph.taskgraph import COMPUTE, TRANSFER, Records, TaskGraph


class _Edges(NamedTuple):
    """Dependencies of own tasks on their predecessors: int64[edges] each."""

    task: Int64
    source: Int64


def own_tasks(graph: TaskGraph, fabric: GpuFabric, target: int, field: str) -> Bool:
    """Return bool[tasks], True for computes and joins of rank ``target`` and for transfers that leave its GPU.

    Raises InputError, naming the transfer and ``field``, if a transfer between other ranks passes through that GPU.
    """
    if not len(graph.route_latency_ps):
        return np.asarray((graph.rank == target) & (graph.kind != TRANSFER))
    sources, device = fabric.cluster.link_table.source, fabric.group[target]
    leaves = sources[graph.route_links] == device
    first = np.zeros(len(graph.route_latency_ps), bool)
    linked = np.flatnonzero(np.diff(graph.route_ptr))
    first[linked] = leaves[graph.route_ptr[linked]]
    through = row_sums(leaves, graph.route_ptr) > first
    sends = (graph.kind == TRANSFER) & (graph.size_bytes > 0)
    if (wrong := sends & through[graph.route]).any():
        transfer = describe_task(graph, int(wrong.argmax()))
        raise InputError(f"{transfer} goes through rank {target}: that is not recorded", field=field)
    return np.asarray(np.where(graph.kind == TRANSFER, sends & first[graph.route], graph.rank == target))


def _edges(graph: TaskGraph, is_own: Bool) -> _Edges:
    tasks = np.flatnonzero(is_own)
    entries, pointers = members(graph.predecessor_ptr, tasks)
    return _Edges(np.repeat(tasks, np.diff(pointers)), graph.predecessor_idx[entries].astype(np.int64))


def _elsewhere(graph: TaskGraph, is_own: Bool, source: Int64) -> Bool:
    """Return bool[edges]: whether the predecessor's end comes from the record, as for all transfers (own ones too)."""
    return np.asarray(~is_own[source] | (graph.kind[source] == TRANSFER))


# Recording

_ORDER = "in an unknown order; let launches and transfers take time"


def with_task_ends(arrivals: Arrivals, system: GpuSystem, records: Records) -> Arrivals:
    """Return the record with the ends of the remote tasks that its rank waited for, and of the rank's transfers.

    system: the simulated system.

    Raises InputError, naming the tasks, if two tasks start at one instant in an order that recorded times cannot tell.
    """
    graph = system.graph
    is_own = own_tasks(graph, system.fabric, arrivals.target, "record")
    edges = _edges(graph, is_own)
    # a join that needs k of n predecessors may be ready before the other n - k end
    waited = _elsewhere(graph, is_own, edges.source) & (records.end_ps[edges.source] <= records.ready_ps[edges.task])
    _refuse_ties(system, records, is_own, _Edges(edges.task[waited], edges.source[waited]))
    recorded = np.unique(np.concatenate([edges.source[waited], np.flatnonzero(is_own & (graph.kind == TRANSFER))]))
    return replace(arrivals, task=recorded.astype(np.int32), task_end_ps=records.end_ps[recorded])


def _refuse_ties(system: GpuSystem, records: Records, is_own: Bool, edges: _Edges) -> None:
    """Refuse tasks that start at one instant in an order that the recorded end times do not determine.

    The order matters if their launch or software latency is 0 and they share a resource: kernels the queue of their
    GPU, packets of transfers their first lane.
    """
    graph, kernel = system.graph, system.task_kernel
    begins = is_own[edges.task] & (records.end_ps[edges.source] == records.ready_ps[edges.task])
    source = edges.source[begins]
    # these end among the first events of their instant, in the order of their numbers; a replay keeps that order
    by_number = (graph.kind == COMPUTE) & (kernel < 0) & (graph.duration_ps > 0)
    if system.model.launch_ps == 0:
        kernels = np.flatnonzero(is_own & (kernel >= 0))
        for now_ps in np.unique(records.end_ps[source[~by_number[source]]]).tolist():
            _refuse_queue(graph, kernels[records.start_ps[kernels] == now_ps], records, edges, now_ps)
    by_number |= (graph.kind == TRANSFER) & (records.end_ps > records.start_ps)
    late_ps = records.end_ps[source[~by_number[source]]]
    sent = np.flatnonzero(is_own & (graph.kind == TRANSFER))
    at_once = sent[software_latency_ps(graph)[graph.route[sent]] == 0] if len(sent) else sent
    link = graph.route_links[graph.route_ptr[graph.route[sent]]]
    for task in at_once[np.isin(records.ready_ps[at_once], late_ps)].tolist():
        now_ps = records.ready_ps[task]
        beside = (link == link[sent == task]) & (sent > task)
        beside &= (records.ready_ps[sent] <= now_ps) & (now_ps <= records.end_ps[sent])
        if beside.any():
            _refuse_tie(graph, [task, int(sent[beside][0])], int(now_ps))
        if (kernels_of_rank(system.program, system.record).op_kind == DMA).any():
            problem = (
                f"{describe_task(graph, task)} begins when a task of another rank ends, and dmas leave by its lane"
            )
            raise InputError(f"{problem}: {_ORDER}", field="record")


def _refuse_queue(graph: TaskGraph, starting: Int64, records: Records, edges: _Edges, now_ps: int) -> None:
    """Refuse several kernels that start at ``now_ps``, unless all wait for the one remote task that ends then."""
    just_ended = records.end_ps[edges.source] == now_ps
    alone = len(np.unique(edges.source[just_ended])) == 1 and np.isin(starting, edges.task[just_ended]).all()
    if len(starting) > 1 and not alone:
        _refuse_tie(graph, starting[:2].tolist(), now_ps)


def _refuse_tie(graph: TaskGraph, tasks: list[int], now_ps: int) -> None:
    a, b = (describe_task(graph, task) for task in tasks)
    raise InputError(
        f"{a} and {b} begin at one instant ({format_time(now_ps)}), when a task of another rank ends: {_ORDER}",
        field="record",
    )


# Replaying


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTasks:
    """Tasks to simulate for one rank: ``tasks`` has its own tasks, and one that lasts until each recorded end.

    own_graph: its own tasks alone, in the order of the graph of all ranks. rows: int64[own tasks], rows in ``tasks``.
    sent: int64[sent], rows of ``own_graph`` that are transfers; they cross their first link only. sent_end_ps: their
    recorded ends.
    """

    tasks: KernelTasks
    own_graph: TaskGraph
    rows: Int64
    sent: Int64
    sent_end_ps: Int64

    def outcome(self, simulated: GpuOutcome) -> GpuOutcome:
        """Return the outcome of own tasks. Raises InputError if a transfer's recorded end precedes its departure."""
        records = simulated.records
        ready_ps, start_ps, end_ps = (each[self.rows] for each in (records.ready_ps, records.start_ps, records.end_ps))
        left_ps = end_ps[self.sent]
        if (early := left_ps > self.sent_end_ps).any():
            number = int(early.argmax())
            task = describe_task(self.own_graph, int(self.sent[number]))
            raise InputError(
                f"{task} ends at {self.sent_end_ps[number]} ps, before it left at {left_ps[number]} ps: the record is "
                "of another program or model",
                field="outside",
            )
        over = simulated.finished | ((left_ps >= 0) & (self.sent_end_ps <= simulated.gpu.end_ps))
        end_ps[self.sent] = np.where(over, self.sent_end_ps, -1)
        return simulated._replace(records=replace(records, ready_ps=ready_ps, start_ps=start_ps, end_ps=end_ps))


def target_tasks(
    tasks: KernelTasks, kernel_rank: Int32, fabric: GpuFabric, target: int, record: Arrivals | None
) -> TargetTasks:
    """Return the tasks of rank ``target``. kernel_rank: rank of each kernel in the program of all ranks.

    Raises InputError if ``record`` lacks the end of a transfer of this GPU, or of a remote task that own tasks need.
    """
    graph = tasks.graph
    is_own = own_tasks(graph, fabric, target, "graph")
    edges, sent = _edges(graph, is_own), np.flatnonzero(is_own & (graph.kind == TRANSFER))
    elsewhere = _elsewhere(graph, is_own, edges.source)
    recorded = np.zeros(0, np.int64) if record is None else record.task.astype(np.int64)
    is_known = ~elsewhere | np.isin(edges.source, recorded)
    _check_ends(graph, is_own, edges, is_known, np.setdiff1d(sent, recorded), record)
    edges, elsewhere = _Edges(edges.task[is_known], edges.source[is_known]), elsewhere[is_known]
    # one row per own task and per recorded end; the end of a transfer of this GPU follows the transfer itself
    needed = np.unique(edges.source[elsewhere])
    is_end = np.arange(np.count_nonzero(is_own) + len(needed)) >= np.count_nonzero(is_own)
    task = np.concatenate([np.flatnonzero(is_own), needed])
    order = np.lexsort((is_end, task))
    task, is_end = task[order], is_end[order]
    row, row_of_end = np.zeros(graph.num_tasks, np.int64), np.zeros(graph.num_tasks, np.int64)
    rows, rows_of_ends = np.flatnonzero(~is_end), np.flatnonzero(is_end)
    row[task[rows]], row_of_end[task[rows_of_ends]] = rows, rows_of_ends
    end_ps = np.zeros(graph.num_tasks, np.int64)
    if record is not None:
        end_ps[recorded] = record.task_end_ps
    number = np.full(len(kernel_rank) + 1, -1, np.int32)
    number[np.flatnonzero(kernel_rank == target)] = np.arange(np.count_nonzero(kernel_rank == target))
    alone = take_alone(graph, task[rows])
    simulated = _with_ends(graph, task, is_end, end_ps)
    source = np.where(elsewhere, row_of_end[edges.source], row[edges.source])
    ptr = pointers(np.bincount(row[edges.task], minlength=len(task)))
    simulated = replace(simulated, predecessor_ptr=ptr, predecessor_idx=source.astype(np.int32))
    carried = np.where(is_end, -1, number[tasks.task_kernel[task]]).astype(np.int32)
    return TargetTasks(
        tasks=KernelTasks(simulated, carried), own_graph=alone, rows=rows, sent=np.searchsorted(task[rows], sent),
        sent_end_ps=end_ps[sent],
    )  # fmt: skip


def _check_ends(
    graph: TaskGraph, is_own: Bool, edges: _Edges, is_known: Bool, unsent: Int64, record: Arrivals | None
) -> None:
    """Raise InputError for the first own task with too few recorded predecessor ends, or without its own end."""
    if record is not None and record.task.max(initial=-1) >= graph.num_tasks:
        raise InputError(f"the record has task {record.task.max()} of {graph.num_tasks}: {_OTHER}", field="outside")
    short = graph.num_required > np.bincount(edges.task[is_known], minlength=graph.num_tasks)
    wrong = np.concatenate([np.flatnonzero(is_own & short), unsent])
    if not len(wrong):
        return
    task = describe_task(graph, int(wrong[0]))
    missing = edges.source[(edges.task == wrong[0]) & ~is_known]
    problem = f"{task} waits for {describe_task(graph, int(missing[0]))}" if len(missing) else f"{task} sends"
    reason = "replaying that needs the record of a run" if record is None else f"the record has not its end: {_OTHER}"
    raise InputError(f"{problem}: {reason}", field="graph" if record is None else "outside")


_OTHER = "it is of another graph of tasks"


def _with_ends(graph: TaskGraph, task: Int64, is_end: Bool, end_ps: Int64) -> TaskGraph:
    """Return rows without edges; an end is a compute task. Routes keep their first link, the only one simulated."""
    chosen = take_alone(graph, task)
    linked = np.diff(graph.route_ptr) > 0
    first = graph.route_links[graph.route_ptr[:-1][linked]]
    latency_ps = software_latency_ps(graph).copy()
    if graph.link_latency_ps is not None:
        latency_ps[linked] += graph.link_latency_ps[first]
    return replace(
        chosen, kind=np.where(is_end, COMPUTE, chosen.kind).astype(np.int8),
        peer=np.where(is_end, -1, chosen.peer).astype(np.int32),
        stream=np.where(is_end, -1, chosen.stream).astype(np.int32),
        duration_ps=np.where(is_end, end_ps[task], chosen.duration_ps),
        size_bytes=np.where(is_end, 0, chosen.size_bytes), route=np.where(is_end, -1, chosen.route).astype(np.int32),
        num_required=np.where(is_end, 0, chosen.num_required).astype(np.int32), route_ptr=pointers(linked),
        route_links=first, route_latency_ps=latency_ps, route_counts=None,
    )  # fmt: skip
