"""The timeline of a run: spans of one rank per class, their causes, and the critical path.

A span is a compute task, a message, or the part of a collective on one rank. Joins are left out: the cause of a span is
the span behind them. Causes on ranks that are left out are followed until a shown rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.report.blocks import TimelineBlock
from trine.report.run_spans import Spans, all_spans, only_rows
from trine.report.span_causes import critical_spans, span_causes, span_of_tasks
from trine.report.span_columns import (
    SPAN_COLOURS,
    narrow,
    operators_with_program,
    span_colours,
    span_details,
    zoom_words,
)
from trine.report.span_ranks import place_of_row, rows_within, shown_row_of_each, shown_rows, track_groups
from trine.report.span_repeats import repeated_periods, skipped_ps
from trine.results.records import task_names
from trine.results.run import TaskRun
from trine.results.waits import REASONS, causes, through_joins

#: What a span waited for, in words.
_REASONS = {
    "start": "nothing: it can start with the step",
    "compute": "computation",
    "communication": "communication",
    "input copy": "a copy of inputs",
    "launch": "the CPU's launch",
    "stream": "the span before it on its stream",
    "network": "a free link",
    "offload": "a copy to or from host memory",
}
#: Spans of a timeline; ranks beyond it are left out, the slowest and the fullest rank are always there.
MAX_SPANS = 120_000
#: The longest timeline in its units, so that times fit uint32 with repetitions.
_MAX_LENGTH = 2**31


def timeline(run: TaskRun, max_spans: int = MAX_SPANS) -> TimelineBlock | None:
    """Return the timeline of a run's last step; None if it has no span. Times of the last step start at 0."""
    excerpt = run.excerpt
    graph, records, window = excerpt.graph, excerpt.records, excerpt.window
    rows = shown_rows(run)
    spans, lane_names = all_spans(excerpt, window)
    spans = only_rows(spans, rows_within(spans, rows, max_spans))
    if not len(spans.task):
        return None
    order = np.lexsort((spans.task, spans.start_ps, spans.lane, place_of_row(rows, spans.row)))
    spans = Spans(*(column[order] for column in spans))
    unit_ps = _unit_ps(run.step_time_ps)
    skipped = skipped_ps(run, spans.start_ps, window)
    start = (spans.start_ps - window.start_ps + skipped) // unit_ps
    end = (spans.end_ps - window.start_ps + skipped) // unit_ps
    task_cause = through_joins(graph, causes(graph, records, excerpt.released_by))
    span_of = span_of_tasks(graph, records, spans, shown_row_of_each(run, rows))
    on_path = np.zeros(graph.num_tasks, np.bool_)
    on_path[excerpt.critical_path] = True
    names, name_words = task_names(graph)
    used, name = np.unique(names[spans.task], return_inverse=True)
    details, detail_words = span_details(graph, spans.task)
    return TimelineBlock(
        title="The step of one rank per class",
        unit_ps=unit_ps,
        length=max(1, -(-run.step_time_ps // unit_ps)),
        groups=track_groups(run, spans, rows, lane_names),
        names=tuple(name_words[code] for code in used.tolist()),
        details=detail_words,
        colours=SPAN_COLOURS,
        reasons=tuple(_REASONS[name] for name in REASONS),
        start=np.maximum(start, 0).astype(np.uint32),
        duration=np.maximum(end - start, 0).astype(np.uint32),
        name=narrow(name),
        microbatch=narrow(graph.labels.microbatch[spans.task]),
        detail=details,
        colour=span_colours(graph, spans.task),
        cause=span_causes(spans, span_of, task_cause),
        reason=excerpt.wait_reasons[spans.task].astype(np.int8),
        critical=critical_spans(spans, span_of, on_path),
        repeats=repeated_periods(run, window, unit_ps),
        programs=operators_with_program([name_words[code] for code in used.tolist()]),
        zooms=zoom_words(graph, spans.task, details, len(detail_words)),
        note=_note(run, spans, rows),
    )


def _unit_ps(step_ps: int) -> int:
    """Return the unit of times: the smallest power of ten in which the step fits."""
    unit = 1
    while step_ps // unit > _MAX_LENGTH:
        unit *= 10
    return unit


def _note(run: TaskRun, spans: Spans, rows: Sequence[int]) -> str:
    shown, total = len(np.unique(spans.row)), len(rows)
    words = [f"{len(spans.task):,} spans"]
    if shown < total:
        words.append(f"{shown} of {total} different ranks; --show-rank R chooses others")
    words.append("a collective is one span per rank")
    return "; ".join(words) + "."
