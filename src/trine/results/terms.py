"""Exact breakdown of one rank's step by phase of compute, axis of exposed communication and cause of idle time.

The parts of :func:`step_terms` add up to the step. Where several phases or axes are active at one instant, the instant
counts for the first of them in the order of ``_PHASES`` and ``_AXES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.graph.taskgraph import Records, TaskGraph
from trine.results.activity import (
    PHASE_NAMES,
    Activity,
    Window,
    communicating,
    compute_activity,
    computing,
    join,
    transfer_activity,
)
from trine.results.intervals import first_at, gaps, lengths, merge
from trine.results.waits import INPUT_COPY, LAUNCH, OFFLOAD, bubble_gaps

_PHASES = ("recompute", "optimizer", "backward", "forward")
_AXES = ("pp", "tp", "cp", "ep", "dp")
#: Work without a phase, and transfers without an axis.
OTHER_PHASE, MESSAGES = "other", "messages"
#: Causes of idle time by the wait reason of the task that ends it; ``bubble`` and ``wait`` are the rest.
_CAUSES = {LAUNCH: "launch", INPUT_COPY: "input_copy", OFFLOAD: "offload"}
BUBBLE, WAIT = "bubble", "wait"


class StepTerms(NamedTuple):
    """Parts of a rank's step in ps; all values together are the step.

    compute: by phase. exposed: communication without compute, by axis. idle: by cause.
    """

    compute: dict[str, int]
    exposed: dict[str, int]
    idle: dict[str, int]


def step_terms(
    graph: TaskGraph, records: Records, window: Window, reasons: npt.NDArray[np.int8], row: int
) -> StepTerms:
    """Split the window of row ``row``. ``reasons``: each task's wait reason, int8[tasks]."""
    is_here = (graph.rank == row) | (graph.peer == row)
    compute = _on(compute_activity(graph, records, window, computing(graph) & is_here), row)
    transfers = _on(transfer_activity(graph, records, window, communicating(graph) & is_here), row)
    names, phase = _phases(graph)
    spent = _in_turn(compute, phase[compute.task], names, None)
    axes, axis = _axes(graph)
    exposed = _in_turn(transfers, axis[transfers.task], axes, compute)
    return StepTerms(spent, exposed, _idle(graph, window, reasons, join(compute, transfers)))


def _on(activity: Activity, row: int) -> Activity:
    """Return the intervals of one row, in group 0."""
    keep = activity.rank == row
    task, rank, start, end = (column[keep] for column in activity)
    return Activity(task, np.zeros_like(rank), start, end)


def _phases(graph: TaskGraph) -> tuple[tuple[str, ...], Int64]:
    """Return the names of phases in order, and the index of each task's phase: int64[tasks]."""
    names = (*_PHASES, OTHER_PHASE)
    phase_index = []
    for name in PHASE_NAMES:
        phase_index.append(names.index(name if name in names else OTHER_PHASE))
    index = np.array([*phase_index, len(names) - 1])
    return names, index[graph.labels.phase]


def _axes(graph: TaskGraph) -> tuple[tuple[str, ...], Int64]:
    """Return the names of axes in order, and the index of each transfer's axis: int64[tasks]."""
    between = "pp" if graph.labels.stage.max(initial=-1) > 0 else MESSAGES
    labels = [label.axis or MESSAGES for label in graph.collectives] + [between]  # -1: no collective
    names = tuple(sorted(set(labels), key=lambda name: (_AXES.index(name) if name in _AXES else len(_AXES), name)))
    return names, np.array([names.index(name) for name in labels])[graph.labels.collective]


def _in_turn(activity: Activity, code: Int64, names: Iterable[str], busy: Activity | None) -> dict[str, int]:
    """Return the time of each name outside ``busy`` and outside the names before it, if it has time."""
    empty = np.empty(0, np.int64)
    covered = merge(*((empty,) * 3 if busy is None else busy[1:]))
    before_ps, times = int(lengths(covered, 1)[0]), {}
    for number, name in enumerate(names):
        part = np.flatnonzero(code == number)
        columns = zip(covered, (activity.rank, activity.start_ps, activity.end_ps), strict=True)
        covered = merge(*(np.concatenate((old, new[part])) for old, new in columns))
        now_ps = int(lengths(covered, 1)[0])
        if now_ps > before_ps:
            times[name] = now_ps - before_ps
        before_ps = now_ps
    return times


def _idle(graph: TaskGraph, window: Window, reasons: npt.NDArray[np.int8], active: Activity) -> dict[str, int]:
    """Return the idle time by cause. The bubble is as in :func:`trine.results.metrics.rank_times`."""
    pauses = gaps(merge(*active[1:]), 1, window.start_ps, window.end_ps)
    ender = first_at(pauses, active.rank, active.start_ps, active.task)
    cause = np.where(ender < 0, -1, reasons[ender])
    in_bubble = bubble_gaps(graph, pauses, active, reasons)
    times: dict[str, int] = {}
    for name, pause_ps in _named(in_bubble.tolist(), cause.tolist(), (pauses.end_ps - pauses.start_ps).tolist()):
        times[name] = times.get(name, 0) + pause_ps
    return times


def _named(in_bubble: list[bool], cause: list[int], pauses_ps: list[int]) -> Iterator[tuple[str, int]]:
    for is_bubble, reason, pause_ps in zip(in_bubble, cause, pauses_ps, strict=True):
        yield BUBBLE if is_bubble else _CAUSES.get(reason, WAIT), pause_ps
