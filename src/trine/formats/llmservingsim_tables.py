"""The tables of an LLMServingSim bundle: rows of shapes and microseconds (:mod:`trine.formats.llmservingsim`)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trine.common.arrays import Float64
from trine.errors import InputError
from trine.inference.deployment import step_timer
from trine.inference.expert_times import ExpertLayer, experts_us
from trine.inference.products import TOKENS, GpuTimes, gpu_times
from trine.inference.shards import local_products
from trine.inference.steps import Deployment, PromptChunk
from trine.workload.architecture.blocks import Attention, Mixer, Mixture, Mlp

#: Bounds of the bundle: tokens and sequences of a step, contexts; expert-parallel degrees.
MAX_TOKENS, MAX_SEQUENCES, MAX_CONTEXT, MAX_EP = 8_192, 1_024, 131_072, 8
#: Columns of the tables by more than one number, and those of versions up to August 2026.
ATTENTION = ("layer", "prefill_chunk", "prefill_key", "n_decode", "kv_decode", "decode_q_len", "time_us")
OLDER_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
EXPERTS = ("ep", "tokens", "activated_experts", "time_us")
_SMALLEST = 16
_ACTIVATION, _LOGIT, _LOGIT_PASSES, _SAMPLING_KERNELS = 2, 4, 3, 8
Times = Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The one attention, dense network and mixture of a model's layers; None for a kind that it lacks."""

    attention: Attention
    dense: Mlp | None
    mixture: Mixture | None


@dataclass(frozen=True, slots=True)
class ActivatedExperts(ExpertLayer):
    """Experts of one GPU when exactly ``activated`` ones receive tokens."""

    activated: int = field(default=1, kw_only=True)

    def touched(self, tokens: Float64) -> Float64:
        """Return the number of this GPU's experts that tokens choose."""
        return np.full(tokens.shape, float(self.activated))


def dense_rows(deployment: Deployment, blocks: Blocks) -> Times:
    """Yield layer, tokens and microseconds; the names come from the simulator's model files."""
    hidden, tp, attention = deployment.model.hidden, deployment.layout.tp, blocks.attention
    features = (attention.heads // tp + 2 * max(1, attention.kv_heads // tp)) * attention.head_size
    norm = _moved(deployment, 4 * _ACTIVATION * hidden)
    layers = {
        "embedding": _moved(deployment, 2 * _ACTIVATION * hidden), "layernorm": norm, "final_layernorm": norm,
        "rotary_emb": _moved(deployment, 2 * _ACTIVATION * features),
        **_products(deployment, attention, ("qkv_proj", "o_proj")),
    }  # fmt: skip
    if attention.norms != "none":
        layers["qk_norm"] = layers["rotary_emb"]
    if blocks.dense is not None:
        layers |= _products(deployment, blocks.dense, ("gate_up_proj", "down_proj"))
        layers["act_fn"] = _moved(deployment, 3 * _ACTIVATION * blocks.dense.ffn / tp)
    for layer, times in sorted(layers.items()):
        for tokens, time_us in zip(TOKENS.tolist(), times.tolist(), strict=True):
            if tokens <= MAX_TOKENS:
                yield layer, int(tokens), time_us


def _gpu_times(deployment: Deployment) -> GpuTimes:
    return gpu_times(deployment.gpu, deployment.engine.kernels)


def _products(deployment: Deployment, block: Mixer | Mlp, names: tuple[str, str]) -> dict[str, Float64]:
    """Return the times of a block's two products, each with the cast of its input."""
    precision = deployment.precision
    products = local_products(block, deployment.model.hidden, deployment.layout, precision)
    if len(products) != len(names):
        message = f"a bundle has two products in attention and network; {deployment.model.name} has {len(products)}"
        raise InputError(message, field="model")
    found = {}
    for name, each in zip(names, products, strict=True):
        times = _gpu_times(deployment).product_us(each.outputs, each.inputs, each.dtype, each.weight_bytes)
        casts = precision.casts if each.dtype != "bfloat16" else 0
        found[name] = times + casts * _moved(deployment, 1.5 * _ACTIVATION * each.inputs)
    return found


def sequence_rows(deployment: Deployment) -> Times:
    """Yield head and sampler by sequences."""
    model, times = deployment.model, _gpu_times(deployment)
    head = times.product_us(-(-model.vocab // deployment.layout.tp), model.hidden, "bfloat16", 2.0)
    sampler = _LOGIT_PASSES * _moved(deployment, 2 * model.vocab * _LOGIT) + _SAMPLING_KERNELS * times.moved_us(1)
    for layer, curve in (("lm_head", head), ("sampler", sampler)):
        for sequences, time_us in zip(TOKENS.tolist(), curve.tolist(), strict=True):
            if sequences <= MAX_SEQUENCES:
                yield layer, int(sequences), time_us


def _moved(deployment: Deployment, bytes_per_token: float) -> Float64:
    """Return the time of a memory-bound kernel at each of :data:`TOKENS`."""
    return np.array([_gpu_times(deployment).moved_us(tokens * bytes_per_token) for tokens in TOKENS])


def attention_rows(deployment: Deployment, attention: Attention) -> Times:
    """Yield attention of one prefill chunk beside equal decodes: the sum of both kernels.

    The key length of a chunk of c tokens after k ones is k + c / 2 (the simulator's query-weighted mean).
    """
    timer = step_timer(deployment)
    decodes = [(0, 0, 0.0)] + [
        (count, context, timer.decode_us(attention, count, context))
        for count in _doubled(1, MAX_SEQUENCES) for context in _doubled(_SMALLEST, MAX_CONTEXT)
    ]  # fmt: skip
    chunks = [(0, 0.0, 0.0)] + [
        (new, key, timer.prefill_us(attention, PromptChunk(new, int(key - new / 2))))
        for new in _doubled(_SMALLEST, MAX_TOKENS) for key in _key_lengths(new)
    ]  # fmt: skip
    for new, key, prefill_us in chunks:
        for count, context, decode_us in decodes:
            if (new or count) and new + count <= MAX_TOKENS:
                yield "attention", new, key, count, context, 1, prefill_us + decode_us


def older_attention(rows: Times) -> Times:
    """Yield rows of attention in the columns :data:`OLDER_ATTENTION`: cached tokens of a chunk, not its key length."""
    for _, new, key, count, context, _, time_us in rows:
        cached = int(key - new / 2)
        yield new, cached, count, context, time_us


def _key_lengths(new: int) -> list[float]:
    """Return key lengths of a chunk: without cached tokens, then with doubling numbers of them."""
    return [new / 2] + [new / 2 + cached for cached in _doubled(_SMALLEST, MAX_CONTEXT)]


def _doubled(least: int, most: int) -> list[int]:
    return [least << power for power in range((most // least).bit_length())]


def expert_rows(deployment: Deployment, mixture: Mixture) -> Times:
    """Yield experts with their router by expert parallelism, tokens and distinct experts of a GPU."""
    tp, hidden = deployment.layout.tp, deployment.model.hidden
    times = _gpu_times(deployment)
    router = times.product_us(mixture.experts, hidden, "bfloat16", 2.0)
    around = router + _moved(deployment, 2 * _ACTIVATION * hidden)
    for ep in _doubled(1, MAX_EP):
        if mixture.experts % ep:
            continue
        shape = (mixture.experts, mixture.top_k, hidden, mixture.ffn, mixture.gated, max(1, tp // ep), ep)
        measured = experts_us(ExpertLayer(*shape), deployment.gpu, deployment.engine.kernels, deployment.precision)
        ratio = measured / ExpertLayer(*shape).closed_form_us(TOKENS, deployment.gpu, deployment.precision)
        for activated in _doubled(max(1, mixture.top_k // ep), mixture.experts // ep):
            experts = ActivatedExperts(*shape, activated=activated)
            curve = ratio * experts.closed_form_us(TOKENS, deployment.gpu, deployment.precision) + around
            for tokens, time_us in zip(TOKENS.tolist(), curve.tolist(), strict=True):
                if tokens <= MAX_TOKENS and activated <= tokens * mixture.top_k:
                    yield ep, int(tokens), activated, time_us
