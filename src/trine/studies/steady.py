"""A step of many micro-batches from fewer: simulated until the pace is steady, the rest by that pace, exactly.

The pace is steady where the last tasks of one micro-batch after the other end in distances that repeat (every one,
every second one, or every round of the pipeline), over at least as many micro-batches as there are stages (two rounds
of an interleaved pipeline). The step then takes the simulated time and the pace for every micro-batch more. Where no
such stretch is found, more micro-batches are simulated, at last all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trine.arrays import Int64
from trine.parallel.plan import Plan
from trine.results import Result

#: Distances are equal up to this part of them: flows that share links are rounded to picoseconds.
EQUAL = 2e-4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SteadyStep:
    """A step's time, and the run that it rests on: ``simulated`` of ``micro_batches`` were simulated."""

    step_ps: int
    result: Result
    simulated: int
    micro_batches: int


def steady_step(plan: Plan, simulate: Callable[[Plan], Result]) -> SteadyStep:
    """The step of ``plan``, of which as few micro-batches are simulated as show a steady pace."""
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
    """Picoseconds a micro-batch in the steady part of a run; None where there is none."""
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
    """When the last computation of each micro-batch ended: int64[micro-batches]."""
    number = result.graph.labels.microbatch
    chosen = (number >= 0) & (result.graph.labels.phase >= 0) & (result.graph.labels.phase <= 1)
    ends = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    np.maximum.at(ends, number[chosen], result.records.end_ps[chosen])
    return np.sort(ends)


def _rounded(count: int, plan: Plan) -> int:
    """Interleaved pipelines take whole rounds of as many micro-batches as stages."""
    return count if plan.virtual_stages == 1 else -(-count // plan.pp) * plan.pp
