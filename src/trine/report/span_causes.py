"""The span that released each span of a timeline, and the spans of the critical path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.graph.taskgraph import COMPUTE, Records, TaskGraph
from trine.report.run_spans import Spans


def span_of_tasks(graph: TaskGraph, records: Records, spans: Spans, shown_row: Int64) -> Int64:
    """Return a span that shows each task, -1: none: int64[tasks].

    A transfer of a collective is in its rank's span. shown_row: int64[rows], the row that is shown for each row; the
    tasks of a rank that is left out are shown by those of its class that do the same at the same time.
    """
    span_of = np.full(graph.num_tasks, -1, np.int64)
    span_of[spans.task[::-1]] = np.arange(len(spans.task))[::-1]
    _add_transfers(graph, spans, span_of)
    _add_alike(graph, records, spans, shown_row, span_of)
    return span_of


def _add_transfers(graph: TaskGraph, spans: Spans, span_of: Int64) -> None:
    """Add the further transfers of each collective: those that its ranks send, then those that they receive."""
    collective = graph.labels.collective.astype(np.int64)
    inside = np.flatnonzero(collective[spans.task] >= 0)
    num_rows = max(1, len(graph.rank_names))
    keys = collective[spans.task[inside]] * num_rows + spans.row[inside]
    moves = np.flatnonzero((graph.kind != COMPUTE) & (collective >= 0) & (graph.rank >= 0))
    for end in (graph.rank, graph.peer):
        left = moves[span_of[moves] < 0]
        wanted = collective[left] * num_rows + np.maximum(end[left], 0)
        span_of[left] = _look_up(keys, inside, wanted)


def _add_alike(graph: TaskGraph, records: Records, spans: Spans, shown_row: Int64, span_of: Int64) -> None:
    """Add the tasks of ranks that are left out: by the shown row, the start and the operator."""
    _, start = np.unique(records.start_ps, return_inverse=True)
    num_operators = len(graph.operator_names) + 1

    def key(row: Int64, task: Int64) -> Int64:
        operator = graph.labels.operator[task].astype(np.int64) + 1
        found: Int64 = (row * graph.num_tasks + start[task]) * num_operators + operator
        return found

    hidden = np.flatnonzero((span_of < 0) & (graph.rank >= 0))
    wanted = key(shown_row[graph.rank[hidden]], hidden)
    span_of[hidden] = _look_up(key(spans.row, spans.task), np.arange(len(spans.task)), wanted)


def _look_up(keys: Int64, values: Int64, wanted: Int64) -> Int64:
    """Return the value of the first equal key for each wanted one, -1: none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found: Int64 = np.where(keys[order[place]] == wanted, values[order[place]], -1)
    return found


def span_causes(spans: Spans, span_of: Int64, task_cause: Int64) -> npt.NDArray[np.int32]:
    """Return the span that released each span, -1: none. Causes without a span are followed back in time."""
    # The nearest task with a span, from each task back: each round doubles the length of the way.
    nearest = np.where(span_of >= 0, np.arange(len(span_of)), task_cause)
    nearest = np.append(nearest, -1)  # -1, no task, stays
    for _ in range(len(span_of).bit_length()):
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            break
        nearest = further
    cause = nearest[task_cause[spans.task]]
    found = np.where(cause >= 0, span_of[cause], -1)
    found[found == np.arange(len(found))] = -1
    return found.astype(np.int32)


def critical_spans(spans: Spans, span_of: Int64, on_path: Bool) -> npt.NDArray[np.uint8]:
    """Return which spans have a task of the critical path."""
    critical = np.zeros(len(spans.task), np.uint8)
    of_path = span_of[on_path]
    critical[of_path[of_path >= 0]] = 1
    return critical
