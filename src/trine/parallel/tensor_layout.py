"""The layout over the ranks of tensor parallelism: how each operator is split, and the bytes of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from trine.compute.resize import Groups, is_expert_product, vocabulary_dim
from trine.graph.workload import Tensor, Workload


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """Split of one forward operator, and of its backward operator, over the tp group.

    mode: ``column`` (output features), ``row`` (input features), ``embedding`` (vocabulary) or ``shared`` (an operator
        without weights on a tensor that is already split).
    forward: collective after the forward operator, ``""`` for none. backward: whether the gradient of its input is
        a partial sum that must be all-reduced.
    groups: heads of the attention that reads the split tensor, if it has fewer KV heads than tp has ranks. regroups:
        whether this column split produces that tensor; its parts are gathered, and each rank takes its heads.
    vocabulary: rows of the embedding table in the operator's tensors, and the padded number of rows.
    """

    mode: str
    forward: str
    backward: bool
    groups: Groups | None = None
    regroups: bool = False
    vocabulary: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorLayout:
    """Split of a workload's operators over the tp group; empty without tensor parallelism.

    style: ``column`` or ``megatron``. splits, divided: the results of :func:`trine.parallel.splits.split_operators`.
    padded_bytes: sizes of tensors, by id, with a padded vocabulary. notes: applied rules. warnings: unchecked
    conditions.
    """

    style: str = ""
    splits: Mapping[int, TensorSplit] = field(default_factory=dict)
    divided: Mapping[int, Fraction] = field(default_factory=dict)
    padded_bytes: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def local_parameter_bytes(
    workload: Workload, splits: Mapping[int, TensorSplit], degree: int, expert_degree: int | None = None
) -> dict[int, int]:
    """Return the bytes of each parameter, by its weight's tensor id, on one rank of the tp group.

    expert_degree: ranks that split each expert, if not ``degree``.
    """
    of_experts = degree if expert_degree is None else expert_degree
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
            size = padded_bytes(tensor, split.vocabulary) if split.vocabulary is not None else tensor.size_bytes
            local[weight] = -(-size // (of_experts if is_expert_product(op) else degree))
    return local


def padded_bytes(tensor: Tensor, vocabulary: tuple[int, int]) -> int:
    """Return the bytes of a tensor after padding its vocabulary dimension, if it has one."""
    rows, padded = vocabulary
    return tensor.size_bytes if vocabulary_dim(tensor, rows) is None else tensor.size_bytes // rows * padded
