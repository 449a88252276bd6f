"""Pausing and resuming a run of the reference engine."""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np

from trine.common.arrays import Bool, Int64
from trine.engine._limits import FULL_PPM, MIN_PPM
from trine.engine.describe import describe_task
from trine.engine.models import Network
from trine.engine.reference import Flow, Reference, RunningTask
from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE, Snapshot, TaskGraph


def proceed(
    graph: TaskGraph,
    model: Network,
    hold: Bool | None,
    resume: Snapshot | None,
) -> Snapshot:
    """Run a validated ``graph`` from ``resume`` until tasks of ``hold`` become ready, or no events remain."""
    run = Reference(graph, model)
    if hold is not None:
        run.held = set(np.flatnonzero(hold).tolist())
    if resume is not None:
        _restore(run, resume)
    run.run()
    return _snapshot(run)


def _restore(run: Reference, resume: Snapshot) -> None:
    run.now = resume.now_ps
    run.num_events = resume.num_events
    run.num_done = int((resume.end_ps >= 0).sum())
    run.ready_ps, run.start_ps, run.end_ps = (
        column.tolist() for column in (resume.ready_ps, resume.start_ps, resume.end_ps)
    )
    for task in np.flatnonzero(resume.end_ps >= 0).tolist():
        for successor in run.successors[task]:
            run.waits[successor] -= 1
        if run.next_in_stream[task] >= 0:
            run.is_first[run.next_in_stream[task]] = True
    run.ready = []
    for task in range(run.graph.num_tasks):
        if run.ready_ps[task] >= 0:
            run.waits[task] = 0
            if run.start_ps[task] < 0 and task not in run.held:
                run.ready.append(task)
        elif run.waits[task] <= 0:
            raise InputError(f"{describe_task(run.graph, task)} is not ready although all its dependencies have ended")
    for place, task in enumerate(resume.active.tolist()):
        _restore_active(run, resume, place, task)
    heapq.heapify(run.events)
    run.flows_changed = bool(run.flows)
    if run.slowdowns is not None and resume.speed_ppm is not None:
        run.slowdowns.nominal_ppm = resume.speed_ppm.tolist()
        run.slowdowns.speed_ppm = [max(MIN_PPM, ppm) for ppm in run.slowdowns.nominal_ppm]
        run.slowdowns.changed = set(range(len(run.slowdowns.nominal_ppm)))


def _restore_active(run: Reference, resume: Snapshot, place: int, task: int) -> None:
    """Restore one task that is running, waiting for its latency, or in flight."""
    graph = run.graph
    stream = int(graph.stream[task])
    if resume.since_ps[place] >= 0:
        route = graph.route[task]
        flow = Flow(task, run.routes[route], run.counts[route], float(resume.remaining_bytes[place]))
        flow.rate, flow.since_ps = float(resume.bytes_per_s[place]), int(resume.since_ps[place])
        flow.end_ps = int(resume.flow_end_ps[place])
        run.flows[task] = flow
        if flow.end_ps >= 0:
            run.events.append((flow.end_ps, task))
    elif run.slowdowns is not None and graph.kind[task] == COMPUTE and stream >= 0:
        assert resume.stream_left_as is not None
        run.slowdowns.running[stream] = RunningTask(
            task, Fraction(int(resume.stream_left_as[stream]), FULL_PPM), run.now
        )
    else:
        run.events.append((int(resume.due_ps[place]), task))


def _snapshot(run: Reference) -> Snapshot:
    ready_ps, start_ps, end_ps = (np.array(c, np.int64) for c in (run.ready_ps, run.start_ps, run.end_ps))
    active = np.flatnonzero((start_ps >= 0) & (end_ps < 0))
    flows = [run.flows.get(task) for task in active.tolist()]
    speed_ppm, stream_left_as = _stream_state(run)
    due_ps = [_due_ps(run, task) for task in active.tolist()]
    since_ps = []
    for flow in flows:
        since_ps.append(-1 if flow is None else flow.since_ps)
    remaining = []
    for each in flows:
        remaining.append(0.0 if each is None else each.remaining)
    rates = []
    for one in flows:
        rates.append(0.0 if one is None else one.rate)
    flow_end_ps = []
    for other in flows:
        flow_end_ps.append(-1 if other is None else other.end_ps)
    return Snapshot(
        now_ps=run.now,
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=end_ps,
        active=active.astype(np.int32),
        due_ps=np.array(due_ps, np.int64),
        since_ps=np.array(since_ps, np.int64),
        remaining_bytes=np.array(remaining),
        bytes_per_s=np.array(rates),
        flow_end_ps=np.array(flow_end_ps, np.int64),
        is_finished=not (end_ps < 0).any(),
        num_events=run.num_events,
        speed_ppm=speed_ppm,
        stream_left_as=stream_left_as,
    )


def _due_ps(run: Reference, task: int) -> int:
    if task in run.flows:
        return -1
    work = None if run.slowdowns is None else run.slowdowns.running.get(int(run.graph.stream[task]))
    if work is not None and work.task == task:
        return work.due_ps
    return next(time_ps for time_ps, queued in run.events if queued == task)


def _stream_state(run: Reference) -> tuple[Int64 | None, Int64 | None]:
    slowdowns = run.slowdowns
    if slowdowns is None:
        return None, None
    left_as = np.full(len(slowdowns.nominal_ppm), -1, np.int64)
    for stream, work in slowdowns.running.items():
        left_ps = work.left_ps - Fraction((run.now - work.since_ps) * slowdowns.speed_ppm[stream], FULL_PPM)
        left_as[stream] = int(left_ps * FULL_PPM)
    return np.array(slowdowns.nominal_ppm, np.int64), left_as
