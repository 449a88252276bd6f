"""Parameters by module, active parameters, FLOPs and KV cache of any model that trine describes by its shapes."""

from __future__ import annotations

from dataclasses import dataclass

from trine.workload.architecture.blocks import Attention, Mixture, Mlp
from trine.workload.architecture.model import Architecture, Layer, Tower
from trine.workload.architecture.weights import num_active_elements, num_elements
from trine.workload.synthesis.spec import Bert, EncoderDecoder, ModelSpec, Transformer

#: Bytes of an element of a KV cache in 16 bits.
CACHE_ITEM_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleCount:
    """Parameters of one kind of module; ``active``: those that one token uses."""

    module: str
    parameters: int
    active: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCounts:
    """Numbers that follow from a model's shapes.

    sequence: tokens of a sample, for the FLOPs and the cache. forward_flops: of one token of it, with the tokens that
    its queries see. kv_bytes_per_token: what one more token adds to the cache in 16 bits, beyond all windows;
    kv_bytes: of a whole sample. left_out: parameters that a checkpoint may have besides.
    """

    parameters: int
    active: int
    modules: tuple[ModuleCount, ...]
    sequence: int
    forward_flops: int
    kv_bytes_per_token: float
    kv_bytes: int
    left_out: str


def counts_of(spec: ModelSpec) -> ModelCounts | None:
    """Return the counts of a model of tokens; None for convolutional networks."""
    model = described(spec)
    if model is None:
        return None
    modules = [
        ModuleCount(module=name, parameters=num_elements(weights), active=num_active_elements(weights))
        for name, weights in model.modules().items()
    ]
    count = len(model.predicted)
    if count:
        left_out = f"{count} {'layer' if count == 1 else 'layers'} for multi-token prediction"
    else:
        left_out = ""
    is_generator = model.head or not model.towers
    has_cache = is_generator and any(getattr(mixer, "causal", True) for mixer in model.mixers())
    cache_per_token = float(model.cache_per_token * CACHE_ITEM_BYTES) if has_cache else 0.0
    cache_bytes = model.cache_elements(model.sequence) * CACHE_ITEM_BYTES if has_cache else 0
    return ModelCounts(
        parameters=model.num_parameters,
        active=model.num_active,
        modules=tuple(modules),
        sequence=model.sequence,
        forward_flops=model.forward_flops(model.sequence) // model.sequence,
        kv_bytes_per_token=cache_per_token,
        kv_bytes=cache_bytes,
        left_out=left_out,
    )


def described(spec: ModelSpec) -> Architecture | None:
    """Return a model as layers over blocks; None for convolutional networks."""
    if isinstance(spec, Architecture):
        return spec
    if isinstance(spec, Transformer):
        return _transformer(spec)
    if isinstance(spec, Bert):
        return _bert(spec)
    return _encoder_decoder(spec) if isinstance(spec, EncoderDecoder) else None


def _transformer(spec: Transformer) -> Architecture:
    gated = spec.activation == "swiglu"
    network: Mlp | Mixture = Mlp(ffn=max(spec.ffn, 1), gated=gated, biases=spec.biases == "all")
    if spec.experts is not None:
        network = Mixture(experts=spec.experts.count, top_k=spec.experts.top_k, ffn=spec.experts.ffn)
    mixer = Attention(
        heads=spec.heads, kv_heads=spec.kv_heads, head_size=spec.head_size, biases=spec.biases,
        norms="heads" if spec.qk_norm else "none", rotary=spec.rotates,
    )  # fmt: skip
    return Architecture(
        name=spec.name, hidden=spec.hidden, vocab=spec.vocab, sequence=spec.sequence, norm=spec.norm,
        layers=(Layer(mixer=mixer, feed_forward=network, norm=spec.norm),) * spec.layers,
        positions=spec.max_positions or 0, max_context=spec.max_context or spec.max_positions or 0,
        embedding_norm=spec.embedding_norm, tied_embeddings=spec.tied_embeddings, stored=spec.stored,
    )  # fmt: skip


def _bert(spec: Bert) -> Architecture:
    """Return the published encoder with its pooler, without the heads of pre-training."""
    size = spec.hidden // spec.heads
    mixer = Attention(heads=spec.heads, kv_heads=spec.heads, head_size=size, biases="all", causal=False, rotary=False)
    layer = Layer(mixer=mixer, feed_forward=Mlp(ffn=spec.ffn, gated=False, biases=True), norm="layer")
    return Architecture(
        name=spec.name, hidden=spec.hidden, vocab=spec.vocab, sequence=spec.sequence, norm="layer", final_norm=False,
        layers=(layer,) * spec.layers, positions=spec.max_positions, token_types=spec.token_types, embedding_norm=True,
        head=False, tied_embeddings=True, further={"pooler": (spec.hidden, spec.hidden), "pooler.bias": (spec.hidden,)},
    )  # fmt: skip


def _encoder_decoder(spec: EncoderDecoder) -> Architecture:
    sizes = {"heads": spec.heads, "kv_heads": spec.heads, "head_size": spec.head_size, "rotary": False}
    masked, full = Attention(**sizes), Attention(**sizes, causal=False)  # type: ignore[arg-type]
    network, table = Mlp(ffn=spec.ffn, gated=spec.activation == "geglu"), (spec.buckets, spec.heads)
    encoder = Tower(
        hidden=spec.hidden, layers=(Layer(mixer=full, feed_forward=network),) * spec.layers,
        further={"final_norm": (spec.hidden,), "positions": table},
    )  # fmt: skip
    decoder = Layer(mixer=masked, cross=full, feed_forward=network, norms=3)
    return Architecture(
        name=spec.name, hidden=spec.hidden, vocab=spec.vocab, sequence=spec.target,
        layers=(decoder,) * spec.decoder_layers, towers={"encoder": encoder}, further={"positions": table},
        tied_embeddings=spec.tied_embeddings,
    )  # fmt: skip
