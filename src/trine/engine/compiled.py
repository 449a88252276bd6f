"""Driver of the compiled loop: creates and grows its state, reports progress, raises errors, stops and resumes it.

Importing this module imports numba.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np

from trine.common._records import Record, RecordArray, for_kernel, new_records, one_for_kernel
from trine.common.arrays import Bool, Int32, Int64
from trine.common.observer import PROGRESS_S, announce_compiling, current_observer
from trine.engine import _state
from trine.engine._flows import restore_flows
from trine.engine._limits import FULL_PPM, MAX_PS, MIN_PPM
from trine.engine._loop import advance
from trine.engine._state import (
    CircuitTables,
    NetworkTables,
    TaskTables,
    new_circuits,
    new_links,
    with_more_slots,
    with_slots,
)
from trine.engine._tasks import gather, prepare, restore_tasks
from trine.engine.circuit_model import CircuitModel
from trine.engine.circuits import on_circuit, ranks_of
from trine.engine.describe import describe_task, faster_than_full
from trine.engine.live_view import view_of_tasks
from trine.engine.models import Network
from trine.engine.validate import software_latency_ps
from trine.engine.work import new_work, plain
from trine.errors import InputError, SimulationError
from trine.graph.taskgraph import TRANSFER, Records, Snapshot, TaskGraph

#: Tasks that end between two checks of the clock and of Ctrl-C, about 20 ms.
BUDGET = 1 << 16
FIRST_SLOTS = 1024
FIRST_HEAP = 4096


@dataclass(slots=True)
class EngineState:
    """Working state of the loop; a full ``network`` or ``heap`` is replaced by a larger one.

    clocks: one record.
    """

    model: int
    work: TaskTables
    network: NetworkTables
    circuits: CircuitTables | None
    heap: RecordArray
    clocks: RecordArray

    @property
    def clock(self) -> Record:
        return self.clocks.view(np.recarray)[0]

    @property
    def num_events(self) -> int:
        return int(self.clock.num_done + self.clock.num_flows)


def simulate(graph: TaskGraph, model: Network) -> Records:
    """Run a validated ``graph``; tasks that never ran get -1 in the records. Raises SimulationError past 106 days."""
    announce_compiling(advance, prepare)
    state = new_state(graph, model)
    drive(state, graph)
    times = instants(state)
    return Records(
        ready_ps=times.ready_ps,
        start_ps=times.start_ps,
        end_ps=times.end_ps,
        num_events=state.num_events,
        engine="compiled",
        network=model.name,
    )


def proceed(
    graph: TaskGraph,
    model: Network,
    hold: Bool | None,
    resume: Snapshot | None,
) -> Snapshot:
    """Run a validated ``graph`` from ``resume`` until tasks of ``hold`` become ready, or no event remains."""
    announce_compiling(advance, restore_tasks)
    if hold is not None and resume is not None:
        hold = hold & (resume.start_ps < 0)
    state = new_state(graph, model, hold)
    late_start = np.zeros(0, np.int64)
    if resume is not None:
        late_start = np.flatnonzero((resume.ready_ps >= 0) & (resume.start_ps < 0))
        _restore(state, graph, resume)
    drive(state, graph)
    snapshot = _snapshot(state)
    if resume is not None:  # a held task may start later than it became ready
        snapshot.ready_ps[late_start] = resume.ready_ps[late_start]
    return snapshot


def drive(state: EngineState, graph: TaskGraph) -> None:
    """Process events until no event remains or a held task becomes ready."""
    clock, progress = state.clock, current_observer().progress
    control, budget = current_observer().control, BUDGET
    reported = monotonic()
    status = -1
    while status not in (_state.FINISHED, _state.HELD_BACK):
        if control is not None:
            budget = control.chunk(BUDGET, partial(view_of_tasks, state.work, state.network, clock, graph))
        circuits = None if state.circuits is None else for_kernel(state.circuits)
        bundles = for_kernel(state.work), for_kernel(state.network), circuits
        status = int(advance(state.model, *bundles, *_events(state), budget))
        if status == _state.FLOWS_FULL:
            _grow_flows(state)
        elif status == _state.HEAP_FULL:
            _grow_heap(state)
        elif status == _state.OVERFLOW:
            task = describe_task(graph, int(clock.late_task))
            raise SimulationError(f"simulated time passes {MAX_PS // 10**12} s at {task}")
        elif status == _state.TOO_FAST:
            raise faster_than_full(graph, int(clock.fast_stream), int(clock.now))
        if progress is not None and monotonic() - reported > PROGRESS_S:
            progress(int(clock.num_done), graph.num_tasks, int(clock.now))
            reported = monotonic()


def _events(state: EngineState) -> tuple[RecordArray, Record]:
    return one_for_kernel(state.heap), one_for_kernel(state.clocks)[0]


# Start of a run


def new_state(graph: TaskGraph, model: Network, hold: Bool | None = None) -> EngineState:
    """Return the state at time 0, before the first event. Tasks in ``hold``, bool[tasks], do not start."""
    code = _state.MODELS[model.name]
    num_transfers = int((graph.kind == TRANSFER).sum())
    work, num_ready = new_work(graph, num_transfers if code >= _state.FIRST_QUEUE else 0)
    if hold is not None:
        work.tasks["kind"][hold] = _state.HELD
    network = with_slots(_new_network(graph), min(num_transfers + 1, FIRST_SLOTS))
    clocks = new_records(1, _state.CLOCK)
    clocks["num_ready"] = num_ready
    clocks["num_free"] = len(network.flows)
    circuits = _new_circuits(graph, model)
    first_heap = FIRST_HEAP if circuits is None else max(FIRST_HEAP, 6 * len(circuits.free_circuits) + 1)
    return EngineState(
        model=code,
        work=_with_streams(work, graph),
        network=network,
        circuits=circuits,
        heap=new_records(first_heap, _state.ENTRY),
        clocks=clocks,
    )


def _with_streams(work: TaskTables, graph: TaskGraph) -> TaskTables:
    """Add all streams, idle and at full speed; add no streams if the graph has no slowdowns."""
    if graph.pressure_ppm is None or graph.pressure_stream is None:
        return work
    streams = new_records(len(graph.stream_names), _state.STREAM)
    streams["speed_ppm"] = FULL_PPM
    streams["running"] = -1
    return work._replace(
        streams=streams,
        slowdown_ppm=plain(graph.pressure_ppm, np.int32),
        slowdown_stream=plain(graph.pressure_stream, np.int32),
        changed_streams=np.zeros(len(streams), np.int32),
    )


def _new_network(graph: TaskGraph) -> NetworkTables:
    """Return routes and links, without slots for flows."""
    routes = new_records(len(graph.route_latency_ps), _state.ROUTE)
    routes["first"], routes["last"] = graph.route_ptr[:-1], graph.route_ptr[1:]
    routes["latency_ps"] = graph.route_latency_ps
    routes["software_latency_ps"] = software_latency_ps(graph)
    counts = np.zeros(0, np.int32) if graph.route_counts is None else graph.route_counts
    caps = np.zeros(0) if graph.route_cap_bytes_per_s is None else graph.route_cap_bytes_per_s.astype(np.float64)
    links = new_links(graph.link_bytes_per_s, graph.link_latency_ps)
    nothing = np.zeros(0, np.int32)
    return NetworkTables(
        max_hops=int(np.diff(graph.route_ptr).max(initial=1)),
        routes=routes,
        route_links=plain(graph.route_links, np.int32),
        route_counts=plain(counts, np.int32),
        route_caps=np.where(caps > 0, caps, np.inf),
        links=links,
        flows=nothing,
        num_edges=nothing,
        edges=nothing,
        edge_counts=nothing,
        flow_caps=np.zeros(0),
        capped_flows=nothing,
        free_slots=nothing,
        found_flows=nothing,
        dirty_links=np.zeros(len(links), np.int32),
        found_links=np.zeros(len(links), np.int32),
        frozen_links=np.zeros(len(links), np.int32),
    )


def _new_circuits(graph: TaskGraph, model: Network) -> CircuitTables | None:
    """Return the circuit tables without any circuit, or None if the network does not use circuits."""
    if not isinstance(model, CircuitModel):
        return None
    properties, switch = model.circuits, new_records(1, _state.SWITCH)
    for field in ("setup_ps", "bytes_per_s", "latency_ps", "ports"):
        switch[field] = getattr(properties, field)
    switch["buffer_bytes"] = properties.buffer_bytes or 0
    ends = plain(graph.rank, np.int32), plain(graph.peer, np.int32)
    return new_circuits(switch, *ends, on_circuit(graph), ranks_of(graph))


# Growth


def _grow_flows(state: EngineState) -> None:
    num_slots = len(state.network.flows)
    _check_slots(state.network, num_slots, 2 * num_slots)
    state.clock.num_free = num_slots
    state.network = with_more_slots(state.network, 2 * num_slots)


def _check_slots(network: NetworkTables, num_flows: int, slots: int) -> None:
    if slots * network.max_hops >= 2**31:
        raise SimulationError(
            f"{num_flows} transfers are in flight at a time, on routes of up to {network.max_hops} links"
        )


def _grow_heap(state: EngineState) -> None:
    """Drop invalid entries; make room for twice the valid entries, plus twice the possible new ends."""
    clock = state.clock
    entries = live_entries(state)
    coming = max(len(state.network.flows), int(clock.num_dirty), int(clock.num_arrived), int(clock.num_changed))
    _set_heap(state, entries, max(len(state.heap), 2 * (len(entries) + coming)))


def _set_heap(state: EngineState, entries: RecordArray, room: int) -> None:
    """Replace the heap by ``entries`` in sorted order, which is a valid heap."""
    state.heap = new_records(room, _state.ENTRY)
    state.heap[: len(entries)] = entries[np.argsort(entries["time_ps"], kind="stable")]
    state.clock.num_queued = len(entries)


def live_entries(state: EngineState) -> RecordArray:
    """Return the valid entries of the heap."""
    entries = state.heap[: state.clock.num_queued]
    payload = entries["payload"]
    valid = payload >= 0
    valid[~valid] = state.network.flows["end_ps"][-1 - payload[~valid]] == entries["time_ps"][~valid]
    if len(state.work.streams):
        number = np.where(payload >= 0, payload, 0)
        tasks = state.work.tasks[number]
        is_paced = (payload >= 0) & (tasks["kind"] == _state.COMPUTE) & (tasks["stream"] >= 0) & (tasks["amount"] > 0)
        streams = state.work.streams[np.where(is_paced, tasks["stream"], 0)]
        valid &= ~is_paced | ((streams["running"] == number) & (streams["due_ps"] == entries["time_ps"]))
    return entries[valid]


# Stop and resume


class TaskTimes(NamedTuple):
    """Ready, start and end time of each task, int64[tasks] each."""

    ready_ps: Int64
    start_ps: Int64
    end_ps: Int64


def instants(state: EngineState) -> TaskTimes:
    """Return the times of each task, and discard the other task data in ``state``.

    The result reuses the memory of the task records, which avoids a memory peak in large runs.
    """
    tasks = state.work.tasks
    num_words = 3 * len(tasks)
    gather(one_for_kernel(tasks), tasks.view(np.int64))
    raw = tasks.base
    first = tasks.ctypes.data - raw.ctypes.data
    state.work = state.work._replace(tasks=new_records(0, _state.TASK))
    del tasks
    with suppress(ValueError):  # another reference exists, for example in a debugger
        raw.resize(first + 8 * num_words)
    moved = raw[first : first + 8 * num_words].view(np.int64)
    return TaskTimes(moved[0::3].copy(), moved[1::3].copy(), moved[2::3].copy())


def _restore(state: EngineState, graph: TaskGraph, resume: Snapshot) -> None:
    clock = state.clock
    columns = (plain(column, np.int64) for column in (resume.ready_ps, resume.start_ps, resume.end_ps))
    num_ready, wrong = restore_tasks(for_kernel(state.work), *columns)
    if wrong >= 0:
        raise InputError(f"{describe_task(graph, int(wrong))} is not ready although all its dependencies have ended")
    clock.now = resume.now_ps
    clock.num_ready = num_ready
    clock.num_done = int((resume.end_ps >= 0).sum())
    clock.num_flows = resume.num_events - clock.num_done
    is_flow = resume.since_ps >= 0
    _restore_flows(state, resume, is_flow)
    is_due = ~is_flow
    if resume.speed_ppm is not None and resume.stream_left_as is not None:
        is_paced = is_due & (graph.kind[resume.active] == _state.COMPUTE) & (graph.stream[resume.active] >= 0)
        _restore_streams(state, graph, resume, resume.active[is_paced])
        is_due &= ~is_paced
    entries = np.zeros(int(is_due.sum()), _state.ENTRY)
    entries["time_ps"], entries["payload"] = resume.due_ps[is_due], resume.active[is_due]
    _set_heap(state, entries, max(FIRST_HEAP, 2 * len(entries)))


def _restore_flows(state: EngineState, resume: Snapshot, is_flow: Bool) -> None:
    """Put the flows of ``resume`` into the first slots and on their links; leave at least the same number free."""
    count = int(is_flow.sum())
    slots = max(FIRST_SLOTS, 2 * count)
    _check_slots(state.network, count, slots)
    network = with_slots(state.network, slots)
    flows = network.flows[:count]
    flows["remaining"] = resume.remaining_bytes[is_flow]
    flows["rate"] = resume.bytes_per_s[is_flow]
    flows["since_ps"] = resume.since_ps[is_flow]
    flows["end_ps"] = resume.flow_end_ps[is_flow]
    flows["queued_ps"] = -1
    flows["task"] = resume.active[is_flow]
    network.free_slots[: slots - count] = np.arange(count, slots, dtype=np.int32)
    state.network = network
    state.clock.num_free = slots - count
    restore_flows(for_kernel(state.work), for_kernel(network), _events(state)[1], count)


def _restore_streams(state: EngineState, graph: TaskGraph, resume: Snapshot, running: Int32) -> None:
    """Restore the speeds and running tasks of all streams; the loop predicts the ends of these tasks again."""
    assert resume.speed_ppm is not None
    assert resume.stream_left_as is not None
    streams = state.work.streams
    streams["taken_ppm"] = FULL_PPM - resume.speed_ppm
    streams["speed_ppm"] = np.maximum(resume.speed_ppm, MIN_PPM)
    streams["left_as"] = resume.stream_left_as
    streams["since_ps"] = resume.now_ps
    streams["is_changed"] = 1
    streams["running"][graph.stream[running]] = running
    state.work.changed_streams[:] = np.arange(len(streams), dtype=np.int32)
    state.clock.num_changed = len(streams)


def _snapshot(state: EngineState) -> Snapshot:
    now_ps = int(state.clock.now)
    entries = live_entries(state)
    entries = entries[entries["payload"] >= 0]
    in_use = np.ones(len(state.network.flows), np.bool_)
    in_use[state.network.free_slots[: state.clock.num_free]] = False
    flows = state.network.flows[in_use]
    speed_ppm, stream_left_as = _stream_state(state, now_ps)
    ready_ps, start_ps, end_ps = instants(state)
    active = np.flatnonzero((start_ps >= 0) & (end_ps < 0)).astype(np.int32)
    due_ps, since_ps, flow_end_ps = (np.full(len(active), -1, np.int64) for _ in range(3))
    remaining_bytes, bytes_per_s = np.zeros(len(active)), np.zeros(len(active))
    due_ps[np.searchsorted(active, entries["payload"])] = entries["time_ps"]
    rows = np.searchsorted(active, flows["task"])
    since_ps[rows] = flows["since_ps"]
    flow_end_ps[rows] = flows["end_ps"]
    remaining_bytes[rows] = flows["remaining"]
    bytes_per_s[rows] = flows["rate"]
    return Snapshot(
        now_ps=now_ps,
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=end_ps,
        active=active,
        due_ps=due_ps,
        since_ps=since_ps,
        remaining_bytes=remaining_bytes,
        bytes_per_s=bytes_per_s,
        flow_end_ps=flow_end_ps,
        is_finished=not (end_ps < 0).any(),
        num_events=state.num_events,
        speed_ppm=speed_ppm,
        stream_left_as=stream_left_as,
    )


def _stream_state(state: EngineState, now_ps: int) -> tuple[Int64 | None, Int64 | None]:
    """Return the speed of each stream before the lower limit, and the remainder of its running task."""
    streams = state.work.streams
    if not len(streams):
        return None, None
    left_as = streams["left_as"] - (now_ps - streams["since_ps"]) * streams["speed_ppm"]
    return FULL_PPM - streams["taken_ppm"], np.where(streams["running"] >= 0, left_as, -1)
