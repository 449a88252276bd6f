"""Tensor parallelism of one workload: which style runs and why, what cannot run, and what the answer says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from trine.compute import kind_of
from trine.compute.kinds import family_of
from trine.compute.resize import Groups
from trine.errors import PlanError
from trine.graph.workload import FORWARD, Workload
from trine.parallel.heads import Attention, attention_of, check_features, check_heads
from trine.parallel.plan import Plan
from trine.parallel.tensor import TensorSplit, padded_bytes, split_features, split_operators
from trine.units import format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorLayout:
    """How the operators of a workload are spread over the tp group; empty without tensor parallelism.

    style: ``column`` or ``megatron``. splits, divided: of :func:`split_operators`. padded_bytes:
    sizes of tensors (by id) with a padded vocabulary. notes: what the answer rests on; warnings: what was not checked.
    """

    style: str = ""
    splits: Mapping[int, TensorSplit] = field(default_factory=dict)
    divided: Mapping[int, Fraction] = field(default_factory=dict)
    padded_bytes: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def tensor_layout(workload: Workload, plan: Plan) -> TensorLayout:
    """The tensor layout of a plan. Raises PlanError for ways on which no framework runs the workload."""
    attention = attention_of(workload)
    style, rule = _style(attention, plan)
    check_heads(attention, plan.tp, style == "megatron")
    splits, divided = split_operators(workload, style, plan.tp)
    if not splits:
        raise PlanError("tensor parallelism finds no linear, convolution or embedding with a weight to split")
    if style == "megatron":
        check_features(workload, attention, split_features(workload, splits), plan.tp)
    notes = (f"{style} style: {rule}", *_vocabulary_notes(splits), *_group_notes(workload, splits, plan.tp))
    return TensorLayout(
        style=style,
        splits=splits,
        divided=divided,
        padded_bytes=_padded(workload, splits),
        notes=notes,
        warnings=(*_unknown_heads(workload, attention, plan, style), *_whole_attention(workload, splits, style)),
    )


def _style(attention: Attention, plan: Plan) -> tuple[str, str]:
    if plan.tp_style != "auto":
        return plan.tp_style, "asked for"
    if plan.sequence_parallel:
        return "megatron", "sequence parallelism is a part of it"
    if attention.is_there:
        return "megatron", "the default for models with attention"
    return "column", "the default for models without attention"


def _padded(workload: Workload, splits: Mapping[int, TensorSplit]) -> dict[int, int]:
    """Bytes of the tensors that a padded vocabulary makes larger."""
    found: dict[int, int] = {}
    for op in workload.operators:
        split = splits.get(op.id if op.forward_id is None else op.forward_id)
        if split is None or split.vocabulary is None:
            continue
        for tensor_id in (*op.inputs, *op.outputs):
            tensor = workload.tensors[tensor_id]
            size = padded_bytes(tensor, split.vocabulary)
            if size != tensor.size_bytes:
                found[tensor_id] = size
    return found


# -- what is said ------------------------------------------------------------------------------------------------------


def _vocabulary_notes(splits: Mapping[int, TensorSplit]) -> tuple[str, ...]:
    padded = dict.fromkeys(split.vocabulary for split in splits.values() if split.vocabulary is not None)
    return tuple(
        f"the vocabulary of {rows:,} is padded to {most:,}, a multiple of 128 x tp, as Megatron-LM does"
        for rows, most in padded
    )


def _group_notes(workload: Workload, splits: Mapping[int, TensorSplit], tp: int) -> tuple[str, ...]:
    """A sentence on the gathers of queries, keys and values, with the bytes of one layer and sample."""
    sizes: dict[Groups, int] = {}
    for op in workload.operators:
        split = splits.get(op.id)
        if split is not None and split.regroups and split.groups is not None and split.groups not in sizes:
            sizes[split.groups] = workload.tensors[op.outputs[0]].size_bytes // workload.batch
    return tuple(
        f"tp {tp} is above the {groups.keys} KV heads: as in Megatron-core, {format_bytes(size)} of QKV a projection "
        "and sample are all-gathered forward and reduce-scattered backward; weights stay sharded"
        for groups, size in sizes.items()
    )


def _unknown_heads(workload: Workload, attention: Attention, plan: Plan, style: str) -> tuple[str, ...]:
    if attention.unknown:
        layers = ", ".join(attention.unknown[:2]) + (", ..." if len(attention.unknown) > 2 else "")
        return (
            f"the trace does not tell how many heads the attention of {layers} has: whether tp = {plan.tp} divides "
            "them was not checked",
        )
    kinds = {kind_of(op) for op in workload.operators if op.phase == FORWARD}
    if style == "megatron" and not attention.heads and "embedding" in kinds:
        return (f"no attention was found in the trace: whether tp = {plan.tp} divides its heads was not checked",)
    return ()


def _whole_attention(workload: Workload, splits: Mapping[int, TensorSplit], style: str) -> tuple[str, ...]:
    whole = [
        op.layer
        for op in workload.operators
        if op.phase == FORWARD and family_of(kind_of(op)) == "attention" and op.id not in splits
    ]
    if style != "megatron" or not whole:
        return ()
    return (f"attention in {len(whole)} operators ({whole[0]}, ...) is not divided: each rank computes all heads",)
