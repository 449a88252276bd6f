"""Folded periods of a run, at their times in its timeline."""

from __future__ import annotations

import numpy as np

from trine.common.arrays import Int64
from trine.report.blocks import RepeatedPeriod
from trine.results.activity import Window
from trine.results.run import TaskRun


def skipped_ps(run: TaskRun, start_ps: Int64, window: Window) -> Int64:
    """Return the delay of each span in the step that the excerpt stands for: int64[spans], ps."""
    if run.repeats is None:
        return np.zeros(len(start_ps), np.int64)
    before = run.repeats.later_ps(np.array([window.start_ps]))
    skipped_ps: Int64 = run.repeats.later_ps(start_ps) - before[0]
    return skipped_ps


def repeated_periods(run: TaskRun, window: Window, unit_ps: int) -> tuple[RepeatedPeriod, ...]:
    """Return the repeated windows of the last step, at their times in the timeline."""
    if run.repeats is None:
        return ()
    found, skipped = [], 0
    for each in run.repeats.windows:
        if each.end_ps <= window.start_ps or each.start_ps >= window.end_ps:
            continue
        start = (each.start_ps - window.start_ps + skipped) // unit_ps
        end = (each.end_ps - window.start_ps + skipped) // unit_ps
        found.append(RepeatedPeriod(start=start, end=end, count=run.repeats.count))
        skipped += run.repeats.count * (each.end_ps - each.start_ps)
    return tuple(found)
