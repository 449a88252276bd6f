"""The precision of served weights follows from a model's quantization_config, also below text_config."""

import json

import pytest

import trine
from trine.inference.precision import has_precision, precision_name
from trine.report.answers import page_of_answer
from trine.workload.architecture.counts import described
from trine.workload.synthesis.model_files import load_model

SIZES = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip
#: quantization_config as checkpoints have it -> precision of trine.
STORED = [
    ({}, "bf16"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
    ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, "mxfp4"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "bf16"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
]


@pytest.mark.parametrize(("quantization", "precision"), STORED)
def test_quantised_checkpoints_have_their_precision(quantization, precision, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": quantization}))
    model = load_model(path)
    assert precision_name("", described(model).stored) == precision


@pytest.mark.parametrize(
    ("name", "precision"),
    [("gemma-4-31b", "nvfp4"), ("kimi-k3", "mxfp4"), ("kimi-k2.5", "bf16"), ("deepseek-v3", "fp8-block")],
)
def test_presets_have_the_precision_of_their_checkpoints(name, precision):
    assert precision_name("", described(load_model(name)).stored) == precision


def test_weights_in_integers_are_named_as_an_assumption():
    assert not has_precision("integers")
    answer = trine.infer("kimi-k2.5", "hgx-b200", tp=16, input_tokens=64, output_tokens=8, concurrency=1)
    assert any(note.startswith("the weights are stored as integers") for note in answer.notes)
    assert "--precision mxfp4" in answer.weights_warning
    assert "stored as integers" in " ".join(answer.summary().split())
    chosen = trine.infer(
        "kimi-k2.5", "hgx-b200", tp=8, input_tokens=64, output_tokens=8, concurrency=1, precision="mxfp4"
    )
    assert not any("stored as integers" in note for note in chosen.notes)


def test_a_dense_model_in_integers_names_a_precision_that_it_can_have(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": {"quant_method": "awq", "bits": 4}}))
    answer = trine.infer(path, "dgx-h100", input_tokens=64, output_tokens=8, concurrency=1)
    assert "--precision fp8 has 8 bits" in answer.weights_warning
    eight = trine.infer(str(path), "dgx-h100", input_tokens=64, output_tokens=8, concurrency=1, precision="fp8")
    assert not eight.weights_warning
    assert eight.weights_bytes < answer.weights_bytes


def test_warnings_stand_apart_from_assumptions_in_every_output(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": {"quant_method": "awq", "bits": 4}}))
    answer = trine.infer(path, "dgx-h100", input_tokens=4000, output_tokens=800, concurrency=300, max_sequences=128)
    found = answer.document()
    assert [warning.split()[0] for warning in found["warnings"]] == ["the", "4,800", "300"]
    assert not set(found["warnings"]) & set(found["notes"])
    flat = " ".join(answer.details().split())
    assert all(flat.count(warning) == 1 for warning in found["warnings"])
    page = page_of_answer(answer)
    shown = [item.text for block in page.sections[-1].blocks for item in getattr(block, "items", ())]
    assert set(found["warnings"]) <= set(shown)
