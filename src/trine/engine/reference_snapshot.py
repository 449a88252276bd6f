"""Stop the plain-Python run where held tasks become ready, and start it from there."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.engine.describe import describe_task
from trine.engine.paced import Work
from trine.engine.reference import Flow, Reference
from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE, Snapshot, TaskGraph
from trine.network._limits import FULL_PPM, LEAST_PPM
from trine.network.models import Network


def proceed(
    graph: TaskGraph,
    model: Network,
    hold: npt.NDArray[np.bool_] | None,
    resume: Snapshot | None,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Snapshot:
    """Run a validated ``graph`` from ``resume`` until tasks of ``hold`` have become ready, or nothing can happen."""
    run = Reference(graph, model)
    if hold is not None:
        run.held = set(np.flatnonzero(hold).tolist())
    if resume is not None:
        _restore(run, resume)
    run.run(progress)
    return _snapshot(run)


def _restore(run: Reference, resume: Snapshot) -> None:
    run.now = resume.now_ps
    run.num_events = resume.num_events
    run.num_done = int((resume.end_ps >= 0).sum())
    run.ready_ps, run.start_ps, run.end_ps = (
        column.tolist() for column in (resume.ready_ps, resume.start_ps, resume.end_ps)
    )
    for task in np.flatnonzero(resume.end_ps >= 0).tolist():
        for after in run.successors[task]:
            run.waits[after] -= 1
        if run.next_in_stream[task] >= 0:
            run.is_first[run.next_in_stream[task]] = True
    run.ready = []
    for task in range(run.graph.num_tasks):
        if run.ready_ps[task] >= 0:
            run.waits[task] = 0
            if run.start_ps[task] < 0 and task not in run.held:
                run.ready.append(task)
        elif run.waits[task] <= 0:
            raise InputError(
                f"{describe_task(run.graph, task)} has not become ready, though nothing is left to wait for"
            )
    for place, task in enumerate(resume.active.tolist()):
        _restore_active(run, resume, place, task)
    heapq.heapify(run.events)
    run.flows_changed = bool(run.flows)
    if run.paces is not None and resume.speed_ppm is not None:
        run.paces.nominal_ppm = resume.speed_ppm.tolist()
        run.paces.speed_ppm = [max(LEAST_PPM, ppm) for ppm in run.paces.nominal_ppm]
        run.paces.changed = set(range(len(run.paces.nominal_ppm)))


def _restore_active(run: Reference, resume: Snapshot, place: int, task: int) -> None:
    """One task that runs, is in its latency, or in flight."""
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
    elif run.paces is not None and graph.kind[task] == COMPUTE and stream >= 0:
        assert resume.stream_left_as is not None
        run.paces.work[stream] = Work(task, Fraction(int(resume.stream_left_as[stream]), FULL_PPM), run.now)
    else:
        run.events.append((int(resume.due_ps[place]), task))


def _snapshot(run: Reference) -> Snapshot:
    ready_ps, start_ps, end_ps = (np.array(c, np.int64) for c in (run.ready_ps, run.start_ps, run.end_ps))
    active = np.flatnonzero((start_ps >= 0) & (end_ps < 0))
    flows = [run.flows.get(task) for task in active.tolist()]
    speed_ppm, stream_left_as = _stream_state(run)
    return Snapshot(
        now_ps=run.now,
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=end_ps,
        active=active.astype(np.int32),
        due_ps=np.array([_due_ps(run, task) for task in active.tolist()], np.int64),
        since_ps=np.array([-1 if flow is None else flow.since_ps for flow in flows], np.int64),
        remaining_bytes=np.array([0.0 if flow is None else flow.remaining for flow in flows]),
        bytes_per_s=np.array([0.0 if flow is None else flow.rate for flow in flows]),
        flow_end_ps=np.array([-1 if flow is None else flow.end_ps for flow in flows], np.int64),
        is_finished=not (end_ps < 0).any(),
        num_events=run.num_events,
        speed_ppm=speed_ppm,
        stream_left_as=stream_left_as,
    )


def _due_ps(run: Reference, task: int) -> int:
    if task in run.flows:
        return -1
    work = None if run.paces is None else run.paces.work.get(int(run.graph.stream[task]))
    if work is not None and work.task == task:
        return work.due_ps
    return next(time_ps for time_ps, other in run.events if other == task)


def _stream_state(run: Reference) -> tuple[Int64 | None, Int64 | None]:
    paces = run.paces
    if paces is None:
        return None, None
    left_as = np.full(len(paces.nominal_ppm), -1, np.int64)
    for stream, work in paces.work.items():
        left_ps = work.left_ps - Fraction((run.now - work.since_ps) * paces.speed_ppm[stream], FULL_PPM)
        left_as[stream] = int(left_ps * FULL_PPM)
    return np.array(paces.nominal_ppm, np.int64), left_as
