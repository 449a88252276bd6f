"""Steps of inference engines in recorded traces: phase, tokens, tp, collectives, model, and the prediction beside."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.errors import InputError
from trine.inference.recorded_step import comparison_text, predicted_us, recorded_step

TRACE = Path(__file__).parents[2] / "data" / "serving" / "vllm-tp8-rank0.json.gz"


@pytest.fixture(scope="module")
def workload():
    return trine.load(TRACE)


def test_a_prefill_of_vllm_on_eight_gpus_is_read(workload):
    """One prompt of 888 tokens; gpt-oss-120b has 64 heads of 64, 8 KV heads, 128 experts and 201,088 tokens."""
    step = recorded_step(workload)
    assert (step.engine, step.phase, step.tokens, step.sequences) == ("vllm", "prefill", 888, 1)
    assert (step.tp, step.layers, step.hidden, step.experts) == (8, 1, 2880, 128)
    assert (step.heads, step.kv_heads, step.head_size, step.vocab) == (8, 1, 64, 201088)
    assert step.models == ("gpt-oss-120b",)
    assert "prefill, 888 tokens of 1 sequence, tp 8; 1 layer recorded" in step.text()


def test_measured_parts_are_the_operators_and_collectives(workload):
    """Sum of all operators from the embedding on; three all-reduces take 308.3 us of kernels."""
    measured = recorded_step(workload).measured_us
    assert measured["communication"] == pytest.approx(308.256)
    assert measured["experts"] == pytest.approx(182.656)
    names = [op.name for op in workload.operators]
    rest = sum(op.gpu_time_ps for op in workload.operators[names.index("aten::embedding") :]) / 1e6
    assert sum(measured.values()) == pytest.approx(rest + 308.256)


def test_the_predicted_layer_is_near_the_measured_one(workload):
    """GEMMs, experts and attention of a kernel that was measured elsewhere: within 40 %."""
    step = recorded_step(workload)
    predicted = predicted_us(step, "hgx-b200")
    for part in ("GEMMs", "experts", "attention and KV cache"):
        assert predicted[part] == pytest.approx(step.measured_us[part], rel=0.4)
    assert "experts" in comparison_text(step, predicted)


def test_a_decode_step_has_a_token_of_each_sequence(workload):
    step = recorded_step(workload)
    decode = replace(step, phase="decode", tokens=64, sequences=64)
    assert sum(predicted_us(decode, "hgx-b200").values()) < sum(predicted_us(step, "hgx-b200").values())


def test_training_steps_and_other_models_are_none():
    assert recorded_step(trine.load("vgg13-h100-b128")) is None


def test_missing_facts_are_asked_for(workload):
    step = recorded_step(workload)
    with pytest.raises(InputError, match="cluster: the trace does not show the number of its GPUs"):
        predicted_us(replace(step, tp=None), "hgx-b200")
    with pytest.raises(InputError, match=r"model: the trace does not name one: add --model \(a, b\)"):
        predicted_us(replace(step, models=("a", "b")), "hgx-b200")
    unknown = recorded_step(replace(workload, metadata={}))
    assert unknown.tp is None
    assert "tp not known" in unknown.text()
    assert "gpt-oss-120b" in unknown.models


def test_the_command_shows_and_predicts_the_step(tmp_path):
    path = tmp_path / "i.json"
    shown = CliRunner().invoke(app, ["trace", "inspect", str(TRACE), "--cluster", "hgx-b200", "--json", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "inference step of vllm: prefill" in shown.output
    serving = json.loads(path.read_text())["serving"]
    assert serving["models"] == ["gpt-oss-120b"]
    assert serving["predicted_us"]["experts"] > 0
    for arguments in (["vgg13-h100-b128", "--cluster", "hgx-b200"], [str(TRACE), "--model", "gpt-oss-20b"]):
        refused = CliRunner().invoke(app, ["trace", "inspect", *arguments])
        assert refused.exit_code == 2
        assert refused.output.count("\n") < 60
