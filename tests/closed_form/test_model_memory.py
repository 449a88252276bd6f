"""Do attention and mixers with a state keep, and compute, what hand formulas and brute force count?

Formulas stand here with the numbers of the published configs: nothing of them is read from trine.
"""

import math
from fractions import Fraction
from functools import cache
from itertools import product

import pytest

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.workload.architecture.blocks import (
    Attention,
    CompressedAttention,
    Indexer,
    KimiDelta,
    LatentAttention,
    LinearAttention,
    Mamba,
    Mamba2,
    attended,
)
from trine.workload.architecture.files import read_bundled

#: Tokens of one sample that the caches of whole models are compared at.
MANY = 131_072


@cache
def preset(name):
    path = PRESETS / "models" / f"{name}.yaml"
    return read_bundled(load_mapping(path), path)


#: Model, layer, elements per token, window (0: all tokens), elements of the state.
LAYERS = [
    # All heads, keys and values of one size.
    ("gpt-neox-20b", 0, 2 * 64 * 96, 0, 0),
    ("opt-6.7b", 31, 2 * 32 * 128, 0, 0),
    ("vit-base", 0, 2 * 12 * 64, 0, 0),
    # Grouped, and one for all heads.
    ("yi-34b", 0, 2 * 8 * 128, 0, 0),
    ("phi-4", 39, 2 * 10 * 128, 0, 0),
    ("llama-3.3-nemotron-super-49b", 0, 2 * 8 * 128, 0, 0),
    ("falcon-7b", 0, 2 * 1 * 64, 0, 0),
    ("minimax-m2.5", 0, 2 * 8 * 128, 0, 0),
    # In a window, in all layers or in some.
    ("mistral-7b", 0, 2 * 8 * 128, 4096, 0),
    ("phi-3-mini", 0, 2 * 32 * 96, 2047, 0),
    ("gemma-2-9b", 0, 2 * 8 * 256, 4096, 0),
    ("gemma-2-9b", 1, 2 * 8 * 256, 0, 0),
    ("step-3.7-flash", 0, 2 * 8 * 128, 0, 0),
    ("step-3.7-flash", 1, 2 * 8 * 128, 512, 0),
    # Sinks are weights: they keep nothing.
    ("gpt-oss-120b", 0, 2 * 8 * 64, 128, 0),
    ("gpt-oss-120b", 1, 2 * 8 * 64, 0, 0),
    # Values smaller than keys; more heads of keys in a window.
    ("mimo-v2-flash", 0, 4 * (192 + 128), 0, 0),
    ("mimo-v2-flash", 1, 8 * (192 + 128), 128, 0),
    # One projection makes keys and values, but keys are normalised and rotated afterwards: both are kept.
    ("gemma-4-26b-a4b", 0, 2 * 8 * 256, 1024, 0),
    ("gemma-4-26b-a4b", 5, 2 * 2 * 512, 0, 0),
    # A gate keeps nothing.
    ("qwen3-next-80b-a3b", 3, 2 * 2 * 256, 0, 0),
    # Latent features and rotated keys, for all heads together.
    ("deepseek-v2-lite", 0, 512 + 64, 0, 0),
    ("deepseek-v3", 60, 512 + 64, 0, 0),
    ("kimi-k2.5", 0, 512 + 64, 0, 0),
    # With the keys of an indexer; layers that use an earlier choice have none.
    ("deepseek-v3.2", 0, 512 + 64 + 128, 0, 0),
    ("glm-5.2", 0, 512 + 64 + 128, 0, 0),
    ("glm-5.2", 3, 512 + 64, 0, 0),
    ("minimax-m3", 0, 2 * 4 * 128, 0, 0),
    ("minimax-m3", 3, 2 * 4 * 128 + 128, 0, 0),
    # Compressed: a window of 128 tokens, then one key-value of 512 features for 4 (with 128 of the indexer) or 128.
    ("deepseek-v4-flash", 0, 0, 0, 128 * 512),
    ("deepseek-v4-flash", 2, Fraction(512 + 128, 4), 0, 128 * 512),
    ("deepseek-v4-flash", 3, Fraction(512, 128), 0, 128 * 512),
    ("deepseek-v4-pro", 0, Fraction(512, 128), 0, 128 * 512),
    # States: key x value features of each head, and 4 tokens of the convolutions.
    ("qwen3-next-80b-a3b", 0, 0, 0, 32 * 128 * 128 + 4 * (16 * 128 + 16 * 128 + 32 * 128)),
    ("qwen3.5-27b", 0, 0, 0, 48 * 128 * 128 + 4 * (16 * 128 + 16 * 128 + 48 * 128)),
    ("kimi-k3", 0, 0, 0, 96 * 128 * 128 + 4 * 3 * 96 * 128),
    ("kimi-k3", 3, 512 + 64, 0, 0),
    ("mamba2-2.7b", 0, 0, 0, 80 * 64 * 128 + 4 * (80 * 64 + 128 + 128)),
    ("nemotron-3-nano-30b-a3b", 0, 0, 0, 64 * 64 * 128 + 4 * (64 * 64 + 8 * 128 + 8 * 128)),
    ("nemotron-3-nano-30b-a3b", 5, 2 * 2 * 128, 0, 0),
    ("nemotron-h-56b", 0, 0, 0, 256 * 64 * 256 + 4 * (256 * 64 + 8 * 256 + 8 * 256)),
    ("jamba-v0.1", 0, 0, 0, 8192 * 16 + 4 * 8192),
    ("jamba-v0.1", 4, 2 * 8 * 128, 0, 0),
    # Three of four layers attend within chunks of 8,192 tokens.
    ("llama-4-scout", 0, 2 * 8 * 128, 8192, 0),
    ("llama-4-scout", 3, 2 * 8 * 128, 0, 0),
]


@pytest.mark.parametrize(("name", "layer", "per_token", "window", "state"), LAYERS)
def test_a_layer_keeps_what_its_formula_says(name, layer, per_token, window, state):
    kept = preset(name).layers[layer].mixer.cache()
    assert (kept.per_token, kept.window, kept.state) == (per_token, window, state)
    for tokens in (1, 100, 5000):
        seen = min(tokens, window or tokens)
        assert kept.elements(tokens) == state + -(-per_token * seen // 1)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("yi-34b", 60 * 2 * 8 * 128 * MANY),
        ("gemma-2-9b", 21 * 4096 * (4096 + MANY)),
        ("gemma-4-31b", 50 * 2 * 16 * 256 * 1024 + 10 * 2 * 4 * 512 * MANY),
        ("gpt-oss-20b", 12 * 1024 * (128 + MANY)),
        ("mimo-v2-flash", 9 * 1280 * MANY + 39 * 2560 * 128),
        ("step-3.7-flash", 12 * 2048 * MANY + 33 * 2048 * 512),
        ("deepseek-v3", 61 * 576 * MANY),
        ("deepseek-v3.2", 61 * 704 * MANY),
        ("glm-5.2", (21 * 704 + 57 * 576) * MANY),
        ("deepseek-v4-flash", 43 * 128 * 512 + 21 * 160 * MANY + 20 * 4 * MANY),
        ("kimi-k3", 24 * 576 * MANY + 69 * (96 * 128 * 128 + 12 * 96 * 128)),
        ("qwen3-next-80b-a3b", 12 * 1024 * MANY + 36 * (32 * 128 * 128 + 4 * 8192)),
        ("nemotron-3-nano-30b-a3b", 6 * 512 * MANY + 23 * (64 * 64 * 128 + 4 * 6144)),
        ("mamba2-2.7b", 64 * (80 * 64 * 128 + 4 * 5376)),
        ("jamba-v0.1", 4 * 2048 * MANY + 28 * 8192 * 20),
        ("llama-3.3-nemotron-super-49b", 49 * 2 * 8 * 128 * MANY),
        ("minimax-m3", (3 * 1024 + 57 * (1024 + 128)) * MANY),
        ("llama-4-scout", 2048 * (12 * MANY + 36 * 8192)),
    ],
)
def test_a_model_keeps_the_sum_of_its_layers(name, elements):
    assert preset(name).cache_elements(MANY) == elements


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("gemma-2-27b", 23 * 2 * 16 * 128),
        ("mistral-7b", 0),
        ("mamba2-2.7b", 0),
        ("deepseek-v4-flash", 21 * 160 + 20 * 4),
    ],
)
def test_one_more_token_beyond_all_windows(name, elements):
    model = preset(name)
    assert model.cache_per_token == elements
    assert model.cache_elements(MANY + 1) - model.cache_elements(MANY) == elements


def test_a_part_of_a_compressed_token_counts_as_a_whole_element():
    mixer = CompressedAttention(
        heads=1, head_size=10, query_rank=1, out_groups=1, out_rank=1, window=3, ratio=4, is_overlapping=True
    )
    assert [mixer.cache().elements(tokens) - 3 * 10 for tokens in range(6)] == [0, 3, 5, 8, 10, 13]


# Pairs of query and key, and FLOPs, counted one by one.


def seen_keys(query, window):
    """Return the keys that a query sees: itself and those before, of the window only if there is one."""
    return [key for key in range(query + 1) if not window or query - key < window]


def test_pairs_of_query_and_key_are_those_counted_one_by_one():
    for tokens, window in product(range(1, 25), range(27)):
        pairs = sum(len(seen_keys(query, window)) for query in range(tokens))
        assert attended(tokens, window, True) == pairs, (tokens, window)
    assert all(attended(tokens, 0, False) == tokens * tokens for tokens in range(1, 25))


SIZES = [1, 2, 5, 8, 13, 32]


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("window", "value_size"), [(0, 0), (0, 3), (4, 0), (8, 2), (64, 5)])
def test_flops_of_attention(tokens, window, value_size):
    mixer = Attention(heads=6, kv_heads=2, head_size=7, value_size=value_size, window=window)
    values, flops = value_size or 7, 0
    for query in range(tokens):
        for _ in product(range(6), seen_keys(query, window)):
            flops += 2 * 7 + 2 * values  # a product of query and key, and a share of the value added
    assert mixer.context_flops(tokens) == flops
    assert mixer.context_flops(tokens, is_eager=True) == 6 * tokens * tokens * (2 * 7 + 2 * values)


@pytest.mark.parametrize("tokens", SIZES)
def test_flops_of_attention_in_both_directions(tokens):
    mixer = Attention(heads=3, kv_heads=3, head_size=5, causal=False)
    assert mixer.context_flops(tokens) == sum(4 * 5 for _ in product(range(3), range(tokens), range(tokens)))


def indexed_flops(tokens, heads, features, indexer):
    """Return the FLOPs of attention to the keys that an indexer chooses, and of its scores of all keys."""
    flops = 0
    for query in range(tokens):
        flops += 2 * features * heads * min(query + 1, indexer.top_k)
        flops += 0 if indexer.is_shared else 2 * indexer.heads * indexer.size * (query + 1)
    return flops


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("is_shared", [False, True])
def test_flops_of_attention_to_chosen_keys(tokens, is_shared):
    indexer = Indexer(heads=3, size=4, top_k=6, is_shared=is_shared)
    latent = LatentAttention(heads=5, kv_rank=8, plain=6, rotated=2, value=7, indexer=indexer)
    assert latent.context_flops(tokens) == indexed_flops(tokens, 5, 6 + 2 + 7, indexer)
    plain = Attention(heads=4, kv_heads=2, head_size=9, indexer=indexer)
    assert plain.context_flops(tokens) == indexed_flops(tokens, 4, 9 + 9, indexer)


@pytest.mark.parametrize(
    "mixer",
    [
        LatentAttention(heads=5, kv_rank=8, plain=6, rotated=2, value=7, indexer=Indexer(heads=3, size=4, top_k=6)),
        Attention(heads=5, kv_heads=1, head_size=8, value_size=7, indexer=Indexer(heads=3, size=4, top_k=6)),
    ],
    ids=["latent", "plain"],
)
def test_unfused_code_scores_all_pairs_in_the_indexer_too(mixer):
    pairs = 16 * 16
    assert mixer.context_flops(16, is_eager=True) == pairs * (5 * 2 * (8 + 7) + 2 * 3 * 4)


def compressed_flops(tokens, mixer):
    """Return the FLOPs of attention to a window and to the groups of ``ratio`` tokens that are complete."""
    flops, pair = 0, 4 * mixer.heads * mixer.head_size
    for query in range(tokens):
        groups = (query + 1) // mixer.ratio if mixer.ratio else 0
        chosen = groups if mixer.indexer is None else min(groups, mixer.indexer.top_k)
        flops += pair * (min(query + 1, mixer.window) + chosen)
        flops += 0 if mixer.indexer is None else 2 * mixer.indexer.heads * mixer.indexer.size * groups
    return flops


def compressed(ratio, indexer=None):
    return CompressedAttention(
        heads=3, head_size=8, query_rank=4, out_groups=1, out_rank=4, window=6, ratio=ratio, indexer=indexer,
        is_overlapping=indexer is not None,
    )  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 5, 8, 32, 128])
@pytest.mark.parametrize("ratio", [0, 4, 8])
def test_unfused_compressed_attention_computes_all_pairs(tokens, ratio):
    mixer = compressed(ratio)
    assert mixer.context_flops(tokens, is_eager=True) == 4 * 3 * 8 * tokens * (
        tokens + (tokens // ratio if ratio else 0)
    )


@pytest.mark.parametrize(
    ("ratio", "indexer"),
    [
        (0, None),
        (8, None),
        (4, Indexer(heads=2, size=4, top_k=8)),
    ],
    ids=["window", "hca", "csa"],
)
def test_flops_of_compressed_attention_are_those_counted_one_by_one(ratio, indexer):
    mixer = compressed(ratio, indexer)
    assert [mixer.context_flops(t) for t in (5, 8, 32, 64)] == [compressed_flops(t, mixer) for t in (5, 8, 32, 64)]


@pytest.mark.parametrize("tokens", SIZES)
def test_flops_of_recurrences(tokens):
    """Each multiply-add of a state's element is two: read, correct and update (delta rules), or update and read."""
    delta = sum(3 * 2 for _ in product(range(tokens), range(4), range(3), range(5)))
    assert LinearAttention(key_heads=2, value_heads=4, key_size=3, value_size=5).context_flops(tokens) == delta
    kimi = sum(3 * 2 for _ in product(range(tokens), range(2), range(3), range(3)))
    assert KimiDelta(heads=2, head_size=3).context_flops(tokens) == kimi
    mamba2 = sum(2 * 2 for _ in product(range(tokens), range(2), range(3), range(4)))
    assert Mamba2(heads=2, head_size=3, state=4).context_flops(tokens) == mamba2
    mamba = sum(3 * 2 for _ in product(range(tokens), range(6), range(4)))  # its decay differs for each element
    assert Mamba(inner=6, state=4, rank=1).context_flops(tokens) == mamba


def test_a_model_adds_the_flops_of_products_and_of_each_layer():
    """gpt-oss-20b on 1,000 tokens: products of 3.6 B active parameters, 12 layers in a window of 128, 12 without."""
    layer = 2880 * (64 + 8 + 8) * 64 + 64 * 64 * 2880 + 2880 * 32 + 4 * 3 * 2880 * 2880
    products = 24 * layer + 201_088 * 2880
    full, window = 1000 * 1001 // 2, 128 * 129 // 2 + 872 * 128
    pairs = 12 * (full + window) * 64 * 2 * 64
    assert preset("gpt-oss-20b").forward_flops(1000) == 2 * products * 1000 + 2 * pairs


@pytest.mark.parametrize(("tokens", "chunk"), [(6, 2), (5, 2), (4, 4), (3, 8)])
def test_unfused_mamba2_multiplies_the_tokens_of_a_chunk_the_states_of_all_chunks_and_the_padding(tokens, chunk):
    """Products counted one by one, two operations each: transformers' code without fused kernels."""
    heads, head_size, state, groups, conv = 3, 5, 7, 1, 4
    mixer = Mamba2(heads=heads, head_size=head_size, state=state, groups=groups, conv=conv, chunk=chunk)
    chunks = math.ceil(tokens / chunk)
    pairs = chunks * chunk * chunk * heads  # of tokens of one chunk, the last one padded
    among = sum(1 for _ in product(range(pairs), range(state))) + sum(
        1 for _ in product(range(pairs), range(head_size))
    )
    written_and_read = 2 * chunks * chunk * heads * head_size * state
    between = sum(heads * head_size * state for _ in product(range(chunks + 1), range(chunks + 1)))
    features = heads * head_size + 2 * groups * state
    outputs = tokens + conv - 1  # a causal convolution, padded by conv - 1 tokens
    edges = features * conv * outputs - features * conv * tokens
    assert mixer.context_flops(tokens, is_eager=True) == 2 * (among + written_and_read + between + edges)
    assert mixer.context_flops(tokens) == 4 * tokens * heads * head_size * state
