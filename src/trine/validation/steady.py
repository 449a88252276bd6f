"""Extrapolate a step of many micro-batches, exactly, from a simulation of a few that reaches a steady pace.

The pace is steady if the gaps between the ends of successive micro-batches repeat: every gap, every second one, or
every round of the pipeline. They must repeat over at least one micro-batch per stage (two rounds of an interleaved
pipeline). The step then takes the simulated time plus the pace for each further micro-batch. Without such a stretch,
trine simulates more micro-batches, and finally all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trine.common.arrays import Int64
from trine.parallel.plan import Plan
from trine.results import Result

#: Relative tolerance for equal gaps: flows that share links are rounded to picoseconds.
EQUAL = 2e-4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SteadyStep:
    """A step's time, and the run behind it: ``simulated`` of ``micro_batches`` were simulated."""

    step_ps: int
    result: Result
    simulated: int
    micro_batches: int


def steady_step(plan: Plan, simulate: Callable[[Plan], Result]) -> SteadyStep:
    """Return the step of ``plan``, simulating only the micro-batches that a steady pace needs."""
    assert plan.batch is not None
    assert plan.micro_batch is not None
    total = -(-plan.batch // plan.micro_batch)
    parts = plan.pp * plan.virtual_stages
    count = _rounded(3 * plan.pp + 2 if parts == plan.pp else 4 * plan.pp, plan)
    count += (total - count) % 2 if parts == plan.pp else 0  # stages that meet twice a round repeat every second one
    while count < 0.8 * total and not plan.batch % plan.micro_batch:
        result = simulate(replace(plan, batch=count * plan.micro_batch))
        pace = pace_of(result, plan)
        if pace is not None:
            step = result.step_time_ps + round(pace * (total - count))
            return SteadyStep(step_ps=step, result=result, simulated=count, micro_batches=total)
        count = _rounded(2 * count, plan)
    result = simulate(plan)
    return SteadyStep(step_ps=result.step_time_ps, result=result, simulated=total, micro_batches=total)


def pace_of(result: Result, plan: Plan) -> float | None:
    """Return the picoseconds per micro-batch in the steady part of a run, or None if the run reaches no steady pace."""
    distances = np.diff(micro_batch_ends(result))
    filling = max(1, plan.pp - 1)
    inner = distances[: len(distances) - filling]
    for period in dict.fromkeys((1, 2, plan.pp)):
        wanted = period + max(2, filling) if plan.virtual_stages == 1 else 2 * plan.pp
        stretch = inner[-wanted:]
        if stretch.size < wanted:
            continue
        off = np.abs(stretch[period:] - stretch[:-period])
        if off.max() <= EQUAL * stretch.mean():
            return float(stretch[-period:].mean())
    return None


def micro_batch_ends(result: Result) -> Int64:
    """Return the end of the last computation of each micro-batch: int64[micro-batches]."""
    number = result.graph.labels.microbatch
    chosen = (number >= 0) & (result.graph.labels.phase >= 0) & (result.graph.labels.phase <= 1)
    ends = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    np.maximum.at(ends, number[chosen], result.records.end_ps[chosen])
    return np.sort(ends)


def _rounded(count: int, plan: Plan) -> int:
    """Round up to whole rounds for interleaved pipelines: one micro-batch per stage and round."""
    return count if plan.virtual_stages == 1 else -(-count // plan.pp) * plan.pp
