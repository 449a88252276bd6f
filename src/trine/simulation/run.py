"""Compose the parts: workload, plan, cluster -> result."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.arguments import takes
from trine.errors import TooManyTasksError
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.simulation.facts import (
    evidence,
    facts,
    fold_warnings,
    memory_facts,
    setup_warnings,
    simulator,
    with_crowded_uplinks,
    with_exposed_launches,
    with_memory_verdict,
)
from trine.simulation.headline import band_of, step_work, with_foreign_band, with_public_mfu, with_shared_fabric
from trine.simulation.options import SimulateOptions
from trine.simulation.setup import SLOWER_SCHEDULE, Setup, costs_on, placement_of, setup_of
from trine.simulation.worth import verdicts
from trine.software.profile import NO_SOFTWARE

if TYPE_CHECKING:
    from trine.collectives.nccl.steps import StepCosts
    from trine.evidence import Evidence
    from trine.folding.observe import Observation
    from trine.folding.run import JobRun
    from trine.parallel.build import BuildReport
    from trine.parallel.contention import CommunicationKernels
    from trine.results import Result, Simulator
    from trine.results.headline import StepWork
    from trine.results.run import Scope


@takes(SimulateOptions)
def simulate(
    workload: Workload | str | os.PathLike[str], plan: Plan | None = None, *, options: SimulateOptions
) -> Result:
    """Simulate one job and say how long a step takes, and why.

    Parameters
    ----------
    workload: a loaded workload, or what :func:`trine.load` takes.
    plan: the parallel layout; None is one GPU.
    options: how it is simulated: fields of :class:`trine.simulation.options.SimulateOptions` as keywords
        (``cluster="dgx-h100", network="fifo"``), or one as a whole.

    Raises
    ------
    InputError and its subclasses when the input cannot be used, SimulationError when the run cannot finish.
    """
    began = time.perf_counter()
    setup = setup_of(workload, plan, options)
    refused: TooManyTasksError | None = None
    try:
        run = _Run.of(setup)
    except TooManyTasksError as error:
        refused = error.with_traceback(None)  # which holds what has been made so far
    if refused is not None:
        if options.fold != "on":
            raise refused
        from trine.simulation.estimated import estimated

        return estimated(setup, refused, lambda other: simulate(setup.workload, setup.plan, options=other))
    result = run.result(began)
    if not options.compare:
        return result
    own = replace(
        options, cluster=setup.machine, network=setup.network, trace_gpu=None,
        fold="off" if options.fold == "off" else "on", progress=None, on_compile=None, on_stage=None, on_job=None,
        warnings=(), compare=False, software=setup.software.profile or NO_SOFTWARE,
    )  # fmt: skip
    found = verdicts(
        result, setup.plan, lambda other: simulate(setup.workload, other, options=own), _why_not_compared(options)
    )
    return run.result(began, found, result.simulator) if found else result


def _why_not_compared(options: SimulateOptions) -> str:
    """Why the step cannot be compared with the same under another plan; empty where it can."""
    if not isinstance(options.collective_costs, str) or options.collective_costs == "loadstore":
        return "the costs of collectives fit this step's messages"
    if options.stragglers is not None and options.stragglers.jitter is not None:
        return "the step without it draws other random numbers"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run of a job, and what its result is made of."""

    setup: Setup
    report: BuildReport
    costs: StepCosts | None
    kernels: tuple[CommunicationKernels, ...]
    done: JobRun

    @staticmethod
    def of(setup: Setup) -> _Run:
        """Build the job and run it."""
        from trine.folding.run import JobRunner
        from trine.parallel.build import build_job
        from trine.parallel.contention import under_pressure
        from trine.results.memory import least_headroom
        from trine.simulation.estimated import has_estimate
        from trine.simulation.memory import program_uses

        options = setup.options
        job, report = build_job(
            setup.workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host,
            host_bytes_per_s=setup.host_bytes_per_s, software=setup.software.profile, mixed=setup.mixed,
        )  # fmt: skip
        if options.on_job is not None:
            options.on_job(job)
        if options.stragglers is not None:
            options.stragglers.check(setup.plan.num_ranks)
        profile = setup.software.profile
        costs = costs_on(
            options.collective_costs, setup.machine, options.on_stage, network=setup.network,
            factors=(1.0, 1.0) if profile is None else profile.communication_factors(),
        )  # fmt: skip
        kernels = setup.kernels(costs)
        if kernels:
            of_rank = None if setup.mixed is None else setup.mixed.of_rank
            job = under_pressure(job, *kernels, of_rank=of_rank)
        runner = JobRunner(
            job=job,
            placement=placement_of(setup.machine, setup.plan.num_ranks, costs, setup.places),
            network=setup.network,
            engine=options.engine,
            fold=options.fold,
            stragglers=options.stragglers,
            progress=options.progress,
            on_compile=options.on_compile,
            on_stage=options.on_stage,
            has_estimate=(lambda: has_estimate(setup)) if options.fold == "on" else None,
            fullest_program=lambda: least_headroom(program_uses(job, memory_facts(setup), setup.memory_bytes)),
        )
        return _Run(setup=setup, report=report, costs=costs, kernels=kernels, done=runner.run())

    def result(self, began_s: float, verdicts: tuple[str, ...] = (), known: Simulator | None = None) -> Result:
        """The result, with what only the whole of it can say. known: what the simulator took, where that is known."""
        setup, done = self.setup, self.done
        seconds = time.perf_counter() - began_s
        work = step_work(setup, self.report)
        answer = _Answer(
            setup=setup,
            facts=facts(setup, self.report),
            evidence=evidence(setup, self.report, self.costs, self.kernels, setup.options.stragglers),
            warnings=tuple(dict.fromkeys((*verdicts, *self._sentences()))),
            simulator=known or simulator(seconds, done.records.num_events, done.num_simulated),
            work=work,
        )
        return _judged(answer.of_run(done), setup)

    def _sentences(self) -> tuple[str, ...]:
        setup, costs = self.setup, self.costs
        warnings = list(setup.options.warnings)
        if costs is not None:
            costs.check_used()
            warnings += (f"collectives: {note}" for note in costs.notes)
            if costs.slowest_ratio > SLOWER_SCHEDULE:
                warnings.append(
                    f"collectives: {costs.library} would be up to {costs.slowest_ratio:.1f} times faster than the "
                    "schedule that is simulated (several rings or in-network reduction); --algorithm chooses another "
                    "schedule"
                )
        stated = [text for workload in setup.gpus.workloads for text in workload.assumptions]
        notes = dict.fromkeys(
            note
            for model in setup.gpus.models
            for note in model.notes
            if not any(text.startswith(note) for text in stated)
        )
        return (*warnings, *self.report.warnings, *notes, *setup_warnings(setup), *fold_warnings(self.done))


def _judged(result: Result, setup: Setup) -> Result:
    """With what only the whole result can say: whether it fits, which uplinks are crowded, what launches expose."""
    result = with_public_mfu(with_foreign_band(with_crowded_uplinks(with_memory_verdict(result), setup.machine)))
    result = with_shared_fabric(result, setup)
    return result if setup.launch is None else with_exposed_launches(result)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What results about the same run share, whichever ranks they show."""

    setup: Setup
    facts: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    warnings: tuple[str, ...]
    simulator: Simulator
    work: StepWork

    def of_run(self, done: JobRun) -> Result:
        """The result of a run, with the ranks that it shows."""
        from trine.folding.observe import Observation
        from trine.folding.run import scope_of

        scope = scope_of(done, self._result, with_memory_verdict)
        seen = Observation(
            graph=done.graph, records=done.records, memory=done.memory, ends=done.ends, reasons=done.reasons
        )
        return self._result(seen, done.ranks, scope)

    def _result(self, seen: Observation, ranks: Sequence[int], scope: Scope | None) -> Result:
        from trine.results import Result
        from trine.results.run import Part

        machine, capacity = self.setup.machine, self.setup.memory_bytes(ranks)
        part = None
        if scope is not None and seen.ends is not None:
            part = Part(
                ranks=tuple(ranks),
                num_ranks=scope.num_ranks,
                ends=seen.ends,
                step_ends_ps=scope.step_ends_ps,
                reasons=seen.reasons,
            )
        tiers = None
        if machine is not None and len(seen.graph.link_names) == len(machine.links):
            tiers = machine.link_tiers.names, machine.link_tiers.tier
        return Result(
            graph=seen.graph,
            records=seen.records,
            memory=seen.memory,
            memory_capacity_bytes=capacity if any(capacity) else (),
            plan=self.facts,
            evidence=self.evidence,
            warnings=self.warnings,
            not_modelled=self.setup.not_modelled,
            simulator=self.simulator,
            scope=scope,
            power_w=self.setup.power_w(ranks),
            gpu_models=self.setup.models_of(ranks),
            part=part,
            link_tiers=tiers,
            work=self.work,
            band=band_of(self.setup, self.work, self.evidence),
            memory_facts=memory_facts(self.setup),
        )
