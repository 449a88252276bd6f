"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.errors import InputError, PlanError, nearest
from trine.model.workload import FORWARD, SYNTHESISED, Workload
from trine.parallel.forms import form_facts
from trine.parallel.plan import Plan
from trine.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.library.steps import StepCosts
    from trine.compute import Calibration, ComputeModel, LaunchCosts
    from trine.engine import Progress
    from trine.folding.execute import JobRun
    from trine.folding.observe import Observation
    from trine.folding.site import Site
    from trine.model.device import GpuSpec
    from trine.model.memory import MemoryEvents
    from trine.model.program import Job
    from trine.model.taskgraph import Records, TaskGraph
    from trine.network.models import Network
    from trine.parallel.build import BuildReport
    from trine.parallel.contention import Kernels
    from trine.parallel.instantiate import Placement
    from trine.parallel.stragglers import Stragglers
    from trine.results import Evidence, Result, Simulator
    from trine.results.scope import Scope

Int64 = npt.NDArray[np.int64]

NO_CONTENTION = "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)"
#: What the operator level leaves out, said with every result.
NOT_MODELLED = (
    "library workspaces, allocator fragmentation and the CUDA context in memory",
    "data loading on the host before the copy, checkpoints, logging",
    "run-to-run variation: every rank takes the same time for the same work",
    "the CPU's time to launch collectives and copies, and the limit on how far it runs ahead",
)
#: A simulated schedule that takes so much longer than the library is warned of.
SLOWER_SCHEDULE = 1.2
#: Where the cost of a collective's messages comes from.
COLLECTIVE_COSTS = ("auto", "links", "library")
NO_HOST = "copying the inputs from host memory (no host is described)"


def simulate(
    workload: Workload | str | os.PathLike[str],
    plan: Plan | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    compute: str = "auto",
    gpu: str | None = None,
    trace_gpu: str | None = None,
    network: str | Network | None = None,
    collective_costs: str = "auto",
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
) -> Result:
    """Simulate one job and say how long a step takes, and why.

    Parameters
    ----------
    workload: a loaded workload, or what :func:`trine.load` takes.
    plan: the parallel layout; None is one GPU.
    cluster: a Cluster, the name of a preset, or a file. More than one rank needs one.
    compute: ``auto`` (recorded where sizes are the trace's, linear elsewhere), ``recorded`` or ``linear``.
    gpu: predict for this GPU instead of the one that the trace was recorded on.
    trace_gpu: the GPU that the trace was recorded on, where the trace does not say.
    network: ``fair`` (max-min), ``equal`` (TrioSim's per-link equal split), ``fifo`` (store and forward, each link
        serves whole messages in turn), ``circuit`` (the circuits of the cluster), or a model of your own, which needs
        ``engine="reference"``. None: ``circuit`` where the cluster has circuits, else ``fair``.
    collective_costs: ``library`` adds what NCCL or RCCL costs in launches, protocols and synchronisation to the
        messages of collectives, ``links`` nothing; ``auto``: the library where the links are of a known kind.
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
    on_job: called with the rank programs before they run, for example to write them (:mod:`trine.chakra`).
    warnings: sentences to carry into the result.

    Raises
    ------
    InputError and its subclasses when the input cannot be used, SimulationError when the run cannot finish.
    """
    from trine.folding.execute import JobRunner
    from trine.network.circuit import network_on
    from trine.parallel.build import build_job
    from trine.parallel.contention import under_pressure

    began = time.perf_counter()
    machine = _machine(cluster, plan if plan is not None else Plan())
    network = network_on(machine, network)
    workload = _workload(workload, trace_gpu, gpu if gpu is not None else _gpu_of(machine))
    setup = _Setup(
        workload=workload,
        plan=plan if plan is not None else Plan(),
        machine=machine,
        compute=compute,
        model=_compute(workload, compute, gpu, calibration),
        launch=_launch(workload, cpu, launch_cost_ps),
        network=network if isinstance(network, str) else network.name,
        gpu=None if gpu is None else _gpu(gpu),
        places=_places(placement, machine, plan.num_ranks if plan is not None else 1),
    )
    job, report = build_job(
        workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host,
        host_bytes_per_s=setup.host_bytes_per_s,
    )  # fmt: skip
    if on_job is not None:
        on_job(job)
    if stragglers is not None:
        stragglers.check(setup.plan.num_ranks)
    costs = costs_on(collective_costs, setup.machine)
    kernels = setup.kernels(costs)
    if kernels is not None:
        job = under_pressure(job, kernels)
    done = JobRunner(
        job=job,
        placement=lambda: placement_of(machine, setup.plan.num_ranks, costs, setup.places),
        site=_site(machine, costs, setup.places),
        network=network,
        engine=engine,
        fold=fold,
        stragglers=stragglers,
        progress=progress,
        on_compile=on_compile,
        on_stage=on_stage,
    ).run()
    if costs is not None and costs.worst > SLOWER_SCHEDULE:
        warnings = (
            *warnings,
            f"collectives: {costs.library} would be up to {costs.worst:.1f} times faster than the schedule that is "
            "simulated (several rings or in-network reduction); --algorithm chooses another schedule",
        )
    sentences = (*warnings, *report.warnings, *setup.model.notes, *_warnings(setup), *_fold_warnings(done))
    answer = _Answer(
        setup=setup,
        facts=_facts(setup, report),
        evidence=_evidence(setup, report, costs, kernels, stragglers),
        warnings=tuple(dict.fromkeys(sentences)),
        simulator=_simulator(time.perf_counter() - began, done.records.num_events, done.num_simulated),
    )
    return _with_memory_verdict(answer.result(done.graph, done.records, done.memory, done.ranks, answer.scope(done)))


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What results about the same run share, whichever ranks they show."""

    setup: _Setup
    facts: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    warnings: tuple[str, ...]
    simulator: Simulator

    def result(
        self, graph: TaskGraph, records: Records, memory: MemoryEvents | None, ranks: Sequence[int], scope: Scope | None
    ) -> Result:
        from trine.results import Result

        capacity = self.setup.memory_bytes(self.setup.places[list(ranks)])
        return Result(
            graph=graph,
            records=records,
            memory=memory,
            memory_capacity_bytes=capacity if any(capacity) else (),
            plan=self.facts,
            evidence=self.evidence,
            warnings=self.warnings,
            not_modelled=self.setup.not_modelled,
            simulator=self.simulator,
            scope=scope,
            power_w=self.setup.power_w(self.setup.places[list(ranks)]),
        )

    def scope(self, done: JobRun) -> Scope | None:
        from trine.folding.execute import scope_of

        def observed(seen: Observation, ranks: Sequence[int], whole: Scope) -> Result:
            part = replace(whole, ranks=tuple(ranks))
            return self.result(seen.graph, seen.records, seen.memory, ranks, part)

        return scope_of(done, observed)


def _places(placement: str | os.PathLike[str] | Sequence[int] | None, machine: Cluster | None, num_ranks: int) -> Int64:
    from trine.folding.places import places

    if machine is None:
        if placement is not None:
            raise InputError("a placement needs a cluster", field="placement")
        return places(None, num_ranks, 1, (-1,))
    nodes = machine.node_of[np.asarray(machine.gpus, np.int64)]
    return places(placement, num_ranks, len(machine.gpus), nodes)


def _site(machine: Cluster | None, costs: StepCosts | None, where: Int64) -> Site:
    from trine.folding.site import Site

    if machine is None:
        return Site(devices=np.zeros(1, np.int64), cluster=None, costs=None)
    group_costs = None
    if costs is not None:

        def group_costs(
            kind: str, size_bytes: int, groups: Int64, algorithm: str | None
        ) -> tuple[npt.NDArray[np.int32], Sequence[tuple[str | None, int]]]:
            return costs.of_groups(kind, size_bytes, where[groups], algorithm)

    return Site(devices=np.asarray(machine.gpus, np.int64)[where], cluster=machine, costs=group_costs)


def _fold_warnings(done: JobRun) -> list[str]:
    from trine.folding.sensitive import sensitivity_warning

    found = []
    if done.why:
        found.append(f"every rank was simulated by itself: {done.why}")
    if done.folded is not None and (sensitive := sensitivity_warning(done.folded, done.site)):
        found.append(sensitive)
    return found


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """What was asked for, resolved."""

    workload: Workload
    plan: Plan
    machine: Cluster | None
    compute: str
    model: ComputeModel
    launch: LaunchCosts | None
    network: str
    gpu: GpuSpec | None
    places: Int64

    @property
    def has_host(self) -> bool:
        """Whether the cluster has host memory that inputs can be copied from."""
        return self.machine is not None and self.machine.host_of(self.machine.gpus[0]) is not None

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What this run leaves out, in sentences."""
        contention = () if self.plan.overlap != "ideal" else (NO_CONTENTION,)
        return (*contention, *NOT_MODELLED, *(() if self.has_host else (NO_HOST,)))

    @property
    def host_bytes_per_s(self) -> float | None:
        """Bandwidth of host memory for each rank, where it is of interest."""
        if self.plan.offload != "optimizer" or self.machine is None or not self.has_host:
            return None
        from trine.parallel.offload import host_bytes_per_s

        return host_bytes_per_s(self.machine, np.asarray(self.machine.gpus, np.int64)[self.places])

    def kernels(self, costs: StepCosts | None) -> Kernels | None:
        """What communication takes from compute, where that is modelled."""
        if self.plan.overlap != "modelled" or self.machine is None:
            return None
        from trine.parallel.contention import kernels_of

        return kernels_of(_known_gpu(self.gpu_names[0]), self.workload, self.machine, self.places, costs)

    @cached_property
    def gpu_names(self) -> tuple[str | None, ...]:
        """The GPU models of the ranks, each once: the one asked for, the cluster's, or the trace's."""
        if self.gpu is not None or self.machine is None:
            return (self.gpu.name if self.gpu is not None else self.workload.gpu,)
        models, number = self.cluster_gpus
        used = dict.fromkeys(number[self.places].tolist())
        return tuple(dict.fromkeys(models[at] or self.workload.gpu for at in used))

    @cached_property
    def cluster_gpus(self) -> tuple[list[str | None], npt.NDArray[np.int32]]:
        """GPU models, and which of them each GPU of the cluster is."""
        assert self.machine is not None
        table = self.machine.device_table
        return [kind.gpu for kind in table.kinds], table.kind[np.asarray(self.machine.gpus, np.int64)]

    def memory_bytes(self, positions: Int64) -> tuple[int, ...]:
        """Memory of the GPUs at these positions of the cluster, 0 where nobody says."""
        return tuple(0 if spec is None else spec.memory_bytes for spec in self._gpus_at(positions))

    def power_w(self, positions: Int64) -> tuple[int, ...]:
        """Highest power of the GPUs at these positions of the cluster, empty where nobody says of one."""
        found = tuple(0 if spec is None else spec.power_w or 0 for spec in self._gpus_at(positions))
        return found if all(found) else ()

    def _gpus_at(self, positions: Int64) -> list[GpuSpec | None]:
        if self.gpu is not None or self.machine is None:
            names = [self.gpu_names[0]] * len(positions)
        else:
            models, number = self.cluster_gpus
            names = [models[at] or self.workload.gpu for at in number[positions].tolist()]
        known = {name: _known_gpu(name) for name in dict.fromkeys(names)}
        return [known[name] for name in names]


def _gpu(name: str) -> GpuSpec:
    from trine.cluster import load_gpu

    return load_gpu(name)


def _known_gpu(name: str | None) -> GpuSpec | None:
    """The preset of this name; None for a GPU without one."""
    try:
        return None if name is None else _gpu(name)
    except InputError:
        return None


def _with_memory_verdict(result: Result) -> Result:
    """Warn when a rank needs more memory than its GPU has."""
    over = [rank for rank, _ in enumerate(result.memory_peaks) if result.memory_verdict(rank) == "does not fit"]
    if not over:
        return result
    worst = max(over, key=lambda rank: result.memory_peaks[rank].total_bytes)
    text = (
        f"out of memory: {len(over)} of {len(result.memory_peaks)} ranks do not fit; rank {worst} needs "
        f"{format_bytes(result.memory_peaks[worst].total_bytes)}, its GPU has "
        f"{format_bytes(result.memory_capacity_bytes[worst])}"
    )
    return replace(result, warnings=(text, *result.warnings))


def _gpu_of(machine: Cluster | None) -> str | None:
    """The first GPU model of the cluster, where trine has its data sheet."""
    spec = None if machine is None else _known_gpu(machine.devices[machine.gpus[0]].gpu)
    return None if spec is None else spec.name


def _workload(workload: Workload | str | os.PathLike[str], trace_gpu: str | None, gpu: str | None) -> Workload:
    """Load the trace, and put in the name of its GPU where the user knows better than the trace.

    A model (``model:NAME``) is written for ``gpu``.
    """
    if isinstance(workload, str) and workload.startswith("model:"):
        from trine.traces.synthesize_model import from_text

        workload = from_text(workload, gpu)
    elif not isinstance(workload, Workload):
        from trine.traces import load

        workload = load(workload)
    if trace_gpu is None:
        return workload
    spec, said = _gpu(trace_gpu), _known_gpu(workload.gpu)
    if said is not None and said.name != spec.name:
        raise InputError(f"the trace says that it was recorded on {workload.gpu!r}, which contradicts {trace_gpu!r}")
    return replace(workload, gpu=spec.name)


def _machine(cluster: Cluster | str | os.PathLike[str] | None, plan: Plan) -> Cluster | None:
    if isinstance(cluster, str | os.PathLike):
        from trine.cluster import load_cluster

        cluster = load_cluster(os.fspath(cluster))
    if cluster is None:
        if plan.num_ranks > 1:
            raise InputError(
                f"{plan.num_ranks} GPUs need a cluster: name a preset or a file, or describe one by a topology"
            )
        return None
    if plan.num_ranks > len(cluster.gpus):
        raise PlanError(
            f"the plan needs {plan.ways} = {plan.num_ranks} GPUs, but cluster "
            f"{cluster.name!r} has {len(cluster.gpus)}"
        )
    return cluster


def _compute(workload: Workload, name: str, gpu: str | None, calibration: Calibration | None) -> ComputeModel:
    from trine.compute import make_compute

    if gpu is None:
        return make_compute(name, workload, target=None, source=None, calibration=calibration)
    if workload.gpu is None:
        raise InputError(
            f"the trace {workload.name!r} does not say on which GPU it was recorded, so its times cannot be moved to "
            f"{gpu!r}: --trace-gpu NAME says it"
        )
    source = _known_gpu(workload.gpu)
    if source is None:
        raise InputError(
            f"trine has no data sheet of the trace's GPU {workload.gpu!r}, so its times cannot be moved to {gpu!r}: "
            "--trace-gpu NAME takes a known one in its place"
        )
    return make_compute(name, workload, target=_gpu(gpu), source=source, calibration=calibration)


def _launch(workload: Workload, cpu: bool | None, cost_ps: int | None) -> LaunchCosts | None:
    """Launch costs of each operator; a given cost replaces what the trace says."""
    from trine.compute import LaunchCosts, launch_costs
    from trine.units import format_time

    if cpu is False:
        if cost_ps is not None:
            raise InputError("a launch cost was given, but CPU launches are turned off")
        return None
    if cost_ps is not None:
        note = f"{format_time(cost_ps)} per operator was given for launches"
        return LaunchCosts((cost_ps,) * len(workload.operators), "assumed", (note,))
    has_side = any(op.launch_start_ps is not None for op in workload.operators)
    return launch_costs(workload) if cpu or has_side else None


def costs_on(asked: str, machine: Cluster | None) -> StepCosts | None:
    """What a library adds to messages: by default where the links say what they are.

    Raises InputError for another word, or for a library's costs on links of an unknown kind.
    """
    if asked not in COLLECTIVE_COSTS:
        raise InputError(
            f"unknown collective costs {asked!r}{nearest(asked, COLLECTIVE_COSTS)}", field="collective_costs"
        )
    known = machine is not None and machine.circuits is None and any(link.medium for link in machine.links)
    if asked == "library" and not known:
        raise InputError("the library's costs need links of a known kind: use a preset, or 'link:' in the cluster file")
    if machine is None or asked == "links" or not known:
        return None
    from trine.collectives.library.steps import StepCosts

    return StepCosts(machine)


def placement_of(
    machine: Cluster | None, num_ranks: int, costs: StepCosts | None = None, places: Int64 | None = None
) -> Placement:
    """Put rank i on GPU ``places[i]`` of the cluster (the i-th); without one, one rank sits on a device of its own."""
    from trine.parallel.instantiate import Placement

    if machine is None:
        return Placement([0], lambda a, b: (), lambda device: None, [], [], [], ["gpu0"])
    at = list(range(num_ranks)) if places is None else places.tolist()
    placed = None
    if costs is not None:

        def placed(kind: str, size: int, ranks: Sequence[int], algorithm: str | None) -> tuple[str | None, int]:
            return costs(kind, size, [at[rank] for rank in ranks], algorithm)

    return Placement(
        [machine.gpus[position] for position in at],
        machine.route,
        machine.host_of,
        machine.link_bytes_per_s.tolist(),
        machine.link_latency_ps.tolist(),
        list(machine.link_names),
        list(machine.device_names),
        placed,
    )


def _facts(setup: _Setup, report: BuildReport) -> Mapping[str, object]:
    workload, plan, machine = setup.workload, setup.plan, setup.machine
    pipeline, tensor = plan.pp > 1, plan.tp > 1
    gpus = [spec.name if (spec := _known_gpu(name)) is not None else name for name in setup.gpu_names]
    return {
        "workload": workload.name,
        "source": workload.source,
        "is_training": workload.is_training,
        "trace_gpu": workload.gpu,
        "trace_batch": workload.batch,
        "gpu": ", ".join(name for name in gpus if name) or None,
        "batch": report.batch,
        "global_batch": report.batch * plan.dp,
        "num_ranks": plan.num_ranks,
        "dp": plan.dp,
        "tp": plan.tp,
        "pp": plan.pp,
        "data": plan.data if plan.dp > 1 else None,
        **form_facts(plan),
        "micro_batches": list(report.micro_batches),
        "schedule": plan.schedule if pipeline else None,
        "virtual_stages": plan.virtual_stages if pipeline else None,
        "balance": None if not pipeline or plan.cuts else plan.balance,
        "recompute": plan.recompute if workload.is_training else None,
        "recompute_layers": plan.recompute_layers,
        "sync": plan.sync if plan.dp > 1 and workload.is_training and not plan.splits_gradients else None,
        "cuts": list(report.cuts),
        "bucket_bytes": [list(stage) for stage in report.buckets],
        "tp_style": plan.tp_style if tensor else None,
        "num_split_operators": report.num_split_operators if tensor else None,
        "input_copy": plan.input_copy if machine is not None else None,
        "overlap": plan.overlap if plan.overlap != "ideal" else None,
        "offload": plan.offload if plan.offload != "none" else None,
        "algorithms": dict(plan.algorithms),
        "num_steps": plan.num_steps,
        "cluster": machine.name if machine is not None else None,
        "cluster_fingerprint": machine.fingerprint if machine is not None else None,
        "compute": setup.compute,
        "network": setup.network if machine is not None else None,
        "cpu_launch": setup.launch is not None,
    }


def _evidence(
    setup: _Setup, report: BuildReport, costs: StepCosts | None, kernels: Kernels | None, stragglers: Stragglers | None
) -> tuple[Evidence, ...]:
    from trine.results import Evidence

    total = sum(report.evidence_ps.values()) or 1
    rows = [
        Evidence("operator time", kind, _operator_detail(kind, setup), report.evidence_ps[kind] / total)
        for kind in ("measured", "interpolated", "modelled", "assumed")
        if report.evidence_ps.get(kind)
    ]
    if setup.launch is not None:
        rows.append(Evidence("CPU launch", setup.launch.evidence, "; ".join(setup.launch.notes)))
    if setup.machine is not None:
        sources = "; ".join(f"{name}: {text}" for name, text in setup.machine.sources.items())
        rows.append(Evidence(f"links of {setup.machine.name}", setup.machine.evidence, sources))
        if setup.plan.num_ranks > 1:
            sharing = "whole messages queue for links" if setup.network == "fifo" else "flows share links"
            if setup.machine.circuits is not None:
                sharing = f"{setup.machine.circuits.describe()}, between GPUs that no links join"
            software = "no protocol overhead"
            if costs is not None:
                software = f"software costs of {setup.machine.library or 'nccl'} (docs/background/collectives.md)"
            detail = f"{sharing}; schedules on one channel; {software}"
            rows.append(Evidence("communication time", "modelled", detail))
    if kernels is not None:
        rows.append(Evidence("contention of compute and communication", "modelled", kernels.describe()))
    if setup.host_bytes_per_s is not None:
        rate = format_bandwidth(setup.host_bytes_per_s)
        detail = f"{rate} of host memory for each GPU; gradients read once, weights and states read and written once"
        rows.append(Evidence("optimizer on the CPU", "assumed", detail))
    if stragglers is not None:
        rows.append(Evidence("stragglers", "assumed", "; ".join(stragglers.sentences)))
    rows.extend(Evidence("trace", "assumed", text) for text in setup.workload.assumptions)
    return tuple(rows)


def _operator_detail(kind: str, setup: _Setup) -> str:
    workload = setup.workload
    if setup.compute == "roofline":
        return "the GPU's data sheet; no recorded time is used (docs/background/roofline.md)"
    if workload.format == SYNTHESISED:
        return f"no trace: predicted from the shapes of {workload.name}"
    recorded = f"recorded on {workload.gpu or 'an unnamed GPU'} at batch {workload.batch}"
    target = setup.gpu.name if setup.gpu is not None else "another size"
    return {
        "measured": recorded,
        "interpolated": f"between operators {recorded} and in other traces",
        "modelled": f"linear model of time on FLOPs and bytes, fitted on operators {recorded}",
        "assumed": f"{recorded}, moved to {target} by data-sheet ratios",
    }[kind]


def _warnings(setup: _Setup) -> list[str]:
    found = []
    workload, machine = setup.workload, setup.machine
    if machine is not None:
        models, number = setup.cluster_gpus
        used = dict.fromkeys(models[at] for at in dict.fromkeys(number[setup.places].tolist()))
        here = {spec.name: None for name in used if (spec := _known_gpu(name)) is not None}
        if len(here) > 1:
            found.append(f"the cluster mixes {', '.join(here)}: every rank is given the operator times of one GPU")
        timed = setup.gpu if setup.gpu is not None else _known_gpu(workload.gpu)
        if timed is not None and here and timed.name not in here:
            other = next(iter(here))
            whose = "asked for" if setup.gpu is not None else "of the trace"
            found.append(
                f"operator times are those of the {timed.name} {whose}, but the cluster's GPUs are {other}: "
                f"--gpu {other} predicts for them"
            )
    if setup.has_host and setup.plan.input_copy != "none" and (copies := _host_copies(workload)):
        found.append(
            f"{copies} operators of the trace copy inputs to the GPU, and the copy over the host's links is modelled "
            "too: --inputs none counts it once"
        )
    return found


def _host_copies(workload: Workload) -> int:
    """Operators of the forward phase that do nothing but move the data inputs."""
    return sum(
        op.phase == FORWARD
        and op.name in ("aten::to", "aten::_to_copy", "aten::copy_")
        and any(workload.tensors[t].role == "input" for t in op.inputs)
        for op in workload.operators
    )


def _simulator(wall_s: float, events: int, ranks: int) -> Simulator:
    from trine import __version__
    from trine.results import Simulator

    return Simulator(version=__version__, wall_s=wall_s, events=events, ranks_simulated=ranks)
