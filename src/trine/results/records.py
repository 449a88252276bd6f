"""The flat record table: one row per task, one column per fact. Every export is a view of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.graph.taskgraph import COMPUTE, JOIN, KIND_NAMES, Records, TaskGraph
from trine.results.activity import PHASE_NAMES, input_copies, offloads
from trine.results.ends import Ends
from trine.results.record_table import Column, RecordTable
from trine.results.waits import REASONS

#: Columns in order. Text columns hold codes; ``RecordTable.categories`` has their texts (-1: empty).
COLUMNS = (
    "task", "name", "kind", "rank", "peer", "stream", "phase", "layer", "operator", "collective", "stage", "microbatch",
    "step", "ready_ps", "start_ps", "end_ps", "size_bytes", "wait_reason",
)  # fmt: skip


def record_table(
    graph: TaskGraph, records: Records, reasons: npt.NDArray[np.int8], ends: Ends | None = None
) -> RecordTable:
    """Return a run's table. reasons: from :func:`trine.results.waits.wait_reasons`; ends: the tasks' actual ranks.

    ``rank`` and ``peer`` are numbers; ``stream`` is the stream of a compute task; ``collective`` the number of the
    collective operation.
    """
    labels = graph.labels
    names, categories = task_names(graph)
    columns: dict[str, Column] = {
        "task": np.arange(graph.num_tasks),
        "name": names,
        "kind": graph.kind,
        "rank": graph.rank,
        "peer": graph.peer,
        "stream": graph.stream,
        "phase": labels.phase,
        "layer": labels.layer,
        "operator": labels.operator,
        "collective": labels.collective,
        "stage": labels.stage,
        "microbatch": labels.microbatch,
        "step": labels.step,
        "ready_ps": records.ready_ps,
        "start_ps": records.start_ps,
        "end_ps": records.end_ps,
        "size_bytes": graph.size_bytes,
        "wait_reason": reasons,
    }
    words = {
        "name": categories,
        "kind": KIND_NAMES,
        "stream": graph.stream_names,
        "phase": PHASE_NAMES,
        "layer": graph.layer_names,
        "operator": graph.operator_names,
        "wait_reason": REASONS,
    }
    if ends is not None:
        columns |= {"rank": ends.rank, "peer": ends.peer}
        columns = {name: column[~ends.is_copy] for name, column in columns.items()}
        columns["task"] = np.arange(len(columns["task"]))
    return RecordTable(columns, words)


def task_names(graph: TaskGraph) -> tuple[Column, tuple[str, ...]]:
    """Return a name for each task as codes and words: int64[tasks] and the words.

    The task's name if the graph has names; otherwise its operator, its collective's kind, or "compute", "transfer",
    "input copy", "offload" or "join".
    """
    if graph.task_names:
        return np.arange(graph.num_tasks), graph.task_names
    kinds = tuple(dict.fromkeys(label.kind for label in graph.collectives))
    basic = (*KIND_NAMES, "input copy", "offload")
    words = (*basic, *kinds, *graph.operator_names)
    kind_code = np.array([len(basic) + kinds.index(label.kind) for label in graph.collectives] + [-1], np.int64)
    names = graph.kind.astype(np.int64)
    names[input_copies(graph)] = basic.index("input copy")
    names[offloads(graph)] = basic.index("offload")
    in_collective = (graph.labels.collective >= 0) & (graph.kind != COMPUTE)
    names[in_collective] = kind_code[graph.labels.collective[in_collective]]
    in_operator = (graph.labels.operator >= 0) & (graph.kind != JOIN) & ~in_collective
    names[in_operator] = len(basic) + len(kinds) + graph.labels.operator[in_operator]
    return names, words
