"""Operator times at the clock of the step, which power decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trine.compute.clock import ClockedTimes, PowerCap, StepClock, power_cap, step_clock
from trine.compute.power import Bounds
from trine.compute.power_curve import uses_step_clock
from trine.compute.roofline import TABLES
from trine.errors import InputError
from trine.parallel.plan import Plan
from trine.training.options import SimulateOptions
from trine.training.recorded import RankGpus

if TYPE_CHECKING:
    from trine.cluster.presets import GpuSpec
    from trine.compute import ComputeModel
    from trine.graph.workload import Workload


class AtStepClock(NamedTuple):
    """Operator times of the ranks at the clock of the step.

    cap: the power cap, None without one. clocks: of each GPU model whose clock power decides.
    """

    gpus: RankGpus
    cap: PowerCap | None
    clocks: tuple[StepClock, ...]


def at_step_clock(
    workload: Workload, plan: Plan, gpus: RankGpus, specs: list[GpuSpec | None], options: SimulateOptions
) -> AtStepClock:
    """Return the ranks' operator times at the clock of the step.

    Times change on GPUs whose tables have a known clock, and under a power cap. specs: the data sheet of each rank's
    GPU, None if it is unknown.
    """
    batch = plan.micro_batch or plan.batch
    count = -(-plan.batch // plan.micro_batch) if plan.batch and plan.micro_batch else 1
    cap: PowerCap | None = None
    if options.power_cap_w is not None:
        cap = _cap_of(options.power_cap_w, workload, gpus, specs, batch, count)
    models, clocks = [], []
    known: dict[tuple[int, str], tuple[ComputeModel, StepClock]] = {}
    for each, model, spec in zip(gpus.workloads, gpus.models, specs, strict=True):
        if spec is None or not (uses_step_clock(model.name, spec) or (cap is not None and cap.slowdown > 1)):
            models.append(model)
            continue
        key = id(model), spec.name
        if key not in known:
            if options.clocks is not None:
                if (given := options.clocks.get(spec.name)) is None:
                    models.append(model)
                    continue
                clock = given
            else:
                clock = cap.at_cap if cap is not None else step_clock(each, model, spec, batch, micro_batches=count)
            known[key] = ClockedTimes(model, Bounds(each, spec), clock), clock
            if clock.is_table:
                clocks.append(clock)
            _forget_whole_model(model)
        models.append(known[key][0])
    return AtStepClock(replace(gpus, models=tuple(models)), cap, tuple(clocks))


def _forget_whole_model(model: ComputeModel) -> None:
    """Drop a table's notes on the operators of the whole model, which decide the power: a job may split them."""
    if model.name != TABLES:
        return
    from trine.compute.tables.times import TableTimes

    if isinstance(model, TableTimes):
        model.forget_notes()


def _cap_of(
    cap_w: int, workload: Workload, gpus: RankGpus, specs: list[GpuSpec | None], batch: int | None, count: int
) -> PowerCap:
    """Return the effect of a power cap in W; raise InputError for several GPU models."""
    names = set()
    for spec in specs:
        names.add(None if spec is None else spec.name)
    if len(names) > 1:
        raise InputError(f"a cap needs one GPU model; the cluster has {', '.join(map(str, names))}", field="power_cap")
    return power_cap(cap_w, workload, gpus.models[0], specs[0], batch, count)
