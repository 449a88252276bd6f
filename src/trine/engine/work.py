"""The tasks of a graph in the form of the compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trine.common._records import for_kernel, new_records
from trine.engine import _state
from trine.engine._state import (
    TaskTables,
)
from trine.engine._tasks import prepare
from trine.graph.taskgraph import TaskGraph


def new_work(graph: TaskGraph, num_arrivals: int) -> tuple[TaskTables, int]:
    """Return (all tasks, without streams, with room for ``num_arrivals`` concurrent messages; number of ready ones)."""
    raw = np.empty((graph.num_tasks + 1) * _state.TASK.itemsize, np.uint8)
    first = -raw.ctypes.data % _state.TASK.itemsize  # a record is one cache line
    nothing = np.zeros(0, np.int32)
    work = TaskTables(
        tasks=raw[first : first + graph.num_tasks * _state.TASK.itemsize].view(_state.TASK),
        successors=np.empty(len(graph.predecessor_idx), np.int32),
        ready=np.empty(graph.num_tasks, np.int32),
        arrived=np.empty(num_arrivals, np.int32),
        streams=new_records(0, _state.STREAM),
        slowdown_ppm=nothing,
        slowdown_stream=nothing,
        changed_streams=nothing,
    )
    columns = (
        plain(graph.kind, np.int8),
        plain(graph.stream, np.int32),
        plain(graph.duration_ps, np.int64),
        plain(graph.size_bytes, np.int64),
        plain(graph.route, np.int32),
        plain(graph.num_required, np.int32),
    )
    predecessors = plain(graph.predecessor_ptr, np.int64), plain(graph.predecessor_idx, np.int32)
    last_in_stream = np.full(len(graph.stream_names), -1, np.int32)
    return work, int(prepare(columns, *predecessors, last_in_stream, for_kernel(work)))


def plain(array: npt.NDArray[np.integer], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return ``array`` in the form the kernels are compiled for; any other form would trigger a recompilation."""
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])
