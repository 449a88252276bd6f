"""Shell of the compiled loop: makes its state, grows it, reports progress, raises.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from trine._jit import is_cold
from trine.engine._loop import advance
from trine.engine._prepare import prepare
from trine.engine._state import (
    END_PS,
    FINISHED,
    FLOWS_FULL,
    HEAP_FULL,
    LATE_TASK,
    NOW,
    NUM_DIRTY,
    NUM_DONE,
    NUM_FLOWS,
    NUM_FREE,
    NUM_QUEUED,
    NUM_READY,
    NUM_SCALARS,
    OVERFLOW,
    READY_PS,
    START_PS,
    WORDS,
    Routes,
    Tasks,
)
from trine.engine.describe import describe_task
from trine.engine.latency import entry_ps
from trine.errors import SimulationError
from trine.model.taskgraph import TRANSFER, Int64, Records, TaskGraph
from trine.network._dispatch import CODES, FIRST_QUEUE
from trine.network._limits import MAX_PS
from trine.network._state import FIELDS, FLOW_END_PS, Flows, grown_flows, new_flows, new_links, num_slots
from trine.network.models import Network

#: Tasks that end between two looks at the clock and at Ctrl-C: some 20 ms.
BUDGET = 1 << 16
PROGRESS_S = 0.25
FIRST_SLOTS = 1024
FIRST_HEAP = 4096


def simulate(
    graph: TaskGraph,
    model: Network,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Records:
    """Run a validated ``graph``; -1 in the records of tasks that never ran. Raises SimulationError past 106 days."""
    if on_compile is not None and (is_cold(advance) or is_cold(prepare)):
        on_compile()
    code = CODES[model.name]
    num_transfers = int((graph.kind == TRANSFER).sum())
    tasks, num_ready = _new_tasks(graph, num_transfers if code >= FIRST_QUEUE else 0)
    routes = Routes(
        ptr=_plain(graph.route_ptr, np.int64),
        links=_plain(graph.route_links, np.int32),
        latency_ps=_plain(graph.route_latency_ps, np.int64),
        entry_ps=_plain(entry_ps(graph), np.int64),
    )
    latency_ps = np.zeros(0, np.int64) if graph.link_latency_ps is None else graph.link_latency_ps
    links = new_links(graph.link_bytes_per_s, _plain(latency_ps, np.int64))
    flows = new_flows(min(num_transfers + 1, FIRST_SLOTS), int(np.diff(graph.route_ptr).max(initial=1)))
    heap = np.zeros(2 * FIRST_HEAP, np.int64)
    scalars = np.zeros(NUM_SCALARS, np.int64)
    scalars[NUM_READY] = num_ready
    scalars[NUM_FREE] = num_slots(flows)
    reported = monotonic()
    status = -1
    while status != FINISHED:
        status = int(advance(code, tasks, routes, links, flows, heap, scalars, BUDGET))
        if status == FLOWS_FULL:
            flows = _more_flows(flows, scalars)
        elif status == HEAP_FULL:
            heap = _more_heap(heap, flows, scalars)
        elif status == OVERFLOW:
            task = describe_task(graph, int(scalars[LATE_TASK]))
            raise SimulationError(f"simulated time passes {MAX_PS // 10**12} s at {task}")
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(scalars[NUM_DONE]), graph.num_tasks, int(scalars[NOW]))
            reported = monotonic()
    return Records(
        ready_ps=tasks.word[READY_PS::WORDS].copy(),
        start_ps=tasks.word[START_PS::WORDS].copy(),
        end_ps=tasks.word[END_PS::WORDS].copy(),
        num_events=int(scalars[NUM_DONE] + scalars[NUM_FLOWS]),
        engine="compiled",
        network=model.name,
    )


def _plain(array: npt.NDArray[np.integer], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """``array`` as the kernels were compiled for; another dtype, order or read-only flag would compile them anew."""
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def _new_tasks(graph: TaskGraph, num_arrivals: int) -> tuple[Tasks, int]:
    """The records of all tasks, with room for ``num_arrivals`` messages at one instant; and how many are ready."""
    raw = np.empty((graph.num_tasks + 1) * WORDS, np.int64)
    first = -(raw.ctypes.data // 8) % WORDS  # a record is one cache line
    word = raw[first : first + graph.num_tasks * WORDS]
    tasks = Tasks(
        word=word,
        half=word.view(np.int32),
        successor_idx=np.empty(len(graph.predecessor_idx), np.int32),
        ready=np.empty(graph.num_tasks, np.int32),
        arrived=np.empty(num_arrivals, np.int32),
    )
    columns = (
        _plain(graph.kind, np.int8),
        _plain(graph.stream, np.int32),
        _plain(graph.duration_ps, np.int64),
        _plain(graph.size_bytes, np.int64),
        _plain(graph.route, np.int32),
        _plain(graph.need, np.int32),
    )
    predecessors = _plain(graph.predecessor_ptr, np.int64), _plain(graph.predecessor_idx, np.int32)
    return tasks, int(prepare(columns, *predecessors, np.full(len(graph.stream_names), -1, np.int32), tasks))


def _more_flows(flows: Flows, scalars: Int64) -> Flows:
    before = num_slots(flows)
    if 2 * before * flows.hops >= 2**31:
        raise SimulationError(f"{before} transfers are in flight at a time, on routes of up to {flows.hops} links")
    scalars[NUM_FREE] = before
    return grown_flows(flows, 2 * before)


def _more_heap(heap: Int64, flows: Flows, scalars: Int64) -> Int64:
    """Drop entries that are no longer valid, and leave room for as many again and an end of each flow or message.

    A sorted array is a heap.
    """
    times, payloads = heap.reshape(-1, 2)[: scalars[NUM_QUEUED]].T
    valid = payloads >= 0
    valid[~valid] = flows.whole[FIELDS * (-1 - payloads[~valid]) + FLOW_END_PS] == times[~valid]
    order = np.flatnonzero(valid)[np.argsort(times[valid], kind="stable")]
    room = max(len(heap) // 2, 2 * (len(order) + max(num_slots(flows), int(scalars[NUM_DIRTY]))))
    grown = np.zeros(2 * room, np.int64)
    grown[0 : 2 * len(order) : 2] = times[order]
    grown[1 : 2 * len(order) : 2] = payloads[order]
    scalars[NUM_QUEUED] = len(order)
    return grown
