"""Names of tasks for messages."""

from __future__ import annotations

from trine.errors import SimulationError
from trine.graph.taskgraph import COMPUTE, KIND_NAMES, TRANSFER, TaskGraph


def describe_task(graph: TaskGraph, task: int) -> str:
    """Say which task this is: ``compute 'conv1' (task 7, rank gpu0, stream compute)``."""
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
    """The name of a task, or that of its operator or collective, or an empty string."""
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
    """The error of a graph whose pressure gives a stream more than it has taken."""
    name = f"stream {stream} ({graph.stream_names[stream]}, {rank_name(graph, graph.stream_ranks[stream])})"
    return SimulationError(f"{name} has been given back more speed than it had lost, at {now_ps} ps")


def rank_name(graph: TaskGraph, rank: int) -> str:
    """The name of a rank, or ``rank 3`` where it has none."""
    return graph.rank_names[rank] if 0 <= rank < len(graph.rank_names) else f"rank {rank}"
