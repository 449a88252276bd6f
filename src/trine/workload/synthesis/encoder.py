"""Training steps of encoders (BERT) and encoder-decoders (T5, FLAN-T5), operator by operator.

Layers are named as in :mod:`trine.workload.synthesis.transformer`, such as ``layers.3.mlp.up``; an encoder-decoder has
``encoder.layers.3.mlp.up`` and ``decoder.layers.3.cross.q``. ``replicated: True`` marks products that Megatron-LM keeps
whole on each tensor-parallel rank (BERT's pooler, next-sentence head and transform before the masked tokens' logits).

The decoder's tokens are embedded right after the encoder's, so a pipeline keeps the table on its first stage (and on
the last if the head is tied). The first layers of encoder and decoder compute the relative position bias, as in Hugging
Face's T5, and all their other layers read it.
"""

from __future__ import annotations

from trine.graph.workload import Tensor
from trine.software.profile import Software
from trine.workload.synthesis.graph import Attributes, Graph
from trine.workload.synthesis.spec import Bert, EncoderDecoder
from trine.workload.synthesis.transformer import (
    adam,
    add,
    add_positions,
    attend,
    cross_entropy,
    elementwise,
    embedding,
    linear,
    norm,
    projected,
    residual,
)
from trine.workload.synthesis.unfused import dropped

REPLICATED: Attributes = {"replicated": True}


# -- BERT --------------------------------------------------------------------------------------------------------------


def bert(spec: Bert, *, batch: int, sequence: int, layers: int, dtype: str, software: Software | None = None) -> Graph:
    """Return the forward, backward and Adam step of pre-training on ``batch`` samples of ``sequence`` tokens.

    Logits cover all tokens, as in Hugging Face's BertForPreTraining and Megatron-LM.
    """
    graph = Graph(dtype, accumulates=True, software=software)
    tokens, segments, targets = (graph.tensor((batch, sequence), role="input", dtype="int64") for _ in range(3))
    table = graph.weight(spec.vocab, spec.hidden)
    x = embedding(graph, tokens, table, "embedding")
    x = add_positions(graph, x, graph.weight(spec.max_positions, spec.hidden), "positions")
    kinds = embedding(graph, segments, graph.weight(spec.token_types, spec.hidden), "segments")
    x = norm(graph, add(graph, x, kinds, "segments.add"), "layer", "embedding_norm")
    if graph.writes.dropout:
        x = dropped(graph, x, "embedding.dropout")
    for number in range(layers):
        x = _bert_layer(graph, spec, x, f"layers.{number}")
    losses = [_next_sentence(graph, spec, x)] if spec.next_sentence else []
    losses.append(_masked_tokens(graph, spec, x, table, targets))
    if len(losses) > 1:
        graph.forward("aten::add", losses, (graph.like(losses[-1]),), "loss.add")
    graph.run_backward()
    adam(graph, master=dtype != "float32")
    return graph


def _bert_layer(graph: Graph, spec: Bert, x: Tensor, name: str) -> Tensor:
    size = spec.hidden // spec.heads
    qkv = projected(graph, x, 3 * spec.hidden, True, f"{name}.attention.qkv")
    parts = [graph.view(qkv, (*x.shape[:1], spec.heads, x.shape[1], size)) for _ in range(3)]
    h = attend(graph, (qkv,), parts, f"{name}.attention.core")
    h = projected(graph, h, spec.hidden, True, f"{name}.attention.out")
    x = norm(graph, residual(graph, x, h, f"{name}.attention.add"), "layer", f"{name}.attention.norm")
    h = projected(graph, x, spec.ffn, True, f"{name}.mlp.up")
    h = projected(graph, elementwise(graph, h, spec.ffn, "aten::gelu", f"{name}.mlp.act"), spec.hidden, True,
                 f"{name}.mlp.down")  # fmt: skip
    return norm(graph, residual(graph, x, h, f"{name}.mlp.add"), "layer", f"{name}.mlp.norm")


def _next_sentence(graph: Graph, spec: Bert, x: Tensor) -> Tensor:
    """Return the two-class loss from each sample's first token."""
    hidden = spec.hidden
    # x (B, S, features) -> its first tokens, (B, 1, features)
    shape = x.shape[0], 1, x.shape[2]
    out = graph.tensor(shape)
    op = graph.forward("aten::clone", (graph.view(x, shape),), (out,), "pooler.first")
    h = graph.gives_back(op, x, out, "aten::select_backward")
    h = projected(graph, h, hidden, True, "pooler", REPLICATED)
    h = elementwise(graph, h, hidden, "aten::tanh", "pooler.act")
    targets = graph.tensor((x.shape[0], 1), role="input", dtype="int64")
    return _loss(graph, projected(graph, h, 2, True, "next_sentence", REPLICATED), targets, "next_sentence.loss")


def _masked_tokens(graph: Graph, spec: Bert, x: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    h = projected(graph, x, spec.hidden, True, "head.transform", REPLICATED)
    h = norm(graph, elementwise(graph, h, spec.hidden, "aten::gelu", "head.act"), "layer", "head.norm")
    return _loss(graph, linear(graph, h, table, graph.weight(spec.vocab), "head"), targets, "loss")


def _loss(graph: Graph, logits: Tensor, targets: Tensor, layer: str) -> Tensor:
    cross_entropy(graph, logits, targets, layer)
    return graph.tensors[graph.operators[-1].outputs[0]]


# -- T5 ----------------------------------------------------------------------------------------------------------------


def encoder_decoder(
    spec: EncoderDecoder, *, batch: int, lengths: tuple[int, int], layers: int | None, dtype: str,
    software: Software | None = None,
) -> Graph:  # fmt: skip
    """Return the forward, backward and Adam step on ``batch`` samples; ``lengths``: tokens of encoder and decoder.

    layers: maximum number of encoder layers, and of decoder layers; None for all.
    """
    graph = Graph(dtype, accumulates=True, software=software)
    sources, targets, labels = (
        graph.tensor((batch, length), role="input", dtype="int64") for length in (*lengths, lengths[1])
    )
    table = graph.weight(spec.vocab, spec.hidden)
    x = embedding(graph, sources, table, "embedding")
    y = embedding(graph, targets, table, "target_embedding")
    most = spec.layers + spec.decoder_layers if layers is None else layers
    x = _stack(graph, spec, x, None, min(most, spec.layers), "encoder")
    y = _stack(graph, spec, y, x, min(most, spec.decoder_layers), "decoder")
    if spec.tied_embeddings:
        y = _scaled(graph, y, "head.scale")
    last = table if spec.tied_embeddings else graph.weight(spec.vocab, spec.hidden)
    cross_entropy(graph, linear(graph, y, last, None, "head"), labels, "loss")
    graph.run_backward()
    adam(graph, master=dtype != "float32")
    return graph


def _stack(graph: Graph, spec: EncoderDecoder, x: Tensor, memory: Tensor | None, layers: int, name: str) -> Tensor:
    """Add the layers of the encoder, or of the decoder, which reads the encoder's output ``memory``."""
    bias = None
    for number in range(layers):
        layer = f"{name}.layers.{number}"
        h = norm(graph, x, "rms", f"{layer}.attention.norm")
        if bias is None:
            bias = relative_bias(graph, spec, x.shape[1], f"{layer}.attention.bias")
        x = residual(graph, x, _self_attention(graph, spec, h, bias, f"{layer}.attention"), f"{layer}.attention.add")
        if memory is not None:
            h = norm(graph, x, "rms", f"{layer}.cross.norm")
            x = residual(graph, x, _cross_attention(graph, spec, h, memory, f"{layer}.cross"), f"{layer}.cross.add")
        x = _mlp(graph, spec, x, f"{layer}.mlp")
    return norm(graph, x, "rms", f"{name}.final_norm")


def _self_attention(graph: Graph, spec: EncoderDecoder, h: Tensor, bias: Tensor, name: str) -> Tensor:
    qkv = projected(graph, h, 3 * spec.attended, False, f"{name}.qkv")
    parts = [graph.view(qkv, (h.shape[0], spec.heads, h.shape[1], spec.head_size)) for _ in range(3)]
    h = attend(graph, (qkv,), parts, f"{name}.core", bias)
    return projected(graph, h, spec.hidden, False, f"{name}.out")


def _cross_attention(graph: Graph, spec: EncoderDecoder, h: Tensor, memory: Tensor, name: str) -> Tensor:
    """Attend from the decoder's tokens to keys and values of the encoder's tokens, without bias and mask."""
    q = projected(graph, h, spec.attended, False, f"{name}.q")
    kv = projected(graph, memory, 2 * spec.attended, False, f"{name}.kv")
    parts = [graph.view(part, (h.shape[0], spec.heads, part.shape[1], spec.head_size)) for part in (q, kv, kv)]
    return projected(graph, attend(graph, (q, kv), parts, f"{name}.core"), spec.hidden, False, f"{name}.out")


def _mlp(graph: Graph, spec: EncoderDecoder, x: Tensor, name: str) -> Tensor:
    gated = spec.activation == "geglu"
    h = norm(graph, x, "rms", f"{name}.norm")
    num_products = 2 if gated else 1
    product = f"{name}.gate_up" if gated else f"{name}.up"
    h = projected(graph, h, spec.ffn * num_products, False, product)
    h = elementwise(graph, h, spec.ffn, "geglu" if gated else "aten::relu", f"{name}.act")
    return residual(graph, x, projected(graph, h, spec.hidden, False, f"{name}.down"), f"{name}.add")


def relative_bias(graph: Graph, spec: EncoderDecoder, length: int, layer: str) -> Tensor:
    """Return the bias on each head's scores, (1, heads, S, S), looked up by the distance of two tokens."""
    table, places = graph.weight(spec.buckets, spec.heads), graph.buffer(length, length, dtype="int64")
    out = graph.tensor((1, spec.heads, length, length), batch_dims=())
    op = graph.forward("aten::embedding", (table, places), (out,), layer)

    def backward() -> None:
        gradient = graph.weight_gradient(table)
        inputs = (graph.gradient(out), places)
        graph.made(graph.backward("aten::embedding_dense_backward", inputs, (gradient,), op), table)

    graph.on_backward(op, backward)
    return out


def _scaled(graph: Graph, x: Tensor, layer: str) -> Tensor:
    """Scale x by a number, as T5 does before a head tied to the token table."""
    out = graph.like(x)
    return graph.gives_back(graph.forward("aten::mul", (x,), (out,), layer), x, out, "mul_backward")
