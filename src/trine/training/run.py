"""Simulation of a job from its workload, plan and cluster to a result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.common.arguments import takes
from trine.common.observer import announce_job, unobserved
from trine.common.units import format_bytes, format_time
from trine.errors import InputError, TooManyTasksError
from trine.graph.workload import Workload
from trine.parallel.plan import PARAMETERS_SHARDED, Plan
from trine.software.profile import NO_SOFTWARE
from trine.training.facts import (
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
from trine.training.headline import band_of, step_work, with_foreign_band, with_public_mfu, with_shared_fabric
from trine.training.options import SimulateOptions, observed
from trine.training.setup import SLOWER_SCHEDULE, Setup, costs_on, placement_of, setup_of

if TYPE_CHECKING:
    from trine.collectives.nccl.steps import StepCosts
    from trine.common.evidence import Evidence
    from trine.folding.observe import Observation
    from trine.folding.run import JobRun
    from trine.parallel.build import BuildReport
    from trine.parallel.contention import CommunicationKernels
    from trine.results import Result, Simulator
    from trine.results.headline import StepWork
    from trine.results.run import Scope


@takes(SimulateOptions)
@observed
def simulate(
    workload: Workload | str | os.PathLike[str], plan: Plan | None = None, *, options: SimulateOptions
) -> Result:
    """Simulate one job and predict its step time, with the reasons.

    Parameters
    ----------
    workload: a loaded workload, or any argument of :func:`trine.load`.
    plan: the parallel layout; None means one GPU.
    options: fields of :class:`trine.training.options.SimulateOptions` as keywords
        (``cluster="dgx-h100", network="fifo"``), or one instance of it.

    Raises
    ------
    InputError and its subclasses if the input cannot be used, SimulationError if the run cannot finish.
    """
    began = time.perf_counter()
    setup = setup_of(workload, plan, options)
    refused: TooManyTasksError | None = None
    try:
        run = _Run.of(setup)
    except TooManyTasksError as error:
        refused = error.with_traceback(None)  # the traceback would keep the partial job in memory
    if refused is not None:
        if options.fold != "on":
            raise refused
        from trine.training.estimated import estimated

        return estimated(setup, refused, lambda other: simulate(setup.workload, setup.plan, options=other))
    result = run.result(began)
    if not options.compare:
        return result
    own = replace(
        options, cluster=setup.machine, network=setup.network, trace_gpu=None,
        fold="off" if options.fold == "off" else "on", warnings=(), compare=False,
        software=setup.software.profile or NO_SOFTWARE,
    )  # fmt: skip
    with unobserved():
        found = verdicts(
            result, setup.plan, lambda other: simulate(setup.workload, other, options=own), _why_not_compared(options)
        )
    return run.result(began, found, result.simulator) if found else result


def _why_not_compared(options: SimulateOptions) -> str:
    """Return why the step cannot be compared with another plan's, or an empty string if it can."""
    if not isinstance(options.collective_costs, str) or options.collective_costs == "loadstore":
        return "the costs of collectives fit this step's messages"
    if options.stragglers is not None and options.stragglers.jitter is not None:
        return "the step without it draws other random numbers"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run of a job, and the parts of its result."""

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
        from trine.training.estimated import has_estimate
        from trine.training.memory import program_uses

        options = setup.options
        job, report = build_job(
            setup.workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host,
            host_bytes_per_s=setup.host_bytes_per_s, software=setup.software.profile, mixed=setup.mixed,
        )  # fmt: skip
        announce_job(job)
        if options.stragglers is not None:
            options.stragglers.check(setup.plan.num_ranks)
        profile = setup.software.profile
        costs = costs_on(
            options.collective_costs, setup.machine, network=setup.network,
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
            has_estimate=(lambda: has_estimate(setup)) if options.fold == "on" else None,
            fullest_program=lambda: least_headroom(program_uses(job, memory_facts(setup), setup.memory_bytes)),
        )
        return _Run(setup=setup, report=report, costs=costs, kernels=kernels, done=runner.run())

    def result(self, began_s: float, verdicts: tuple[str, ...] = (), known: Simulator | None = None) -> Result:
        """Return the result with the facts that need all of it. known: the simulator's own cost, if already known."""
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
        # These need the whole result: whether it fits, which uplinks are crowded, which launches are exposed
        result = answer.of_run(done)
        result = with_public_mfu(with_foreign_band(with_crowded_uplinks(with_memory_verdict(result), setup.machine)))
        result = with_shared_fabric(result, setup)
        return result if setup.launch is None else with_exposed_launches(result)

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


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Fields that all results of a run share, whichever ranks they show."""

    setup: Setup
    facts: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    warnings: tuple[str, ...]
    simulator: Simulator
    work: StepWork

    def of_run(self, done: JobRun) -> Result:
        """Return the result of a run, with the ranks that it shows."""
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


#: trine repeats runs without the option up to this number of events, because a repeat takes as long as the run.
MAX_EVENTS = 250_000
#: Savings below these fractions, of the time and of the fullest rank's memory, are reported as negligible.
LEAST_TIME, LEAST_MEMORY = 0.001, 0.02


@dataclass(frozen=True, slots=True)
class Trade:
    """An option in command-line form, whether it should save time (else memory), and the plan without it.

    is_doubtful: it often saves nothing, so that a run too large to compare reports the missing comparison.
    """

    option: str
    saves_time: bool
    without: Plan
    is_doubtful: bool = False


def trades(plan: Plan) -> tuple[Trade, ...]:
    """Return the options of ``plan`` that cost time to save memory, or memory and launches to save time."""
    found = []
    if plan.tp_overlap > 1:
        found.append(Trade(f"--tp-overlap {plan.tp_overlap}", True, replace(plan, tp_overlap=1), True))
    usual = 1 if plan.sharding in PARAMETERS_SHARDED else 0
    if plan.prefetch is not None and plan.prefetch > usual and (usual or plan.steps > 1):
        found.append(Trade(f"--prefetch {plan.prefetch}", True, replace(plan, prefetch=None)))
    if plan.recompute != "none":
        without = replace(plan, recompute="none", recompute_layers=None)
        found.append(Trade(f"--recompute {plan.recompute}", False, without, plan.recompute == "selective"))
    if plan.offload == "activations":
        overlap = plan.overlap if plan.num_ranks > 1 else "ideal"  # without offload, one GPU overlaps nothing
        found.append(Trade("--offload activations", False, replace(plan, offload="none", overlap=overlap)))
    return tuple(found)


def verdicts(result: Result, plan: Plan, simulate: Callable[[Plan], Result], why_not: str = "") -> tuple[str, ...]:
    """Return a sentence for each option of ``plan`` that does not pay in ``result``, or whose saving is unknown.

    simulate: returns the result of another plan, all else being equal; called once per option if the run is small.
    why_not: why another plan's result cannot be compared, empty if it can.
    """
    events = result.simulator.events if result.simulator is not None else 0
    if events > MAX_EVENTS:
        why_not = f"trine repeats steps of up to {MAX_EVENTS:,} events, and this one has {events:,}"
    return tuple(text for trade in trades(plan) if (text := _verdict(trade, result, simulate, why_not)) is not None)


def _verdict(trade: Trade, result: Result, simulate: Callable[[Plan], Result], why_not: str) -> str | None:
    unknown = f"how much {'time' if trade.saves_time else 'memory'} {trade.option} saves was not found out: "
    if why_not:
        return unknown + why_not if trade.is_doubtful else None
    try:
        without = simulate(trade.without)
    except InputError as error:
        return f"{unknown}without it, {error}"
    return _of_time(trade, result, without) if trade.saves_time else _of_memory(trade, result, without)


def _of_time(trade: Trade, result: Result, without: Result) -> str | None:
    if result.step_time_ps <= without.step_time_ps * (1 - LEAST_TIME):
        return None
    pays = "hardly pays" if result.step_time_ps < without.step_time_ps else "does not pay"
    return f"{trade.option} {pays}: it makes the step {_change(result, without)}"


def _of_memory(trade: Trade, result: Result, without: Result) -> str | None:
    before, after = without.memory_peak_bytes, result.memory_peak_bytes
    if before is None or after is None or before - after >= before * LEAST_MEMORY:
        return None
    amount = format_bytes(abs(before - after))
    saved = f"takes {amount} more than the" if after > before else f"frees {amount} of the"
    return (
        f"{trade.option} hardly saves memory: it {saved} {format_bytes(before)} that the fullest rank needs without it "
        f"({100 * abs(before - after) / before:.2g} %), and makes the step {_change(result, without)}"
    )


def _change(result: Result, without: Result) -> str:
    now, before = result.step_time_ps, without.step_time_ps
    share = 100 * (now - before) / before if before else 0.0
    how = (
        f"{abs(share):.2g} % {'longer' if share > 0 else 'shorter'}" if now != before else "neither longer nor shorter"
    )
    return f"{how} ({format_time(now)}, without it {format_time(before)})"
