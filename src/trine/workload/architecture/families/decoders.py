"""Decoders with softmax attention: Llama and its relatives, GPT, and mixtures of experts on them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from trine.workload.architecture.blocks import Attention, FeedForward, Indexer, Mixture, Mlp
from trine.workload.architecture.config_keys import Config, repeated
from trine.workload.architecture.families.common import (
    FULL,
    SLIDING,
    activation,
    attention,
    frame,
    gated,
    head_size,
    mixture,
    nearest_divisors,
    num_layers,
    windows,
)
from trine.workload.architecture.model import Architecture, Layer


def llama(config: Config) -> Architecture:
    """Llama, Yi, Mistral, Phi-3: RMS norms, a gated network, and no biases unless the config says so.

    Seed-OSS has a key of its own for the bias of the output projection.
    """
    has_biases = config.flag("attention_bias", default=False)
    has_last = config.flag("attention_out_bias", default=has_biases)
    if has_last and not has_biases:
        config.fail("attention_out_bias", "must be false without attention_bias")
    biases = "none"
    if has_biases:
        biases = "all" if has_last else "qkv"
    return _dense(config, attention(config, biases=biases))


def qwen2(config: Config) -> Architecture:
    """Qwen2, Qwen2.5 and MiMo: biases of queries, keys and values."""
    config.flag("attention_bias", default=True)
    return _dense(config, attention(config, biases="qkv"))


def qwen3(config: Config) -> Architecture:
    """Qwen3: norms of each head's queries and keys."""
    biases = "all" if config.flag("attention_bias", default=False) else "none"
    return _dense(config, attention(config, biases=biases, norms="heads"))


def exaone4(config: Config) -> Architecture:
    """EXAONE 4: norms of each head's queries and keys, and norms after the blocks, not before them.

    In a model with sliding windows, layers that see all tokens have no rotary positions. ``sliding_window_pattern``
    repeats over the layers: letters, L for a window and G for all tokens, or the layers from one G to the next.
    """
    count, network = num_layers(config), gated(config)
    attends = attention(config, norms="heads")
    window = config.size("sliding_window", default=0, least=0)
    pattern = _sliding_pattern(config) if window else "G"
    kinds = config.kinds("layer_types", (FULL, SLIDING), count)
    layers = []
    for number in range(count):
        is_sliding = kinds[number] == SLIDING if kinds else pattern[number % len(pattern)] == "L"
        if is_sliding:
            mixer = replace(attends, window=window)
        else:
            mixer = replace(attends, rotary=not window)
        layers.append(Layer(mixer=mixer, feed_forward=network))
    return frame(config, layers)


def _sliding_pattern(config: Config) -> str:
    """Return the repeated letters of EXAONE's layers, L for a window and G for all tokens."""
    value = config.get("sliding_window_pattern", default=4)
    if isinstance(value, str):
        if not value or set(value) - {"L", "G"}:
            config.fail("sliding_window_pattern", f"must have letters L and G, such as LLLG, got {value[:40]!r}")
        return value
    return "L" * (config.count("sliding_window_pattern", default=4) - 1) + "G"


def olmo2(config: Config) -> Architecture:
    """OLMo 2: norms of all queries and keys, and norms after the blocks."""
    biases = "all" if config.flag("attention_bias", default=False) else "none"
    return _dense(config, attention(config, biases=biases, norms="features"))


def _dense(config: Config, attends: Attention) -> Architecture:
    count, network = num_layers(config), gated(config)
    return frame(
        config,
        [Layer(mixer=replace(attends, window=window), feed_forward=network) for window in windows(config, count)],
        predicted=predicted(config, Layer(mixer=attends, feed_forward=network)),
    )


def predicted(config: Config, layer: Layer) -> tuple[Layer, ...]:
    """Return the layers for multi-token prediction."""
    count = config.count(
        "num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "mtp_transformer_layers", default=0,
        least=0,
    )  # fmt: skip
    return (layer,) * count


def gemma2(config: Config) -> Architecture:
    """Gemma 2: norms before and after each block, every second layer in a window, and a tied head."""
    count = num_layers(config)
    biases = "all" if config.flag("attention_bias", default=False) else "none"
    attends, network = attention(config, biases=biases), gated(config)
    kinds = config.kinds("layer_types", (FULL, SLIDING), count) or [SLIDING, FULL] * ceil(count / 2)
    window = config.size("sliding_window", default=4096)
    layers = []
    for kind in kinds[:count]:
        layers.append(
            Layer(mixer=replace(attends, window=window if kind == SLIDING else 0), feed_forward=network, norms=4)
        )
    return frame(config, layers, tied_embeddings=config.flag("tie_word_embeddings", default=True))


#: Defaults of transformers' Gemma3TextConfig, which published configs of Gemma 3 omit beside their sizes
#: (huggingface/transformers, src/transformers/models/gemma3/configuration_gemma3.py at 008f5c8).
_GEMMA3_DEFAULTS = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}


def gemma3(config: Config) -> Architecture:
    """Gemma 3: Gemma 2 with norms of each head's queries and keys; five of six layers in a window."""
    config.fill(_GEMMA3_DEFAULTS)
    count, every = num_layers(config), config.size("sliding_window_pattern", default=6)
    usual = []
    for i in range(count):
        usual.append(FULL if (i + 1) % every == 0 else SLIDING)
    kinds = config.kinds("layer_types", (FULL, SLIDING), count) or usual
    window = config.size("sliding_window", default=4096)
    attends, network = attention(config, norms="heads"), gated(config)
    layers = []
    for kind in kinds:
        layers.append(
            Layer(mixer=replace(attends, window=window if kind == SLIDING else 0), feed_forward=network, norms=4)
        )
    return frame(config, layers, tied_embeddings=config.flag("tie_word_embeddings", default=True))


def gemma4(config: Config) -> Architecture:
    """Gemma 4: layers of all tokens have larger heads, whose keys may serve as values; experts beside a network."""
    count = num_layers(config)
    kinds = config.kinds("layer_types", (FULL, SLIDING), count) or [FULL] * count
    local = attention(config, norms="heads", window=config.size("sliding_window", default=1024))
    config.ignore("num_global_key_value_heads", "global_head_dim")
    has_shared_keys = config.flag("attention_k_eq_v", default=False)
    everywhere = replace(
        local, window=0, head_size=config.size("global_head_dim", default=local.head_size),
        kv_heads=config.size("num_global_key_value_heads", default=local.kv_heads) if has_shared_keys
        else local.kv_heads, keys_are_values=has_shared_keys,
    )  # fmt: skip
    network, beside = gated(config), None
    if config.flag("enable_moe_block", default=False):
        top_k = config.size("top_k_experts", "num_experts_per_tok")
        beside = mixture(config, top_k=top_k, router_scales=True)
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    if config.size("num_kv_shared_layers", default=0, least=0):
        config.fail("num_kv_shared_layers", "layers that share keys and values are not supported")
    if config.size("hidden_size_per_layer_input", default=0, least=0):
        config.fail("hidden_size_per_layer_input", "embeddings of each layer are not supported")
    config.ignore("vocab_size_per_layer_input")
    layers = []
    for kind in kinds:
        mixer = local if kind == SLIDING else everywhere
        num_norms = 4 if beside is None else 7
        layers.append(Layer(mixer=mixer, feed_forward=network, beside=beside, norms=num_norms))
    return frame(config, layers, tied_embeddings=config.flag("tie_word_embeddings", default=True))


def mixtral(config: Config) -> Architecture:
    """Mixtral: each layer has a mixture of experts."""
    count, network = num_layers(config), mixture(config)
    attends = attention(config)
    return frame(
        config,
        [Layer(mixer=replace(attends, window=window), feed_forward=network) for window in windows(config, count)],
    )


def qwen_moe(config: Config) -> Architecture:
    """Qwen2 MoE and Qwen3 MoE: mixtures in all layers or in some, with a shared expert in Qwen2."""
    is_qwen2 = config.text("model_type") == "qwen2_moe"
    has_biases = config.flag("qkv_bias", "attention_bias", default=is_qwen2)
    biases = "qkv" if has_biases else "none"
    norms = "none" if is_qwen2 else "heads"
    attends = attention(config, biases=biases, norms=norms)
    count = num_layers(config)
    networks = qwen_networks(config, count)
    config.ignore("use_qk_norm")
    return frame(
        config,
        [
            Layer(mixer=replace(attends, window=window), feed_forward=network)
            for window, network in zip(windows(config, count), networks, strict=True)
        ],
    )


def qwen_networks(config: Config, count: int) -> list[FeedForward]:
    """Return the network of each layer: a mixture in every ``decoder_sparse_step``-th, with a gated shared expert."""
    shared = config.size("shared_expert_intermediate_size", default=0, least=0)
    step = config.size("decoder_sparse_step", default=1)
    dense = set(config.whole_items("mlp_only_layers"))
    if not config.has("num_experts", "num_local_experts"):
        config.ignore("moe_intermediate_size")
        return [gated(config)] * count
    experts = mixture(
        config, ffn=config.size("moe_intermediate_size"), shared=shared, shared_gate=bool(shared)
    )  # fmt: skip
    has_dense = dense or step > 1
    network = gated(config) if has_dense else experts
    config.ignore("intermediate_size", "mlp_bias")
    networks = []
    for i in range(count):
        networks.append(network if i in dense or (i + 1) % step else experts)
    return networks


def gpt_oss(config: Config) -> Architecture:
    """gpt-oss: biases everywhere, a sink for each head, and every second layer in a window."""
    count = num_layers(config)
    biases = "all" if config.flag("attention_bias", default=True) else "none"
    attends = attention(config, biases=biases, sinks=True)
    network = mixture(config, biases=True)
    config.ignore("swiglu_limit")
    return frame(
        config,
        [Layer(mixer=replace(attends, window=window), feed_forward=network) for window in windows(config, count)],
    )


#: Kind of attention in ``layer_types`` of Llama 4.
CHUNKED = "chunked_attention"


def llama4(config: Config) -> Architecture:
    """Llama 4: a mixture with a shared expert in every ``interleave_moe_layer_step``-th layer; no norm has weights for
    queries and keys. Layers with rotary positions attend within chunks of tokens, which trine counts as a window."""
    count, step = num_layers(config), config.size("interleave_moe_layer_step", default=1)
    attends = attention(config)
    ffn, dense_ffn = config.size("intermediate_size"), config.size("intermediate_size_mlp", default=8192)
    experts = mixture(config, ffn=ffn, shared=ffn)
    network = gated(config, ffn=dense_ffn)
    config.ignore("use_qk_norm")
    chunked = replace(attends, window=config.size("attention_chunk_size", default=8192))
    everywhere = replace(attends, rotary=False)
    layers = []
    for number, is_chunked in enumerate(_chunked_layers(config, count), start=1):
        mixer = chunked if is_chunked else everywhere
        feed_forward = network if number % step else experts
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward))
    return frame(config, layers)


def _chunked_layers(config: Config, count: int) -> list[bool]:
    """Return for each layer of Llama 4 whether it attends within chunks: all but each fourth layer by default."""
    every = config.size("no_rope_layer_interval", default=4)
    rotated = config.whole_items("no_rope_layers", count)  # 1 for a layer with rotary positions
    kinds = config.kinds("layer_types", (FULL, CHUNKED), count)
    if kinds:
        return [kind == CHUNKED for kind in kinds]
    return [bool(each) for each in rotated] or [number % every != 0 for number in range(1, count + 1)]


def minimax_m2(config: Config) -> Architecture:
    """MiniMax M2: norms of all queries and keys; a mixture in each layer, beside a shared expert if it has a size."""
    count = num_layers(config)
    has_norms = config.flag("use_qk_norm", default=True)
    config.ignore("qk_norm_type", "attn_type_list")
    attends = attention(config, norms="features" if has_norms else "none")
    shared = config.size("shared_intermediate_size", default=0, least=0)
    layer = Layer(mixer=attends, feed_forward=mixture(config, shared=shared))
    return frame(config, [layer] * count, predicted=predicted(config, layer))


def minimax_m3(config: Config) -> Architecture:
    """MiniMax M3: dense first layers; then mixtures with a shared expert, and attention to chosen blocks of keys."""
    count = num_layers(config)
    config.ignore("qk_norm_type", "use_gemma_norm", "swiglu_alpha", "swiglu_limit", "n_shared_experts")
    has_norms = config.flag("use_qk_norm", default=True)
    attends = attention(config, norms="heads" if has_norms else "none")
    sparse = config.part("sparse_attention_config")
    sparse.ignore("sparse_init_block", "sparse_local_block", "sparse_score_type", "sparse_disable_index_value")
    blocks = sparse.size("sparse_topk_blocks", default=16) * sparse.size("sparse_block_size", default=128)
    indexer = Indexer(
        heads=sparse.size("sparse_num_index_heads", default=4), size=sparse.size("sparse_index_dim", default=128),
        top_k=blocks,
    )  # fmt: skip
    is_sparse = repeated(sparse.whole_items("sparse_attention_freq", count), count, 0)
    if not sparse.flag("use_sparse_attention", default=True):
        is_sparse = [0] * count
    sparse.check_used()
    is_mixture = repeated(config.whole_items("moe_layer_freq", count), count, 1)
    network = gated(config, ffn=config.size("dense_intermediate_size", "intermediate_size"))
    config.ignore("first_k_dense_replace", "intermediate_size")
    experts = mixture(
        config,
        ffn=config.size("moe_intermediate_size"),
        shared=config.size("shared_intermediate_size", default=0, least=0),
    )
    layers = []
    for i in range(count):
        mixer = replace(attends, indexer=indexer) if is_sparse[i] else attends
        feed_forward = experts if is_mixture[i] else network
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward))
    return frame(config, layers, predicted=predicted(config, layers[-1]))


def mimo_v2(config: Config) -> Architecture:
    """MiMo-V2: layers in a window have more keys, values and sinks; values are smaller than keys."""
    count = num_layers(config)
    kinds = repeated(config.whole_items("hybrid_layer_pattern", count), count, 0)
    is_mixture = repeated(config.whole_items("moe_layer_freq", count), count, 1)
    config.ignore("attention_bias", "attention_chunk_size", "attention_value_scale")
    everywhere = attention(
        config, value_size=config.size("v_head_dim", default=128),
        sinks=config.flag("add_full_attention_sink_bias", default=False),
    )  # fmt: skip
    local = Attention(
        heads=config.size("swa_num_attention_heads", default=everywhere.heads),
        kv_heads=config.size("swa_num_key_value_heads", default=everywhere.kv_heads),
        head_size=config.size("swa_head_dim", default=everywhere.head_size),
        value_size=config.size("swa_v_head_dim", default=everywhere.values),
        sinks=config.flag("add_swa_attention_sink_bias", default=False),
        window=config.size("sliding_window", "sliding_window_size", default=128),
    )
    network, experts = gated(config), mixture(config)
    if config.size("n_shared_experts", default=0, least=0):
        config.fail("n_shared_experts", "MiMo-V2 with shared experts is not supported")
    layers = []
    for i in range(count):
        mixer = local if kinds[i] else everywhere
        feed_forward = experts if is_mixture[i] else network
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward))
    return frame(config, layers, predicted=predicted(config, layers[0]))


def step3(config: Config) -> Architecture:
    """Step 3.7: a gate for each head's output, dense first layers, then mixtures with a shared expert."""
    count = num_layers(config)
    attends = attention(config, norms="heads", gate="heads")
    dense = config.size("first_k_dense_replace", default=0, least=0)
    network = gated(config)
    experts = mixture(config, shared=config.size("share_expert_dim", default=0, least=0))
    config.ignore("n_shared_experts", "use_moe_router_bias")
    layers = []
    for i, window in enumerate(windows(config, count)):
        layers.append(Layer(mixer=replace(attends, window=window), feed_forward=network if i < dense else experts))
    return frame(config, layers, predicted=predicted(config, layers[0]))


def nemotron_nas(config: Config) -> Architecture:
    """Llama-Nemotron: a search removed attention or shrank the network layer by layer (Bercovich et al., 2025)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.ignore("num_key_value_heads", "intermediate_size", "attention_bias", "num_hidden_layers", "mlp_bias")
    act = activation(config)
    size = head_size(config, hidden, heads)
    layers = []
    for block in config.parts("block_configs"):
        attends, network = block.part("attention"), block.part("ffn")
        mixer = feed_forward = None
        if _is_there(attends, "n_heads_in_group"):
            group = attends.size("n_heads_in_group")
            if heads % group:
                attends.fail("n_heads_in_group", f"groups of {group} do not divide {heads} heads")
            mixer = Attention(heads=heads, kv_heads=heads // group, head_size=size)
        if _is_there(network, "ffn_mult"):
            ffn = max(1, int(2 * network.number("ffn_mult", default=1.0) * hidden / 3))
            feed_forward = Mlp(ffn=-(-ffn // 256) * 256, activation=act)
        for part in (attends, network, block):
            part.check_used()
        norms = (mixer is not None) + (feed_forward is not None)
        if norms:  # a layer without blocks passes its input on
            layers.append(Layer(mixer=mixer, feed_forward=feed_forward, norms=norms))
    return frame(config, layers)


def _is_there(block: Config, size: str) -> bool:
    """Return whether the search kept a block; the key ``size`` means nothing without it."""
    if block.flag("replace_with_linear", default=False):
        block.fail("replace_with_linear", "blocks replaced by one product are not supported")
    block.ignore(size)
    return not block.flag("no_op", default=False)


def falcon(config: Config) -> Architecture:
    """Falcon: attention and network read one norm; the first version shares one key and value among all heads."""
    is_new = config.flag("new_decoder_architecture", default=False)
    has_biases = config.flag("bias", default=False)
    is_multi_query = config.flag("multi_query", default=True)
    heads = config.size("num_attention_heads")
    if is_new:
        kv_heads = config.size("num_kv_heads", default=heads)
    elif is_multi_query:
        kv_heads = 1
    else:
        kv_heads = heads
    if heads % kv_heads:
        hint = nearest_divisors(kv_heads, heads)
        config.fail("num_kv_heads", f"{kv_heads} heads of keys and values do not divide {heads} heads{hint}")
    config.ignore("num_kv_heads", "alibi", "parallel_attn", "num_ln_in_parallel_attn")
    hidden = config.size("hidden_size")
    attends = Attention(
        heads=heads, kv_heads=kv_heads, head_size=head_size(config, hidden, heads),
        biases="all" if has_biases else "none",
        rotary=not config.flag("alibi", default=False),
    )  # fmt: skip
    network = Mlp(
        ffn=config.size("ffn_hidden_size", default=4 * hidden), gated=False, biases=has_biases,
        activation=activation(config, "activation", default="gelu"),
    )  # fmt: skip
    is_parallel = config.flag("parallel_attn", default=True)
    norms = 2 if is_new or not is_parallel else 1
    layer = Layer(mixer=attends, feed_forward=network, norms=norms, norm="layer", parallel=is_parallel)
    tied = config.flag("tie_word_embeddings", default=True)
    return frame(config, [layer] * num_layers(config), norm="layer", tied_embeddings=tied)


def gpt_neox(config: Config) -> Architecture:
    """GPT-NeoX: attention and network in parallel, each with a norm of its own."""
    biases = "all" if config.flag("attention_bias", default=True) else "none"
    network = Mlp(
        ffn=config.size("intermediate_size"), gated=False, biases=True, activation=activation(config, default="gelu")
    )
    layer = Layer(
        mixer=attention(config, biases=biases), feed_forward=network, norm="layer",
        parallel=config.flag("use_parallel_residual", default=True),
    )  # fmt: skip
    return frame(config, [layer] * num_layers(config), norm="layer")


def gpt2(config: Config) -> Architecture:
    """GPT-2: learned positions, biases everywhere, a tied head."""
    hidden = config.size("hidden_size", "n_embd")
    config.ignore("n_inner")
    network = Mlp(
        ffn=config.size("n_inner", default=4 * hidden), gated=False, biases=True,
        activation=activation(config, "activation_function", default="gelu_new"),
    )  # fmt: skip
    layer = Layer(mixer=attention(config, biases="all", rotary=False), feed_forward=network, norm="layer")
    rows = config.size("n_positions", "max_position_embeddings")
    tied = config.flag("tie_word_embeddings", default=True)
    return frame(config, [layer] * num_layers(config), norm="layer", positions=rows, tied_embeddings=tied)


def opt(config: Config) -> Architecture:
    """OPT: learned positions with two rows more than tokens, biases everywhere, a tied head."""
    hidden = config.size("hidden_size")
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        config.fail("word_embed_proj_dim", "projections of the embedding are not supported")
    if not config.flag("do_layer_norm_before", default=True):
        config.fail("do_layer_norm_before", "norms after the blocks are not supported for OPT")
    has_biases = config.flag("enable_bias", default=True)
    network = Mlp(
        ffn=config.size("ffn_dim"), gated=False, biases=has_biases,
        activation=activation(config, "activation_function", default="relu"),
    )  # fmt: skip
    mixer = attention(config, biases="all" if has_biases else "none", rotary=False)
    layer = Layer(mixer=mixer, feed_forward=network, norm="layer")
    rows = config.size("max_position_embeddings") + 2
    config.ignore("layer_norm_elementwise_affine")
    tied = config.flag("tie_word_embeddings", default=True)
    return frame(config, [layer] * num_layers(config), norm="layer", positions=rows, tied_embeddings=tied)


def bloom(config: Config) -> Architecture:
    """BLOOM: attention with a linear bias of the distance, a norm after the embedding, a tied head."""
    hidden = config.size("hidden_size", "n_embed")
    network = Mlp(ffn=4 * hidden, gated=False, biases=True, activation="gelu")
    layer = Layer(mixer=attention(config, biases="all", rotary=False), feed_forward=network, norm="layer")
    config.ignore("apply_residual_connection_post_layernorm", "seq_length")
    tied = config.flag("tie_word_embeddings", default=True)
    return frame(
        config, [layer] * num_layers(config), norm="layer", embedding_norm=True, tied_embeddings=tied,
        sequence=2048, max_positions=2048,
    )  # fmt: skip


def glm4_moe(config: Config) -> Architecture:
    """GLM-4.5: dense first layers, then mixtures with shared experts; biases of queries, keys and values."""
    count, dense = num_layers(config), config.size("first_k_dense_replace", default=0, least=0)
    has_biases = config.flag("attention_bias", default=False)
    has_norms = config.flag("use_qk_norm", default=False)
    biases = "qkv" if has_biases else "none"
    norms = "heads" if has_norms else "none"
    attends = attention(config, biases=biases, norms=norms)
    ffn = config.size("moe_intermediate_size")
    network = gated(config)
    experts: Mixture = mixture(config, ffn=ffn, shared=ffn * config.size("n_shared_experts", default=0, least=0))
    layers = []
    for i in range(count):
        layers.append(Layer(mixer=attends, feed_forward=network if i < dense else experts))
    return frame(config, layers, predicted=predicted(config, layers[-1]))
