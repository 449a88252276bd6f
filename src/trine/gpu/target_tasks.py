"""The tasks of one rank, cut out of a graph of all ranks: what they wait for elsewhere is there as times of a record.

A task elsewhere becomes one that takes from the start of the run until it ended there. So the rank's own tasks become
ready when they did (docs/design/replay.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trine.arrays import Bool, Int32, Int64, members, pointers, row_sums
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
from trine.units import format_time


class _Edges(NamedTuple):
    """What own tasks wait for: int64[edges] each."""

    task: Int64
    before: Int64


def own_tasks(graph: TaskGraph, fabric: GpuFabric, target: int, field: str) -> Bool:
    """bool[tasks]: computes and joins of rank ``target``, and transfers that leave its GPU.

    Raises InputError: a transfer between others leads through that GPU; names it and ``field``.
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
        what = describe_task(graph, int(wrong.argmax()))
        raise InputError(f"{what} goes through rank {target}: that is not recorded", field=field)
    return np.asarray(np.where(graph.kind == TRANSFER, sends & first[graph.route], graph.rank == target))


def _edges(graph: TaskGraph, own: Bool) -> _Edges:
    tasks = np.flatnonzero(own)
    entries, pointers = members(graph.predecessor_ptr, tasks)
    return _Edges(np.repeat(tasks, np.diff(pointers)), graph.predecessor_idx[entries].astype(np.int64))


def _elsewhere(graph: TaskGraph, own: Bool, before: Int64) -> Bool:
    """Of what own tasks wait for: whether its end is that of the record; so is that of what the own GPU sends."""
    return np.asarray(~own[before] | (graph.kind[before] == TRANSFER))


# Recording

_ORDER = "in an unknown order; let launches and transfers take time"


def with_task_ends(arrivals: Arrivals, system: GpuSystem, records: Records) -> Arrivals:
    """A record, with the ends of the tasks elsewhere for which tasks of its rank waited, and of what the rank sent.

    system: what was simulated.

    Raises InputError: two things of one instant whose order the times of a record do not say; names the tasks.
    """
    graph = system.graph
    own = own_tasks(graph, system.fabric, arrivals.target, "record")
    edges = _edges(graph, own)
    # of a join that needs k of n the others may end later
    waited = _elsewhere(graph, own, edges.before) & (records.end_ps[edges.before] <= records.ready_ps[edges.task])
    _refuse_ties(system, records, own, _Edges(edges.task[waited], edges.before[waited]))
    ended = np.unique(np.concatenate([edges.before[waited], np.flatnonzero(own & (graph.kind == TRANSFER))]))
    return replace(arrivals, task=ended.astype(np.int32), task_end_ps=records.end_ps[ended])


def _refuse_ties(system: GpuSystem, records: Records, own: Bool, edges: _Edges) -> None:
    """A record has the instant at which a task ended, not what had happened before at that instant.

    That decides where what follows takes no time and meets its like: kernels come to the queue of their GPU, packets of
    transfers to their first lane.
    """
    graph, kernel = system.graph, system.task_kernel
    begins = own[edges.task] & (records.end_ps[edges.before] == records.ready_ps[edges.task])
    before = edges.before[begins]
    # these end among the first events of their instant, in the order of their numbers, in a replay too
    by_number = (graph.kind == COMPUTE) & (kernel < 0) & (graph.duration_ps > 0)
    if system.model.launch_ps == 0:
        kernels = np.flatnonzero(own & (kernel >= 0))
        for now_ps in np.unique(records.end_ps[before[~by_number[before]]]).tolist():
            _refuse_queue(graph, kernels[records.start_ps[kernels] == now_ps], records, edges, now_ps)
    by_number |= (graph.kind == TRANSFER) & (records.end_ps > records.start_ps)
    late_ps = records.end_ps[before[~by_number[before]]]
    sent = np.flatnonzero(own & (graph.kind == TRANSFER))
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
    """Kernels that start at an instant, unless all wait for the one task elsewhere that ends at it."""
    ended = records.end_ps[edges.before] == now_ps
    alone = len(np.unique(edges.before[ended])) == 1 and np.isin(starting, edges.task[ended]).all()
    if len(starting) > 1 and not alone:
        _refuse_tie(graph, starting[:2].tolist(), now_ps)


def _refuse_tie(graph: TaskGraph, tasks: list[int], now_ps: int) -> None:
    one, other = (describe_task(graph, task) for task in tasks)
    raise InputError(
        f"{one} and {other} begin at one instant ({format_time(now_ps)}), when a task of another rank ends: {_ORDER}",
        field="record",
    )


# Replaying


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTasks:
    """tasks: what is simulated: own tasks, and for each end that a record says a task that lasts so long.

    own: the own tasks alone, in the order of the graph of all ranks; rows: int64[own tasks], where they are in
    ``tasks``. sent: int64[sent], which of them are transfers, of which the first link is crossed; sent_end_ps: when
    each ended in the record.
    """

    tasks: KernelTasks
    own: TaskGraph
    rows: Int64
    sent: Int64
    sent_end_ps: Int64

    def outcome(self, found: GpuOutcome) -> GpuOutcome:
        """What happened, a row an own task. Raises InputError: a transfer ended in the record before it has left."""
        records = found.records
        ready_ps, start_ps, end_ps = (each[self.rows] for each in (records.ready_ps, records.start_ps, records.end_ps))
        left_ps = end_ps[self.sent]
        if (early := left_ps > self.sent_end_ps).any():
            number = int(early.argmax())
            what = describe_task(self.own, int(self.sent[number]))
            raise InputError(
                f"{what} ends at {self.sent_end_ps[number]} ps, before it left at {left_ps[number]} ps: the record is "
                "of another program or model",
                field="outside",
            )
        over = found.finished | ((left_ps >= 0) & (self.sent_end_ps <= found.gpu.end_ps))
        end_ps[self.sent] = np.where(over, self.sent_end_ps, -1)
        return found._replace(records=replace(records, ready_ps=ready_ps, start_ps=start_ps, end_ps=end_ps))


def target_tasks(
    tasks: KernelTasks, kernel_rank: Int32, fabric: GpuFabric, target: int, record: Arrivals | None
) -> TargetTasks:
    """The tasks of rank ``target``. kernel_rank: of the program of all ranks. record: None: there is none.

    Raises InputError: tasks wait for others elsewhere, or the GPU sends, and no record says when those ended.
    """
    graph = tasks.graph
    own = own_tasks(graph, fabric, target, "graph")
    edges, sent = _edges(graph, own), np.flatnonzero(own & (graph.kind == TRANSFER))
    elsewhere = _elsewhere(graph, own, edges.before)
    ended = np.zeros(0, np.int64) if record is None else record.task.astype(np.int64)
    known = ~elsewhere | np.isin(edges.before, ended)
    _check_ends(graph, own, edges, known, np.setdiff1d(sent, ended), record)
    edges, elsewhere = _Edges(edges.task[known], edges.before[known]), elsewhere[known]
    # a row for each own task, and for each end; that of what the GPU sends is behind what it sends
    wanted = np.unique(edges.before[elsewhere])
    is_end = np.arange(np.count_nonzero(own) + len(wanted)) >= np.count_nonzero(own)
    task = np.concatenate([np.flatnonzero(own), wanted])
    order = np.lexsort((is_end, task))
    task, is_end = task[order], is_end[order]
    row, row_of_end = np.zeros(graph.num_tasks, np.int64), np.zeros(graph.num_tasks, np.int64)
    rows, rows_of_ends = np.flatnonzero(~is_end), np.flatnonzero(is_end)
    row[task[rows]], row_of_end[task[rows_of_ends]] = rows, rows_of_ends
    end_ps = np.zeros(graph.num_tasks, np.int64)
    if record is not None:
        end_ps[ended] = record.task_end_ps
    number = np.full(len(kernel_rank) + 1, -1, np.int32)
    number[np.flatnonzero(kernel_rank == target)] = np.arange(np.count_nonzero(kernel_rank == target))
    alone = take_alone(graph, task[rows])
    simulated = _with_ends(graph, task, is_end, end_ps)
    before = np.where(elsewhere, row_of_end[edges.before], row[edges.before])
    ptr = pointers(np.bincount(row[edges.task], minlength=len(task)))
    simulated = replace(simulated, predecessor_ptr=ptr, predecessor_idx=before.astype(np.int32))
    carried = np.where(is_end, -1, number[tasks.task_kernel[task]]).astype(np.int32)
    return TargetTasks(
        tasks=KernelTasks(simulated, carried), own=alone, rows=rows, sent=np.searchsorted(task[rows], sent),
        sent_end_ps=end_ps[sent],
    )  # fmt: skip


def _check_ends(
    graph: TaskGraph, own: Bool, edges: _Edges, known: Bool, unsent: Int64, record: Arrivals | None
) -> None:
    """Raise InputError for the first own task whose predecessors did not end enough, or that did not."""
    if record is not None and record.task.max(initial=-1) >= graph.num_tasks:
        raise InputError(f"the record has task {record.task.max()} of {graph.num_tasks}: {_OTHER}", field="outside")
    short = graph.num_required > np.bincount(edges.task[known], minlength=graph.num_tasks)
    wrong = np.concatenate([np.flatnonzero(own & short), unsent])
    if not len(wrong):
        return
    what = describe_task(graph, int(wrong[0]))
    missing = edges.before[(edges.task == wrong[0]) & ~known]
    told = f"{what} waits for {describe_task(graph, int(missing[0]))}" if len(missing) else f"{what} sends"
    why = "replaying that needs the record of a run" if record is None else f"the record has not its end: {_OTHER}"
    raise InputError(f"{told}: {why}", field="graph" if record is None else "outside")


_OTHER = "it is of another graph of tasks"


def _with_ends(graph: TaskGraph, task: Int64, is_end: Bool, end_ps: Int64) -> TaskGraph:
    """Rows without edges; an end is a compute task. Of routes the first link: what is behind it is not there."""
    found = take_alone(graph, task)
    linked = np.diff(graph.route_ptr) > 0
    first = graph.route_links[graph.route_ptr[:-1][linked]]
    latency_ps = software_latency_ps(graph).copy()
    if graph.link_latency_ps is not None:
        latency_ps[linked] += graph.link_latency_ps[first]
    return replace(
        found,
        kind=np.where(is_end, COMPUTE, found.kind).astype(np.int8),
        peer=np.where(is_end, -1, found.peer).astype(np.int32),
        stream=np.where(is_end, -1, found.stream).astype(np.int32),
        duration_ps=np.where(is_end, end_ps[task], found.duration_ps),
        size_bytes=np.where(is_end, 0, found.size_bytes),
        route=np.where(is_end, -1, found.route).astype(np.int32),
        num_required=np.where(is_end, 0, found.num_required).astype(np.int32),
        route_ptr=pointers(linked),
        route_links=first,
        route_latency_ps=latency_ps,
        route_counts=None,
    )
