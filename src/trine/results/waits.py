"""Reasons for the start times of tasks: their releasing tasks, the waits of each rank, and the critical path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64, row_of
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, Records, TaskGraph
from trine.results.activity import Activity, Window, communicating, computing, input_copies, launches, offloads
from trine.results.intervals import Intervals, first_at, sum_by_group

#: Reasons for a task's wait. ``start``: it could start with the run; ``stream``: its own stream was busy; ``network``:
#: the network started it after it was ready; the others: a predecessor of that kind.
REASONS = ("start", "compute", "communication", "input copy", "launch", "stream", "network", "offload")
START, COMPUTATION, COMMUNICATION, INPUT_COPY, LAUNCH, STREAM, NETWORK, OFFLOAD = range(len(REASONS))

#: Reasons for a rank's time without computation; ``end``: nothing more to compute in this step.
RANK_REASONS = (*REASONS, "end")


def releasers(graph: TaskGraph, records: Records) -> Int64:
    """Return each task's releasing predecessor, or -1: int64[tasks].

    It is the first of the predecessors that ended at the instant at which the task became ready.
    """
    owner = row_of(graph.predecessor_ptr)
    hit = np.flatnonzero(records.end_ps[graph.predecessor_idx] == records.ready_ps[owner])[::-1]
    released_by = np.full(graph.num_tasks, -1, np.int64)
    released_by[owner[hit]] = graph.predecessor_idx[hit]  # last write wins: the first predecessor stays
    return released_by


def through_joins(graph: TaskGraph, released_by: Int64) -> Int64:
    """Replace each releasing join by the compute or transfer task that released it in turn: int64[tasks]."""
    releaser = released_by.copy()
    pending = np.flatnonzero((releaser >= 0) & (graph.kind[releaser] == JOIN))
    while len(pending):
        releaser[pending] = released_by[releaser[pending]]
        pending = pending[(releaser[pending] >= 0) & (graph.kind[releaser[pending]] == JOIN)]
    return releaser


def wait_reasons(graph: TaskGraph, records: Records, released_by: Int64) -> npt.NDArray[np.int8]:
    """Return each task's reason for waiting, as an index into REASONS: int8[tasks]."""
    kinds = np.full(graph.num_tasks + 1, START, np.int8)  # the last entry stands for "no predecessor", index -1
    kinds[:-1][computing(graph)] = COMPUTATION
    kinds[:-1][launches(graph)] = LAUNCH
    kinds[:-1][graph.kind == TRANSFER] = COMMUNICATION
    kinds[:-1][input_copies(graph)] = INPUT_COPY
    kinds[:-1][offloads(graph)] = OFFLOAD
    reasons = kinds[through_joins(graph, released_by)]
    late = records.start_ps > records.ready_ps
    reasons[late & (graph.kind == COMPUTE)] = STREAM
    reasons[late & (graph.kind == TRANSFER)] = NETWORK
    return reasons


def rank_waits(pauses: Intervals, compute: Activity, reasons: npt.NDArray[np.int8], num_ranks: int) -> Int64:
    """Return each rank's time without computation, by reason: int64[ranks, RANK_REASONS], ps.

    ``pauses`` are the gaps between intervals of ``compute``; each belongs to the reason of the compute task that ends
    it. A row plus the rank's compute time is the length of the window.
    """
    ender = first_at(pauses, compute.rank, compute.start_ps, compute.task)
    reason = np.append(reasons, len(RANK_REASONS) - 1)[ender]  # ender -1 takes the last entry: "end"
    cell = pauses.group * len(RANK_REASONS) + reason.astype(np.int64)
    total = sum_by_group(cell, pauses.end_ps - pauses.start_ps, num_ranks * len(RANK_REASONS))
    return total.reshape(num_ranks, len(RANK_REASONS))


def bubble_gaps(graph: TaskGraph, pauses: Intervals, active: Activity, reasons: npt.NDArray[np.int8]) -> Bool:
    """Return which idle intervals the pipeline schedule causes: bool[pauses].

    With fewer than two stages all are False. Otherwise a rank that neither computes nor communicates is in the bubble,
    from the fill at the start of the step to the drain at its end. Exceptions are intervals that end with a task
    released by a launch, an input copy or offload, or with a collective of another axis than ``pp`` (its group was
    late).
    """
    if graph.labels.stage.max(initial=-1) < 1:
        return np.zeros(len(pauses.group), np.bool_)
    ender = first_at(pauses, active.rank, active.start_ps, active.task)
    other_axis = np.array([label.axis not in ("", "pp") for label in graph.collectives] + [False])
    is_other = other_axis[graph.labels.collective]
    late = is_other[active.task]  # of tasks that start at one instant, such a collective decides, whatever its number
    collective = first_at(pauses, active.rank[late], active.start_ps[late], active.task[late])
    elsewhere = np.isin(reasons, (LAUNCH, INPUT_COPY, OFFLOAD))
    in_bubble: Bool = (ender < 0) | ~(elsewhere[ender] | (collective >= 0))
    return in_bubble


def causes(graph: TaskGraph, records: Records, released_by: Int64) -> Int64:
    """Return the task that each task waited for last, or -1: int64[tasks].

    It is the previous task on the stream if the task waited for its stream, else the predecessor that released it.
    """
    before = _previous_on_stream(graph)
    on_stream = (records.start_ps > records.ready_ps) & (before >= 0)
    cause: Int64 = np.where(on_stream, before, released_by)
    return cause


def critical_path(graph: TaskGraph, records: Records, released_by: Int64) -> list[int]:
    """Return the tasks on the critical path, last first.

    It starts at the first of the tasks that end last. Each step goes to the task's cause. The path includes joins.
    """
    if not graph.num_tasks:
        return []
    cause = causes(graph, records, released_by)
    path, task = [], int(np.argmax(records.end_ps))
    while task >= 0:
        path.append(task)
        task = int(cause[task])
    return path


def path_times(graph: TaskGraph, records: Records, path: list[int], window: Window) -> dict[str, int]:
    """Return how the window's time splits over the critical path, by kind of task.

    compute, communication, offload, input copy, launch, wait: ps, summing to the window. ``wait`` is time on the path
    that no task covers, such as a network that serves transfers in turn.
    """
    tasks = np.array(path, np.int64)
    start = np.maximum(records.start_ps[tasks], window.start_ps)
    spent = np.maximum(np.minimum(records.end_ps[tasks], window.end_ps) - start, 0)
    kinds = {
        "compute": computing(graph)[tasks],
        "communication": communicating(graph)[tasks],
        "offload": offloads(graph)[tasks],
        "input copy": input_copies(graph)[tasks],
        "launch": launches(graph)[tasks],
    }
    times = {name: int(spent[mask].sum()) for name, mask in kinds.items()}
    return {**times, "wait": window.end_ps - window.start_ps - sum(times.values())}


def _previous_on_stream(graph: TaskGraph) -> Int64:
    """Return the task before each on its stream, or -1: int64[tasks]. A stream runs its tasks in order of number."""
    order = np.argsort(graph.stream, kind="stable")
    previous = np.full(graph.num_tasks, -1, np.int64)
    is_same_stream = (graph.stream[order[1:]] == graph.stream[order[:-1]]) & (graph.stream[order[1:]] >= 0)
    previous[order[1:][is_same_stream]] = order[:-1][is_same_stream]
    return previous
