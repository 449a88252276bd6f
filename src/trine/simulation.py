"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.errors import InputError, PlanError
from trine.model.workload import FORWARD, Workload
from trine.parallel.plan import Plan
from trine.units import format_bytes

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.compute import Calibration, ComputeModel, LaunchCosts
    from trine.engine import Progress
    from trine.model.device import GpuSpec
    from trine.parallel.build import BuildReport
    from trine.parallel.instantiate import Placement
    from trine.results import Evidence, Result, Simulator

#: What the operator level leaves out, said with every result.
NOT_MODELLED = (
    "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)",
    "library workspaces, allocator fragmentation and the CUDA context in memory",
    "data loading on the host before the copy, checkpoints, logging",
    "run-to-run variation: every rank takes the same time for the same work",
)


def simulate(
    workload: Workload | str | os.PathLike[str],
    plan: Plan | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    compute: str = "auto",
    gpu: str | None = None,
    trace_gpu: str | None = None,
    network: str = "fair",
    cpu: bool | None = None,
    launch_cost_ps: int | None = None,
    calibration: Calibration | None = None,
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
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
    network: ``fair`` (max-min) or ``equal`` (TrioSim's per-link equal split).
    cpu: whether operators wait for the launching CPU thread; None does so where the trace has a CPU side.
    launch_cost_ps: CPU time per launch where the trace has none.
    calibration: fits over several traces, from :func:`trine.calibrate`.
    engine: ``compiled`` or ``reference``, its plain-Python twin.
    progress, on_compile: callbacks, see :func:`trine.engine.run`.
    warnings: sentences to carry into the result.

    Raises
    ------
    InputError and its subclasses when the input cannot be used, SimulationError when the run cannot finish.
    """
    from trine.engine import run
    from trine.parallel.build import build_job
    from trine.parallel.instantiate import instantiate
    from trine.results import Result

    began = time.perf_counter()
    workload = _workload(workload, trace_gpu)
    plan = plan if plan is not None else Plan()
    machine = _machine(cluster, plan)
    model, target = _compute(workload, compute, gpu, calibration)
    launch = _launch(workload, cpu, launch_cost_ps)
    has_host = machine is not None and machine.host_of(machine.gpus[0]) is not None
    job, report = build_job(workload, plan, model, launch=launch, has_host=has_host)
    graph, memory = instantiate(job, placement_of(machine, plan.num_ranks))
    records = run(graph, network=network, engine=engine, progress=progress, on_compile=on_compile)
    capacity, capacity_of = _capacity(workload, machine, target)
    result = Result(
        graph=graph,
        records=records,
        memory=memory,
        memory_capacity_bytes=(capacity,) * plan.num_ranks if capacity else (),
        plan=_facts(workload, plan, machine, report, compute, network, launch is not None, gpu, capacity_of),
        evidence=_evidence(workload, plan, machine, report, launch, target),
        warnings=tuple(dict.fromkeys((*warnings, *report.warnings, *_warnings(workload, machine, gpu, has_host)))),
        not_modelled=NOT_MODELLED,
        simulator=_simulator(time.perf_counter() - began, records.num_events, plan.num_ranks),
    )
    return _with_memory_verdict(result, capacity, capacity_of)


def _with_memory_verdict(result: Result, capacity: int | None, gpu: str) -> Result:
    """Warn when a rank needs more memory than its GPU has."""
    if not capacity or (result.memory_peak_bytes or 0) <= capacity:
        return result
    over = [rank for rank, peak in enumerate(result.memory_peaks) if peak.total_bytes > capacity]
    worst = max(over, key=lambda rank: result.memory_peaks[rank].total_bytes)
    text = (
        f"out of memory: {len(over)} of {len(result.memory_peaks)} ranks do not fit; rank {worst} needs "
        f"{format_bytes(result.memory_peaks[worst].total_bytes)} of the {format_bytes(capacity)} of a {gpu}"
    )
    return replace(result, warnings=(text, *result.warnings))


def _workload(workload: Workload | str | os.PathLike[str], trace_gpu: str | None) -> Workload:
    if not isinstance(workload, Workload):
        from trine.traces import load

        workload = load(workload)
    if trace_gpu is None:
        return workload
    from trine.cluster import load_gpu

    name = load_gpu(trace_gpu).name
    if workload.gpu is not None and load_gpu(workload.gpu).name != name:
        raise InputError(f"the trace says that it was recorded on {workload.gpu!r}, which contradicts {trace_gpu!r}")
    return replace(workload, gpu=name)


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


def _compute(
    workload: Workload, name: str, gpu: str | None, calibration: Calibration | None
) -> tuple[ComputeModel, GpuSpec | None]:
    from trine.compute import make_compute

    if gpu is None:
        return make_compute(name, workload, target=None, source=None, calibration=calibration), None
    from trine.cluster import load_gpu

    if workload.gpu is None:
        raise InputError(
            f"the trace {workload.name!r} does not say on which GPU it was recorded, so its times cannot be moved to "
            f"{gpu!r}: --trace-gpu NAME says it"
        )
    target = load_gpu(gpu)
    return make_compute(name, workload, target=target, source=load_gpu(workload.gpu), calibration=calibration), target


def _launch(workload: Workload, cpu: bool | None, cost_ps: int | None) -> LaunchCosts | None:
    has_side = any(op.launch_start_ps is not None for op in workload.operators)
    if cpu is None:
        cpu = has_side or cost_ps is not None
    if not cpu:
        if cost_ps is not None:
            raise InputError("a launch cost was given, but CPU launches are turned off")
        return None
    from trine.compute import launch_costs

    return launch_costs(workload) if cost_ps is None else launch_costs(workload, default_ps=cost_ps)


def placement_of(machine: Cluster | None, num_ranks: int) -> Placement:
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
    )


def _device_gpu(machine: Cluster | None) -> str | None:
    return machine.devices[machine.gpus[0]].gpu if machine is not None else None


def _capacity(workload: Workload, machine: Cluster | None, target: GpuSpec | None) -> tuple[int | None, str]:
    """Memory of the GPU that runs the job, and its name: the one asked for, the cluster's, or the trace's."""
    if target is not None:
        return target.memory_bytes, target.name
    from trine.cluster import load_gpu

    name = _device_gpu(machine) or workload.gpu
    if name is None:
        return None, ""
    try:
        spec = load_gpu(name)
    except InputError:
        return None, name
    return spec.memory_bytes, spec.name


def _facts(
    workload: Workload, plan: Plan, machine: Cluster | None, report: BuildReport, compute: str, network: str,
    cpu: bool, gpu: str | None, capacity_of: str,
) -> Mapping[str, object]:  # fmt: skip
    pipeline, tensor = plan.pp > 1, plan.tp > 1
    return {
        "workload": workload.name,
        "source": workload.source,
        "is_training": workload.is_training,
        "trace_gpu": workload.gpu,
        "trace_batch": workload.batch,
        "gpu": capacity_of or gpu or workload.gpu,
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
        "num_steps": plan.num_steps,
        "cluster": machine.name if machine is not None else None,
        "cluster_fingerprint": machine.fingerprint if machine is not None else None,
        "compute": compute,
        "network": network if machine is not None else None,
        "cpu_launch": cpu,
    }


def _evidence(
    workload: Workload, plan: Plan, machine: Cluster | None, report: BuildReport, launch: LaunchCosts | None,
    target: GpuSpec | None,
) -> tuple[Evidence, ...]:  # fmt: skip
    from trine.results import Evidence

    total = sum(report.evidence_ps.values()) or 1
    rows = [
        Evidence("operator time", kind, _operator_detail(kind, workload, target), report.evidence_ps[kind] / total)
        for kind in ("measured", "interpolated", "modelled", "assumed")
        if report.evidence_ps.get(kind)
    ]
    if launch is not None:
        rows.append(Evidence("CPU launch", launch.evidence, "; ".join(launch.notes)))
    if machine is not None:
        sources = "; ".join(f"{name}: {text}" for name, text in machine.sources.items())
        rows.append(Evidence(f"links of {machine.name}", machine.evidence, sources))
        if plan.num_ranks > 1:
            detail = "flows share links; ring schedules on one channel; no protocol overhead"
            rows.append(Evidence("communication time", "modelled", detail))
    rows.extend(Evidence("trace", "assumed", text) for text in workload.assumptions)
    return tuple(rows)


def _operator_detail(kind: str, workload: Workload, target: GpuSpec | None) -> str:
    recorded = f"recorded on {workload.gpu or 'an unnamed GPU'} at batch {workload.batch}"
    return {
        "measured": recorded,
        "interpolated": f"between operators {recorded} and in other traces",
        "modelled": f"linear model of time on FLOPs and bytes, fitted on operators {recorded}",
        "assumed": f"{recorded}, moved to {target.name if target is not None else 'another size'} by data-sheet ratios",
    }[kind]


def _warnings(workload: Workload, machine: Cluster | None, gpu: str | None, has_host: bool) -> list[str]:
    found = []
    of_machine = _device_gpu(machine)
    if of_machine and workload.gpu and gpu is None:
        from trine.cluster import load_gpu

        try:
            same = load_gpu(of_machine).name == load_gpu(workload.gpu).name
        except InputError:
            same = of_machine == workload.gpu
        if not same:
            found.append(
                f"operator times are those of the trace's {workload.gpu}, but the cluster's GPUs are {of_machine}: "
                f"--gpu {of_machine} predicts for them"
            )
    if has_host and (copies := _host_copies(workload)):
        found.append(
            f"{copies} operators of the trace copy inputs to the GPU, and the copy over the host's links is modelled "
            "too: --inputs none counts it once"
        )
    if machine is not None and not has_host:
        found.append("the cluster has no host memory, so copying the inputs to the GPUs is left out")
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
