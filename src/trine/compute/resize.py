"""Resized operators: with another batch, or with a part of their features on each of several GPUs.

A :class:`Split` describes the change; :func:`resized` returns the tensors that the operator then reads and writes.
Tensor parallelism divides by mode: 'column' a weight's output features (channels), 'row' its input features,
'embedding' a table's rows (the vocabulary; as in Megatron-LM, all ranks look up all tokens and return 0 for others').
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from trine.common.units import whole_number
from trine.compute.kinds import family_of, is_backward, kind_of
from trine.errors import InputError, PlanError, nearest
from trine.graph.workload import OPTIMIZER, Operator, Tensor, Workload

Dims = list[int | None]


class Groups(NamedTuple):
    """Heads of an attention with fewer key/value heads than ranks, so that each rank has one whole key/value head.

    queries, keys: number of heads of each; size: features of a head.
    """

    queries: int
    keys: int
    size: int

    def part(self, tensor: Tensor, dim: int, ways: int) -> Fraction:
        """Return the part of dimension ``dim`` of a tensor, which counts heads or features, on one of ``ways`` ranks.

        The size of the dimension tells whether it counts queries, keys, or queries, keys and values together.
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

    ``forward`` and ``sources``: the operator whose gradient it computes, and its tensors. A gradient is divided like
    its tensor, which is recognised by its shape. Raises PlanError if ``mode`` does not fit the operator.
    """
    family = "experts" if is_expert_product(operator) else family_of(kind_of(operator))
    if mode == "embedding" and family != "embedding":
        raise PlanError(f"operator {operator.id} ({operator.name}) is not an embedding and cannot be split as one")
    if is_backward(kind_of(operator)) and family in ("conv", "linear", "embedding", "experts"):
        if forward is None:
            name = f"operator {operator.id} ({operator.name})"
            raise PlanError(f"{name} cannot be split: its forward operator is unknown")
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
    """Return whether the operator multiplies the tokens of several experts by their weights, (experts, in, out)."""
    return operator.attributes.get("expert") is True and family_of(kind_of(operator)) == "matmul"


def _experts(tensors: Sequence[Tensor], mode: str) -> Dims:
    """Return the divided dimensions of x (..., in), weight (experts, in, out) and output y (..., out)."""
    if mode == "row":
        return [len(tensors[0].shape) - 1, 1, *[None] * (len(tensors) - 2)]
    return [None, 2, *[len(tensor.shape) - 1 for tensor in tensors[2:]]]


def _conv(operator: Operator, tensors: Sequence[Tensor], mode: str) -> Dims:
    """Split x (N, C, ...), weight (out, C/groups, ...) or transposed (C, out/groups, ...), bias (out,), output y."""
    transposed, groups = bool(operator.attributes.get("transposed")), operator.attributes.get("groups", 1)
    channels = len(tensors[0].shape) - len(tensors[1].shape) + 1
    if groups != 1 and mode == "row":
        raise PlanError(f"operator {operator.id} ({operator.name}) has groups, so its input channels cannot be split")
    if mode == "row":
        return [channels, 0 if transposed else 1, *[None] * (len(tensors) - 2)]
    weight_dim = 1 if transposed and groups == 1 else 0
    dims: Dims = [channels if groups != 1 else None, weight_dim]
    channel_dims = []
    for t in tensors[2:]:
        channel_dims.append(0 if len(t.shape) == 1 else channels)
    return dims + channel_dims


def _linear(operator: Operator, tensors: Sequence[Tensor], mode: str) -> Dims:
    """Split linear(x, weight (out, in), bias), addmm(bias, x, weight (in, out)), mm(x, weight (in, out)); output y."""
    name = operator.name.rsplit("::", 1)[-1].rstrip("_")
    num_inputs = len(operator.inputs)
    first = 1 if name in ("addmm", "addmv") and num_inputs >= 3 else 0
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
    """Split the inputs weight (rows, features) and indices, and the output (..., features)."""
    if mode == "row":
        raise PlanError(f"operator {operator.id} ({operator.name}) can be split as 'embedding' or 'column', not 'row'")
    weight_dim = 0 if mode == "embedding" else 1
    dims: Dims = [weight_dim, *[None] * (len(tensors) - 1)]
    if mode == "column":
        dims[2:] = [len(tensor.shape) - 1 for tensor in tensors[2:]]
    return dims


def feature_dim(tensor: Tensor, family: str) -> int | None:
    """Return the dimension of channels or heads of (N, C, H, W), features of (..., E), or batch of (N, m, k)."""
    num_dims = len(tensor.shape)
    if num_dims == 0:
        return None
    if num_dims >= 4:
        dim = 1
    elif family in ("matmul", "attention"):
        dim = 0
    else:
        dim = num_dims - 1
    return dim if tensor.shape[dim] > 1 else None


def vocabulary_dim(tensor: Tensor, rows: int) -> int | None:
    """Return the dimension that counts a vocabulary of ``rows``: an activation's features, any of a weight, or None."""
    if tensor.role == "input" or rows not in tensor.shape:
        return None
    if tensor.batch_dims:
        return len(tensor.shape) - 1 if tensor.shape[-1] == rows else None
    return tensor.shape.index(rows)


def sequence_length(workload: Workload) -> int | None:
    """Return the tokens of a sample, if the workload has ``metadata["sequence"]``, as synthesised transformers do.

    If an encoder and a decoder read different numbers, return ``metadata["tokens"]``, which divides both.
    """
    return whole_number(workload.metadata.get("tokens", workload.metadata.get("sequence", "")), 2)


def sequence_dim(tensor: Tensor, length: int) -> int | None:
    """Return the dimension of an activation or input that scales with the tokens of a sample, or None.

    It follows the batch, (batch, tokens, ...), or the heads, (batch, heads, tokens, size). A dimension of several
    times ``length`` counts tokens copied to their experts.
    """
    if tensor.batch_dims != (0,):
        return None
    dim = 2 if len(tensor.shape) == 4 else 1
    if len(tensor.shape) <= dim or not tensor.shape[dim] or tensor.shape[dim] % length:
        return None
    return dim


#: '': replicated. 'column': output features (channels). 'row': input features. 'embedding': rows of the table.
SPLIT_MODES = ("", "column", "row", "embedding")


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes at which an operator runs.

    ``batch``: samples of one replica (or micro-batch). ``ways`` and ``mode``: tensor parallelism of a forward or
    backward operator; with mode ``''`` it is replicated and ``ways`` has no effect. Operators without weights treat
    'column' and 'row' alike, as their share of the features or heads. ``share``: part of the parameters' bytes that an
    optimizer operator handles; other operators ignore it.
    ``tokens``: tokens of each sample, relative to the workload's (above 1 if an expert gets more than its share);
    ``keys``: for attention, the relative number of tokens whose keys and values it reads, None for the same.
    ``experts``: ways to divide the experts of a grouped GEMM. ``groups``: heads of queries and keys, for an operator
    on divided queries, keys and values, if there are fewer key heads than ``ways``. ``vocabulary``: rows of an
    embedding's table, before and after padding for the division. Raises PlanError if a value is out of range.
    """

    batch: int
    ways: int = 1
    mode: str = ""
    share: Fraction = Fraction(1)
    tokens: Fraction = Fraction(1)
    keys: Fraction | None = None
    experts: int = 1
    groups: Groups | None = None
    vocabulary: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise PlanError(f"a batch must be a whole number of at least 1, got {self.batch!r}", field="batch")
        if isinstance(self.ways, bool) or not isinstance(self.ways, int) or self.ways < 1:
            raise PlanError(f"must be a whole number of at least 1, got {self.ways!r}", field="ways")
        if self.mode not in SPLIT_MODES:
            raise PlanError(f"unknown split {self.mode!r}{nearest(self.mode, SPLIT_MODES[1:])}", field="mode")
        if not 0 < self.share <= 1:
            raise PlanError(f"must be above 0 and at most 1, got {self.share}", field="share")
        if self.tokens <= 0 or (self.keys is not None and self.keys <= 0):
            raise PlanError(f"must be above 0, got {self.tokens} and {self.keys}", field="tokens")
        if self.experts < 1:
            raise PlanError(f"must be at least 1, got {self.experts}", field="experts")

    @property
    def is_whole(self) -> bool:
        """Whether a forward or backward operator runs on all features, tokens and experts."""
        return (self.ways == 1 or not self.mode) and self.tokens == 1 and self.keys in (None, 1) and self.experts == 1


@dataclass(frozen=True, slots=True)
class Resized:
    """The tensors of an operator under a split.

    ``forward``: the resized forward operator whose gradient it computes. ``uneven``: a dimension did not divide and was
    rounded up, so the time is the time of the GPU with the largest part. ``share``: see :class:`Split`.
    """

    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    forward: Resized | None = None
    uneven: bool = False
    share: Fraction = Fraction(1)


def resized(operator: Operator, workload: Workload, split: Split, forward: Operator | None = None) -> Resized:
    """Return the tensors of ``operator`` under ``split``.

    ``forward``: the operator of ``forward_id`` if the caller has it; else it is looked up. Dimensions in
    ``Tensor.batch_dims`` scale by split.batch / workload.batch and weight dimensions by the tensor-parallel split, both
    exactly or rounded up. Raises PlanError if the split is impossible, InputError if a tensor id is unknown.
    """
    if forward is None and operator.forward_id is not None:
        forward = next((op for op in workload.operators if op.id == operator.forward_id), None)
    before = None if forward is None else _resized(forward, workload, split, None)
    return _resized(operator, workload, split, before)


def _resized(operator: Operator, workload: Workload, split: Split, before: Resized | None) -> Resized:
    tensors = workload.tensors
    inputs, outputs = _tensors(operator, operator.inputs, tensors), _tensors(operator, operator.outputs, tensors)
    if operator.phase == OPTIMIZER:
        return Resized(operator, inputs, outputs, share=split.share)
    ways = split.ways if split.mode else 1
    if split.batch == workload.batch and split.is_whole:
        return Resized(operator, inputs, outputs, before)
    all_tensors = (*inputs, *outputs)
    dims: Sequence[int | None] = (None,) * len(all_tensors)
    if ways > 1:
        sources: tuple[Tensor, ...] = ()
        if before is not None:
            sources = _tensors(before.operator, (*before.operator.inputs, *before.operator.outputs), tensors)
        dims = split_dims(operator, all_tensors, split.mode, None if before is None else before.operator, sources)
    results, uneven = [], before is not None and before.uneven
    parts = _parts(operator, all_tensors, workload, split)
    for tensor, dim, part in zip(all_tensors, dims, parts, strict=True):
        feature = _feature_part(operator, tensor, dim, ways, split.groups)
        shape, rounded = _shape(_padded(tensor, split.vocabulary), split.batch, workload.batch, feature, part)
        uneven = uneven or rounded
        results.append(_with_shape(tensor, shape))
    return Resized(operator, tuple(results[: len(inputs)]), tuple(results[len(inputs) :]), before, uneven)


def _tensors(operator: Operator, ids: Iterable[int], tensors: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    """Look up ids; drop tensors without elements, which represent missing ones."""
    try:
        matches = [tensors[i] for i in ids]
    except KeyError as error:
        raise InputError(f"operator {operator.id} ({operator.name}) uses an unknown tensor, {error.args[0]}") from None
    return tuple([t for t in matches if t.size_bytes])


#: A dimension, and the fraction of it that remains.
_Part = tuple[int, Fraction]


def _parts(operator: Operator, tensors: Sequence[Tensor], workload: Workload, split: Split) -> Sequence[_Part | None]:
    """Return for each tensor the dimension with fewer (or more) tokens, or fewer experts, and its new fraction.

    Raises PlanError if tokens are divided and the workload has no number of tokens per sample.
    """
    if split.tokens == 1 and split.keys in (None, 1) and split.experts == 1:
        return (None,) * len(tensors)
    length = sequence_length(workload)
    if length is None:
        raise PlanError(f"the workload {workload.name!r} has no number of tokens per sample", field="tokens")
    kind = kind_of(operator)
    with_keys = family_of(kind) == "attention" and not is_backward(kind) and split.keys is not None
    parts: list[_Part | None] = []
    for i, tensor in enumerate(tensors):
        dim = sequence_dim(tensor, length)
        if dim is not None:
            parts.append((dim, split.keys if with_keys and i in (1, 2) and split.keys else split.tokens))
        elif split.experts > 1 and operator.attributes.get("expert") is True and len(tensor.shape) == 3:
            parts.append((0, Fraction(1, split.experts)))
        else:
            parts.append(None)
    return parts


def _feature_part(
    operator: Operator, tensor: Tensor, dim: int | None, ways: int, groups: Groups | None
) -> _Part | None:
    """Return the dimension of features or heads, and a rank's part of it. Raises PlanError if it is too small."""
    if dim is None:
        return None
    part = Fraction(1, ways)
    if groups is not None and dim < len(tensor.shape):
        part = groups.part(tensor, dim, ways)
    if dim >= len(tensor.shape) or tensor.shape[dim] * part < 1:
        dimension = f"dimension {dim} of a tensor {tensor.shape}"
        raise PlanError(f"operator {operator.id} ({operator.name}): {dimension} cannot be split {ways} ways")
    return dim, part


def _padded(tensor: Tensor, vocabulary: tuple[int, int] | None) -> Tensor:
    """Return the tensor with its vocabulary dimension padded."""
    if vocabulary is None:
        return tensor
    dim = vocabulary_dim(tensor, vocabulary[0])
    if dim is None:
        return tensor
    return _with_shape(tensor, (*tensor.shape[:dim], vocabulary[1], *tensor.shape[dim + 1 :]))


def _shape(tensor: Tensor, batch: int, recorded: int, *parts: _Part | None) -> tuple[tuple[int, ...], bool]:
    """Return the shape at ``batch`` with a part of some dimensions, and whether a size had to be rounded up."""
    if not any(parts) and (batch == recorded or not tensor.batch_dims):
        return tensor.shape, False
    shape, rounded = list(tensor.shape), False
    for i, size in enumerate(tensor.shape):
        above = size * batch if i in tensor.batch_dims else size
        below = recorded if i in tensor.batch_dims else 1
        for part in parts:
            if part is not None and i == part[0]:
                above, below = above * part[1].numerator, below * part[1].denominator
        shape[i] = -(-above // below)
        rounded = rounded or above % below != 0
    return tuple(shape), rounded


def _with_shape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``tensor`` with another shape, and with its bytes to match."""
    if shape == tensor.shape:
        return tensor
    return Tensor(
        id=tensor.id, shape=shape, dtype=tensor.dtype,
        size_bytes=tensor.size_bytes // math.prod(tensor.shape) * math.prod(shape), storage=tensor.storage,
        role=tensor.role, batch_dims=tensor.batch_dims,
    )  # fmt: skip
