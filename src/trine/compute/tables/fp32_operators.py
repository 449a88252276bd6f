"""An operator of a workload as a question to the float32 tables: which product, convolution or bytes it is."""

from __future__ import annotations

from math import prod

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Work, conv_tensors, elements, factors, is_gradient, wants
from trine.compute.kinds import family_of, kind_of
from trine.compute.resize import Resized
from trine.compute.tables.convolutions import FORWARD, INPUT, WEIGHT, Convolution
from trine.compute.tables.fp32 import KernelTime, convolution, less_sure, moving, on_rows, product, table_of
from trine.errors import InputError
from trine.graph.workload import Tensor

_ON_ROWS = ("layer_norm", "softmax")


def operator_time(gpu: GpuSpec, sizes: Resized, amount: Work, precision: str) -> KernelTime | None:
    """Time of an operator on ``gpu`` by its tables; None where they do not have its kind.

    amount: its work. precision: of its arithmetic, as the data sheets name it; products have tables in float32 only,
    convolutions in TF32, float16 and bfloat16 too. What only moves memory takes the time of its bytes in any precision.
    """
    family = family_of(kind_of(sizes.operator))
    if family == "conv":
        return _convolution(gpu, sizes, precision) if table_of(gpu) is not None else None
    if family in ("linear", "matmul"):
        return _products(gpu, sizes) if precision == "float32" else None
    if family in ("attention", "view"):
        return None
    if family in _ON_ROWS and not is_gradient(sizes) and sizes.outputs and precision == "float32":
        y = sizes.outputs[0]
        return on_rows(gpu, family, elements(y) // max(1, y.shape[-1] if y.shape else 1), y.shape[-1] if y.shape else 1)
    return moving(gpu, amount.bytes)


def convolution_of(sizes: Resized) -> Convolution | None:
    """The convolution that an operator is, or is the gradient of; None for others than two-dimensional ones.

    Stride and padding are its attributes, else the smallest that make the output's size.
    """
    found = conv_tensors(sizes)
    source = (sizes.forward or sizes).operator
    if found is None or source.attributes.get("transposed") or any(len(t.shape) != 4 for t in found):
        return None
    x, weight, y = (t.shape for t in found)
    if min(*x, *weight, *y) < 1 or x[1] % weight[1]:
        return None
    guessed = [_guess(*each) for each in zip(x[2:], weight[2:], y[2:], strict=True)]
    try:
        return Convolution(
            batch=x[0], channels=x[1], out=weight[0], size=(x[2], x[3]), filter=(weight[2], weight[3]),
            stride=(guessed[0][0], guessed[1][0]), padding=(guessed[0][1], guessed[1][1]), groups=x[1] // weight[1],
        )  # fmt: skip
    except InputError:
        return None


def _guess(size: int, taps: int, across: int) -> tuple[int, int]:
    """Stride and padding with which ``taps`` over ``size`` make ``across``."""
    stride = max(1, round(size / across))
    padding = max(0, -(-((across - 1) * stride + taps - size) // 2))
    return stride, padding


def _convolution(gpu: GpuSpec, sizes: Resized, precision: str) -> KernelTime | None:
    layer, found = convolution_of(sizes), conv_tensors(sizes)
    if layer is None or found is None or precision not in (*gpu.flop_per_s, "tfloat32"):
        return None
    if not is_gradient(sizes):
        return convolution(gpu, layer, precision, FORWARD)
    x, weight, _ = found
    asked = [direction for tensor, direction in ((x, INPUT), (weight, WEIGHT)) if wants(sizes, tensor)]
    return _sum([convolution(gpu, layer, precision, direction) for direction in asked])


def _products(gpu: GpuSpec, sizes: Resized) -> KernelTime | None:
    source = sizes.forward or sizes
    both = factors(source)
    if both is None or not source.outputs or (is_gradient(sizes) and sizes.forward is None):
        return None
    batch, m, n, k = _product_of(both[0], both[1], source.outputs[0])
    if min(batch, m, n, k) < 1:
        return None
    if not is_gradient(sizes):
        return product(gpu, m, n, k, batch)
    asked = [shape for tensor, shape in zip(both, ((m, k, n), (k, n, m)), strict=True) if wants(sizes, tensor)]
    return _sum([product(gpu, *shape, batch) for shape in asked])


def _product_of(x: Tensor, weight: Tensor, y: Tensor) -> tuple[int, int, int, int]:
    """Batch, m, n, k: a weight of two dimensions serves all rows at once."""
    n, k = (y.shape[-1] if y.shape else 1), x.shape[-1]
    if len(weight.shape) <= 2:
        return 1, elements(y) // max(1, n), n, k
    batch = prod(y.shape[:-2])
    return batch, elements(y) // max(1, n * batch), n, k


def _sum(times: list[KernelTime | None]) -> KernelTime | None:
    known = [each for each in times if each is not None]
    if not known or len(known) < len(times):
        return None
    word = known[0].evidence
    for each in known[1:]:
        word = less_sure(word, each.evidence)
    return KernelTime(sum(each.us for each in known), word)
