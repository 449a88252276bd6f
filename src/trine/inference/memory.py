"""Memory of one GPU that serves a model: weights, activations, and the KV cache that the rest holds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from trine.inference.precision import KV_BYTES
from trine.inference.recurrence_times import STATE_BYTES
from trine.inference.shards import local_bytes
from trine.inference.steps import Deployment
from trine.workload.architecture.blocks import Attention, CompressedAttention, LatentAttention, Mixer, Mixture, Mlp

#: Bytes of an activation, of a logit, and of a weight in 16 bits.
_ACTIVATION, _LOGIT, _HALF = 2, 4, 2
#: Bytes of an element of an indexer's keys (DeepSeek-V3.2, 2025: FP8).
_INDEX_BYTES = 1
#: Copies of the hidden features of a token that live at once in a layer: residual, input and output of a block.
_HIDDEN_COPIES = 3


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Bytes of one GPU. kv_bytes: left for the KV cache, below 0 if weights and activations do not fit."""

    weights_bytes: int
    activations_bytes: int
    reserve_bytes: int
    kv_bytes: int


def serving_memory(deployment: Deployment, budget: int, sequences: int, fraction: float | None) -> ServingMemory:
    """Return the memory of one GPU. budget, sequences: limits of a step; fraction: of the engine, None: its default."""
    engine, gpu = deployment.engine, deployment.gpu
    weights = weights_bytes(deployment)
    activations = _activations_bytes(deployment, budget, sequences)
    reserve = _reserve_bytes(deployment, budget)
    share = engine.memory_fraction if fraction is None else fraction
    used = weights + reserve + activations
    if engine.reserve_holds_activations:
        used = weights + (reserve if fraction is None else 0)  # a stated fraction replaces the engine's reserve
    left = share * (gpu.memory_bytes - used) if engine.memory_of == "free" else share * gpu.memory_bytes - used
    return ServingMemory(weights, activations, reserve, math.floor(left))


def _reserve_bytes(deployment: Deployment, budget: int) -> int:
    """Return the engine's reserve. Scripts that raise the budget state a memory fraction: it adds no more reserve."""
    engine, layout = deployment.engine, deployment.layout
    tokens = min(budget, engine.default_for(deployment.gpu, engine.max_batched_tokens))
    ways = layout.tp * layout.pp
    return engine.reserve_bytes + tokens * engine.reserve_bytes_per_token + ways * engine.reserve_bytes_per_way


def weights_bytes(deployment: Deployment) -> int:
    """Return the bytes of the weights of one GPU: the layers of a stage, embedding and head on the same one."""
    model, layout = deployment.model, deployment.layout
    layers = 0.0
    for layer, count in Counter(model.layers).items():
        for block in (layer.mixer, layer.feed_forward, layer.beside):
            if block is not None:
                layers += count * local_bytes(block, model.hidden, layout, deployment.precision)
    tables = 1 if model.tied_embeddings or not model.head else 2
    embedding = tables * -(-model.vocab // layout.tp) * model.hidden * _HALF
    towers = sum(weight.size for tower in model.towers.values() for weight in tower.weights()) * _HALF
    return math.ceil(layers / layout.pp + embedding + towers)


def _activations_bytes(deployment: Deployment, budget: int, sequences: int) -> int:
    """Return the peak of activations of a step with ``budget`` tokens, and of the logits of ``sequences``."""
    model, layout = deployment.model, deployment.layout
    widest = 0
    for block in {block for layer in model.layers for block in (layer.mixer, layer.feed_forward) if block is not None}:
        if isinstance(block, Attention):
            widest = max(widest, (block.heads + 2 * block.kv_heads) * block.head_size // layout.tp)
        elif isinstance(block, LatentAttention):
            widest = max(widest, 2 * block.heads * block.head_size // layout.tp)
        elif isinstance(block, Mlp):
            widest = max(widest, 3 * block.ffn // layout.tp)
        elif isinstance(block, Mixture):
            widest = max(widest, block.top_k * (3 * block.ffn // layout.expert_tp + 2 * model.hidden) // layout.ep)
    token = _ACTIVATION * (_HIDDEN_COPIES * model.hidden + widest)
    return budget * token + min(sequences, budget) * model.vocab * _LOGIT


def kv_bytes(deployment: Deployment, tokens: int) -> float:
    """Return the bytes of the KV cache of one request of ``tokens`` tokens on one GPU."""
    return sum(_mixer_bytes(mixer, deployment, tokens) for mixer in deployment.model.mixers()) / deployment.layout.pp


def kv_bytes_per_token(deployment: Deployment) -> float:
    """Return the bytes that one more token adds on one GPU, beyond all windows."""
    full = [mixer for mixer in deployment.model.mixers() if not mixer.cache().window]
    return sum(_token_bytes(mixer, deployment) for mixer in full) / deployment.layout.pp


def _mixer_bytes(mixer: Mixer, deployment: Deployment, tokens: int) -> float:
    """Return the bytes that one layer keeps of one request on one GPU."""
    cache = mixer.cache()
    kept = min(tokens, cache.window) if cache.window else tokens
    return kept * _token_bytes(mixer, deployment) + _state_bytes(mixer, deployment)


def _token_bytes(mixer: Mixer, deployment: Deployment) -> float:
    """Return the bytes of one token of one layer: KV heads are divided, latent features are whole on each GPU."""
    if not isinstance(mixer, Attention | LatentAttention | CompressedAttention):
        return 0.0
    if isinstance(mixer, CompressedAttention) and not mixer.ratio:
        return 0.0
    ratio = mixer.ratio if isinstance(mixer, CompressedAttention) else 1
    features: float = mixer.head_size
    if isinstance(mixer, Attention):
        features = max(mixer.kv_heads // deployment.layout.tp, 1) * (mixer.head_size + mixer.values)
    elif isinstance(mixer, LatentAttention):
        features = mixer.kv_rank + mixer.rotated
    indexed = 0 if mixer.indexer is None else mixer.indexer.kept
    return (features * KV_BYTES[deployment.kv] + indexed * _INDEX_BYTES) / ratio


def _state_bytes(mixer: Mixer, deployment: Deployment) -> float:
    """Return the bytes that do not grow with the tokens: states, divided by heads, and V4's window, whole."""
    if isinstance(mixer, CompressedAttention):
        return mixer.cache().state * KV_BYTES[deployment.kv]
    return mixer.cache().state * STATE_BYTES / deployment.layout.tp
