"""Runs in parts: up to a pause, from a snapshot, and on a changed graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.collector import without_collector
from trine.common.observer import OnCompile, Progress, observing
from trine.engine.circuit_model import CircuitModel
from trine.engine.models import Network, NetworkModel
from trine.engine.run import checked_model
from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE, TRANSFER, Snapshot, TaskGraph


def advance(
    graph: TaskGraph,
    *,
    hold: npt.NDArray[np.bool_] | None = None,
    resume: Snapshot | None = None,
    network: str | Network = "fair",
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
) -> Snapshot:
    """Simulate ``graph`` up to the first instant at which a held task becomes ready, or to the end.

    The snapshot includes all other events of that instant, but the network has not yet redistributed link bandwidth.
    Resuming from it gives the same picoseconds as an uninterrupted run.

    Parameters
    ----------
    hold: bool[tasks], tasks that must not start; tasks that have already started are not affected.
    resume: the snapshot to resume, of a run of ``graph`` (:func:`trine.engine.carry_over` moves a snapshot to a
        different graph). Held tasks that are ready start at that instant. If they are held again, they wait, and do not
        stop the run.
    network, engine, progress, on_compile: as in :func:`run`; the network must be a flow model.

    Raises the errors of :func:`run`, and InputError if the snapshot does not fit this graph. Tasks that can never run
    are a deadlock only if no held task is ready.
    """
    model = checked_model(graph, network, engine)
    if not isinstance(model, NetworkModel) or isinstance(model, CircuitModel):
        raise InputError(f"a run on the network {model.name!r} cannot stop and go on: it has no flows", field="network")
    if hold is not None and (hold.shape != (graph.num_tasks,) or hold.dtype != np.bool_):
        raise InputError(f"must be bool[{graph.num_tasks}], is {hold.dtype}{list(hold.shape)}", field="hold")
    if resume is not None:
        validate_snapshot(graph, resume)
    with observing(progress=progress, on_compile=on_compile):
        if engine == "reference":
            from trine.engine.reference_snapshots import proceed

            snapshot = proceed(graph, model, hold, resume)
        else:
            with without_collector():
                from trine.engine.compiled import proceed

                snapshot = proceed(graph, model, hold, resume)
    if not snapshot.is_finished and not _waits(snapshot, hold):
        from trine.engine.describe import deadlock

        raise deadlock(graph, snapshot.end_ps, snapshot.ready_ps)
    return replace(snapshot, now_ps=_last_change_ps(snapshot, 0 if resume is None else resume.now_ps))


def _last_change_ps(snapshot: Snapshot, from_ps: int) -> int:
    """Return the last instant at which a task changed; an idle engine's clock may be later, at an obsolete end."""
    columns = (snapshot.ready_ps, snapshot.start_ps, snapshot.end_ps, snapshot.since_ps)
    return max(int(column.max(initial=from_ps)) for column in columns)


def _waits(snapshot: Snapshot, hold: npt.NDArray[np.bool_] | None) -> bool:
    """Return whether a held task is ready."""
    return hold is not None and bool((hold & (snapshot.ready_ps >= 0) & (snapshot.start_ps < 0)).any())


def carry_over(
    snapshot: Snapshot, origin: npt.NDArray[np.integer], streams: npt.NDArray[np.integer] | None = None
) -> Snapshot:
    """Return the snapshot for a different graph whose task i is in the state of task ``origin[i]``.

    Parameters
    ----------
    origin: int[tasks], may repeat. Tasks of the snapshot that are not in ``origin`` are dropped and must have ended.
    streams: int[streams], the old stream whose speed and work each stream takes; required if streams slow down.

    The engine checks the result against the graph when it resumes.
    """
    columns = {field: getattr(snapshot, field)[origin] for field in ("ready_ps", "start_ps", "end_ps")}
    place = np.full(len(snapshot.end_ps), -1, np.int32)
    place[snapshot.active] = np.arange(len(snapshot.active), dtype=np.int32)
    place = place[origin]
    active = np.flatnonzero(place >= 0)
    place = place[active]
    for field in ("due_ps", "since_ps", "remaining_bytes", "bytes_per_s", "flow_end_ps"):
        columns[field] = getattr(snapshot, field)[place]
    if snapshot.speed_ppm is not None and snapshot.stream_left_as is not None:
        if streams is None:
            raise InputError("the run has streams of different speeds: which stream of it each one is must be given")
        columns["speed_ppm"] = snapshot.speed_ppm[streams]
        columns["stream_left_as"] = snapshot.stream_left_as[streams]
    is_finished = bool((columns["end_ps"] >= 0).all())
    return replace(snapshot, active=active.astype(np.int32), is_finished=is_finished, **columns)


def validate_snapshot(graph: TaskGraph, snapshot: Snapshot) -> None:
    """Raise InputError with the field's name if a snapshot does not belong to a run of ``graph``."""
    _check_lengths(graph, snapshot)
    ready_ps, start_ps, end_ps = snapshot.ready_ps, snapshot.start_ps, snapshot.end_ps
    wrong = ((start_ps >= 0) & ((ready_ps < 0) | (ready_ps > start_ps))) | ((end_ps >= 0) & (start_ps < 0))
    wrong |= (ready_ps > snapshot.now_ps) | (start_ps > snapshot.now_ps) | (end_ps > snapshot.now_ps)
    if wrong.any():
        from trine.engine.describe import describe_task

        label = describe_task(graph, int(wrong.argmax()))
        raise InputError(f"{label} became ready, started and ended in no such order, or after {snapshot.now_ps} ps")
    active = np.flatnonzero((start_ps >= 0) & (end_ps < 0))
    if not np.array_equal(active, snapshot.active):
        raise InputError("must name the tasks that have started and not ended", field="active")
    _check_active(graph, snapshot, active)


def _check_active(graph: TaskGraph, snapshot: Snapshot, active: Int64) -> None:
    is_flow = snapshot.since_ps >= 0
    is_due = snapshot.due_ps > snapshot.now_ps
    num_links = np.append(np.diff(graph.route_ptr), 0)[graph.route[active]]
    wrong = is_flow & ((graph.kind[active] != TRANSFER) | (graph.size_bytes[active] == 0) | (num_links == 0))
    wrong |= is_flow & ((snapshot.since_ps > snapshot.now_ps) | ~np.isfinite(snapshot.remaining_bytes))
    wrong |= is_flow & (snapshot.flow_end_ps >= 0) & (snapshot.flow_end_ps <= snapshot.now_ps)
    wrong |= is_flow == is_due
    if wrong.any():
        from trine.engine.describe import describe_task

        task = describe_task(graph, int(active[wrong.argmax()]))
        raise InputError(f"{task} is under way, but not due after {snapshot.now_ps} ps nor in flight", field="due_ps")
    streams = graph.stream[active[(graph.kind[active] == COMPUTE) & (graph.stream[active] >= 0)]]
    if len(np.unique(streams)) < len(streams):
        raise InputError("two tasks run on one stream at a time", field="active")
    left_as = snapshot.stream_left_as
    if left_as is not None and (left_as[streams] <= 0).any():
        raise InputError("a running task has no work left", field="stream_left_as")


def _check_lengths(graph: TaskGraph, snapshot: Snapshot) -> None:
    slows = graph.pressure_ppm is not None
    if slows == (snapshot.speed_ppm is None) or slows == (snapshot.stream_left_as is None):
        raise InputError("is needed exactly if the graph has pressure", field="speed_ppm")
    expected = dict.fromkeys(("ready_ps", "start_ps", "end_ps"), graph.num_tasks)
    for field in ("due_ps", "since_ps", "remaining_bytes", "bytes_per_s", "flow_end_ps"):
        expected[field] = len(snapshot.active)
    if slows:
        expected.update(dict.fromkeys(("speed_ppm", "stream_left_as"), len(graph.stream_names)))
    for field, length in expected.items():
        if len(getattr(snapshot, field)) != length:
            raise InputError(f"has {len(getattr(snapshot, field))} entries, must have {length}", field=field)
