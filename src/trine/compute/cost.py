"""FLOPs and bytes of an operator, forward and backward, from its shapes.

Bytes are what memory must deliver at least: each distinct input read once and each output written once; an operator in
place reads and writes its tensor. FLOPs of operators that move memory are counted per element (table below): they
never set its time, and torch.utils.flop_counter counts them as zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trine.compute.contractions import CONTRACTIONS, Cost, elements, is_gradient, moved
from trine.compute.kinds import family_of, kind_of
from trine.compute.resize import Resized, Split, resized
from trine.graph.workload import Operator, Tensor, Workload

# FLOPs per element of the largest tensor, forward and backward, counted on the textbook formula. Softmax: maximum,
# difference, exponential, sum, quotient. Norms: mean (1), variance (2), normalise (2), scale and shift (2).
_FLOPS_PER_ELEMENT = {
    "elementwise": (1, 1), "reduction": (1, 0), "adaptive_pool": (1, 1), "avg_pool": (1, 1), "max_pool": (1, 1),
    "softmax": (5, 4), "loss": (5, 4), "batch_norm": (7, 11), "layer_norm": (7, 11), "group_norm": (7, 11),
    "optimizer": (1, 1), "embedding": (0, 1),
}  # fmt: skip
# FLOPs per element of optimizer operators with several, and how many lists of tensors those that end in "_" take.
_OPTIMIZER_FLOPS = {"lerp": 3, "addcmul": 3, "addcdiv": 3, "adam": 12, "adamw": 12, "sgd": 4}
_OPTIMIZER_LISTS = {"lerp": 2, "addcmul": 3, "addcdiv": 3, "copy": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator has to do: FLOPs (a multiply-add is two) and bytes to and from memory."""

    flops: int
    bytes: int


def work(operator: Operator, workload: Workload, split: Split | None = None) -> Work:
    """Return the FLOPs and bytes of ``operator`` under ``split`` (default: as recorded).

    Never fails for an unknown operator: it counts as moving its inputs and outputs. Raises what ``resized`` raises.
    """
    return work_of(resized(operator, workload, split or Split(workload.batch)))


def work_of(sizes: Resized) -> Work:
    """Return the FLOPs and bytes of an operator whose tensors are known."""
    family = family_of(kind_of(sizes.operator))
    contraction = CONTRACTIONS.get(family)
    if contraction is not None:
        return Work(*contraction(sizes))
    if family == "view":
        return Work(0, 0)
    if family == "optimizer":
        flops, num_bytes = _optimizer(sizes)
    elif family == "embedding":
        flops, num_bytes = _embedding(sizes)
    else:
        flops, num_bytes = _moving(sizes, family)
    return Work(math.ceil(flops * sizes.share), math.ceil(num_bytes * sizes.share))


def _moving(sizes: Resized, family: str) -> Cost:
    largest = max((elements(t) for t in (*sizes.inputs, *sizes.outputs)), default=0)
    flops = largest * _FLOPS_PER_ELEMENT.get(family, (0, 0))[is_gradient(sizes)]
    written = sizes.outputs
    if not written and _base_name(sizes.operator).endswith("_"):
        written = sizes.inputs[:1]
    if family == "other" and any(tensor.batch_dims for tensor in (*sizes.inputs, *written)):
        return flops, _scaling(sizes.inputs) + _scaling(written)
    return flops, moved(sizes.inputs) + moved(written)


def _scaling(tensors: Sequence[Tensor]) -> int:
    """Bytes of the tensors that have the batch: an unknown operator's work grows with its data, not its weights."""
    return moved([tensor for tensor in tensors if tensor.batch_dims])


def _embedding(sizes: Resized) -> Cost:
    """Forward reads the rows that it looks up, not the table; backward adds rows into a gradient of the whole table."""
    if is_gradient(sizes) or not sizes.outputs or not sizes.inputs:
        return _moving(sizes, "embedding")
    return 0, moved(sizes.inputs[1:]) + 2 * sizes.outputs[0].size_bytes


def _optimizer(sizes: Resized) -> Cost:
    """Foreach and fused operators on lists of tensors; those in place list no outputs."""
    name = _base_name(sizes.operator)
    stem = name.strip("_").removeprefix("foreach_").removeprefix("fused_").split(".")[0]
    written: tuple[Tensor, ...] = sizes.outputs
    if not written and "fused" in name:
        written = tuple(t for t in sizes.inputs if t.role in ("weight", "optimizer_state"))
    elif not written:
        written = sizes.inputs[: len(sizes.inputs) // _num_lists(sizes.inputs, stem)]
    num_elements = sum({t.id: elements(t) for t in written}.values())
    return num_elements * _OPTIMIZER_FLOPS.get(stem, 1), moved(sizes.inputs) + moved(written)


def _num_lists(tensors: tuple[Tensor, ...], stem: str) -> int:
    """How many equally long lists of tensors a foreach operator was given: 1 or 2 is told apart by repeating shapes."""
    known = _OPTIMIZER_LISTS.get(stem)
    if known is not None:
        return known
    half = len(tensors) // 2
    repeats = len(tensors) % 2 == 0 and all(
        a.shape == b.shape for a, b in zip(tensors[:half], tensors[half:], strict=True)
    )
    # One list whose halves look alike has its own tensors in both; two lists pair different ones, as operators in
    # place on weights with gradients do. Roles tell.
    return 2 if repeats and half and tensors[0].role != tensors[half].role else 1


def _base_name(operator: Operator) -> str:
    return operator.name.rsplit("::", 1)[-1]
