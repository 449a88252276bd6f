"""Time by rank, and by layer, stage, phase and operator. Pure functions of a graph and its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.common.shown import OneLine
from trine.graph.taskgraph import COMPUTE, TRANSFER, Records, TaskGraph
from trine.results.activity import (
    Activity,
    Window,
    communicating,
    compute_activity,
    computing,
    input_copies,
    join,
    offloads,
    transfer_activity,
)
from trine.results.intervals import Intervals, gaps, lengths, merge, sum_by_group
from trine.results.waits import bubble_gaps, rank_waits

_FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankTimes(OneLine):
    """Breakdown of the window on each rank; int64[ranks], ps.

    compute: time with a busy compute stream. communication: time with a send or receive in progress.
    exposed: communication without compute. bubble: neither of the two, because of the pipeline schedule
    (:func:`trine.results.waits.bubble_gaps`). idle: the rest, so that compute + exposed + bubble + idle = window.
    input_copy: copies of inputs from the host; these overlap any of the above. offload: copies to or from host memory
    for offload, or CPU work for it; these overlap too.
    waits: int64[ranks, RANK_REASONS], time without compute by wait reason.
    """

    window: Window
    compute: Int64
    communication: Int64
    exposed: Int64
    bubble: Int64
    idle: Int64
    input_copy: Int64
    offload: Int64
    waits: Int64


class BusyTimes(NamedTuple):
    """Compute and exposed communication time of each rank, as in :class:`RankTimes`: int64[ranks], ps."""

    window: Window
    compute: Int64
    exposed: Int64


def busy_times(graph: TaskGraph, records: Records, window: Window) -> BusyTimes:
    """Return the ranks' busy times, without their waits."""
    num_ranks = len(graph.rank_names)
    compute = compute_activity(graph, records, window, computing(graph))
    transfers = transfer_activity(graph, records, window, communicating(graph))
    compute_ps = lengths(_merged(compute), num_ranks)
    return BusyTimes(window, compute_ps, lengths(_merged(join(compute, transfers)), num_ranks) - compute_ps)


def rank_times(graph: TaskGraph, records: Records, window: Window, reasons: npt.NDArray[np.int8]) -> RankTimes:
    """Split the window of each rank into compute, exposed communication, bubble and idle time, exactly.

    ``reasons``: each task's wait reason (:func:`trine.results.waits.wait_reasons`).
    """
    num_ranks = len(graph.rank_names)
    compute = compute_activity(graph, records, window, computing(graph))
    transfers = transfer_activity(graph, records, window, communicating(graph))
    copies = transfer_activity(graph, records, window, input_copies(graph))
    active = join(compute, transfers)
    computing_spans, busy = _merged(compute), _merged(active)
    compute_pauses = gaps(computing_spans, num_ranks, window.start_ps, window.end_ps)
    pauses = gaps(busy, num_ranks, window.start_ps, window.end_ps)
    pause_ps = pauses.end_ps - pauses.start_ps
    in_bubble = bubble_gaps(graph, pauses, active, reasons)
    compute_ps = lengths(computing_spans, num_ranks)
    return RankTimes(
        window=window,
        compute=compute_ps,
        communication=lengths(_merged(transfers), num_ranks),
        exposed=lengths(busy, num_ranks) - compute_ps,
        bubble=sum_by_group(pauses.group[in_bubble], pause_ps[in_bubble], num_ranks),
        idle=sum_by_group(pauses.group[~in_bubble], pause_ps[~in_bubble], num_ranks),
        input_copy=lengths(_merged(copies), num_ranks),
        offload=lengths(_merged(_offload(graph, records, window)), num_ranks),
        waits=rank_waits(compute_pauses, compute, reasons, num_ranks),
    )


def _offload(graph: TaskGraph, records: Records, window: Window) -> Activity:
    is_offload = offloads(graph)
    copies = transfer_activity(graph, records, window, is_offload & (graph.kind == TRANSFER))
    return join(copies, compute_activity(graph, records, window, is_offload & (graph.kind == COMPUTE)))


def slowest_rank(graph: TaskGraph, records: Records) -> int:
    """Return the rank whose last task (a transfer counts for both ends) ends last; the lowest rank wins a tie."""
    last = rank_ends(graph, records)
    return int(np.argmax(last)) if len(last) else 0


def rank_ends(graph: TaskGraph, records: Records) -> Int64:
    """Return the end of the last task of each rank (a transfer counts for both ends): int64[ranks]."""
    last = np.full(len(graph.rank_names), -1, np.int64)
    for ranks in (graph.rank, graph.peer):
        has_rank = ranks >= 0
        np.maximum.at(last, ranks[has_rank], records.end_ps[has_rank])
    return last


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Time of one layer, stage, phase or operator name: the maximum over the ranks, for each value."""

    name: str
    compute_ps: int
    communication_ps: int


def shares(
    graph: TaskGraph, records: Records, tasks: Bool, label: npt.NDArray[np.integer], names: tuple[str, ...]
) -> tuple[Share, ...]:
    """Return compute and communication time by a label, sorted by the first use of each name.

    ``label`` indexes ``names``; repeated names count as one. Each time is the length of the union of the tasks'
    intervals on a rank, maximised over the ranks; input copies count as communication. Names without time are
    dropped.
    """
    unique = {name: number for number, name in enumerate(dict.fromkeys(names))}
    code = np.array([unique[name] for name in names] + [-1], np.int64)[label]
    run = Window(0, _FOREVER, 0)
    is_labelled = tasks & (code >= 0)
    compute = compute_activity(graph, records, run, is_labelled & computing(graph))
    transfers = transfer_activity(graph, records, run, is_labelled & (graph.kind == TRANSFER))
    compute_ps = _longest(graph, compute, code, len(unique))
    communication_ps = _longest(graph, transfers, code, len(unique))
    return tuple(
        Share(name=name, compute_ps=int(compute_ps[number]), communication_ps=int(communication_ps[number]))
        for name, number in unique.items()
        if compute_ps[number] or communication_ps[number]
    )


def _merged(activity: Activity) -> Intervals:
    return merge(activity.rank, activity.start_ps, activity.end_ps)


def _longest(graph: TaskGraph, activity: Activity, code: Int64, num_codes: int) -> Int64:
    """Return for each code the longest time that any rank spends on it: int64[codes], ps."""
    num_ranks = len(graph.rank_names)
    cell = activity.rank * num_codes + code[activity.task]
    spent = lengths(merge(cell, activity.start_ps, activity.end_ps), num_ranks * num_codes)
    longest: Int64 = spent.reshape(num_ranks, num_codes).max(axis=0, initial=0)
    return longest
