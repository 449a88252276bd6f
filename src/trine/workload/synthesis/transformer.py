"""A training step of a decoder-only transformer, operator by operator.

Layers are named ``embedding``, ``layers.17.attention.qkv``, ..., ``final_norm``, ``head``, ``loss``. Those of a
mixture-of-experts layer are ``layers.3.moe.router``, ``.softmax``, ``.topk``, ``.dispatch`` (copies each token to its
``top_k`` experts), ``.experts.up``, ``.experts.act``, ``.experts.down``, ``.combine``. All of them carry the attributes
``num_experts`` and ``top_k``; operators of the experts themselves, forward and backward, carry ``expert: True`` and
their weights have the experts as dimension 0; dispatch and combine carry ``moe: "dispatch"`` and ``"combine"``. A pass
for expert parallelism replaces the latter two by its all-to-alls and divides dimension 0 of the former. Tokens of
experts are (B, S top_k, features): perfectly balanced, with no capacity factor.
"""

from __future__ import annotations

from trine.graph.workload import Tensor
from trine.workload.synthesis.graph import Attributes, Graph
from trine.workload.synthesis.layers import (
    adam,
    add_positions,
    attention,
    cross_entropy,
    elementwise,
    embedding,
    linear,
    norm,
    product,
    residual,
    rotary,
)
from trine.workload.synthesis.spec import Experts, Transformer


def transformer(spec: Transformer, *, batch: int, sequence: int, layers: int, dtype: str) -> Graph:
    """Forward, backward and Adam step of ``layers`` layers of ``spec`` on ``batch`` samples of ``sequence`` tokens."""
    graph = Graph(dtype, accumulates=True)
    tokens = graph.tensor((batch, sequence), role="input", dtype="int64")
    targets = graph.tensor((batch, sequence), role="input", dtype="int64")
    table = graph.weight(spec.vocab, spec.hidden)
    x = embedding(graph, tokens, table, "embedding")
    if spec.max_positions is not None:
        x = add_positions(graph, x, graph.weight(spec.max_positions, spec.hidden), "positions")
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


def _linear(graph: Graph, x: Tensor, features: int, biased: bool, layer: str) -> Tensor:
    weight = graph.weight(features, x.shape[-1])
    return linear(graph, x, weight, graph.weight(features) if biased else None, layer)


def _attention_block(graph: Graph, spec: Transformer, x: Tensor, name: str) -> Tensor:
    h = norm(graph, x, spec.norm, f"{name}.norm")
    h = _linear(graph, h, spec.qkv, spec.biases != "none", f"{name}.qkv")
    if spec.max_positions is None:
        norms = (graph.weight(spec.head_size), graph.weight(spec.head_size)) if spec.qk_norm else ()
        h = rotary(graph, h, f"{name}.rotary", norms)
    h = attention(graph, h, spec.heads, spec.kv_heads, spec.head_size, f"{name}.core")
    h = _linear(graph, h, spec.hidden, spec.biases == "all", f"{name}.out")
    return residual(graph, x, h, f"{name}.add")


def _mlp_block(graph: Graph, spec: Transformer, x: Tensor, name: str) -> Tensor:
    biased, gated = spec.biases == "all", spec.activation == "swiglu"
    h = norm(graph, x, spec.norm, f"{name}.norm")
    h = _linear(graph, h, spec.ffn * (2 if gated else 1), biased, f"{name}.gate_up" if gated else f"{name}.up")
    h = elementwise(graph, h, spec.ffn, "swiglu" if gated else "aten::gelu", f"{name}.act")
    h = _linear(graph, h, spec.hidden, biased, f"{name}.down")
    return residual(graph, x, h, f"{name}.add")


def _moe_block(graph: Graph, spec: Transformer, experts: Experts, x: Tensor, name: str) -> Tensor:
    shape: Attributes = {"num_experts": experts.count, "top_k": experts.top_k}
    of_experts: Attributes = {"expert": True, **shape}
    h = norm(graph, x, spec.norm, f"{name}.norm")
    logits = product(graph, h, graph.weight(spec.hidden, experts.count), "matmul", f"{name}.router", shape)
    chances = elementwise(graph, logits, experts.count, "aten::softmax", f"{name}.softmax", shape)
    shares, chosen = _top_k(graph, chances, experts.top_k, f"{name}.topk", shape)
    h = _dispatch(graph, h, chosen, f"{name}.dispatch", shape)
    up = graph.weight(experts.count, spec.hidden, 2 * experts.ffn)
    h = product(graph, h, up, "_grouped_mm", f"{name}.experts.up", of_experts)
    h = elementwise(graph, h, experts.ffn, "swiglu", f"{name}.experts.act", of_experts)
    down = graph.weight(experts.count, experts.ffn, spec.hidden)
    h = product(graph, h, down, "_grouped_mm", f"{name}.experts.down", of_experts)
    return residual(graph, x, _combine(graph, h, shares, chosen, f"{name}.combine", shape), f"{name}.add")


def _top_k(graph: Graph, chances: Tensor, k: int, layer: str, shape: Attributes) -> tuple[Tensor, Tensor]:
    """Shares and numbers of each token's experts, (B, S, k)."""
    shares = graph.tensor((*chances.shape[:-1], k))
    chosen = graph.tensor(shares.shape, dtype="int64")
    op = graph.forward("aten::topk", (chances,), (shares, chosen), layer, shape)

    def backward() -> None:
        made = graph.like(chances)
        graph.backward("topk_backward", (graph.gradient(shares), chosen), (made,), op, shape)
        graph.give(chances, made, op)

    graph.on_backward(op, backward)
    return shares, chosen


def _dispatch(graph: Graph, x: Tensor, chosen: Tensor, layer: str, shape: Attributes) -> Tensor:
    """Tokens (B, S, features), each copied to its experts: (B, S k, features), in the order of the experts."""
    batch, length, features = x.shape
    kept = {"moe": "dispatch", **shape}
    out = graph.tensor((batch, length * chosen.shape[-1], features))
    op = graph.forward("aten::index_select", (x, chosen), (out,), layer, kept)

    def backward() -> None:
        made = graph.like(x)
        graph.backward("index_select_backward", (graph.gradient(out), chosen), (made,), op, kept)
        graph.give(x, made, op)

    graph.on_backward(op, backward)
    return out


def _combine(graph: Graph, x: Tensor, shares: Tensor, chosen: Tensor, layer: str, shape: Attributes) -> Tensor:
    """Results of a token's experts (B, S k, features), added up by their shares: (B, S, features)."""
    kept = {"moe": "combine", **shape}
    out = graph.tensor((*shares.shape[:-1], x.shape[-1]))
    op = graph.forward("aten::index_add", (x, shares, chosen), (out,), layer, kept)

    def backward() -> None:
        dx, dshares = graph.like(x), graph.like(shares)
        inputs = (graph.gradient(out), x, shares, chosen)
        graph.backward("index_add_backward", inputs, (dx, dshares), op, kept)
        graph.give(x, dx, op)
        graph.give(shares, dshares, op)

    graph.on_backward(op, backward)
    return out
