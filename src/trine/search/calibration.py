"""Small simulations of a form of parallelism: few layers and micro-batches, on one stage or two, with all replicas.

The lower bound of a layer leaves out contention, and that of a step leaves out its end (gradients, optimizer, gathers
of parameters). Both appear in full in a job of a few layers. Two numbers of layers and two of micro-batches separate
them (:class:`trine.search.screen.Screen`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trine.common._jit import without_collector
from trine.common.observer import unobserved
from trine.errors import InputError
from trine.graph.grid import RankGrid
from trine.parallel.plan import Plan

if TYPE_CHECKING:
    from trine.results import Result
    from trine.search.space import Layout
    from trine.search.worker import PackedJob

#: Stages of a calibrated pipeline, and chunks of a stage of the interleaved schedule.
STAGES, CHUNKS = 2, 2


class FormSample(NamedTuple):
    """Sizes of the small jobs of a form. layers: of each chunk; micro_batches: of a replica; both least first."""

    pp: int
    virtual_stages: int
    layers: tuple[int, int]
    micro_batches: tuple[int, int]

    @property
    def chunks(self) -> int:
        """Number of chunks of the model."""
        return self.pp * self.virtual_stages


class SmallJobs(NamedTuple):
    """Simulated small jobs. times_ps: by layers, then micro-batches. needed_bytes: by layers, then of the first and the
    last stage; 0 if unknown."""

    times_ps: tuple[tuple[int, int], tuple[int, int]]
    needed_bytes: tuple[tuple[int, int], tuple[int, int]]


def sample_of(layout: Layout) -> FormSample:
    """Return the sizes of the small jobs that calibrate a layout."""
    if layout.pp == 1:
        return FormSample(1, 1, (3, 4), (1, 2))
    if layout.virtual_stages > 1:  # micro-batches are a multiple of the stages
        return FormSample(STAGES, CHUNKS, (1, 2), (2 * STAGES, 3 * STAGES))
    return FormSample(STAGES, 1, (3, 4), (2 * STAGES, 2 * STAGES + 1))


def simulate_small_jobs(packed: PackedJob, plan: Plan, sample: FormSample) -> SmallJobs | None:
    """Return the results of the four small jobs of a plan; None if one of them is refused."""
    from trine.folding.run import showing_few
    from trine.training import simulate

    job, times, needed = packed.job(), [], []
    assert plan.micro_batch is not None and plan.batch is not None
    clocks = job.probe.clocks.by_gpu(plan.micro_batch, plan.batch // plan.micro_batch)
    options = replace(job.options, clocks=clocks)
    try:
        with without_collector(), unobserved(), showing_few():
            for layers in sample.layers:
                row = []
                for count in sample.micro_batches:
                    small = replace(plan, pp=sample.pp, virtual_stages=sample.virtual_stages,
                                    batch=count * plan.micro_batch)  # fmt: skip
                    result = simulate(job.short(layers * sample.chunks), small, options=options)
                    row.append(result.step_time_ps)
                times.append((row[0], row[1]))
                needed.append(_needed_of_ends(result, small))
    except InputError:
        return None
    return SmallJobs((times[0], times[1]), (needed[0], needed[1]))


def _needed_of_ends(result: Result, plan: Plan) -> tuple[int, int]:
    """Return the most memory that a rank of the first stage and of the last stage needs, in bytes."""
    ranks = np.asarray(result.shown_ranks, np.int64)
    stages = RankGrid(plan.axes).coordinates(ranks, "pp").tolist() if plan.pp > 1 else [0] * len(ranks)
    most = [0, 0]
    for stage, use in zip(stages, result.memory_uses, strict=False):
        for end, number in enumerate((0, plan.pp - 1)):
            if stage == number:
                most[end] = max(most[end], use.needed_bytes)
    return most[0], most[1]
