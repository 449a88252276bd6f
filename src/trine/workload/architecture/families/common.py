"""Parts that many families share: plain attention, feed-forward networks, mixtures, and the frame of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trine.workload.architecture.blocks import Attention, Mixture, Mlp
from trine.workload.architecture.config_keys import Config
from trine.workload.architecture.model import Architecture, Layer

#: Activations of feed-forward networks that trine knows; all of them are elementwise.
ACTIVATIONS = (
    "silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu", "swigluoai",
    "situ",
)  # fmt: skip
#: Kinds of attention in ``layer_types``.
FULL, SLIDING = "full_attention", "sliding_attention"
#: Default tokens per sample: long contexts of a published model are seldom what a training step uses.
SEQUENCE = 4096
#: Keys of the longest context.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx")


def positions(config: Config) -> int:
    """Return the longest context of the published model; without one, the default tokens per sample."""
    return config.size(*_CONTEXT_KEYS, default=SEQUENCE)


def max_context(config: Config) -> int:
    """Return the longest context that the config states; 0 if it states none."""
    return positions(config) if config.has(*_CONTEXT_KEYS) else 0


def activation(config: Config, *names: str, default: str = "silu") -> str:
    """Return the activation of the feed-forward networks."""
    names = names or ("hidden_act", "hidden_activation")
    name = next((each for each in names if config.has(each)), names[0])
    config.ignore(*names)
    return config.one_of(name, ACTIVATIONS, default)


def frame(config: Config, layers: Sequence[Layer], **fields: Any) -> Architecture:
    """Return the model of these layers, with the sizes that all families name alike."""
    longest = positions(config)
    usual = {
        "name": config.text("_name_or_path", default=""),
        "hidden": config.size("hidden_size", "n_embd", "d_model"),
        "vocab": config.size("vocab_size"),
        "sequence": min(longest, SEQUENCE),
        "max_positions": longest,
        "max_context": max_context(config),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "layers": tuple(layers),
        "file": config.file,
    }
    return Architecture(**{**usual, **fields})


def num_layers(config: Config) -> int:
    """Return the number of layers."""
    return config.count("num_hidden_layers", "n_layer", "num_layers")


def head_size(config: Config, hidden: int, heads: int) -> int:
    """Return the features of a head. Raises SpecError if the heads do not divide the hidden features."""
    if config.has("head_dim"):
        return config.size("head_dim")
    config.ignore("head_dim")
    return per_head(config, "num_attention_heads", heads, hidden)


def per_head(config: Config, name: str, heads: int, hidden: int) -> int:
    """Return the features of each of ``heads``, whose number is the key ``name``. Raises SpecError for a remainder."""
    if hidden % heads:
        config.fail(name, f"{heads} heads do not divide the {hidden} hidden features{nearest_divisors(heads, hidden)}")
    return hidden // heads


def nearest_divisors(value: int, whole: int) -> str:
    """Return the end of a message with the nearest divisors of ``whole`` on both sides of ``value``.

    whole: at least 1, not a multiple of ``value``.
    """
    below = next(number for number in range(min(value, whole), 0, -1) if whole % number == 0)
    if value >= whole:
        return f": the nearest valid value is {below}"
    above = next(number for number in range(value, whole + 1) if whole % number == 0)
    return f": the nearest valid values are {below} and {above}"


def attention(config: Config, **fields: Any) -> Attention:
    """Return softmax attention with the usual names of sizes; ``fields`` take precedence."""
    hidden = config.size("hidden_size", "n_embd", "d_model")
    heads = config.size("num_attention_heads", "n_head")
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        hint = nearest_divisors(kv_heads, heads)
        config.fail("num_key_value_heads", f"{kv_heads} heads of keys and values do not divide {heads} heads{hint}")
    usual = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size(config, hidden, heads)}
    return Attention(**{**usual, **fields})


def windows(config: Config, count: int) -> list[int]:
    """Return the window of each layer (0: all tokens), from ``layer_types`` or from ``sliding_window`` alone."""
    window = config.size("sliding_window", "sliding_window_size", default=0, least=0)
    if not config.flag("use_sliding_window", default=True):
        window = 0
    kinds = config.kinds("layer_types", (FULL, SLIDING), count)
    if kinds:
        windows_of_layers = []
        for kind in kinds:
            windows_of_layers.append(window if kind == SLIDING else 0)
        return windows_of_layers
    first = config.size("max_window_layers", default=0, least=0) if config.has("use_sliding_window") else 0
    windows_of_layers = []
    for layer in range(count):
        windows_of_layers.append(window if layer >= first else 0)
    return windows_of_layers


def gated(config: Config, **fields: Any) -> Mlp:
    """Return a feed-forward network with a gate, with the usual names of sizes."""
    usual: dict[str, Any] = {"activation": activation(config), "biases": config.flag("mlp_bias", default=False)}
    if "ffn" not in fields:
        usual["ffn"] = config.size("intermediate_size")
    return Mlp(**{**usual, **fields})


def mixture(config: Config, **fields: Any) -> Mixture:
    """Return a mixture of experts, with the usual names of sizes; ``fields`` take precedence."""
    usual: dict[str, Any] = {"activation": activation(config)}
    if "experts" not in fields:
        usual["experts"] = config.size("num_local_experts", "n_routed_experts", "num_experts")
    if "top_k" not in fields:
        usual["top_k"] = config.size("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    if "ffn" not in fields:
        usual["ffn"] = config.size("moe_intermediate_size", "intermediate_size")
    groups, top_groups = config.size("n_group", default=1), config.size("topk_group", default=1)
    if top_groups < groups:
        usual |= {"groups": groups, "top_groups": top_groups}
    values = {**usual, **fields}
    if values["top_k"] > values["experts"]:
        config.fail("num_experts_per_tok", f"{values['top_k']} is above the {values['experts']} experts")
    return Mixture(**values)
