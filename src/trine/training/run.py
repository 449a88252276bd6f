"""Simulation of a job from its workload, plan and cluster to a result."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from trine.common._version import __version__
from trine.common.arguments import takes
from trine.common.collector import without_collector
from trine.common.evidence import Evidence
from trine.common.observer import announce_job, current_observer, ignore, unobserved
from trine.errors import TooManyTasksError
from trine.folding.modes import FoldMode, fold_of
from trine.graph.workload import Workload
from trine.parallel.plan import Plan, micro_batches
from trine.software.profile import NO_SOFTWARE
from trine.training.facts import (
    crowded_uplinks,
    evidence,
    exposed_launches,
    facts,
    fold_warnings,
    memory_facts,
    memory_verdict,
    setup_warnings,
    shard_warnings,
)
from trine.training.headline import (
    band_of,
    band_on_shared_fabric,
    band_under_cap,
    band_with_doubt,
    band_with_spread,
    foreign_band,
    public_mfu,
    step_work,
)
from trine.training.host_memory import host_memory_of, written_host_bytes
from trine.training.options import SimulateOptions, observed
from trine.training.resolved import resolved_inputs
from trine.training.run_facts import RunFacts
from trine.training.setup import SLOWER_SCHEDULE, Setup, costs_on, placement_of, setup_of
from trine.training.times_only import is_times_only

if TYPE_CHECKING:
    from trine.collectives.nccl.steps import StepCosts
    from trine.folding.observation import Observation
    from trine.folding.run import JobRun
    from trine.graph.program import Job
    from trine.parallel.build import BuildReport
    from trine.parallel.contention import CommunicationKernels
    from trine.results import Result, Simulator
    from trine.results.operator_work import OperatorWork
    from trine.results.repeats import RepeatedSteps
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
    with without_collector():
        return _simulate(workload, plan, options)


def _simulate(workload: Workload | str | os.PathLike[str], plan: Plan | None, options: SimulateOptions) -> Result:
    began = time.perf_counter()
    setup = setup_of(workload, plan, options)
    refused: TooManyTasksError | None = None
    try:
        run, result = _run_steps(setup, began)
    except TooManyTasksError as error:
        refused = error.with_traceback(None)  # the traceback would keep the partial job in memory
    if refused is not None:
        if not fold_of(options.fold).may_estimate:
            raise refused
        from trine.training.estimated import estimated

        return estimated(setup, refused, lambda variant: simulate(setup.workload, setup.plan, options=variant))
    advice = _advice(setup, result, workload) if options.compare else ()
    return replace(run, advice=advice).result(result.simulator) if advice else result


def _advice(setup: Setup, result: Result, asked: Workload | str | os.PathLike[str]) -> tuple[str, ...]:
    """Compare the step with the same step without one option at a time. asked: the workload without casts."""
    options = replace(
        setup.options, cluster=setup.machine, network=setup.network, trace_gpu=None,
        fold=FoldMode.OFF if setup.options.fold == FoldMode.OFF else FoldMode.ON, warnings=(), compare=False,
        software=setup.software.profile or NO_SOFTWARE,
    )  # fmt: skip
    from trine.training.casts import precision_verdict
    from trine.training.trades import verdicts

    why_not = _why_not_compared(setup.options)
    with unobserved():
        texts = verdicts(result, setup.plan, lambda plan: simulate(setup.workload, plan, options=options), why_not)
        if setup.options.precision is None:
            return texts
        plain = replace(options, precision=None)
        verdict = precision_verdict(
            setup.options.precision, result, lambda: simulate(asked, setup.plan, options=plain), why_not
        )
        return (*texts, *verdict)


def _why_not_compared(options: SimulateOptions) -> str:
    """Return why the step cannot be compared with another plan's, or an empty string if it can."""
    if not isinstance(options.collective_costs, str) or options.collective_costs == "loadstore":
        return "the costs of collectives fit this step's messages"
    if options.stragglers is not None and options.stragglers.jitter is not None:
        return "the step without it draws other random numbers"
    return ""


def _operator_work(setup: Setup) -> OperatorWork | None:
    from trine.training.operator_work import operator_work

    return operator_work(setup)


def _has_estimate(setup: Setup) -> bool:
    from trine.training.estimated import has_estimate

    return has_estimate(setup)


def _run_steps(setup: Setup, began: float) -> tuple[_Run, Result]:
    """Run few of the job's steps if they repeat, else all; return the run and its result."""
    counts: tuple[int, ...] = ()
    if setup.plan.steps > 1 and fold_of(setup.options.fold).folds_steps:
        from trine.folding.steps import first_step_counts

        counts = first_step_counts(setup.plan)
    runs_ahead = setup.launch is not None and setup.launch.synchronises == "none"
    why = _why_each_step(setup) or ("the launching thread never waits for the GPU" if runs_ahead else "")
    for simulated in () if why else counts:
        if run := _few_steps(setup, simulated):
            result = run.timed_result(began)
            if result.repeats_each_step:
                return run, result
    run = replace(_run(setup), why_each_step=(why or f"{counts[-1]} of them do not repeat") if counts else "")
    return run, run.timed_result(began)


def _few_steps(setup: Setup, simulated: int) -> _Run | None:
    """Run ``simulated`` steps; return None if they do not repeat to the picosecond."""
    from trine.folding.steps import find_repeated_steps

    plan = replace(setup.plan, steps=simulated)
    few = replace(setup, plan=plan, options=replace(setup.options, fold=FoldMode.ON))
    run = _run(few)
    steps = find_repeated_steps(run.job_run, setup.plan.steps, simulated, plan.sync_every or 1)
    if steps is None:
        return None
    job_run = replace(run.job_run, repeated_steps=steps)
    if fold_of(setup.options.fold).verifies:
        job_run = _verified_steps(setup, few, job_run, steps)
    return replace(run, setup=setup, job_run=job_run)


def _verified_steps(setup: Setup, few: Setup, job_run: JobRun, steps: RepeatedSteps) -> JobRun:
    """Compare a run of few steps with one of all steps, micro-batches and ranks."""
    from trine.folding.period_check import check_repeats
    from trine.folding.steps import check_repeated_steps

    every = _run_of_everything(setup, job_run)
    whole = _run_micro_batches(replace(few, options=replace(few.options, fold=FoldMode.RANKS)), None).job_run
    repeats = job_run.repeats
    if repeats is not None:
        repeats = replace(repeats, verified=check_repeats(job_run, whole, repeats))
    steps = replace(steps, verified=check_repeated_steps(whole, every, steps))
    return replace(job_run, repeats=repeats, repeated_steps=steps, sentence=every.sentence)


def _run_of_everything(setup: Setup, folded: JobRun) -> JobRun:
    """Run all steps and micro-batches to verify a run that folds them; also its ranks are verified if any fold."""
    fold = FoldMode.OFF if setup.plan.num_ranks == 1 or folded.why else FoldMode.VERIFY
    return _run_micro_batches(replace(setup, options=replace(setup.options, fold=fold)), None).job_run


def _run(setup: Setup) -> _Run:
    """Build the job and run it: few of its micro-batches if they repeat, else all."""
    total = _num_micro_batches(setup)
    counts: tuple[int, ...] = ()
    if total > 1 and fold_of(setup.options.fold).folds_micro_batches:
        from trine.folding.period import first_counts

        counts = first_counts(setup.plan, total, None if setup.launch is None else setup.launch.synchronises)
    if not counts:
        return _run_micro_batches(setup, None)
    why = _why_each_microbatch(setup)
    run = None if why else _few_micro_batches(setup, total, counts)
    if run is None:
        return replace(_run_micro_batches(setup, None), why=why or f"{counts[-1]} of them do not repeat")
    return _verified_micro_batches(setup, run) if fold_of(setup.options.fold).verifies else run


def _few_micro_batches(setup: Setup, total: int, counts: tuple[int, ...]) -> _Run | None:
    """Run the first of ``counts`` micro-batches that repeat and stand for ``total``; return None if none do."""
    from trine.folding.convergence import counts_after

    few = replace(setup, options=replace(setup.options, fold="on")) if setup.options.fold == "verify" else setup
    distance = setup.plan.pp if setup.plan.virtual_stages > 1 else 1
    remaining = list(counts)
    while remaining:
        simulated = remaining.pop(0)
        attempt = _repeated(few, total, simulated, few.options.fold == "on" and simulated == counts[-1])
        if attempt.job_run.repeats is not None:
            return attempt
        remaining = counts_after(remaining, attempt.job_run, distance)
    return None


def _verified_micro_batches(setup: Setup, run: _Run) -> _Run:
    """Compare a run of few micro-batches with one of all micro-batches and ranks."""
    from trine.folding.period_check import check_repeats
    from trine.folding.term_drift import check_terms

    every = _run_of_everything(setup, run.job_run)
    repeats = run.job_run.repeats
    assert repeats is not None
    verified = check_repeats(run.job_run, every, repeats)
    check_terms(run.job_run, every, repeats)
    job_run = replace(run.job_run, repeats=replace(repeats, verified=verified), sentence=every.sentence)
    return replace(run, job_run=job_run)


def _repeated(setup: Setup, total: int, simulated: int, accepts_bound: bool) -> _Run:
    """Run ``simulated`` micro-batches, as one of ``total``; the run has no ``repeats`` if they do not repeat.

    accepts_bound: they may repeat nearly, see :mod:`trine.folding.bounded`.
    """
    from trine.folding.bounded import find_bounded
    from trine.folding.period import find_repeats
    from trine.folding.shifts import Compared
    from trine.results.repeats import grows

    run = _run_micro_batches(setup, simulated)
    first = run.report.queue_waits_from
    tasks = Compared(run.job_run)
    repeats = find_repeats(tasks, total, simulated, first)
    if repeats is None and accepts_bound:
        repeats = find_bounded(tasks, total, simulated, first)
    if repeats is None:
        return run
    if repeats.left_out:
        further = simulated + repeats.left_out
        return _repeated(setup, total, further, False) if 4 * further <= 3 * total else run
    memory = run.job_run.memory
    if memory.held is not None and grows(memory, run.job_run.records, repeats):
        return run  # blocks held until collectives end are not replayed for more micro-batches
    return replace(run, job_run=replace(run.job_run, repeats=repeats))


def _num_micro_batches(setup: Setup) -> int:
    plan = setup.plan
    return len(micro_batches(plan.batch or setup.workload.batch, plan.micro_batch))


def _why_each_microbatch(setup: Setup) -> str:
    """Return why every micro-batch must be simulated, or an empty string if few of them may stand for all."""
    plan, size = setup.plan, setup.plan.micro_batch
    reasons = (
        (plan.data == "dp" or plan.sync_every is not None, "replicas do not synchronise in each step"),
        (bool(plan.replica_batches), "replicas have different batches"),
        (size is None or (plan.batch or setup.workload.batch) % size > 0, "micro-batches have different sizes"),
    )
    return next((reason for applies, reason in reasons if applies), _why_each_step(setup))


def _why_each_step(setup: Setup) -> str:
    """Return why all of the run must be simulated, or an empty string if a part of it may stand for all."""
    from trine.engine.models import NetworkModel, is_compiled, network_model

    stragglers, model = setup.options.stragglers, network_model(setup.network)
    reasons = (
        (current_observer().on_job not in (None, ignore), "the rank programs are exported"),
        (stragglers is not None and stragglers.jitter is not None, "jitter makes every operator different"),
        (not isinstance(model, NetworkModel) or not is_compiled(setup.network) or model.name == "circuit",
         f"the network {model.name!r} has a state besides its flows"),
    )  # fmt: skip
    return next((reason for applies, reason in reasons if applies), "")


def _run_micro_batches(setup: Setup, simulated: int | None) -> _Run:
    """Build and run ``simulated`` micro-batches of each step (None: all)."""
    from trine.folding.run import JobRunner
    from trine.parallel.build import job_of
    from trine.training.kept_programs import written_job

    setup, written = written_job(setup, simulated)
    options, profile = setup.options, setup.software.profile
    job, report = job_of(written)
    announce_job(job)
    if options.stragglers is not None:
        options.stragglers.check(setup.plan.num_ranks)
    costs = costs_on(
        options.collective_costs, setup.machine, network=setup.network,
        factors=(1.0, 1.0) if profile is None else profile.communication_factors(),
    )  # fmt: skip
    kernels = setup.kernels(costs)
    if kernels:
        from trine.parallel.contention import under_pressure

        job = under_pressure(job, *kernels, of_rank=None if setup.mixed is None else setup.mixed.of_rank)
    estimate = partial(_has_estimate, setup) if fold_of(options.fold).may_estimate else None
    runner = JobRunner(
        job=job,
        placement=placement_of(setup.machine, setup.plan.num_ranks, costs, setup.places),
        network=setup.network,
        engine=options.engine,
        fold=options.fold,
        stragglers=options.stragglers,
        has_estimate=estimate,
        fullest_program=partial(_fullest_program, setup, job),
    )
    return _Run(
        setup=setup, report=report, costs=costs, kernels=kernels, job_run=runner.run(),
        host_bytes=written_host_bytes(setup, written),
    )  # fmt: skip


def _fullest_program(setup: Setup, job: Job) -> int:
    """Return the program with the least headroom in memory."""
    from trine.results.memory import least_headroom
    from trine.training.memory import program_uses

    return least_headroom(program_uses(job, memory_facts(setup), setup.memory_bytes))


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A finished run of a job. advice: sentences about options that do not pay. why, why_each_step: each micro-batch,
    or each step, was simulated. host_bytes: host memory of a rank of each stage, if the programs tell.
    """

    setup: Setup
    report: BuildReport
    costs: StepCosts | None
    kernels: tuple[CommunicationKernels, ...]
    job_run: JobRun
    host_bytes: tuple[int, ...] | None = None
    advice: tuple[str, ...] = ()
    why: str = ""
    why_each_step: str = ""

    def timed_result(self, began: float) -> Result:
        """Return the result of a simulation since ``began`` (s)."""
        from trine.results import Simulator

        wall_s, run = time.perf_counter() - began, self.job_run
        return self.result(Simulator(__version__, wall_s, run.records.num_events, run.num_simulated))

    def result(self, simulator: Simulator) -> Result:
        """Return the result, with the ranks that the run shows."""
        from trine.folding.observation import Observation
        from trine.folding.run import scope_of

        setup, run, work = self.setup, self.job_run, step_work(self.setup, self.report)
        support = evidence(setup, self.report, self.costs, self.kernels, setup.options.stragglers, self.job_run.repeats)
        support = (*support, *self._repetition())
        run_facts = RunFacts(
            plan=facts(setup, self.report),
            evidence=support,
            warnings=tuple(dict.fromkeys((*self.advice, *self._warnings()))),
            not_modelled=setup.not_modelled,
            simulator=simulator,
            work=work,
            band=band_of(setup, work, support),
            memory_facts=memory_facts(setup),
            host_memory=host_memory_of(setup, self.host_bytes),
            repeats=run.repeats,
            repeated_steps=run.repeated_steps,
            inputs=resolved_inputs(setup),
            operator_work=partial(_operator_work, setup) if setup.gpu_names else None,
        )
        show = partial(_build_result, setup, run_facts)
        observation = Observation(
            graph=run.graph, records=run.records, memory=run.memory, ends=run.ends, reasons=run.reasons
        )
        result = show(observation, run.ranks, scope_of(run, show, _with_memory_verdict))
        warnings = (
            *memory_verdict(result), *result.warnings, *crowded_uplinks(result, setup.machine),
            *foreign_band(result, setup.workload), *public_mfu(result),
        )  # fmt: skip
        explains_launches = setup.launch is not None and not is_times_only()
        if explains_launches and "recipe" in setup.workload.metadata and not setup.options.compare:
            from trine.training.casts import launch_bound_casts

            warnings = (*warnings, *launch_bound_casts(result, setup))
        support = exposed_launches(result) if explains_launches else result.evidence
        band = band_under_cap(result, band_on_shared_fabric(result, setup), setup)
        band = band_with_doubt(result, band_with_spread(result, band, setup))
        return result.with_words(warnings, support, band)

    def _repetition(self) -> tuple[Evidence, ...]:
        """Return how many of many micro-batches and steps the run simulated, and why."""
        run = self.job_run
        rows = ("micro-batches", run.repeats, self.why), ("steps", run.repeated_steps, self.why_each_step)
        details = {}
        for what, repeats, why in rows:
            details[what] = repeats.sentence if repeats else why and f"all are simulated: {why}"
        return tuple(Evidence(what, "modelled", detail) for what, detail in details.items() if detail)

    def _warnings(self) -> tuple[str, ...]:
        setup, costs = self.setup, self.costs
        warnings = [*setup.options.warnings, *shard_warnings(setup)]
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
        further_notes = []
        for model in setup.gpus.models:
            for note in model.notes:
                if not any(text.startswith(note) for text in stated):
                    further_notes.append(note)
        notes = dict.fromkeys(further_notes)
        return (*warnings, *self.report.warnings, *notes, *setup_warnings(setup), *fold_warnings(self.job_run))


def _with_memory_verdict(result: Result) -> Result:
    return result.with_words((*memory_verdict(result), *result.warnings), result.evidence, result.band)


def _build_result(
    setup: Setup, run_facts: RunFacts, observation: Observation, ranks: Sequence[int], scope: Scope | None
) -> Result:
    """Return a result that shows ``ranks``. run_facts: the fields that results of all ranks share."""
    from trine.results import Result
    from trine.results.run import Part

    part = tiers = None
    repeats = run_facts.repeats
    if scope is not None and observation.ends is not None:
        part = Part(
            ranks=tuple(ranks), num_ranks=scope.num_ranks, ends=observation.ends, step_ends_ps=scope.step_ends_ps,
            reasons=observation.reasons,
        )  # fmt: skip
    machine, capacity = setup.machine, setup.memory_bytes(ranks)
    if machine is not None and len(observation.graph.link_names) == len(machine.links):
        tiers = machine.link_tiers.names, machine.link_tiers.tier
    records = observation.records if repeats is None else repeats.stretched(observation.records)
    capacities = capacity if any(capacity) else ()
    state_w = None if setup.cap is None else setup.cap.states_w
    return Result(
        graph=observation.graph,
        records=records,
        memory=observation.memory,
        memory_capacity_bytes=capacities,
        scope=scope,
        power_w=setup.power_w(ranks),
        state_w=state_w,
        gpu_models=setup.models_of(ranks),
        part=part,
        link_tiers=tiers,
        plan=run_facts.plan,
        evidence=run_facts.evidence,
        warnings=run_facts.warnings,
        not_modelled=run_facts.not_modelled,
        simulator=run_facts.simulator,
        work=run_facts.work,
        band=run_facts.band,
        memory_facts=run_facts.memory_facts,
        host_memory=run_facts.host_memory,
        repeats=repeats,
        repeated_steps=run_facts.repeated_steps,
        inputs=run_facts.inputs,
        operator_work=run_facts.operator_work,
    )
