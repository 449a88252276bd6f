"""FLOPs and bytes of convolutions, matrix products and attention.

Each function takes an operator at its sizes and returns (FLOPs, bytes). A multiply-add is two FLOPs; bias additions are
not counted, nor is causality, as in torch.utils.flop_counter (torch 2.13). A backward operator is costed from the
tensors of its forward operator, because traces list its own incompletely (TrioSim's AddmmBackward0 rows hold the weight
alone); only for convolutions without a forward operator are its own inputs (grad_output, x, weight) used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from trine.compute.kinds import is_backward, kind_of
from trine.compute.resize import Resized
from trine.graph.workload import Tensor

Cost = tuple[int, int]


def elements(tensor: Tensor) -> int:
    """Number of elements of a tensor."""
    return prod(tensor.shape)


def moved(tensors: Sequence[Tensor]) -> int:
    """Bytes of the distinct tensors among ``tensors``."""
    return sum({t.id: t.size_bytes for t in tensors}.values())


def is_gradient(sizes: Resized) -> bool:
    """Whether the operator computes the gradient of its family."""
    return is_backward(kind_of(sizes.operator))


def _conv_tensors(sizes: Resized) -> tuple[Tensor, Tensor, Tensor] | None:
    """x, weight and y of a convolution or its backward, as far as its tensors tell."""
    source = sizes.forward or sizes
    if is_gradient(sizes) and sizes.forward is None:
        return (sizes.inputs[1], sizes.inputs[2], sizes.inputs[0]) if len(sizes.inputs) >= 3 else None
    if len(source.inputs) < 2 or not source.outputs:
        return None
    return source.inputs[0], source.inputs[1], source.outputs[0]


def conv(sizes: Resized) -> Cost:
    """x (N, C, *s), weight (out, C/groups, *k), y (N, out, *t): 2 N prod(t) prod(weight.shape) FLOPs forward.

    Transposed: 2 N prod(s) prod(weight.shape), weight (C, out/groups, *k). Backward: the same once for the gradient of
    the weight and once for that of the input, where they are wanted.
    """
    found = _conv_tensors(sizes)
    if found is None:
        return memory(sizes)
    x, weight, y = found
    source = sizes.forward or sizes
    moving = x if source.operator.attributes.get("transposed") else y
    # Channels of a convolution lie right before its spatial dimensions, the batch (if any) before them.
    channel = len(moving.shape) - len(weight.shape) + 1
    positions = prod(moving.shape[:channel]) * prod(moving.shape[channel + 1 :])
    flops = 2 * positions * elements(weight)
    if not is_gradient(sizes):
        return flops, moved(source.inputs) + y.size_bytes
    return _gradients(sizes, flops, y, x, weight)


def _gradients(sizes: Resized, flops: int, y: Tensor, x: Tensor, weight: Tensor) -> Cost:
    """Two products: gradient of the weight (reads dy, x) and of the input (reads dy, weight), as far as wanted."""
    with_input, with_weight = _wants(sizes, x), _wants(sizes, weight)
    num_bytes = 0
    if with_weight:
        num_bytes += y.size_bytes + x.size_bytes + weight.size_bytes
    if with_input:
        num_bytes += y.size_bytes + weight.size_bytes + x.size_bytes
    return flops * (with_input + with_weight), num_bytes


def _wants(sizes: Resized, tensor: Tensor) -> bool:
    """Whether the gradient of ``tensor`` is computed.

    The attribute ``gradient_of`` says it of an operator that computes one of the two. Else an output of its shape does.
    Where there is none, a convolution lists its outputs completely; others do not, and then only data that the step is
    given has no gradient.
    """
    one = sizes.operator.attributes.get("gradient_of")
    if one in ("input", "weight"):
        return (one == "weight") == (tensor.role == "weight")
    if any(t.shape == tensor.shape and t.size_bytes for t in sizes.outputs):
        return True
    is_conv = kind_of(sizes.operator).startswith("conv")
    return tensor.role != "input" and not (is_conv and sizes.outputs)


def linear(sizes: Resized) -> Cost:
    """y (..., n) = x (..., m) times a weight of m x n elements: 2 elements(y) m FLOPs; backward up to twice that."""
    source = sizes.forward or sizes
    if (is_gradient(sizes) and sizes.forward is None) or not source.outputs:
        return memory(sizes)
    y = source.outputs[0]
    factors = _factors(source)
    if factors is None:
        return memory(sizes)
    x, weight = factors
    flops = 2 * elements(y) * x.shape[-1]
    if not is_gradient(sizes):
        return flops, moved(source.inputs) + y.size_bytes
    return _gradients(sizes, flops, y, x, weight)


def _factors(source: Resized) -> tuple[Tensor, Tensor] | None:
    """The two factors of a product among its inputs: those after the addend of addmm, baddbmm and their like."""
    name = source.operator.name.rsplit("::", 1)[-1]
    inputs = source.inputs[1:] if name.startswith(("add", "baddbmm")) and len(source.inputs) >= 3 else source.inputs
    return (inputs[0], inputs[1]) if len(inputs) >= 2 and inputs[0].shape else None


def attention(sizes: Resized) -> Cost:
    """q (*b, S, d), k (*b', T, d), v (*b', T, e): scores and their product with v, 2 b S T (d + e) FLOPs.

    Backward: scores again, and gradients of scores, v, q and k: 2 b S T (3 d + 2 e). Bytes are those of an
    implementation that keeps the scores on chip (FlashAttention): q, k, v, output, and their gradients backward.
    """
    source = sizes.forward or sizes
    if is_gradient(sizes) and sizes.forward is None:
        queries = [t for t in sizes.inputs if len(t.shape) >= 3][1:4]
    else:
        queries = [t for t in source.inputs if len(t.shape) >= 3][:3]
    if len(queries) < 3:
        return memory(sizes)
    q, k, v = queries
    scores = prod(q.shape[:-1]) * k.shape[-2]
    d, e = q.shape[-1], v.shape[-1]
    out_bytes = q.size_bytes // d * e
    touched = q.size_bytes + k.size_bytes + v.size_bytes + out_bytes
    if not is_gradient(sizes):
        return 2 * scores * (d + e), touched
    return 2 * scores * (3 * d + 2 * e), 2 * touched


def memory(sizes: Resized) -> Cost:
    """An operator whose products are not known from its tensors: no FLOPs, all inputs and outputs moved."""
    return 0, moved(sizes.inputs) + moved(sizes.outputs)


CONTRACTIONS: dict[str, Callable[[Resized], Cost]] = {
    "conv": conv,
    "linear": linear,
    "matmul": linear,
    "attention": attention,
}
