"""Stop the compiled loop where held tasks become ready, and start it from there. Importing this imports numba."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trine._jit import is_cold
from trine.arrays import Bool, Int64
from trine.engine._loop import advance
from trine.engine._resume import restore_flows, restore_tasks
from trine.engine._state import (
    IS_CHANGED,
    LEFT_AS,
    NOW,
    NUM_CHANGED,
    NUM_DIRTY,
    NUM_DONE,
    NUM_FLOWS,
    NUM_FREE,
    NUM_QUEUED,
    NUM_READY,
    PACE,
    PACED_SINCE_PS,
    RUNNING,
    SPEED,
    TAKEN,
)
from trine.engine.compiled import (
    FIRST_HEAP,
    FIRST_SLOTS,
    State,
    drive,
    instants,
    live_entries,
    new_state,
    plain,
    sorted_heap,
)
from trine.engine.describe import describe_task
from trine.errors import InputError, SimulationError
from trine.graph.taskgraph import COMPUTE, Snapshot, TaskGraph
from trine.network._limits import FULL_PPM, LEAST_PPM
from trine.network._state import (
    FIELDS,
    FLOW_END_PS,
    FLOW_TASK,
    QUEUED_PS,
    RATE,
    REMAINING,
    SINCE_PS,
    Flows,
    new_flows,
    num_slots,
)
from trine.network.models import Network


def proceed(
    graph: TaskGraph,
    model: Network,
    hold: Bool | None,
    resume: Snapshot | None,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Snapshot:
    """Run a validated ``graph`` from ``resume`` until tasks of ``hold`` have become ready, or nothing can happen."""
    if on_compile is not None and (is_cold(advance) or is_cold(restore_tasks)):
        on_compile()
    if hold is not None and resume is not None:
        hold = hold & (resume.start_ps < 0)
    state = new_state(graph, model, hold)
    late_start = np.zeros(0, np.int64)
    if resume is not None:
        late_start = np.flatnonzero((resume.ready_ps >= 0) & (resume.start_ps < 0))
        _restore(state, graph, resume)
    drive(state, graph, progress)
    snapshot = _snapshot(state, graph)
    if resume is not None:  # one that was held began later than it became ready
        snapshot.ready_ps[late_start] = resume.ready_ps[late_start]
    return snapshot


def _restore(state: State, graph: TaskGraph, resume: Snapshot) -> None:
    scalars = state.scalars
    begun = (plain(column, np.int64) for column in (resume.ready_ps, resume.start_ps, resume.end_ps))
    num_ready, wrong = restore_tasks(state.tasks, *begun)
    if wrong >= 0:
        raise InputError(f"{describe_task(graph, int(wrong))} has not become ready, though nothing is left to wait for")
    num_done = int((resume.end_ps >= 0).sum())
    scalars[NOW] = resume.now_ps
    scalars[NUM_READY] = num_ready
    scalars[NUM_DONE] = num_done
    scalars[NUM_FLOWS] = resume.num_events - num_done
    is_flow = resume.since_ps >= 0
    state.flows = _flows(state.flows, resume, is_flow)
    num_flows = int(is_flow.sum())
    scalars[NUM_FREE] = num_slots(state.flows) - num_flows
    scalars[NUM_DIRTY] = restore_flows(state.tasks, state.routes, state.links, state.flows, num_flows)
    is_due = ~is_flow
    if resume.speed_ppm is not None and resume.stream_left_as is not None:
        is_paced = is_due & (graph.kind[resume.active] == COMPUTE) & (graph.stream[resume.active] >= 0)
        _restore_streams(state, graph, resume, resume.active[is_paced])
        is_due &= ~is_paced
    order = np.argsort(resume.due_ps[is_due], kind="stable")
    scalars[NUM_QUEUED] = len(order)
    state.heap = sorted_heap(
        resume.due_ps[is_due][order], resume.active[is_due][order].astype(np.int64), max(FIRST_HEAP, 2 * len(order))
    )


def _flows(fresh: Flows, resume: Snapshot, is_flow: Bool) -> Flows:
    """The flows of ``resume`` in the first slots, not yet on their links, and as many free ones."""
    count = int(is_flow.sum())
    slots = max(FIRST_SLOTS, 2 * count)
    if slots * fresh.hops >= 2**31:
        raise SimulationError(f"{count} transfers are in flight at a time, on routes of up to {fresh.hops} links")
    flows = new_flows(slots, fresh.hops, counted=len(fresh.counts) > 0)
    used = slice(0, count * FIELDS)
    flows.real[used][REMAINING::FIELDS] = resume.remaining_bytes[is_flow]
    flows.real[used][RATE::FIELDS] = resume.bytes_per_s[is_flow]
    flows.whole[used][SINCE_PS::FIELDS] = resume.since_ps[is_flow]
    flows.whole[used][FLOW_END_PS::FIELDS] = resume.flow_end_ps[is_flow]
    flows.whole[used][QUEUED_PS::FIELDS] = -1
    flows.whole[used][FLOW_TASK::FIELDS] = resume.active[is_flow]
    flows.free[: slots - count] = np.arange(count, slots, dtype=np.int32)
    return flows


def _restore_streams(state: State, graph: TaskGraph, resume: Snapshot, running: npt.NDArray[np.int32]) -> None:
    """Speeds of all streams, and the tasks that run on them, whose ends are to be foreseen anew."""
    assert resume.speed_ppm is not None
    assert resume.stream_left_as is not None
    pace, num_streams = state.streams.pace, len(resume.speed_ppm)
    pace[TAKEN::PACE] = FULL_PPM - resume.speed_ppm
    pace[SPEED::PACE] = np.maximum(resume.speed_ppm, LEAST_PPM)
    pace[LEFT_AS::PACE] = resume.stream_left_as
    pace[PACED_SINCE_PS::PACE] = resume.now_ps
    pace[IS_CHANGED::PACE] = 1
    pace[PACE * graph.stream[running].astype(np.int64) + RUNNING] = running
    state.streams.changed[:] = np.arange(num_streams, dtype=np.int32)
    state.scalars[NUM_CHANGED] = num_streams


def _snapshot(state: State, graph: TaskGraph) -> Snapshot:
    now_ps = int(state.scalars[NOW])
    times, tasks = live_entries(state)
    is_task = tasks >= 0
    times, tasks = times[is_task], tasks[is_task]
    in_use = np.ones(num_slots(state.flows), np.bool_)
    in_use[state.flows.free[: state.scalars[NUM_FREE]]] = False
    flow = FIELDS * np.flatnonzero(in_use)
    whole, real = state.flows.whole, state.flows.real
    speed_ppm, stream_left_as = _stream_state(state, now_ps)
    ready_ps, start_ps, end_ps = instants(state)
    active = np.flatnonzero((start_ps >= 0) & (end_ps < 0)).astype(np.int32)
    due_ps, since_ps, flow_end_ps = (np.full(len(active), -1, np.int64) for _ in range(3))
    remaining_bytes, bytes_per_s = np.zeros(len(active)), np.zeros(len(active))
    due_ps[np.searchsorted(active, tasks)] = times
    at = np.searchsorted(active, whole[flow + FLOW_TASK])
    since_ps[at] = whole[flow + SINCE_PS]
    flow_end_ps[at] = whole[flow + FLOW_END_PS]
    remaining_bytes[at] = real[flow + REMAINING]
    bytes_per_s[at] = real[flow + RATE]
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


def _stream_state(state: State, now_ps: int) -> tuple[Int64 | None, Int64 | None]:
    """Speed of each stream before it is kept from falling too low, and what is left of what runs on it."""
    if not len(state.streams.pressure_ppm):
        return None, None
    pace = state.streams.pace
    left_as = pace[LEFT_AS::PACE] - (now_ps - pace[PACED_SINCE_PS::PACE]) * pace[SPEED::PACE]
    return FULL_PPM - pace[TAKEN::PACE], np.where(pace[RUNNING::PACE] >= 0, left_as, -1)
