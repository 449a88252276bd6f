"""The shape of an operator's kernels: matrix products by rows and columns, or a stream of bytes."""

from __future__ import annotations

import math

from trine.common.precision import PRECISIONS
from trine.compute.cost import elements, factors, is_gradient, moved, wants, work_of
from trine.compute.kinds import LOOP_FAMILIES, family_of, kind_of
from trine.compute.resize import Resized, is_expert_product
from trine.compute.roofline import dtype_name
from trine.errors import InputError
from trine.gpu.operators.gemm import GemmShape
from trine.gpu.operators.stream import StreamShape
from trine.graph.workload import Tensor

PRODUCTS = frozenset({"linear", "matmul"})
#: Families whose kernels keep a row on chip until all of it has been read.
_ROWWISE = frozenset({"layer_norm", "group_norm", "softmax"})
_ITEM_BYTES = {precision.name: float(precision.bytes) for precision in PRECISIONS}

Kernels = tuple[GemmShape | StreamShape, ...]


def kernels_of(sizes: Resized, precision: str) -> Kernels:
    """Return the shapes of an operator's kernels; of the gradients of a product, one for each product.

    Raises InputError for an operator without a program, or whose tensors show no shape.
    """
    family = family_of(kind_of(sizes.operator))
    name = sizes.operator.name
    if family in LOOP_FAMILIES:
        raise InputError(f"{name} has no program at the load-store level: {family} kernels are not modelled there")
    if family in PRODUCTS:
        found = _products(sizes, precision)
        if found:
            return found
    return (_stream(sizes, family),)


def _products(sizes: Resized, precision: str) -> Kernels:
    """Return the products of a linear layer or matmul, or of its gradients; empty if its tensors do not show them."""
    source = sizes.forward or sizes
    operands = factors(source) if source.outputs and source.outputs[0].shape else None
    if operands is None or not operands[1].shape or (is_gradient(sizes) and sizes.forward is None):
        return ()
    x, weight = operands
    y = source.outputs[0]
    batch = _batch(sizes, weight)
    inner, outer = x.shape[-1], y.shape[-1]
    rows = math.ceil(elements(y) / outer / batch)
    item = _ITEM_BYTES.get(precision, 4.0)

    def shape(m: int, n: int, k: int, out: Tensor, accumulates: bool = False) -> GemmShape:
        out_bytes = max(1, out.size_bytes // max(1, elements(out)))
        return GemmShape(m=m, n=n, k=k, batch=batch, item_bytes=item, out_bytes=out_bytes, accumulates=accumulates)

    if not is_gradient(sizes):
        return (shape(rows, outer, inner, y),)
    products = []
    if wants(sizes, x):
        products.append(shape(rows, inner, outer, x))
    if wants(sizes, weight):
        gradient = next((tensor for tensor in sizes.outputs if tensor.shape == weight.shape), weight)
        products.append(shape(outer, inner, rows, gradient, dtype_name(gradient) == "float32" and item < 4))
    return tuple(products)


def _batch(sizes: Resized, weight: Tensor) -> int:
    """Return the number of products: one per expert, or per matrix of a batched product."""
    source = (sizes.forward or sizes).operator
    if is_expert_product(source) and len(weight.shape) == 3:
        return weight.shape[0]
    return max(1, math.prod(weight.shape[:-2])) if len(weight.shape) > 2 else 1


def _stream(sizes: Resized, family: str) -> StreamShape:
    """Return the bytes of an operator that moves data: its least traffic, divided as its inputs and outputs are."""
    total = work_of(sizes).bytes
    if not total:
        raise InputError(f"{sizes.operator.name} moves no bytes of its own: it is part of another kernel, or a view")
    read, written = moved(sizes.inputs), moved(sizes.outputs)
    if not written:  # in place: it writes what it reads
        written = read
    read_bytes = total * read // max(1, read + written)
    return StreamShape(read_bytes=read_bytes, written_bytes=total - read_bytes, has_rows=family in _ROWWISE)
