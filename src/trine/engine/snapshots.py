"""A run that has stopped, as it goes on for other tasks that do the same work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.engine.describe import describe_task
from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE, TRANSFER, Snapshot, TaskGraph


def carry_over(
    snapshot: Snapshot, origin: npt.NDArray[np.integer], streams: npt.NDArray[np.integer] | None = None
) -> Snapshot:
    """The same instant for a graph whose task i is where task ``origin[i]`` of the snapshot is.

    Parameters
    ----------
    origin: int[tasks]; several may be the same, and tasks that nobody names are forgotten: they must have ended.
    streams: int[streams], the stream whose speed and work each stream has; needed where they are slowed down.

    The engine checks the result against the graph that it goes on with.
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
    """Refuse a snapshot that is not one of a run of ``graph``; raises InputError naming the field."""
    _check_lengths(graph, snapshot)
    ready_ps, start_ps, end_ps = snapshot.ready_ps, snapshot.start_ps, snapshot.end_ps
    wrong = ((start_ps >= 0) & ((ready_ps < 0) | (ready_ps > start_ps))) | ((end_ps >= 0) & (start_ps < 0))
    wrong |= (ready_ps > snapshot.now_ps) | (start_ps > snapshot.now_ps) | (end_ps > snapshot.now_ps)
    if wrong.any():
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
        task = describe_task(graph, int(active[wrong.argmax()]))
        raise InputError(f"{task} is under way, but not due after {snapshot.now_ps} ps nor in flight", field="due_ps")
    streams = graph.stream[active[(graph.kind[active] == COMPUTE) & (graph.stream[active] >= 0)]]
    if len(np.unique(streams)) < len(streams):
        raise InputError("two tasks run on one stream at a time", field="active")
    left_as = snapshot.stream_left_as
    if left_as is not None and (left_as[streams] <= 0).any():
        raise InputError("nothing is left of a task that runs", field="stream_left_as")


def _check_lengths(graph: TaskGraph, snapshot: Snapshot) -> None:
    slows = graph.pressure_ppm is not None
    if slows == (snapshot.speed_ppm is None) or slows == (snapshot.stream_left_as is None):
        raise InputError("must be there where the graph has pressure, and only there", field="speed_ppm")
    expected = dict.fromkeys(("ready_ps", "start_ps", "end_ps"), graph.num_tasks)
    for field in ("due_ps", "since_ps", "remaining_bytes", "bytes_per_s", "flow_end_ps"):
        expected[field] = len(snapshot.active)
    if slows:
        expected.update(dict.fromkeys(("speed_ppm", "stream_left_as"), len(graph.stream_names)))
    for field, length in expected.items():
        if len(getattr(snapshot, field)) != length:
            raise InputError(f"has {len(getattr(snapshot, field))} entries, must have {length}", field=field)
