"""The time of a pipeline from the times of its passes: each starts once its rank is free and its input is there.

The steady state of a pipeline is periodic. So the recurrence runs a few rounds of micro-batches and extends the last
one to the others.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.errors import PlanError
from trine.parallel.schedules import SCHEDULES, Pipeline
from trine.search._passes import PassState, PassTables, run_passes

#: Rounds of micro-batches (one per pipeline rank) that the recurrence runs before the one that it repeats.
ROUNDS = 3


class StageMessages(NamedTuple):
    """Times of messages from each rank to the next one in ps, int64[pp]; the last rank's goes to the first.

    wait_ps: the part for which the sender waits before its next pass.
    """

    time_ps: Int64
    wait_ps: Int64


def pipeline_ps(schedule: str, pp: int, micro_batches: int, durations: Int64, messages: StageMessages) -> int:
    """Return the end of the last pass in ps.

    durations: times of passes in ps by kind (forward, backward, input gradient, weight gradient, what follows gradients
    of weights beside the messages, and further times of :class:`trine.search.pass_times.EndPasses`) and chunk of the
    model. Returns 0 if the schedule's ranks would wait for
    each other, or if a micro-batch takes other ranks than its chunks'.
    """
    stages = durations.shape[1] // pp
    shown = micro_batches
    if micro_batches > (ROUNDS + 2) * pp:
        shown = ROUNDS * pp + micro_batches % pp
    first = _run(schedule, pp, shown, stages, durations, messages)
    if shown == micro_batches or not first:
        return first
    second = _run(schedule, pp, shown + pp, stages, durations, messages)
    return first + (second - first) * (micro_batches - shown) // pp


def _run(schedule: str, pp: int, micro_batches: int, stages: int, durations: Int64, messages: StageMessages) -> int:
    tables = _tables(schedule, pp, micro_batches, stages)
    if tables is None:
        return 0
    state = PassState(
        durations, np.full((2, pp * stages, micro_batches), -1, np.int64), np.zeros(pp, np.int64),
        tables.starts[:-1].copy(),
    )  # fmt: skip
    tables = tables._replace(message_ps=messages.time_ps, wait_ps=messages.wait_ps)
    return 0 if run_passes(tables, state, pp * stages - 1) else int(state.free.max())


@cache
def _tables(schedule: str, pp: int, micro_batches: int, stages: int) -> PassTables | None:
    """Return the order of passes; None for a shape that the schedule
    refuses, or a schedule whose chunks have no fixed rank (dualpipe)."""
    pipeline, order = Pipeline(pp, micro_batches, stages), SCHEDULES.get(schedule)
    try:
        order.check(pipeline)
    except PlanError:
        return None
    if any(order.rank_of(0, batch, pipeline) for batch in range(micro_batches)):
        return None
    ranks = [order.passes(rank, pipeline) for rank in range(pp)]
    starts = np.cumsum([0, *(len(passes) for passes in ranks)], dtype=np.int64)
    every = np.array([(each.kind, each.chunk, each.microbatch) for passes in ranks for each in passes], np.int64)
    kinds, chunks, batches = (np.ascontiguousarray(column) for column in every.reshape(-1, 3).T)
    return PassTables(starts, kinds, chunks, batches, np.zeros(pp, np.int64), np.zeros(pp, np.int64))
