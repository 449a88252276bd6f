"""FLOPs and bytes of an operator, forward and backward, from its shapes.

Bytes are the minimum memory traffic: each distinct input is read once and each output written once; an in-place
operator reads and writes its tensor. FLOPs of memory-bound operators are counted per element (table below): they never
set its time, and torch.utils.flop_counter counts them as zero. A multiply-add is two FLOPs; additions of biases are not
counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from trine.common.precision import ITEM_BYTES
from trine.compute.documents import pairs_within
from trine.compute.kinds import family_of, is_backward, kind_of
from trine.compute.resize import Resized, Split, resized
from trine.graph.workload import OPTIMIZER, Operator, Tensor, Workload

Cost = tuple[int, int]
#: Bytes per element of dtypes below a byte: packed FP4, and NF4 with the constants of its blocks (4.127 bits).
SMALL_ITEMS = {dtype: item for dtype, item in ITEM_BYTES.items() if isinstance(item, Fraction)}


def elements(tensor: Tensor) -> int:
    """Return the number of elements of a tensor."""
    return prod(tensor.shape)


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor, from its elements if they have less than a byte each."""
    item = SMALL_ITEMS.get(tensor.dtype)
    return tensor.size_bytes if item is None else math.ceil(elements(tensor) * item)


def moved(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the distinct tensors among ``tensors``."""
    return sum({t.id: bytes_of(t) for t in tensors}.values())


def is_gradient(sizes: Resized) -> bool:
    """Return whether the operator computes the gradient of its family."""
    return is_backward(kind_of(sizes.operator))


def conv_tensors(sizes: Resized) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return x, weight and y of a convolution or its backward, or None if its tensors do not show them."""
    source = sizes.forward or sizes
    if is_gradient(sizes) and sizes.forward is None:
        return (sizes.inputs[1], sizes.inputs[2], sizes.inputs[0]) if len(sizes.inputs) >= 3 else None
    if len(source.inputs) < 2 or not source.outputs:
        return None
    return source.inputs[0], source.inputs[1], source.outputs[0]


def conv(sizes: Resized) -> Cost:
    """Return the cost: x (N, C, *s), weight (out, C/groups, *k), y (N, out, *t): 2 N prod(t) prod(weight.shape) FLOPs.

    Transposed: 2 N prod(s) prod(weight.shape), weight (C, out/groups, *k). Backward: the same once for the weight
    gradient and once for the input gradient, if they are needed.
    """
    tensors = conv_tensors(sizes)
    if tensors is None:
        return memory(sizes)
    x, weight, y = tensors
    source = sizes.forward or sizes
    grid = x if source.operator.attributes.get("transposed") else y
    # The channels of a convolution come right before its spatial dimensions, the batch (if any) before them.
    channel = len(grid.shape) - len(weight.shape) + 1
    positions = prod(grid.shape[:channel]) * prod(grid.shape[channel + 1 :])
    flops = 2 * positions * elements(weight)
    if not is_gradient(sizes):
        return flops, moved(source.inputs) + y.size_bytes
    return _gradients(sizes, flops, y, x, weight)


def _gradients(sizes: Resized, flops: int, y: Tensor, x: Tensor, weight: Tensor) -> Cost:
    """Return the cost of the needed gradients: of the weight (reads dy, x) and of the input (reads dy, weight)."""
    with_input, with_weight = wants(sizes, x), wants(sizes, weight)
    num_bytes = 0
    if with_weight:
        num_bytes += bytes_of(y) + bytes_of(x) + bytes_of(weight)
    if with_input:
        num_bytes += bytes_of(y) + bytes_of(weight) + bytes_of(x)
    return flops * (with_input + with_weight), num_bytes


def wants(sizes: Resized, tensor: Tensor) -> bool:
    """Return whether the gradient of ``tensor`` is computed.

    An operator that computes one of two gradients states it in ``gradient_of``. Otherwise an output of the same shape
    shows it. Without such an output a convolution with outputs has no gradient, because it lists them all. Other
    operators may not, so every tensor but the step's input data is assumed to have a gradient.
    """
    operand = sizes.operator.attributes.get("gradient_of")
    if operand in ("input", "weight"):
        return (operand == "weight") == (tensor.role == "weight")
    if any(t.shape == tensor.shape and t.size_bytes for t in sizes.outputs):
        return True
    is_conv = kind_of(sizes.operator).startswith("conv")
    return tensor.role != "input" and not (is_conv and sizes.outputs)


def linear(sizes: Resized) -> Cost:
    """Return the cost: y (..., n) = x (..., m) times m x n elements: 2 elements(y) m FLOPs; backward up to 2 x that."""
    source = sizes.forward or sizes
    if (is_gradient(sizes) and sizes.forward is None) or not source.outputs:
        return memory(sizes)
    y = source.outputs[0]
    operands = factors(source)
    if operands is None:
        return memory(sizes)
    x, weight = operands
    flops = 2 * elements(y) * x.shape[-1]
    if not is_gradient(sizes):
        return flops, moved(source.inputs) + y.size_bytes
    return _gradients(sizes, flops, y, x, weight)


def factors(source: Resized) -> tuple[Tensor, Tensor] | None:
    """Return the two factors of a product among its inputs: those after the addend of addmm, baddbmm and similar."""
    name = source.operator.name.rsplit("::", 1)[-1]
    inputs = source.inputs[1:] if name.startswith(("add", "baddbmm")) and len(source.inputs) >= 3 else source.inputs
    return (inputs[0], inputs[1]) if len(inputs) >= 2 and inputs[0].shape else None


def window_share(attributes: Mapping[str, object], length: int) -> Fraction:
    """Return the pairs of query and key in a window (attribute ``window``), relative to all that a mask leaves."""
    window = attributes.get("window")
    if not isinstance(window, int) or not 0 < window < length:
        return Fraction(1)
    seen = window * (window + 1) // 2 + (length - window) * window
    return Fraction(seen, length * (length + 1) // 2)


def attention(sizes: Resized) -> Cost:
    """Return the cost: q (*b, S, d), k (*b', T, d), v (*b', T, e): scores and product with v, 2 b S T (d + e) FLOPs.

    Packed documents have only the scores within documents (:mod:`trine.compute.documents`).

    Backward: scores again, and gradients of scores, v, q and k: 2 b S T (3 d + 2 e). Bytes assume that the scores stay
    on chip (FlashAttention): q, k, v, the addend of the scores (a fourth tensor), output, and their gradients backward.
    """
    source = sizes.forward or sizes
    addends: Sequence[Tensor] = ()
    if is_gradient(sizes) and sizes.forward is None:
        queries = [t for t in sizes.inputs if len(t.shape) >= 3][1:4]
    else:
        tensors = [t for t in source.inputs if len(t.shape) >= 3]
        queries, addends = tensors[:3], tensors[3:]
    if len(queries) < 3:
        return memory(sizes)
    q, k, v = queries
    attributes = source.operator.attributes
    seen = pairs_within(attributes) * window_share(attributes, k.shape[-2])
    scores = math.ceil(prod(q.shape[:-1]) * k.shape[-2] * seen)
    d, e = q.shape[-1], v.shape[-1]
    out_bytes = q.size_bytes // d * e
    num_bytes = q.size_bytes + k.size_bytes + v.size_bytes + out_bytes + moved(addends)
    if not is_gradient(sizes):
        return 2 * scores * (d + e), num_bytes
    return 2 * scores * (3 * d + 2 * e), 2 * num_bytes


def memory(sizes: Resized) -> Cost:
    """Return the cost of an operator without recognisable products: no FLOPs, all inputs and outputs moved."""
    return 0, moved(sizes.inputs) + moved(sizes.outputs)


CONTRACTIONS: dict[str, Callable[[Resized], Cost]] = {
    "conv": conv,
    "linear": linear,
    "matmul": linear,
    "attention": attention,
}


#: FLOPs per element of the largest tensor, forward and backward, counted on the textbook formula. Softmax: maximum,
#: difference, exponential, sum, quotient. Norms: mean (1), variance (2), normalise (2), scale and shift (2).
_FLOPS_PER_ELEMENT = {
    "elementwise": (1, 1), "reduction": (1, 0), "adaptive_pool": (1, 1), "avg_pool": (1, 1), "max_pool": (1, 1),
    "softmax": (5, 4), "loss": (5, 4), "batch_norm": (7, 11), "layer_norm": (7, 11), "group_norm": (7, 11),
    "optimizer": (1, 1), "embedding": (0, 1),
}  # fmt: skip
#: FLOPs per element of optimizer operators, and the number of tensor lists of those whose name ends in "_".
_OPTIMIZER_FLOPS = {"lerp": 3, "addcmul": 3, "addcdiv": 3, "adam": 12, "adamw": 12, "sgd": 4}
_OPTIMIZER_LISTS = {"lerp": 2, "addcmul": 3, "addcdiv": 3, "copy": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an operator: FLOPs (a multiply-add is two) and bytes to and from memory."""

    flops: int
    bytes: int


def work(operator: Operator, workload: Workload, split: Split | None = None) -> Work:
    """Return the FLOPs and bytes of ``operator`` under ``split`` (default: as recorded).

    Never fails for an unknown operator: it counts as moving its inputs and outputs. Raises what ``resized`` raises.
    """
    return work_of(resized(operator, workload, split or Split(workload.batch)))


def work_of(sizes: Resized) -> Work:
    """Return the FLOPs and bytes of an operator with resolved tensors."""
    family = family_of(kind_of(sizes.operator))
    contraction = CONTRACTIONS.get(family)
    if contraction is not None:
        return Work(*contraction(sizes))
    passes = passes_of(sizes.operator)
    if not passes:
        return Work(0, 0)
    if family == "view" and not sizes.operator.kernel_times_ps:  # with kernels, it was a view that had to copy
        return Work(0, 0)
    if family == "optimizer":
        flops, num_bytes = _optimizer(sizes)
    elif family == "embedding":
        flops, num_bytes = _embedding(sizes)
    else:
        flops, num_bytes = _moving(sizes, family)
    return Work(math.ceil(flops * sizes.share), math.ceil(num_bytes * passes * sizes.share))


def passes_of(operator: Operator) -> Fraction:
    """Return the factor on an operator's bytes: its attribute ``passes``, for software that does not fuse it.

    0: it is part of another kernel.
    """
    passes = operator.attributes.get("passes", 1)
    if isinstance(passes, bool) or not isinstance(passes, int | float) or not 0 <= passes < math.inf:
        return Fraction(1)
    return Fraction(passes)


def _moving(sizes: Resized, family: str) -> Cost:
    if sizes.forward is not None and sizes.operator.kernel_times_ps and not (sizes.inputs or sizes.outputs):
        sizes = replace(sizes, inputs=sizes.forward.inputs, outputs=sizes.forward.outputs)  # recorded without tensors
    largest = max((elements(t) for t in (*sizes.inputs, *sizes.outputs)), default=0)
    flops = largest * _FLOPS_PER_ELEMENT.get(family, (0, 0))[is_gradient(sizes)]
    outputs = sizes.outputs
    if not outputs and _base_name(sizes.operator).endswith("_"):
        outputs = sizes.inputs[:1]
    if family == "other" and any(tensor.batch_dims for tensor in (*sizes.inputs, *outputs)):
        return flops, _scaling(sizes.inputs) + _scaling(outputs)
    return flops, moved(sizes.inputs) + moved(outputs)


def _scaling(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the tensors with a batch: an unknown operator's work grows with its data, not its weights."""
    return moved([tensor for tensor in tensors if tensor.batch_dims])


def _embedding(sizes: Resized) -> Cost:
    """Return the cost: forward reads the looked-up rows, backward adds rows into a gradient of the whole table."""
    if is_gradient(sizes) or not sizes.outputs or not sizes.inputs:
        return _moving(sizes, "embedding")
    return 0, moved(sizes.inputs[1:]) + 2 * sizes.outputs[0].size_bytes


def _optimizer(sizes: Resized) -> Cost:
    """Return the cost of foreach and fused operators on lists of tensors; in-place operators list no outputs."""
    name = _base_name(sizes.operator)
    stem = name.strip("_").removeprefix("foreach_").removeprefix("fused_").split(".")[0]
    outputs: tuple[Tensor, ...] = sizes.outputs
    if not outputs and "fused" in name:
        outputs = tuple(t for t in sizes.inputs if t.role in ("weight", "optimizer_state"))
    elif not outputs:
        outputs = sizes.inputs[: len(sizes.inputs) // num_lists(sizes.inputs, stem)]
    num_elements = sum({t.id: elements(t) for t in outputs}.values())
    return num_elements * _OPTIMIZER_FLOPS.get(stem, 1), moved(sizes.inputs) + moved(outputs)


def num_lists(tensors: tuple[Tensor, ...], stem: str) -> int:
    """Return the number of equally long tensor lists of a foreach operator; repeating shapes tell 2 lists from 1."""
    known = _OPTIMIZER_LISTS.get(stem)
    if known is not None:
        return known
    half = len(tensors) // 2
    repeats = len(tensors) % 2 == 0 and all(
        a.shape == b.shape for a, b in zip(tensors[:half], tensors[half:], strict=True)
    )
    # A single list with similar halves has the same roles in both. Two lists pair different roles, as in-place
    # operators on weights with gradients do.
    return 2 if repeats and half and tensors[0].role != tensors[half].role else 1


def _base_name(operator: Operator) -> str:
    return operator.name.rsplit("::", 1)[-1]


def uneven_notes(names: Collection[str]) -> tuple[str, ...]:
    """Return a sentence that names operators or layers with uneven dimensions, or nothing."""
    if not names:
        return ()
    examples = ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
    return (f"dimensions that do not divide evenly were rounded up (largest part): {examples}",)


class Sizing:
    """Sizes and work of one workload's operators under a split.

    ``notes`` names operators whose dimensions did not divide evenly in any requested split.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._by_id = {op.id: op for op in workload.operators}
        self._as_recorded = Split(workload.batch)
        self._known: dict[tuple[int, Split], Work] = {}
        self._uneven: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return uneven_notes(self._uneven)

    def work(self, operator: Operator, split: Split) -> Work:
        """Return the FLOPs and bytes of ``operator`` under ``split``."""
        key = operator.id, split
        work = self._known.get(key)
        if work is None:
            work = self._known[key] = work_of(self.sizes(operator, split))
        return work

    def sizes(self, operator: Operator, split: Split) -> Resized:
        """Return the tensors of ``operator`` under ``split``."""
        forward = None if operator.forward_id is None else self._by_id.get(operator.forward_id)
        sizes = resized(operator, self._workload, split, forward)
        if sizes.uneven:
            self._uneven[operator.layer or operator.name] = None
        return sizes

    def recorded(self, operator: Operator) -> Work:
        """Return the FLOPs and bytes of ``operator`` in the trace."""
        return self.work(operator, self._as_recorded)

    def is_as_recorded(self, operator: Operator, split: Split) -> bool:
        """Return whether ``operator`` does the same under ``split`` as in the trace."""
        if operator.phase == OPTIMIZER:
            return split.share == 1
        return split.is_whole and (
            split.batch == self._workload.batch or self.work(operator, split) == self.recorded(operator)
        )
