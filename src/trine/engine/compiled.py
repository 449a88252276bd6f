"""Shell of the compiled loop: makes its state, grows it, reports progress, raises.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

from trine._jit import is_cold
from trine.engine._loop import advance
from trine.engine._prepare import prepare
from trine.engine._state import (
    FINISHED,
    FLOWS_FULL,
    HEAP_FULL,
    NOW,
    NUM_DONE,
    NUM_EVENTS,
    NUM_FREE,
    NUM_READY,
    NUM_SCALARS,
    OVERFLOW,
    TASK,
    Program,
    Tasks,
)
from trine.engine.describe import describe_task
from trine.errors import SimulationError
from trine.model.taskgraph import TRANSFER, Int64, Records, TaskGraph
from trine.network._dispatch import CODES
from trine.network._limits import MAX_PS
from trine.network._state import Flows, grown_flows, new_flows, new_links
from trine.network.models import NetworkModel

#: Tasks that end between two looks at the clock and at Ctrl-C: some 20 ms.
BUDGET = 1 << 16
PROGRESS_S = 0.25
FIRST_SLOTS = 1024
FIRST_HEAP = 4096


def simulate(
    graph: TaskGraph,
    model: NetworkModel,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Records:
    """Run a validated ``graph``; -1 in the records of tasks that never ran. Raises SimulationError past 106 days."""
    if on_compile is not None and (is_cold(advance) or is_cold(prepare)):
        on_compile()
    program, tasks, num_ready = _prepared(graph)
    num_transfers = int((graph.kind == TRANSFER).sum())
    hops = int(np.diff(graph.route_ptr).max(initial=1))
    links = new_links(graph.link_bytes_per_s)
    flows = new_flows(min(num_transfers + 1, FIRST_SLOTS), hops)
    heap = np.zeros(2 * FIRST_HEAP, np.int64)
    scalars = np.zeros(NUM_SCALARS, np.int64)
    scalars[NUM_READY] = num_ready
    scalars[NUM_FREE] = len(flows.task)
    reported = monotonic()
    status = -1
    while status != FINISHED:
        status = int(advance(CODES[model.name], program, tasks, links, flows, heap, scalars, BUDGET))
        if status == FLOWS_FULL:
            flows = _more_flows(flows, scalars)
        elif status == HEAP_FULL:
            heap = _more_heap(heap, flows, scalars)
        elif status == OVERFLOW:
            task = describe_task(graph, int(scalars[TASK]))
            raise SimulationError(f"simulated time passes {MAX_PS // 10**12} s at {task}")
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(scalars[NUM_DONE]), graph.num_tasks, int(scalars[NOW]))
            reported = monotonic()
    return Records(
        ready_ps=tasks.ready_ps,
        start_ps=tasks.start_ps,
        end_ps=tasks.end_ps,
        num_events=int(scalars[NUM_DONE]) + _num_flows(graph, tasks.end_ps),
        engine="compiled",
        network=model.name,
    )


def _prepared(graph: TaskGraph) -> tuple[Program, Tasks, int]:
    n = graph.num_tasks
    program = Program(
        kind=graph.kind,
        duration_ps=graph.duration_ps,
        size_bytes=graph.size_bytes,
        route=graph.route,
        route_ptr=graph.route_ptr,
        route_links=graph.route_links,
        route_latency_ps=graph.route_latency_ps,
        successor_ptr=np.zeros(n + 1, np.int64),
        successor_idx=np.empty(len(graph.predecessor_idx), np.int32),
        next_in_stream=np.empty(n, np.int32),
    )
    tasks = Tasks(
        waits=graph.need.copy(),
        gates=np.ones(n, np.int8),
        ready_ps=np.full(n, -1, np.int64),
        start_ps=np.full(n, -1, np.int64),
        end_ps=np.full(n, -1, np.int64),
        ready=np.empty(n, np.int32),
    )
    last_in_stream = np.full(len(graph.stream_names), -1, np.int32)
    num_ready = prepare(
        graph.kind, graph.stream, graph.predecessor_ptr, graph.predecessor_idx, last_in_stream, program, tasks
    )
    return program, tasks, int(num_ready)


def _more_flows(flows: Flows, scalars: Int64) -> Flows:
    before = len(flows.task)
    if 2 * before * flows.hops >= 2**31:
        raise SimulationError(f"{before} transfers are in flight at a time, on routes of up to {flows.hops} links")
    scalars[NUM_FREE] = before
    return grown_flows(flows, 2 * before)


def _more_heap(heap: Int64, flows: Flows, scalars: Int64) -> Int64:
    """Drop entries that are no longer valid, and leave room for as many again and an end of each flow.

    A sorted array is a heap.
    """
    times, payloads = heap.reshape(-1, 2)[: scalars[NUM_EVENTS]].T
    valid = payloads >= 0
    valid[~valid] = flows.end_ps[-1 - payloads[~valid]] == times[~valid]
    order = np.flatnonzero(valid)[np.argsort(times[valid], kind="stable")]
    room = max(len(heap) // 2, 2 * (len(order) + len(flows.task)))
    grown = np.zeros(2 * room, np.int64)
    grown[0 : 2 * len(order) : 2] = times[order]
    grown[1 : 2 * len(order) : 2] = payloads[order]
    scalars[NUM_EVENTS] = len(order)
    return grown


def _num_flows(graph: TaskGraph, end_ps: Int64) -> int:
    """Transfers that have ended and had bytes to move over links: their latency was an event of its own."""
    route = np.where(graph.kind == TRANSFER, graph.route, 0)
    has_links = np.diff(graph.route_ptr)[route] > 0 if len(graph.route_latency_ps) else np.zeros(len(route), bool)
    return int(((graph.kind == TRANSFER) & (graph.size_bytes > 0) & has_links & (end_ps >= 0)).sum())
