"""Small simulations of a form of parallelism: few layers and micro-batches, on one stage or two, with all replicas.

The lower bound of a layer leaves out contention. The lower bound of a step leaves out its end: gradients, optimizer
and gathers of parameters. A job of a few layers shows both in full. Two numbers of layers and two numbers of
micro-batches separate them (:class:`trine.search.screen.LayoutScreen`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trine.common.collector import without_collector
from trine.common.observer import unobserved
from trine.common.work_reports import doing
from trine.compute.spread import MAX_SPREAD, slowest_of
from trine.errors import InputError
from trine.graph.grid import RankGrid
from trine.parallel.plan import Plan
from trine.parallel.schedules import known_order
from trine.search.pass_times import EndPasses, end_passes
from trine.search.words import plan_words

if TYPE_CHECKING:
    from trine.results import Result
    from trine.search.bounds import StageLayers
    from trine.search.space import Layout
    from trine.search.worker import PackedJob, SearchJob

#: Most stages of a small job (a first one, a last one and two between them), and most chunks of all stages.
STAGES, CHUNKS = 4, 16
#: Most layers of a usual chunk in the smaller jobs.
MAX_LAYERS = 4


class FormSample(NamedTuple):
    """Sizes of the small jobs of a form: layers of each chunk and micro-batches of a replica, both least first."""

    pp: int
    virtual_stages: int
    chunks: tuple[tuple[int, ...], tuple[int, ...]]
    micro_batches: tuple[int, int]


class SmallJobs(NamedTuple):
    """Simulated small jobs.

    times_ps: by layers, then micro-batches, one or two of them. needed_bytes: by layers, then of the first and the last
    stage; 0 if unknown. end_passes: of pipelines, by layers.
    """

    sample: FormSample
    times_ps: tuple[tuple[int, ...], tuple[int, ...]]
    needed_bytes: tuple[tuple[int, int], tuple[int, int]]
    end_passes: tuple[EndPasses, ...] = ()


def sample_of(layout: Layout, micro_batches: int, stages: StageLayers | None) -> FormSample:
    """Return the sizes of the small jobs that calibrate a layout with this many micro-batches.

    stages: the layers of its chunks, None if unknown. The first and last chunks of a small job have as many layers
    more or fewer than the other chunks as in the layout. So the same rank limits the pace.
    """
    if layout.pp == 1:
        return FormSample(1, 1, ((3,), (4,)), (1, 2))
    pp = min(layout.pp, STAGES)
    virtual_stages = min(layout.virtual_stages, CHUNKS // pp)
    of_layout = () if stages is None else stages.chunks
    chunks = _shape(pp * virtual_stages, of_layout)
    while of_layout and sum(chunks) + len(chunks) > sum(of_layout) and max(pp, virtual_stages) > 2:
        if virtual_stages > 2:  # no job has more layers than the model
            virtual_stages -= 1
        else:
            pp -= 1
        chunks = _shape(pp * virtual_stages, of_layout)
    order = known_order(layout.schedule)
    if order.takes_virtual_stages:
        least = pp if micro_batches == layout.pp else 2 * pp
    else:
        least = min(2 * pp, micro_batches)
    counts = (least, least + order.microbatch_multiple(pp))
    return FormSample(pp, virtual_stages, (chunks, tuple(count + 1 for count in chunks)), counts)


def _shape(count: int, layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return few layers for each of ``count`` chunks: the first, and the last two, differ from others as in ``layers``.

    At least one chunk has one layer. The last chunks of a model with a large head may be empty.
    """
    if not layers:
        return (1,) * count
    middle = sorted(layers)[len(layers) // 2]
    differences = [0] * count
    for place in (0, -2, -1):
        differences[place] = layers[place] - middle
    base = max(1, min(-min(differences), MAX_LAYERS))
    return tuple(max(0, base + each) for each in differences)


class FewLayers(NamedTuple):
    """Simulated small jobs with one number of layers: a part of :class:`SmallJobs`. end_passes: None on one stage."""

    times_ps: tuple[int, ...]
    needed_bytes: tuple[int, int]
    end_passes: EndPasses | None


def simulate_small_jobs(
    packed: PackedJob, plan: Plan, sample: FormSample, knows_passes: bool = False
) -> SmallJobs | None:
    """Return the results of the four small jobs of a plan; None if one of them is refused.

    knows_passes: the time of a further micro-batch is known, so that two jobs are enough.
    """
    fewer, more = (simulate_few_layers(packed, plan, sample, chunks, knows_passes) for chunks in sample.chunks)
    return together(sample, fewer, more)


def together(sample: FormSample, fewer: FewLayers | None, more: FewLayers | None) -> SmallJobs | None:
    """Return the results for both numbers of layers; None if a job was refused."""
    if fewer is None or more is None:
        return None
    ends = tuple(each.end_passes for each in (fewer, more) if each.end_passes is not None)
    return SmallJobs(sample, (fewer.times_ps, more.times_ps), (fewer.needed_bytes, more.needed_bytes), ends)


def simulate_few_layers(
    packed: PackedJob, plan: Plan, sample: FormSample, chunks: tuple[int, ...], knows_passes: bool
) -> FewLayers | None:
    """Return the results of the small jobs with layers ``chunks``; None if one of them is refused."""
    from trine.folding.run import showing_few
    from trine.training import simulate
    from trine.training.times_only import times_only

    job, times = packed.job(), []
    assert plan.micro_batch is not None
    assert plan.batch is not None
    clocks = job.probe.clocks.by_gpu(plan.micro_batch, plan.batch // plan.micro_batch)
    ranks = plan.num_ranks // plan.pp * sample.pp
    options = replace(job.options, clocks=clocks, fold="ranks", gpu_spread=_spread_of(job, ranks))
    try:
        what = f"few layers of {plan_words(plan)}"
        with doing(what), without_collector(), unobserved(), showing_few(), times_only():
            for count in sample.micro_batches[: 1 if knows_passes else 2]:
                small = replace(plan, pp=sample.pp, virtual_stages=sample.virtual_stages,
                                batch=count * plan.micro_batch, **_placement(chunks))  # fmt: skip
                result = simulate(job.short(sum(chunks)), small, options=options)
                times.append(result.step_time_ps)
            needed = _needed_of_ends(result, small)
            return FewLayers(tuple(times), needed, end_passes(result, small) if small.pp > 1 else None)
    except InputError:
        return None


def _spread_of(job: SearchJob, ranks: int) -> float | None:
    """Return the spread of GPU speeds for ``ranks`` GPUs: their slowest GPU is as slow as the slowest of the job."""
    if not job.probe.slower or ranks == 1:
        return job.options.gpu_spread
    return min(job.probe.slower / slowest_of(ranks, 1.0), MAX_SPREAD)


def _placement(chunks: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of a plan that give each chunk its layers, whatever the software's rule."""
    return {} if len(chunks) == 1 else {"stage_layers": chunks, "balance": None}


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
