"""Assertions that the conformance checks share."""

from __future__ import annotations

from trine.graph.taskgraph import Records, TaskGraph


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with ``message`` unless ``condition`` holds; unlike ``assert``, python -O keeps it."""
    if not condition:
        raise AssertionError(message)


def require_order(graph: TaskGraph, records: Records, task: int, where: str) -> None:
    """Raise AssertionError if a task starts before its predecessors have ended."""
    require(
        records.start_ps[task] >= records.end_ps[graph.predecessors(task)].max(initial=0),
        f"{where}: task {task} starts before its dependencies have ended",
    )
