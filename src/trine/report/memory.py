"""Memory over time of the fullest rank, by kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.common.units import PS_PER_S
from trine.graph.memory import MEMORY_CATEGORIES
from trine.report.blocks import Areas, AreaSeries, ChartAxis
from trine.report.memory_colours import MEMORY_COLOURS
from trine.results.memory import MemoryTimeline
from trine.results.run import TaskRun

#: Instants of the chart.
MAX_TIMES = 400


def memory_over_time(run: TaskRun) -> Areas | None:
    """Return the memory of the fullest rank over the whole run, by kind of tensor; None if it is not modelled."""
    timeline = run.memory_timeline
    if timeline is None:
        return None
    names = []
    for name in MEMORY_CATEGORIES:
        names.append((name.replace("_", " "), MEMORY_COLOURS.get(name, "other")))
    return drawn_memory(run, timeline, names)


def drawn_memory(run: TaskRun, timeline: MemoryTimeline, names: Sequence[tuple[str, str]]) -> Areas:
    """Return the memory of the fullest rank over the whole run. names: name and colour of each category.

    Between two instants of the chart the state with the largest total is shown, so that no peak is lost.
    """
    row = run.fullest_row
    part = slice(int(timeline.rank_ptr[row]), int(timeline.rank_ptr[row + 1]))
    changes = np.zeros((part.stop - part.start, len(names)), np.int64)
    changes[np.arange(len(changes)), timeline.category[part]] = timeline.delta_bytes[part]
    states = np.concatenate((np.zeros((1, changes.shape[1]), np.int64), np.cumsum(changes, axis=0)))
    states[:, : timeline.resident_bytes.shape[1]] += timeline.resident_bytes[row]
    times = np.concatenate(([0], timeline.time_ps[part]))
    chosen = _largest_of_bins(times, states.sum(axis=1), max(run.end_time_ps, 1))
    use = run.memory_uses[row]
    seconds = [*(times[chosen] / PS_PER_S).tolist(), run.end_time_ps / PS_PER_S]
    columns = states[chosen]
    series = []
    for number, (name, colour) in enumerate(names):
        values = columns[:, number].tolist()
        if any(values):
            held = tuple(map(float, (*values, values[-1])))
            series.append(AreaSeries(name=name, y=held, colour=colour))
    return Areas(
        title=f"Tensors in memory on rank {run.fullest_rank}, the fullest",
        x_axis=ChartAxis(title="time", unit="s"),
        y_axis=ChartAxis(title="memory", unit="bytes"),
        x=tuple(seconds),
        series=tuple(series),
        limit=float(use.available_bytes) if use.available_bytes else None,
        limit_name="available to the allocator:",
        note=_note(run),
    )


def _largest_of_bins(times: np.ndarray, totals: np.ndarray, end: int) -> np.ndarray:
    """Return the index of the largest total in each of MAX_TIMES bins of time that has a change: int64[n]."""
    bins = np.minimum(times * MAX_TIMES // end, MAX_TIMES - 1)
    order = np.lexsort((-totals, bins))
    first = np.append(True, bins[order][1:] != bins[order][:-1])
    return np.sort(order[first])


def _note(run: TaskRun) -> str:
    if run.repeats is None:
        return ""
    return "Memory is flat where folded micro-batches repeat: they hold what the period before them holds."
