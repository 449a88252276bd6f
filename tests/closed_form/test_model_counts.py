"""Are parameters, active parameters and FLOPs of published models exact?

data/models/published.csv holds counts of 71 models by PyTorch (classes of transformers 5.24 on the meta device), and 26
counts of forward FLOPs by torch's FlopCounterMode, of one sample of 2,048 tokens with unfused attention. Empty cells:
active parameters of models without experts, and FLOPs of models whose grouped products the counter does not see.
``kind``: a preset, a config of data/models/configs, or such a config with other keys (:data:`VARIANTS`).
"""

import csv
import json
from functools import cache
from pathlib import Path

import pytest

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.workload.architecture.files import read_bundled
from trine.workload.architecture.huggingface import architecture_of, load_config
from trine.workload.synthesis.model_files import load_model

DATA = Path(__file__).parents[1] / "data" / "models"
with (DATA / "published.csv").open(encoding="utf-8", newline="") as file:
    PUBLISHED = {row["name"]: row for row in csv.DictReader(file)}
TOKENS = 2048
FP8 = {"quantization_config": {"quant_method": "fp8"}}
QWEN3_32B = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "intermediate_size": 25_600,
    "max_window_layers": 64,
}
#: Models whose config differs from one of data/models/configs in these keys alone.
VARIANTS = {
    "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-large-uncased": (
        "bert-base-uncased",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "t5-large": (
        "t5-small",
        {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16},
    ),
    "meta-llama-3.1-70b": (
        "meta-llama-3.1-8b",
        {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28_672},
    ),
    "meta-llama-3.1-405b": (
        "meta-llama-3.1-8b",
        {"hidden_size": 16_384, "num_hidden_layers": 126, "num_attention_heads": 128, "intermediate_size": 53_248},
    ),
    "mixtral-8x22b-v0.1": (
        "mixtral-8x7b-v0.1",
        {"hidden_size": 6144, "num_hidden_layers": 56, "num_attention_heads": 48, "intermediate_size": 16_384},
    ),
    "qwen3-32b": ("qwen3-8b", QWEN3_32B),
    "qwen3-32b-fp8": ("qwen3-8b", QWEN3_32B | FP8),
    "qwen3-30b-a3b": (
        "qwen3-235b-a22b",
        {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "moe_intermediate_size": 768},
    ),
    "qwen3-235b-a22b-nvfp4": ("qwen3-235b-a22b", {}),
}
#: Presets of older, plainer families, and the published count of the same model.
SAME_MODEL = {
    "bloom-176b": "bloom",
    "gpt-2": "gpt2",
    "gpt-2-medium": "gpt2-medium",
    "gpt-2-xl": "gpt2-xl",
    "llama-2-7b": "llama-2-7b-hf",
    "llama-3-405b": "meta-llama-3.1-405b",
    "llama-3-70b": "meta-llama-3.1-70b",
    "llama-3-8b": "meta-llama-3.1-8b",
    "mixtral-8x22b": "mixtral-8x22b-v0.1",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "qwen2.5-7b": "qwen2.5-7b-instruct",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-8b": "qwen3-8b",
    "t5-large": "t5-large",
    "t5-small": "t5-small",
}


@cache
def architecture(name, kind):
    """Return a model as layers over blocks, before it takes one of the plainer forms."""
    if kind == "preset":
        path = PRESETS / "models" / f"{name}.yaml"
        return read_bundled(load_mapping(path), path)
    if kind == "config":
        return load_config(DATA / "configs" / f"{name}.json")
    base, changed = VARIANTS[name]
    keys = json.loads((DATA / "configs" / f"{base}.json").read_text(encoding="utf-8"))
    assert set(changed) - set(FP8) <= set(keys)
    return architecture_of(keys | changed, f"{name}.json", name)


def of_row(row):
    return architecture(row["name"], row["kind"])


def test_the_table_has_all_configs_and_variants():
    assert len(PUBLISHED) == 71
    by_kind = {kind: {n for n, row in PUBLISHED.items() if row["kind"] == kind} for kind in ("config", "variant")}
    assert by_kind["config"] == {path.stem for path in (DATA / "configs").glob("*.json")}
    assert by_kind["variant"] == set(VARIANTS)
    assert sum(row["forward_flops"] != "" for row in PUBLISHED.values()) == 26


COUNTS = {
    "parameters": lambda model: model.num_parameters,
    "active": lambda model: model.num_active,
    "forward_flops": lambda model: model.forward_flops(TOKENS, is_eager=True),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_exact(name):
    row, model = PUBLISHED[name], of_row(PUBLISHED[name])
    assert model.num_parameters == int(row["parameters"])
    assert model.num_active == int(row["active"] or row["parameters"])


@pytest.mark.parametrize("name", [name for name, row in sorted(PUBLISHED.items()) if row["forward_flops"]])
def test_forward_flops_are_exact(name):
    row = PUBLISHED[name]
    assert of_row(row).forward_flops(TOKENS, is_eager=True) == int(row["forward_flops"])


@pytest.mark.parametrize("column", ["parameters", "active", "forward_flops"])
def test_the_worst_case_is_off_by_nothing(column):
    """Print the largest error of each count, so that a failure names the family to look at first."""
    rows = [row for row in PUBLISHED.values() if row[column]]
    errors = {row["name"]: COUNTS[column](of_row(row)) / int(row[column]) - 1 for row in rows}
    worst = max(errors, key=lambda name: abs(errors[name]))
    print(f"{column}: worst of {len(rows)} models: {worst}, {errors[worst]:+.4%}")
    assert errors[worst] == 0


@pytest.mark.parametrize("name", sorted(SAME_MODEL))
def test_plainer_presets_have_the_parameters_of_the_config(name):
    assert load_model(name).num_parameters == int(PUBLISHED[SAME_MODEL[name]]["parameters"])


@pytest.mark.parametrize(
    ("name", "original", "stored"),
    [
        ("qwen3-32b-fp8", "qwen3-32b", "fp8"),
        ("llama-3.1-70b-instruct-fp8", "meta-llama-3.1-70b", ""),  # says so in hf_quant_config.json alone
        ("deepseek-v3.1-nvfp4", "deepseek-v3", ""),
        ("deepseek-v3", "deepseek-v3.1-nvfp4", "fp8"),
        ("gpt-oss-20b", "gpt-oss-20b", "mxfp4"),
    ],
)
def test_quantised_checkpoints_count_as_the_original(name, original, stored):
    assert of_row(PUBLISHED[name]).stored == stored
    assert PUBLISHED[name]["parameters"] == PUBLISHED[original]["parameters"]


# Models that transformers 5.24 does not know: formulas of their technical reports, with numbers.


def test_mimo_7b():
    """XiaomiMiMo/MiMo-7B-Base: 36 layers of Qwen2's form, without the layer for multi-token prediction."""
    qkv = 4096 * (32 + 8 + 8) * 128 + (32 + 8 + 8) * 128
    layer = qkv + 32 * 128 * 4096 + 3 * 4096 * 11_008 + 2 * 4096
    assert architecture("mimo-7b", "preset").num_parameters == 2 * 151_680 * 4096 + 36 * layer + 4096


def test_nemotron_super_49b():
    """nvidia/Llama-3_3-Nemotron-Super-49B-v1: 49 of 80 layers attend; networks of six widths, multiples of 256."""
    attention = 8192 * (64 + 8 + 8) * 128 + 64 * 128 * 8192 + 8192
    ffn = {14_336: 6, 28_672: 49, 17_920: 1, 7168: 10, 5632: 8, 2816: 6}
    assert sum(ffn.values()) == 80
    networks = sum(count * (3 * 8192 * width + 8192) for width, count in ffn.items())
    total = 2 * 128_256 * 8192 + 49 * attention + networks + 8192
    assert architecture("llama-3.3-nemotron-super-49b", "preset").num_parameters == total


def test_minimax_m3():
    """MiniMaxAI/MiniMax-M3: 3 dense layers, then 57 with an indexer of 4 heads and 128 experts beside a shared one."""
    attention = 6144 * (64 + 4 + 4) * 128 + 64 * 128 * 6144 + 2 * 128
    indexer = 6144 * 4 * 128 + 6144 * 128 + 2 * 128 + 6144 * 4
    dense = attention + 3 * 6144 * 12_288 + 2 * 6144
    sparse = attention + indexer + 6144 * 128 + (128 + 1) * 3 * 6144 * 3072 + 2 * 6144
    total = 2 * 200_064 * 6144 + 3 * dense + 57 * sparse + 6144
    unused = 57 * (128 - 4) * 3 * 6144 * 3072
    model = architecture("minimax-m3", "preset")
    assert model.num_parameters == total
    assert model.num_active == total - unused


def test_kimi_k3():
    """moonshotai/Kimi-K3: 69 layers of Kimi delta, 24 of gated latent attention, 896 experts on 3,584 features."""
    hidden, heads, wide = 7168, 96, 96 * 128
    delta = 3 * wide * hidden + 3 * wide * 4 + 128 * hidden + wide * 128 + heads * hidden + heads + wide
    delta += wide * hidden + 128 + hidden * wide  # output gate, its norm, output
    latent = 1536 * hidden + 1536 + heads * 192 * 1536 + (512 + 64) * hidden + 512 + heads * 256 * 512
    latent += hidden * wide + wide * hidden  # output and its gate
    router_and_experts = 896 * hidden + 896 * 3 * 3072 * 3584
    experts = router_and_experts + 3 * hidden * 6144 + 2 * hidden * 3584 + 3584
    norms = 2 * hidden + 2 * 2 * hidden  # of the layer, and of attention over earlier layers with its query
    text = 2 * 163_840 * hidden + 69 * delta + 24 * latent + 3 * hidden * 33_792 + 92 * experts + 93 * norms + hidden
    tower = architecture("kimi-k3", "preset").towers["vision"]
    pixels, projected = 1024, 1536
    block = 4 * pixels * projected + 2 * pixels * 4096 + 2 * pixels
    merged = 4 * pixels
    vision = 27 * block + pixels * 3 * 14 * 14 + 64 * 64 * pixels + pixels + 2 * pixels
    vision += merged * merged + merged + hidden * merged + hidden
    assert sum(weight.size for weight in tower.weights()) == vision
    model = architecture("kimi-k3", "preset")
    assert model.num_parameters == text + vision
    assert model.num_active == text + vision - 92 * (896 - 16) * 3 * 3072 * 3584
    assert round(model.num_parameters / 1e11) == 28  # published: 2.8 T
