"""Spans of a run: compute tasks, messages, and the part of each collective on each rank, in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.graph.taskgraph import COMPUTE, TaskGraph
from trine.results.activity import Window, communicating, in_step, input_copies, offloads, transfer_activity
from trine.results.run import TaskRun

#: Axes of communication, in the order of their lanes; "": none.
SPAN_AXES = ("tp", "cp", "ep", "pp", "dp", "")
#: Name of the lanes of the launching threads.
LAUNCHES = "CPU launches"
_MESSAGES = "messages"


class Spans(NamedTuple):
    """Spans before they are sorted: int64 arrays of one length.

    task: the task that begins a span. row: the rank's row. start_ps, end_ps. lane: a number that separates the tracks
    of one rank, in order.
    """

    task: Int64
    row: Int64
    start_ps: Int64
    end_ps: Int64
    lane: Int64


def all_spans(run: TaskRun, window: Window) -> tuple[Spans, dict[int, str]]:
    """Return the spans of all rows, unsorted, and the name of each lane."""
    graph, records = run.graph, run.records
    is_shown = in_step(graph, window)
    is_compute = is_shown & (graph.kind == COMPUTE) & (graph.rank >= 0)
    compute = np.flatnonzero(is_compute & (records.end_ps > records.start_ps))
    lanes = {number: _stream_name(name) for number, name in enumerate(graph.stream_names)}
    on_streams = Spans(
        compute, graph.rank[compute].astype(np.int64), records.start_ps[compute], records.end_ps[compute],
        graph.stream[compute].astype(np.int64),
    )  # fmt: skip
    moving = is_shown & (communicating(graph) | input_copies(graph) | offloads(graph))
    activity = transfer_activity(graph, records, window, moving)
    transfers = Spans(*activity, kind_of_transfer(graph, activity.task))
    merged = _collectives_joined(graph, transfers)
    lane, lane_names = _lanes(merged, len(lanes))
    lanes |= lane_names
    parts = zip(on_streams, merged._replace(lane=lane), strict=True)
    return Spans(*(np.concatenate(pair) for pair in parts)), lanes


def _stream_name(name: str) -> str:
    return LAUNCHES if name.startswith("cpu") else name


def kind_of_transfer(graph: TaskGraph, tasks: Int64) -> Int64:
    """Return the kind of each transfer: its index in SPAN_AXES; input copies and offload come after."""
    between = SPAN_AXES.index("pp") if graph.labels.stage.max(initial=-1) > 0 else len(SPAN_AXES) - 1
    axis = [
        SPAN_AXES.index(label.axis) if label.axis in SPAN_AXES else len(SPAN_AXES) - 1 for label in graph.collectives
    ]
    kind = np.array([*axis, between], np.int64)[graph.labels.collective[tasks]]
    kind[input_copies(graph)[tasks]] = len(SPAN_AXES)
    kind[offloads(graph)[tasks]] = len(SPAN_AXES) + 1
    return kind


def _collectives_joined(graph: TaskGraph, spans: Spans) -> Spans:
    """Join the transfers of one collective on one rank to one span, from the first start to the last end."""
    collective = graph.labels.collective[spans.task].astype(np.int64)
    alone = -1 - np.arange(len(collective))
    key = np.where(collective >= 0, collective, alone)
    order = np.lexsort((spans.task, spans.start_ps, key, spans.row))
    key, row = key[order], spans.row[order]
    is_first = np.append(True, (key[1:] != key[:-1]) | (row[1:] != row[:-1])) if len(order) else np.zeros(0, np.bool_)
    first = np.flatnonzero(is_first)
    if not len(first):
        return spans
    end_ps = np.maximum.reduceat(spans.end_ps[order], first)
    chosen = order[first]
    return Spans(spans.task[chosen], spans.row[chosen], spans.start_ps[chosen], end_ps, spans.lane[chosen])


def _lanes(spans: Spans, first: int) -> tuple[Int64, dict[int, str]]:
    """Return a lane for each span so that spans of one lane do not overlap, and the names of the lanes.

    Lanes of one kind follow each other: kind ``k`` has the numbers from ``first + 1000 k`` on.
    """
    words = [f"{axis or _MESSAGES} comm." for axis in SPAN_AXES[:-1]] + [_MESSAGES, "input copy", "offload"]
    lane = np.zeros(len(spans.task), np.int64)
    names: dict[int, str] = {}
    order = np.lexsort((spans.start_ps, spans.lane, spans.row))
    free_from: list[int] = []
    last = (-1, -1)
    columns = (spans.row[order], spans.lane[order], spans.start_ps[order], spans.end_ps[order])
    for place, row, kind, start, end in zip(order.tolist(), *(column.tolist() for column in columns), strict=True):
        if (row, kind) != last:
            last, free_from = (row, kind), []
        number = next((lane for lane, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[number : number + 1] = [end]
        lane[place] = first + 1000 * kind + number
        names[first + 1000 * kind + number] = words[kind] if number == 0 else f"{words[kind]} {number + 1}"
    return lane, names


def only_rows(spans: Spans, rows: Sequence[int]) -> Spans:
    keep = np.isin(spans.row, rows)
    return Spans(*(column[keep] for column in spans))
