"""DeepSeek and its relatives: latent attention, its sparse and compressed forms, and Kimi's models."""

from __future__ import annotations

from typing import Any

from trine.workload.architecture.blocks import (
    CompressedAttention,
    FeedForward,
    Indexer,
    KimiDelta,
    LatentAttention,
    Mixture,
)
from trine.workload.architecture.config_keys import Config, repeated
from trine.workload.architecture.families.common import frame, gated, mixture, num_layers
from trine.workload.architecture.families.decoders import predicted
from trine.workload.architecture.model import Architecture, Layer


def deepseek(config: Config) -> Architecture:
    """DeepSeek-V2, V3, V3.2, Kimi K2, GLM-5: latent attention, dense first layers, then shared and routed experts."""
    count = num_layers(config)
    indexers = _indexers(config, count)
    layers = [
        Layer(mixer=_latent(config, indexer), feed_forward=network)
        for indexer, network in zip(indexers, _networks(config, count), strict=True)
    ]
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "num_nextn_predict_layers")
    return frame(config, layers, predicted=predicted(config, layers[-1]))


def _latent(config: Config, indexer: Indexer | None) -> LatentAttention:
    config.ignore("q_lora_rank")
    return LatentAttention(
        heads=config.size("num_attention_heads"),
        query_rank=config.size("q_lora_rank", default=0, least=0),
        kv_rank=config.size("kv_lora_rank"),
        plain=config.size("qk_nope_head_dim"),
        rotated=config.size("qk_rope_head_dim", least=0),
        value=config.size("v_head_dim"),
        biases=config.flag("attention_bias", default=False),
        indexer=indexer,
    )


def _indexers(config: Config, count: int) -> list[Indexer | None]:
    """Return the indexer of each layer's sparse attention; some layers use an earlier layer's choice."""
    if not config.has("index_topk"):
        config.ignore("indexer_types", "index_topk_freq", "index_topk_pattern")
        return [None] * count
    config.ignore("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "index_share_for_mtp_iteration")
    kinds = repeated(config.kinds("indexer_types", ("full", "shared"), count), count, "full")
    sizes = config.size("index_n_heads"), config.size("index_head_dim"), config.size("index_topk")
    heads, size, top_k = sizes
    return [Indexer(heads=heads, size=size, top_k=top_k, is_shared=kind == "shared") for kind in kinds]


def _networks(config: Config, count: int) -> list[FeedForward]:
    """Return the network of each layer: gated in the first ones, then a mixture with shared experts."""
    dense = config.size("first_k_dense_replace", default=0, least=0)
    step = config.size("moe_layer_freq", default=1)
    kinds = config.kinds("mlp_layer_types", ("dense", "sparse"), count)
    if not kinds:
        kinds = []
        for i in range(count):
            kinds.append("dense" if i < dense or i % step else "sparse")
    network, experts = gated(config), _experts(config)
    networks = []
    for kind in kinds:
        networks.append(network if kind == "dense" else experts)
    return networks


def _experts(config: Config, **fields: Any) -> Mixture:
    ffn = config.size("moe_intermediate_size")
    shared = config.size("n_shared_experts", "num_shared_experts", default=0, least=0)
    return mixture(config, ffn=ffn, shared=shared * ffn, **fields)


def deepseek_v4(config: Config) -> Architecture:
    """DeepSeek-V4: compressed attention, hyper-connections, and a mixture in each layer."""
    count = num_layers(config)
    ratios = repeated(config.whole_items("compress_ratios", count), count, 0)
    indexer = Indexer(
        heads=config.size("index_n_heads"), size=config.size("index_head_dim"), top_k=config.size("index_topk")
    )
    experts, streams = _experts(config), config.size("hc_mult", default=4)
    layers = []
    for ratio in ratios:
        is_chosen = 0 < ratio < FULL_RATIO
        mixer = CompressedAttention(
            heads=config.size("num_attention_heads"), head_size=config.size("head_dim"),
            query_rank=config.size("q_lora_rank"), out_groups=config.size("o_groups"),
            out_rank=config.size("o_lora_rank"), window=config.size("sliding_window"), ratio=ratio,
            is_overlapping=is_chosen, indexer=indexer if is_chosen else None,
        )  # fmt: skip
        layers.append(Layer(mixer=mixer, feed_forward=experts, streams=streams))
    config.ignore("num_key_value_heads", "qk_rope_head_dim", "attention_bias", "num_hash_layers", "swiglu_limit")
    return frame(config, layers, streams=streams, predicted=predicted(config, layers[0]))


#: From this ratio on, each query sees all compressed keys.
FULL_RATIO = 128


def kimi_linear(config: Config) -> Architecture:
    """Kimi K3: Kimi delta attention in most layers, latent attention with an output gate in the others."""
    count, linear = num_layers(config), config.part("linear_attn_config")
    full = {number - 1 for number in linear.whole_items("full_attn_layers", least=1)}
    delta = KimiDelta(
        heads=linear.size("num_heads"), head_size=linear.size("head_dim"),
        conv=linear.size("short_conv_kernel_size", default=4),
        full_gate=linear.flag("use_full_rank_gate", default=False),
    )  # fmt: skip
    linear.ignore("kda_layers", "gate_lower_bound")
    linear.check_used()
    latent = LatentAttention(
        heads=config.size("num_attention_heads"), query_rank=config.size("q_lora_rank", default=0, least=0),
        kv_rank=config.size("kv_lora_rank"), plain=config.size("qk_nope_head_dim"),
        rotated=config.size("qk_rope_head_dim", least=0), value=config.size("v_head_dim"),
        gate=config.flag("mla_use_output_gate", default=False),
    )  # fmt: skip
    dense = config.size("first_k_dense_replace", default=0, least=0)
    network = gated(config)
    experts = _experts(
        config, latent=config.size("routed_expert_hidden_size", default=0, least=0),
        latent_norm=config.flag("latent_moe_use_norm", default=False),
    )  # fmt: skip
    reads_earlier = config.size("attn_res_block_size", default=0, least=0) > 0
    config.ignore("num_key_value_heads", "mla_use_nope", "moe_layer_freq", "activation_situ_beta",
                  "activation_situ_linear_beta", "head_dim")  # fmt: skip
    layers = []
    for i in range(count):
        mixer = latent if i in full else delta
        feed_forward = network if i < dense else experts
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward, reads_earlier=reads_earlier))
    return frame(config, layers, predicted=predicted(config, layers[-1]))
