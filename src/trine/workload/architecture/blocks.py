"""Blocks of a model: attention of several kinds, state-space mixers, feed-forward networks and mixtures of experts.

Each block lists its weights, the FLOPs of its tokens among each other, and what it keeps of earlier tokens. Counts
follow the published implementations named in each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from trine.common.schema import Field
from trine.workload.architecture.weights import (
    ALL_TOKENS,
    NO_PRODUCT,
    Cache,
    Weight,
    matrix,
    vector,
    with_bias,
)

Size = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Number = Annotated[int, Field(ge=0, le=10_000_000)]


def attended(tokens: int, window: int, is_causal: bool) -> int:
    """Return the pairs of query and key in one sample: of all tokens, or of those in the window and before."""
    if not is_causal:
        return tokens * min(tokens, window) if window else tokens * tokens
    reach = min(tokens, window) if window else tokens
    return reach * (reach + 1) // 2 + (tokens - reach) * reach


def compressed_pairs(tokens: int, ratio: int, most: int | None = None) -> int:
    """Return the pairs of query and compressed key: query t of ``tokens`` sees t // ratio keys, at most ``most``."""
    reach = tokens if most is None else min(tokens, ratio * (most + 1) - 1)
    keys = reach // ratio
    return ratio * keys * (keys - 1) // 2 + keys * (tokens - keys * ratio + 1)


def check_divides(parts: int, name: str, total: int, name_of_total: str) -> None:
    """Raise ValueError if ``parts`` does not divide ``total``."""
    if total % parts:
        raise ValueError(f"{name} {parts} does not divide {name_of_total} {total}")


#: Tokens of a chunk in transformers' unfused gated delta rule.
DELTA_CHUNK = 64


def conv_edge_flops(features: int, width: int) -> int:
    """Return the FLOPs of a causal convolution at its padding, which unfused code computes and drops."""
    return 2 * features * width * (width - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexer:
    """The indexer of DeepSeek Sparse Attention (DeepSeek-V3.2, 2025): small heads choose ``top_k`` keys of each query.

    is_shared: the layer uses the choice of an earlier layer and has no weights of its own.
    """

    heads: Count
    size: Size
    top_k: Count
    is_shared: bool = False

    def weights(self, hidden: int, queries: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features, whose queries come from ``queries`` features."""
        if self.is_shared:
            return []
        return [
            matrix("indexer.q", self.heads * self.size, queries), matrix("indexer.k", self.size, hidden),
            vector("indexer.norm", 2 * self.size), matrix("indexer.weights", self.heads, hidden),
        ]  # fmt: skip

    def flops(self, pairs: int) -> int:
        """Return the FLOPs of the scores of ``pairs`` of query and key."""
        return 0 if self.is_shared else 2 * pairs * self.heads * self.size

    @property
    def kept(self) -> int:
        """Features of a key, which each token keeps; 0 if an earlier layer keeps it."""
        return 0 if self.is_shared else self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Softmax attention with full, grouped or single keys and values (Vaswani et al., 2017; Ainslie et al., 2023).

    head_size, value_size: features of a query or key, and of a value (0: the same). biases: of q, k and v, or of the
    output too. norms: of each head's queries and keys, or of all their features. window: tokens that a query sees; 0:
    all. gate: a sigmoid of the input multiplies the output, for each feature (in the projection of q) or each head.
    sinks: a logit for each head without a token. keys_are_values: one projection for both. rotary: positions rotate q
    and k. indexer: chooses the keys of each query.
    """

    heads: Count
    kv_heads: Count
    head_size: Size
    value_size: Number = 0
    biases: Literal["none", "qkv", "all"] = "none"
    norms: Literal["none", "heads", "features"] = "none"
    window: Number = 0
    gate: Literal["none", "features", "heads"] = "none"
    sinks: bool = False
    keys_are_values: bool = False
    rotary: bool = True
    causal: bool = True
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        check_divides(self.kv_heads, "kv_heads", self.heads, "heads")

    @property
    def values(self) -> int:
        """Features of a value."""
        return self.value_size or self.head_size

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        queries, keys, values = self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.values
        has_bias, gate = self.biases != "none", self.heads * self.values if self.gate == "features" else 0
        found = with_bias(matrix("q", queries + gate, hidden), has_bias)
        found += with_bias(matrix("k", keys, hidden), has_bias)
        if not self.keys_are_values:
            found += with_bias(matrix("v", values, hidden), has_bias)
        found += with_bias(matrix("out", hidden, self.heads * self.values), self.biases == "all")
        if self.norms == "heads":
            found += [vector("q_norm", self.head_size), vector("k_norm", self.head_size)]
        if self.norms == "features":
            found += [vector("q_norm", queries), vector("k_norm", keys)]
        if self.gate == "heads":
            found.append(matrix("gate", self.heads, hidden))
        if self.sinks:
            found.append(vector("sinks", self.heads))
        return found if self.indexer is None else found + self.indexer.weights(hidden, hidden)

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of scores and values in one sample; is_eager: of all S x S pairs, as unfused code does."""
        reach = self.window if self.indexer is None else self.indexer.top_k
        pairs = tokens * tokens if is_eager else attended(tokens, reach, self.causal)
        flops = 2 * pairs * self.heads * (self.head_size + self.values)
        if self.indexer is not None:
            flops += self.indexer.flops(tokens * tokens if is_eager else attended(tokens, 0, self.causal))
        return flops

    def cache(self) -> Cache:
        """Return what is kept of earlier tokens: keys and values, and the indexer's keys."""
        per_token = self.kv_heads * (self.head_size + self.values)
        per_token += 0 if self.indexer is None else self.indexer.kept
        return Cache(Fraction(per_token), self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values come from ``kv_rank`` features of a token.

    query_rank: of the queries' projection; 0: not factored. plain, rotated: features of a key without and with
    positions; value: of a value. gate: a sigmoid of the input multiplies the output.
    """

    heads: Count
    query_rank: Number = 0
    kv_rank: Size
    plain: Size
    rotated: Number
    value: Size
    biases: bool = False
    gate: bool = False
    indexer: Indexer | None = None

    @property
    def head_size(self) -> int:
        """Features of a query or key."""
        return self.plain + self.rotated

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        queries, rank = self.heads * self.head_size, self.query_rank
        found = with_bias(matrix("q_down", rank, hidden), self.biases) if rank else []
        found += [vector("q_norm", rank)] if rank else []
        found += [matrix("q_up" if rank else "q", queries, rank or hidden)]
        found += with_bias(matrix("kv_down", self.kv_rank + self.rotated, hidden), self.biases)
        found += [vector("kv_norm", self.kv_rank)]
        found += [matrix("kv_up", self.heads * (self.plain + self.value), self.kv_rank)]
        found += with_bias(matrix("out", hidden, self.heads * self.value), self.biases)
        if self.gate:
            found.append(matrix("gate", self.heads * self.value, hidden))
        return found if self.indexer is None else found + self.indexer.weights(hidden, rank or hidden)

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of scores and values in one sample, with the indexer's scores."""
        chosen = 0 if self.indexer is None else self.indexer.top_k
        pairs = tokens * tokens if is_eager else attended(tokens, chosen, True)
        flops = 2 * pairs * self.heads * (self.head_size + self.value)
        if self.indexer is not None:
            flops += self.indexer.flops(tokens * tokens if is_eager else attended(tokens, 0, True))
        return flops

    def cache(self) -> Cache:
        """Return what is kept of earlier tokens: latent features, rotated keys, and the indexer's keys."""
        keys = 0 if self.indexer is None else self.indexer.kept
        return Cache(Fraction(self.kv_rank + self.rotated + keys))


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAttention:
    """The attention of DeepSeek-V4 (2026): a window of tokens, and one key-value for every ``ratio`` earlier tokens.

    Keys are values, shared by all heads. ratio 0: the window alone; 4: overlapping groups, of which an indexer chooses
    (CSA); 128: all of them (HCA). out_groups: the output is projected to ``out_rank`` features group by group.
    """

    heads: Count
    head_size: Size
    query_rank: Size
    out_groups: Count
    out_rank: Size
    window: Size
    ratio: Number = 0
    is_overlapping: bool = False
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        check_divides(self.out_groups, "out_groups", self.heads * self.head_size, "the features of all heads,")
        if self.indexer is not None and (not self.ratio or self.indexer.is_shared):
            raise ValueError("an indexer of compressed attention needs a ratio, and no is_shared")

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        features, rank = self.heads * self.head_size, self.query_rank
        grouped = (self.out_groups * self.out_rank, features // self.out_groups)
        found = [
            vector("sinks", self.heads), matrix("q_down", rank, hidden), vector("q_norm", rank),
            matrix("q_up", features, rank), matrix("kv", self.head_size, hidden), vector("kv_norm", self.head_size),
            matrix("out_down", *grouped), matrix("out_up", hidden, self.out_groups * self.out_rank),
        ]  # fmt: skip
        found += self._compressor("compressor", self.head_size, hidden)
        if (index := self.indexer) is not None:
            found += self._compressor("indexer", index.size, hidden)
            found += [
                matrix("indexer.q", index.heads * index.size, rank),
                matrix("indexer.weights", index.heads, hidden),
            ]
        return found

    def _compressor(self, name: str, size: int, hidden: int) -> list[Weight]:
        """Return the weights that pool ``ratio`` tokens into one, by learned shares."""
        if not self.ratio:
            return []
        width = size * (2 if self.is_overlapping else 1)
        return [
            vector(f"{name}.position", self.ratio, width), matrix(f"{name}.kv", width, hidden),
            matrix(f"{name}.gate", width, hidden), vector(f"{name}.norm", size),
        ]  # fmt: skip

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of scores and values in one sample, with the indexer's scores."""
        flops = 4 * self.pairs(tokens, is_eager=is_eager) * self.heads * self.head_size
        if self.indexer is None:
            return flops
        scored = tokens * (tokens // self.ratio) if is_eager else compressed_pairs(tokens, self.ratio)
        return flops + self.indexer.flops(scored)

    def pairs(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the pairs of query and key in one sample: within the window, and with compressed keys."""
        pairs = tokens * tokens if is_eager else attended(tokens, self.window, True)
        if not self.ratio:
            return pairs
        if is_eager:
            return pairs + tokens * (tokens // self.ratio)
        return pairs + compressed_pairs(tokens, self.ratio, None if self.indexer is None else self.indexer.top_k)

    def cache(self) -> Cache:
        """Return what is kept: the window, and one key-value (and one key of the indexer) for ``ratio`` tokens."""
        window = self.window * self.head_size
        if not self.ratio:
            return Cache(Fraction(0), 0, window)
        size = self.head_size + (0 if self.indexer is None else self.indexer.size)
        return Cache(Fraction(size, self.ratio), 0, window)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearAttention:
    """A gated delta rule (Yang et al., 2025) as in Qwen3-Next: a state of key x value features for each value head."""

    key_heads: Count
    value_heads: Count
    key_size: Size
    value_size: Size
    conv: Count = 4

    def __post_init__(self) -> None:
        check_divides(self.key_heads, "key_heads", self.value_heads, "value_heads")

    @property
    def keys(self) -> int:
        """Features of all keys."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Features of all values."""
        return self.value_heads * self.value_size

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        mixed = 2 * self.keys + self.values
        return [
            matrix("qkv", mixed, hidden), matrix("gate", self.values, hidden),
            matrix("beta_and_decay", 2 * self.value_heads, hidden), matrix("conv", mixed, self.conv),
            vector("decay", self.value_heads), vector("decay_bias", self.value_heads), vector("norm", self.value_size),
            matrix("out", hidden, self.values),
        ]  # fmt: skip

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of the recurrence: read, correct and update the state of each head for each token.

        is_eager: of transformers' unfused code, which also multiplies the tokens of a chunk with each other.
        """
        flops = 6 * tokens * self.value_heads * self.key_size * self.value_size
        if not is_eager:
            return flops
        padded = -(-tokens // DELTA_CHUNK) * DELTA_CHUNK
        among = 2 * padded * DELTA_CHUNK * self.value_heads * (2 * self.key_size + self.value_size)
        return flops * padded // tokens + among + conv_edge_flops(2 * self.keys + self.values, self.conv)

    def cache(self) -> Cache:
        """Return what is kept: the states, and the tokens of the convolution."""
        state = self.value_heads * self.key_size * self.value_size
        return Cache(Fraction(0), 0, state + (2 * self.keys + self.values) * self.conv)


@dataclass(frozen=True, kw_only=True, slots=True)
class KimiDelta:
    """Kimi Delta Attention (Kimi Linear, 2025): a delta rule with a decay for each feature of the key.

    full_gate: the output's gate has one matrix instead of two of ``head_size`` rank.
    """

    heads: Count
    head_size: Size
    conv: Count = 4
    full_gate: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        features, size = self.heads * self.head_size, self.head_size
        gate = [matrix("gate", features, hidden)]
        if not self.full_gate:
            gate = [matrix("gate_down", size, hidden), *with_bias(matrix("gate_up", features, size), True)]
        return [
            *(matrix(name, features, hidden) for name in ("q", "k", "v")),
            *(matrix(f"{name}_conv", features, self.conv) for name in ("q", "k", "v")),
            matrix("decay_down", size, hidden), matrix("decay_up", features, size), matrix("beta", self.heads, hidden),
            vector("decay", self.heads), vector("decay_bias", features), *gate, vector("norm", size),
            matrix("out", hidden, features),
        ]  # fmt: skip

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of the recurrence."""
        return 6 * tokens * self.heads * self.head_size**2

    def cache(self) -> Cache:
        """Return what is kept: the states, and the tokens of the convolutions."""
        features = self.heads * self.head_size
        return Cache(Fraction(0), 0, features * self.head_size + 3 * features * self.conv)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba2:
    """Mamba-2 (Dao and Gu, 2024). state: features of a head's state; groups: of B and C; chunk: tokens at a time."""

    heads: Count
    head_size: Size
    state: Size
    groups: Count = 1
    conv: Count = 4
    conv_bias: bool = True
    biases: bool = False
    chunk: Count = 256

    def __post_init__(self) -> None:
        check_divides(self.groups, "groups", self.heads, "heads")

    @property
    def inner(self) -> int:
        """Features inside the mixer."""
        return self.heads * self.head_size

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        mixed = self.inner + 2 * self.groups * self.state
        return [
            *with_bias(matrix("in", self.inner + mixed + self.heads, hidden), self.biases),
            *with_bias(matrix("conv", mixed, self.conv), self.conv_bias),
            vector("decay", self.heads), vector("step_bias", self.heads), vector("skip", self.heads),
            vector("norm", self.inner), *with_bias(matrix("out", hidden, self.inner), self.biases),
        ]  # fmt: skip

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of the recurrence: update and read the state of each head for each token.

        is_eager: of transformers' unfused code, which also multiplies the tokens of a chunk with each other, for each
        head, and the states of all chunks.
        """
        if not is_eager:
            return 4 * tokens * self.inner * self.state
        chunks = -(-tokens // self.chunk)
        padded = chunks * self.chunk
        among = 2 * padded * self.chunk * self.heads * (self.state + self.head_size)
        states = 4 * padded * self.inner * self.state + 2 * (chunks + 1) ** 2 * self.inner * self.state
        return among + states + conv_edge_flops(self.inner + 2 * self.groups * self.state, self.conv)

    def cache(self) -> Cache:
        """Return what is kept: the states, and the tokens of the convolution."""
        mixed = self.inner + 2 * self.groups * self.state
        return Cache(Fraction(0), 0, self.inner * self.state + mixed * self.conv)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba:
    """Mamba (Gu and Dao, 2023) with Jamba's norms. inner: features inside the mixer; rank: of the step size."""

    inner: Size
    state: Size
    rank: Size
    conv: Count = 4
    conv_bias: bool = True
    biases: bool = False
    norms: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        norms = [vector("step_norm", self.rank), vector("b_norm", self.state), vector("c_norm", self.state)]
        return [
            *with_bias(matrix("in", 2 * self.inner, hidden), self.biases),
            *with_bias(matrix("conv", self.inner, self.conv), self.conv_bias),
            matrix("x", self.rank + 2 * self.state, self.inner),
            *with_bias(matrix("step", self.inner, self.rank), True),
            vector("decay", self.inner, self.state), vector("skip", self.inner), *(norms if self.norms else ()),
            *with_bias(matrix("out", hidden, self.inner), self.biases),
        ]  # fmt: skip

    def context_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of the recurrence."""
        return 6 * tokens * self.inner * self.state

    def cache(self) -> Cache:
        """Return what is kept: the states, and the tokens of the convolution."""
        return Cache(Fraction(0), 0, self.inner * (self.state + self.conv))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """A feed-forward network of two products, or three with a gate."""

    ffn: Size
    gated: bool = True
    activation: str = "silu"
    biases: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        found = with_bias(matrix("gate", self.ffn, hidden), self.biases) if self.gated else []
        found += with_bias(matrix("up", self.ffn, hidden), self.biases)
        return found + with_bias(matrix("down", hidden, self.ffn), self.biases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """A mixture of experts: a router chooses ``top_k`` of ``experts`` for each token.

    shared: features of the experts that all tokens use; shared_gate: a sigmoid multiplies their output. latent: the
    experts work on this many features, with a projection before and after. biases: of the experts and the router.
    router_scales: a scale for each feature and each expert (Gemma 4). latent_norm: of the latent features. groups,
    top_groups: the experts of a token come from ``top_groups`` of ``groups`` equal groups of neighbouring experts, so
    that it goes to few nodes (DeepSeek-V3, 2024, section 2.1.2); 0: from all.
    """

    experts: Count
    top_k: Count
    ffn: Size
    gated: bool = True
    activation: str = "silu"
    shared: Number = 0
    shared_gate: bool = False
    latent: Number = 0
    latent_norm: bool = False
    biases: bool = False
    router_scales: bool = False
    groups: Number = 0
    top_groups: Number = 0

    def __post_init__(self) -> None:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is above the {self.experts} experts")
        if not self.groups and not self.top_groups:
            return
        if not 1 <= self.top_groups <= self.groups:
            raise ValueError(f"top_groups must be between 1 and groups {self.groups}; got {self.top_groups}")
        check_divides(self.groups, "groups", self.experts, "experts")
        if self.top_k > self.top_groups * self.experts // self.groups:
            raise ValueError(f"top_k {self.top_k} is above the experts of {self.top_groups} groups")

    def weights(self, hidden: int) -> list[Weight]:
        """Return the weights for tokens of ``hidden`` features."""
        share, width = Fraction(self.top_k, self.experts), self.latent or hidden
        ups = (2 if self.gated else 1) * self.ffn
        found = with_bias(matrix("router", self.experts, hidden), self.biases)
        found += [
            Weight("experts.up", (self.experts, ups, width), share, share),
            Weight("experts.down", (self.experts, width, self.ffn), share, share),
        ]
        if self.biases:
            found += [
                Weight("experts.up.bias", (self.experts, ups), NO_PRODUCT, share),
                Weight("experts.down.bias", (self.experts, width), NO_PRODUCT, share),
            ]
        if self.router_scales:
            found += [vector("router.scale", hidden), vector("router.expert_scale", self.experts)]
        if self.shared:
            shared = Mlp(ffn=self.shared, gated=self.gated, activation=self.activation)
            found += [weight._replace(name=f"shared.{weight.name}") for weight in shared.weights(hidden)]
        if self.shared_gate:
            found.append(matrix("shared.gate_of_all", 1, hidden))
        if self.latent:
            found += [matrix("latent.down", self.latent, hidden), matrix("latent.up", hidden, self.latent)]
        if self.latent_norm:
            found.append(vector("latent.norm", self.latent))
        return found


Mixer = Attention | LatentAttention | CompressedAttention | LinearAttention | KimiDelta | Mamba2 | Mamba
FeedForward = Mlp | Mixture
#: Names of the blocks in a model file.
BLOCKS: dict[str, type[Mixer] | type[FeedForward]] = {
    "attention": Attention, "latent_attention": LatentAttention, "compressed_attention": CompressedAttention,
    "linear_attention": LinearAttention, "kimi_delta": KimiDelta, "mamba2": Mamba2, "mamba": Mamba, "mlp": Mlp,
    "mixture": Mixture,
}  # fmt: skip
__all__ = ["ALL_TOKENS", "BLOCKS", "FeedForward", "Mixer"]
