"""Activity of the ranks over time, derived from a run's tasks.

Results distinguish three kinds of activity. *Computing*: compute tasks, except on streams whose name starts with
``cpu`` (the launching threads). *Communicating*: transfers between two ranks, which keep both ends busy. *Copying
inputs*: transfers with the host at one end (rank or peer -1), and transfers of the phase "input copy" outside any
collective; these are not communication of the job. Offload (copies to and from host memory, and compute on the host)
is neither computing nor communicating.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.graph.program import HOST_STREAM, LAUNCH_STREAM, Phase
from trine.graph.taskgraph import COMPUTE, TRANSFER, Records, TaskGraph

PHASE_NAMES = ("forward", "backward", "optimizer", "input copy", "recompute", "offload")


class Window(NamedTuple):
    """The part of the run that results describe: the last step, starting at the previous step's end, in ps."""

    start_ps: int
    end_ps: int
    step: int


class Activity(NamedTuple):
    """Work intervals of ranks, clipped to a window: int64 arrays of one length, in task order."""

    task: Int64
    rank: Int64
    start_ps: Int64
    end_ps: Int64


def step_ends(graph: TaskGraph, records: Records) -> Int64:
    """Return the end of each step, in ps: int64[steps]. A graph without step numbers is one step."""
    step = graph.labels.step
    num_steps = max(1, int(step.max(initial=-1)) + 1)
    ends = np.zeros(num_steps, np.int64)
    labelled = step >= 0
    np.maximum.at(ends, step[labelled], records.end_ps[labelled])
    ends[-1] = records.end_ps.max(initial=0)
    return np.maximum.accumulate(ends)


def last_step(ends: Int64) -> Window:
    """Return the window of the last step; with several steps, this is the steady state."""
    return Window(int(ends[-2]) if len(ends) > 1 else 0, int(ends[-1]), len(ends) - 1)


def in_step(graph: TaskGraph, window: Window) -> Bool:
    """Return which tasks have the window's step number; in a run of one step, all: bool[tasks]."""
    if window.step == 0:
        return np.ones(graph.num_tasks, np.bool_)
    mask: Bool = graph.labels.step == window.step
    return mask


def launches(graph: TaskGraph) -> Bool:
    """Return which tasks are launches by a CPU thread: bool[tasks]."""
    is_cpu = np.array([name.startswith(LAUNCH_STREAM) for name in graph.stream_names] + [False])
    mask: Bool = (graph.kind == COMPUTE) & is_cpu[graph.stream]
    return mask


def input_copies(graph: TaskGraph) -> Bool:
    """Return which tasks copy inputs from the host: bool[tasks]."""
    labels = graph.labels
    with_host = (graph.rank < 0) | (graph.peer < 0)
    of_phase = (labels.phase == Phase.INPUT) & (labels.collective < 0)
    mask: Bool = (graph.kind == TRANSFER) & (with_host | of_phase) & (labels.phase != Phase.OFFLOAD)
    return mask


def offloads(graph: TaskGraph) -> Bool:
    """Return which tasks copy to or from host memory for offload, or compute on the host: bool[tasks]."""
    on_host = np.array([name.startswith(HOST_STREAM) for name in graph.stream_names] + [False])[graph.stream]
    copies = (graph.kind == TRANSFER) & (graph.labels.phase == Phase.OFFLOAD)
    mask: Bool = copies | ((graph.kind == COMPUTE) & on_host)
    return mask


def computing(graph: TaskGraph) -> Bool:
    """Return which tasks occupy a GPU: bool[tasks]."""
    mask: Bool = (graph.kind == COMPUTE) & ~launches(graph) & ~offloads(graph)
    return mask


def communicating(graph: TaskGraph) -> Bool:
    """Return which tasks move bytes between two ranks: bool[tasks]."""
    mask: Bool = (graph.kind == TRANSFER) & ~input_copies(graph) & ~offloads(graph)
    return mask


def compute_activity(graph: TaskGraph, records: Records, window: Window, tasks: Bool) -> Activity:
    """Return the intervals of the given compute tasks on their ranks."""
    return _clip(np.flatnonzero(tasks), graph.rank, records, window)


def transfer_activity(graph: TaskGraph, records: Records, window: Window, tasks: Bool) -> Activity:
    """Return the intervals of the given transfers on both their ranks; a local transfer counts once."""
    transfers = np.flatnonzero(tasks)
    start, end = _times(transfers, records, window)
    lasts = end > start
    transfers, start, end = transfers[lasts], start[lasts], end[lasts]
    ranks = np.stack((graph.rank[transfers], graph.peer[transfers]), axis=1)
    keep = ranks >= 0
    keep[:, 1] &= ranks[:, 0] != ranks[:, 1]
    times = keep.sum(axis=1)
    return Activity(
        np.repeat(transfers, times), ranks[keep].astype(np.int64), np.repeat(start, times), np.repeat(end, times)
    )


def join(first: Activity, second: Activity) -> Activity:
    """Return both activities, in task order."""
    order = np.argsort(np.concatenate((first.task, second.task)), kind="stable")
    return Activity(*(np.concatenate(pair)[order] for pair in zip(first, second, strict=True)))


def _clip(tasks: Int64, ranks: npt.NDArray[np.int32], records: Records, window: Window) -> Activity:
    rank = ranks[tasks].astype(np.int64)
    start, end = _times(tasks, records, window)
    keep = (rank >= 0) & (end > start)
    return Activity(tasks[keep], rank[keep], start[keep], end[keep])


def _times(tasks: Int64, records: Records, window: Window) -> tuple[Int64, Int64]:
    """Return start and end of each task, clipped to the window."""
    start, end = records.start_ps[tasks], records.end_ps[tasks]
    return np.maximum(start, window.start_ps, out=start), np.minimum(end, window.end_ps, out=end)
