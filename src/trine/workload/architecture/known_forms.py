"""Architectures that one of the older, plainer descriptions expresses: all layers equal, or BERT, or T5."""

from __future__ import annotations

from typing import Any

from trine.workload.architecture.blocks import Attention, Mixture, Mlp
from trine.workload.architecture.model import Architecture, Layer
from trine.workload.synthesis.spec import Bert, EncoderDecoder, Experts, Transformer


def plain_form(model: Architecture) -> Transformer | Bert | EncoderDecoder | Architecture:
    """Return the plainest description of a model with the same parameters and operators; else the model itself.

    Searches probe models whose layers are all equal, so that this is more than a matter of taste. Layers for
    multi-token prediction have no place in the plain forms: such a model stays as it is.
    """
    first = model.layers[0]
    if any(layer != first for layer in model.layers) or model.towers or model.predicted:
        return _encoder_decoder(model) if "encoder" in model.towers else model
    if isinstance(first.mixer, Attention) and not first.mixer.causal:
        return _bert(model, first)
    return _transformer(model, first) or model


def _transformer(model: Architecture, layer: Layer) -> Transformer | None:
    """Return a decoder-only transformer, if its shapes make the same parameters."""
    mixer, network = layer.mixer, layer.feed_forward
    if not isinstance(mixer, Attention) or not isinstance(network, Mlp | Mixture) or layer.norm == "plain":
        return None
    is_usual = layer.norms == 2 and not layer.parallel and layer.streams == 1 and layer.beside is None
    is_seen = not mixer.window or 0 < model.max_positions <= mixer.window
    has_extras = mixer.gate != "none" or mixer.sinks or mixer.keys_are_values or mixer.indexer is not None
    if not is_usual or not is_seen or has_extras or mixer.norms == "features" or mixer.values != mixer.head_size:
        return None
    fields: dict[str, Any] = {
        "name": model.name, "layers": len(model.layers), "hidden": model.hidden, "heads": mixer.heads,
        "kv_heads": mixer.kv_heads, "head_size": mixer.head_size, "vocab": model.vocab, "sequence": model.sequence,
        "norm": layer.norm, "biases": mixer.biases, "max_positions": model.positions or None,
        "max_context": model.max_context or None, "stored": model.stored,
        "embedding_norm": model.embedding_norm, "tied_embeddings": model.tied_embeddings,
        "qk_norm": mixer.norms == "heads", "file": model.file, "sources": model.sources,
        "parameters": model.parameters,
        "activation": "swiglu" if network.gated else "gelu", "alibi": not mixer.rotary and not model.positions,
    }  # fmt: skip
    if isinstance(network, Mixture):
        if network.shared or network.latent or network.biases or network.router_scales or not network.gated:
            return None
        fields["experts"] = Experts(count=network.experts, top_k=network.top_k, ffn=network.ffn)
    else:
        fields["ffn"] = network.ffn
    try:
        spec = Transformer(**fields)
    except ValueError:
        return None
    return spec if spec.num_parameters == model.num_parameters else None


def _bert(model: Architecture, layer: Layer) -> Bert | Architecture:
    """Return BERT in pre-training: its heads are parameters besides those of the published encoder."""
    mixer, network = layer.mixer, layer.feed_forward
    if not isinstance(mixer, Attention) or not isinstance(network, Mlp) or not model.token_types:
        return model
    return Bert(
        name=model.name, layers=len(model.layers), hidden=model.hidden, heads=mixer.heads, ffn=network.ffn,
        vocab=model.vocab, sequence=model.sequence, max_positions=model.positions, token_types=model.token_types,
        sources=model.sources, file=model.file,
    )  # fmt: skip


def _encoder_decoder(model: Architecture) -> EncoderDecoder | Architecture:
    """Return T5, if its shapes make the same parameters."""
    layer, encoder = model.layers[0], model.towers["encoder"]
    mixer, network, table = layer.mixer, layer.feed_forward, model.further.get("positions", (0, 0))
    if not isinstance(mixer, Attention) or not isinstance(network, Mlp):
        return model
    spec = EncoderDecoder(
        name=model.name, layers=len(encoder.layers), decoder_layers=len(model.layers), hidden=model.hidden,
        heads=mixer.heads, head_size=mixer.head_size, ffn=network.ffn, vocab=model.vocab, sequence=model.sequence,
        activation="geglu" if network.gated else "relu", buckets=table[0], tied_embeddings=model.tied_embeddings,
        parameters=model.parameters, sources=model.sources, file=model.file,
    )  # fmt: skip
    return spec if spec.num_parameters == model.num_parameters else model
