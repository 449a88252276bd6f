"""How each kind of operator carries the batch from its inputs to its outputs.

A rule takes a :class:`Site` and returns one layout for each output, None where it does not say. Kinds without a rule
get :func:`default`, which goes by shapes alone. Signatures are those of PyTorch's native_functions.yaml, tensors only.
"""

from __future__ import annotations

from trine.workload import rules_shape
from trine.workload.layout import broadcast, has_batch, head, plain, shape_of
from trine.workload.signatures import (
    ATTENTION,
    BATCH_NORMS,
    CONVOLUTIONS,
    LOSSES,
    MATMULS,
    NORMS,
    POOLS,
    RECURRENT,
    REDUCTIONS,
    VIEWS,
)
from trine.workload.site import Result, Rule, Site, default


def _convolution(site: Site) -> Result:
    data = site.inputs[0]
    return [head(data, 1, shape) if data and shape and len(shape) >= 3 else None for shape in site.outputs]


def _linear(site: Site) -> Result:
    data, shape = site.inputs[0], site.outputs[0]
    return [(*data[:-1], *plain(shape[-1:]))] if data and shape and len(data) == len(shape) else [None]


def _matmul(site: Site) -> Result:
    """The last two tensors are the factors; one before them is added."""
    present, shape = site.present(), site.outputs[0]
    if len(present) < 2 or shape is None:
        return [None]
    added = len(present) >= 3
    left, right = (present[1], present[2]) if added else (present[0], present[1])
    if len(left) < 2 or len(right) < 2 or len(shape) < 2:
        return [None]
    stack = broadcast([left[:-2], right[:-2]], shape[:-2])
    return [(*stack, left[-2], right[-1])]


def _embedding(site: Site) -> Result:
    index, shape = site.inputs[1] if len(site.inputs) > 1 else None, site.outputs[0]
    return [(*index, *plain(shape[-1:]))] if index is not None and shape and len(index) + 1 == len(shape) else [None]


def _statistics_plain(site: Site) -> Result:
    """The first output is like the input of its shape; the others (statistics or weight gradients) have no batch."""
    first = default(Site(site.inputs, site.outputs[:1], site.values))
    return [*first, *(None if shape is None else plain(shape) for shape in site.outputs[1:])]


def _convolution_backward(site: Site) -> Result:
    data, shape = site.inputs[1] if len(site.inputs) > 1 else None, site.outputs[0]
    first = data if data is not None and shape == shape_of(data) else (plain(shape) if shape is not None else None)
    return [first, *(None if s is None else plain(s) for s in site.outputs[1:])]


def _norm(site: Site) -> Result:
    data = site.inputs[0]
    return [None if s is None or data is None else head(data, len(s), s) for s in site.outputs]


def _attention(site: Site) -> Result:
    query = site.inputs[0]
    return [None if s is None or query is None else head(query, len(s) - (1 if i == 0 else 0), s)
            for i, s in enumerate(site.outputs)]  # fmt: skip


def _attention_backward(site: Site) -> Result:
    """(gradient, query, key, value, ...) -> gradients of query, key, value."""
    result: Result = []
    for i, shape in enumerate(site.outputs):
        source = site.inputs[i + 1] if i + 1 < len(site.inputs) else None
        matches = shape is not None and source is not None and shape_of(source) == shape
        result.append(source if matches else (None if shape is None else plain(shape)))
    return result


def _pool(site: Site) -> Result:
    data = site.inputs[0]
    return [None if s is None or data is None else head(data, 2, s) for s in site.outputs]


def _loss(site: Site) -> Result:
    data = site.inputs[0]
    return [None if s is None or data is None else (head(data, len(s), s) if s else ()) for s in site.outputs]


def _weights_only(site: Site) -> Result:
    return [None if shape is None else plain(shape) for shape in site.outputs]


def _recurrent(site: Site) -> Result:
    """(input, state, ...) -> output like the input but for its features, states (layers, batch, features)."""
    data = site.inputs[0]
    result: Result = []
    marked = next((d for d in data or () if has_batch(d)), None)
    for place, shape in enumerate(site.outputs):
        if data is None or shape is None:
            result.append(None)
        elif place == 0:
            result.append((*data[:-1], *plain(shape[-1:])) if len(shape) == len(data) else None)
        else:
            states = marked is not None and len(shape) == 3
            result.append((*plain(shape[:1]), marked, *plain(shape[2:])) if states and marked else plain(shape))
    return result


RULES: dict[str, Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(MATMULS, _matmul),
    **dict.fromkeys(BATCH_NORMS, _statistics_plain),
    **dict.fromkeys(NORMS, _norm),
    **dict.fromkeys(ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in ATTENTION), _attention_backward),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys(REDUCTIONS, rules_shape.reduction),
    **dict.fromkeys(VIEWS, rules_shape.view),
    **dict.fromkeys(("slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split"), rules_shape.part),
    **dict.fromkeys(("select", "unbind"), rules_shape.select),
    **dict.fromkeys(("transpose", "t", "swapaxes"), rules_shape.transpose),
    **dict.fromkeys(("cat", "concat", "concatenate"), rules_shape.concatenate),
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
    **dict.fromkeys(RECURRENT, _recurrent),
    "expand": rules_shape.expand,
    "copy": rules_shape.copy,
    "permute": rules_shape.permute_dims,
    "index_select": rules_shape.index_select,
    "stack": rules_shape.stack,
}  # fmt: skip
