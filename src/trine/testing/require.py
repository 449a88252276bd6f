"""How a check says what is wrong."""

from __future__ import annotations

from trine.graph.taskgraph import Records, TaskGraph


def require(condition: bool, message: str) -> None:
    """``assert`` that python -O keeps."""
    if not condition:
        raise AssertionError(message)


def require_order(graph: TaskGraph, records: Records, task: int, where: str) -> None:
    """A task starts when what it waits for has ended, or later."""
    require(
        records.start_ps[task] >= records.end_ps[graph.predecessors(task)].max(initial=0),
        f"{where}: task {task} starts before its dependencies have ended",
    )
