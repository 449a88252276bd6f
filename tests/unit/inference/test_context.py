"""The longest context of a model: where it comes from, and the warnings about requests beyond it."""

import json
import warnings

import pytest

import trine
from trine.inference.context import ContextWarning, context_warning
from trine.workload.architecture.counts import described
from trine.workload.synthesis.model_files import load_model

WARNING = "132,000 tokens are more than the longest context of llama-3-8b, 131,072 tokens"
#: max_position_embeddings of the config.json files on Hugging Face; a table of 1,024 learned positions; none.
CONTEXTS = {
    "llama-2-7b": 4096, "llama-3-8b": 131_072, "mixtral-8x7b": 32_768, "qwen3-32b": 40_960, "qwen3-14b": 40_960,
    "deepseek-v3": 163_840, "gpt-oss-120b": 131_072, "gpt-2": 1024, "mamba2-2.7b": 0, "bloom-176b": 0,
}  # fmt: skip


def ask(tokens: int, **changes):
    question = {"input_tokens": tokens - 1000, "output_tokens": 1000, "concurrency": 1, **changes}
    return trine.infer("llama-3-8b", "hgx-h200", **question)


@pytest.mark.parametrize(("name", "tokens"), CONTEXTS.items())
def test_presets_state_their_longest_context(name, tokens):
    assert described(load_model(name)).max_context == tokens


def test_a_config_file_states_it_and_its_plain_form_keeps_it(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 9000,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert described(load_model(path)).max_context == 9000
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "max_position_embeddings"}))
    assert described(load_model(path)).max_context == 0


@pytest.mark.parametrize(
    ("limit", "tokens", "warns"), [(0, 10**9, False), (100, 100, False), (100, 101, True), (100, 99, False)]
)
def test_only_requests_beyond_a_known_context_warn(limit, tokens, warns):
    assert bool(context_warning("m", limit, tokens)) == warns


def test_infer_warns_on_the_screen_and_in_the_notes():
    inside, beyond = ask(131_072), ask(132_000)
    assert inside.max_context_tokens == 131_072
    assert not inside.context_warning
    assert "longest context" not in inside.summary()
    assert beyond.context_warning.startswith(WARNING)
    assert "warning" in beyond.summary()
    assert beyond.context_warning in beyond.notes
    assert beyond.document()["max_context_tokens"] == 131_072


def test_plans_and_sizes_warn():
    goal = {"input_tokens": 131_000, "output_tokens": 1000, "precision": "fp8"}
    plan = trine.plan_serving("llama-3-8b", trine.load_cluster("hgx-h200", gpus=1), **goal)
    size = trine.size_serving("llama-3-8b", "hgx-h200", 0.01, **goal)
    for answer in (plan, size):
        assert "longest context of llama-3-8b" in " ".join(answer.summary().split())
        assert any(note.startswith(WARNING) for note in answer.notes)


def test_step_times_warn_about_sequences_beyond_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trine.step_time("llama-3-8b", "dgx-h100", None, [(72, 131_000)], [131_071])
    for prefill, decode in (([(73, 131_000)], []), ([], [131_072])):
        with pytest.warns(ContextWarning, match="131,073 tokens are more than the longest context of llama-3-8b"):
            trine.step_time("llama-3-8b", "dgx-h100", None, prefill, decode)
