"""Tensor parallelism: which operators are split, how, and what that makes the ranks send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trine.compute import kind_of
from trine.compute.shard import is_expert_product
from trine.model.workload import FORWARD, Operator, Workload
from trine.parallel.backward import backward_of
from trine.parallel.stages import needs_gradient

#: Kinds whose work is divided when the tensor that they read is divided along features or heads ...
DIVISIBLE_KINDS = frozenset({"elementwise", "copy", "view"})
#: ... and kinds for which that holds along heads only: they work across features.
PER_HEAD_KINDS = frozenset({"softmax", "attention", "matmul"})
SPLIT_KINDS = {"linear": "column", "conv": "column", "embedding": "embedding", "experts": "column"}
PRODUCTS = ("linear", "experts")


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How one forward operator, and the backward operator that belongs to it, is spread over the tp group.

    mode: ``column`` (output features), ``row`` (input features), ``embedding`` (vocabulary) or ``shared`` (an operator
        without weights on a tensor that is divided already).
    forward: collective after the forward operator, ``""`` for none. backward: whether the gradient of its input is
        a partial sum, to be all-reduced.
    """

    mode: str
    forward: str
    backward: bool


def split_operators(workload: Workload, style: str) -> tuple[dict[int, TensorSplit], frozenset[int]]:
    """Say for each forward operator id how it is split; operators that are not in the answer are replicated.

    The second result names the storages of which each rank holds its part only.

    ``column`` style gathers the output of every split operator. ``megatron`` style (Shoeybi et al., 2019, section 3)
    leaves the output of a column split divided as long as only operators follow that can work on their part, and ends
    in a row split, whose output is all-reduced.
    """
    gathered: set[int] = set()
    while True:
        splits, divided, unmet = _attempt(workload, style, gathered)
        if not unmet:
            return splits, divided
        gathered |= unmet


def _attempt(
    workload: Workload, style: str, gathered: set[int]
) -> tuple[dict[int, TensorSplit], frozenset[int], set[int]]:
    """One pass; the last result names column operators whose divided output met an operator that needs all of it."""
    divided: dict[int, int] = {}  # storage -> the column operator that divided it
    splits: dict[int, TensorSplit] = {}
    unmet: set[int] = set()
    backward = backward_of(workload)
    for op in workload.operators:
        if op.phase != FORWARD:
            continue
        kind = _kind(op)
        storages = [workload.tensors[t].storage for t in op.inputs]
        origins = [divided[s] for s in storages if s in divided]
        if kind in SPLIT_KINDS and _weight_of(workload, op) is not None:
            if origins and kind in PRODUCTS:
                splits[op.id] = TensorSplit("row", "all_reduce", False)
            else:
                unmet.update(origins)
                splits[op.id] = _first_split(workload, op, SPLIT_KINDS[kind], style, gathered, backward)
            for tensor in op.outputs:
                divided.pop(workload.tensors[tensor].storage, None)
            if splits[op.id].mode == "column" and not splits[op.id].forward:
                divided.update({workload.tensors[t].storage: op.id for t in op.outputs})
        elif origins and _is_divisible(workload, op, kind) and _all_divided(workload, op, divided):
            if kind == "loss":  # a part of each token's sum, added up over the group
                splits[op.id] = TensorSplit("shared", "all_reduce", False)
                continue
            splits[op.id] = TensorSplit("shared", "", False)
            divided.update({workload.tensors[t].storage: origins[0] for t in op.outputs})
        else:
            unmet.update(origins)
    returned = _last_outputs(workload)
    unmet.update(divided[s] for s in sorted(divided) if s in returned)
    return splits, frozenset(divided), unmet - gathered


def _kind(op: Operator) -> str:
    """The kind of a forward operator; ``experts`` for the grouped product of a mixture of experts."""
    return "experts" if is_expert_product(op) else kind_of(op)


def _first_split(
    workload: Workload,
    op: Operator,
    mode: str,
    style: str,
    gathered: set[int],
    linked: Mapping[int, Sequence[Operator]],
) -> TensorSplit:
    if mode == "embedding":
        return TensorSplit("embedding", "all_reduce", False)
    backward = any(needs_gradient(workload, workload.tensors[t], op, linked) for t in op.inputs)
    open_ended = style == "megatron" and _kind(op) in PRODUCTS and op.id not in gathered
    return TensorSplit("column", "" if open_ended else "all_gather", backward)


def _weight_of(workload: Workload, op: Operator) -> int | None:
    return next((t for t in op.inputs if workload.tensors[t].role == "weight"), None)


def _is_divisible(workload: Workload, op: Operator, kind: str) -> bool:
    """Whether an operator without weights can work on its rank's part of the features or heads alone.

    A loss can where the trace says so (attribute ``vocab_parallel``), as Megatron-LM's cross entropy does.
    """
    if kind == "loss":
        return op.attributes.get("vocab_parallel") is True
    if kind not in PER_HEAD_KINDS:
        return kind in DIVISIBLE_KINDS
    for tensor_id in op.inputs:
        tensor = workload.tensors[tensor_id]
        if tensor.role != "activation" or not tensor.batch_dims:
            continue
        folded = len(tensor.shape) == 3 and tensor.shape[tensor.batch_dims[0]] > workload.batch  # (batch x heads, ...)
        if len(tensor.shape) < 4 and not folded:
            return False
    return True


def _all_divided(workload: Workload, op: Operator, divided: Mapping[int, int]) -> bool:
    activations = [workload.tensors[t] for t in op.inputs if workload.tensors[t].role == "activation"]
    return all(t.storage in divided for t in activations if t.batch_dims)


def _last_outputs(workload: Workload) -> set[int]:
    """Storages of the last forward operator's outputs: what the model returns must be whole."""
    last = next(op for op in reversed(workload.operators) if op.phase == FORWARD)
    return {workload.tensors[t].storage for t in last.outputs}


def local_parameter_bytes(workload: Workload, splits: Mapping[int, TensorSplit], ways: int) -> dict[int, int]:
    """Bytes of each parameter (by its weight's tensor id) that one rank of the tp group keeps."""
    local = {p.weight: p.size_bytes for p in workload.parameters}
    storage_of = {workload.tensors[p.weight].storage: p.weight for p in workload.parameters}
    for op in workload.operators:
        split = splits.get(op.id)
        if split is None or split.mode == "shared":
            continue
        for tensor_id in op.inputs:
            weight = storage_of.get(workload.tensors[tensor_id].storage)
            if weight is None or (split.mode == "row" and len(workload.tensors[weight].shape) < 2):
                continue  # the bias of a row split is whole
            tensor = workload.tensors[weight]
            local[weight] = -(-tensor.size_bytes // ways)
    return local
