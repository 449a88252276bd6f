"""What must hold between the parts of a workload, checked when one is written or read."""

from __future__ import annotations

import math
from pathlib import Path

from trine.errors import TraceError, nearest
from trine.graph.workload import BACKWARD, FORWARD, PHASES, ROLES, Operator, Tensor, Workload

#: Bytes per element of the dtypes that trine knows; others are taken as they are.
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "none": 0,
}  # fmt: skip


def check_workload(workload: Workload, path: Path) -> None:
    """Raise TraceError, naming the part, if ``workload`` contradicts itself."""
    if workload.batch < 1:
        raise TraceError(f"must be at least 1, got {workload.batch}", file=path, field="batch")
    for tensor in workload.tensors.values():
        _check_tensor(tensor, path)
    seen: dict[int, Operator] = {}
    for op in workload.operators:
        where = f"operator {op.id}"
        if op.id in seen:
            raise TraceError("an operator with this id comes before", file=path, field=where)
        if op.phase not in PHASES:
            raise TraceError(f"has the phase {op.phase!r}{nearest(op.phase, PHASES)}", file=path, field=where)
        for tensor_id in (*op.inputs, *op.outputs):
            if tensor_id not in workload.tensors:
                raise TraceError(f"uses tensor {tensor_id}, which does not exist", file=path, field=where)
        if op.forward_id is not None:
            forward = seen.get(op.forward_id)
            if op.phase != BACKWARD or forward is None or forward.phase != FORWARD:
                message = "must be an earlier forward operator, and the operator itself a backward one"
                raise TraceError(f"has the forward_id {op.forward_id}: that {message}", file=path, field=where)
        seen[op.id] = op
    _check_parameters(workload, seen, path)


def _check_tensor(tensor: Tensor, path: Path) -> None:
    where = f"tensor {tensor.id}"
    if tensor.role not in ROLES:
        raise TraceError(f"has the role {tensor.role!r}{nearest(tensor.role, ROLES)}", file=path, field=where)
    each = ITEM_BYTES.get(tensor.dtype)
    if each is not None and tensor.size_bytes != each * math.prod(tensor.shape):
        raise TraceError(f"has {tensor.size_bytes} bytes, but {list(tensor.shape)} of {tensor.dtype} are "
                         f"{each * math.prod(tensor.shape)}", file=path, field=where)  # fmt: skip
    dims = tensor.batch_dims
    if list(dims) != sorted(set(dims)) or any(dim >= len(tensor.shape) for dim in dims):
        raise TraceError(f"has the batch_dims {list(dims)}, which must rise and be dimensions of {list(tensor.shape)}",
                         file=path, field=where)  # fmt: skip


def _check_parameters(workload: Workload, operators: dict[int, Operator], path: Path) -> None:
    weights: set[int] = set()
    for parameter in workload.parameters:
        where = f"parameter of tensor {parameter.weight}"
        weight = workload.tensors.get(parameter.weight)
        if weight is None or parameter.weight in weights:
            raise TraceError("the tensor does not exist, or is a parameter already", file=path, field=where)
        weights.add(parameter.weight)
        if weight.size_bytes != parameter.size_bytes:
            message = f"has {parameter.size_bytes} bytes, the tensor {weight.size_bytes}"
            raise TraceError(message, file=path, field=where)
        if parameter.gradient is not None and parameter.gradient not in workload.tensors:
            raise TraceError(f"has the gradient {parameter.gradient}, which does not exist", file=path, field=where)
        operator = parameter.gradient_operator
        if operator is not None and (operator not in operators or operators[operator].phase != BACKWARD):
            message = f"has the gradient_operator {operator}, which is no backward operator"
            raise TraceError(message, file=path, field=where)
