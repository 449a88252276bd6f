"""Resolved inputs of a simulation: workload, machine, models, and the placement of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster import load_gpu
from trine.cluster.load import as_cluster
from trine.common.arrays import Int64
from trine.common.plugins import load_target
from trine.common.units import format_time
from trine.compute import make_compute, recorded_on, uses_recorded_times
from trine.compute.gaps import WithKernelGaps, kernel_gap_ps
from trine.compute.models import meant
from trine.compute.origin import known_gpu, short_name
from trine.compute.other_batch import AtClockOfBatch
from trine.compute.power_curve import has_tensor_clocks, uses_step_clock
from trine.compute.roofline import TABLES
from trine.compute.spread import GPU_SPREAD, OnSlowestGpu, checked_spread, slowest_of
from trine.errors import InputError, PlanError, nearest
from trine.graph.grid import RankGrid
from trine.graph.workload import SYNTHESISED, Workload
from trine.parallel.constraints import LayoutFacts, check_layout, ignored_options, met_with_settings, resolve_layout
from trine.parallel.plan import Plan
from trine.parallel.rank_kinds import MixedGpus
from trine.software.profile import NO_SOFTWARE
from trine.training.options import SimulateOptions
from trine.training.recorded import RankGpus, Timing, first_known, gpus_under, models_under, times_on, timing
from trine.training.software import (
    ChosenSoftware,
    cast,
    check_choices,
    is_model,
    launches_of,
    packed,
    software_of,
    tuned,
    written_for,
)
from trine.workload import load
from trine.workload.on_gpu import on_gpu

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.cluster.presets import GpuSpec
    from trine.collectives.nccl.steps import StepCosts
    from trine.compute import Calibration, ComputeModel, LaunchCosts
    from trine.compute.clock import PowerCap, StepClock
    from trine.engine.models import Network
    from trine.graph.placement import CollectiveAnswer, Placement
    from trine.parallel.contention import CommunicationKernels
    from trine.parallel.job import JobContext
    from trine.parallel.tensor_times import TensorTimes
    from trine.parallel.token_dispatch import ExpertSpan
    from trine.software.profile import Software


#: trine warns about a simulated schedule that takes this many times as long as the library's.
SLOWER_SCHEDULE = 1.2
#: Sources of the cost of a collective's messages.
COLLECTIVE_COSTS = ("auto", "links", "library", "loadstore")
#: Networks that simulate a library's collectives as flows with limits.
FLOW_NETWORKS = ("fair", "equal")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Resolved inputs of a simulation.

    gpu: the GPU requested in place of the cluster's; its memory and power apply. cap: the power cap. plan: the plan
    with its open fields filled in. compute: the compute model chosen for this workload. layout_notes: layout
    settings that the software makes by itself. layout_warnings: settings without effect, or that need further settings.
    """

    workload: Workload
    plan: Plan
    machine: Cluster | None
    options: SimulateOptions
    compute: str
    gpus: RankGpus
    launch: LaunchCosts | None
    network: str | Network
    gpu: GpuSpec | None
    times: Timing
    places: Int64
    software: ChosenSoftware
    slower: float = 0.0
    layout_notes: tuple[str, ...] = ()
    layout_warnings: tuple[str, ...] = ()
    cap: PowerCap | None = None
    clocks: tuple[StepClock, ...] = ()

    @property
    def network_name(self) -> str:
        return self.network if isinstance(self.network, str) else self.network.name

    @property
    def model(self) -> ComputeModel:
        """The operator times of the first GPU model."""
        return self.gpus.models[0]

    @cached_property
    def has_host(self) -> bool:
        """Whether the cluster describes host memory for the GPUs of all ranks."""
        if self.machine is None:
            return False
        gpus = np.asarray(self.machine.gpus, np.int64)[self.places]
        return bool((self.machine.hosts_of(gpus) >= 0).all())

    @property
    def mixed(self) -> MixedGpus | None:
        """GPU models of the ranks, for their programs; None if all ranks use the same model."""
        return None if len(self.gpu_names) == 1 else self.gpus.mixed

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Effects that this run does not model, one text each."""
        return tuple(effect for effect, is_left_out in EFFECTS if is_left_out(self))

    @property
    def host_bytes_per_s(self) -> float | None:
        """Bandwidth of host memory per rank; None unless the optimizer is offloaded and the hosts are described."""
        if self.plan.offload != "optimizer" or self.machine is None or not self.has_host:
            return None
        from trine.parallel.offload import host_bytes_per_s

        return host_bytes_per_s(self.machine, np.asarray(self.machine.gpus, np.int64)[self.places])

    def kernels(self, costs: StepCosts | None) -> tuple[CommunicationKernels, ...]:
        """Return the communication kernels that slow compute down, per GPU model; empty unless overlap is modelled."""
        if self.plan.overlap != "modelled" or self.machine is None:
            return ()
        from trine.parallel.contention import kernels_of

        pairs = zip(self.gpus.names, self.gpus.workloads, strict=True)
        return tuple(
            kernels_of(known_gpu(self._name_of(name)), workload, self.machine, self.places, costs)
            for name, workload in list(pairs)[: len(self.gpu_names)]
        )

    def expert_span(self) -> ExpertSpan:
        """Return the nodes of an expert-parallel group, and its ranks on each; one node without a machine."""
        from trine.parallel.token_dispatch import ONE_PLACE, ExpertSpan

        plan = self.plan
        if plan.ep == 1:
            return ONE_PLACE
        grid, axis = RankGrid(plan.axes), plan.groups.experts
        ranks = grid.firsts(np.zeros(1, np.int64), axis)[0] + grid.offsets(axis)
        if self.machine is None:
            return ExpertSpan(1, len(ranks))
        nodes = len(np.unique(self.machine.node_of[np.asarray(self.machine.gpus, np.int64)[self.places[ranks]]]))
        return ExpertSpan(nodes, len(ranks) // nodes)

    def job_context(self, simulated: int | None) -> JobContext:
        """Return what programs of ``simulated`` micro-batches (None: all) are written from."""
        from trine.parallel.job import JobContext

        return JobContext(
            self.workload, self.plan, self.model, self.launch, self.software.profile, self.mixed,
            self.host_bytes_per_s, simulated, self.tensor_times(), self.expert_span(),
        )  # fmt: skip

    def tensor_times(self) -> TensorTimes | None:
        """Return the times of collectives beside which GEMMs run in pieces; None without pieces, or if unknown."""
        plan, gpu = self.plan, known_gpu(self.gpu_names[0])
        if not (plan.userbuffers or plan.tp_overlap > 1) or self.machine is None or gpu is None:
            return None
        if self.mixed is not None:
            return None
        from trine.parallel.contention import kernels_of
        from trine.parallel.tensor_times import tensor_times

        profile = self.software.profile
        factors = (1.0, 1.0) if profile is None else profile.communication_factors()
        costs = costs_on(self.options.collective_costs, self.machine, network=self.network, factors=factors)
        return tensor_times(plan, kernels_of(gpu, self.gpus.workloads[0], self.machine, self.places, costs))

    def _name_of(self, name: str | None) -> str | None:
        """Return the requested GPU, or ``name`` if the user requested none."""
        return name if self.gpu is None else self.gpu.name

    @cached_property
    def gpu_names(self) -> tuple[str | None, ...]:
        """Distinct GPU models of the ranks: the requested GPU, the cluster's, or the trace's."""
        return tuple(dict.fromkeys(self._name_of(name) for name in self.gpus.names))

    def memory_bytes(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the GPU memory of each of ``ranks``, 0 if unknown."""
        capacities = []
        for spec in self._gpus_of(ranks):
            capacities.append(0 if spec is None else spec.memory_bytes)
        return tuple(capacities)

    def power_w(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the maximum GPU power of each of ``ranks``; empty if any is unknown."""
        rank_watts = []
        for spec in self._gpus_of(ranks):
            rank_watts.append(0 if spec is None else spec.power_w or 0)
        watts = tuple(rank_watts)
        return watts if all(watts) else ()

    def models_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return the GPU model of each of ``ranks``; empty if all ranks use the same model."""
        if self.mixed is None:
            return ()
        return tuple(self.mixed.names[number] for number in self.mixed.of_rank[list(ranks)].tolist())

    def _gpus_of(self, ranks: Sequence[int]) -> list[GpuSpec | None]:
        specs = [known_gpu(self._name_of(name)) for name in self.gpus.names]
        return [specs[number] for number in self.gpus.of_rank[list(ranks)].tolist()]


def _queues_launches(setup: Setup) -> bool:
    return setup.launch is not None and setup.launch.queue_limit is not None


#: Effects that a run may leave out, in the order of the answer, and the runs that leave them out.
EFFECTS: tuple[tuple[str, Callable[[Setup], bool]], ...] = (
    ("contention of compute and communication kernels for SMs and memory bandwidth",
     lambda setup: setup.plan.overlap == "ideal"),
    ("memory of library workspaces and the CUDA context (known with a software profile)",
     lambda setup: setup.software.profile is None),
    ("PyTorch's cache flush and retry after a failed allocation", lambda setup: setup.software.profile is not None),
    ("data loading on the host before the copy, checkpoints, logging", lambda setup: True),
    ("run-to-run variation: every rank takes the same time for the same work",
     lambda setup: setup.options.stragglers is None),
    ("the CPU's time to launch collectives and copies, and its launch queue limit",
     lambda setup: not _queues_launches(setup)),
    ("the CPU's time to launch copies of inputs", _queues_launches),
    ("copying the inputs from host memory (no host is described)", lambda setup: not setup.has_host),
)  # fmt: skip


def setup_of(workload: Workload | str | os.PathLike[str], plan: Plan | None, options: SimulateOptions) -> Setup:
    """Load the workload and the cluster, resolve the options, and check that they fit together.

    Four steps, each with one result: machine, software and workload, layout, operator times. Raises InputError for
    inputs that cannot be loaded, or that contradict each other.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"must be a Plan, such as Plan(dp=8), got {plan!r:.80}", field="plan")
    plan = Plan() if plan is None else plan
    machine = setup_machine(plan, options)
    workload, software = setup_workload(workload, machine, options)
    return setup_times(machine, workload, software, setup_layout(plan, workload, software.profile), options)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMachine:
    """The machine of a job.

    places: int64[ranks], the position of each rank's GPU in the cluster. gpu: the requested GPU, in place of the
    cluster's. gpus_below: the GPU models at those places.
    """

    cluster: Cluster | None
    network: str | Network
    places: Int64
    gpu: str | None
    gpus_below: tuple[str | None, ...]

    @property
    def target(self) -> str | None:
        """The GPU that operators are written and predicted for."""
        return self.gpu if self.gpu is not None else first_known(self.gpus_below)


def setup_machine(plan: Plan, options: SimulateOptions) -> JobMachine:
    """Load the cluster, and place the plan's ranks on its GPUs."""
    from trine.engine.circuit_model import network_on

    cluster = load_machine(options.cluster, plan)
    network = network_on(cluster, options.network)
    places = places_on(options.placement, cluster, plan.num_ranks)
    return JobMachine(
        cluster=cluster, network=network, places=places, gpu=options.gpu, gpus_below=gpus_under(cluster, places)
    )


def setup_workload(
    source: Workload | str | os.PathLike[str], machine: JobMachine, options: SimulateOptions
) -> tuple[Workload, ChosenSoftware]:
    """Load a trace, or synthesise a model, with the operators of its software on the machine's GPU."""
    loaded = source if is_model(source) else load_workload(source, options.trace_gpu)
    software = software_of(
        options.software, loaded, machine.target, loss=options.loss, gradient_dtype=options.gradient_dtype
    )
    if not isinstance(loaded, Workload):
        loaded = load_workload(loaded, options.trace_gpu, machine.target, software.profile or NO_SOFTWARE)
    workload = written_for(loaded, software)
    check_choices(workload, options)
    workload = on_gpu(workload, software.profile)
    if options.precision is not None:
        workload = cast(workload, options.precision)
    if options.trainable is not None:
        workload = tuned(workload, options.trainable)
    return workload if options.documents is None else packed(workload, options.documents), software


class FilledLayout(NamedTuple):
    """A plan with its open fields filled in as the software does, and what the user should know of it."""

    plan: Plan
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def setup_layout(requested: Plan, workload: Workload, profile: Software | None) -> FilledLayout:
    """Fill in the open fields of a plan. Raises PlanError if the software cannot run it."""
    layout_facts = LayoutFacts(workload)
    plan, notes = resolve_layout(requested, profile, layout_facts)
    check_layout(requested, plan, profile, layout_facts)
    warnings = (*ignored_options(requested, plan), *met_with_settings(plan, profile, layout_facts))
    return FilledLayout(plan, notes, warnings)


def setup_times(
    machine: JobMachine,
    workload: Workload,
    software: ChosenSoftware,
    layout: FilledLayout,
    options: SimulateOptions,
) -> Setup:
    """Choose the operator times and the costs of launches; return the finished setup."""
    plan, layout_notes, layout_warnings = layout
    if plan.userbuffers and machine.cluster is not None:
        from trine.parallel.tensor_times import is_within_domains

        if not is_within_domains(plan, machine.cluster, machine.places):
            plan = replace(plan, userbuffers=False)
            words = "userbuffers are ignored: tensor-parallel groups are larger than an NVLink domain, or cross one"
            layout_warnings = (*layout_warnings, words)
    if plan.offload != "none":
        from trine.parallel.offload import check_hosts

        check_hosts(machine.cluster, machine.places)
    compute = meant(options.compute, workload, machine.target)
    times = timing(workload, compute, machine.gpu, machine.gpus_below)
    gpus = _rank_gpus(workload, compute, options, times, machine.cluster, machine.places)
    specs = [known_gpu(machine.gpu or name or workload.gpu) for name in gpus.names]
    cap: PowerCap | None = None
    clocks: tuple[StepClock, ...] = ()
    if options.power_cap_w is not None or _follows_clock(gpus, specs):
        from trine.training.step_clock import at_step_clock

        at_clock = at_step_clock(workload, plan, gpus, specs, options)
        gpus, cap, clocks = at_clock.gpus, at_clock.cap, at_clock.clocks
    slower = slower_than_average(options, gpus.models[0], plan.num_ranks)
    crosses = pipeline_crosses(plan, machine.cluster, machine.places)
    launch = launches_of(workload, software, options, crosses, plan.pp, plan.virtual_stages > 1)
    slowest_models = []
    for model in gpus.models:
        slowest_models.append(OnSlowestGpu(model, slower) if slower else model)
    models = tuple(slowest_models)
    gpu_spec = None if machine.gpu is None or (times.is_recorded and times.named_gpus) else load_gpu(machine.gpu)
    return Setup(
        workload=workload,
        plan=plan,
        machine=machine.cluster,
        options=options,
        compute=compute,
        gpus=replace(gpus, models=models),
        slower=slower,
        launch=launch or launch_for(workload, options.cpu, options.launch_cost_ps),
        software=software,
        layout_notes=layout_notes,
        layout_warnings=layout_warnings,
        network=machine.network,
        gpu=gpu_spec,
        times=times,
        places=machine.places,
        cap=cap,
        clocks=clocks,
    )


def _follows_clock(gpus: RankGpus, specs: Sequence[GpuSpec | None]) -> bool:
    """Return whether the operator times of a rank depend on the clock of the step."""
    return any(uses_step_clock(model.name, spec) for model, spec in zip(gpus.models, specs, strict=True))


def _rank_gpus(
    workload: Workload, compute: str, options: SimulateOptions, times: Timing, machine: Cluster | None, places: Int64
) -> RankGpus:
    """Return the ranks' GPU models and their operator times: per model if ``times.is_each``, else from one GPU."""

    def make(source: Workload, target: str | None) -> ComputeModel:
        return compute_for(source, compute, target, options.calibration)

    model = make(workload, times.predicted_for)
    names: tuple[str | None, ...] = (workload.gpu,)
    of_rank = np.zeros(len(places), np.int64)
    if machine is not None:
        names, of_rank = models_under(machine, places, workload.gpu)
    pairs = [(workload, model)] * len(names)
    if times.is_each:
        pairs = []
        for name in names:
            is_recorded_gpu = name is None or short_name(name) == times.gpu
            pairs.append((workload, model) if is_recorded_gpu else times_on(workload, name, make))
    workloads = tuple(w for w, _ in pairs)
    models = tuple(m for _, m in pairs)
    return RankGpus(names=names, of_rank=of_rank, workloads=workloads, models=models)


def slower_than_average(options: SimulateOptions, model: ComputeModel, gpus: int) -> float:
    """Return the expected slowdown of the slowest of ``gpus`` synchronised GPUs, as a fraction of the mean.

    Raises InputError for a spread out of range, or a spread of a single GPU.
    """
    varies = options.stragglers is not None and options.stragglers.tells_ranks_apart
    if options.gpu_spread is None and (varies or model.name != TABLES):
        return 0.0
    spread = GPU_SPREAD if options.gpu_spread is None else checked_spread(options.gpu_spread)
    if gpus == 1 and options.gpu_spread:
        raise InputError("one GPU waits for no slower one: give it with several GPUs", field="gpu_spread")
    return slowest_of(gpus, spread) if gpus > 1 else 0.0


def pipeline_crosses(plan: Plan, machine: Cluster | None, places: Int64) -> bool:
    """Return whether any message between pipeline stages leaves a node."""
    if plan.pp == 1 or machine is None:
        return False
    grid, ranks = RankGrid(plan.axes), np.arange(plan.num_ranks, dtype=np.int64)
    nodes = machine.node_of[np.asarray(machine.gpus, np.int64)[places]]
    stage = grid.coordinates(ranks, "pp")
    stride = int(np.flatnonzero(stage == 1)[0])
    stage0 = ranks[stage == 0]
    return any(bool((nodes[stage0 + i * stride] != nodes[stage0 + (i + 1) * stride]).any()) for i in range(plan.pp - 1))


def places_on(
    placement: str | os.PathLike[str] | Sequence[int] | None, machine: Cluster | None, num_ranks: int
) -> Int64:
    if placement is None:
        return np.arange(num_ranks, dtype=np.int64)
    if machine is None:
        raise InputError("a placement needs a cluster", field="placement")
    from trine.parallel.rank_places import places

    nodes = machine.node_of[np.asarray(machine.gpus, np.int64)]
    return places(placement, num_ranks, len(machine.gpus), nodes)


def load_workload(
    workload: Workload | str | os.PathLike[str],
    trace_gpu: str | None,
    gpu: str | None = None,
    software: Software | str | None = None,
) -> Workload:
    """Load a trace or model; ``trace_gpu`` names the GPU of a trace that does not name it.

    A model (``model:NAME``) gets the operators that ``software`` runs on ``gpu``. Raises InputError if the trace
    contradicts ``trace_gpu``.
    """
    if isinstance(workload, str) and is_model(workload):
        from trine.workload.synthesis.model import from_text

        workload = from_text(workload, gpu, software)
    elif not isinstance(workload, Workload):
        workload = load(workload)
    if trace_gpu is None:
        return workload
    return recorded_on(workload, trace_gpu)


def load_machine(cluster: Cluster | str | os.PathLike[str] | None, plan: Plan) -> Cluster | None:
    if cluster is None:
        if plan.num_ranks > 1:
            raise InputError(f"{plan.num_ranks} GPUs need a cluster: a preset such as dgx-h100, a file, or a topology")
        return None
    cluster = as_cluster(cluster, plan.num_ranks)
    if plan.num_ranks > len(cluster.gpus):
        from trine.cluster.copies import more_gpus

        raise PlanError(
            f"the plan needs {plan.ways} = {plan.num_ranks} GPUs, but cluster {cluster.name!r} has "
            f"{len(cluster.gpus)}: {more_gpus(cluster, plan.num_ranks)}"
        )
    return cluster


def compute_for(workload: Workload, name: str, gpu: str | None, calibration: Calibration | None) -> ComputeModel:
    """Make the compute model of a job; times from a recording include the gaps between its kernels."""
    model = _operator_times(workload, name, gpu, calibration)
    if not uses_recorded_times(name) or workload.format == SYNTHESISED:
        return model
    source = known_gpu(workload.gpu)
    if (
        source is not None
        and gpu is None
        and calibration is None
        and workload.has_gpu_times
        and has_tensor_clocks(source)
    ):
        model = AtClockOfBatch(model, workload, source)
    gap_ps = kernel_gap_ps(workload)
    return WithKernelGaps(model, gap_ps) if gap_ps else model


def _operator_times(workload: Workload, name: str, gpu: str | None, calibration: Calibration | None) -> ComputeModel:
    if gpu is None or not uses_recorded_times(name):
        target = None if gpu is None else load_gpu(gpu)
        return make_compute(name, workload, target=target, source=None, calibration=calibration)
    if workload.gpu is None:
        raise InputError(
            f"the trace {workload.name!r} names no GPU, so its times cannot be moved to {gpu!r}: add --trace-gpu NAME"
        )
    source = known_gpu(workload.gpu)
    if source is None:
        raise InputError(
            f"trine has no data sheet of the trace's GPU {workload.gpu!r}, so its times cannot be moved to {gpu!r}: "
            "--trace-gpu NAME takes a known one in its place"
        )
    return make_compute(name, workload, target=load_gpu(gpu), source=source, calibration=calibration)


def launch_for(workload: Workload, cpu: bool | None, cost_ps: int | None) -> LaunchCosts | None:
    """Return the launch cost of each operator, None if launches are free; ``cost_ps`` overrides the trace."""
    if cpu is False:
        if cost_ps is not None:
            raise InputError("a launch cost was given, but CPU launches are turned off")
        return None
    if cost_ps is not None:
        from trine.compute.launch import LaunchCosts

        note = f"{format_time(cost_ps)} per operator was given for launches"
        return LaunchCosts((cost_ps,) * len(workload.operators), "assumed", (note,))
    has_side = any(op.launch_start_ps is not None for op in workload.operators)
    if not cpu and not has_side:
        return None
    from trine.compute.launch import launch_costs

    return launch_costs(workload)


def costs_on(
    costs: str | StepCosts,
    machine: Cluster | None,
    *,
    network: str | Network = "fair",
    factors: tuple[float, float] = (1.0, 1.0),
) -> StepCosts | None:
    """Return the library's costs of collectives, or None to use link bandwidth and latency alone.

    costs: "auto" uses the library's costs if the kinds of the links are known. network: unless in
    FLOW_NETWORKS, collectives are simulated message by message. factors: see
    :class:`trine.collectives.nccl.steps.StepCosts`.

    Raises InputError for an unknown ``costs``, library costs on links of unknown kind, or costs of another cluster.
    """
    if not isinstance(costs, str):
        if costs.cluster is not machine:
            raise InputError("these costs are of another cluster object", field="collective_costs")
        return costs
    if costs not in COLLECTIVE_COSTS:
        raise InputError(
            f"unknown collective costs {costs!r}{nearest(costs, COLLECTIVE_COSTS)}", field="collective_costs"
        )
    if costs == "loadstore":
        if machine is None:
            raise InputError("'loadstore' is about collectives of several GPUs of a cluster", field="collective_costs")
        loadstore_costs: StepCosts = load_target("trine.gpu.collective.costs:kept_costs")(machine)
        return loadstore_costs
    has_media = machine is not None and machine.circuits is None and machine.link_table.has_media
    if costs == "library" and not has_media:
        raise InputError("the library's costs need links of a known kind: use a preset, or 'link:' in the cluster file")
    if machine is None or costs == "links" or not has_media:
        return None
    from trine.collectives.nccl.steps import FlowCosts, StepCosts

    return (FlowCosts if network in FLOW_NETWORKS else StepCosts).of(machine, factors)


def placement_of(
    machine: Cluster | None, num_ranks: int, costs: StepCosts | None = None, places: Int64 | None = None
) -> Placement:
    """Place rank i on GPU ``places[i]`` of the cluster (default: the i-th); without a cluster, one rank on device 0."""
    from trine.collectives.nccl.steps import LinkCosts
    from trine.graph.placement import Placement

    if machine is None:
        return Placement(devices=np.zeros(1, np.int64))
    rank_places = np.arange(num_ranks) if places is None else places
    positions = rank_places.tolist()
    price = LinkCosts.of(machine) if costs is None else costs

    def group_costs(
        kind: str, size_bytes: int, groups: Int64, algorithm: str | None
    ) -> tuple[npt.NDArray[np.int32], Sequence[CollectiveAnswer]]:
        return price.of_groups(kind, size_bytes, rank_places[groups], algorithm)

    return Placement(
        devices=np.asarray(machine.gpus, np.int64)[rank_places],
        cluster=machine,
        costs=lambda kind, size, ranks, algorithm: price(kind, size, [positions[rank] for rank in ranks], algorithm),
        group_costs=group_costs,
    )
