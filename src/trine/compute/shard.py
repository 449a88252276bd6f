"""Which dimension of each tensor tensor parallelism divides.

'column' divides the output features (channels) of a weight, 'row' its input features, 'embedding' the rows of the
table (the vocabulary, as Megatron-LM does: each rank looks up all tokens, and those of other ranks give zeros).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from trine.compute.kinds import family_of, is_backward, kind_of
from trine.errors import PlanError
from trine.graph.workload import Operator, Tensor

Dims = list[int | None]


class Groups(NamedTuple):
    """Heads of an attention with fewer heads of keys and values than there are ranks, so that each rank has one whole.

    queries, keys: how many of each; size: features of a head.
    """

    queries: int
    keys: int
    size: int

    def part(self, tensor: Tensor, dim: int, ways: int) -> Fraction:
        """The part of dimension ``dim`` of a tensor, which counts heads or features, that one of ``ways`` ranks has.

        Queries, keys and values that lie side by side are told from each by their number.
        """
        unit = 1 if len(tensor.shape) >= 4 else self.size
        if tensor.shape[dim] == self.keys * unit:
            return Fraction(1, self.keys)
        if tensor.shape[dim] == (self.queries + 2 * self.keys) * unit:
            return (Fraction(self.queries, ways) + 2) / (self.queries + 2 * self.keys)
        return Fraction(1, ways)


def split_dims(
    operator: Operator, tensors: Sequence[Tensor], mode: str, forward: Operator | None, sources: Sequence[Tensor]
) -> Dims:
    """Return for each of ``tensors`` (inputs, then outputs) the dimension that is divided, or None.

    ``forward`` and ``sources``: the operator whose gradient it computes, and its tensors. A gradient is divided as the
    tensor that it belongs to, recognised by its shape. Raises PlanError where ``mode`` does not fit the operator.
    """
    family = "experts" if is_expert_product(operator) else family_of(kind_of(operator))
    if mode == "embedding" and family != "embedding":
        raise PlanError(f"operator {operator.id} ({operator.name}) is not an embedding and cannot be split as one")
    if is_backward(kind_of(operator)) and family in ("conv", "linear", "embedding", "experts"):
        if forward is None:
            raise PlanError(
                f"operator {operator.id} ({operator.name}) cannot be split: its forward operator is unknown"
            )
        dims: dict[tuple[int, ...], int | None] = {}
        order = sorted(range(len(sources)), key=lambda i: sources[i].role != "weight")
        forward_dims = split_dims(forward, sources, mode, None, ())
        for i in order:
            dims.setdefault(sources[i].shape, forward_dims[i])
        return [dims.get(tensor.shape) for tensor in tensors]
    if family == "conv":
        return _conv(operator, tensors, mode)
    if family == "linear":
        return _linear(operator, tensors, mode)
    if family == "embedding":
        return _embedding(operator, tensors, mode)
    if family == "experts":
        return _experts(tensors, mode)
    return [feature_dim(tensor, family) for tensor in tensors]


def is_expert_product(operator: Operator) -> bool:
    """Whether it multiplies the tokens of several experts by their weights, (experts, in, out)."""
    return operator.attributes.get("expert") is True and family_of(kind_of(operator)) == "matmul"


def _experts(tensors: Sequence[Tensor], mode: str) -> Dims:
    """x (..., in), weight (experts, in, out), output y (..., out)."""
    if mode == "row":
        return [len(tensors[0].shape) - 1, 1, *[None] * (len(tensors) - 2)]
    return [None, 2, *[len(tensor.shape) - 1 for tensor in tensors[2:]]]


def _conv(operator: Operator, tensors: Sequence[Tensor], mode: str) -> Dims:
    """inputs x (N, C, ...), weight (out, C/groups, ...) or transposed (C, out/groups, ...), bias (out,); output y."""
    transposed, groups = bool(operator.attributes.get("transposed")), operator.attributes.get("groups", 1)
    channels = len(tensors[0].shape) - len(tensors[1].shape) + 1
    if groups != 1 and mode == "row":
        raise PlanError(f"operator {operator.id} ({operator.name}) has groups, so its input channels cannot be split")
    if mode == "row":
        return [channels, 0 if transposed else 1, *[None] * (len(tensors) - 2)]
    weight_dim = 1 if transposed and groups == 1 else 0
    dims: Dims = [channels if groups != 1 else None, weight_dim]
    return dims + [0 if len(t.shape) == 1 else channels for t in tensors[2:]]


def _linear(operator: Operator, tensors: Sequence[Tensor], mode: str) -> Dims:
    """linear(x, weight (out, in), bias); addmm(bias, x, weight (in, out)); mm(x, weight (in, out)); output y."""
    name = operator.name.rsplit("::", 1)[-1].rstrip("_")
    given = len(operator.inputs)
    first = 1 if name in ("addmm", "addmv") and given >= 3 else 0
    out_dim = 0 if name == "linear" else 1
    dims: Dims = [None] * len(tensors)
    if mode == "row":
        dims[first], dims[first + 1] = len(tensors[first].shape) - 1, 1 - out_dim
        return dims
    dims[first + 1] = out_dim
    for i, tensor in enumerate(tensors):
        if i not in (first, first + 1):
            dims[i] = len(tensor.shape) - 1
    return dims


def _embedding(operator: Operator, tensors: Sequence[Tensor], mode: str) -> Dims:
    """inputs weight (rows, features) and indices; output (..., features)."""
    if mode == "row":
        raise PlanError(f"operator {operator.id} ({operator.name}) can be split as 'embedding' or 'column', not 'row'")
    weight_dim = 0 if mode == "embedding" else 1
    dims: Dims = [weight_dim, *[None] * (len(tensors) - 1)]
    if mode == "column":
        dims[2:] = [len(tensor.shape) - 1 for tensor in tensors[2:]]
    return dims


def feature_dim(tensor: Tensor, family: str) -> int | None:
    """Channels or heads of (N, C, H, W), features of (..., E); batched matrices (N, m, k) by their batch."""
    num_dims = len(tensor.shape)
    if num_dims == 0:
        return None
    dim = 1 if num_dims >= 4 else 0 if family in ("matmul", "attention") else num_dims - 1
    return dim if tensor.shape[dim] > 1 else None


def vocabulary_dim(tensor: Tensor, rows: int) -> int | None:
    """The dimension of a tensor that counts a vocabulary of ``rows``: the features of activations, any of a weight."""
    if tensor.role == "input" or rows not in tensor.shape:
        return None
    if tensor.batch_dims:
        return len(tensor.shape) - 1 if tensor.shape[-1] == rows else None
    return tensor.shape.index(rows)
