"""Compose the parts: workload, plan, cluster -> result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.errors import InputError
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.simulation.facts import (
    evidence,
    facts,
    fold_warnings,
    setup_warnings,
    simulator,
    with_crowded_uplinks,
    with_exposed_launches,
    with_memory_verdict,
)
from trine.simulation.recorded import first_known, gpus_under, timing
from trine.simulation.setup import (
    SLOWER_SCHEDULE,
    Setup,
    compute_for,
    costs_on,
    gpu_spec,
    launch_for,
    load_machine,
    load_workload,
    placement_of,
    places_on,
)
from trine.simulation.worth import verdicts

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.nccl.steps import StepCosts
    from trine.compute import Calibration
    from trine.engine.models import Network
    from trine.evidence import Evidence
    from trine.folding.observe import Observation
    from trine.folding.run import JobRun
    from trine.graph.program import Job
    from trine.graph.taskgraph import Progress
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result, Simulator
    from trine.results.run import Scope


def simulate(
    workload: Workload | str | os.PathLike[str],
    plan: Plan | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    compute: str = "auto",
    gpu: str | None = None,
    trace_gpu: str | None = None,
    network: str | Network | None = None,
    collective_costs: str | StepCosts = "auto",
    cpu: bool | None = None,
    launch_cost_ps: int | None = None,
    calibration: Calibration | None = None,
    engine: str = "compiled",
    fold: str = "on",
    placement: str | os.PathLike[str] | Sequence[int] | None = None,
    stragglers: Stragglers | None = None,
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_job: Callable[[Job], None] | None = None,
    warnings: tuple[str, ...] = (),
    compare: bool = True,
) -> Result:
    """Simulate one job and say how long a step takes, and why.

    Parameters
    ----------
    workload: a loaded workload, or what :func:`trine.load` takes.
    plan: the parallel layout; None is one GPU.
    cluster: a Cluster, the name of a preset, or a file. More than one rank needs one.
    compute: ``auto`` (recorded where sizes are the trace's, linear elsewhere), ``recorded``, ``linear``, or
        ``roofline`` (from the shapes, for ``gpu``, else the cluster's GPU, else the trace's; all that a trace of a CPU
        or of meta tensors is good for).
    gpu: predict for this GPU instead of the one that the trace was recorded on. On a cluster of another GPU than the
        trace's one of the two must be named: the cluster's (predicted) or the trace's (the recorded times are kept).
    trace_gpu: the GPU that the trace was recorded on, where the trace does not say and the cluster names its GPUs.
    network: ``fair`` (max-min), ``equal`` (TrioSim's per-link equal split), ``fifo`` (store and forward, each link
        serves whole messages in turn), ``circuit`` (the circuits of the cluster), or a model of your own, which needs
        ``engine="reference"``. None: ``circuit`` where the cluster has circuits, else ``fair``.
    collective_costs: ``library`` adds what NCCL or RCCL costs in launches, protocols and synchronisation to the
        messages of collectives, ``links`` nothing; ``auto``: the library where the links are of a known kind.
        ``loadstore``: so much that a collective alone takes what its GPU program takes at the load-store level, with
        durations kept in the user's cache (:class:`trine.collectives.loadstore.LoadStoreCosts`, which is taken too).
    cpu: whether operators wait for the launching CPU thread; None does so where the trace has a CPU side.
    launch_cost_ps: CPU time of every launch, in place of what the trace says.
    calibration: fits over several traces, from :func:`trine.calibrate`.
    engine: ``compiled`` or ``reference``, its plain-Python twin.
    fold: ``on`` simulates one rank of each kind that behaves alike, exactly; ``off`` each by itself; ``verify`` both,
        and compares every task (docs/design/folding.md).
    placement: which GPU each rank is on: ``packed`` (the default: rank i on GPU i), ``round-robin`` over the nodes,
        ``random:SEED``, a list of positions among the cluster's GPUs, or a file with one a line.
    stragglers: slow ranks and jitter of compute durations.
    progress, on_compile: callbacks, see :func:`trine.engine.run`. on_stage: called with a sentence whenever the classes
        of ranks have been found.
    on_job: called with the rank programs before they run, for example to write them (:mod:`trine.formats.chakra`).
    warnings: sentences to carry into the result.
    compare: simulate small steps again without an option that is there to save time or memory (overlap of tensor
        parallelism, gathers further ahead, recomputation, offload of activations), and say where it does not
        (:mod:`trine.simulation.worth`).

    Raises
    ------
    InputError and its subclasses when the input cannot be used, SimulationError when the run cannot finish.
    """
    from trine.engine.circuit_model import network_on
    from trine.folding.run import JobRunner
    from trine.parallel.build import build_job
    from trine.parallel.contention import under_pressure

    began = time.perf_counter()
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"must be a Plan, such as Plan(dp=8), got {plan!r:.80}", field="plan")
    machine = load_machine(cluster, plan if plan is not None else Plan())
    network = network_on(machine, network)
    places = places_on(placement, machine, plan.num_ranks if plan is not None else 1)
    here = gpus_under(machine, places)
    workload = load_workload(workload, trace_gpu, gpu if gpu is not None else first_known(here))
    times = timing(workload, compute, gpu, here)
    setup = Setup(
        workload=workload,
        plan=plan if plan is not None else Plan(),
        machine=machine,
        compute=compute,
        model=compute_for(workload, compute, times.predicted_for, calibration),
        launch=launch_for(workload, cpu, launch_cost_ps),
        network=network if isinstance(network, str) else network.name,
        gpu=None if gpu is None or (times.is_recorded and times.named) else gpu_spec(gpu),
        times=times,
        places=places,
        stragglers=stragglers,
    )
    job, report = build_job(
        workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host,
        host_bytes_per_s=setup.host_bytes_per_s,
    )  # fmt: skip
    if on_job is not None:
        on_job(job)
    if stragglers is not None:
        stragglers.check(setup.plan.num_ranks)
    costs = costs_on(collective_costs, setup.machine, on_stage)
    kernels = setup.kernels(costs)
    if kernels is not None:
        job = under_pressure(job, kernels)
    done = JobRunner(
        job=job,
        placement=placement_of(machine, setup.plan.num_ranks, costs, setup.places),
        network=network,
        engine=engine,
        fold=fold,
        stragglers=stragglers,
        progress=progress,
        on_compile=on_compile,
        on_stage=on_stage,
    ).run()
    if costs is not None:
        costs.check_used()
        warnings = (*warnings, *(f"collectives: {note}" for note in costs.notes))
    if costs is not None and costs.worst > SLOWER_SCHEDULE:
        warnings = (
            *warnings,
            f"collectives: {costs.library} would be up to {costs.worst:.1f} times faster than the schedule that is "
            "simulated (several rings or in-network reduction); --algorithm chooses another schedule",
        )
    sentences = (*warnings, *report.warnings, *setup.model.notes, *setup_warnings(setup), *fold_warnings(done))
    answer = _Answer(
        setup=setup,
        facts=facts(setup, report),
        evidence=evidence(setup, report, costs, kernels, stragglers),
        warnings=tuple(dict.fromkeys(sentences)),
        simulator=simulator(time.perf_counter() - began, done.records.num_events, done.num_simulated),
    )
    result = _judged(answer.of_run(done), setup)
    if not compare:
        return result

    def without(other: Plan) -> Result:
        return simulate(
            setup.workload, other, cluster=machine, compute=compute, gpu=gpu, network=network, cpu=cpu,
            collective_costs=collective_costs, launch_cost_ps=launch_cost_ps, calibration=calibration, engine=engine,
            fold="off" if fold == "off" else "on", placement=placement, stragglers=stragglers, compare=False,
        )  # fmt: skip

    why_not = ""
    if not isinstance(collective_costs, str) or collective_costs == "loadstore":
        why_not = "the costs of collectives are those of this step's messages"
    elif stragglers is not None and stragglers.jitter is not None:
        why_not = "the step without it draws other random numbers"
    if found := verdicts(result, setup.plan, without, why_not):
        again = replace(answer, warnings=(*found, *answer.warnings)).of_run(done)
        return _judged(again, setup)
    return result


def _judged(result: Result, setup: Setup) -> Result:
    """With what only the whole result can say: whether it fits, which uplinks are crowded, what launches expose."""
    result = with_crowded_uplinks(with_memory_verdict(result), setup.machine)
    return result if setup.launch is None else with_exposed_launches(result)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What results about the same run share, whichever ranks they show."""

    setup: Setup
    facts: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    warnings: tuple[str, ...]
    simulator: Simulator

    def of_run(self, done: JobRun) -> Result:
        """The result of a run, with the ranks that it shows."""
        from trine.folding.observe import Observation
        from trine.folding.run import scope_of

        scope = scope_of(done, self._observed)
        seen = Observation(
            graph=done.graph, records=done.records, memory=done.memory, ends=done.ends, reasons=done.reasons
        )
        return self._result(seen, done.ranks, scope)

    def _observed(self, seen: Observation, ranks: Sequence[int], scope: Scope) -> Result:
        return with_memory_verdict(self._result(seen, ranks, scope))

    def _result(self, seen: Observation, ranks: Sequence[int], scope: Scope | None) -> Result:
        from trine.results import Result
        from trine.results.run import Part

        places, machine = self.setup.places[list(ranks)], self.setup.machine
        capacity = self.setup.memory_bytes(places)
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
            power_w=self.setup.power_w(places),
            part=part,
            link_tiers=tiers,
        )
