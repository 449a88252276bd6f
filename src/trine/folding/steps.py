"""Folding over steps: a run of few training steps whose state repeats stands for one of many.

The search is that for micro-batches (:mod:`trine.folding.period`), with the step in place of the micro-batch: the tasks
of one rank, micro-batch and phase in a step are a list, and a window has each task of a step once. With local SGD, the
steps from one average to the next count as one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64, spans
from trine.folding.lists import tracks_of
from trine.folding.period import repeated_micro_batches, repeated_windows
from trine.folding.period_check import compare_times, tasks_of
from trine.folding.run import JobRun
from trine.folding.shifts import TasksByStart
from trine.graph.program import Phase
from trine.parallel.plan import Plan
from trine.parallel.template import LABEL_FIELDS
from trine.results.repeats import Repeat, RepeatedSteps, Repeats

_PHASE, _MICROBATCH, _STEP = (LABEL_FIELDS.index(name) for name in ("phase", "microbatch", "step"))
#: Periods that are tried, one number after the other; more of them if stages or prefetched parameters overlap steps.
TRIED, TRIED_IF_OVERLAPPING = (3, 5, 10), (4, 6, 12)
#: Steps of all attempts, as a part of the run's: the additional cost of steps that never repeat.
MAX_TRIED = 0.75
#: Runs of more steps do not fold.
MAX_STEPS = 10**6


def first_step_counts(plan: Plan) -> tuple[int, ...]:
    """Return numbers of steps to simulate, one after the other, until they repeat; empty if there are too few steps."""
    tried = TRIED_IF_OVERLAPPING if plan.pp > 1 or plan.prefetch else TRIED
    counts = [(plan.sync_every or 1) * periods for periods in tried]
    limit = 0 if plan.steps > MAX_STEPS else MAX_TRIED * plan.steps
    return tuple(count for number, count in enumerate(counts, 1) if sum(counts[:number]) <= limit)


def find_repeated_steps(run: JobRun, steps: int, simulated: int, every: int) -> RepeatedSteps | None:
    """Return the window that a run of ``simulated`` steps repeats to stand for ``steps``, or None.

    every: steps of a period, a divisor of both numbers.
    """
    repeats = run.repeats
    if repeats is not None and repeats.bound_ps:
        return None
    tracks = tracks_of(run, lambda labels: _by_step(labels, every))
    windows, keys = repeated_windows(TasksByStart.of(tracks).shifts(1), 1)
    if len(windows) != 1 or not repeated_micro_batches(tracks, keys, 1):
        return None
    start_ps, end_ps, _ = windows[0]
    if repeats is not None:
        if not _has_whole_period(repeats, start_ps, end_ps, simulated // every):
            return None
        start_ps, end_ps = repeats.stretch(np.array([start_ps, end_ps])).tolist()
    count = (steps - simulated) // every
    if (count + simulated) * end_ps > np.iinfo(np.int64).max:
        return None
    window = Repeat(start_ps, end_ps, frozenset())
    return RepeatedSteps(windows=(window,), count=count, steps=steps, simulated=simulated)


def _by_step(labels: npt.NDArray[np.int32], every: int) -> npt.NDArray[np.int32]:
    """Return labels with the period's number as micro-batch, and with step and micro-batch in the period as step.

    Launches without a step belong to the step before.
    """
    known = np.where(labels[_STEP] >= 0, np.arange(labels.shape[1]), 0)
    step, microbatch = labels[_STEP][np.maximum.accumulate(known)], labels[_MICROBATCH]
    relabelled = labels.copy()
    relabelled[_MICROBATCH] = step // every
    relabelled[_STEP] = step % every * (microbatch.max(initial=0) + 2) + microbatch + 1
    relabelled[_PHASE][labels[_PHASE] == Phase.INPUT] = -1
    return relabelled


def _has_whole_period(repeats: Repeats, start_ps: int, end_ps: int, periods: int) -> bool:
    """Return whether the time between two instants has the repeated micro-batches of one of ``periods`` periods."""
    windows, number = repeats.windows, len(repeats.windows) // periods
    is_cut = any(w.start_ps < instant < w.end_ps for w in windows for instant in (start_ps, end_ps))
    inside = [w for w in windows if start_ps <= w.start_ps and w.end_ps <= end_ps]
    is_even = all(w.phases == later.phases for w, later in zip(windows, windows[number:], strict=False))
    return not is_cut and is_even and len(inside) == number == len(windows) / periods


def check_repeated_steps(few: JobRun, every: JobRun, steps: RepeatedSteps) -> str:
    """Compare each task of the run of all steps with its prediction from the run of few; return a sentence.

    Both runs have all micro-batches. Raises SimulationError with the first difference.
    """

    def times_of(rank: int) -> Iterator[tuple[Int64, Int64]]:
        found, base = (tasks_of(run, rank, lambda labels: _by_step(labels, steps.period)) for run in (every, few))
        lists, tasks = base.lists, base.lists.tasks
        place = np.searchsorted(steps.windows[0][:2], base.start[tasks], "right")  # before, in and after the window
        copies = np.where(place == 1, steps.count + 1, 1)
        row, number = np.repeat(np.arange(len(tasks)), copies), spans(0, copies)
        number += np.where(place == 2, steps.count, 0)[row]
        of_list = lists.of_task[row]
        order = np.lexsort((lists.position[row], lists.microbatch[of_list] + number, lists.passes[of_list]))
        numbers = np.concatenate([found.others, found.lists.tasks])
        for before, after in ((base.start, found.start), (base.end, found.end)):
            predicted = (before[tasks][row] + number * steps.period_ps)[order]
            yield np.concatenate([before[base.others], predicted]), after[numbers]

    return compare_times(every, times_of, f"{steps.simulated} steps", "steps")
