"""Which backward operators compute gradients of activations, which of weights, and which both in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trine.compute import kind_of
from trine.compute.kinds import COMPUTE_FAMILIES, family_of
from trine.graph.workload import BACKWARD, Operator, Workload
from trine.parallel.extension import BOTH, INPUT_PART, WEIGHT_PART


def backward_of(workload: Workload) -> dict[int, list[Operator]]:
    """Forward operator id -> its backward operators, in order."""
    found: dict[int, list[Operator]] = {}
    for op in workload.operators:
        if op.phase == BACKWARD and op.forward_id is not None:
            found.setdefault(op.forward_id, []).append(op)
    return found


def backward_parts(
    workload: Workload, backward: Mapping[int, Sequence[Operator]], wants_input: Mapping[int, bool]
) -> dict[int, str]:
    """The part of each backward operator, by id: INPUT_PART, WEIGHT_PART, or BOTH for one that can be run in halves.

    ``wants_input[forward id]``: whether the gradient of an activation that it read is wanted. A matrix product or
    convolution whose gradients are one operator in the trace is two products, of equal FLOPs, so it can be run in
    halves; norms and other operators compute the small gradients of their weights in the kernel that computes that of
    their input. What has no weight, or is not known, others may wait for: it is of the input part.
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
