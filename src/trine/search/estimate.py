"""The likely step of one layout by the screen, without its simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.errors import InputError
from trine.graph.workload import Workload
from trine.parallel.constraints import resolve_layout
from trine.parallel.plan import FALLBACKS, Plan
from trine.search.bounds import StageSizes
from trine.search.calibration import sample_of, simulate_small_jobs
from trine.search.probe import can_probe
from trine.search.screen import LayoutScreen
from trine.search.space import Layout
from trine.search.worker import PackedJob, SearchJob

if TYPE_CHECKING:
    from trine.training.options import SimulateOptions


def estimate_step(workload: Workload, plan: Plan, options: SimulateOptions, is_calibrated: bool = True) -> int | None:
    """Return the likely step time of a job in ps, or None if the screen does not cover it.

    It covers decoder-only transformers that trine writes from their shapes, with the schedules gpipe, 1f1b, interleaved
    and zb-h1. is_calibrated: simulate four small jobs of the same form, which finds contention and the end of the step.
    Without them an estimate is about a tenth low (contention and the end of the step are missing), and cheap.
    options: with a cluster. Raises InputError for a plan without a batch or that the software cannot run.
    """
    if not can_probe(workload):
        return None
    if plan.batch is None:
        raise InputError("an estimate needs the samples of a replica", field="batch")
    job = SearchJob(workload=workload, options=options, gpus=plan.dp * plan.tp * plan.pp * plan.cp)
    probe = job.probe
    filled, _ = resolve_layout(plan, probe.software, probe.facts)
    micro_batch = filled.micro_batch or plan.batch
    values = {name: getattr(filled, name) for name in Layout._fields}
    layout = Layout(**{**values, "micro_batch": micro_batch, "sequence_parallel": bool(filled.sequence_parallel)})
    layers = probe.facts.layers or int(str(workload.metadata["layers"]))
    screen, costs = (
        LayoutScreen(layers, probe, plan.batch * plan.dp),
        probe.costs(filled.filled({"micro_batch": micro_batch})),
    )
    stages = StageSizes(workload, layers).likely(str(filled.balance or FALLBACKS["balance"]), layout, costs)
    if is_calibrated:
        sample = sample_of(layout, plan.batch // micro_batch, stages)
        screen.calibrate(layout, costs, simulate_small_jobs(PackedJob(job), plan, sample))
    return screen.step_ps(layout, plan.batch // micro_batch, costs, stages) or None
