"""The ranks of a timeline: which are shown, in which order, and their tracks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.common.arrays import Int64
from trine.report.blocks import SpanTrack, TrackGroup
from trine.report.run_spans import LAUNCHES, Spans
from trine.results.run import TaskRun

#: Ranks of a timeline.
MAX_RANKS = 24


def shown_rows(run: TaskRun) -> list[int]:
    """Return one row per class of ranks, the slowest rank first among its class; all rows without classes."""
    rows = range(len(run.graph.rank_names))
    first_choice = [run.slowest_row, *([run.fullest_row] if run.memory_uses else []), *rows]
    if run.scope is None:
        return list(dict.fromkeys(first_choice))
    of_class: dict[int, int] = {}
    for row in first_choice:
        of_class.setdefault(run.scope.class_of(run.shown_ranks[row]), row)
    return list(of_class.values())


def shown_row_of_each(run: TaskRun, rows: Sequence[int]) -> Int64:
    """Return the row that is shown for each row: the row of its class among ``rows``, itself without classes."""
    every = range(len(run.graph.rank_names))
    if run.scope is None:
        return np.array(every, np.int64)
    of_class = {run.scope.class_of(run.shown_ranks[row]): row for row in rows}
    return np.array([of_class.get(run.scope.class_of(run.shown_ranks[row]), row) for row in every], np.int64)


def rows_within(spans: Spans, rows: Sequence[int], max_spans: int) -> list[int]:
    """Return the first rows whose spans fit the limits, at least one."""
    counts = np.bincount(spans.row, minlength=max(rows, default=0) + 1)
    chosen: list[int] = []
    total = 0
    for row in rows[:MAX_RANKS]:
        total += int(counts[row])
        if chosen and total > max_spans:
            break
        chosen.append(row)
    return chosen


def place_of_row(rows: Sequence[int], row: Int64) -> Int64:
    """Return the place of each span's rank in the timeline: in the order of the rank numbers."""
    place = np.zeros(max(rows) + 1, np.int64)
    place[sorted(rows)] = np.arange(len(rows))
    return place[row]


def track_groups(run: TaskRun, spans: Spans, rows: Sequence[int], lane_names: dict[int, str]) -> tuple[TrackGroup, ...]:
    """Return the ranks with their tracks: spans are sorted by rank and lane."""
    bounds = np.flatnonzero(np.append(True, (np.diff(spans.row) != 0) | (np.diff(spans.lane) != 0)))
    ends = np.append(bounds[1:], len(spans.row)).tolist()
    streams = len(run.graph.stream_names)
    tracks: dict[int, list[SpanTrack]] = {}
    for first, end in zip(bounds.tolist(), ends, strict=True):
        lane = int(spans.lane[first])
        is_compute = lane < streams and lane_names[lane] != LAUNCHES
        track = SpanTrack(name=lane_names[lane], first=first, count=end - first, is_compute=is_compute)
        tracks.setdefault(int(spans.row[first]), []).append(track)
    return tuple(
        TrackGroup(name=f"rank {run.shown_ranks[row]}", tracks=tuple(of_row), note=_note_of_row(run, row))
        for row, of_row in tracks.items()
    )


def _note_of_row(run: TaskRun, row: int) -> str:
    """Return the stage of a rank, the ranks that it stands for, and whether it is the slowest."""
    rank, words = run.shown_ranks[row], []
    stages = run.graph.labels.stage[run.graph.rank == row]
    if run.graph.labels.stage.max(initial=0) > 0 and len(stages):
        words.append(f"stage {int(stages.max())}")
    if run.scope is not None:
        alike = run.scope.class_size(rank)
        words.append(f"{alike:,} ranks alike" if alike > 1 else "alone")
    if row == run.slowest_row:
        words.append("ends last")
    return ", ".join(words)
