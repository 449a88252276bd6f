"""Shell of the compiled loop: makes its state, grows it, reports progress, raises.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from trine._jit import is_cold
from trine.arrays import Bool, Int64
from trine.engine._loop import advance
from trine.engine._prepare import prepare
from trine.engine._resume import gather
from trine.engine._state import (
    AMOUNT,
    COMPUTE,
    DUE_PS,
    FINISHED,
    FLOWS_FULL,
    HALVES,
    HEAP_FULL,
    HELD,
    HELD_BACK,
    KIND,
    LATE_TASK,
    NOW,
    NUM_CHANGED,
    NUM_DIRTY,
    NUM_DONE,
    NUM_FLOWS,
    NUM_FREE,
    NUM_QUEUED,
    NUM_READY,
    NUM_SCALARS,
    OVERFLOW,
    PACE,
    RUNNING,
    SPEED,
    STREAM,
    TOO_FAST,
    WORDS,
    Routes,
    Streams,
    Tasks,
)
from trine.engine.circuits import on_circuit, ranks_of
from trine.engine.describe import describe_task, faster_than_full
from trine.engine.latency import entry_ps
from trine.errors import SimulationError
from trine.graph.taskgraph import TRANSFER, Progress, Records, TaskGraph
from trine.network._circuit_state import Circuits, new_circuits
from trine.network._dispatch import CODES, FIRST_QUEUE
from trine.network._limits import FULL_PPM, MAX_PS
from trine.network._state import FIELDS, FLOW_END_PS, Flows, Links, grown_flows, new_flows, new_links, num_slots
from trine.network.circuit import CircuitModel
from trine.network.models import Network

#: Tasks that end between two looks at the clock and at Ctrl-C: some 20 ms.
BUDGET = 1 << 16
PROGRESS_S = 0.25
FIRST_SLOTS = 1024
FIRST_HEAP = 4096


@dataclass(slots=True)
class State:
    """All that the loop works on. ``flows`` and ``heap`` are replaced by larger ones when they are full."""

    code: int
    tasks: Tasks
    streams: Streams
    routes: Routes
    links: Links
    flows: Flows
    circuits: Circuits | None
    heap: Int64
    scalars: Int64

    @property
    def num_events(self) -> int:
        return int(self.scalars[NUM_DONE] + self.scalars[NUM_FLOWS])


def simulate(
    graph: TaskGraph,
    model: Network,
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Records:
    """Run a validated ``graph``; -1 in the records of tasks that never ran. Raises SimulationError past 106 days."""
    if on_compile is not None and (is_cold(advance) or is_cold(prepare)):
        on_compile()
    state = new_state(graph, model)
    drive(state, graph, progress)
    ready_ps, start_ps, end_ps = instants(state)
    return Records(
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=end_ps,
        num_events=state.num_events,
        engine="compiled",
        network=model.name,
    )


def new_state(graph: TaskGraph, model: Network, hold: Bool | None = None) -> State:
    """The state at 0, before anything has happened; the tasks of ``hold``, bool[tasks], do not begin."""
    code = CODES[model.name]
    num_transfers = int((graph.kind == TRANSFER).sum())
    tasks, num_ready = new_tasks(graph, num_transfers if code >= FIRST_QUEUE else 0)
    if hold is not None:
        tasks.half[KIND::HALVES][hold] = HELD
    counts = np.zeros(0, np.int32) if graph.route_counts is None else graph.route_counts
    routes = Routes(
        ptr=plain(graph.route_ptr, np.int64),
        links=plain(graph.route_links, np.int32),
        counts=plain(counts, np.int32),
        latency_ps=plain(graph.route_latency_ps, np.int64),
        entry_ps=plain(entry_ps(graph), np.int64),
    )
    latency_ps = np.zeros(0, np.int64) if graph.link_latency_ps is None else graph.link_latency_ps
    hops = int(np.diff(graph.route_ptr).max(initial=1))
    flows = new_flows(min(num_transfers + 1, FIRST_SLOTS), hops, counted=len(counts) > 0)
    scalars = np.zeros(NUM_SCALARS, np.int64)
    scalars[NUM_READY] = num_ready
    scalars[NUM_FREE] = num_slots(flows)
    circuits = _circuits(graph, model)
    first_heap = FIRST_HEAP if circuits is None else max(FIRST_HEAP, 6 * len(circuits.free) + 1)
    return State(
        code=code,
        tasks=tasks,
        streams=_new_streams(graph),
        routes=routes,
        links=new_links(graph.link_bytes_per_s, plain(latency_ps, np.int64)),
        flows=flows,
        circuits=circuits,
        heap=np.zeros(2 * first_heap, np.int64),
        scalars=scalars,
    )


def drive(state: State, graph: TaskGraph, progress: Progress | None) -> None:
    """Let everything happen that can happen, or until a held task becomes ready."""
    scalars = state.scalars
    reported = monotonic()
    status = -1
    while status not in (FINISHED, HELD_BACK):
        status = int(
            advance(
                state.code,
                state.tasks,
                state.streams,
                state.routes,
                state.links,
                state.flows,
                state.circuits,
                state.heap,
                scalars,
                BUDGET,
            )
        )
        if status == FLOWS_FULL:
            state.flows = _more_flows(state.flows, scalars)
        elif status == HEAP_FULL:
            state.heap = _more_heap(state)
        elif status == OVERFLOW:
            task = describe_task(graph, int(scalars[LATE_TASK]))
            raise SimulationError(f"simulated time passes {MAX_PS // 10**12} s at {task}")
        elif status == TOO_FAST:
            raise faster_than_full(graph, int(scalars[LATE_TASK]), int(scalars[NOW]))
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(scalars[NUM_DONE]), graph.num_tasks, int(scalars[NOW]))
            reported = monotonic()


def instants(state: State) -> tuple[Int64, Int64, Int64]:
    """When each task became ready, started and ended, int64[tasks]; what else ``state`` knows of the tasks is gone.

    Their records make room for the answer, which else would be the peak of the memory of a large run.
    """
    word = state.tasks.word
    num_tasks = len(word) // WORDS
    gather(word, num_tasks)
    raw = word.base
    assert raw is not None
    first = (word.ctypes.data - raw.ctypes.data) // 8
    nothing = np.zeros(0, np.int32)
    state.tasks = Tasks(word=np.zeros(0, np.int64), half=nothing, successor_idx=nothing, ready=nothing, arrived=nothing)
    del word
    with suppress(ValueError):  # somebody else looks at it: a debugger, say
        raw.resize(first + 3 * num_tasks)
    moved = raw[first : first + 3 * num_tasks]
    return moved[0::3].copy(), moved[1::3].copy(), moved[2::3].copy()


def live_entries(state: State) -> tuple[Int64, Int64]:
    """Times and payloads of the entries of the heap that still hold."""
    times, payloads = state.heap.reshape(-1, 2)[: state.scalars[NUM_QUEUED]].T
    valid = payloads >= 0
    valid[~valid] = state.flows.whole[FIELDS * (-1 - payloads[~valid]) + FLOW_END_PS] == times[~valid]
    if len(state.streams.pressure_ppm):
        tasks = np.where(payloads >= 0, payloads, 0)
        stream = state.tasks.half[HALVES * tasks + STREAM].astype(np.int64)
        is_paced = (payloads >= 0) & (state.tasks.half[HALVES * tasks + KIND] == COMPUTE) & (stream >= 0)
        is_paced &= state.tasks.word[WORDS * tasks + AMOUNT] > 0
        base = PACE * np.where(is_paced, stream, 0)
        pace = state.streams.pace
        valid &= ~is_paced | ((pace[base + RUNNING] == tasks) & (pace[base + DUE_PS] == times))
    return times[valid], payloads[valid]


def plain(array: npt.NDArray[np.integer], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """``array`` as the kernels were compiled for; another dtype, order or read-only flag would compile them anew."""
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def new_tasks(graph: TaskGraph, num_arrivals: int) -> tuple[Tasks, int]:
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
        plain(graph.kind, np.int8),
        plain(graph.stream, np.int32),
        plain(graph.duration_ps, np.int64),
        plain(graph.size_bytes, np.int64),
        plain(graph.route, np.int32),
        plain(graph.need, np.int32),
    )
    predecessors = plain(graph.predecessor_ptr, np.int64), plain(graph.predecessor_idx, np.int32)
    return tasks, int(prepare(columns, *predecessors, np.full(len(graph.stream_names), -1, np.int32), tasks))


def _circuits(graph: TaskGraph, model: Network) -> Circuits | None:
    """No circuit yet; None where the network has none."""
    if not isinstance(model, CircuitModel):
        return None
    given = model.circuits
    number = [given.setup_ps, given.bytes_per_s, given.latency_ps, given.buffer_bytes or 0, given.ports]
    ends = plain(graph.rank, np.int32), plain(graph.peer, np.int32)
    return new_circuits(np.array(number, np.int64), *ends, on_circuit(graph), ranks_of(graph))


def _new_streams(graph: TaskGraph) -> Streams:
    """All streams idle and at full speed; nothing where nothing slows them down."""
    if graph.pressure_ppm is None or graph.pressure_stream is None:
        return Streams(*(np.zeros(0, np.int32),) * 2, pace=np.zeros(0, np.int64), changed=np.zeros(0, np.int32))
    num_streams = len(graph.stream_names)
    pace = np.zeros(num_streams * PACE, np.int64)
    pace[SPEED::PACE] = FULL_PPM
    pace[RUNNING::PACE] = -1
    return Streams(
        pressure_ppm=plain(graph.pressure_ppm, np.int32),
        pressure_stream=plain(graph.pressure_stream, np.int32),
        pace=pace,
        changed=np.zeros(num_streams, np.int32),
    )


def _more_flows(flows: Flows, scalars: Int64) -> Flows:
    before = num_slots(flows)
    if 2 * before * flows.hops >= 2**31:
        raise SimulationError(f"{before} transfers are in flight at a time, on routes of up to {flows.hops} links")
    scalars[NUM_FREE] = before
    return grown_flows(flows, 2 * before)


def _more_heap(state: State) -> Int64:
    """Drop entries that are no longer valid, and leave room for as many again and an end of each flow or message.

    A sorted array is a heap.
    """
    scalars = state.scalars
    times, payloads = live_entries(state)
    order = np.argsort(times, kind="stable")
    coming = max(num_slots(state.flows), int(scalars[NUM_DIRTY]), int(scalars[NUM_CHANGED]))
    room = max(len(state.heap) // 2, 2 * (len(order) + coming))
    scalars[NUM_QUEUED] = len(order)
    return sorted_heap(times[order], payloads[order], room)


def sorted_heap(times_ps: Int64, payloads: Int64, room: int) -> Int64:
    heap = np.zeros(2 * room, np.int64)
    heap[0 : 2 * len(times_ps) : 2] = times_ps
    heap[1 : 2 * len(times_ps) : 2] = payloads
    return heap
