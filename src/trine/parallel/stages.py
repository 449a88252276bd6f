"""Pipeline stages: where the model is cut, and which tensors cross the cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trine.errors import PlanError
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Tensor, Workload
from trine.parallel.backward import backward_of, backward_parts
from trine.parallel.cuts import balanced_starts, layered_starts, named_starts, sendable


@dataclass(frozen=True, slots=True)
class Crossing:
    """A forward tensor made in stage ``source`` and needed in the later stage ``target``.

    ``tensor`` is its id where it is sent, ``producer`` and ``consumer`` the operators on either side. When training,
    its gradient travels back: after ``gradient_after``, the last backward operator of a reader in the target stage, and
    before ``gradient_before``, the producer's first (-1: the end, or beginning, of the pass).
    ``guessed``: the trace does not link the two operators, so the output of the one before the cut is taken.
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
    """Consecutive stages of the model; where ranks hold several, these are the chunks.

    ``stage_of[operator id]`` of forward and backward operators; ``cuts`` are the layers that begin later stages;
    ``parts[operator id]`` says what each backward operator computes (:mod:`trine.parallel.backward`).
    """

    num_stages: int
    stage_of: Mapping[int, int]
    cuts: tuple[str, ...]
    crossings: tuple[Crossing, ...]
    parts: Mapping[int, str] = field(default_factory=dict)


def cut_into_stages(
    workload: Workload,
    num_stages: int,
    cuts: Sequence[str],
    duration_ps: Mapping[int, int],
    balance: str = "time",
) -> Stages:
    """Cut the forward operators into consecutive stages; a backward operator goes where its forward operator is.

    Without ``cuts`` they lie between layers where names tell any. The slowest stage (forward and backward time in
    ``duration_ps``) is made as short as such cuts can, and among these the one that sends the fewest bytes is taken;
    with the ``balance`` ``"layers"`` all stages get as many layers as can be.

    Raises PlanError for unknown cut names, cuts out of order, and more stages than operators or layers.
    """
    forward = [op for op in workload.operators if op.phase == FORWARD]
    if num_stages > len(forward):
        raise PlanError(
            f"{num_stages} pipeline stages need at least as many forward operators; the trace has {len(forward)}"
        )
    if num_stages == 1:
        starts = [0]
    elif cuts:
        starts = named_starts(forward, cuts)
    elif balance == "layers":
        starts = layered_starts(workload, forward, num_stages)
    else:
        starts = balanced_starts(workload, forward, num_stages, duration_ps)
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
    parts = backward_parts(workload, backward, _wants_input(workload, forward, backward))
    crossings = _crossings(workload, forward, stage_of, starts, backward)
    return Stages(num_stages, stage_of, names, crossings, parts)


def _wants_input(
    workload: Workload, forward: Sequence[Operator], backward: Mapping[int, Sequence[Operator]]
) -> dict[int, bool]:
    """Forward operator id -> whether the gradient of an activation that it read is wanted."""
    tensors = workload.tensors
    return {
        op.id: any(needs_gradient(workload, tensors[t], op, backward) for t in op.inputs)
        for op in forward
        if op.id in backward
    }


def _crossings(
    workload: Workload,
    forward: Sequence[Operator],
    stage_of: Mapping[int, int],
    starts: Sequence[int],
    backward: Mapping[int, Sequence[Operator]],
) -> tuple[Crossing, ...]:
    """Which tensors go from stage to stage: each to every stage that reads it, once.

    Raises PlanError where a stage begins with operators that nothing before the cut feeds, as far as the trace says.
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
                known = writer[tensor.storage][1] if tensor.storage in writer else tensor_id
                writer[tensor.storage] = (op.id, max(tensor_id, known, key=lambda t: tensors[t].size_bytes))
    order = {op.id: i for i, op in enumerate(workload.operators)}
    found = [_crossing(workload, backward, order, key, ops) for key, ops in readers.items()]
    for target, first in enumerate(starts[1:], start=1):
        if not any(crossing.target == target for crossing in found):
            found.append(_guess(workload, forward[first - 1], forward[first], target))
    return tuple(sorted(found, key=lambda c: (c.source, c.target, order[c.producer], c.tensor)))


def _crossing(
    workload: Workload,
    backward: Mapping[int, Sequence[Operator]],
    order: Mapping[int, int],
    key: tuple[int, int, int, int],
    readers: Sequence[Operator],
) -> Crossing:
    """The crossing of one storage to the readers of one stage."""
    source, target, producer, tensor_id = key
    linked = [op.id for reader in readers for op in backward.get(reader.id, ())]
    before = backward.get(producer, ())
    return Crossing(
        source=source,
        target=target,
        tensor=tensor_id,
        producer=producer,
        consumer=readers[0].id,
        has_gradient=any(needs_gradient(workload, workload.tensors[tensor_id], op, backward) for op in readers),
        gradient_after=max(linked, key=order.__getitem__, default=-1),
        gradient_before=before[0].id if before else -1,
    )


def _guess(workload: Workload, before: Operator, after: Operator, target: int) -> Crossing:
    outputs = sendable(workload, before)
    if not outputs:
        raise PlanError(
            f"the trace does not say which tensor goes from {before.layer!r} to {after.layer!r}, so the pipeline "
            "cannot be cut there: name other cuts, or record a trace with tensor shapes"
        )
    return Crossing(target - 1, target, outputs[0], before.id, after.id, True, guessed=True)


def needs_gradient(
    workload: Workload, tensor: Tensor, reader: Operator, backward: Mapping[int, Sequence[Operator]] | None = None
) -> bool:
    """Whether the backward operator of ``reader`` computes the gradient of the activation ``tensor``.

    The trace says so by an output of the tensor's size, and denies it by an absent output, as of a first convolution;
    where it says neither, a floating-point activation is taken to need its gradient.
    """
    if tensor.role != "activation" or "float" not in tensor.dtype:
        return False
    linked = (backward if backward is not None else backward_of(workload)).get(reader.id, ())
    outputs = [workload.tensors[t] for op in linked for t in op.outputs]
    if any(out.role == "activation" and out.size_bytes == tensor.size_bytes for out in outputs):
        return True
    return not any(out.size_bytes == 0 for out in outputs)


def optimizer_operators(workload: Workload) -> tuple[Operator, ...]:
    """The operators of the optimizer step, in order."""
    return tuple(op for op in workload.operators if op.phase == OPTIMIZER)
