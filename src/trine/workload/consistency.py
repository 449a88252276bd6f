"""Consistency between the parts of a workload, checked on writing and reading."""

from __future__ import annotations

import math
from pathlib import Path

from trine.common.precision import ITEM_BYTES
from trine.errors import TraceError, nearest
from trine.graph.workload import BACKWARD, FORWARD, PHASES, ROLES, Operator, Tensor, Workload


def check_workload(workload: Workload, path: Path) -> None:
    """Raise TraceError, naming the part, if ``workload`` contradicts itself."""
    if workload.batch < 1:
        raise TraceError(f"must be at least 1, got {workload.batch}", file=path, field="batch")
    for tensor in workload.tensors.values():
        _check_tensor(tensor, path)
    earlier: dict[int, Operator] = {}
    for op in workload.operators:
        field = f"operator {op.id}"
        if op.id in earlier:
            raise TraceError("an operator with this id comes before", file=path, field=field)
        if op.phase not in PHASES:
            raise TraceError(f"has the phase {op.phase!r}{nearest(op.phase, PHASES)}", file=path, field=field)
        for tensor_id in (*op.inputs, *op.outputs):
            if tensor_id not in workload.tensors:
                raise TraceError(f"uses tensor {tensor_id}, which does not exist", file=path, field=field)
        if op.forward_id is not None:
            forward = earlier.get(op.forward_id)
            if op.phase != BACKWARD or forward is None or forward.phase != FORWARD:
                message = "must be an earlier forward operator, and the operator itself a backward one"
                raise TraceError(f"has the forward_id {op.forward_id}: that {message}", file=path, field=field)
        earlier[op.id] = op
    _check_parameters(workload, earlier, path)


def _check_tensor(tensor: Tensor, path: Path) -> None:
    field = f"tensor {tensor.id}"
    if tensor.role not in ROLES:
        raise TraceError(f"has the role {tensor.role!r}{nearest(tensor.role, ROLES)}", file=path, field=field)
    item_bytes = ITEM_BYTES.get(tensor.dtype)
    size_bytes = tensor.size_bytes if item_bytes is None else math.ceil(item_bytes * math.prod(tensor.shape))
    if tensor.size_bytes != size_bytes:
        raise TraceError(f"has {tensor.size_bytes} bytes, but {list(tensor.shape)} of {tensor.dtype} are {size_bytes}",
                         file=path, field=field)  # fmt: skip
    dims = tensor.batch_dims
    if list(dims) != sorted(set(dims)) or any(dim >= len(tensor.shape) for dim in dims):
        raise TraceError(f"has the batch_dims {list(dims)}, which must rise and be dimensions of {list(tensor.shape)}",
                         file=path, field=field)  # fmt: skip


def _check_parameters(workload: Workload, operators: dict[int, Operator], path: Path) -> None:
    weights: set[int] = set()
    for parameter in workload.parameters:
        field = f"parameter of tensor {parameter.weight}"
        weight = workload.tensors.get(parameter.weight)
        if weight is None or parameter.weight in weights:
            raise TraceError("the tensor does not exist, or is a parameter already", file=path, field=field)
        weights.add(parameter.weight)
        if weight.size_bytes != parameter.size_bytes:
            message = f"has {parameter.size_bytes} bytes, the tensor {weight.size_bytes}"
            raise TraceError(message, file=path, field=field)
        if parameter.gradient is not None and parameter.gradient not in workload.tensors:
            raise TraceError(f"has the gradient {parameter.gradient}, which does not exist", file=path, field=field)
        operator = parameter.gradient_operator
        if operator is not None and (operator not in operators or operators[operator].phase != BACKWARD):
            message = f"has the gradient_operator {operator}, which is no backward operator"
            raise TraceError(message, file=path, field=field)
