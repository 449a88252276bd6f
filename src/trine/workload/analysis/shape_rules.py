"""Rules for carrying the batch from the inputs to the outputs of each kind of operator.

A rule takes an :class:`OperatorCall` and returns one layout per output, None if the rule cannot tell. Kinds without a
rule use :func:`default`, which looks at shapes alone. Signatures follow PyTorch's native_functions.yaml, tensors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from trine.workload.analysis import aten_schema as aten
from trine.workload.analysis import shape_rules

# Place of the batch inside a tensor: each dimension is a product of factors, and one factor may be the batch.
#
# A layout has one tuple of factors ``(size, is_batch)`` for each dimension, outermost first. Reshaping cuts the same
# sequence of factors at other places, so (B, S, E) -> (B*S, E) -> (B, S, H, E/H) keeps track of B even if another
# dimension happens to have the size of the batch.

Factor = tuple[int, bool]
Dimension = tuple[Factor, ...]
Layout = tuple[Dimension, ...]
Shape = tuple[int, ...]


def plain(shape: Iterable[int]) -> Layout:
    """Return a layout without batch."""
    return tuple(((size, False),) for size in shape)


def seeded(shape: Shape, dim: int, batch: int) -> Layout:
    """Return ``shape`` with the batch as the outermost factor of ``dim``, a multiple of ``batch`` in size."""
    inner = shape[dim] // batch
    marked: Dimension = ((batch, True),) if inner == 1 else ((batch, True), (inner, False))
    marks = []
    for i, size in enumerate(shape):
        marks.append(marked if i == dim else ((size, False),))
    return tuple(marks)


def has_batch(dimension: Dimension) -> bool:
    return any(batch for _, batch in dimension)


def batch_dims(layout: Layout) -> tuple[int, ...]:
    """Return the dimensions that scale with the batch."""
    return tuple(i for i, dimension in enumerate(layout) if has_batch(dimension))


def shape_of(layout: Layout) -> Shape:
    sizes = []
    for dimension in layout:
        sizes.append(math.prod(size for size, _ in dimension))
    return tuple(sizes)


def reshape(layout: Layout, shape: Shape) -> Layout | None:
    """Return ``layout`` reshaped to ``shape``; None if the number of elements differs or the factors do not fit."""
    if shape == shape_of(layout):
        return layout
    if math.prod(shape) != math.prod(shape_of(layout)) or 0 in shape:
        return None
    factors = [factor for dimension in layout for factor in dimension if factor != (1, False)]
    factors.reverse()  # the next factor is the last
    result: list[Dimension] = []
    for size in shape:
        part = _take(factors, size)
        if part is None:
            return None
        result.append(part)
    return None if factors else tuple(result)  # leftover: a batch of 1 that no dimension has taken


def _take(factors: list[Factor], size: int) -> Dimension | None:
    """Take factors for one dimension of ``size`` elements from the end of ``factors``, cutting the last if need be.

    Returns None if a factor and the remaining size share no divisor: (6, 10) -> (4, 15) loses track of its dimensions.
    """
    dimension: list[Factor] = []
    need = size
    while factors and (need > 1 or (factors[-1] == (1, True) and not dimension)):
        factor, is_batch = factors.pop()
        part = math.gcd(factor, need)
        if part == 1 and factor != 1:
            return None
        dimension.append((part, is_batch))
        if factor != part:
            # If the batch is cut, trine assumes that the outer part scales, as in (B*T, ...) -> (B, T, ...).
            factors.append((factor // part, False))
        need //= part
    return tuple(dimension) if dimension else ((size, False),)


def permute(layout: Layout, order: Sequence[int]) -> Layout:
    return tuple(layout[i] for i in order)


def broadcast(layouts: Sequence[Layout], shape: Shape) -> Layout:
    """Combine operands element by element: a dimension has the batch if an operand that spans it has."""
    result: list[Dimension] = []
    for place, size in enumerate(shape):
        from_right = len(shape) - place
        spans = []
        for layout in layouts:
            if from_right <= len(layout) and math.prod(s for s, _ in layout[-from_right]) == size:
                spans.append(layout[-from_right])
        marked = [dimension for dimension in spans if has_batch(dimension)]
        result.append((marked or spans or [((size, False),)])[0])
    return tuple(result)


def head(layout: Layout, count: int, shape: Shape) -> Layout:
    """Return the first ``count`` dimensions of ``layout`` whose sizes match ``shape``, the others without batch."""
    dimensions = []
    for i, size in enumerate(shape):
        dimensions.append(
            layout[i] if i < min(count, len(layout)) and shape_of(layout[i : i + 1])[0] == size else ((size, False),)
        )
    return tuple(dimensions)


class OperatorCall(NamedTuple):
    """One call: layouts of its tensor inputs by position (None: absent), shapes of its outputs, other arguments."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Shape | None, ...]
    values: Mapping[str, object]
    batch: int = 1

    def present(self) -> list[Layout]:
        return [layout for layout in self.inputs if layout is not None]

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


Result = list[Layout | None]
Rule = Callable[[OperatorCall], Result]


def default(call: OperatorCall) -> Result:
    """Guess layouts by shape: an equal shape, else a reshape, else elementwise, else equal leading dimensions."""
    layouts = []
    for shape in call.outputs:
        layouts.append(None if shape is None else _by_shape(call.present(), shape))
    return layouts


def _by_shape(inputs: list[Layout], shape: Shape) -> Layout:
    equal = [layout for layout in inputs if shape_of(layout) == shape]
    if equal:
        return next((layout for layout in equal if any(map(has_batch, layout))), equal[0])
    for layout in inputs:
        reshaped = reshape(layout, shape) if len(shape) > 1 or len(layout) > 1 else None
        if reshaped is not None:
            return reshaped
    marked = [layout for layout in inputs if any(map(has_batch, layout))]
    if not marked:
        return plain(shape)
    if len(marked[0]) == len(shape):
        return head(marked[0], len(shape), shape)
    if len(shape) > max(len(layout) for layout in inputs):
        return broadcast(inputs, shape)
    # A lone leading dimension is no evidence: per-channel statistics of C = batch channels look the same.
    return head(marked[0], len(shape), shape) if len(shape) > 1 else plain(shape)


def reduction(call: OperatorCall) -> Result:
    """Remove the reduced dimensions. Without their numbers, only dimensions of size 1 are known to be reduced."""
    data, shape = call.inputs[0], call.outputs[0]
    if data is None or shape is None:
        return [None]
    if not shape:
        return [()] * len(call.outputs)
    if len(shape) == len(data):
        layout = head(data, len(shape), shape)
    else:
        dim = call.values.get("dim")
        if isinstance(dim, int):
            dims = [dim]
        elif isinstance(dim, tuple | list):
            dims = list(dim)
        else:
            dims = []
        reduced = {d % len(data) for d in dims if isinstance(d, int)}
        remaining = tuple(dimension for i, dimension in enumerate(data) if i not in reduced)
        layout = remaining if reduced and shape_of(remaining) == shape else plain(shape)
    layouts = []
    for s in call.outputs:
        layouts.append(layout if s == shape else None)
    return layouts


def concatenate(call: OperatorCall) -> Result:
    """Keep the factors along ``dim`` if every part has the batch there; take other dimensions from the parts."""
    present, shape = call.present(), call.outputs[0]
    parts = [layout for layout in present if shape is not None and len(layout) == len(shape)]
    if not parts or shape is None:
        return [None]
    result: list[Dimension] = []
    for i, size in enumerate(shape):
        of_parts = [layout[i] for layout in parts]
        marked = next((d for d in of_parts if has_batch(d)), None)
        if marked is None:
            result.append(((size, False),))
        elif math.prod(s for s, _ in marked) == size:
            result.append(marked)
        else:
            batch = math.prod(s for s, is_batch in marked if is_batch)
            is_divisible = size % batch == 0
            result.append(((size // batch, False), (batch, True)) if is_divisible else ((size, True),))
    return [tuple(result)]


def stack(call: OperatorCall) -> Result:
    present, shape = call.present(), call.outputs[0]
    dim = call.integer("dim")
    if not present or shape is None or dim is None:
        return [None]
    place = dim % len(shape)
    return [(*present[0][:place], ((shape[place], False),), *present[0][place:])]


def transpose(call: OperatorCall) -> Result:
    data, shape = call.inputs[0], call.outputs[0]
    if data is None or shape is None or len(data) != len(shape):
        return [None]
    first, second = call.integer("dim0"), call.integer("dim1")
    if first is None or second is None:  # aten::t
        first, second = 0, len(data) - 1
    order = list(range(len(data)))
    if order:
        order[first], order[second] = order[second], order[first]
    return [permute(data, order)]


def permute_dims(call: OperatorCall) -> Result:
    data, dims = call.inputs[0], call.values.get("dims")
    if data is None or not isinstance(dims, tuple | list) or len(dims) != len(data):
        return [None]
    return [permute(data, [d for d in dims if isinstance(d, int)])]


def select(call: OperatorCall) -> Result:
    """Drop ``dim``; every output of unbind drops the same dimension."""
    data, dim = call.inputs[0], call.integer("dim")
    if data is None or dim is None or not data:
        return [None] * len(call.outputs)
    place = dim % len(data)
    return [(*data[:place], *data[place + 1 :])] * len(call.outputs)


def index_select(call: OperatorCall) -> Result:
    """Replace dimension ``dim`` of (self, index) by the dimensions of the index."""
    dim, shape = call.integer("dim"), call.outputs[0]
    if len(call.inputs) < 2 or (data := call.inputs[0]) is None or (index := call.inputs[1]) is None or dim is None:
        return [None]
    place = dim % len(data) if data else 0
    layout = (*data[:place], *index, *data[place + 1 :])
    return [layout if shape == shape_of(layout) else None]


def expand(call: OperatorCall) -> Result:
    """Treat a first dimension that grows to the size of the batch as the batch: (1, 1, E) -> (B, 1, E)."""
    data, shape = call.inputs[0], call.outputs[0]
    if data is None or shape is None:
        return [None]
    layout = broadcast([data], shape)
    grown = len(shape) > len(data) or (len(data) > 0 and shape_of(data[:1]) == (1,))
    if shape and grown and shape[0] == call.batch > 1 and not any(map(has_batch, data)):
        return [seeded(shape, 0, call.batch)]
    return [layout]


def copy(call: OperatorCall) -> Result:
    """Return the layout of src for (self, src) -> self, which now holds src."""
    source, shape = call.inputs[1] if len(call.inputs) > 1 else None, call.outputs[0]
    return [None if source is None or shape is None else broadcast([source], shape)]


def view(call: OperatorCall) -> Result:
    data = call.inputs[0]
    layouts = []
    for s in call.outputs:
        layouts.append(None if s is None or data is None else reshape(data, s))
    return layouts


def part(call: OperatorCall) -> Result:
    """Keep the batch in slices along dimensions that keep their size."""
    data = call.inputs[0]
    layouts = []
    for s in call.outputs:
        layouts.append(None if s is None or data is None or len(s) != len(data) else head(data, len(s), s))
    return layouts


def _convolution(call: OperatorCall) -> Result:
    data = call.inputs[0]
    layouts = []
    for shape in call.outputs:
        layouts.append(head(data, 1, shape) if data and shape and len(shape) >= 3 else None)
    return layouts


def _linear(call: OperatorCall) -> Result:
    data, shape = call.inputs[0], call.outputs[0]
    return [(*data[:-1], *plain(shape[-1:]))] if data and shape and len(data) == len(shape) else [None]


def _matmul(call: OperatorCall) -> Result:
    """Multiply the last two tensors; a tensor before them is added."""
    present, shape = call.present(), call.outputs[0]
    if len(present) < 2 or shape is None:
        return [None]
    added = len(present) >= 3
    left, right = (present[1], present[2]) if added else (present[0], present[1])
    if len(left) < 2 or len(right) < 2 or len(shape) < 2:
        return [None]
    stack = broadcast([left[:-2], right[:-2]], shape[:-2])
    return [(*stack, left[-2], right[-1])]


def _embedding(call: OperatorCall) -> Result:
    index, shape = call.inputs[1] if len(call.inputs) > 1 else None, call.outputs[0]
    return [(*index, *plain(shape[-1:]))] if index is not None and shape and len(index) + 1 == len(shape) else [None]


def _statistics_plain(call: OperatorCall) -> Result:
    """Map the first output to the input of its shape; the others (statistics, weight gradients) have no batch."""
    first = default(OperatorCall(call.inputs, call.outputs[:1], call.values))
    return [*first, *(None if shape is None else plain(shape) for shape in call.outputs[1:])]


def _convolution_backward(call: OperatorCall) -> Result:
    data, shape = call.inputs[1] if len(call.inputs) > 1 else None, call.outputs[0]
    if data is not None and shape == shape_of(data):
        first = data
    elif shape is not None:
        first = plain(shape)
    else:
        first = None
    return [first, *(None if s is None else plain(s) for s in call.outputs[1:])]


def _norm(call: OperatorCall) -> Result:
    data = call.inputs[0]
    layouts = []
    for s in call.outputs:
        layouts.append(None if s is None or data is None else head(data, len(s), s))
    return layouts


def _attention(call: OperatorCall) -> Result:
    query = call.inputs[0]
    layouts = []
    for i, s in enumerate(call.outputs):
        layouts.append(None if s is None or query is None else head(query, len(s) - (1 if i == 0 else 0), s))
    return layouts


def _attention_backward(call: OperatorCall) -> Result:
    """Map (gradient, query, key, value, ...) to gradients of query, key and value."""
    result: Result = []
    for i, shape in enumerate(call.outputs):
        source = call.inputs[i + 1] if i + 1 < len(call.inputs) else None
        matches = shape is not None and source is not None and shape_of(source) == shape
        if matches:
            other = source
        elif shape is None:
            other = None
        else:
            other = plain(shape)
        result.append(other)
    return result


def _pool(call: OperatorCall) -> Result:
    data = call.inputs[0]
    layouts = []
    for s in call.outputs:
        layouts.append(None if s is None or data is None else head(data, 2, s))
    return layouts


def _loss(call: OperatorCall) -> Result:
    data = call.inputs[0]
    layouts = []
    for s in call.outputs:
        layouts.append(None if s is None or data is None else (head(data, len(s), s) if s else ()))
    return layouts


def _weights_only(call: OperatorCall) -> Result:
    layouts = []
    for shape in call.outputs:
        layouts.append(None if shape is None else plain(shape))
    return layouts


def _recurrent(call: OperatorCall) -> Result:
    """Map (input, state, ...) to an output like the input except its features, and (layers, batch, features) states."""
    data = call.inputs[0]
    result: Result = []
    marked = next((d for d in data or () if has_batch(d)), None)
    for place, shape in enumerate(call.outputs):
        if data is None or shape is None:
            result.append(None)
        elif place == 0:
            result.append((*data[:-1], *plain(shape[-1:])) if len(shape) == len(data) else None)
        else:
            states = marked is not None and len(shape) == 3
            result.append((*plain(shape[:1]), marked, *plain(shape[2:])) if states and marked else plain(shape))
    return result


RULES: dict[str, Rule] = {
    **dict.fromkeys(aten.CONVOLUTIONS, _convolution),
    **dict.fromkeys(aten.MATMULS, _matmul),
    **dict.fromkeys(aten.BATCH_NORMS, _statistics_plain),
    **dict.fromkeys(aten.NORMS, _norm),
    **dict.fromkeys(aten.ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in aten.ATTENTION), _attention_backward),
    **dict.fromkeys(aten.POOLS, _pool),
    **dict.fromkeys(aten.LOSSES, _loss),
    **dict.fromkeys(aten.REDUCTIONS, shape_rules.reduction),
    **dict.fromkeys(aten.VIEWS, shape_rules.view),
    **dict.fromkeys(("slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split"), shape_rules.part),
    **dict.fromkeys(("select", "unbind"), shape_rules.select),
    **dict.fromkeys(("transpose", "t", "swapaxes"), shape_rules.transpose),
    **dict.fromkeys(("cat", "concat", "concatenate"), shape_rules.concatenate),
    **dict.fromkeys(("embedding_dense_backward", "embedding_backward", "Embedding'"), _weights_only),
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "native_batch_norm_backward", "miopen_batch_norm_backward",
         "native_layer_norm_backward", "native_group_norm_backward", "fused_rms_norm_backward",
         "CudnnBatchNorm'", "NativeBatchNorm'", "MiopenBatchNorm'", "NativeLayerNorm'", "NativeGroupNorm'"),
        _statistics_plain,
    ),
    **dict.fromkeys(("convolution_backward", "cudnn_convolution_backward", "Convolution'"), _convolution_backward),
    "linear": _linear,
    "embedding": _embedding,
    **dict.fromkeys(aten.RECURRENT, _recurrent),
    "expand": shape_rules.expand,
    "copy": shape_rules.copy,
    "permute": shape_rules.permute_dims,
    "index_select": shape_rules.index_select,
    "stack": shape_rules.stack,
}  # fmt: skip
