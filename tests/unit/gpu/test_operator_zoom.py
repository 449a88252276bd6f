"""Zoom into an operator of a step: is it the longest, do its parts and causes add up, and are bad words refused?"""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.errors import InputError
from trine.gpu.detail.operator_choice import choose_operator, names_operator
from trine.gpu.detail.operator_zoom import ARITHMETIC, MEMORY, zoom_operator
from trine.gpu.operators.gemm import GemmShape
from trine.gpu.operators.stream import StreamShape
from trine.parallel.plan import Plan
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.training.setup import setup_of
from trine.workload.synthesis.model import synthesize

PLAN = Plan(tp=4, batch=2, micro_batch=1)
HOW = SimulateOptions(cluster="dgx-h100", compare=False)
COMMAND = ["train", "model:gpt-2,layers=2,sequence=128", "--tp", "4", "--batch", "1", "--cluster", "dgx-h100"]


@pytest.fixture(scope="module")
def model():
    return synthesize("gpt-2", layers=2, sequence=128)


@pytest.fixture(scope="module")
def step(model):
    return simulate(model, PLAN, options=HOW)


def chosen(model, step, word, plan=PLAN):
    return choose_operator(setup_of(model, plan, HOW), step, word)


def test_the_longest_product_has_its_part_of_the_layout(model, step):
    found = chosen(model, step, "gemm,forward,layers.1.mlp")
    assert found.layer.startswith("layers.1.mlp")
    (shape,) = found.kernels
    assert isinstance(shape, GemmShape)
    assert (shape.m, {shape.n, shape.k}) == (128, {768, 3072 // 4})
    assert found.count >= 2  # micro-batches


def test_gradients_of_a_product_are_products_of_the_same_flops(model, step):
    backward = chosen(model, step, "gemm,backward,layers.0.mlp.up")
    forward = chosen(model, step, "gemm,forward,layers.0.mlp.up")
    assert {shape.flops for shape in backward.kernels} == {forward.kernels[0].flops}


def test_norms_move_bytes_row_by_row(model, step):
    (shape,) = chosen(model, step, "norm").kernels
    assert isinstance(shape, StreamShape)
    assert shape.has_rows
    assert shape.size_bytes > 2 * 128 * 768 * 2


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("gemm,layers.7", "no gemm of the rank is of phase or layer 'layers.7'; did you mean 'layers."),
        ("gemm,backwards", "did you mean 'backward'?"),
        ("attention", "attention kernels are not modelled there"),
        ("conv", "the rank runs no operator that is called 'conv'"),
    ],
)
def test_a_bad_word_is_refused(model, step, word: str, text: str):
    with pytest.raises(InputError, match=re.escape(text)):
        chosen(model, step, word)


def test_words_of_collectives_are_not_operators(step):
    names = {word: names_operator(step, word) for word in ("largest", "all_reduce", "tp", "gemm", "kernel", "linear")}
    assert names == {
        "largest": False, "all_reduce": False, "tp": False, "gemm": True, "kernel": True, "linear": True,
    }  # fmt: skip


@pytest.mark.parametrize("word", ["gemm,backward", "norm", "kernel"])
def test_parts_and_causes_add_up(model, step, word: str):
    zoomed = zoom_operator(model, PLAN, word, step, options=HOW)
    assert sum(part.time_ps for part in zoomed.parts) == zoomed.loadstore_ps
    assert sum(cause.time_ps for cause in zoomed.causes) == zoomed.difference_ps
    ideal = [part.time_ps for part in zoomed.parts if part.name in (ARITHMETIC, MEMORY)]
    assert sum(ideal) == zoomed.ideal_ps > 0
    assert zoomed.change_ps == zoomed.chosen.count * zoomed.difference_ps
    assert f"{zoomed.chosen.count:,} such operator" in zoomed.details()


def test_the_command_prints_both_times_and_has_them_in_json(tmp_path):
    path = tmp_path / "answer.json"
    result = CliRunner().invoke(app, [*COMMAND, "--zoom", "gemm", "--json", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "not split at the operator level" in result.output
    answer = opened(path.read_text(), "train", "result")["operator_zoom"]
    times = [cause["time_s"] for cause in answer["causes"]]
    assert sum(times) == pytest.approx(answer["loadstore_s"] - answer["operator_s"], abs=1e-11)
    assert answer["clock_mhz"] < 1980


def test_a_zoom_without_a_value_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        app([*COMMAND, "--zoom", "--report", "x.html"])
    assert stopped.value.code == 2
    assert "--zoom needs a value, but the next word is the option --report" in capsys.readouterr().err


def test_a_step_without_a_cluster_zooms_into_its_gpu(model):
    options = SimulateOptions(gpu="h100", compare=False)
    zoomed = zoom_operator(model, Plan(batch=1), "gemm", options=options)
    assert zoomed.gpu == "h100-sxm"
    assert zoomed.loadstore_ps > zoomed.ideal_ps


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize(("word", "meant"), [("gem", "gemm"), ("nrom,backward", "norm"), ("kernal", "kernel")])
def test_a_misspelt_operator_gets_the_nearest_word(word, meant, gpus):
    command = [*COMMAND[:2], "--tp", str(gpus), *COMMAND[4:], "--zoom", word]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 2
    assert f"did you mean '{meant}'?" in answer.output
