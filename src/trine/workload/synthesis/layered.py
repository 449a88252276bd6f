"""A training step of a model described as layers over blocks (:mod:`trine.workload.architecture`).

Layers are named as in :mod:`trine.workload.synthesis.transformer`: ``layers.17.attention.qkv``, ``layers.17.mlp.up``,
``layers.17.moe.router``. Each block writes the operators of its published implementation in fused form:

- Latent attention: projections down to latent features stay whole on each tensor-parallel rank (as in Megatron-core);
  those up to heads are divided. The rotated part of a key travels with its latent features.
- A window, or keys chosen by an indexer, limit the pairs of query and key (attribute ``window``).
- An indexer scores all keys in one product of queries and keys, whose output sums over the heads, as DeepGEMM's fused
  kernel does; then one operator chooses keys. The product counts pairs above the diagonal too, and its backward pass
  all keys. Under context parallelism, no message carries the indexer's keys.
- The attention of DeepSeek-V4 stays whole on each tensor-parallel rank: all heads share the one key and value of a
  token. Compressed keys are laid out as (tokens, size / ratio), so that ranks can divide them by tokens.
- A gated delta rule and a state-space mixer are a causal convolution and a chunked scan (kind ``scan``), whose time is
  that of its memory traffic (attribute ``passes``).
- Hyper-connections read a mixture of the residual streams and write to all of them.

Layers for multi-token prediction are written on request, behind the loss. Left out: vision towers, and attention over
earlier layers (Kimi K3). Models with segments, attention to an encoder, scales of branches or further tensors have no
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

from trine.errors import InputError
from trine.graph.workload import Tensor
from trine.software.precision import CastRecipe
from trine.software.profile import Software
from trine.workload.architecture.blocks import (
    Attention,
    CompressedAttention,
    FeedForward,
    Indexer,
    KimiDelta,
    LatentAttention,
    LinearAttention,
    Mamba,
    Mamba2,
    Mixer,
    Mixture,
    Mlp,
)
from trine.workload.architecture.model import Architecture, Layer
from trine.workload.synthesis.adapters import Adapters
from trine.workload.synthesis.graph import FUSED, NONE, Attributes, Graph
from trine.workload.synthesis.transformer import (
    activation_of_experts,
    adam,
    add,
    add_positions,
    attend,
    combine,
    cross_entropy,
    dispatch,
    elementwise,
    embedding,
    linear,
    norm,
    padded,
    product,
    projected,
    residual,
    rotary,
    top_k,
)
from trine.workload.synthesis.unfused import dropped

#: Products that each tensor-parallel rank computes whole.
WHOLE: Attributes = {"replicated": True}
#: Passes of a chunked scan over its inputs and outputs, forward and backward: Triton kernels of flash-linear-attention
#: and mamba-ssm write states and partial results of chunks to memory between four kernels.
SCAN_PASSES = 4.0
#: Bytes of each feature of a token: the bias of its expert times its share in float32 (4), the sum with the token (10),
#: the experts' parts joined (8) and cast (6); one kernel for all reads and writes 4. Two launches for each
#: expert. Backward: casts of both gradients (6 each), the products that make those of bias and shares (8 each), and
#: their sums (4 each); five launches for each expert.
LOOPED_BIAS: Attributes = {"passes": 7.0, "looped": 2.0}
LOOPED_BIAS_BACKWARD: Attributes = {"passes": 9.0, "looped": 5.0}


def layered(
    model: Architecture, *, batch: int, sequence: int, layers: int, dtype: str, software: Software | None = None,
    precision: CastRecipe | None = None, adapters: Adapters | None = None, predicted: int = 0,
) -> Graph:  # fmt: skip
    """Build one step (forward, backward, Adam) of the first ``layers`` layers on samples of ``sequence`` tokens.

    predicted: layers for multi-token prediction that are trained, too. Raises InputError for a model with parts that
    have no operators.
    """
    _check_parts(model)
    graph = Graph(dtype, accumulates=True, software=software, precision=precision, adapters=adapters)
    tokens = graph.tensor((batch, sequence), role="input", dtype="int64")
    targets = graph.tensor((batch, sequence), role="input", dtype="int64")
    table = graph.weight(model.vocab, model.hidden)
    x = embedding(graph, tokens, table, "embedding")
    if model.positions:
        x = add_positions(graph, x, graph.weight(model.positions, model.hidden), "positions")
    if model.embedding_norm:
        x = _normed(graph, x, model.norm, "embedding.norm")
    if graph.writes.dropout:
        x = dropped(graph, x, "embedding.dropout")
    if model.streams > 1:
        x = elementwise(graph, x, model.streams * model.hidden, "aten::repeat", "streams")
    for number, layer in enumerate(model.layers[:layers]):
        x = _LayerWriter(graph, model.hidden, layer, f"layers.{number}").write(x)
    if model.streams > 1:
        shares = _stream_shares(graph, x, model.streams, 1, "streams.shares")
        x = _combined(graph, "aten::mul", (x, shares), model.hidden, "streams.mix")
    h = _normed(graph, x, model.norm, "final_norm") if model.final_norm else x
    last = table if model.tied_embeddings else graph.weight(model.vocab, model.hidden)
    cross_entropy(graph, linear(graph, h, last, None, "head"), targets, "loss")
    for number in range(predicted):
        x = _predict_further(graph, model, number, x, tokens, table)
        h = _normed(graph, x, model.norm, f"mtp.head_norm_{number}")
        cross_entropy(graph, linear(graph, h, last, None, f"mtp.head_{number}"), targets, f"mtp.loss_{number}")
    graph.run_backward()
    adam(graph, master=dtype != "float32")
    return graph


def _predict_further(
    graph: Graph, model: Architecture, number: int, x: Tensor, tokens: Tensor, table: Tensor
) -> Tensor:
    """Write a layer for multi-token prediction on the features x of the layer before it (B, S, hidden).

    It reads the next token's embedding and x, each after a norm, through one projection (DeepSeek-V3, 2024, section
    2.2). Embedding and head are the model's.
    """
    name = f"mtp.layers.m{number}"  # no number of its own: a pipeline keeps it with the head
    embedded = _normed(
        graph, embedding(graph, tokens, table, f"mtp.embedding_{number}"), model.norm, f"{name}.token_norm"
    )
    joined = _concatenated(graph, embedded, _normed(graph, x, model.norm, f"{name}.hidden_norm"), f"{name}.join")
    x = projected(graph, joined, model.hidden, False, f"{name}.projection")
    return _LayerWriter(graph, model.hidden, model.predicted[number], name).write(x)


def _check_parts(model: Architecture) -> None:
    """Raise InputError for parts of a model that have no operators."""
    has_cross = any(layer.cross is not None for layer in model.layers)
    has_scales = any(layer.scales for layer in model.layers)
    parts = {
        "token_types": bool(model.token_types),
        "further": bool(model.further),
        "cross": has_cross,
        "scales": has_scales,
    }
    for name, is_there in parts.items():
        if is_there:
            raise InputError(f"{model.name}: trine has no step of a model with {name}", field=name)


def _combined(
    graph: Graph, name: str, inputs: Sequence[Tensor], features: int, layer: str, weights: Sequence[Tensor] = (),
    attributes: Attributes = NONE,
) -> Tensor:  # fmt: skip
    """Write one operator on activations and weights -> (B, S, features); one backward operator makes all gradients."""
    out = graph.tensor((*inputs[0].shape[:-1], features))
    op = graph.forward(name, (*inputs, *weights), (out,), layer, attributes)

    def backward() -> None:
        gradients = [graph.like(x) for x in inputs]
        trained = [weight for weight in weights if graph.trains(weight)]
        outputs = (*gradients, *map(graph.weight_gradient, trained))
        read = (graph.gradient(out), *inputs, *weights)
        graph.made(graph.backward(f"{name.rsplit('::', 1)[-1]}_backward", read, outputs, op, attributes), *trained)
        for x, gradient in zip(inputs, gradients, strict=True):
            graph.give(x, gradient, op)

    graph.on_backward(op, backward)
    return out


def _normed(graph: Graph, x: Tensor, kind: str, layer: str) -> Tensor:
    """Normalise the features of x: ``rms``, ``layer``, or ``plain``, which has no weights."""
    if kind != "plain":
        return norm(graph, x, kind, layer)
    out, statistics = graph.like(x), graph.tensor((*x.shape[:-1], 1), dtype="float32")
    op = graph.forward("aten::layer_norm", (x,), (out, statistics), layer)
    return graph.gives_back(op, x, out, "layer_norm_backward", (x, statistics))


def _stream_shares(graph: Graph, x: Tensor, count: int, scales: int, layer: str) -> Tensor:
    """Return ``count`` shares of the residual streams for each token, from a scaled projection with a base."""
    shares = projected(graph, x, count, False, layer, WHOLE)
    return _scaled(graph, shares, [graph.weight(scales), graph.weight(count)], f"{layer}.scale")


class _LayerWriter:
    """The writer of one layer. name: prefix of the names of its operators."""

    def __init__(self, graph: Graph, hidden: int, layer: Layer, name: str) -> None:
        self.graph, self.hidden, self.layer, self.name = graph, hidden, layer, name

    def write(self, x: Tensor) -> Tensor:
        """Write the layer's blocks on x (B, S, hidden), or (B, S, streams hidden)."""
        layer = self.layer
        if layer.parallel and layer.mixer is not None and layer.feed_forward is not None:
            return self._in_parallel(x, layer.mixer, layer.feed_forward)
        if layer.mixer is not None:
            name = f"{self.name}.{_PARTS[type(layer.mixer).__name__]}"
            x = self._branch(x, name, lambda h: mixed(self.graph, layer.mixer, h, self.hidden, name))
        if layer.feed_forward is not None:
            x = self._network(x, layer.feed_forward, layer.beside)
        return x

    def _in_parallel(self, x: Tensor, mixer: Mixer, network: FeedForward) -> Tensor:
        """Write both blocks on the same input: with one norm for both, or one each."""
        graph, layer = self.graph, self.layer
        attention, mlp = f"{self.name}.attention", f"{self.name}.mlp"
        h = _normed(graph, x, layer.norm, f"{attention}.norm")
        second = _normed(graph, x, layer.norm, f"{mlp}.norm") if layer.norms > 1 else h
        out = mixed(graph, mixer, h, self.hidden, attention)
        out = add(graph, out, fed_forward(graph, network, second, self.hidden, mlp), f"{mlp}.sum")
        return residual(graph, x, out, f"{mlp}.add")

    def _network(self, x: Tensor, network: FeedForward, beside: FeedForward | None) -> Tensor:
        name = f"{self.name}.{_PARTS[type(network).__name__]}"

        def write(h: Tensor) -> Tensor:
            out = fed_forward(self.graph, network, h, self.hidden, name)
            if beside is None:
                return out
            other = f"{self.name}.{_PARTS[type(beside).__name__]}"
            out = _normed(self.graph, out, self.layer.norm, f"{name}.norm_1")
            second = _normed(self.graph, h, self.layer.norm, f"{other}.norm")
            second = fed_forward(self.graph, beside, second, self.hidden, other)
            second = _normed(self.graph, second, self.layer.norm, f"{other}.norm_2")
            return add(self.graph, out, second, f"{other}.sum")

        return self._branch(x, name, write)

    def _branch(self, x: Tensor, name: str, write: Callable[[Tensor], Tensor]) -> Tensor:
        """Write a block between its norms and its residual."""
        graph, layer, streams = self.graph, self.layer, self.layer.streams
        h, shares = x, None
        if streams > 1:
            shares = _stream_shares(graph, x, streams * streams + 2 * streams, 3, f"{name}.shares")
            h = _combined(graph, "aten::mul", (x, shares), self.hidden, f"{name}.read")
        if layer.norms_each:
            h = _normed(graph, h, layer.norm, f"{name}.norm")
        out = write(h)
        if layer.norms_each > 1:
            out = _normed(graph, out, layer.norm, f"{name}.norm_after")
        if shares is not None:
            out = _combined(graph, "aten::mul", (out, shares), streams * self.hidden, f"{name}.spread")
        return residual(graph, x, out, f"{name}.add")


#: Parts of a layer's name.
_PARTS = {
    "Attention": "attention", "LatentAttention": "attention", "CompressedAttention": "attention",
    "LinearAttention": "linear", "KimiDelta": "linear", "Mamba2": "mamba", "Mamba": "mamba", "Mlp": "mlp",
    "Mixture": "moe",
}  # fmt: skip


def mixed(graph: Graph, mixer: Mixer | None, h: Tensor, hidden: int, name: str) -> Tensor:
    """Write a mixer of tokens on h (B, S, hidden) -> (B, S, hidden)."""
    if isinstance(mixer, Attention):
        return _attention(graph, mixer, h, hidden, name)
    if isinstance(mixer, LatentAttention):
        return _latent(graph, mixer, h, hidden, name)
    if isinstance(mixer, CompressedAttention):
        return _compressed(graph, mixer, h, hidden, name)
    if isinstance(mixer, LinearAttention):
        return _delta_rule(graph, mixer, h, hidden, name)
    if isinstance(mixer, KimiDelta):
        return _kimi_delta(graph, mixer, h, hidden, name)
    if isinstance(mixer, Mamba2):
        return _mamba2(graph, mixer, h, hidden, name)
    assert isinstance(mixer, Mamba)
    return _mamba(graph, mixer, h, hidden, name)


def _heads(graph: Graph, x: Tensor, heads: int, size: int) -> Tensor:
    """Return heads of x as (B, heads, S, size)."""
    batch, length = x.shape[:2]
    return graph.view(x, (batch, heads, length, size))


def _seen(window: int, indexer: Indexer | None, length: int) -> Attributes:
    """Return the attributes of an attention whose queries see fewer tokens than the sample has."""
    seen = window if indexer is None else indexer.top_k
    return {"window": seen} if 0 < seen < length else NONE


def _attention(graph: Graph, mixer: Attention, h: Tensor, hidden: int, name: str) -> Tensor:
    heads, keys, size, value = mixer.heads, mixer.kv_heads, mixer.head_size, mixer.values
    has_bias = mixer.biases != "none"
    values = 0 if mixer.keys_are_values else keys * value
    if mixer.indexer is not None and not mixer.indexer.is_shared:
        _index(graph, mixer.indexer, h, h, f"{name}.indexer")
    qkv = projected(graph, h, heads * size + keys * size + values, has_bias, f"{name}.qkv")
    gate = projected(graph, h, heads * value, has_bias, f"{name}.gate") if mixer.gate == "features" else None
    if mixer.gate == "heads":
        gate = projected(graph, h, heads, False, f"{name}.gate")
    qkv = _prepared(graph, mixer, qkv, f"{name}.rotary")
    parts = [_heads(graph, qkv, heads, size), _heads(graph, qkv, keys, size), _heads(graph, qkv, keys, value)]
    sinks = [graph.weight(heads)] if mixer.sinks else []
    seen = _seen(mixer.window, mixer.indexer, h.shape[1])
    out = attend(graph, (qkv,), parts, f"{name}.core", causal=mixer.causal, further=seen, weights=sinks)
    if gate is not None:
        out = _gated(graph, out, gate, f"{name}.gated")
    return projected(graph, out, hidden, mixer.biases == "all", f"{name}.out")


def _prepared(graph: Graph, mixer: Attention, qkv: Tensor, layer: str) -> Tensor:
    """Normalise and rotate queries and keys, in one operator."""
    norms: tuple[Tensor, ...] = ()
    if mixer.norms == "heads":
        norms = graph.weight(mixer.head_size), graph.weight(mixer.head_size)
    if mixer.norms == "features":
        norms = graph.weight(mixer.heads * mixer.head_size), graph.weight(mixer.kv_heads * mixer.head_size)
    if not mixer.rotary and not norms:
        return qkv
    out = graph.like(qkv)
    op_name = "qk_norm_rotary" if norms else "apply_rotary"
    op = graph.forward(op_name, (qkv, *norms), (out,), layer)
    return graph.gives_back(op, qkv, out, f"{op_name}_backward", (qkv, *norms) if norms else (), norms)


def _gated(graph: Graph, x: Tensor, gate: Tensor, layer: str) -> Tensor:
    """Multiply x by the sigmoid of a gate."""
    return _combined(graph, "mul_sigmoid", (x, gate), x.shape[-1], layer)


def _first(graph: Graph, x: Tensor, features: int, layer: str) -> Tensor:
    """Copy the first features of x; other operators read the others in place."""
    part = graph.view(x, (*x.shape[:-1], features))
    out = graph.tensor(part.shape)
    op = graph.forward("aten::clone", (part,), (out,), layer)
    return graph.gives_back(op, x, out, "narrow_backward")


def _scaled(graph: Graph, x: Tensor, weights: Sequence[Tensor], layer: str, attributes: Attributes = NONE) -> Tensor:
    """Add or multiply trained vectors to x, in one pass."""
    out = graph.like(x)
    op = graph.forward("aten::add", (x, *weights), (out,), layer, attributes)
    return graph.gives_back(op, x, out, "add_backward", (), tuple(weights), attributes)


def _index(
    graph: Graph, indexer: Indexer, queries: Tensor, h: Tensor, name: str, keys: Tensor | None = None, ratio: int = 1
) -> None:
    """Write an indexer's projections, scores and choice; its own loss trains it (DeepSeek-V3.2, 2025, section 2.1).

    keys: of the indexer, if they are not a projection of h; each stands for ``ratio`` tokens.
    """
    batch, length = h.shape[:2]
    q = projected(graph, queries, indexer.heads * indexer.size, False, f"{name}.q", WHOLE)
    if keys is None:
        keys = norm(graph, projected(graph, h, indexer.size, False, f"{name}.k", WHOLE), "layer", f"{name}.k_norm")
    weights = projected(graph, h, indexer.heads, False, f"{name}.weights", WHOLE)
    num_keys = max(1, length // ratio)
    scores = _combined(graph, "aten::linear", (q, keys, weights), num_keys, f"{name}.scores", attributes=WHOLE)
    chosen = graph.tensor((batch, length, min(indexer.top_k, num_keys)), dtype="int32")
    op = graph.forward("aten::topk", (scores,), (chosen,), f"{name}.choice", WHOLE)

    def backward() -> None:
        gradient = graph.like(scores)
        graph.backward("topk_backward", (scores, chosen), (gradient,), op, WHOLE)
        graph.give(scores, gradient, op)

    graph.on_backward(op, backward)


def _latent(graph: Graph, mixer: LatentAttention, h: Tensor, hidden: int, name: str) -> Tensor:
    heads, size = mixer.heads, mixer.head_size
    latent = h
    if mixer.query_rank:
        latent = projected(graph, h, mixer.query_rank, mixer.biases, f"{name}.q_down", WHOLE)
        latent = norm(graph, latent, "rms", f"{name}.q_norm")
    q = projected(graph, latent, heads * size, False, f"{name}.q_up")
    q = rotary(graph, q, f"{name}.q_rotary")
    kv = projected(graph, h, mixer.kv_rank + mixer.rotated, mixer.biases, f"{name}.kv_down", WHOLE)
    kv = _latent_norm(graph, kv, mixer.kv_rank, f"{name}.kv_norm")
    kv = projected(graph, kv, heads * (mixer.plain + mixer.value), False, f"{name}.kv_up")
    kv = _rotated_keys(graph, kv, heads * (size + mixer.value), f"{name}.k_rotary")
    if mixer.indexer is not None and not mixer.indexer.is_shared:
        _index(graph, mixer.indexer, latent, h, f"{name}.indexer")
    parts = [_heads(graph, q, heads, size), _heads(graph, kv, heads, size), _heads(graph, kv, heads, mixer.value)]
    seen = _seen(0, mixer.indexer, h.shape[1])
    out = attend(graph, (q, kv), parts, f"{name}.core", causal=True, further=seen)
    if mixer.gate:
        out = _gated(graph, out, projected(graph, h, heads * mixer.value, False, f"{name}.gate"), f"{name}.gated")
    return projected(graph, out, hidden, mixer.biases, f"{name}.out")


def _rotated_keys(graph: Graph, kv: Tensor, features: int, layer: str) -> Tensor:
    """Write keys with their rotated part, and values, from unrotated ones; the gradient needs neither (rotations are
    linear)."""
    out = graph.tensor((*kv.shape[:-1], features))
    op = graph.forward("apply_rotary", (kv,), (out,), layer)
    return graph.gives_back(op, kv, out, "apply_rotary_backward")


def _latent_norm(graph: Graph, x: Tensor, rank: int, layer: str) -> Tensor:
    """Normalise the first ``rank`` features of x; the others pass."""
    weight, out = graph.weight(rank), graph.tensor((*x.shape[:-1], rank))
    statistics = graph.tensor((*x.shape[:-1], 1), dtype="float32")
    op = graph.forward("aten::rms_norm", (x, weight), (out, statistics), layer)
    return graph.gives_back(op, x, out, "rms_norm_backward", (x, weight, statistics), (weight,))


def _compressed(graph: Graph, mixer: CompressedAttention, h: Tensor, hidden: int, name: str) -> Tensor:
    heads, size, length = mixer.heads, mixer.head_size, h.shape[1]
    latent = projected(graph, h, mixer.query_rank, False, f"{name}.q_down", WHOLE)
    latent = norm(graph, latent, "rms", f"{name}.q_norm")
    q = projected(graph, latent, heads * size, False, f"{name}.q_up", WHOLE)
    q = rotary(graph, q, f"{name}.q_rotary")
    kv = norm(graph, projected(graph, h, size, False, f"{name}.kv", WHOLE), "rms", f"{name}.kv_norm")
    if mixer.ratio:
        kv = _concatenated(graph, kv, _pooled(graph, mixer, size, h, f"{name}.compressor"), f"{name}.join")
    if mixer.indexer is not None:
        keys = _pooled(graph, mixer, mixer.indexer.size, h, f"{name}.indexer.compressor")
        _index(graph, mixer.indexer, latent, h, f"{name}.indexer", keys, mixer.ratio)
    parts = [_heads(graph, q, heads, size), *(_heads(graph, kv, 1, size) for _ in range(2))]
    further, sinks = _window_of(mixer.pairs(length), length), [graph.weight(heads)]
    out = attend(graph, (q, kv), parts, f"{name}.core", causal=True, further=further, weights=sinks)
    down = _grouped(graph, out, mixer.out_groups, mixer.out_rank, f"{name}.out_down")
    return projected(graph, down, hidden, False, f"{name}.out", WHOLE)


def _window_of(pairs: int, length: int) -> Attributes:
    """Return the window in which ``length`` tokens have about as many pairs of query and key."""
    tokens = 2 * length + 1
    seen = (tokens - isqrt(max(0, tokens**2 - 8 * pairs))) // 2
    return {"window": seen} if 0 < seen < length else NONE


def _concatenated(graph: Graph, x: Tensor, other: Tensor, layer: str) -> Tensor:
    """Concatenate the features of two tensors."""
    out = graph.tensor((*x.shape[:-1], x.shape[-1] + other.shape[-1]))
    op = graph.forward("aten::cat", (x, other), (out,), layer)

    def backward() -> None:
        gradients = graph.like(x), graph.like(other)
        graph.backward("cat_backward", (graph.gradient(out),), gradients, op)
        graph.give(x, gradients[0], op)
        graph.give(other, gradients[1], op)

    graph.on_backward(op, backward)
    return out


def _pooled(graph: Graph, mixer: CompressedAttention, size: int, h: Tensor, name: str) -> Tensor:
    """Write the pooling of ``ratio`` tokens into one by learned shares, and its norm -> (B, S, size / ratio)."""
    width = size * (2 if mixer.is_overlapping else 1)
    values = projected(graph, h, width, False, f"{name}.kv", WHOLE)
    shares = projected(graph, h, width, False, f"{name}.gate", WHOLE)
    weights = [graph.weight(mixer.ratio, width), graph.weight(size)]  # positions, and the norm
    return _combined(graph, "pool_sigmoid", (values, shares), -(-size // mixer.ratio), f"{name}.pool", weights)


def _grouped(graph: Graph, x: Tensor, groups: int, rank: int, layer: str) -> Tensor:
    """Multiply each of ``groups`` parts of x's features by a matrix of its own -> (B, S, groups rank)."""
    batch, length, features = x.shape
    parts = graph.view(x, (batch, length * groups, features // groups))
    weight = graph.weight(groups, features // groups, rank, product=layer)
    out = product(graph, parts, weight, "_grouped_mm", layer, WHOLE)
    return graph.view(out, (batch, length, groups * rank))


def _convolved(graph: Graph, x: Tensor, width: int, has_bias: bool, layer: str) -> Tensor:
    """Write a causal convolution of each feature over ``width`` tokens, with its activation."""
    weights = [graph.weight(width, x.shape[-1]), *([graph.weight(x.shape[-1])] if has_bias else [])]
    out = graph.like(x)
    op = graph.forward("causal_conv_swish", (x, *weights), (out,), layer)
    return graph.gives_back(op, x, out, "causal_conv_swish_backward", (x, *weights), tuple(weights))


def _delta_rule(graph: Graph, mixer: LinearAttention, h: Tensor, hidden: int, name: str) -> Tensor:
    mixed_features = 2 * mixer.keys + mixer.values
    qkv = projected(graph, h, mixed_features, False, f"{name}.qkv")
    gate = projected(graph, h, mixer.values, False, f"{name}.gate")
    decay = projected(graph, h, 2 * mixer.value_heads, False, f"{name}.decay")
    qkv = _convolved(graph, qkv, mixer.conv, False, f"{name}.conv")
    vectors = [graph.weight(mixer.value_heads), graph.weight(mixer.value_heads)]
    out = _scan_with(graph, "gated_delta_rule", qkv, decay, mixer.values, vectors, f"{name}.scan")
    out = _gated_norm(graph, out, gate, mixer.value_size, f"{name}.norm")
    return projected(graph, out, hidden, False, f"{name}.out")


def _scan_with(
    graph: Graph, kind: str, x: Tensor, decay: Tensor, features: int, weights: Sequence[Tensor], layer: str
) -> Tensor:
    """Write a chunked scan with decays of each token -> (B, S, features)."""
    return _combined(graph, kind, (x, decay), features, layer, weights, {"passes": SCAN_PASSES})


def _gated_norm(graph: Graph, x: Tensor, gate: Tensor, size: int, layer: str) -> Tensor:
    """Normalise the features of each head (``size``), and multiply by a gate."""
    return _combined(graph, "norm_gate_swish", (x, gate), x.shape[-1], layer, [graph.weight(size)])


def _kimi_delta(graph: Graph, mixer: KimiDelta, h: Tensor, hidden: int, name: str) -> Tensor:
    features, size = mixer.heads * mixer.head_size, mixer.head_size
    qkv = projected(graph, h, 3 * features, False, f"{name}.qkv")
    qkv = _convolved(graph, qkv, mixer.conv, False, f"{name}.conv")
    decay = projected(graph, h, size, False, f"{name}.decay_down", WHOLE)
    decay = projected(graph, decay, features, True, f"{name}.decay_up")
    beta = projected(graph, h, mixer.heads, False, f"{name}.beta")
    qkv = _gated(graph, qkv, beta, f"{name}.beta_mul")
    out = _scan_with(graph, "kimi_delta_rule", qkv, decay, features, [graph.weight(mixer.heads)], f"{name}.scan")
    gate = h
    if not mixer.full_gate:
        gate = projected(graph, h, size, False, f"{name}.gate_down", WHOLE)
    gate = projected(graph, gate, features, not mixer.full_gate, f"{name}.gate")
    return projected(graph, _gated_norm(graph, out, gate, size, f"{name}.norm"), hidden, False, f"{name}.out")


def _mamba2(graph: Graph, mixer: Mamba2, h: Tensor, hidden: int, name: str) -> Tensor:
    inner, mixed_features = mixer.inner, mixer.inner + 2 * mixer.groups * mixer.state
    x = projected(graph, h, mixed_features, mixer.biases, f"{name}.in")
    gate = projected(graph, h, inner, mixer.biases, f"{name}.gate")
    step = projected(graph, h, mixer.heads, mixer.biases, f"{name}.step")
    x = _convolved(graph, x, mixer.conv, mixer.conv_bias, f"{name}.conv")
    vectors = [graph.weight(mixer.heads) for _ in range(3)]
    x = _scan_with(graph, "state_space_scan", x, step, inner, vectors, f"{name}.scan")
    x = _gated_norm(graph, x, gate, inner, f"{name}.norm")
    return projected(graph, x, hidden, mixer.biases, f"{name}.out")


def _mamba(graph: Graph, mixer: Mamba, h: Tensor, hidden: int, name: str) -> Tensor:
    inner, rank, state = mixer.inner, mixer.rank, mixer.state
    x = projected(graph, h, inner, mixer.biases, f"{name}.in")
    gate = projected(graph, h, inner, mixer.biases, f"{name}.gate")
    x = _convolved(graph, x, mixer.conv, mixer.conv_bias, f"{name}.conv")
    small = projected(graph, x, rank + 2 * state, False, f"{name}.x")
    if mixer.norms:
        small = norm(graph, small, "rms", f"{name}.small_norm")
    step = projected(graph, _first(graph, small, rank, f"{name}.split"), inner, True, f"{name}.step")
    vectors = [graph.weight(inner, state), graph.weight(inner)]
    x = _scan_with(graph, "selective_scan", x, step, inner, vectors, f"{name}.scan")
    return projected(graph, _gated(graph, x, gate, f"{name}.gated"), hidden, mixer.biases, f"{name}.out")


def fed_forward(graph: Graph, network: FeedForward, h: Tensor, hidden: int, name: str) -> Tensor:
    """Write a feed-forward network or a mixture of experts on h (B, S, hidden) -> (B, S, hidden)."""
    if isinstance(network, Mlp):
        return _mlp(graph, network, h, hidden, name)
    return _mixture(graph, network, h, hidden, name)


def _activation_name(gated: bool) -> str:
    return "swiglu" if gated else "aten::gelu"


def _mlp(graph: Graph, network: Mlp, h: Tensor, hidden: int, name: str) -> Tensor:
    return projected(graph, _widened(graph, network, h, name), hidden, network.biases, f"{name}.down")


def _widened(graph: Graph, network: Mlp, h: Tensor, name: str) -> Tensor:
    """Write the up projection of a network and its activation -> (B, S, ffn)."""
    width = network.ffn * (2 if network.gated else 1)
    h = projected(graph, h, width, network.biases, f"{name}.gate_up" if network.gated else f"{name}.up")
    return elementwise(graph, h, network.ffn, _activation_name(network.gated), f"{name}.act")


def _biased_experts(graph: Graph, x: Tensor, experts: int, layer: str, attributes: Attributes) -> Tensor:
    """Add the bias of each expert to its tokens x (B, S k, features), as the software does."""
    weights = [graph.weight(experts, x.shape[-1])]
    if graph.writes.expert_biases == "added":
        return _scaled(graph, x, weights, layer, attributes)
    if layer.endswith("up_bias"):
        return _scaled(graph, x, weights, layer, {**attributes, **FUSED})
    out = graph.like(x)
    op = graph.forward("aten::add", (x, *weights), (out,), layer, {**attributes, **LOOPED_BIAS})
    return graph.gives_back(op, x, out, "add_backward", (), tuple(weights), {**attributes, **LOOPED_BIAS_BACKWARD})


def _mixture(graph: Graph, network: Mixture, h: Tensor, hidden: int, name: str) -> Tensor:
    shape: Attributes = {"num_experts": network.experts, "top_k": network.top_k}
    of_experts: Attributes = {"expert": True, **shape}
    routes = shape
    if network.groups:
        routes = {**shape, "groups": network.groups, "top_groups": network.top_groups}
    width, ups = network.latent or hidden, (2 if network.gated else 1) * network.ffn
    routed = h
    if network.router_scales:
        scales = [graph.weight(hidden), graph.weight(network.experts)]
        routed = _scaled(graph, h, scales, f"{name}.router.scale")
    logits = product(graph, routed, graph.weight(hidden, network.experts), "matmul", f"{name}.router", shape)
    if network.biases:
        logits = _scaled(graph, logits, [graph.weight(network.experts)], f"{name}.router.bias", shape)
    chances = elementwise(graph, logits, network.experts, "aten::softmax", f"{name}.softmax", shape)
    shares, numbers = top_k(graph, chances, network.top_k, f"{name}.topk", shape)
    x = h
    if network.latent:
        x = projected(graph, h, width, False, f"{name}.latent_down", WHOLE)
    if network.latent_norm:
        x = norm(graph, x, "rms", f"{name}.latent_norm")
    x = dispatch(graph, x, numbers, f"{name}.dispatch", routes)
    shared = None
    if network.shared:
        # Behind the dispatch and before the combine, so that it can run beside their exchanges
        shared = _widened(graph, Mlp(ffn=network.shared, gated=network.gated), h, f"{name}.shared")
    x = padded(graph, x, f"{name}.experts.pad", of_experts)
    up = graph.weight(network.experts, width, ups, product=f"{name}.experts.up")
    x = product(graph, x, up, "_grouped_mm", f"{name}.experts.up", of_experts)
    if network.biases:
        x = _biased_experts(graph, x, network.experts, f"{name}.experts.up_bias", of_experts)
    activation = _activation_name(network.gated)
    x = activation_of_experts(graph, x, network.ffn, activation, f"{name}.experts.act", of_experts)
    down = graph.weight(network.experts, network.ffn, width, product=f"{name}.experts.down")
    x = product(graph, x, down, "_grouped_mm", f"{name}.experts.down", of_experts)
    if network.biases:
        x = _biased_experts(graph, x, network.experts, f"{name}.experts.down_bias", of_experts)
    x = padded(graph, x, f"{name}.experts.unpad", of_experts)
    if shared is not None:
        shared = projected(graph, shared, hidden, False, f"{name}.shared.down")
    x = combine(graph, x, shares, numbers, f"{name}.combine", routes)
    if network.latent:
        x = projected(graph, x, hidden, False, f"{name}.latent_up", WHOLE)
    if shared is None:
        return x
    if network.shared_gate:
        shared = _gated(
            graph, shared, projected(graph, h, 1, False, f"{name}.shared.gate", WHOLE), f"{name}.shared.mul"
        )
    return add(graph, x, shared, f"{name}.shared.add")
