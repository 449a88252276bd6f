"""How much longer the first forward passes and the last backward passes of a small job take than its other passes.

Gradients are reduced beside the last backward passes, and parameters gathered beside the first forward ones; their
kernels slow these passes down. A pipeline runs the last backward passes of its stages one after the other, so that a
layout with many stages waits for the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trine.graph.grid import RankGrid
from trine.graph.program import COMPUTE_STREAM, Phase
from trine.graph.taskgraph import COMPUTE

if TYPE_CHECKING:
    from trine.parallel.plan import Plan
    from trine.results import Result

_OF_PASSES = (int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.RECOMPUTE))


class EndPasses(NamedTuple):
    """Further time per chunk in ps, in the order of chunks.

    first_forward, last_backward: of the pass of the first, or last, micro-batch. behind: of the first backward pass of
    the last round of an interleaved schedule, which runs behind the last pass of the chunk before. after: time of the
    step after the last pass of all ranks, such as the optimizer's.
    """

    first_forward: tuple[float, ...]
    last_backward: tuple[float, ...]
    behind: tuple[float, ...]
    after: float = 0.0


class EndRates(NamedTuple):
    """Further time of a pass in ps: ``layer`` per layer, and an offset for the first, the last and any other chunk."""

    layer: float
    first: float
    middle: float
    last: float

    def of(self, layers: list[float]) -> list[float]:
        """Return the further time of each chunk, from its layers."""
        offsets = [self.middle] * len(layers)
        offsets[-1] = self.last
        offsets[0] = self.first
        return [
            max(0.0, offset + self.layer * count) if count else 0.0
            for offset, count in zip(offsets, layers, strict=True)
        ]


NO_FURTHER_TIME = EndRates(0.0, 0.0, 0.0, 0.0)


def end_passes(result: Result, plan: Plan) -> EndPasses:
    """Return the further times of a small job's passes, each next to those of a micro-batch in the middle.

    result: without folding in time. A rank's chunks share its further time equally.
    """
    stages = plan.virtual_stages
    first, last, behind = np.zeros((3, plan.pp * stages))
    for stage, row in enumerate(_a_row_of_each_stage(result, plan)):
        totals = _totals_of(result, row)
        forward, backward = totals[True], totals[False]
        first[stage :: plan.pp] = _further(forward, 0) / stages
        last[stage :: plan.pp] = _further(backward, -1) / stages
        if stages > 1:
            behind[stage :: plan.pp] = _further(backward, -plan.pp) / (stages - 1)
    behind[-plan.pp :] = 0.0  # no chunk is before
    after = float(result.step_time_ps - _end_of_passes(result))
    return EndPasses(tuple(first.tolist()), tuple(last.tolist()), tuple(behind.tolist()), after)


def end_rates(fewer: tuple[float, ...], more: tuple[float, ...], layers: tuple[int, ...]) -> EndRates:
    """Return rates through the further times of chunks with ``layers``, and with one layer more each."""
    rate = float(np.mean(more) - np.mean(fewer))
    offsets = [time - rate * count for time, count in zip(fewer, layers, strict=True)]
    middle = offsets[1:-1] or offsets
    return EndRates(rate, offsets[0], float(np.mean(middle)), offsets[-1])


def _a_row_of_each_stage(result: Result, plan: Plan) -> list[int]:
    """Return the row of the first shown rank of each stage."""
    ranks = np.asarray(result.shown_ranks, np.int64)
    stages = RankGrid(plan.axes).coordinates(ranks, "pp")
    return [int(np.argmax(stages == stage)) for stage in range(plan.pp)]


def _end_of_passes(result: Result) -> int:
    """Return the end of the last operator of a pass in ps."""
    graph, records = result.graph, result.records
    is_of_pass = (np.asarray(graph.kind) == COMPUTE) & np.isin(np.asarray(graph.labels.phase), _OF_PASSES)
    is_of_pass &= (np.asarray(graph.labels.microbatch) >= 0) & (np.asarray(records.start_ps) >= 0)
    ends = np.asarray(records.end_ps)[is_of_pass]
    return int(ends.max()) if len(ends) else 0


def _totals_of(result: Result, row: int) -> Mapping[bool, Mapping[int, int]]:
    """Return the times of a rank's passes in ps, by direction (forward is True) and micro-batch.

    A pass takes from the start of its first operator to the end of its last one. Operators of one micro-batch and
    direction that follow each other are one pass.
    """
    graph, records = result.graph, result.records
    phase, micro_batch = np.asarray(graph.labels.phase), np.asarray(graph.labels.microbatch)
    pairs = zip(graph.stream_names, graph.stream_ranks, strict=True)
    streams = [number for number, pair in enumerate(pairs) if pair == (COMPUTE_STREAM, row)]
    is_own = (np.asarray(graph.kind) == COMPUTE) & np.isin(graph.stream, streams) & (np.asarray(records.start_ps) >= 0)
    own = np.flatnonzero(is_own & (micro_batch >= 0) & np.isin(phase, _OF_PASSES))
    own = own[np.argsort(np.asarray(records.start_ps)[own], kind="stable")]
    totals: dict[bool, dict[int, int]] = {True: {}, False: {}}
    if not len(own):  # a stage without layers
        return totals
    is_forward, batch = phase[own] == Phase.FORWARD, micro_batch[own].astype(np.int64)
    begins = np.flatnonzero(np.diff(2 * batch + is_forward, prepend=np.int64(-1)))
    ends = np.append(begins[1:], len(own)) - 1
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        time_ps = int(records.end_ps[own[end]] - records.start_ps[own[begin]])
        of_batch = totals[bool(is_forward[begin])]
        of_batch[int(batch[begin])] = of_batch.get(int(batch[begin]), 0) + time_ps
    return totals


def _further(totals: Mapping[int, int], place: int) -> float:
    """Return the further time in ps of the micro-batch at ``place`` against the one in the middle."""
    each = [totals[batch] for batch in sorted(totals)]
    return float(each[place] - each[(len(each) - 1) // 2]) if len(each) > abs(place) else 0.0
