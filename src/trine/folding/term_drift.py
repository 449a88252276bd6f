"""The change of a rank's times (compute, bubble, ...) from one repetition of a window to the next.

Tasks that nearly repeat may drift apart: a pause that is a microsecond longer in each repetition adds up to the square
of their number, though each start and each end moves by one microsecond a repetition only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int8, Int64
from trine.common.units import format_time
from trine.errors import SimulationError
from trine.folding.run import JobRun
from trine.results.activity import Window
from trine.results.metrics import RankTimes, rank_times
from trine.results.repeats import Repeat, Repeats
from trine.results.waits import releasers, wait_reasons

#: The times of a rank that are sums over its tasks.
TERMS = ("compute", "communication", "exposed", "bubble", "idle", "input_copy", "offload", "waits")


def drift_ps(run: JobRun, windows: Iterable[Repeat]) -> int:
    """Return the largest change of any time of a rank from the period before a window to the window, over all windows.

    The ranks are those that the run shows.
    """
    reasons = _reasons(run)
    total_ps = 0
    for window in windows:
        period_ps = window.end_ps - window.start_ps
        before = _columns(_times(run, window.start_ps - period_ps, window.start_ps, reasons))
        after = _columns(_times(run, window.start_ps, window.end_ps, reasons))
        total_ps += int(np.abs(after - before).max(initial=0))
    return total_ps


def check_terms(few: JobRun, every: JobRun, repeats: Repeats) -> None:
    """Compare the times of the ranks that both runs show. Raises SimulationError for a difference above the bound."""
    stretched = repeats.stretched(few.records)
    ends = int(stretched.end_ps.max(initial=0)), int(every.records.end_ps.max(initial=0))
    predicted = rank_times(few.graph, stretched, Window(0, ends[0], 0), _reasons(few))
    actual = rank_times(every.graph, every.records, Window(0, ends[1], 0), _reasons(every))
    rows = {rank: row for row, rank in enumerate(every.ranks)}
    for row, rank in enumerate(few.ranks):
        if rank not in rows:
            continue
        for name in TERMS:
            wanted, found = getattr(predicted, name)[row], getattr(actual, name)[rows[rank]]
            off_ps = int(np.abs(wanted - found).max())
            if off_ps > repeats.terms_bound_ps:
                raise SimulationError(
                    f"{name} of rank {rank} is {format_time(off_ps)} off in the run of {repeats.simulated} "
                    f"micro-batches, above the bound of {format_time(repeats.terms_bound_ps)}. This is a bug of trine: "
                    "please report it; --no-fold gives the right times"
                )


def _reasons(run: JobRun) -> Int8:
    """Return the wait reason of each task that the run shows: int8[tasks]."""
    if run.reasons is not None:
        return run.reasons()
    return wait_reasons(run.graph, run.records, releasers(run.graph, run.records))


def _times(run: JobRun, start_ps: int, end_ps: int, reasons: npt.NDArray[np.int8]) -> RankTimes:
    return rank_times(run.graph, run.records, Window(start_ps, end_ps, 0), reasons)


def _columns(times: RankTimes) -> Int64:
    """Return all times of each rank: int64[ranks, times], ps."""
    columns = []
    for name in TERMS:
        column = getattr(times, name)
        columns.append(column if column.ndim == 2 else column[:, None])
    return np.concatenate(columns, axis=1)
