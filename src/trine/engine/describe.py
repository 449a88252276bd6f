"""Task names and deadlock explanations for error messages."""

from __future__ import annotations

import numpy as np

from trine.common.arrays import Int64
from trine.errors import DeadlockError, SimulationError
from trine.graph.taskgraph import COMPUTE, KIND_NAMES, TRANSFER, TaskGraph

SHOWN = 12


def describe_task(graph: TaskGraph, task: int) -> str:
    """Return a task's description, such as ``compute 'conv1' (task 7, rank gpu0, stream compute)``."""
    kind = int(graph.kind[task])
    kind_name = KIND_NAMES[kind] if 0 <= kind < len(KIND_NAMES) else f"kind {kind}"
    name = task_name(graph, task)
    where = [f"task {task}"] if name else []
    rank = int(graph.rank[task])
    if kind == TRANSFER:
        where.append(f"{rank_name(graph, rank)} to {rank_name(graph, int(graph.peer[task]))}")
    elif rank >= 0:
        where.append(rank_name(graph, rank))
    stream = int(graph.stream[task])
    if kind == COMPUTE and 0 <= stream < len(graph.stream_names):
        where.append(f"stream {graph.stream_names[stream]}")
    label = f"{kind_name} {name!r}" if name else f"{kind_name} task {task}"
    return f"{label} ({', '.join(where)})" if where else label


def task_name(graph: TaskGraph, task: int) -> str:
    """Return the name of a task, else of its operator or collective, else an empty string."""
    if graph.task_names and graph.task_names[task]:
        return graph.task_names[task]
    operator = int(graph.labels.operator[task])
    if 0 <= operator < len(graph.operator_names):
        return graph.operator_names[operator]
    collective = int(graph.labels.collective[task])
    if 0 <= collective < len(graph.collectives):
        return f"{graph.collectives[collective].kind} {collective}"
    return ""


def faster_than_full(graph: TaskGraph, stream: int, now_ps: int) -> SimulationError:
    """Return the error for a stream that regains more speed than slowdowns took from it."""
    name = f"stream {stream} ({graph.stream_names[stream]}, {rank_name(graph, graph.stream_ranks[stream])})"
    return SimulationError(f"{name} has been given back more speed than it had lost, at {now_ps} ps")


def rank_name(graph: TaskGraph, rank: int) -> str:
    """Return the name of a rank, or ``rank 3`` for an unnamed one."""
    return graph.rank_names[rank] if 0 <= rank < len(graph.rank_names) else f"rank {rank}"


def deadlock(graph: TaskGraph, end_ps: Int64, ready_ps: Int64) -> DeadlockError:
    """Explain a deadlock; ``end_ps`` and ``ready_ps`` are -1 for tasks that did not end or become ready.

    An unfinished task waits for an unfinished predecessor or for the task before it in its stream. Following these
    links from any unfinished task must therefore reach a cycle, which the error names.
    """
    unfinished = np.flatnonzero(end_ps < 0)
    previous = _previous_in_stream(graph)
    path: list[int] = []
    reasons: list[str] = []
    position: dict[int, int] = {}
    task = int(unfinished[0])
    while task not in position:
        position[task] = len(path)
        path.append(task)
        task, reason = _blocker(graph, task, end_ps, ready_ps, previous)
        if task < 0:
            return DeadlockError(f"{len(unfinished)} tasks never ran; {describe_task(graph, path[-1])} {reason}")
        reasons.append(reason)
    cycle = range(position[task], len(path))
    lines = [f"{describe_task(graph, path[i])} {reasons[i]}" for i in cycle[:SHOWN]]
    if len(cycle) > SHOWN:
        lines.append(f"... ({len(cycle) - SHOWN} more tasks) ...")
    lines.append(f"{describe_task(graph, task)}, which closes the cycle")
    listing = "\n  ".join(lines)
    return DeadlockError(f"{len(unfinished)} of {graph.num_tasks} tasks wait for each other for ever:\n  {listing}")


def _blocker(graph: TaskGraph, task: int, end_ps: Int64, ready_ps: Int64, previous: Int64) -> tuple[int, str]:
    """Return the unfinished task that blocks ``task`` (-1: no such task), and the reason as text."""
    if ready_ps[task] < 0:
        predecessors = graph.predecessors(task)
        waiting = predecessors[end_ps[predecessors] < 0]
        if len(waiting):
            need = int(graph.num_required[task])
            needed = "" if need == len(predecessors) else f" ({need} of {len(predecessors)} needed)"
            return int(waiting[0]), f"waits for its predecessor{needed}:"
    elif previous[task] >= 0 and end_ps[previous[task]] < 0:
        return int(previous[task]), "is ready but waits for the task before it in its stream:"
    return -1, "was given no rate by the network"


def _previous_in_stream(graph: TaskGraph) -> Int64:
    """Return the previous compute task of the same stream, or -1: int64[tasks]."""
    previous = np.full(graph.num_tasks, -1, np.int64)
    queued = np.flatnonzero((graph.kind == COMPUTE) & (graph.stream >= 0))
    order = queued[np.argsort(graph.stream[queued], kind="stable")]
    is_same_stream = graph.stream[order[1:]] == graph.stream[order[:-1]]
    previous[order[1:][is_same_stream]] = order[:-1][is_same_stream]
    return previous
