"""Times of operators from the tables of float32 products and of convolutions (:mod:`trine.compute.tables.fp32`)."""

from __future__ import annotations

from math import prod

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Work, conv_tensors, elements, factors, is_gradient, wants
from trine.compute.kinds import family_of, kind_of
from trine.compute.resize import Resized
from trine.compute.tables.convolutions import (
    FORWARD,
    INPUT,
    WEIGHT,
    Convolution,
    convolution,
    moving,
    on_rows,
    product,
    table_of,
)
from trine.compute.tables.files import TableTime, summed
from trine.errors import InputError
from trine.graph.workload import Tensor

_ON_ROWS = ("layer_norm", "softmax")


def operator_time(gpu: GpuSpec, sizes: Resized, amount: Work, precision: str) -> TableTime | None:
    """Return the time of an operator from the tables of ``gpu``, or None if they lack its kind.

    amount: its work. precision: of its arithmetic, named as in data sheets. Products have tables in float32 only,
    convolutions also in TF32, float16 and bfloat16. Memory-bound operators take their bytes' time in any precision.
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
    """Return the convolution of an operator or its forward operator, or None if it is not two-dimensional.

    Stride and padding are guessed from the sizes of input, filter and output.
    """
    tensors = conv_tensors(sizes)
    source = (sizes.forward or sizes).operator
    if tensors is None or source.attributes.get("transposed") or any(len(t.shape) != 4 for t in tensors):
        return None
    x, weight, y = (t.shape for t in tensors)
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
    """Return stride and padding that give ``across`` outputs from ``taps`` filter taps over ``size`` inputs."""
    stride = max(1, round(size / across))
    padding = max(0, -(-((across - 1) * stride + taps - size) // 2))
    return stride, padding


def _convolution(gpu: GpuSpec, sizes: Resized, precision: str) -> TableTime | None:
    layer, tensors = convolution_of(sizes), conv_tensors(sizes)
    if layer is None or tensors is None or precision not in (*gpu.flop_per_s, "tfloat32"):
        return None
    if not is_gradient(sizes):
        return convolution(gpu, layer, precision, FORWARD)
    x, weight, _ = tensors
    directions = [direction for tensor, direction in ((x, INPUT), (weight, WEIGHT)) if wants(sizes, tensor)]
    return summed([convolution(gpu, layer, precision, direction) for direction in directions])


def _products(gpu: GpuSpec, sizes: Resized) -> TableTime | None:
    source = sizes.forward or sizes
    operands = factors(source)
    if operands is None or not source.outputs or (is_gradient(sizes) and sizes.forward is None):
        return None
    batch, m, n, k = _product_of(operands[0], operands[1], source.outputs[0])
    if min(batch, m, n, k) < 1:
        return None
    if not is_gradient(sizes):
        return product(gpu, m, n, k, batch)
    shapes = [shape for tensor, shape in zip(operands, ((m, k, n), (k, n, m)), strict=True) if wants(sizes, tensor)]
    return summed([product(gpu, *shape, batch) for shape in shapes])


def _product_of(x: Tensor, weight: Tensor, y: Tensor) -> tuple[int, int, int, int]:
    """Return batch, m, n, k. A two-dimensional weight counts as one product of all rows."""
    n, k = (y.shape[-1] if y.shape else 1), x.shape[-1]
    if len(weight.shape) <= 2:
        return 1, elements(y) // max(1, n), n, k
    batch = prod(y.shape[:-2])
    return batch, elements(y) // max(1, n * batch), n, k
