"""Which stage keeps which weights, and where their gradients come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trine.errors import PlanError
from trine.graph.workload import BACKWARD, FORWARD, Parameter, Workload


@dataclass(frozen=True, slots=True)
class OwnedWeight:
    """A weight on one pipeline rank.

    ``gradient_operator``: the last backward operator of this stage that adds to its gradient; None for a weight that is
    not trained. ``tied_to``: another rank that keeps the same weight (an embedding that is also the last layer, or the
    copy of a schedule that keeps the model twice), -1 for none; the two add up their gradients.
    """

    weight: int
    size_bytes: int
    gradient_operator: int | None
    tied_to: int = -1


def owned_weights(
    workload: Workload, num_stages: int, stages_of: Mapping[int, tuple[int, ...]]
) -> list[list[OwnedWeight]]:
    """The weights of each pipeline rank, in the order of registration; every weight has one.

    ``stages_of[operator id]`` are the pipeline ranks that run a forward or backward operator; two where the schedule
    keeps the model twice. A weight belongs to the ranks that read it; where the trace lost that link, to those of its
    gradient, else to those of the first operator. Raises PlanError for a weight that more than two ranks keep.
    """
    readers: dict[int, dict[int, None]] = {}
    for op in workload.operators:
        if op.phase == FORWARD:
            for tensor_id in op.inputs:
                readers.setdefault(workload.tensors[tensor_id].storage, {})[op.id] = None
    first = next(iter(stages_of.values()), (0,))
    stages: list[list[OwnedWeight]] = [[] for _ in range(num_stages)]
    for parameter in workload.parameters:
        reading = readers.get(workload.tensors[parameter.weight].storage, {})
        found = sorted({stage for op_id in reading for stage in stages_of[op_id]})
        if not found:
            given = parameter.gradient_operator
            found = sorted(first if given is None else stages_of.get(given, first))
        if len(found) > 2:
            shape = list(workload.tensors[parameter.weight].shape)
            raise PlanError(
                f"weight {parameter.weight} {shape} is kept by {len(found)} pipeline stages; two at most can share it, "
                "which then exchange their gradients"
            )
        for stage in found:
            other = next((s for s in found if s != stage), -1)
            gradient = _gradient_operator(workload, parameter, reading, stage, stages_of)
            stages[stage].append(OwnedWeight(parameter.weight, parameter.size_bytes, gradient, other))
    return stages


def _gradient_operator(
    workload: Workload,
    parameter: Parameter,
    reading: Collection[int],
    stage: int,
    stages_of: Mapping[int, tuple[int, ...]],
) -> int | None:
    """The last backward operator of ``stage`` that adds to the gradient of ``parameter``."""
    given = parameter.gradient_operator
    if given is None or stage in stages_of.get(given, ()):
        return given
    own = [
        op.id
        for op in workload.operators
        if op.phase == BACKWARD and op.forward_id in reading and stage in stages_of.get(op.id, ())
    ]
    return own[-1] if own else None


def trained_bytes(weights: Sequence[OwnedWeight], local_bytes: Mapping[int, int]) -> int:
    """Bytes of the weights that the optimizer updates, as one rank of the tp group keeps them."""
    return sum(local_bytes[w.weight] for w in weights if w.gradient_operator is not None)
