"""The precision of served weights follows from a model's quantization_config, also below text_config."""

import json
import re

import pytest

import trine
from trine.errors import SpecError
from trine.inference.precision import has_precision, precision_name
from trine.report.answers import page_of_answer
from trine.workload.architecture.counts import described
from trine.workload.synthesis.model_files import load_model

SIZES = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip
#: A form of weights without a precision in trine.
UNKNOWN = {"quant_method": "bitsandbytes", "load_in_4bit": True}
#: quantization_config as checkpoints have it -> precision of trine.
STORED = [
    ({}, "bf16"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
    ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, "mxfp4"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4"),
    ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "fp8"),
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
    ({"quant_method": "gptq", "bits": 8}, "int8"),
    ({"quant_method": "gptq", "bits": 3}, "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bf16"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
]


@pytest.mark.parametrize(("quantization", "precision"), STORED)
def test_quantised_checkpoints_have_their_precision(quantization, precision, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": quantization}))
    model = load_model(path)
    assert precision_name("", described(model).stored) == precision


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"bits": 4}, "quantization_config: has no quant_method"),
        ({"quant_method": "awq", "bits": "four"}, "quantization_config.bits: must be an integer such as 4, got 'four'"),
        ({"quant_method": 7}, "quantization_config.quant_method: must be a text such as awq, got '7'"),
        ("awq", "quantization_config: must be a section of keys"),
    ],
)
def test_sections_that_name_no_form_are_refused(quantization, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": quantization}))
    with pytest.raises(SpecError, match=re.escape(message)):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("gemma-4-31b", "nvfp4"), ("kimi-k3", "mxfp4"), ("kimi-k2.5", "int4-experts"), ("deepseek-v3", "fp8-block")],
)
def test_presets_have_the_precision_of_their_checkpoints(name, precision):
    assert precision_name("", described(load_model(name)).stored) == precision


@pytest.mark.parametrize(("bits", "precision"), [(4, "int4"), (8, "int8")])
def test_packed_integers_have_the_bits_of_their_groups(bits, precision, tmp_path):
    path = tmp_path / "config.json"
    groups = {"group_0": {"weights": {"num_bits": bits, "type": "int", "group_size": 128}}}
    stored = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    path.write_text(json.dumps({**SIZES, "quantization_config": stored}))
    assert precision_name("", described(load_model(path)).stored) == precision


def test_kimi_has_its_attention_in_16_bits_and_its_experts_in_4():
    answer = trine.infer("kimi-k2.5", "hgx-h200", tp=8, input_tokens=64, output_tokens=8, concurrency=1)
    assert answer.precision == "int4-experts"
    assert not answer.weights_warning
    evidence = {each.what: each.kind for each in answer.evidence}
    assert evidence["GEMMs"] == "interpolated"
    assert evidence["experts"] == "interpolated"
    assert answer.weights_bytes * 8 == pytest.approx(595e9, rel=0.05)  # size of moonshotai/Kimi-K2.5 in bytes


def test_weights_without_kernels_are_named_as_an_assumption(tmp_path):
    assert not has_precision("bitsandbytes")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": UNKNOWN}))
    answer = trine.infer(path, "dgx-h100", input_tokens=64, output_tokens=8, concurrency=1)
    assert any(note.startswith("the weights are stored as bitsandbytes") for note in answer.notes)
    assert "--precision int4 or int8" in answer.weights_warning
    assert "stored as bitsandbytes" in " ".join(answer.summary().split())
    eight = trine.infer(str(path), "dgx-h100", input_tokens=64, output_tokens=8, concurrency=1, precision="int8")
    assert not eight.weights_warning
    assert eight.weights_bytes < answer.weights_bytes


def test_8_bit_activations_in_integers_are_said_to_take_the_times_of_fp8(tmp_path):
    path = tmp_path / "config.json"
    stored = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    path.write_text(json.dumps({**SIZES, "quantization_config": stored}))
    answer = trine.infer(path, "dgx-h100", input_tokens=64, output_tokens=8, concurrency=1)
    assert answer.weights_warning.endswith("their GEMMs take the times of FP8")


def test_warnings_stand_apart_from_assumptions_in_every_output(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "quantization_config": UNKNOWN}))
    answer = trine.infer(path, "dgx-h100", input_tokens=4000, output_tokens=800, concurrency=300, max_sequences=128)
    found = answer.document()
    assert [warning.split()[0] for warning in found["warnings"]] == ["the", "4,800", "300"]
    assert not set(found["warnings"]) & set(found["notes"])
    flat = " ".join(answer.details().split())
    assert all(flat.count(warning) == 1 for warning in found["warnings"])
    page = page_of_answer(answer)
    shown = [item.text for block in page.sections[-1].blocks for item in getattr(block, "items", ())]
    assert set(found["warnings"]) <= set(shown)
