"""The span that released each span of a timeline, and the spans of the critical path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.graph.taskgraph import COMPUTE, TaskGraph
from trine.report.run_spans import Spans
from trine.results.run import TaskRun


def span_causes(run: TaskRun, spans: Spans, task_cause: Int64) -> npt.NDArray[np.int32]:
    """Return the span that released each span, -1: none. Causes without a span are followed back in time."""
    graph = run.graph
    span_of = _span_of_tasks(graph, spans)
    cause = task_cause[spans.task]
    for _ in range(graph.num_tasks):
        hidden = (cause >= 0) & (span_of[cause] < 0)
        if not hidden.any():
            break
        cause[hidden] = task_cause[cause[hidden]]
    found = np.where(cause >= 0, span_of[cause], -1)
    found[found == np.arange(len(found))] = -1
    return found.astype(np.int32)


def _span_of_tasks(graph: TaskGraph, spans: Spans) -> Int64:
    """Return a span that shows each task, -1: none: int64[tasks]. A transfer of a collective is in its rank's span."""
    span_of = np.full(graph.num_tasks, -1, np.int64)
    places = np.arange(len(spans.task))
    span_of[spans.task[::-1]] = places[::-1]
    collective = graph.labels.collective
    in_collective = collective[spans.task] >= 0
    num_ranks = max(1, len(graph.rank_names))
    key = collective[spans.task[in_collective]].astype(np.int64) * num_ranks + spans.row[in_collective]
    order = np.argsort(key, kind="stable")
    keys, first = key[order], places[in_collective][order]
    moves = np.flatnonzero((graph.kind != COMPUTE) & (collective >= 0) & (span_of < 0) & (graph.rank >= 0))
    for end in (graph.rank, graph.peer):
        left = moves[span_of[moves] < 0]
        wanted = collective[left].astype(np.int64) * num_ranks + np.maximum(end[left], 0)
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        if len(keys):
            hit = keys[place] == wanted
            span_of[left[hit]] = first[place[hit]]
    return span_of


def critical_spans(graph: TaskGraph, spans: Spans, on_path: Bool) -> npt.NDArray[np.uint8]:
    """Return which spans have a task of the critical path."""
    critical = on_path[spans.task].astype(np.uint8)
    span_of = _span_of_tasks(graph, spans)[on_path]
    critical[span_of[span_of >= 0]] = 1
    return critical
