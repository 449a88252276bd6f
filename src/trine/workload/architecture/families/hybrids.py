"""Models whose layers alternate between attention and mixers with a state: Qwen3-Next, Nemotron-H, Jamba, Mamba."""

from __future__ import annotations

from trine.workload.architecture.blocks import LinearAttention, Mamba, Mamba2, Mixer, Mixture, Mlp
from trine.workload.architecture.config_keys import Config
from trine.workload.architecture.families.common import FULL, activation, attention, frame, gated, mixture, num_layers
from trine.workload.architecture.families.decoders import predicted, qwen_networks
from trine.workload.architecture.model import Architecture, Layer


def qwen3_next(config: Config) -> Architecture:
    """Qwen3-Next and Qwen3.5: a gated delta rule in three of four layers, and attention with an output gate."""
    count = num_layers(config)
    interval = config.size("full_attention_interval", default=4)
    usual = []
    for i in range(count):
        usual.append(FULL if (i + 1) % interval == 0 else "linear_attention")
    kinds = config.kinds("layer_types", (FULL, "linear_attention"), count) or usual
    has_biases = config.flag("attention_bias", default=False)
    config.flag("attn_output_gate", default=True)
    everywhere = attention(config, norms="heads", gate="features", biases="all" if has_biases else "none")
    linear = LinearAttention(
        key_heads=config.size("linear_num_key_heads"), value_heads=config.size("linear_num_value_heads"),
        key_size=config.size("linear_key_head_dim"), value_size=config.size("linear_value_head_dim"),
        conv=config.size("linear_conv_kernel_dim", default=4),
    )  # fmt: skip
    config.ignore("use_sliding_window", "sliding_window", "mtp_use_dedicated_embeddings")
    networks = qwen_networks(config, count)
    layers = []
    for i in range(count):
        layers.append(Layer(mixer=everywhere if kinds[i] == FULL else linear, feed_forward=networks[i]))
    return frame(config, layers, predicted=predicted(config, Layer(mixer=everywhere, feed_forward=networks[-1])))


#: Letters of a Nemotron-H pattern, and names of its layers.
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config) -> Architecture:
    """Nemotron-H and Nemotron 3: each layer is Mamba-2, attention, a network, or a mixture, with one norm."""
    kinds = _pattern(config, "hybrid_override_pattern", "layers_block_type")
    config.ignore("layers_block_type", "num_hidden_layers")
    if not kinds:
        config.fail("hybrid_override_pattern", f"is missing: it must consist of {', '.join(_LETTERS)}")
    blocks: dict[str, Mixer] = {"mamba": _mamba2(config), "attention": attention(config, rotary=False)}
    has_biases = config.flag("mlp_bias", "use_bias", default=False)
    act = activation(config, "mlp_hidden_act", default="relu2")
    networks: dict[str, Mlp | Mixture] = {}
    if "mlp" in kinds:
        networks["mlp"] = Mlp(
            ffn=config.size("intermediate_size"), gated=False, activation=act, biases=has_biases
        )  # fmt: skip
    if "moe" in kinds:
        count = config.size("n_shared_experts", default=0, least=0)
        width = config.size("moe_shared_expert_intermediate_size", default=0, least=0)
        networks["moe"] = mixture(
            config, gated=False, activation=act, ffn=config.size("moe_intermediate_size"), shared=count * width,
            latent=config.size("moe_latent_size", default=0, least=0),
        )  # fmt: skip
    config.ignore("intermediate_size", "attention_bias", "head_dim", "attention_head_dim", "n_shared_experts",
                  "moe_shared_expert_intermediate_size", "moe_intermediate_size", "sliding_window")  # fmt: skip
    layers = [Layer(mixer=blocks.get(kind), feed_forward=networks.get(kind), norms=1) for kind in kinds]
    further = config.size("num_nextn_predict_layers", default=0, least=0)
    pattern = _pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") * further
    heads = [Layer(mixer=blocks.get(kind), feed_forward=networks.get(kind), norms=1) for kind in pattern]
    return frame(config, layers, predicted=tuple(heads))


def _pattern(config: Config, letters: str, names: str) -> list[str]:
    """Return the kinds of layers from a key with a letter for each, or from a key with their names."""
    text = config.text(letters)
    if not set(text) <= set(_LETTERS):
        config.fail(letters, f"must consist of {', '.join(_LETTERS)}, got {text[:40]!r}")
    return [_LETTERS[letter] for letter in text] or config.kinds(names, _LETTERS.values())


def _mamba2(config: Config) -> Mamba2:
    return Mamba2(
        heads=config.size("mamba_num_heads", "num_heads"), head_size=config.size("mamba_head_dim", "head_dim"),
        state=config.size("ssm_state_size", "state_size"), groups=config.size("n_groups", default=1),
        conv=config.size("conv_kernel", default=4), conv_bias=config.flag("use_conv_bias", default=True),
        biases=config.flag("mamba_proj_bias", "use_bias", default=False), chunk=config.size("chunk_size", default=256),
    )  # fmt: skip


def mamba2(config: Config) -> Architecture:
    """Mamba-2: nothing but mixers."""
    mixer = _mamba2(config)
    hidden, expand = config.size("hidden_size"), config.number("expand", default=2)
    if mixer.inner != expand * hidden:
        config.fail("num_heads", f"{mixer.heads} heads of {mixer.head_size} are not {expand:g} x {hidden} features")
    config.ignore("time_step_rank")
    tied = config.flag("tie_word_embeddings", default=False)
    layers = [Layer(mixer=mixer, norms=1)] * num_layers(config)
    return frame(config, layers, tied_embeddings=tied)


def jamba(config: Config) -> Architecture:
    """Jamba: one attention layer in eight, Mamba in the others; a mixture in every second layer."""
    hidden, count = config.size("hidden_size"), num_layers(config)
    attends = attention(config, rotary=False)
    rank = config.size("mamba_dt_rank", default=-(-hidden // 16))
    mamba = Mamba(
        inner=config.size("mamba_expand", default=2) * hidden, state=config.size("mamba_d_state", default=16),
        rank=rank,
        conv=config.size("mamba_d_conv", default=4), conv_bias=config.flag("mamba_conv_bias", default=True),
        biases=config.flag("mamba_proj_bias", default=False), norms=True,
    )  # fmt: skip
    every, offset = config.size("attn_layer_period", default=8), config.size("attn_layer_offset", default=4, least=0)
    expert_every = config.size("expert_layer_period", default=2)
    expert_offset = config.size("expert_layer_offset", default=1, least=0)
    network, experts = gated(config), mixture(config)
    layers = []
    for i in range(count):
        mixer = attends if i % every == offset else mamba
        feed_forward = experts if i % expert_every == expert_offset else network
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward))
    return frame(config, layers)
