"""At which sizes an operator runs: another batch, or a part of its features on each of several GPUs.

A :class:`Split` says what changes; :func:`resized` returns the tensors that the operator then reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from trine.compute.kinds import family_of, kind_of
from trine.errors import InputError, PlanError, nearest
from trine.model.workload import OPTIMIZER, Operator, Tensor, Workload

#: '': not split. 'column': output features or channels. 'row': input features or channels. 'embedding': rows of the table.
SPLIT_MODES = ("", "column", "row", "embedding")


@dataclass(frozen=True, slots=True)
class Split:
    """At which sizes an operator runs.

    ``batch``: samples of one replica (or micro-batch). ``ways`` and ``mode``: tensor parallelism of a forward or backward
    operator; with mode ``''`` it is replicated and ``ways`` does not matter. Operators without weights take 'column' or
    'row' alike as their share of the features or heads. ``share``: part of the parameters' bytes that an optimizer
    operator handles; it does not matter to others. Raises PlanError if a value cannot be.
    """

    batch: int
    ways: int = 1
    mode: str = ""
    share: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise PlanError(f"a batch must be a whole number of at least 1, got {self.batch!r}", field="batch")
        if isinstance(self.ways, bool) or not isinstance(self.ways, int) or self.ways < 1:
            raise PlanError(f"must be a whole number of at least 1, got {self.ways!r}", field="ways")
        if self.mode not in SPLIT_MODES:
            raise PlanError(f"unknown split {self.mode!r}{nearest(self.mode, SPLIT_MODES[1:])}", field="mode")
        if not 0 < self.share <= 1:
            raise PlanError(f"must be above 0 and at most 1, got {self.share}", field="share")


@dataclass(frozen=True, slots=True)
class Resized:
    """The tensors of an operator under a split.

    ``forward`` is the same for the operator whose gradient it computes. ``uneven``: a dimension did not divide and was
    rounded up: the time is that of the GPU with the largest part. ``share``: see :class:`Split`.
    """

    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    forward: Resized | None = None
    uneven: bool = False
    share: Fraction = Fraction(1)


def resized(operator: Operator, workload: Workload, split: Split, forward: Operator | None = None) -> Resized:
    """Return the tensors of ``operator`` under ``split``.

    ``forward``: the operator of ``forward_id`` where the caller has it at hand; else it is looked up. Dimensions in
    ``Tensor.batch_dims`` scale by split.batch / workload.batch and weight dimensions by the tensor-parallel split, both
    exactly or rounded up. Raises PlanError if the split is impossible, InputError if a tensor id is unknown.
    """
    if forward is None and operator.forward_id is not None:
        forward = next((op for op in workload.operators if op.id == operator.forward_id), None)
    tensors = workload.tensors
    inputs, outputs = _tensors(operator, operator.inputs, tensors), _tensors(operator, operator.outputs, tensors)
    if operator.phase == OPTIMIZER:
        return Resized(operator, inputs, outputs, share=split.share)
    ways = split.ways if split.mode else 1
    if forward is operator:
        forward = None
    before = resized(forward, workload, split) if forward is not None else None
    if split.batch == workload.batch and ways == 1:
        return Resized(operator, inputs, outputs, forward=before)
    scale = Fraction(split.batch, workload.batch)
    shapes = [_scaled(tensor, scale) for tensor in (*inputs, *outputs)]
    uneven = any(dim % 1 for shape in shapes for dim in shape) or (before is not None and before.uneven)
    if ways > 1:
        shapes = _sharded(operator, inputs, outputs, shapes, ways, split.mode, forward, before, tensors)
        uneven = uneven or any(dim % 1 for shape in shapes for dim in shape)
    done = tuple(_reshaped(t, tuple(-(-d.numerator // d.denominator) for d in s)) for t, s in zip((*inputs, *outputs), shapes, strict=True))
    return Resized(operator, done[: len(inputs)], done[len(inputs) :], before, uneven)
