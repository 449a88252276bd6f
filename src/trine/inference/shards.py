"""The part of each weight that one GPU holds and multiplies with, under tensor and expert parallelism.

Column-parallel weights are cut by outputs (heads or features), row-parallel ones by inputs. Small factors of low rank
are kept whole on each GPU. KV heads fewer than the GPUs are replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from trine.errors import InputError
from trine.inference.job import ServingLayout
from trine.inference.precision import ServedPrecision
from trine.workload.architecture.blocks import (
    Attention,
    CompressedAttention,
    FeedForward,
    KimiDelta,
    LatentAttention,
    LinearAttention,
    Mamba,
    Mamba2,
    Mixer,
    Mixture,
    Mlp,
)
from trine.workload.architecture.weights import Weight

#: Weights cut by outputs, and by inputs; all others are whole on each GPU.
_COLUMN = frozenset({
    "q", "k", "v", "q_up", "kv_up", "gate", "up", "gate_up", "shared.gate", "shared.up", "out_down", "qkv", "in",
    "beta_and_decay", "step", "beta", "decay_up", "conv", "q_conv", "k_conv", "v_conv",
})  # fmt: skip
_ROW = frozenset({"out", "down", "shared.down", "out_up", "x"})
#: Second factors of a weight of low rank.
_SECOND_FACTORS = frozenset({"q_up", "kv_up", "gate_up", "decay_up", "step", "out_down"})
_EXPERTS = frozenset({"experts.up", "experts.down"})
#: Weights that stay in 16 bits whatever the precision.
_HALF_ALWAYS = frozenset({"router", "shared.gate_of_all"})
#: Bytes of a weight in 16 bits.
HALF = 2.0


@dataclass(frozen=True, slots=True)
class LocalProduct:
    """A product of each token with a weight on one GPU: outputs x inputs, bytes of an element, arithmetic."""

    outputs: int
    inputs: int
    weight_bytes: float
    dtype: str

    @property
    def num_bytes(self) -> float:
        """Bytes of the weight."""
        return self.outputs * self.inputs * self.weight_bytes


def check_layout(block: Mixer | FeedForward, layout: ServingLayout) -> None:
    """Raise InputError if a layout does not divide a block."""
    tp = layout.tp
    if isinstance(block, Attention):
        _check("heads", block.heads, tp, "tp")
        if block.kv_heads % tp and tp % block.kv_heads:
            raise InputError(f"tp {tp} and the {block.kv_heads} KV heads do not divide each other", field="tp")
    elif isinstance(block, LatentAttention | CompressedAttention | KimiDelta | Mamba2):
        _check("heads", block.heads, tp, "tp")
    elif isinstance(block, LinearAttention):
        _check("value heads", block.value_heads, tp, "tp")
    elif isinstance(block, Mamba):
        _check("inner features", block.inner, tp, "tp")
    elif isinstance(block, Mixture):
        _check("experts", block.experts, layout.ep, "ep")
        _check("features of an expert", block.ffn, layout.expert_tp, "tp x attention_dp / ep")
    elif isinstance(block, Mlp):
        _check("features of the network", block.ffn, tp, "tp")


def _check(what: str, size: int, ways: int, field: str) -> None:
    if size % ways:
        raise InputError(f"{ways} ways do not divide the {size:,} {what}", field=field)


def local_products(
    block: Mixer | FeedForward, hidden: int, layout: ServingLayout, precision: ServedPrecision
) -> list[LocalProduct]:
    """Return the products of one GPU with a block's weights, without routed experts.

    Weights that multiply the same tensor are one product, as engines fuse them (queries, keys and values; gate and up).
    """
    fused: dict[tuple[str, int, float, str], int] = {}
    for weight in block.weights(hidden):
        if weight.uses != 1 or len(weight.shape) != 2 or "conv" in weight.name or weight.name in _EXPERTS:
            continue
        outputs, inputs = _local_shape(block, weight, layout.tp)
        is_quantised = _is_quantised(block, weight, precision)
        item = precision.weight_bytes if is_quantised else HALF
        dtype = precision.products if is_quantised else "bfloat16"
        key = _input_of(weight.name), inputs, item, dtype
        fused[key] = fused.get(key, 0) + outputs
    return [LocalProduct(outputs, inputs, item, dtype) for (_, inputs, item, dtype), outputs in fused.items()]


def _input_of(name: str) -> str:
    """Return the tensor that a weight multiplies: its own for output projections, factors, routers and indexers."""
    is_alone = name in _ROW or name in _SECOND_FACTORS or name in _HALF_ALWAYS
    return name if is_alone else name.partition(".")[0] if "." in name else "hidden"


def local_bytes(block: Mixer | FeedForward, hidden: int, layout: ServingLayout, precision: ServedPrecision) -> float:
    """Return the bytes of all weights of a block on one GPU."""
    return sum(_weight_bytes(block, weight, layout, precision) for weight in block.weights(hidden))


def _weight_bytes(
    block: Mixer | FeedForward, weight: Weight, layout: ServingLayout, precision: ServedPrecision
) -> float:
    """Return the bytes of one weight on one GPU."""
    if weight.name.startswith("experts."):
        item = expert_bytes(precision) if weight.name in _EXPERTS else HALF
        return weight.size / layout.stage_gpus * item
    if len(weight.shape) != 2 or weight.uses != 1:
        return weight.size * HALF
    outputs, inputs = _local_shape(block, weight, layout.tp)
    return outputs * inputs * (precision.weight_bytes if _is_quantised(block, weight, precision) else HALF)


def expert_bytes(precision: ServedPrecision) -> float:
    """Return the bytes of a weight of an expert."""
    return precision.weight_bytes if precision.experts else HALF


def _is_quantised(block: Mixer | FeedForward, weight: Weight, precision: ServedPrecision) -> bool:
    if not precision.dense or weight.name in _HALF_ALWAYS or weight.name.startswith("indexer."):
        return False
    if isinstance(block, LatentAttention) and not precision.latent:
        return weight.name == "out"
    return True


def _local_shape(block: Mixer | FeedForward, weight: Weight, tp: int) -> tuple[int, int]:
    """Return outputs and inputs of a weight on one GPU."""
    outputs, inputs = weight.shape
    if isinstance(block, Attention) and weight.name in ("k", "v"):
        return max(outputs // tp, outputs // block.kv_heads), inputs
    if weight.name in _COLUMN:
        return -(-outputs // tp), inputs
    if weight.name in _ROW:
        return outputs, -(-inputs // tp)
    return outputs, inputs
