"""Layers that transformers are made of, each with its backward operators.

A matrix product has two backward operators, ``*_backward_input`` and ``*_backward_weight`` (attribute ``gradient_of``:
``input`` or ``weight``), in this order: schedules that delay the gradient of the weight (zero-bubble) can tell them
apart, and a collective on the gradient of the input can start before the second. Backward operators read exactly what
autograd would have saved.
"""

from __future__ import annotations

from trine.graph.workload import Tensor
from trine.workload.synthesis.graph import NONE, Attributes, Graph


def embedding(graph: Graph, tokens: Tensor, table: Tensor, layer: str) -> Tensor:
    """Rows of ``table`` (rows, features) for ``tokens`` (B, S) -> (B, S, features)."""
    out = graph.tensor((*tokens.shape, table.shape[1]))
    op = graph.forward("aten::embedding", (table, tokens), (out,), layer)

    def backward() -> None:
        gradient = graph.weight_gradient(table)
        done = graph.backward("aten::embedding_dense_backward", (graph.gradient(out), tokens), (gradient,), op)
        graph.made(done, table)

    graph.on_backward(op, backward)
    return out


def add_positions(graph: Graph, x: Tensor, table: Tensor, layer: str) -> Tensor:
    """x (B, S, features) plus the first S rows of a table of learned positions."""
    rows = graph.tensor(x.shape[1:], role="weight", storage=table.storage, batch_dims=())
    out = graph.like(x)
    op = graph.forward("aten::add", (x, rows), (out,), layer)

    def backward() -> None:
        dy = graph.gradient(out)
        gradient = graph.weight_gradient(table)
        part = graph.tensor(rows.shape, role="gradient", storage=gradient.storage, batch_dims=())
        graph.made(graph.backward("aten::sum", (dy,), (part,), op), table)
        graph.give(x, dy, op)

    graph.on_backward(op, backward)
    return out


def linear(graph: Graph, x: Tensor, weight: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    """x (B, S, in) times weight (out, in), plus bias (out,) -> (B, S, out)."""
    out = graph.tensor((*x.shape[:-1], weight.shape[0]))
    used = (weight,) if bias is None else (weight, bias)
    op = graph.forward("aten::linear", (x, *used), (out,), layer)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        graph.backward("linear_backward_input", (dy, weight), (dx,), op, {"gradient_of": "input"})
        made = [graph.weight_gradient(w) for w in used]
        graph.made(graph.backward("linear_backward_weight", (dy, x), made, op, {"gradient_of": "weight"}), *used)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def product(graph: Graph, x: Tensor, weight: Tensor, name: str, layer: str, attributes: Attributes) -> Tensor:
    """x (B, T, in) times weight (in, out), or, of grouped experts, weight (experts, in, out): -> (B, T, out)."""
    out = graph.tensor((*x.shape[:-1], weight.shape[-1]))
    op = graph.forward(f"aten::{name}", (x, weight), (out,), layer, attributes)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        graph.backward(f"{name}_backward_input", (dy, weight), (dx,), op, {"gradient_of": "input", **attributes})
        gradient = graph.weight_gradient(weight)
        kept = {"gradient_of": "weight", **attributes}
        graph.made(graph.backward(f"{name}_backward_weight", (dy, x), (gradient,), op, kept), weight)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def norm(graph: Graph, x: Tensor, kind: str, layer: str) -> Tensor:
    """Normalise the features of x: ``rms`` (weight) or ``layer`` (weight and bias)."""
    hidden = x.shape[-1]
    used = (graph.weight(hidden),) if kind == "rms" else (graph.weight(hidden), graph.weight(hidden))
    out = graph.like(x)
    statistics = [graph.tensor((*x.shape[:-1], 1), dtype="float32") for _ in used]
    op = graph.forward(f"aten::{kind}_norm", (x, *used), (out, *statistics), layer)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        gradients = [graph.weight_gradient(w) for w in used]
        inputs = (dy, x, used[0], *statistics)
        graph.made(graph.backward(f"{kind}_norm_backward", inputs, (dx, *gradients), op), *used)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def elementwise(graph: Graph, x: Tensor, features: int, name: str, layer: str, attributes: Attributes = NONE) -> Tensor:
    """An operator on each element of x, with ``features`` results, whose gradient needs x."""
    out = graph.tensor((*x.shape[:-1], features))
    op = graph.forward(name, (x,), (out,), layer, attributes)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        base = name.rsplit("::", 1)[-1]
        graph.backward(f"{base}_backward", (dy, x), (dx,), op, attributes)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def rotary(graph: Graph, qkv: Tensor, layer: str, norms: tuple[Tensor, ...] = ()) -> Tensor:
    """Rotate queries and keys by their position, after the norms of each head where the model has them."""
    out = graph.like(qkv)
    name = "qk_norm_rotary" if norms else "apply_rotary"
    op = graph.forward(name, (qkv, *norms), (out,), layer)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(qkv)
        gradients = [graph.weight_gradient(w) for w in norms]
        inputs = (dy, qkv, *norms) if norms else (dy,)
        graph.made(graph.backward(f"{name}_backward", inputs, (dx, *gradients), op), *norms)
        graph.give(qkv, dx, op)

    graph.on_backward(op, backward)
    return out


def attention(graph: Graph, qkv: Tensor, heads: int, kv_heads: int, size: int, layer: str) -> Tensor:
    """Causal attention of queries, keys and values that lie side by side in qkv (B, S, (heads + 2 kv_heads) size).

    As FlashAttention does it: of the scores, their logarithmic sums alone are kept.
    """
    batch, length = qkv.shape[:2]
    parts = [graph.view(qkv, (batch, n, length, size)) for n in (heads, kv_heads, kv_heads)]
    out = graph.tensor((batch, heads, length, size))
    sums = graph.tensor((batch, heads, length, 1), dtype="float32")
    name, kept = "scaled_dot_product_flash_attention", {"num_heads": heads, "num_kv_heads": kv_heads, "causal": True}
    op = graph.forward(f"aten::_{name}", parts, (out, sums), layer, kept)

    def backward() -> None:
        dy, whole = graph.gradient(out), graph.like(qkv)
        made = [graph.view(whole, part.shape) for part in parts]
        graph.backward(f"aten::_{name}_backward", (dy, *parts, out, sums), made, op, kept)
        graph.give(qkv, whole, op)

    graph.on_backward(op, backward)
    return graph.view(out, (batch, length, heads * size))


def residual(graph: Graph, x: Tensor, branch: Tensor, layer: str) -> Tensor:
    """x + branch. Its backward pass has no operator: both get the same gradient."""
    out = graph.like(x)
    op = graph.forward("aten::add", (x, branch), (out,), layer)

    def backward() -> None:
        dy = graph.gradient(out)
        graph.give(x, dy, op)
        graph.give(branch, dy, op)

    graph.on_backward(op, backward)
    return out


def cross_entropy(graph: Graph, logits: Tensor, targets: Tensor, layer: str) -> None:
    """The loss of each token, in one operator that keeps the logits; the last layer.

    ``vocab_parallel``: tensor parallelism may divide the vocabulary, and then adds up one float32 a token.
    """
    loss = graph.tensor(targets.shape, dtype="float32")
    op = graph.forward("aten::cross_entropy_loss", (logits, targets), (loss,), layer, {"vocab_parallel": True})

    def backward() -> None:
        made = graph.like(logits)
        graph.backward("cross_entropy_loss_backward", (logits, targets), (made,), op)
        graph.give(logits, made, op)

    graph.on_backward(op, backward)


def adam(graph: Graph, *, master: bool) -> None:
    """Adam in one fused operator; ``master``: on float32 copies of the weights, which are then copied back."""
    weights = list(graph.weights.values())
    sizes = [w.shape for w in weights]

    def state() -> list[Tensor]:
        return [graph.tensor(s, role="optimizer_state", dtype="float32", batch_dims=()) for s in sizes]

    updated = state() if master else weights
    graph.optimizer("aten::_fused_adam_", (*updated, *(graph.gradients[w.id] for w in weights), *state(), *state()))
    if master:
        graph.optimizer("aten::_foreach_copy_", (*weights, *updated))
