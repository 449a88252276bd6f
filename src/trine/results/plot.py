"""Pictures for papers and reports (extra ``plot``): the timeline of ranks, and time breakdowns of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE
from trine.results.activity import (
    PHASE_NAMES,
    Activity,
    communicating,
    compute_activity,
    computing,
    input_copies,
    launches,
    transfer_activity,
)
from trine.results.axes import tidy, time_scale, title
from trine.results.intervals import Intervals, merge
from trine.results.picture import matplotlib, save, subplots
from trine.results.run import TaskRun
from trine.results.summary import question

#: Colours distinguishable for colour-blind readers and in grey (Okabe and Ito, 2008).
_COLOURS = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "recompute": "#F0E442",
    "optimizer": "#009E73",
    "compute": "#56B4E9",
    "launch": "#999999",
    "communication": "#E69F00",
    "input copy": "#CC79A7",
    "exposed communication": "#E69F00",
    "pipeline bubble": "#D55E00",
    "idle": "#DDDDDD",
}
_MAX_RANKS = 16
#: Width of the longest name in a legend, with its colour.
_LEGEND_COLUMN_INCHES = 1.65


def plot_timeline(result: TaskRun, path: str | Path, *, ranks: Sequence[int] | None = None) -> None:
    """Write :func:`timeline` to ``path`` (PNG, SVG or PDF by its ending)."""
    save(timeline(result, ranks=ranks), path)


def plot_breakdown(results: Sequence[TaskRun], labels: Sequence[str], path: str | Path) -> None:
    """Write :func:`breakdown` to ``path`` (PNG, SVG or PDF by its ending)."""
    save(breakdown(results, labels), path)


def timeline(result: TaskRun, *, ranks: Sequence[int] | None = None) -> Any:
    """Draw the activity of ranks over the step; return the figure.

    One row per rank and stream, coloured by phase, and one row per rank for its transfers. ``ranks`` chooses and orders
    the ranks; without it, one rank represents all identical ones among the first 16.

    Raises InputError for a rank that does not exist, MissingExtraError without matplotlib.
    """
    left_out, result = result.left_out_words, result.excerpt
    names = result.graph.rank_names
    shown_ranks = list(range(min(len(names), _MAX_RANKS))) if ranks is None else list(ranks)
    for rank in shown_ranks:
        if not 0 <= rank < len(names):
            raise InputError(f"there is no rank {rank}, ranks are 0 to {len(names) - 1}", field="ranks")
    if ranks is None:
        groups = _identical(result, shown_ranks)
        rows = [(label.replace(names[group[0]], _group_name(result, group), 1), spans)
                for group, drawn in groups for label, spans in drawn]  # fmt: skip
    else:
        rows = [row for rank in shown_ranks for row in _rows(result, rank)]
    unit, scale = time_scale(result.step_time_ps)
    figure, axes = subplots(figsize=(10, 1.3 + 0.3 * len(rows)))
    for height, (_, spans) in enumerate(rows):
        for colour, span in spans.items():
            bars = [
                ((start - result.window.start_ps) / scale, (end - start) / scale)
                for start, end in zip(span.start_ps.tolist(), span.end_ps.tolist(), strict=True)
            ]
            axes.broken_barh(bars, (height - 0.4, 0.8), color=_COLOURS[colour], linewidth=0.4)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(result.step_time_ps / scale, 1e-9))
    axes.set_xlabel(f"time in the step ({unit}){left_out}")
    used_colours = dict.fromkeys(colour for _, spans in rows for colour in spans)
    title(axes, question(result))
    _legend(figure, [colour for colour in _COLOURS if colour in used_colours])
    tidy(axes, "x")
    return figure


def _identical(result: TaskRun, ranks: Sequence[int]) -> list[tuple[list[int], list[tuple[str, dict[str, Intervals]]]]]:
    """Return groups of ranks with identical activity, each with the rows of its first rank."""
    groups: dict[tuple[object, ...], list[int]] = {}
    drawn: dict[tuple[object, ...], list[tuple[str, dict[str, Intervals]]]] = {}
    for rank in ranks:
        rows, name = _rows(result, rank), result.graph.rank_names[rank]
        key = tuple(
            (label.removeprefix(name), colour, span.start_ps.tobytes(), span.end_ps.tobytes())
            for label, spans in rows
            for colour, span in spans.items()
        )
        groups.setdefault(key, []).append(rank)
        drawn.setdefault(key, rows)
    return [(group, drawn[key]) for key, group in groups.items()]


def _group_name(result: TaskRun, group: Sequence[int]) -> str:
    """Return ``gpu0 x 8``: the first rank, and the number of ranks it represents."""
    scope = result.scope
    if scope is None or scope.shows_all:
        count = len(group)
    else:
        classes = {scope.class_of(result.shown_ranks[rank]): result.shown_ranks[rank] for rank in group}
        count = sum(scope.class_size(rank) for rank in classes.values())
    return f"{result.graph.rank_names[group[0]]}{f' x {count:,}' if count > 1 else ''}"


def breakdown(results: Sequence[TaskRun], labels: Sequence[str]) -> Any:
    """Draw the breakdown of each result's slowest rank as stacked bars; return the figure.

    Raises InputError unless there is at least one result and one label for each, MissingExtraError without matplotlib.
    """
    if not results or len(results) != len(labels):
        raise InputError(f"needs one label a result, got {len(results)} results and {len(labels)} labels")
    unit, scale = time_scale(max(result.step_time_ps for result in results))
    parts = {"compute": "compute", "exposed communication": "exposed", "pipeline bubble": "bubble", "idle": "idle"}
    figure, axes = subplots(figsize=(max(4.5, 1.4 + 0.95 * len(results)), 4))
    below = np.zeros(len(results))
    used_parts = []
    for name, part in parts.items():
        values = np.array([getattr(r.rank_times, part)[r.slowest_row] for r in results], np.int64) / scale
        if values.any():
            axes.bar(range(len(results)), values, 0.62, bottom=below, color=_COLOURS[name], linewidth=0)
            used_parts.append(name)
        below += values
    for place, total in enumerate(below.tolist()):
        axes.annotate(f"{total:.3g}", (place, total), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(results)), labels)
    axes.set_ylabel(f"step time ({unit})")
    axes.margins(y=0.12)
    asked = question(results[0])  # several runs have the workload and the machine in common
    title(axes, asked if len(results) == 1 else asked.partition(": ")[0])
    _legend(figure, used_parts)
    tidy(axes, "y")
    return figure


def _rows(result: TaskRun, rank: int) -> list[tuple[str, dict[str, Intervals]]]:
    """Return the rows of a rank: a name, and the intervals by colour. Skips empty rows."""
    graph, window = result.graph, result.window
    name = graph.rank_names[rank]
    rows: list[tuple[str, dict[str, Intervals]]] = []
    for stream, owner in enumerate(graph.stream_ranks):
        if owner == rank:
            on_stream = (graph.kind == COMPUTE) & (graph.stream == stream)
            colours = {"launch": on_stream & launches(graph)}
            for code, phase in ((-1, "compute"), *enumerate(PHASE_NAMES)):
                colours[phase] = on_stream & computing(graph) & (graph.labels.phase == code)
            spans = {c: _spans(compute_activity(graph, result.records, window, m), rank) for c, m in colours.items()}
            rows.append((f"{name} {graph.stream_names[stream]}", spans))
    masks = {"input copy": input_copies(graph), "communication": communicating(graph)}
    spans = {c: _spans(transfer_activity(graph, result.records, window, m), rank) for c, m in masks.items()}
    rows.append((f"{name} transfers", spans))
    nonempty = []
    for label, by_colour in rows:
        nonempty.append((label, {colour: span for colour, span in by_colour.items() if len(span.group)}))
    return [(label, spans) for label, spans in nonempty if spans]


def _spans(activity: Activity, rank: int) -> Intervals:
    mine = activity.rank == rank
    return merge(activity.rank[mine], activity.start_ps[mine], activity.end_ps[mine])


def _legend(figure: Any, names: Sequence[str]) -> None:
    handles = [matplotlib().patches.Rectangle((0, 0), 1, 1, color=_COLOURS[name]) for name in names]
    columns = max(2, int(figure.get_figwidth() / _LEGEND_COLUMN_INCHES))
    figure.legend(handles, names, loc="outside upper center", ncols=columns, fontsize=9, frameon=False)
