"""Parts of a result besides its times: facts about the plan, evidence, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.uplinks import traffic_warnings
from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.compute.origin import known_gpu
from trine.graph.workload import EVEN_EXPERTS, FORWARD, SHARD, SYNTHESISED, Workload
from trine.parallel.data import BUFFERS
from trine.parallel.plan import Plan, form_facts
from trine.parallel.token_partition import expert_load, num_experts
from trine.training.setup import Setup

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.cluster.measured_gpu import MeasuredGpu
    from trine.collectives.nccl.steps import StepCosts
    from trine.common.evidence import Evidence
    from trine.folding.run import JobRun
    from trine.parallel.build import BuildReport
    from trine.parallel.contention import CommunicationKernels
    from trine.parallel.stragglers import Stragglers
    from trine.results.memory import MemoryFacts
    from trine.results.repeats import Repeats
from trine.common.evidence import ASSUMED, EVIDENCE, EXPERT_LOAD, GPU_FILE, MEASURED, MODELLED, Evidence
from trine.compute.spread import SPREAD_SOURCE
from trine.results import Result


def facts(setup: Setup, report: BuildReport) -> Mapping[str, object]:
    workload, plan, machine = setup.workload, setup.plan, setup.machine
    pipeline, tensor = plan.pp > 1, plan.tp > 1
    gpus = []
    for name in setup.gpu_names:
        gpus.append(spec.name if (spec := known_gpu(name)) is not None else name)
    return {
        "workload": workload.name,
        "source": workload.source,
        "is_training": workload.is_training,
        "trace_gpu": workload.gpu,
        "trace_batch": workload.batch,
        **({"documents": workload.metadata["documents"]} if "documents" in workload.metadata else {}),
        "gpu": ", ".join(name for name in gpus if name) or None,
        "batch": report.batch,
        "global_batch": report.samples(plan.dp),
        **({"replica_batches": list(report.replica_batches)} if report.replica_batches else {}),
        "num_ranks": plan.num_ranks,
        "dp": plan.dp,
        "tp": plan.tp,
        "pp": plan.pp,
        "data": plan.data if plan.dp > 1 else None,
        **form_facts(plan),
        "micro_batches": list(report.micro_batches),
        "schedule": plan.schedule if pipeline else None,
        "virtual_stages": plan.virtual_stages if pipeline else None,
        "balance": None if not pipeline or plan.has_cuts else plan.balance,
        "recompute": plan.recompute if workload.is_training else None,
        "recompute_layers": plan.recompute_layers,
        "sync": plan.sync if plan.dp > 1 and workload.is_training and not plan.splits_gradients else None,
        "cuts": list(report.cuts),
        "bucket_bytes": [list(stage) for stage in report.buckets],
        "tp_style": report.tp_style if tensor else None,
        "num_split_operators": report.num_split_operators if tensor else None,
        "input_copy": plan.inputs if machine is not None else None,
        "overlap": plan.overlap if plan.overlap != "ideal" else None,
        "offload": plan.offload if plan.offload != "none" else None,
        "algorithms": dict(plan.algorithm),
        "num_steps": plan.steps,
        "cluster": machine.name if machine is not None else None,
        "cluster_fingerprint": machine.fingerprint if machine is not None else None,
        "routing": machine.routing if machine is not None else None,
        "routing_reason": machine.routing_why if machine is not None and machine.has_fabric else None,
        "compute": setup.options.compute,
        "network": setup.network_name if machine is not None else None,
        "cpu_launch": setup.launch is not None,
        "software": setup.software.name,
        **({"recorded_collectives": [asdict(each) for each in workload.collectives]} if workload.collectives else {}),
    }


def evidence(
    setup: Setup,
    report: BuildReport,
    costs: StepCosts | None,
    kernels: Sequence[CommunicationKernels],
    stragglers: Stragglers | None,
    repeats: Repeats | None,
) -> tuple[Evidence, ...]:
    evidence_ps = report.evidence_ps(repeats)
    total = sum(evidence_ps.values()) or 1
    rows = [
        Evidence("operator time", kind, _operator_detail(kind, setup), evidence_ps[kind] / total)
        for kind in EVIDENCE
        if evidence_ps.get(kind)
    ]
    rows.extend(Evidence(GPU_FILE, MEASURED, measured.words) for measured in gpu_files(setup))
    rows.extend(Evidence("GPU clock", "modelled", clock.detail) for clock in setup.clocks)
    if setup.cap is not None:
        rows.append(Evidence("power cap", "modelled", setup.cap.detail))
    if setup.slower:
        rows.append(Evidence("GPU variation", "assumed", _slowest(setup)))
    if setup.software.profile is not None:
        rows.append(_software(setup))
    rows.extend(Evidence("layout", "assumed", text) for text in setup.layout_notes)
    rows.extend(Evidence("tensor parallelism", "assumed", text) for text in report.tp_notes)
    if report.cut_rule:
        rows.append(Evidence("pipeline cuts", "assumed", report.cut_rule))
    if setup.launch is not None:
        rows.append(Evidence("CPU launch", setup.launch.evidence, "; ".join(setup.launch.notes)))
    if setup.machine is not None:
        sources = "; ".join(f"{name}: {text}" for name, text in setup.machine.sources.items())
        rows.append(Evidence(f"links of {setup.machine.name}", setup.machine.evidence, sources))
        if setup.plan.num_ranks > 1:
            sharing = (
                "whole messages queue for links" if setup.network_name == "fifo" else "concurrent flows share links"
            )
            if setup.machine.circuits is not None:
                sharing = f"{setup.machine.circuits.describe()}, between GPUs without links"
            detail = (
                f"{'schedules on one channel, no protocol overhead' if costs is None else costs.software}; {sharing}"
            )
            rows.append(Evidence("communication time", "modelled", detail))
    given = None if setup.machine is None else setup.machine.collective_bandwidth
    if given is not None:
        detail = f"bus bandwidth of the cluster file: {given.words()}; other collectives follow the links"
        rows.append(Evidence("bandwidth per collective", given.evidence, detail))
    for subject, size in report.one_operation_bytes.items():
        rows.append(Evidence(f"broadcast of {subject}", "modelled", _broadcast_detail(setup, subject, size, costs)))
    for kernel in kernels:
        rows.append(Evidence("contention of compute and communication", "modelled", kernel.describe()))
    if setup.host_bytes_per_s is not None:
        rate = format_bandwidth(setup.host_bytes_per_s)
        detail = f"{rate} of host memory for each GPU; gradients read once, weights and states read and written once"
        rows.append(Evidence("optimizer on the CPU", "assumed", detail))
    if stragglers is not None:
        rows.append(Evidence("stragglers", "assumed", "; ".join(stragglers.sentences)))
    if setup.workload.collectives:
        rows.append(Evidence("recorded collectives", "measured", _recorded(setup.workload)))
    subject = "model" if setup.workload.format == SYNTHESISED else "trace"
    texts = dict.fromkeys(text for workload in setup.gpus.workloads for text in workload.assumptions)
    if load := _expert_load(setup):
        texts.pop(EVEN_EXPERTS, None)
        rows.append(Evidence(EXPERT_LOAD, MODELLED, load))
    rows.extend(Evidence(subject, "assumed", text) for text in texts)
    return tuple(rows)


def _expert_load(setup: Setup) -> str:
    """Return the load of the busiest rank of experts and its cause; empty if all ranks get the same."""
    plan = setup.plan
    if plan.ep == 1:
        return ""
    load = expert_load(setup.workload, plan)
    if load.is_even and not load.dropped:
        return ""
    cause = "measured shares" if plan.expert_shares else plan.expert_imbalance
    return f"{cause}: {load.words(num_experts(setup.workload))}"


def gpu_files(setup: Setup) -> list[MeasuredGpu]:
    """Return the GPU files whose kernels the operator times come from."""
    if setup.compute != "tables" and (setup.compute == "roofline" or setup.workload.format != SYNTHESISED):
        return []
    names = dict.fromkeys((setup.times.gpu, *setup.gpu_names))
    files = [measured_gpu(name) for name in names if name is not None]
    return [each for each in files if each is not None]


def _software(setup: Setup) -> Evidence:
    """Return the software profile and the reason for it."""
    profile = setup.software.profile
    assert profile is not None
    fitted = [f"{name} x {factor.value:g} (fitted on {factor.fitted_on})" for name, factor in profile.fitted_factors()]
    detail = f"{profile.name} ({setup.software.reason}; trine software show)"
    return Evidence("software", ASSUMED, "; ".join([detail, *fitted]))


def _recorded(workload: Workload) -> str:
    """Return the recorded job's collectives in words; the simulated time includes none."""
    listed = (
        f"{collective.count} x {collective.operation} in {format_time(collective.time_ps)}"
        + ("" if collective.size_bytes is None else f" ({format_bytes(collective.size_bytes)})")
        for collective in workload.collectives
    )
    return f"replaced by the layout's collectives: {'; '.join(listed)}"


def _slowest(setup: Setup) -> str:
    """Return how much slower the slowest GPU is than the mean, and the source of the spread."""
    spread = setup.options.gpu_spread
    source = SPREAD_SOURCE if spread is None else f"standard deviation {spread:.2%}, from --gpu-spread"
    return f"the slowest of {setup.plan.num_ranks} GPUs takes {setup.slower:.1%} more time than the mean ({source})"


def _broadcast_detail(setup: Setup, subject: str, size_bytes: int, costs: StepCosts | None) -> str:
    size = format_bytes(size_bytes)
    if setup.machine is not None and setup.machine.circuits is not None:
        return f"{size} along a chain, message by message: circuits are set up in turn"
    chain = "a chain over the links" if costs is None else f"the chain of {costs.library}"
    detail = f"{size} as one operation: all replicas end with the last replica of {chain}"
    return f"{detail}; --buffers broadcast simulates its messages" if subject == BUFFERS else detail


def _operator_detail(kind: str, setup: Setup) -> str:
    workload = setup.workload
    if setup.compute == "roofline":
        return f"{_data_sheet(setup)}; recorded times are not used (trine help roofline)"
    if workload.format == SYNTHESISED or setup.compute == "tables":
        basis = f"from the shapes of {workload.name}"
        if workload.format != SYNTHESISED:
            basis = f"from the shapes of {_shapes_of(workload)}"
        return basis + _TABLES.get(kind, " alone")
    recorded = f"recorded on {workload.gpu or 'an unnamed GPU'} at batch {workload.batch}"
    target = setup.gpu.name if setup.gpu is not None else " and ".join(setup.times.moved_to) or "another size"
    if setup.times.is_recorded and setup.times.is_elsewhere:
        recorded += f", also used for the cluster's {' and '.join(setup.times.named_gpus)}"
    return {
        "measured": recorded,
        "interpolated": f"between operators {recorded} and in other traces",
        "modelled": f"linear model in FLOPs and bytes, fitted to operators {recorded}",
        "transferred": f"{recorded}, moved to {target} by the ratio of measured tables (its own or a sibling's)",
        "assumed": f"{recorded}, moved to {target} by data-sheet ratios",
    }[kind]


#: Basis of operator times predicted from shapes.
_TABLES = {
    "interpolated": " and benchmarks of this GPU (trine help operator-time)",
    "modelled": ", and formulas fitted to benchmarks of this GPU at smaller sizes (trine help operator-time)",
    "transferred": " and benchmarks of a sibling GPU, scaled by the data sheets (trine help operator-time)",
}


def _data_sheet(setup: Setup) -> str:
    """Return the data sheets and shapes that a roofline uses."""
    workload = setup.workload
    sheet = f"the data sheet of the {setup.times.gpu}"
    if setup.times.is_each:
        sheet = f"the data sheets of the {' and the '.join(setup.times.named_gpus)}, by rank"
    if workload.format == SYNTHESISED:
        return sheet
    return f"{sheet} on the shapes of {_shapes_of(workload)}"


def _shapes_of(workload: Workload) -> str:
    """Return the recorded step in words, for answers that use its shapes only."""
    return f"a step recorded on {workload.recorded_on}"


def setup_warnings(setup: Setup) -> list[str]:
    workload = setup.workload
    warnings = setup.times.warnings("(--gpu)" if setup.gpu is not None else "of the trace")
    if setup.cap is not None and setup.cap.note:
        warnings.append(setup.cap.note)
    if setup.has_host and setup.plan.inputs != "none" and (copies := _host_copies(workload)):
        warnings.append(
            f"{copies} operators of the trace copy inputs to the GPU, and trine adds a copy over the host's links: "
            "--inputs none counts it once"
        )
    shuffle = next((each for each in workload.collectives if each.operation == "all_to_all"), None)
    if shuffle is not None and setup.plan.num_ranks > 1:
        warnings.append(
            f"the recorded job exchanged data by {shuffle.count} all-to-alls ({format_time(shuffle.time_ps)}), as "
            "for sharded embedding tables or experts; trine does not simulate them, so the step time excludes them"
        )
    is_silent = workload.has_gpu_times and workload.format != SYNTHESISED and setup.launch is None
    if is_silent and setup.options.cpu is None and not any(op.launch_start_ps is not None for op in workload.operators):
        warnings.append(
            "the trace has no CPU side, so kernel launches take no time: --cpu assumes 5 us for each operator, "
            "--launch-cost TIME another time, --no-cpu none"
        )
    return [*warnings, *setup.layout_warnings]


def shard_warnings(setup: Setup) -> list[str]:
    """Return a warning if the trace holds only one rank's part of a model."""
    shard = setup.workload.metadata.get(SHARD)
    return [] if shard is None else [f"the trace is {shard}; {_effect_on_shard(setup.plan)}"]


def _effect_on_shard(plan: Plan) -> str:
    """Return what a layout does to operators that are already one rank's part of a layer or of the layers."""
    again = next(((name, size) for name in ("tp", "pp", "cp") if (size := getattr(plan, name)) > 1), None)
    if again is not None:
        return f"--{again[0]} {again[1]} splits its operators once more, and the step is too short"
    if plan.num_ranks == 1:
        return "--gpus 1 leaves its collectives out, and the step is too short"
    return "each rank simulates this part without the recorded collectives, and the step is too short"


def fold_warnings(run: JobRun) -> list[str]:
    from trine.folding.traffic import sensitivity_warning

    warnings = []
    if run.why:
        warnings.append(f"trine simulated every rank: {run.why}")
    if run.folded is not None:
        sensitive = sensitivity_warning(run.folded, run.placement, run.repeats, run.repeated_steps)
        warnings += [sensitive] if sensitive else []
    return warnings


def _host_copies(workload: Workload) -> int:
    """Count forward operators that only move the data inputs; 0 if synthesised, where a copy changes the dtype."""
    if workload.format == SYNTHESISED:
        return 0
    count = 0
    for op in workload.operators:
        is_copy = op.phase == FORWARD and op.name in ("aten::to", "aten::_to_copy", "aten::copy_")
        count += is_copy and any(workload.tensors[t].role == "input" for t in op.inputs)
    return count


def crowded_uplinks(result: Result, machine: Cluster | None) -> Sequence[str]:
    """Name uplinks that carry far more than parallel ones, and parallel links and NICs without traffic."""
    if machine is None or result.num_ranks == 1:
        return ()
    if result.scope is not None:
        carried = result.scope.link_bytes
    else:
        carried = np.zeros(len(machine.links), np.int64)
        used_links = [use.link for use in result.links]
        used_bytes = [use.size_bytes for use in result.links]
        carried[used_links] = used_bytes
    return traffic_warnings(machine, carried)


def exposed_launches(result: Result) -> tuple[Evidence, ...]:
    """Return the evidence with the slowest rank's exposed time for the launching CPU thread; it may be zero."""
    from trine.results.waits import LAUNCH

    waited = format_time(int(result.rank_times.waits[result.slowest_row, LAUNCH]))
    rows = []
    for row in result.evidence:
        if row.what == "CPU launch":
            row = replace(row, detail=f"{row.detail}; {waited} of it exposed on rank {result.slowest_rank}")
        rows.append(row)
    return tuple(rows)


def memory_facts(setup: Setup) -> MemoryFacts:
    """Return the memory facts besides tensors, from the software's profile if there is a profile."""
    from trine.training.memory_facts import facts_of

    return facts_of(setup.software.profile, setup.plan, setup.workload)


def memory_verdict(result: Result) -> tuple[str, ...]:
    """Name the ranks that need more memory than their GPU has, and the host that has too little for its ranks."""
    full_rows = [row for row, use in enumerate(result.memory_uses) if use.verdict == "does not fit"]
    on_host = () if result.host_memory is None or not result.host_memory.warning else (result.host_memory.warning,)
    if not full_rows:
        return on_host
    worst = result.fullest_row
    count, bound, scope = len(full_rows), "", result.scope
    if scope is not None and not scope.shows_all:  # the ranks of a program hold nearly the same
        bound = "up to "
        count = sum(dict(scope.program_of(result.shown_ranks[row]) for row in full_rows).values())
    return (
        f"out of memory: {bound}{count} of {result.num_ranks} ranks do not fit; rank {result.shown_ranks[worst]} needs "
        f"{format_bytes(result.memory_uses[worst].needed_bytes)}, its GPU has "
        f"{format_bytes(result.memory_capacity_bytes[worst])}",
        *on_host,
    )
