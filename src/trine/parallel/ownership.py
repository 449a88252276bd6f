"""Which stage keeps which weights, and where their gradients come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trine.errors import PlanError
from trine.model.workload import BACKWARD, FORWARD, Parameter, Workload


@dataclass(frozen=True, slots=True)
class OwnedWeight:
    """A weight on one stage.

    ``gradient_operator``: the last backward operator of this stage that adds to its gradient; None for a weight that is
    not trained. ``tied_to``: another stage that keeps the same weight (an embedding that is also the last layer), -1
    for none; the two add up their gradients.
    """

    weight: int
    size_bytes: int
    gradient_operator: int | None
    tied_to: int = -1


def owned_weights(workload: Workload, num_stages: int, stage_of: Mapping[int, int]) -> list[list[OwnedWeight]]:
    """The weights of each stage, in the order of registration; every weight has a stage.

    A weight belongs to the stages whose forward operators read it; where the trace lost that link, to the stage of its
    gradient, else to the first. Raises PlanError for a weight that more than two stages read.
    """
    readers: dict[int, dict[int, None]] = {}
    for op in workload.operators:
        if op.phase == FORWARD:
            for tensor_id in op.inputs:
                readers.setdefault(workload.tensors[tensor_id].storage, {})[stage_of[op.id]] = None
    stages: list[list[OwnedWeight]] = [[] for _ in range(num_stages)]
    for parameter in workload.parameters:
        found = sorted(readers.get(workload.tensors[parameter.weight].storage, ()))
        if not found:
            known = parameter.gradient_operator is not None and parameter.gradient_operator in stage_of
            found = [stage_of[parameter.gradient_operator] if known and parameter.gradient_operator is not None else 0]
        if len(found) > 2:
            shape = list(workload.tensors[parameter.weight].shape)
            raise PlanError(
                f"weight {parameter.weight} {shape} is read by {len(found)} pipeline stages; two at most can share it"
            )
        for stage in found:
            other = next((s for s in found if s != stage), -1)
            gradient = _gradient_operator(workload, parameter, stage, stage_of)
            stages[stage].append(OwnedWeight(parameter.weight, parameter.size_bytes, gradient, other))
    return stages


def _gradient_operator(workload: Workload, parameter: Parameter, stage: int, stage_of: Mapping[int, int]) -> int | None:
    """The last backward operator of ``stage`` that adds to the gradient of ``parameter``."""
    given = parameter.gradient_operator
    if given is None or stage_of.get(given) == stage:
        return given
    storage = workload.tensors[parameter.weight].storage
    readers = {
        op.id
        for op in workload.operators
        if op.phase == FORWARD and any(workload.tensors[t].storage == storage for t in op.inputs)
    }
    own = [
        op.id
        for op in workload.operators
        if op.phase == BACKWARD and op.forward_id in readers and stage_of.get(op.id) == stage
    ]
    return own[-1] if own else None


def trained_bytes(weights: Sequence[OwnedWeight], local_bytes: Mapping[int, int]) -> int:
    """Bytes of the weights that the optimizer updates, as one rank of the tp group keeps them."""
    return sum(local_bytes[w.weight] for w in weights if w.gradient_operator is not None)
