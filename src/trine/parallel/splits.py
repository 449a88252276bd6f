"""The layout of tensor parallelism: the split of each operator and the collectives that it requires."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from trine.common.kept import keep
from trine.common.units import format_bytes
from trine.compute import kind_of
from trine.compute.kinds import family_of
from trine.compute.resize import Groups, feature_dim, is_expert_product, split_dims
from trine.errors import PlanError
from trine.graph.workload import FORWARD, Operator, Tensor, Workload
from trine.parallel.heads import AttentionHeads, attention_of, check_features, check_heads, fused_heads
from trine.parallel.plan import Plan
from trine.parallel.stages import backward_of, needs_gradient
from trine.parallel.tensor_layout import TensorLayout, TensorSplit, padded_bytes

#: Kinds that can run on a part of a tensor split along features or heads ...
DIVISIBLE_KINDS = frozenset({"elementwise", "copy", "scan", "view"})
#: ... and kinds that can run on a part split along heads only, because they work across features.
PER_HEAD_KINDS = frozenset({"softmax", "attention", "matmul"})
SPLIT_KINDS = {"linear": "column", "conv": "column", "embedding": "embedding", "experts": "column"}
PRODUCTS = ("linear", "experts")
MAX_ROWS = 2**63
#: Megatron-LM pads the vocabulary to a multiple of this times the ranks (its --make-vocab-size-divisible-by).
VOCABULARY_MULTIPLE = 128


def split_operators(
    workload: Workload, style: str, degree: int = 1, kinds: Collection[str] = frozenset(SPLIT_KINDS)
) -> tuple[dict[int, TensorSplit], dict[int, Fraction]]:
    """Return the split of each forward operator, by id; operators not in the result are replicated.

    The second result maps each storage that is split over the ``degree`` ranks to one rank's share. kinds: kinds of
    operators with weights to split.

    ``column`` style gathers the output of every split operator. ``megatron`` style (Shoeybi et al., 2019, section 3)
    keeps the output of a column split divided while the following operators can work on their part, and ends
    in a row split, whose output is all-reduced. It splits only the vocabulary table by rows and pads it; other tables,
    such as the position table, are whole on every rank.
    """
    gathered: set[int] = set()
    groups: dict[int, Groups] = {}
    while True:
        splits, divided, unmet, met = _attempt(workload, style, degree, kinds, gathered, groups)
        if not unmet and not met:
            if style == "megatron":
                _pad_vocabulary(workload, splits, degree)
            return splits, divided
        gathered |= unmet
        groups |= met


class _Attempt(NamedTuple):
    """One pass over the operators.

    divided: the part of each divided storage that a rank holds. unmet: column operators whose split output reaches an
    operator that needs all of it. met: those whose output reaches an attention with fewer KV heads than ranks.
    """

    splits: dict[int, TensorSplit]
    divided: dict[int, Fraction]
    unmet: set[int]
    met: dict[int, Groups]


def _attempt(
    workload: Workload, style: str, degree: int, kinds: Collection[str], gathered: set[int],
    groups: Mapping[int, Groups],
) -> _Attempt:  # fmt: skip
    """Try one pass over the operators."""
    divided: dict[int, int] = {}  # storage -> the column operator that divided it
    parts: dict[int, Fraction] = {}
    splits: dict[int, TensorSplit] = {}
    unmet: set[int] = set()
    met: dict[int, Groups] = {}
    backward = backward_of(workload)
    most_rows = _most_rows(workload) if style == "megatron" else 0
    of_layer: dict[str, TensorSplit] = {}

    def divide(op: Operator, origin: int) -> None:
        for tensor in (workload.tensors[t] for t in op.outputs):
            if tensor.storage not in divided:
                parts[tensor.storage] = rank_part(tensor, groups.get(origin), degree)
            divided[tensor.storage] = origin

    for op in workload.operators:
        if op.phase != FORWARD:
            continue
        kind = _kind(op)
        storages = [workload.tensors[t].storage for t in op.inputs]
        origins = [divided[s] for s in storages if s in divided]
        if _is_whole_adapter(op, bool(origins), of_layer):
            kind = "replicated"
        if kind in kinds and _weight_of(workload, op) is not None and _rows(workload, op) >= most_rows:
            if origins and kind in PRODUCTS:
                splits[op.id] = TensorSplit("row", "all_reduce", False)
            else:
                unmet.update(origins)
                splits[op.id] = _first_split(workload, op, SPLIT_KINDS[kind], style, gathered, backward)
            of_layer[op.layer] = splits[op.id]
            for tensor in op.outputs:
                divided.pop(workload.tensors[tensor].storage, None)
            if splits[op.id].mode == "column" and not splits[op.id].forward:
                if op.id in groups:
                    splits[op.id] = replace(splits[op.id], groups=groups[op.id], regroups=True)
                divide(op, op.id)
        elif origins and _is_divisible(workload, op, kind) and _all_divided(workload, op, divided):
            if kind == "loss":  # each rank has a part of each token's sum; the group adds them up
                splits[op.id] = TensorSplit("shared", "all_reduce", False)
                continue
            head_groups = _groups(workload, op, kind, degree)
            if head_groups is not None:
                met.update({origin: head_groups for origin in origins if origin not in groups})
            splits[op.id] = TensorSplit("shared", "", False, groups.get(origins[0]))
            divide(op, origins[0])
        else:
            unmet.update(origins)
    for op in workload.operators:  # a rank expands its part of a divided weight
        if op.attributes.get("expands") in of_layer:
            splits[op.id] = TensorSplit("shared", "", False)
    returned = _last_outputs(workload)
    unmet.update(divided[s] for s in sorted(divided) if s in returned)
    return _Attempt(splits, {s: parts[s] for s in divided}, unmet - gathered, met)


def _is_whole_adapter(op: Operator, is_divided: bool, of_layer: Mapping[str, TensorSplit]) -> bool:
    """Return whether each rank multiplies by the whole matrix of an adapter.

    Beside a product with divided output the second matrix is divided, after one with divided input the first.
    """
    role = op.attributes.get("adapter")
    beside = of_layer.get(op.layer.rpartition(".")[0])
    is_open = beside is not None and beside.mode == "column" and not beside.forward
    return (role == "down" and not is_divided) or (role == "up" and not is_open)


def rank_part(tensor: Tensor, groups: Groups | None, degree: int) -> Fraction:
    """Return a rank's share of a split tensor."""
    dim = None if groups is None else feature_dim(tensor, "elementwise")
    return Fraction(1, degree) if groups is None or dim is None else groups.part(tensor, dim, degree)


def _groups(workload: Workload, op: Operator, kind: str, degree: int) -> Groups | None:
    """Return the heads of an attention with fewer KV heads than ranks; None for any other operator."""
    heads = fused_heads(workload, op) if family_of(kind) == "attention" else None
    if heads is None or not heads.as_made or heads.keys >= degree:
        return None
    return Groups(heads.queries, heads.keys, heads.size)


# -- the vocabulary ----------------------------------------------------------------------------------------------------


def padded_rows(rows: int, degree: int) -> int:
    """Return the total rows of the vocabulary table over all ranks, padded as in Megatron-LM."""
    return -(-rows // (VOCABULARY_MULTIPLE * degree)) * VOCABULARY_MULTIPLE * degree


def _rows(workload: Workload, op: Operator) -> int:
    """Return the rows of an embedding's table, or :data:`MAX_ROWS` for other operators."""
    weight = _weight_of(workload, op)
    if weight is None or _kind(op) != "embedding":
        return MAX_ROWS
    return workload.tensors[weight].shape[0]


def _most_rows(workload: Workload) -> int:
    tables = [op for op in workload.operators if op.phase == FORWARD and _kind(op) == "embedding"]
    return max((_rows(workload, op) for op in tables if _weight_of(workload, op) is not None), default=0)


def _pad_vocabulary(workload: Workload, splits: dict[int, TensorSplit], degree: int) -> None:
    """Set ``vocabulary`` on the splits of the vocabulary table, of the output head, and of the logits."""
    logits: set[int] = set()
    tables = [op for op in workload.operators if op.id in splits and splits[op.id].mode == "embedding"]
    rows = max((_rows(workload, op) for op in tables), default=0)
    padded = padded_rows(rows, degree)
    if padded == rows:
        return
    for op in workload.operators:
        split = splits.get(op.id)
        if split is None:
            continue
        outputs = [workload.tensors[t] for t in op.outputs if workload.tensors[t].shape[-1:] == (rows,)]
        is_head = split.mode == "column" and _kind(op) == "linear" and bool(outputs)
        reads = any(workload.tensors[t].storage in logits for t in op.inputs)
        if split.mode == "embedding" or is_head or (split.mode == "shared" and reads):
            splits[op.id] = replace(split, vocabulary=(rows, padded))
        if is_head or reads:
            logits.update(tensor.storage for tensor in outputs)


# -- properties of operators -------------------------------------------------------------------------------------------


def _kind(op: Operator) -> str:
    """Return the kind of a forward operator; ``experts`` for the grouped GEMM of a mixture of experts.

    ``replicated`` marks operators that frameworks keep whole on each rank (attribute ``replicated``), as Megatron-LM
    does with BERT's pooler and the transform before its head.
    """
    if op.attributes.get("replicated") is True:
        return "replicated"
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
    """Return whether an operator without weights can run on its rank's part of the features or heads.

    A loss can if the trace sets its attribute ``vocab_parallel``, as for Megatron-LM's cross entropy.
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
    """Return the storages of the last forward operator's outputs; the model's output must be whole."""
    last = next(op for op in reversed(workload.operators) if op.phase == FORWARD)
    return {workload.tensors[t].storage for t in last.outputs}


def split_features(workload: Workload, splits: Mapping[int, TensorSplit]) -> dict[int, int]:
    """Return the split features of each GEMM, by operator id, whose column or row split has no gather after it."""
    features: dict[int, int] = {}
    for op in workload.operators:
        split = splits.get(op.id)
        if split is None or split.forward == "all_gather" or split.vocabulary is not None or _kind(op) not in PRODUCTS:
            continue
        tensors = []
        for i in (*op.inputs, *op.outputs):
            if (t := workload.tensors[i]).size_bytes:
                tensors.append(t)
        for tensor, dim in zip(tensors, split_dims(op, tensors, split.mode, None, ()), strict=True):
            if tensor.role == "weight" and len(tensor.shape) > 1 and dim is not None:
                features[op.id] = tensor.shape[dim]
    return features


_split = keep(split_operators)


def tensor_layout(workload: Workload, plan: Plan) -> TensorLayout:
    """Return the tensor layout of a plan. Raises PlanError for a degree that no framework supports for the workload."""
    attention = attention_of(workload)
    style, rule = _style(attention, plan)
    check_heads(attention, plan.tp, style == "megatron")
    kinds = set()
    for kind in SPLIT_KINDS:
        if (plan.expert_tp if kind == "experts" else plan.tp) > 1:
            kinds.add(kind)
    splits, divided = _split(workload, style, plan.tp, frozenset(kinds))
    if not splits:
        raise PlanError("tensor parallelism finds no linear, convolution or embedding with a weight to split")
    if style == "megatron":
        features = split_features(workload, splits)
        experts = {op.id for op in workload.operators if is_expert_product(op)}
        check_features(workload, attention, {i: n for i, n in features.items() if i not in experts}, plan.tp)
        check_features(workload, attention, {i: features[i] for i in experts & set(features)}, plan.expert_tp, "etp")
    notes = (f"{style} style: {rule}", *_vocabulary_notes(splits), *_group_notes(workload, splits, plan.tp))
    return TensorLayout(
        style=style,
        splits=splits,
        divided=divided,
        padded_bytes=_padded(workload, splits),
        notes=notes,
        warnings=(*_unknown_heads(workload, attention, plan, style), *_whole_attention(workload, splits, style)),
    )


def _style(attention: AttentionHeads, plan: Plan) -> tuple[str, str]:
    if plan.tp_style != "auto":
        return plan.tp_style, "asked for"
    if plan.sequence_parallel:
        return "megatron", "sequence parallelism is a part of it"
    if attention.is_there:
        return "megatron", "default for models with attention"
    return "column", "default for models without attention"


def _padded(workload: Workload, splits: Mapping[int, TensorSplit]) -> dict[int, int]:
    """Return the sizes in bytes of the tensors enlarged by a padded vocabulary."""
    sizes: dict[int, int] = {}
    for op in workload.operators:
        split = splits.get(op.id if op.forward_id is None else op.forward_id)
        if split is None or split.vocabulary is None:
            continue
        for tensor_id in (*op.inputs, *op.outputs):
            tensor = workload.tensors[tensor_id]
            size = padded_bytes(tensor, split.vocabulary)
            if size != tensor.size_bytes:
                sizes[tensor_id] = size
    return sizes


# -- notes and warnings ------------------------------------------------------------------------------------------------


def _vocabulary_notes(splits: Mapping[int, TensorSplit]) -> tuple[str, ...]:
    padded = dict.fromkeys(split.vocabulary for split in splits.values() if split.vocabulary is not None)
    return tuple(
        f"the vocabulary of {rows:,} is padded to {target:,}, a multiple of 128 x tp, as Megatron-LM does"
        for rows, target in padded
    )


def _group_notes(workload: Workload, splits: Mapping[int, TensorSplit], tp: int) -> tuple[str, ...]:
    """Return a note for each gather of queries, keys and values, with its bytes per layer and sample."""
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


def _unknown_heads(workload: Workload, attention: AttentionHeads, plan: Plan, style: str) -> tuple[str, ...]:
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
    layers = [
        op.layer
        for op in workload.operators
        if op.phase == FORWARD and family_of(_kind(op)) == "attention" and op.id not in splits
    ]
    if style != "megatron" or not layers:
        return ()
    return (f"attention in {len(layers)} operators ({layers[0]}, ...) is not divided: each rank computes all heads",)
