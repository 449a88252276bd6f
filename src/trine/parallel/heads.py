"""Numbers of attention heads, and the degrees of tensor parallelism at which frameworks run them.

Megatron-core (``TransformerConfig``) refuses a tensor-parallel size that does not divide the attention heads, or that
is neither a multiple nor a divisor of the key-value heads; it also refuses uneven splits of features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trine.common.kept import keep
from trine.compute import kind_of
from trine.compute.kinds import family_of
from trine.errors import PlanError
from trine.graph.workload import FORWARD, Operator, Tensor, Workload

#: Kinds of operators between the query-key product and the softmax: scale, mask, reshape.
_KEEPS_SCORES = ("elementwise", "view", "copy")
#: Attention operators of PyTorch that take (batch, tokens, heads, size); all others take (batch, heads, tokens, size).
_TOKENS_FIRST = ("_flash_attention_forward", "_efficient_attention_forward")


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of one layer.

    queries, keys: query heads and key-value heads. size: features of a head, 0 if unknown. layer: the layer's name.
    as_made: whether attention is one operator that reads (batch, heads, tokens, size) with as many key-value heads as
    the model computes, so that ranks can share one of them.
    """

    queries: int
    keys: int
    size: int
    layer: str
    as_made: bool = False

    def takes(self, tp: int) -> bool:
        """Return whether ``tp`` ranks can share these heads."""
        return self.queries % tp == 0 and (self.keys % tp == 0 or tp % self.keys == 0)

    def __str__(self) -> str:
        grouped = f" ({self.keys} of keys and values)" if self.keys != self.queries else ""
        return f"{self.queries} attention heads{grouped} of {self.layer}"


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The attention of a workload: its distinct heads, and the layers whose heads the trace does not show."""

    heads: tuple[Heads, ...]
    unknown: tuple[str, ...]

    @property
    def is_there(self) -> bool:
        """Whether the model has attention."""
        return bool(self.heads or self.unknown)


@keep
def attention_of(workload: Workload) -> AttentionHeads:
    """Derive attention heads from the attributes and shapes of forward operators.

    Fused attention: its attributes ``num_heads`` and ``num_kv_heads``, or the shapes of its inputs. Unfused: the
    softmax of scores, (batch, heads, tokens, tokens) or (batch x heads, ...), after a product of activations. Keys and
    values copied for each query head show in the projections of one tensor: two are narrower.
    """
    kinds: dict[tuple[int, int, int, bool], Heads] = {}
    unknown: dict[str, None] = {}
    narrower = _narrower_projections(workload)
    scores: dict[int, int] = {}  # storage of a product of activations, or of a tensor derived from it -> head size
    for op in workload.operators:
        if op.phase != FORWARD:
            continue
        family, size = family_of(kind_of(op)), next((scores[s] for s in _storages(workload, op) if s in scores), 0)
        if multiplies_activations(workload, op):
            size = _width(workload.tensors[op.inputs[0]])
        if size and family in ("matmul", *_KEEPS_SCORES):
            scores.update((workload.tensors[t].storage, size) for t in op.outputs)
        if family != "attention" and not (family == "softmax" and size):
            continue
        heads = fused_heads(workload, op) if family == "attention" else _scores(workload, op, size)
        if heads is None:
            unknown[op.layer] = None
            continue
        features = narrower.get(heads.queries * heads.size, 0)
        if heads.size and features % heads.size == 0 and 0 < features // heads.size < heads.keys:
            heads = Heads(heads.queries, features // heads.size, heads.size, heads.layer)
        kinds.setdefault((heads.queries, heads.keys, heads.size, heads.as_made), heads)
    return AttentionHeads(tuple(kinds.values()), tuple(unknown))


def _storages(workload: Workload, op: Operator) -> list[int]:
    return [workload.tensors[t].storage for t in op.inputs]


def multiplies_activations(workload: Workload, op: Operator) -> bool:
    """Return whether the operator multiplies activations with each other."""
    roles = [workload.tensors[t].role for t in op.inputs]
    return family_of(kind_of(op)) == "matmul" and bool(roles) and "weight" not in roles


def fused_heads(workload: Workload, op: Operator) -> Heads | None:
    """Return the heads of fused attention; None if neither attributes nor shapes show them."""
    tensors = []
    for i in op.inputs[:3]:
        tensor = workload.tensors[i]
        if len(tensor.shape) == 4:
            tensors.append(tensor)
    queries, keys = op.attributes.get("num_heads"), op.attributes.get("num_kv_heads")
    has_counts = isinstance(queries, int) and isinstance(keys, int) and queries > 0 and keys > 0
    if len(tensors) < 3:
        return Heads(queries, keys, 0, op.layer) if has_counts else None  # type: ignore[arg-type]
    by_tokens = op.name.rsplit("::", 1)[-1] in _TOKENS_FIRST
    head_dimension = 2 if by_tokens else 1
    counts = [tensor.shape[head_dimension] for tensor in tensors[:2]]
    if not all(counts) or counts[0] % counts[1]:
        return None
    return Heads(counts[0], counts[1], _width(tensors[0]), op.layer, as_made=not by_tokens)


def _scores(workload: Workload, op: Operator, size: int) -> Heads | None:
    for tensor in (workload.tensors[t] for t in op.inputs):
        if not tensor.size_bytes or not tensor.batch_dims or tensor.batch_dims[0] != 0:
            continue
        if len(tensor.shape) == 4:
            return Heads(tensor.shape[1], tensor.shape[1], size, op.layer)
        if len(tensor.shape) == 3 and tensor.shape[0] > workload.batch and not tensor.shape[0] % workload.batch:
            heads = tensor.shape[0] // workload.batch
            return Heads(heads, heads, size, op.layer)
    return None


def _narrower_projections(workload: Workload) -> dict[int, int]:
    """Return, for three linears that read one tensor: features of the widest -> features of the others, if fewer."""
    readers: dict[int, list[int]] = {}
    for op in workload.operators:
        if op.phase == FORWARD and family_of(kind_of(op)) == "linear" and op.outputs:
            data = next((t for t in op.inputs if workload.tensors[t].role == "activation"), None)
            if data is not None:
                readers.setdefault(workload.tensors[data].storage, []).append(_width(workload.tensors[op.outputs[0]]))
    pairs: dict[int, int] = {}
    for features in readers.values():
        narrow, second, wide = sorted(features) if len(features) == 3 else (0, 1, 0)
        if narrow == second < wide:
            pairs.setdefault(wide, narrow)
    return pairs


def _width(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.shape else 0


# -- checks ------------------------------------------------------------------------------------------------------------


def check_heads(attention: AttentionHeads, tp: int, are_divided: bool) -> None:
    """Raise PlanError, naming the heads and the nearest valid degrees, if ``tp`` ranks cannot share them.

    are_divided: whether each rank computes only some of the heads.
    """
    for heads in attention.heads:
        if not heads.takes(tp):
            why = "does not divide" if heads.queries % tp else "is neither a multiple nor a divisor of the KV heads of"
            raise PlanError(f"tp = {tp} {why} the {heads}{_nearest(tp, attention.heads, ())}")
        if are_divided and tp > heads.keys and not heads.as_made:
            raise PlanError(
                f"tp = {tp} is above the {heads.keys} heads of keys and values of {heads.layer}, which is modelled for "
                f"attention in one operator that reads no copies of them{_nearest(tp, attention.heads, (), heads.keys)}"
            )


def check_features(
    workload: Workload, attention: AttentionHeads, features: Mapping[int, int], tp: int, axis: str = "tp"
) -> None:
    """Raise PlanError if ``tp`` does not divide the features of an operator (id -> features) of a transformer."""
    if not attention.heads:
        return
    for op_id, number in features.items():
        if number % tp:
            layer = next(op.layer for op in workload.operators if op.id == op_id)
            raise PlanError(
                f"{axis} = {tp} does not divide the {number} features of {layer}"
                f"{_nearest(tp, attention.heads, set(features.values()))}"
            )


def _nearest(tp: int, heads: Iterable[Heads], features: Iterable[int], limit: int | None = None) -> str:
    """Return a sentence with the nearest degrees, below and above, that all heads and features allow."""
    heads = tuple(heads)
    if limit is None:
        top = min(h.queries for h in heads)
    else:
        top = limit
    valid = []
    for n in range(1, top + 1):
        if all(h.takes(n) for h in heads) and not any(f % n for f in features):
            valid.append(n)
    below = [n for n in valid if n < tp][-1:]
    above = [n for n in valid if n > tp][:1]
    return f": the nearest valid number is {' or '.join(str(n) for n in (*below, *above))}"
