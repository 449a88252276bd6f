"""CPU time of the launching thread for each operator.

A GPU runs an operator only after the CPU has issued it. With small micro-batches the CPU is the slower of the two, as
in the outliers of TrioSim's Figure 10. Launch costs do not depend on the batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trine.common.evidence import ASSUMED
from trine.common.kept import keep
from trine.common.median import median
from trine.common.units import PS_PER_US, format_time
from trine.compute.graphs import STEP, captured_operators
from trine.compute.kinds import family_of, kind_of, layer_of
from trine.compute.resize import is_expert_product
from trine.graph.workload import Operator, Workload
from trine.software.profile import LaunchStyle, Software

#: Per operator without a launch time in the trace. Assumed: about one cudaLaunchKernel call, whose median over 245
#: calls is 6 us, profiler on, in TrioSim's raw vgg13 trace (H100; tracer/data/profiler_vgg13-iter41.json).
DEFAULT_LAUNCH_PS = 5 * PS_PER_US
# From one start to the next the thread may also have waited for the GPU (a synchronisation, a full launch queue). More
# than _WAIT_FACTOR times the usual time of its kind counts as a wait; a usual time needs _USUAL_FROM operators.
_WAIT_FACTOR, _USUAL_FROM = 4, 3


class OperatorLaunch(NamedTuple):
    """The launches of one operator.

    time_ps: of the launching thread, without the experts' kernels. kernels: launches. by_weight: whether both scale
    with the number of a rank's weights. experts: GEMMs or casts of the model's experts that the operator
    launches one by one, 0: none; a rank launches those of its experts, and each takes ``expert_ps``.
    """

    time_ps: int
    kernels: float
    by_weight: bool = False
    experts: int = 0
    expert_ps: int = 0


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """CPU time of launches, and the waits of the launching thread.

    cost_ps: one entry per operator, in the workload's order. evidence: 'measured' or 'assumed'. kernels: launches of
    each operator (empty: one each). by_weight: whether its cost scales with the number of a rank's weights (empty:
    never). experts: of operators that launch a kernel for each expert (empty: none), each of which takes expert_ps.
    communication_ps: per collective. message_ps: per message. tensor_ps: extra per rank of a tensor-parallel
    group, for each of its collectives. synchronises, queue_limit: see :class:`trine.software.profile.LaunchStyle`.
    merges: leave out launches that cannot delay anything.
    """

    cost_ps: tuple[int, ...]
    evidence: str
    notes: tuple[str, ...]
    kernels: tuple[float, ...] = ()
    by_weight: tuple[bool, ...] = ()
    experts: tuple[int, ...] = ()
    expert_ps: int = 0
    communication_ps: int = 0
    message_ps: int = 0
    tensor_ps: int = 0
    synchronises: str = "none"
    queue_limit: int | None = None
    merges: bool = False

    def launches(self) -> list[OperatorLaunch]:
        """Return the launches of each operator."""
        number = len(self.cost_ps)
        columns = zip(
            self.cost_ps,
            self.kernels or (1.0,) * number,
            self.by_weight or (False,) * number,
            self.experts or (0,) * number,
            strict=True,
        )
        return [OperatorLaunch(*column, self.expert_ps) for column in columns]


@keep
def _launches(workload: Workload, style: LaunchStyle, factor: float) -> tuple[OperatorLaunch, ...]:
    """Return the launches of each operator."""
    launches = []
    expert_ps = round(style.expert_us * factor * PS_PER_US)
    captured = captured_operators(workload, style.graphs)
    layer, phase = "", ""
    for op in workload.operators:
        if op.id in captured:
            us = captured[op.id] * style.cpu_us_per_kernel
            launches.append(OperatorLaunch(round(us * factor * PS_PER_US), captured[op.id]))
            continue
        number = 0.0 if family_of(kind_of(op)) == "view" else _number(op, "kernels", 1.0)
        us = number * style.cpu_us_per_kernel + _number(op, "cpu_us", 0.0)
        block = layer_of(op.layer)
        if block and (block, op.phase) != (layer, phase):
            us += style.layer_us
        if block or op.phase != phase:
            layer, phase = block, op.phase
        experts = round(_kernels_of_experts(op)) if expert_ps else 0
        is_by_weight = op.attributes.get("by_weight") is True
        launches.append(OperatorLaunch(round(us * factor * PS_PER_US), number, is_by_weight, experts, expert_ps))
    return tuple(launches)


def _kernels_of_experts(op: Operator) -> float:
    """Return the kernels of an operator that are launched for each expert, over all experts of the model.

    These are grouped GEMMs, the casts before them, and operators with the attribute ``looped``: kernels of each expert.
    """
    if "looped" in op.attributes:
        return _number(op, "num_experts", 0.0) * _number(op, "looped", 0.0)
    if is_expert_product(op):
        return _number(op, "num_experts", 0.0)
    is_cast = op.attributes.get("expert") is True and op.name.endswith("_to_copy")
    return _number(op, "num_experts", 0.0) * _number(op, "kernels", 1.0) if is_cast else 0.0


def software_launches(
    workload: Workload, software: Software, *, merges: bool = True, crosses: bool = False, stages: int = 1
) -> LaunchCosts:
    """Return launch costs of operators from ``software``: attributes ``kernels`` and ``cpu_us``, and a cost per layer.

    Operators that only rename memory launch no kernel. merges: see :class:`LaunchCosts`. crosses: messages of the
    pipeline leave the node. stages: of the pipeline; they multiply all times if one process launches for all of them.
    """
    style, factor = software.launch, software.factors.cpu.value
    is_shared = style.process == "pipeline" and stages > 1
    factor *= stages if is_shared else 1
    launches = _launches(workload, style, factor)
    kernel_us, layer_us = style.cpu_us_per_kernel * factor, style.layer_us * factor
    per_layer = f", {layer_us:.3g} us per layer" if layer_us else ""
    note = f"{kernel_us:.3g} us of CPU time per kernel launch{per_layer} (profile {software.name})"
    if is_shared:
        note += f", {stages} times the time of one stage: one process launches for {stages} stages"
    if any(each.experts for each in launches):
        note += f"; {style.expert_us * factor:.3g} us for each GEMM and cast of each expert of a rank"
    if style.graphs:
        note += f"; CUDA graphs of {', '.join(style.graphs)}"
    is_one_graph = STEP in style.graphs

    def picoseconds(us: float) -> int:
        return round(us * factor * PS_PER_US)

    return LaunchCosts(
        cost_ps=tuple(each.time_ps for each in launches),
        evidence=ASSUMED,
        notes=(note,),
        kernels=tuple(each.kernels for each in launches),
        by_weight=tuple(each.by_weight for each in launches),
        experts=tuple(each.experts for each in launches),
        expert_ps=picoseconds(style.expert_us),
        communication_ps=0 if is_one_graph else picoseconds(style.communication_us),
        message_ps=0 if is_one_graph else picoseconds(style.message_us),
        tensor_ps=picoseconds(style.crossing_us) if crosses and not is_one_graph else 0,
        synchronises="step" if is_one_graph and style.synchronises != "none" else style.synchronises,
        queue_limit=style.queue_limit,
        merges=merges,
    )


def _number(op: Operator, name: str, default: float) -> float:
    value = op.attributes.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if is_number else default  # type: ignore[arg-type]


def launch_costs(workload: Workload, default_ps: int = DEFAULT_LAUNCH_PS) -> LaunchCosts:
    """Return the time each operator occupies the launching thread, from its start to the start of the next operator.

    Time between operators (Python, operators without kernels) belongs to the earlier operator. The usual time of the
    kind replaces an apparent wait for the GPU; kinds seen fewer than three times count the launch and at most a usual
    gap. The profiler's part is left out (:mod:`trine.compute.profiler`).

    Without launch times in the trace each operator costs ``default_ps``.
    """
    spans = _spans(workload)
    if not spans:
        note = f"the trace has no CPU side: {format_time(default_ps)} of CPU time assumed per operator"
        return LaunchCosts((default_ps,) * len(workload.operators), "assumed", (note,))
    usual = _usual(workload, spans)
    usual_gap = round(median([float(gap) for _, gap in spans.values()]))
    costs, recorded, num_waits = [], [], 0
    for op in workload.operators:
        if op.id not in spans:
            costs.append(default_ps)
            recorded.append(default_ps)
            continue
        launch, gap = spans[op.id]
        recorded.append(launch + gap)
        typical = usual.get(kind_of(op))
        if typical is None:
            costs.append(launch + min(gap, usual_gap))
            num_waits += gap > _WAIT_FACTOR * usual_gap
        else:
            waited = launch + gap > _WAIT_FACTOR * typical
            costs.append(typical if waited else launch + gap)
            num_waits += waited
    from trine.compute.profiler import without_profiler

    share, note = without_profiler(workload, costs, recorded)
    shares = tuple(round(cost * share) for cost in costs)
    evidence = "measured" if len(spans) == len(costs) else "assumed"
    return LaunchCosts(shares, evidence, (note, *_notes(workload, spans, num_waits, default_ps)))


def _spans(workload: Workload) -> dict[int, tuple[int, int]]:
    """Return, per operator id with a CPU side, its launch time and the gap to the next launch, in picoseconds."""
    launches = sorted(
        (op.launch_start_ps, position, op.launch_duration_ps, op.id)
        for position, op in enumerate(workload.operators)
        if op.launch_start_ps is not None and op.launch_duration_ps is not None
    )
    spans = {}
    for i, (start, _, duration, op_id) in enumerate(launches):
        next_start = launches[i + 1][0] if i + 1 < len(launches) else start + duration
        # Threads may overlap: then another thread's launch begins before this launch ends.
        spans[op_id] = min(duration, next_start - start), max(0, next_start - start - duration)
    return spans


def _usual(workload: Workload, spans: dict[int, tuple[int, int]]) -> dict[str, int]:
    """Return the median time from start to start of each kind with at least _USUAL_FROM operators."""
    by_kind: dict[str, list[float]] = {}
    for op in workload.operators:
        if op.id in spans:
            by_kind.setdefault(kind_of(op), []).append(float(sum(spans[op.id])))
    return {kind: round(median(times)) for kind, times in by_kind.items() if len(times) >= _USUAL_FROM}


def _notes(workload: Workload, spans: dict[int, tuple[int, int]], num_waits: int, default_ps: int) -> tuple[str, ...]:
    notes = []
    if num_waits:
        notes.append(f"{num_waits} launches seem to include a wait; trine leaves the wait out")
    missing = len(workload.operators) - len(spans)
    if missing:
        notes.append(f"{missing} operators have no launch time: {format_time(default_ps)} each was assumed")
    return tuple(notes)
