"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from trine.errors import InputError, PlanError, nearest
from trine.model.workload import FORWARD, SYNTHESISED, Workload
from trine.parallel.plan import Plan
from trine.units import format_bytes

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.library.steps import StepCosts
    from trine.compute import Calibration, ComputeModel, LaunchCosts
    from trine.engine import Progress
    from trine.model.device import GpuSpec
    from trine.model.program import Job
    from trine.network.models import Network
    from trine.parallel.build import BuildReport
    from trine.parallel.instantiate import Placement
    from trine.results import Evidence, Result, Simulator

#: What the operator level leaves out, said with every result.
NOT_MODELLED = (
    "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)",
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
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
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
    progress, on_compile: callbacks, see :func:`trine.engine.run`.
    on_job: called with the rank programs before they run, for example to write them (:mod:`trine.chakra`).
    warnings: sentences to carry into the result.

    Raises
    ------
    InputError and its subclasses when the input cannot be used, SimulationError when the run cannot finish.
    """
    from trine.engine import run
    from trine.network.circuit import network_on
    from trine.parallel.build import build_job
    from trine.parallel.instantiate import instantiate
    from trine.results import Result

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
    )
    job, report = build_job(workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host)
    if on_job is not None:
        on_job(job)
    costs = costs_on(collective_costs, setup.machine)
    graph, memory = instantiate(job, placement_of(setup.machine, setup.plan.num_ranks, costs))
    records = run(graph, network=network, engine=engine, progress=progress, on_compile=on_compile)
    if costs is not None and costs.worst > SLOWER_SCHEDULE:
        warnings = (
            *warnings,
            f"collectives: {costs.library} would be up to {costs.worst:.1f} times faster than the schedule that is "
            "simulated (several rings or in-network reduction); --algorithm chooses another schedule",
        )
    sentences = (*warnings, *report.warnings, *setup.model.notes, *_warnings(setup))
    capacity = tuple(spec.memory_bytes if spec is not None else 0 for spec in setup.rank_gpus)
    result = Result(
        graph=graph,
        records=records,
        memory=memory,
        memory_capacity_bytes=capacity if any(capacity) else (),
        plan=_facts(setup, report),
        evidence=_evidence(setup, report, costs),
        warnings=tuple(dict.fromkeys(sentences)),
        not_modelled=(*NOT_MODELLED, *(() if setup.has_host else (NO_HOST,))),
        simulator=_simulator(time.perf_counter() - began, records.num_events, setup.plan.num_ranks),
    )
    return _with_memory_verdict(result)


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

    @property
    def has_host(self) -> bool:
        """Whether the cluster has host memory that inputs can be copied from."""
        return self.machine is not None and self.machine.host_of(self.machine.gpus[0]) is not None

    @cached_property
    def rank_gpus(self) -> tuple[GpuSpec | None, ...]:
        """The GPU of each rank: the one asked for, the cluster's, or the trace's; None where nobody says."""
        if self.gpu is not None:
            return (self.gpu,) * self.plan.num_ranks
        devices = [] if self.machine is None else self.machine.gpus[: self.plan.num_ranks]
        names = [self.machine.devices[device].gpu for device in devices] if self.machine is not None else [None]
        known = {name: _known_gpu(name or self.workload.gpu) for name in dict.fromkeys(names)}
        return tuple(known[name] for name in names)


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
            f"the plan needs dp {plan.dp} x tp {plan.tp} x pp {plan.pp} = {plan.num_ranks} GPUs, but cluster "
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


def placement_of(machine: Cluster | None, num_ranks: int, costs: StepCosts | None = None) -> Placement:
    """Put rank i on the i-th GPU of the cluster; without one, a single rank sits on a device of its own."""
    from trine.parallel.instantiate import Placement

    if machine is None:
        return Placement([0], lambda a, b: (), lambda device: None, [], [], [], ["gpu0"])
    return Placement(
        machine.gpus[:num_ranks],
        machine.route,
        machine.host_of,
        machine.link_bytes_per_s.tolist(),
        machine.link_latency_ps.tolist(),
        [link.name for link in machine.links],
        [device.name for device in machine.devices],
        costs,
    )


def _facts(setup: _Setup, report: BuildReport) -> Mapping[str, object]:
    workload, plan, machine = setup.workload, setup.plan, setup.machine
    pipeline, tensor = plan.pp > 1, plan.tp > 1
    gpus = dict.fromkeys(spec.name if spec is not None else workload.gpu for spec in setup.rank_gpus)
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
        "micro_batches": list(report.micro_batches),
        "schedule": plan.schedule if pipeline else None,
        "cuts": list(report.cuts),
        "bucket_bytes": [list(stage) for stage in report.buckets],
        "tp_style": plan.tp_style if tensor else None,
        "num_split_operators": report.num_split_operators if tensor else None,
        "input_copy": plan.input_copy if machine is not None else None,
        "algorithms": dict(plan.algorithms),
        "num_steps": plan.num_steps,
        "cluster": machine.name if machine is not None else None,
        "cluster_fingerprint": machine.fingerprint if machine is not None else None,
        "compute": setup.compute,
        "network": setup.network if machine is not None else None,
        "cpu_launch": setup.launch is not None,
    }


def _evidence(setup: _Setup, report: BuildReport, costs: StepCosts | None) -> tuple[Evidence, ...]:
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
    rows.extend(Evidence("trace", "assumed", text) for text in setup.workload.assumptions)
    return tuple(rows)


def _operator_detail(kind: str, setup: _Setup) -> str:
    workload = setup.workload
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
        used = [machine.devices[device].gpu for device in machine.gpus[: setup.plan.num_ranks]]
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
