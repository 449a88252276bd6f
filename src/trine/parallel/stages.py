"""Pipeline stages: the cuts through the model, the tensors that cross them, and the weights of each stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trine.common.kept import keep
from trine.compute import kind_of
from trine.compute.kinds import COMPUTE_FAMILIES, family_of
from trine.errors import PlanError
from trine.graph.workload import BACKWARD, FORWARD, Operator, Parameter, Tensor, Workload
from trine.parallel.layer_places import sendable
from trine.parallel.workload_facts import readers_of_storages

#: Parts of the backward phase in schedules that split it (:attr:`trine.parallel.chunks.Place.part`).
BOTH, INPUT_PART, WEIGHT_PART = "", "input", "weight"


@dataclass(frozen=True, slots=True)
class OwnedWeight:
    """Weight on one pipeline rank.

    ``gradient_operator``: the last backward operator of this stage that adds to its gradient; None for a frozen weight.
    ``tied_to``: another rank that keeps the same weight (an embedding that is also the last layer, or the copy of a
    schedule that keeps the model twice), or -1; the two ranks sum their gradients.
    """

    weight: int
    size_bytes: int
    gradient_operator: int | None
    tied_to: int = -1


def owned_weights(
    workload: Workload, num_stages: int, stages_of: Mapping[int, tuple[int, ...]]
) -> list[list[OwnedWeight]]:
    """Return the weights of each pipeline rank, in order of registration; every weight has at least one rank.

    ``stages_of[operator id]`` are the pipeline ranks that run a forward or backward operator: two if the schedule keeps
    the model twice. A weight belongs to the ranks that read it. If the trace lost that link, it belongs to the ranks of
    its gradient operator, else of the first operator. Raises PlanError for a weight on more than two ranks.
    """
    readers = readers_of_storages(workload)
    first = next(iter(stages_of.values()), (0,))
    stages: list[list[OwnedWeight]] = [[] for _ in range(num_stages)]
    for parameter in workload.parameters:
        reading = readers.get(workload.tensors[parameter.weight].storage, {})
        owners = sorted({stage for op_id in reading for stage in stages_of[op_id]})
        if not owners:
            gradient_operator = parameter.gradient_operator
            owners = sorted(first if gradient_operator is None else stages_of.get(gradient_operator, first))
        if len(owners) > 2:
            shape = list(workload.tensors[parameter.weight].shape)
            raise PlanError(
                f"weight {parameter.weight} {shape} is kept by {len(owners)} pipeline stages; two at most can share "
                "it, which then exchange their gradients"
            )
        for stage in owners:
            tied_to = next((s for s in owners if s != stage), -1)
            gradient = _gradient_operator(workload, parameter, reading, stage, stages_of)
            stages[stage].append(OwnedWeight(parameter.weight, parameter.size_bytes, gradient, tied_to))
    return stages


def _gradient_operator(
    workload: Workload,
    parameter: Parameter,
    reading: Collection[int],
    stage: int,
    stages_of: Mapping[int, tuple[int, ...]],
) -> int | None:
    """Return the last backward operator of ``stage`` that adds to the gradient of ``parameter``."""
    recorded = parameter.gradient_operator
    if recorded is None or stage in stages_of.get(recorded, ()):
        return recorded
    on_stage = [
        op.id
        for op in workload.operators
        if op.phase == BACKWARD and op.forward_id in reading and stage in stages_of.get(op.id, ())
    ]
    return on_stage[-1] if on_stage else None


@keep
def backward_of(workload: Workload) -> dict[int, list[Operator]]:
    """Map each forward operator id to its backward operators, in order."""
    backward: dict[int, list[Operator]] = {}
    for op in workload.operators:
        if op.phase == BACKWARD and op.forward_id is not None:
            backward.setdefault(op.forward_id, []).append(op)
    return backward


def backward_parts(
    workload: Workload, backward: Mapping[int, Sequence[Operator]], wants_input: Mapping[int, bool]
) -> dict[int, str]:
    """Return the part of each backward operator, by id: INPUT_PART, WEIGHT_PART, or BOTH if it can be split.

    ``wants_input[forward id]``: whether a forward operator's input needs a gradient. A GEMM or convolution with both
    gradients in one operator of the trace is two products with equal FLOPs, so it can be split. Norms and similar
    operators compute the small gradients of their weights in the same kernel as their input gradient. Operators without
    a weight, and unknown ones, count as the input part, because other operators may wait for them.
    """
    complete = {p.gradient_operator for p in workload.parameters}
    parts: dict[int, str] = {}
    for op in workload.operators:
        if op.phase != BACKWARD:
            continue
        makes_weight = _makes(workload, op, "gradient") or op.id in complete
        group = backward.get(op.forward_id, ()) if op.forward_id is not None else ()
        makes_input = _makes(workload, op, "activation")
        if not makes_input and op.forward_id is not None and wants_input.get(op.forward_id, False):
            makes_input = not any(_makes(workload, other, "activation") for other in group)
        parts[op.id] = _part(op, makes_input, makes_weight)
    return parts


def _part(op: Operator, makes_input: bool, makes_weight: bool) -> str:
    if not makes_weight:
        return INPUT_PART
    if not makes_input:
        return WEIGHT_PART
    return BOTH if family_of(kind_of(op)) in COMPUTE_FAMILIES else INPUT_PART


def _makes(workload: Workload, op: Operator, role: str) -> bool:
    tensors = workload.tensors
    return any(tensors[t].role == role and tensors[t].size_bytes for t in op.outputs)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Forward tensor produced in stage ``source`` and needed in the later stage ``target``.

    ``tensor`` is its id on the sending side; ``producer`` and ``consumer`` are the operators on either side. In
    training its gradient is sent back after ``gradient_after``, the last backward operator of a reader in the target
    stage, and before ``gradient_before``, the producer's first (-1: the end, or beginning, of the pass).
    ``guessed``: the trace does not link the two operators, so trine sends the output of the operator before the cut.
    """

    source: int
    target: int
    tensor: int
    producer: int
    consumer: int
    has_gradient: bool
    gradient_after: int = -1
    gradient_before: int = -1
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Stages:
    """Consecutive stages of the model, or its chunks if a rank holds several.

    ``stage_of[operator id]`` covers forward and backward operators. ``cuts`` are the first layers of the second and
    later stages. ``parts[operator id]`` is the part of each backward operator, see :func:`backward_parts`.
    ``deferred``: backward operators that run after all passes of the last stage (:mod:`trine.parallel.deferred`).
    """

    num_stages: int
    stage_of: Mapping[int, int]
    cuts: tuple[str, ...]
    crossings: tuple[Crossing, ...]
    parts: Mapping[int, str] = field(default_factory=dict)
    deferred: frozenset[int] = frozenset()

    def part_that_completes(self, op: int) -> str:
        """Return the part of the backward phase that completes the gradients of a backward operator."""
        if not self.deferred or self.stage_of[op] != self.num_stages - 1:
            return self.parts.get(op, "")
        return WEIGHT_PART if op in self.deferred else INPUT_PART


def cut_into_stages(
    workload: Workload,
    num_stages: int,
    cuts: Sequence[str],
    duration_ps: Mapping[int, int],
    balance: str = "time",
    of_stage: Sequence[Sequence[Mapping[int, int]]] = (),
    counts: Sequence[int] = (),
) -> Stages:
    """Cut the forward operators into consecutive stages; backward operators join the stage of their forward operator.

    By default trine cuts between layers, if operator names show layers. It minimises the time of the slowest stage
    (forward plus backward in ``duration_ps``), then the bytes sent. For other values of ``balance`` see
    :class:`trine.parallel.plan.Plan`. of_stage: times on each GPU model that runs the stage, in place of
    ``duration_ps``; the slowest model counts. counts: blocks of each stage, in place of ``balance``.

    Raises PlanError for unknown cut names, cuts out of order, and more stages than operators or layers.
    """
    forward = [op for op in workload.operators if op.phase == FORWARD]
    if num_stages > len(forward):
        raise PlanError(
            f"{num_stages} pipeline stages need {num_stages} forward operators; the trace has {len(forward)}"
        )
    starts = [0]
    if num_stages > 1:
        from trine.parallel.cuts import starts_of_stages

        starts = starts_of_stages(workload, num_stages, cuts, duration_ps, balance, of_stage, counts)
    stage_of: dict[int, int] = {}
    for stage, (first, last) in enumerate(zip(starts, [*starts[1:], len(forward)], strict=True)):
        for op in forward[first:last]:
            stage_of[op.id] = stage
    current = num_stages - 1
    for op in workload.operators:
        if op.phase == BACKWARD:
            current = stage_of.get(op.forward_id, current) if op.forward_id is not None else current
            stage_of[op.id] = current
    names = tuple(forward[first].layer for first in starts[1:])
    backward = backward_of(workload)
    parts = _parts_of_backward(workload)
    crossings = _crossings(workload, forward, stage_of, starts, backward)
    return Stages(num_stages, stage_of, names, crossings, parts)


@keep
def _parts_of_backward(workload: Workload) -> Mapping[int, str]:
    """Return :func:`backward_parts` of a whole workload."""
    forward = [op for op in workload.operators if op.phase == FORWARD]
    backward = backward_of(workload)
    return backward_parts(workload, backward, _wants_input(workload, forward, backward))


def _wants_input(
    workload: Workload, forward: Sequence[Operator], backward: Mapping[int, Sequence[Operator]]
) -> dict[int, bool]:
    """Map each forward operator id to whether one of its input activations needs a gradient."""
    tensors = workload.tensors
    needed = {}
    for op in forward:
        if op.id in backward:
            needed[op.id] = any(needs_gradient(workload, tensors[t], op, backward) for t in op.inputs)
    return needed


def _crossings(
    workload: Workload,
    forward: Sequence[Operator],
    stage_of: Mapping[int, int],
    starts: Sequence[int],
    backward: Mapping[int, Sequence[Operator]],
) -> tuple[Crossing, ...]:
    """Return the tensors sent between stages: each goes once to every stage that reads it.

    Raises PlanError if the trace shows no tensor to send into a stage.
    """
    tensors = workload.tensors
    writer: dict[int, tuple[int, int]] = {}  # storage -> operator that wrote it last, and its largest view
    readers: dict[tuple[int, int, int, int], list[Operator]] = {}  # source, target, producer, tensor
    for op in forward:
        stage = stage_of[op.id]
        crossed = {tensors[t].storage: None for t in op.inputs if tensors[t].role == "activation"}
        for storage in crossed:
            if storage in writer and stage_of[writer[storage][0]] != stage:
                producer, largest = writer[storage]
                readers.setdefault((stage_of[producer], stage, producer, largest), []).append(op)
        for tensor_id in op.outputs:
            tensor = tensors[tensor_id]
            if tensor.role == "activation" and tensor.size_bytes:
                previous = writer[tensor.storage][1] if tensor.storage in writer else tensor_id
                writer[tensor.storage] = (op.id, max(tensor_id, previous, key=lambda t: tensors[t].size_bytes))
    order = {op.id: i for i, op in enumerate(workload.operators)}
    crossings = [_crossing(workload, backward, order, key, ops) for key, ops in readers.items()]
    for target, first in enumerate(starts[1:], start=1):
        is_empty = first == starts[target + 1] if target + 1 < len(starts) else False
        if not is_empty and not any(crossing.target == target for crossing in crossings):
            source = stage_of[forward[first - 1].id]
            crossings.append(_guess(workload, forward[first - 1], forward[first], source, target))
    crossings = passed_on(crossings, set(stage_of.values()))
    return tuple(sorted(crossings, key=lambda c: (c.source, c.target, order[c.producer], c.tensor)))


def passed_on(crossings: Sequence[Crossing], filled: Collection[int]) -> list[Crossing]:
    """Return the crossings with those over stages without operators in hops: each such stage passes the tensor on.

    filled: stages with operators. A crossing that also skips a stage with operators stays direct.
    """
    hops: dict[tuple[int, int, int, int], Crossing] = {}
    for crossing in crossings:
        between = range(crossing.source + 1, crossing.target)
        path = [crossing.source, crossing.target]
        if len(between) and not any(stage in filled for stage in between):
            path = list(range(crossing.source, crossing.target + 1))
        for source, target in pairwise(path):
            hop = replace(crossing, source=source, target=target)
            hops.setdefault((source, target, hop.producer, hop.tensor), hop)
    return list(hops.values())


def _crossing(
    workload: Workload,
    backward: Mapping[int, Sequence[Operator]],
    order: Mapping[int, int],
    key: tuple[int, int, int, int],
    readers: Sequence[Operator],
) -> Crossing:
    """Return the crossing of one storage to its readers in one stage."""
    source, target, producer, tensor_id = key
    linked = [op.id for reader in readers for op in backward.get(reader.id, ())]
    gradients = backward.get(producer, ())
    has_gradient = any(needs_gradient(workload, workload.tensors[tensor_id], op, backward) for op in readers)
    before = gradients[0].id if gradients else -1
    return Crossing(
        source=source,
        target=target,
        tensor=tensor_id,
        producer=producer,
        consumer=readers[0].id,
        has_gradient=has_gradient,
        gradient_after=max(linked, key=order.__getitem__, default=-1),
        gradient_before=before,
    )


def _guess(workload: Workload, producer: Operator, consumer: Operator, source: int, target: int) -> Crossing:
    outputs = sendable(workload, producer)
    if not outputs:
        raise PlanError(
            f"the trace has no tensor from {producer.layer!r} to {consumer.layer!r}, so the pipeline "
            "cannot be cut there: name other cuts, or record a trace with tensor shapes"
        )
    return Crossing(source, target, outputs[0], producer.id, consumer.id, True, guessed=True)


def needs_gradient(
    workload: Workload, tensor: Tensor, reader: Operator, backward: Mapping[int, Sequence[Operator]] | None = None
) -> bool:
    """Return whether the backward operator of ``reader`` computes the gradient of the activation ``tensor``.

    A backward output with the tensor's size means yes; an absent output, as in a first convolution, means no. If the
    trace shows neither, trine assumes that a floating-point activation needs its gradient.
    """
    if tensor.role != "activation" or "float" not in tensor.dtype:
        return False
    linked = (backward if backward is not None else backward_of(workload)).get(reader.id, ())
    outputs = [workload.tensors[t] for op in linked for t in op.outputs]
    if any(out.role == "activation" and out.size_bytes == tensor.size_bytes for out in outputs):
        return True
    return not any(out.size_bytes == 0 for out in outputs)
