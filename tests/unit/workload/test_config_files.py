"""Does a config.json, or a file of layers over blocks, become the right model or one line that names the fault?"""

import copy
import json
import re
from pathlib import Path

import pytest

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.errors import SpecError
from trine.workload.architecture.blocks import Attention, LatentAttention, Mamba2, Mixture, Mlp
from trine.workload.architecture.huggingface import FAMILIES, architecture_of, load_config
from trine.workload.architecture.model import Architecture
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.spec import Transformer

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA2 = LLAMA | {"model_type": "gemma2", "sliding_window": 16}
#: Of two layers of LLAMA: attention, network, two norms each; embedding, head, last norm.
LLAMA_PARAMETERS = 2 * (64 * (4 + 2 + 2) * 16 + 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 100 * 64 + 64


@pytest.fixture
def save(tmp_path):
    def write(content, name="config.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def without(config, key):
    return {name: value for name, value in config.items() if name != key}


def test_a_config_its_folder_and_a_file_of_any_name_are_one_model(save, tmp_path):
    path = save(LLAMA)
    by_file, by_folder, renamed = load_model(path), load_model(tmp_path), load_model(save(LLAMA, "mine.json"))
    assert isinstance(by_file, Transformer)
    assert by_file == by_folder
    assert (by_file.name, renamed.name) == (tmp_path.name, "mine")
    assert by_file.num_parameters == renamed.num_parameters == LLAMA_PARAMETERS
    assert load_config(path).num_parameters == LLAMA_PARAMETERS


def test_gemma3_omits_the_defaults_of_transformers():
    """The published number of parameters of Gemma 3 4B's language model, from a config with the keys that it states."""
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    config = {"model_type": "gemma3", "text_config": text, "mm_tokens_per_image": 256, "boi_token_index": 255_999}
    model = architecture_of(config, "config.json", "gemma")
    projections = 2560 * (8 + 4 + 4) * 256 + 8 * 256 * 2560
    layer = projections + 3 * 2560 * 10_240 + 4 * 2560 + 2 * 256
    assert model.num_parameters == 262_208 * 2560 + 34 * layer + 2560 == 3_880_263_168
    stated = architecture_of({**config, "text_config": {**text, "num_attention_heads": 16}}, "config.json", "gemma")
    assert stated.num_parameters - model.num_parameters == 34 * 2 * 8 * 256 * 2560


def test_the_name_is_the_one_in_the_config(save):
    assert load_config(save(LLAMA | {"_name_or_path": "someone/tiny-llama"})).name == "tiny-llama"


def test_a_model_that_no_plainer_form_expresses_stays_layers_over_blocks(save):
    model = load_model(save(GEMMA2))
    assert isinstance(model, Architecture)
    assert [layer.mixer.window for layer in model.layers] == [16, 0]


REFUSED = {
    "unknown model_type": (
        LLAMA | {"model_type": "llada"},
        r"model_type: 'llada' is unknown to trine; 'trine help guides/models' lists",
    ),
    "model_type in another spelling": (LLAMA | {"model_type": "Qwen3-MoE"}, r"did you mean 'qwen3_moe'\?"),
    "no model_type": (without(LLAMA, "model_type"), "model_type: is missing"),
    "missing size": (without(LLAMA, "intermediate_size"), "intermediate_size: is missing"),
    "size under another name": (
        without(LLAMA, "hidden_size") | {"hidden_sizes": 64},
        "hidden_size: is missing.*'hidden_sizes'",
    ),
    "heads that do not divide": (
        LLAMA | {"num_attention_heads": 6},
        "num_attention_heads: 6 heads do not divide the 64 hidden features",
    ),
    "heads of keys that do not divide": (
        LLAMA | {"num_key_value_heads": 3},
        "num_key_value_heads: 3 heads of keys and values do not divide 4 heads",
    ),
    "more chosen than experts": (
        MIXTRAL | {"num_experts_per_tok": 5},
        "num_experts_per_tok: 5 is above the 4 experts",
    ),
    "a key that changes the model": (
        LLAMA | {"num_memory_tokens": 4},
        "num_memory_tokens: changes the model in a way that trine does not know: 4",
    ),
    "a section that changes the model": (LLAMA | {"adapter": {"rank": 8}}, r'adapter: changes .*\{"rank": 8\}'),
    "a number as text": (LLAMA | {"hidden_size": "64"}, "hidden_size: must be a whole number from 1 .*'64'"),
    "a fraction": (LLAMA | {"num_hidden_layers": 2.5}, "num_hidden_layers: must be a whole number .*'2.5'"),
    "true as number": (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers: must be a whole number .*'True'"),
    "zero": (LLAMA | {"vocab_size": 0}, "vocab_size: must be a whole number from 1 "),
    "negative": (LLAMA | {"intermediate_size": -128}, "intermediate_size: must be a whole number from 1 "),
    "enormous": (LLAMA | {"intermediate_size": 10**10}, "intermediate_size: must be a whole number from 1 "),
    "too many layers": (
        LLAMA | {"num_hidden_layers": 10_001},
        "num_hidden_layers: must be a whole number from 1 to 10,000, got '10001'",
    ),
    "text as flag": (LLAMA | {"attention_bias": "yes"}, "attention_bias: must be true or false, got 'yes'"),
    "unknown activation": (LLAMA | {"hidden_act": "silly"}, "hidden_act: 'silly' is unknown to trine.*'silu'"),
    "list too short": (
        GEMMA2 | {"layer_types": ["full_attention"]},
        "layer_types: has 1 items for 2 layers",
    ),
    "text as list": (GEMMA2 | {"layer_types": "full_attention"}, "layer_types: must be a list"),
    "number as section": (
        {"model_type": "llama4", "text_config": 5},
        "text_config: must be a section of keys, got '5'",
    ),
    "key of a section": (
        {"model_type": "llama4", "text_config": LLAMA | {"model_type": "llama4_text"}},
        r"text_config\.num_local_experts: is missing",
    ),
    "unknown key of a section": (
        {"model_type": "gemma3", "text_config": LLAMA | {"model_type": "gemma3_text", "num_memory_tokens": 4}},
        r"text_config\.num_memory_tokens: changes the model",
    ),
    "layers that share caches": (
        LLAMA | {"model_type": "gemma4_text", "num_kv_shared_layers": 1},
        "num_kv_shared_layers: layers that share keys and values are not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_faulty_config_is_refused_by_file_and_key(save, case):
    content, message = REFUSED[case]
    path = save(content)
    with pytest.raises(SpecError, match=message) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("", "is no JSON"),
        ("hidden_size: 64", "is no JSON"),
        ('[{"model_type": "llama"}]', "must be a mapping of keys"),
        ("5", "must be a mapping of keys"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_a_file_that_is_no_config_is_refused(save, text, message):
    with pytest.raises(SpecError, match=f"config.json: {message}"):
        load_model(save(text))


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"config\.json"):
        load_config(tmp_path)
    with pytest.raises(SpecError, match="unknown model"):
        load_model(tmp_path)
    with pytest.raises(SpecError, match=r"nowhere\.json"):
        load_model(tmp_path / "nowhere.json")


HARMLESS = {
    "rope_theta": 1e6, "rope_scaling": {"factor": 8.0}, "torch_dtype": "bfloat16", "architectures": ["X"],
    "attention_dropout": 0.1, "router_aux_loss_coef": 0.001, "transformers_version": "5.24.0", "eos_token_id": [1, 2],
    "quantization_config": {"quant_method": "fp8"}, "num_memory_tokens": 0, "adapter": None, "parallel": False,
    "extra_layers": [], "marker": "",
}  # fmt: skip


@pytest.mark.parametrize("key", HARMLESS)
def test_a_key_that_changes_nothing_or_is_off_is_accepted(save, key):
    model = load_config(save(LLAMA | {key: HARMLESS[key]}))
    assert model.num_parameters == LLAMA_PARAMETERS
    assert model.stored == ("fp8" if key == "quantization_config" else "")


@pytest.mark.parametrize("key", ["max_position_embeddings", "num_key_value_heads", "hidden_act"])
def test_a_key_with_a_default_may_be_missing(save, key):
    model = load_config(save(without(LLAMA, key)))
    assert model.layers[0].mixer.kv_heads == (4 if key == "num_key_value_heads" else 2)
    assert model.sequence == (4096 if key == "max_position_embeddings" else 256)


def test_a_plainer_form_keeps_what_the_file_states():
    path = PRESETS / "models" / "qwen3-0.6b.yaml"
    content, model = load_mapping(path), load_model("qwen3-0.6b")
    assert model.parameters == content["parameters"]
    assert model.sources == content["sources"]


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_config_with_its_type_alone_names_the_first_missing_key(kind):
    with pytest.raises(SpecError, match=r"is missing|must consist of"):
        architecture_of({"model_type": kind}, "config.json", kind)


# Keys of published configs, replaced by values of another type.

WRONG = ["x", -1, 1.5, True, None, [1], [[1]], {"a": 1}, 10**12]


def keys_of(config, above=()):
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield (*above, key, 0)
            yield from keys_of(value[0], (*above, key, 0))


def replaced(config, path, value):
    changed = copy.deepcopy(config)
    section = changed
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return changed


def preset_config(name):
    return load_mapping(PRESETS / "models" / f"{name}.yaml")["config"]


def read_all(config):
    """Read a model and use it; SpecError is an answer, any other error a fault."""
    try:
        model = architecture_of(config, "config.json", "tiny")
    except SpecError:
        return
    assert model.num_parameters > 0
    assert model.forward_flops(100) > 0
    assert model.cache_elements(100) >= 0
    assert model.shapes


@pytest.mark.parametrize("name", ["qwen3-0.6b", "gemma-4-26b-a4b", "deepseek-v3.2", "gpt-oss-20b", "mamba2-2.7b"])
def test_values_of_another_type_are_refused_or_read(name):
    config = preset_config(name)
    for path in keys_of(config):
        for value in WRONG:
            read_all(replaced(config, path, value))


ITEMS = {
    "compress_ratios": ("deepseek-v4-flash", ("compress_ratios",), [[1]] * 43),
    "full_attn_layers": ("kimi-k3", ("text_config", "linear_attn_config", "full_attn_layers"), [[1]]),
    "block_configs": ("llama-3.3-nemotron-super-49b", ("block_configs",), [1]),
    "ffn_mult": ("llama-3.3-nemotron-super-49b", ("block_configs", 0, "ffn", "ffn_mult"), [1]),
    "mlp_only_layers": ("qwen1.5-moe-a2.7b", ("mlp_only_layers",), [[1]]),
    "merge_kernel_size": ("kimi-k2.5", ("vision_config", "merge_kernel_size"), [1]),
    "mtp_layers_block_type": ("nemotron-3-ultra-550b-a55b", ("mtp_layers_block_type",), [[1]]),
    "indexer_types": ("glm-5.2", ("indexer_types",), ["full", "shard"] * 39),
    "mlp_layer_types": ("glm-5.2", ("mlp_layer_types",), ["dense", "sprase"] * 39),
    "layer_types": ("qwen3.5-27b", ("text_config", "layer_types"), ["linear_atention"] * 64),
    "moe_layer_freq": ("minimax-m3", ("moe_layer_freq",), [0.5] * 60),
    "hybrid_layer_pattern": ("mimo-v2-flash", ("hybrid_layer_pattern",), ["0"] * 48),
    "num_heads": ("qwen3-vl-30b-a3b", ("vision_config", "num_heads"), 7),
}


@pytest.mark.parametrize("case", ITEMS)
def test_items_of_another_type_are_refused_by_name(case):
    name, path, value = ITEMS[case]
    with pytest.raises(SpecError, match=case) as error:
        architecture_of(replaced(preset_config(name), path, value), "config.json", "tiny")
    assert str(error.value).startswith("config.json: ")


@pytest.mark.slow
def test_no_value_of_any_published_config_raises_another_error():
    faults = {}
    for preset in sorted((PRESETS / "models").glob("*.yaml")):
        content = load_mapping(preset)
        if content.get("family") != "huggingface":
            continue
        for path in keys_of(content["config"]):
            for value in WRONG:
                try:
                    read_all(replaced(content["config"], path, value))
                except Exception as error:
                    faults.setdefault(f"{preset.stem}: {path}", repr(error))
    assert faults == {}


# Keys that change the model and are neither read nor refused.

SECTIONS = [
    ("llama-3.3-nemotron-super-49b", ("block_configs", 0, "attention", "window_length"), 4096),
    ("llama-3.3-nemotron-super-49b", ("block_configs", 0, "ffn", "num_experts"), 8),
    ("llama-3.3-nemotron-super-49b", ("block_configs", 0, "num_memory_tokens"), 4),
    ("minimax-m3", ("sparse_attention_config", "num_memory_tokens"), 4),
    ("kimi-k3", ("text_config", "linear_attn_config", "num_memory_tokens"), 4),
    ("qwen3-vl-30b-a3b", ("vision_config", "num_memory_tokens"), 4),
    ("gemma-4-31b", ("vision_config", "num_memory_tokens"), 4),
    ("clip-vit-base", ("text_config", "num_memory_tokens"), 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "value"), SECTIONS)
def test_a_key_of_a_section_that_changes_the_model_is_refused(name, path, value):
    with pytest.raises(SpecError, match=f"{path[-1]}: changes the model"):
        architecture_of(replaced(preset_config(name), path, value), "config.json", name)


def test_the_shared_expert_of_minimax_m2_counts():
    config = preset_config("minimax-m2.5")
    plain = architecture_of(config, "config.json", "m2").num_parameters
    shared = architecture_of(config | {"shared_intermediate_size": 1536}, "config.json", "m2").num_parameters
    assert shared - plain == 62 * 3 * 3072 * 1536


@pytest.mark.parametrize(
    ("changes", "chunked"),
    [
        ({}, [True, True, True, False] * 2),
        ({"no_rope_layer_interval": 2}, [True, False] * 4),
        ({"no_rope_layers": [1, 0, 0, 1, 1, 1, 1, 0]}, [True, False, False, True, True, True, True, False]),
        ({"layer_types": ["full_attention"] + ["chunked_attention"] * 7}, [False] + [True] * 7),
    ],
)
def test_rotated_layers_of_llama_4_attend_within_chunks(changes, chunked):
    sizes = {"model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 32}
    model = architecture_of(MIXTRAL | sizes | changes, "config.json", "tiny")
    assert [layer.mixer.window for layer in model.layers] == [32 if each else 0 for each in chunked]
    assert [layer.mixer.rotary for layer in model.layers] == chunked


def test_a_window_shorter_than_the_longest_context_is_kept(save):
    config = LLAMA | {"model_type": "mistral", "max_position_embeddings": 65_536}
    inside, beyond = (load_model(save(config | {"sliding_window": window})) for window in (8192, 65_536))
    assert (type(inside), inside.layers[0].mixer.window) == (Architecture, 8192)
    assert isinstance(beyond, Transformer)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"sliding_window": 16, "layer_types": ["full_attention", "chunked_attention"]},
        GEMMA2 | {"layer_types": ["full_attention", "sliding_atention"]},
    ],
    ids=["llama", "gemma2"],
)
def test_an_unknown_kind_of_layer_is_refused(config):
    with pytest.raises(SpecError, match="layer_types"):
        architecture_of(config, "config.json", "tiny")


FALCON = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 6, "vocab_size": 9}


def test_heads_of_falcon_that_do_not_divide_are_refused():
    with pytest.raises(SpecError, match="do not divide"):
        architecture_of(FALCON, "config.json", "tiny")


# Files of layers over blocks.

SIZES = "family: layers\nhidden: 64\nvocab: 100\nsequence: 32\n"
BLOCKS = """blocks:
  attention: {kind: attention, heads: 4, kv_heads: 2, head_size: 16}
  mlp: {kind: mlp, ffn: 128}
  experts: {kind: mixture, experts: 8, top_k: 2, ffn: 32}
"""
GROUP = "layers:\n- {count: 2, mixer: attention, feed_forward: mlp}\n"


def test_equal_layers_make_the_same_model_as_the_config(save):
    model = load_model(save(SIZES + BLOCKS + GROUP, "mine.yaml"))
    assert isinstance(model, Transformer)
    assert (model.name, model.num_parameters) == ("mine", LLAMA_PARAMETERS)


def test_groups_repeat_in_order(save):
    text = SIZES + BLOCKS + "repeat: 3\nlayers:\n- {count: 2, mixer: attention, feed_forward: mlp}\n"
    model = load_model(save(text + "- {mixer: attention, feed_forward: experts}\n", "mine.yaml"))
    kinds = [type(layer.feed_forward).__name__ for layer in model.layers]
    assert kinds == ["Mlp", "Mlp", "Mixture"] * 3


FAULTY = {
    "no blocks": (SIZES + GROUP, "blocks: must be a section with at least one key"),
    "blocks as list": (f"{SIZES}blocks: [attention]\n{GROUP}", "blocks: must be a section"),
    "block without kind": (f"{SIZES}blocks:\n  attention: 5\n{GROUP}", r"blocks\.attention: must be a block with"),
    "unknown kind": (
        f"{SIZES}blocks:\n  attention: {{kind: latent_atention, heads: 4}}\n{GROUP}",
        r"blocks\.attention\.kind: must be one of attention, .*'latent_attention'",
    ),
    "unknown field of a block": (
        SIZES + BLOCKS.replace("head_size", "head_sizes") + GROUP,
        r"blocks\.attention: unknown key 'head_sizes'.*'head_size'",
    ),
    "missing field of a block": (SIZES + BLOCKS.replace("ffn: 128", "biases: true") + GROUP, r"blocks\.mlp.*ffn"),
    "text as size": (SIZES + BLOCKS.replace("heads: 4", "heads: four") + GROUP, r"blocks\.attention.*heads"),
    "more chosen than experts": (
        SIZES + BLOCKS.replace("top_k: 2", "top_k: 9") + GROUP,
        r"blocks\.experts: top_k 9 is above the 8 experts",
    ),
    "unknown block": (
        SIZES + BLOCKS + "layers:\n- {mixer: atention}\n",
        r"layers\[0\]\.mixer: names no block of this file.*attention",
    ),
    "unknown field of a layer": (
        SIZES + BLOCKS + "layers:\n- {mixer: attention, nrms: 1}\n",
        "unknown key 'nrms'.*'norms'",
    ),
    "unknown field of the model": (f"{SIZES}vocabulary: 5\n{BLOCKS}{GROUP}", "unknown key 'vocabulary'.*'vocab'"),
    "no layers": (SIZES + BLOCKS, "layers: must be a list of groups"),
    "layers as mapping": (SIZES + BLOCKS + "layers: {mixer: attention}\n", "layers: must be a list of groups"),
    "layer as text": (SIZES + BLOCKS + "layers: [attention]\n", r"layers\[0\]: must be a group of layers"),
    "count of nothing": (SIZES + BLOCKS + "layers:\n- {count: 0, mixer: attention}\n", r"layers\[0\]\.count: must be"),
    "count as text": (SIZES + BLOCKS + "layers:\n- {count: '2', mixer: attention}\n", r"layers\[0\]\.count: must be"),
    "count as flag": (SIZES + BLOCKS + "layers:\n- {count: true, mixer: attention}\n", r"layers\[0\]\.count: must be"),
    "too many layers": (f"{SIZES}{BLOCKS}repeat: 9000\n{GROUP}", "layers: are 18,000; at most 10,000"),
    "repeat of nothing": (f"{SIZES}{BLOCKS}repeat: 0\n{GROUP}", "repeat: must be a whole number"),
    "other parameters": (
        f"{SIZES}parameters: 5\n{BLOCKS}{GROUP}",
        f"parameters: says 5, but the shapes make {LLAMA_PARAMETERS:,}",
    ),
    "missing size": (BLOCKS + GROUP + "family: layers\nhidden: 64\nsequence: 32\n", "vocab"),
    "unknown family": (SIZES.replace("layers", "layer") + BLOCKS + GROUP, "family: must be one of .*layers"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_file_of_layers_is_refused_by_file_and_field(save, case):
    text, message = FAULTY[case]
    path = save(text, "mine.yaml")
    with pytest.raises(SpecError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


IMPOSSIBLE = {
    "heads of keys that do not divide": (
        SIZES + BLOCKS.replace("kv_heads: 2", "kv_heads: 3") + GROUP,
        r"blocks\.attention: kv_heads 3 does not divide heads 4",
    ),
    "a network as mixer": (
        SIZES + BLOCKS + "layers:\n- {mixer: mlp}\n",
        r"layers\[0\]\.mixer: 'mlp' is no block of the kinds attention, ",
    ),
    "a mixer as network": (
        SIZES + BLOCKS + "layers:\n- {feed_forward: attention}\n",
        r"layers\[0\]\.feed_forward: 'attention' is no block of the kinds mlp, mixture",
    ),
    "an empty layer": (SIZES + BLOCKS + "layers:\n- {count: 2}\n", r"layers\[0\]: a layer needs a block"),
    "a list as name": (SIZES + BLOCKS + "layers:\n- {mixer: [attention]}\n", r"layers\[0\]\.mixer: names no block"),
    "a list as kind": (f"{SIZES}blocks:\n  mlp: {{kind: [mlp], ffn: 8}}\n{GROUP}", r"blocks\.mlp\.kind: must be one"),
    "numbers as names": (
        f"{SIZES}blocks:\n  1: {{kind: mlp, ffn: 8}}\n  a: {{kind: mlp, ffn: 8}}\nlayers:\n- {{feed_forward: 1}}\n",
        r"layers\[0\]\.feed_forward: names no block",
    ),
    "an indexer of keys that are not compressed": (
        f"{SIZES}blocks:\n  a: {{kind: compressed_attention, heads: 4, head_size: 4, query_rank: 8, out_groups: 4, "
        "out_rank: 4, window: 8, indexer: {heads: 2, size: 4, top_k: 2}}\nlayers:\n- {mixer: a}\n",
        "an indexer of compressed attention needs a ratio",
    ),
    "groups that do not divide the features": (
        f"{SIZES}blocks:\n  a: {{kind: compressed_attention, heads: 3, head_size: 5, query_rank: 8, out_groups: 4, "
        "out_rank: 4, window: 8}\nlayers:\n- {mixer: a}\n",
        "out_groups 4 does not divide .* 15",
    ),
    "groups that do not divide the heads": (
        f"{SIZES}blocks:\n  a: {{kind: mamba2, heads: 3, head_size: 5, state: 4, groups: 2}}\n"
        "layers:\n- {mixer: a}\n",
        "groups 2 does not divide heads 3",
    ),
    "heads of keys that do not divide heads of values": (
        f"{SIZES}blocks:\n  a: {{kind: linear_attention, key_heads: 3, value_heads: 5, key_size: 4, value_size: 2}}\n"
        "layers:\n- {mixer: a}\n",
        "key_heads 3 does not divide value_heads 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_layer_is_refused(save, case):
    text, message = IMPOSSIBLE[case]
    with pytest.raises(SpecError, match=message):
        load_model(save(text, "mine.yaml"))


NEW = """family: layers
hidden: 64
vocab: 100
sequence: 32
blocks:
  latent: {kind: latent_attention, heads: 4, query_rank: 24, kv_rank: 16, plain: 8, rotated: 4, value: 8}
  near: {kind: attention, heads: 4, kv_heads: 2, head_size: 16, window: 8, norms: heads}
  state: {kind: mamba2, heads: 8, head_size: 16, state: 4, groups: 2}
  experts: {kind: mixture, experts: 8, top_k: 2, ffn: 32, shared: 48}
  dense: {kind: mlp, ffn: 128}
repeat: 2
layers:
- {count: 2, mixer: state, norms: 1}
- {mixer: near, feed_forward: dense}
- {mixer: latent, feed_forward: experts}
"""


def test_a_new_combination_needs_no_python(save):
    model = load_model(save(NEW, "mine.yaml"))
    kinds = [(type(layer.mixer), type(layer.feed_forward)) for layer in model.layers]
    assert kinds == 2 * [(Mamba2, type(None)), (Mamba2, type(None)), (Attention, Mlp), (LatentAttention, Mixture)]
    inner, mixed = 8 * 16, 8 * 16 + 2 * 2 * 4
    state = (inner + mixed + 8) * 64 + 5 * mixed + 3 * 8 + inner + 64 * inner + 64  # convolution of 4 with its bias
    near = (4 + 2 + 2) * 16 * 64 + 2 * 16 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    latent = 24 * 64 + 24 + 4 * 12 * 24 + 20 * 64 + 16 + 4 * 16 * 16 + 64 * 4 * 8
    router, expert, shared = 8 * 64, 3 * 64 * 32, 3 * 64 * 48
    sparse = latent + router + 8 * expert + shared + 2 * 64
    total = 2 * (2 * state + near + sparse) + 2 * 100 * 64 + 64
    assert model.num_parameters == total
    assert model.num_active == total - 2 * 6 * expert
    kept = 2 * (2 * (inner * 4 + 4 * mixed) + 2 * 2 * 16 * 8 + 20 * 30)
    assert model.cache_elements(30) == kept
    assert load_model(save(f"{NEW}parameters: {total}\n", "stated.yaml")).parameters == total


LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}  # fmt: skip
EXAONE = {
    "model_type": "exaone4", "hidden_size": 5120, "intermediate_size": 27392, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 102400,
    "sliding_window": 4096, "sliding_window_pattern": "LLLG", "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: must be a whole number from 1 to 10,000"),
        ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers: must be a whole number from 0 to 10,000"),
        ({"num_attention_heads": 30}, "nearest valid values are 6 and 10"),
        ({"num_key_value_heads": 7}, "nearest valid values are 4 and 8"),
        ({"num_key_value_heads": 64}, "nearest valid value is 32"),
        ({"attention_out_bias": True}, "attention_out_bias: must be false without attention_bias"),
    ],
    ids=["layers", "predicted", "heads", "kv_heads", "too many kv_heads", "bias"],
)
def test_an_impossible_size_names_the_nearest_valid_one(change, message):
    """A number of layers is refused before a list of that length is made."""
    with pytest.raises(SpecError) as error:
        architecture_of({**LLAMA_8B, **change}, "config.json", "llama")
    assert message in str(error.value)


def test_exaone_has_norms_of_heads_and_a_window_in_three_of_four_layers():
    """LGAI-EXAONE/EXAONE-4.0-32B has 32,003,216,384 parameters."""
    model = architecture_of(EXAONE, "config.json", "exaone")
    assert model.num_parameters == 32_003_216_384
    assert [layer.mixer.window for layer in model.layers] == [4096, 4096, 4096, 0] * 16
    assert [layer.mixer.rotary for layer in model.layers] == [True, True, True, False] * 16
    for same in (4, None):
        other = architecture_of({**EXAONE, "sliding_window_pattern": same}, "config.json", "exaone")
        assert other.layers == model.layers
    with pytest.raises(SpecError, match="letters L and G"):
        architecture_of({**EXAONE, "sliding_window_pattern": "LXG"}, "config.json", "exaone")


def test_the_output_projection_of_seed_oss_may_lack_the_bias():
    """Closed form: the bias of each layer's output projection has the hidden features."""
    sizes = {**LLAMA_8B, "model_type": "seed_oss", "attention_bias": True}
    whole = architecture_of({**sizes, "attention_out_bias": True}, "config.json", "seed")
    fewer = architecture_of({**sizes, "attention_out_bias": False}, "config.json", "seed")
    assert whole.num_parameters - fewer.num_parameters == 32 * 4096


@pytest.mark.parametrize(
    "kind", ["qwen4", "llada", "gemma5", "internlm9", "deepseek_v9", "mixtral2", "glm9_moe", "lama"]
)
def test_no_other_family_is_named_for_an_unknown_one(kind):
    """A program writes model_type: a near name is another model, whose answer would mislead."""
    with pytest.raises(SpecError) as error:
        architecture_of(LLAMA | {"model_type": kind}, "config.json", "x")
    text = str(error.value)
    assert "did you mean" not in text
    assert not [known for known in FAMILIES if f"'{known}'" in text]
    assert "trine help guides/models" in text


def test_the_guide_lists_every_known_model_type():
    page = (Path(__file__).parents[3] / "docs" / "guides" / "models.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\nKnown values of `model_type`: (.*?)\n\n", page, re.DOTALL)
    assert re.findall(r"`([^`]+)`", section) == sorted(FAMILIES)
