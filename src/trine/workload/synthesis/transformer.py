"""A training step of a decoder-only transformer, operator by operator.

Layers are named ``embedding``, ``layers.17.attention.qkv``, ..., ``final_norm``, ``head``, ``loss``. A
mixture-of-experts layer has ``layers.3.moe.router``, ``.softmax``, ``.topk``, ``.dispatch`` (copies each token to its
``top_k`` experts), ``.experts.up``, ``.experts.act``, ``.experts.down``, ``.combine``. All of them have the attributes
``num_experts`` and ``top_k``. Forward and backward operators of the experts have ``expert: True``, and dimension 0 of
their weights is the expert; dispatch and combine have ``moe: "dispatch"`` and ``"combine"``. Expert parallelism
replaces dispatch and combine by its all-to-alls, and divides dimension 0 of the expert weights. The experts' tokens
are (B, S top_k, features): perfectly balanced, with no capacity factor.

A matrix product has two backward operators, ``*_backward_input`` and ``*_backward_weight`` (attribute ``gradient_of``:
``input`` or ``weight``), in this order. Schedules that delay the weight gradient (zero-bubble) can separate them, and a
collective on the input gradient can start before the weight gradient. Backward operators read exactly the tensors that
autograd would save.

:func:`fixed_costs` adds the software's other work in a step, as operators of the optimizer phase. Attributes: ``cost``
(its name in the profile), ``when`` (``step`` or ``micro-batch``), ``cpu_us``, ``kernels``, ``by_weight`` (kernels scale
with the number of a rank's weights), ``whole`` (covers all of a stage's parameters, even if replicas share them),
``all_reduces`` and ``axis``.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.graph.workload import Tensor
from trine.software.precision import CastRecipe
from trine.software.profile import FixedCost, Software
from trine.workload.synthesis.adapters import NF4, Adapters, target_of
from trine.workload.synthesis.graph import FUSED, NONE, Attributes, Graph
from trine.workload.synthesis.spec import Experts, Transformer
from trine.workload.synthesis.unfused import add_dropped, dropped, over_vocabulary, unfused_cross_entropy, unfused_parts


def embedding(graph: Graph, tokens: Tensor, table: Tensor, layer: str) -> Tensor:
    """Look up rows of ``table`` (rows, features) for ``tokens`` (B, S) -> (B, S, features)."""
    out = graph.tensor((*tokens.shape, table.shape[1]))
    op = graph.forward("aten::embedding", (table, tokens), (out,), layer)

    def backward() -> None:
        dy = graph.gradient(out)
        if not graph.trains(table):
            return
        gradient = graph.weight_gradient(table)
        maker = graph.backward("aten::embedding_dense_backward", (dy, tokens), (gradient,), op)
        graph.made(maker, table)

    graph.on_backward(op, backward)
    return out


def add_positions(graph: Graph, x: Tensor, table: Tensor, layer: str) -> Tensor:
    """Add the first S rows of a table of learned positions to x (B, S, features)."""
    rows = graph.tensor(x.shape[1:], role="weight", storage=table.storage, batch_dims=())
    out = graph.like(x)
    op = graph.forward("aten::add", (x, rows), (out,), layer)

    def backward() -> None:
        dy = graph.gradient(out)
        if not graph.trains(table):
            graph.give(x, dy, op)
            return
        gradient = graph.weight_gradient(table)
        part = graph.tensor(rows.shape, role="gradient", storage=gradient.storage, batch_dims=())
        graph.made(graph.backward("aten::sum", (dy,), (part,), op), table)
        graph.give(x, dy, op)

    graph.on_backward(op, backward)
    return out


def linear(
    graph: Graph, x: Tensor, weight: Tensor, bias: Tensor | None, layer: str, attributes: Attributes = NONE
) -> Tensor:
    """Multiply x (B, S, in) by weight (out, in), and add bias (out,) -> (B, S, out)."""
    source = x
    x, attributes = _cast_input(graph, x, weight, layer, attributes)
    out = graph.tensor((*x.shape[:-1], weight.shape[0]))
    weights = (weight,) if bias is None else (weight, bias)
    _expand(graph, weight, layer)
    op = graph.forward("aten::linear", (x, *weights), (out,), layer, attributes)
    out = product_gradients(graph, op, x, out, "linear", weights, attributes)
    return _adapted(graph, source, out, weight, layer, attributes)


def _adapted(graph: Graph, x: Tensor, out: Tensor, weight: Tensor, layer: str, attributes: Attributes) -> Tensor:
    """Add the low-rank adapter of a product, if the graph has one for it; it reads the input in 16 bits.

    Attribute ``adapter``: ``down`` or ``up``, for :mod:`trine.parallel.splits`.
    """
    adapters, target = graph.adapters, target_of(layer)
    if adapters is None or target is None:
        return out
    graph.targets.add(target)
    if target not in adapters.targets:
        return out
    down = graph.weight(adapters.rank, weight.shape[1], is_adapter=True)
    up = graph.weight(weight.shape[0], adapters.rank, is_adapter=True)
    plain = {name: value for name, value in attributes.items() if name == "replicated"}
    low = _plain_linear(graph, x, down, f"{layer}.lora_down", {**plain, "adapter": "down"})
    more = _plain_linear(graph, low, up, f"{layer}.lora_up", {**plain, "adapter": "up"})
    return add(graph, out, more, f"{layer}.lora_add")


def _plain_linear(graph: Graph, x: Tensor, weight: Tensor, layer: str, attributes: Attributes) -> Tensor:
    """Multiply x by weight (out, in), without casts and adapters."""
    out = graph.tensor((*x.shape[:-1], weight.shape[0]))
    op = graph.forward("aten::linear", (x, weight), (out,), layer, attributes)
    return product_gradients(graph, op, x, out, "linear", (weight,), attributes)


def _expand(graph: Graph, weight: Tensor, layer: str, attributes: Attributes = NONE) -> None:
    """Expand a weight in four bits to 16 bits before a product, if it is stored so (attribute ``expands``)."""
    if weight.dtype == NF4:
        expanded = graph.tensor(weight.shape, batch_dims=())
        graph.forward("aten::_to_copy", (weight,), (expanded,), f"{layer}.expand", {**attributes, "expands": layer})


def product(graph: Graph, x: Tensor, weight: Tensor, name: str, layer: str, attributes: Attributes) -> Tensor:
    """Multiply x (B, T, in) by weight (in, out), or (experts, in, out) for grouped experts -> (B, T, out)."""
    if name == "_grouped_mm":
        x, attributes = _cast_input(graph, x, weight, layer, attributes)
    _expand(graph, weight, layer, _of_experts(attributes))
    out = graph.tensor((*x.shape[:-1], weight.shape[-1]))
    op = graph.forward(f"aten::{name}", (x, weight), (out,), layer, attributes)
    return product_gradients(graph, op, x, out, name, (weight,), attributes)


def _cast_input(
    graph: Graph, x: Tensor, weight: Tensor, layer: str, attributes: Attributes
) -> tuple[Tensor, Attributes]:
    """Return the input and the attributes of a product: cast, if the graph's recipe casts it."""
    recipe = graph.casts(weight, layer)
    if recipe is None:
        return x, attributes
    if graph.trains(weight):  # a frozen weight is cast once, before the first step
        graph.cast_weights.append(weight)
    of_experts = {name: value for name, value in attributes.items() if name != "replicated"}
    cast = graph.cast(x, recipe, layer, of_experts)
    cast_attributes: dict[str, object] = {"precision": recipe.products, "weight_copies": recipe.weight_copies}
    if recipe.product_kernels > 1:
        cast_attributes["kernels"] = float(recipe.product_kernels)
    if graph.fuses_experts and len(weight.shape) > 2:
        cast_attributes["grouped_kernel"] = "one"
    return cast, {**attributes, **cast_attributes}


def product_gradients(
    graph: Graph, op: int, x: Tensor, out: Tensor, name: str, weights: tuple[Tensor, ...], attributes: Attributes
) -> Tensor:
    """Return ``out`` of a product with two backward operators: first for x, then for weight and bias."""

    def backward() -> None:
        dy = graph.gradient(out)
        dx = graph.tensor(x.shape, batch_dims=x.batch_dims)
        if (recipe := graph.precision) is not None and "precision" in attributes:
            dy = graph.cast_gradient(dy, recipe, op, _of_experts(attributes))
        if graph.reaches(x):
            if weights[0].dtype == NF4:
                again = graph.tensor(weights[0].shape, batch_dims=())
                graph.backward("aten::_to_copy", (weights[0],), (again,), op, _of_experts(attributes))
            by_input = {"gradient_of": "input", **attributes}
            graph.backward(f"{name}_backward_input", (dy, weights[0]), (dx,), op, by_input)
        if not graph.trains(weights[0]):
            graph.give(x, dx, op)
            return
        gradients = [graph.weight_gradient(w) for w in weights]
        weight_attributes = {"gradient_of": "weight", **attributes}
        if len(weights) > 1 and graph.writes.bias_gradients == "separate":
            weight_attributes["bias_gradient"] = "separate"
        graph.made(graph.backward(f"{name}_backward_weight", (dy, x), gradients, op, weight_attributes), *weights)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def _of_experts(attributes: Attributes) -> Attributes:
    """Return the attributes of a product of experts that its casts and expansions have, too."""
    return {key: attributes[key] for key in ("expert", "num_experts", "top_k") if key in attributes}


def projected(
    graph: Graph, x: Tensor, features: int, biased: bool, layer: str, attributes: Attributes = NONE
) -> Tensor:
    """Multiply x (B, S, in) by a new weight, and add a new bias if ``biased`` -> (B, S, features)."""
    weight = graph.weight(features, x.shape[-1], product=layer)
    return linear(graph, x, weight, graph.weight(features) if biased else None, layer, attributes)


def norm(graph: Graph, x: Tensor, kind: str, layer: str) -> Tensor:
    """Normalise the features of x: ``rms`` (weight) or ``layer`` (weight and bias)."""
    hidden = x.shape[-1]
    weights = (graph.weight(hidden),) if kind == "rms" else (graph.weight(hidden), graph.weight(hidden))
    out = graph.like(x)
    statistics = [graph.tensor((*x.shape[:-1], 1), dtype="float32") for _ in weights]
    op = graph.forward(f"aten::{kind}_norm", (x, *weights), (out, *statistics), layer)
    return graph.gives_back(op, x, out, f"{kind}_norm_backward", (x, weights[0], *statistics), weights)


def elementwise(graph: Graph, x: Tensor, features: int, name: str, layer: str, attributes: Attributes = NONE) -> Tensor:
    """Apply an elementwise operator to x, with ``features`` results; its gradient needs x."""
    out = graph.tensor((*x.shape[:-1], features))
    op = graph.forward(name, (x,), (out,), layer, attributes)
    return graph.gives_back(op, x, out, f"{name.rsplit('::', 1)[-1]}_backward", (x,), (), attributes)


def rotary(graph: Graph, qkv: Tensor, layer: str, norms: tuple[Tensor, ...] = ()) -> Tensor:
    """Rotate queries and keys by their position, after the norms of each head if the model has them."""
    out = graph.like(qkv)
    name = "qk_norm_rotary" if norms else "apply_rotary"
    op = graph.forward(name, (qkv, *norms), (out,), layer)
    return graph.gives_back(op, qkv, out, f"{name}_backward", (qkv, *norms) if norms else (), norms)


def attention(graph: Graph, qkv: Tensor, heads: int, kv_heads: int, size: int, layer: str) -> Tensor:
    """Apply causal attention to adjacent queries, keys and values in qkv (B, S, (heads + 2 kv_heads) size)."""
    batch, length = qkv.shape[:2]
    parts = [graph.view(qkv, (batch, n, length, size)) for n in (heads, kv_heads, kv_heads)]
    return attend(graph, (qkv,), parts, layer, causal=True)


def attend(
    graph: Graph, sources: Sequence[Tensor], parts: Sequence[Tensor], layer: str, bias: Tensor | None = None,
    *, causal: bool = False, further: Attributes = NONE, weights: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """Apply full or causal attention: q, k, v (B, heads, S or T, size) -> (B, S, heads size).

    sources: one tensor with queries, keys and values, or two: queries, and keys with values. bias: (1, heads, S, T),
    added to the scores; it contains any causal mask, so no product is skipped. further: attributes, such as the
    ``window`` of tokens that a query sees. weights: further trained tensors, such as sinks. The backward pass keeps the
    logarithmic sums of the scores, or all scores if the profile sets unfused attention.
    """
    if graph.writes.attention == "unfused" and not further and not weights:
        return unfused_parts(graph, sources, parts, layer, bias)
    batch, heads, length, _ = parts[0].shape
    values = parts[2].shape[-1]
    out = graph.tensor((batch, heads, length, values))
    sums = graph.tensor((batch, heads, length, 1), dtype="float32")
    name = f"scaled_dot_product_{'flash' if bias is None else 'efficient'}_attention"
    attributes: Attributes = {"num_heads": heads, "num_kv_heads": parts[1].shape[1], "causal": causal, **further}
    if graph.is_cast_by(graph.writes.attention_casts):
        attributes = {**attributes, "attention_precision": "mxfp8"}
    read = (*parts, *weights) if bias is None else (*parts, bias)
    op = graph.forward(f"aten::_{name}", read, (out, sums), layer, attributes)

    def backward() -> None:
        dy, gradients = graph.gradient(out), [graph.like(source) for source in sources]
        part_gradients = []
        for part in parts:
            part_gradients.append(graph.view(gradients[0 if part is parts[0] else -1], part.shape))
        if bias is not None:
            part_gradients.append(graph.like(bias))
        is_joined = graph.writes.part_gradients == "joined" and len(sources) == 1 and bias is None
        if is_joined:
            written = [graph.like(part) for part in parts]
        else:
            written = part_gradients
        trained = [weight for weight in weights if graph.trains(weight)]
        written = [*written, *map(graph.weight_gradient, trained)]
        graph.made(graph.backward(f"aten::_{name}_backward", (dy, *read, out, sums), written, op, attributes), *trained)
        if is_joined:
            graph.backward("split_backward", written[: len(parts)], gradients, op)
        for source, gradient in zip(sources, gradients, strict=True):
            graph.give(source, gradient, op)
        if bias is not None:
            graph.give(bias, part_gradients[-1], op)

    graph.on_backward(op, backward)
    return graph.view(out, (batch, length, heads * values))


def residual(graph: Graph, x: Tensor, branch: Tensor, layer: str) -> Tensor:
    """Return x + branch. Both get the same gradient, without a backward operator; for dropout, see add_dropped."""
    if graph.writes.dropout:
        return add_dropped(graph, x, branch, layer)
    return add(graph, x, branch, layer)


def add(graph: Graph, x: Tensor, branch: Tensor, layer: str) -> Tensor:
    """Return x + branch, without dropout."""
    out = graph.like(x)
    op = graph.forward("aten::add", (x, branch), (out,), layer)

    def backward() -> None:
        dy = graph.gradient(out)
        graph.give(x, dy, op)
        graph.give(branch, dy, op)

    graph.on_backward(op, backward)
    return out


def cross_entropy(graph: Graph, logits: Tensor, targets: Tensor, layer: str) -> None:
    """Compute the loss of each token, in one operator that keeps the logits; the last layer.

    ``vocab_parallel``: tensor parallelism may divide the vocabulary, and then sums one float32 per token.
    """
    if graph.writes.loss in ("unfused", "native"):
        unfused_cross_entropy(graph, logits, targets, layer)
        return
    loss = graph.tensor(targets.shape, dtype="float32")
    op = graph.forward("aten::cross_entropy_loss", (logits, targets), (loss,), layer, over_vocabulary(graph))

    def backward() -> None:
        dlogits = graph.view(logits, logits.shape) if graph.writes.loss == "te" else graph.like(logits)
        graph.backward("cross_entropy_loss_backward", (logits, targets), (dlogits,), op)
        graph.give(logits, dlogits, op)

    graph.on_backward(op, backward)


def adam(graph: Graph, *, master: bool) -> None:
    """Run Adam in one fused operator; ``master``: on float32 copies of the weights, which are then copied back.

    With ``remainder`` in the profile, the 16 bits that a bf16 weight lacks replace the copy, and Adam reads and writes
    both halves of a weight. The software's fixed costs come before and after it.
    """
    fixed_costs(graph, before=True)
    weights = graph.trained()
    sizes = [w.shape for w in weights]

    def state(dtype: str = "float32") -> list[Tensor]:
        return [graph.tensor(s, role="optimizer_state", dtype=dtype, batch_dims=()) for s in sizes]

    splits = master and graph.writes.master == "remainder"
    if splits:
        updated = [*weights, *state("int16")]
    elif master:
        updated = state()
    else:
        updated = weights
    graph.optimizer("aten::_fused_adam_", (*updated, *(graph.gradients[w.id] for w in weights), *state(), *state()))
    if master and not splits:
        graph.optimizer("aten::_foreach_copy_", (*weights, *updated))
    _cast_weights(graph)
    fixed_costs(graph, before=False)


def _cast_weights(graph: Graph) -> None:
    """Cast the weights of all cast products, once for all micro-batches of the next step."""
    weights = list({weight.id: weight for weight in graph.cast_weights}.values())
    if graph.precision is None or not weights:
        return
    launches = float(graph.precision.kernels * len(weights))
    attributes = {"cost": "weight casts", "kernels": launches, "by_weight": True, "whole": True, "cpu_us": 0.0,
                  "passes": graph.precision.weight_passes / 2}  # fmt: skip
    graph.optimizer("aten::_foreach_copy_", weights, weights, attributes)  # a pass counts both lists


def transformer(
    spec: Transformer, *, batch: int, sequence: int, layers: int, dtype: str, software: Software | None = None,
    precision: CastRecipe | None = None, adapters: Adapters | None = None,
) -> Graph:  # fmt: skip
    """Build one step (forward, backward, Adam) of ``layers`` layers on ``batch`` samples of ``sequence`` tokens.

    software: the profile, which sets the form of the operators; precision: the recipe that casts products.
    adapters: the weights to train; None: all.
    """
    graph = Graph(dtype, accumulates=True, software=software, precision=precision, adapters=adapters)
    tokens = graph.tensor((batch, sequence), role="input", dtype="int64")
    targets = graph.tensor((batch, sequence), role="input", dtype="int64")
    table = graph.weight(spec.vocab, spec.hidden)
    x = embedding(graph, tokens, table, "embedding")
    if spec.max_positions is not None:
        x = add_positions(graph, x, graph.weight(spec.max_positions, spec.hidden), "positions")
    if spec.embedding_norm:
        x = norm(graph, x, spec.norm, "embedding.norm")
    if graph.writes.dropout:
        x = dropped(graph, x, "embedding.dropout")
    for number in range(layers):
        x = _attention_block(graph, spec, x, f"layers.{number}.attention")
        if spec.experts is None:
            x = _mlp_block(graph, spec, x, f"layers.{number}.mlp")
        else:
            x = _moe_block(graph, spec, spec.experts, x, f"layers.{number}.moe")
    x = norm(graph, x, spec.norm, "final_norm")
    last = table if spec.tied_embeddings else graph.weight(spec.vocab, spec.hidden)
    cross_entropy(graph, linear(graph, x, last, None, "head"), targets, "loss")
    graph.run_backward()
    adam(graph, master=dtype != "float32")
    return graph


def _add_bias_kernel(graph: Graph, x: Tensor, is_biased: bool, layer: str) -> Tensor:
    """Add a kernel for the bias of x if the profile does not fuse it; the product before it has the bias as weight."""
    if not is_biased or graph.writes.biases == "fused":
        return x
    out = graph.like(x)
    op = graph.forward("aten::add", (x,), (out,), layer)
    return graph.gives_back(op, x, out, "add_backward", (), (), {"passes": 0.5})  # reads it for the bias


def _attention_block(graph: Graph, spec: Transformer, x: Tensor, name: str) -> Tensor:
    h = norm(graph, x, spec.norm, f"{name}.norm")
    h = projected(graph, h, spec.qkv, spec.biases != "none", f"{name}.qkv")
    h = _add_bias_kernel(graph, h, spec.biases != "none", f"{name}.qkv_bias")
    if spec.rotates:
        norms = (graph.weight(spec.head_size), graph.weight(spec.head_size)) if spec.qk_norm else ()
        h = rotary(graph, h, f"{name}.rotary", norms)
    h = attention(graph, h, spec.heads, spec.kv_heads, spec.head_size, f"{name}.core")
    h = projected(graph, h, spec.hidden, spec.biases == "all", f"{name}.out")
    return residual(graph, x, h, f"{name}.add")


def _mlp_block(graph: Graph, spec: Transformer, x: Tensor, name: str) -> Tensor:
    biased, gated = spec.biases == "all", spec.activation == "swiglu"
    h = norm(graph, x, spec.norm, f"{name}.norm")
    num_products = 2 if gated else 1
    product = f"{name}.gate_up" if gated else f"{name}.up"
    h = projected(graph, h, spec.ffn * num_products, biased, product)
    h = _add_bias_kernel(graph, h, biased, f"{name}.up_bias")
    h = elementwise(graph, h, spec.ffn, "swiglu" if gated else "aten::gelu", f"{name}.act")
    h = projected(graph, h, spec.hidden, biased, f"{name}.down")
    return residual(graph, x, h, f"{name}.add")


def _moe_block(graph: Graph, spec: Transformer, experts: Experts, x: Tensor, name: str) -> Tensor:
    shape: Attributes = {"num_experts": experts.count, "top_k": experts.top_k}
    of_experts: Attributes = {"expert": True, **shape}
    h = norm(graph, x, spec.norm, f"{name}.norm")
    logits = product(graph, h, graph.weight(spec.hidden, experts.count), "matmul", f"{name}.router", shape)
    chances = elementwise(graph, logits, experts.count, "aten::softmax", f"{name}.softmax", shape)
    shares, experts_of_tokens = top_k(graph, chances, experts.top_k, f"{name}.topk", shape)
    h = dispatch(graph, h, experts_of_tokens, f"{name}.dispatch", shape)
    h = padded(graph, h, f"{name}.experts.pad", of_experts)
    up = graph.weight(experts.count, spec.hidden, 2 * experts.ffn, product=f"{name}.experts.up")
    h = product(graph, h, up, "_grouped_mm", f"{name}.experts.up", of_experts)
    h = activation_of_experts(graph, h, experts.ffn, "swiglu", f"{name}.experts.act", of_experts)
    down = graph.weight(experts.count, experts.ffn, spec.hidden, product=f"{name}.experts.down")
    h = product(graph, h, down, "_grouped_mm", f"{name}.experts.down", of_experts)
    h = padded(graph, h, f"{name}.experts.unpad", of_experts)
    return residual(graph, x, combine(graph, h, shares, experts_of_tokens, f"{name}.combine", shape), f"{name}.add")


def padded(graph: Graph, x: Tensor, layer: str, attributes: Attributes) -> Tensor:
    """Copy the tokens of experts to rows that a precision's blocks divide, or back, if the software does.

    The rows that are added are left out: less than one block for each expert.
    """
    if graph.precision is None or graph.writes.expert_padding == "none":
        return x
    out = graph.like(x)
    op = graph.forward("aten::constant_pad_nd", (x,), (out,), layer, attributes)
    return graph.gives_back(op, x, out, "constant_pad_nd_backward", (), (), attributes)


def activation_of_experts(
    graph: Graph, x: Tensor, features: int, name: str, layer: str, attributes: Attributes
) -> Tensor:
    """Apply the activation of experts to x, with ``features`` results; a fused grouped MLP runs it in its GEMMs."""
    return elementwise(graph, x, features, name, layer, {**attributes, **FUSED} if graph.fuses_experts else attributes)


def top_k(graph: Graph, chances: Tensor, k: int, layer: str, shape: Attributes) -> tuple[Tensor, Tensor]:
    """Return the shares and numbers of each token's experts, (B, S, k)."""
    shares = graph.tensor((*chances.shape[:-1], k))
    numbers = graph.tensor(shares.shape, dtype="int64")
    op = graph.forward("aten::topk", (chances,), (shares, numbers), layer, shape)
    return graph.gives_back(op, chances, shares, "topk_backward", (numbers,), (), shape), numbers


def dispatch(graph: Graph, x: Tensor, numbers: Tensor, layer: str, shape: Attributes) -> Tensor:
    """Copy tokens (B, S, features) to their experts: (B, S k, features), in the order of the experts."""
    batch, length, features = x.shape
    attributes = {"moe": "dispatch", **shape}
    out = graph.tensor((batch, length * numbers.shape[-1], features))
    op = graph.forward("aten::index_select", (x, numbers), (out,), layer, attributes)
    return graph.gives_back(op, x, out, "index_select_backward", (numbers,), (), attributes)


def combine(graph: Graph, x: Tensor, shares: Tensor, numbers: Tensor, layer: str, shape: Attributes) -> Tensor:
    """Sum the results of each token's experts (B, S k, features), weighted by their shares: (B, S, features).

    The gradient of the shares needs x, which is kept, unless the software weights the experts' activations: then the
    operator sums alone. It still writes that gradient, as small as the shares, in place of the activation.
    """
    attributes = {"moe": "combine", **shape}
    out = graph.tensor((*shares.shape[:-1], x.shape[-1]))
    op = graph.forward("aten::index_add", (x, shares, numbers), (out,), layer, attributes)
    weighted = () if graph.writes.expert_shares == "activation" else (x,)

    def backward() -> None:
        dx, dshares = graph.like(x), graph.like(shares)
        inputs = (graph.gradient(out), *weighted, shares, numbers)
        graph.backward("index_add_backward", inputs, (dx, dshares), op, attributes)
        graph.give(x, dx, op)
        graph.give(shares, dshares, op)

    graph.on_backward(op, backward)
    return out


MICRO_BATCH = "micro-batch"


def fixed_costs(graph: Graph, *, before: bool) -> None:
    """Add the costs of the graph's software: gradient costs ``before`` the optimizer, parameter costs after it."""
    software = graph.software
    if software is None:
        return
    if before and _accumulates_apart(graph):
        _accumulation(graph, software)
    for cost in software.step:
        if before == (cost.parameter_passes == 0):
            _add(graph, cost)


def _accumulates_apart(graph: Graph) -> bool:
    writes = graph.writes
    return writes.accumulation == "separate" and writes.gradient_dtype == "float32" and graph.dtype != "float32"


def _accumulation(graph: Graph, software: Software) -> None:
    """Add a micro-batch's gradients to float32 sums: 10 bytes of traffic per parameter of a two-byte dtype.

    The weights stand in for the gradients, which have the same dtype and size and are not separate tensors here.
    """
    weights, sums = _trained(graph)
    launches = software.operators.kernels.get("accumulation", [1.0, 1.0])[1] * len(weights)
    attributes = {"cost": "accumulation", "when": MICRO_BATCH, "kernels": launches, "by_weight": True}
    graph.optimizer("aten::_foreach_add_", (*sums, *weights), sums, attributes)


def _trained(graph: Graph) -> tuple[list[Tensor], list[Tensor]]:
    weights = [weight for weight in graph.weights.values() if weight.id in graph.gradients]
    return weights, [graph.gradients[weight.id] for weight in weights]


def _add(graph: Graph, cost: FixedCost) -> None:
    weights, gradients = _trained(graph)
    kernels = cost.kernels_per_weight * len(weights)
    attributes: dict[str, object] = {"cost": cost.name, "when": cost.when, "cpu_us": cost.cpu_us, "kernels": kernels}
    if cost.kernels_per_weight:
        attributes["by_weight"] = True
    if cost.whole:
        attributes["whole"] = True
    if cost.all_reduces:
        attributes |= {"all_reduces": cost.all_reduces, "axis": cost.axis}
    passes, tensors = cost.gradient_passes, gradients
    if cost.parameter_passes:
        passes, tensors = cost.parameter_passes, weights
    if not passes:
        graph.optimizer(f"{_word(cost)}_", (), (), attributes)
        return
    scalar = graph.tensor((), role="optimizer_state", dtype="float32", batch_dims=())
    graph.optimizer(f"aten::_foreach_{_word(cost)}", tensors, (scalar,), {**attributes, "passes": passes})


def _word(cost: FixedCost) -> str:
    characters = []
    for c in cost.name.lower():
        characters.append(c if c.isalnum() else " ")
    return "_".join("".join(characters).split())
