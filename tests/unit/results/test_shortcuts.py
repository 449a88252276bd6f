"""Are the numbers that people ask for first one attribute away, and the public names the ones that dir() lists?"""

from __future__ import annotations

import pytest

import trine
from trine.common.arguments import ArgumentError


@pytest.fixture(scope="module")
def step():
    return trine.simulate("model:gpt-2,layers=2", trine.Plan(dp=8, batch=4), cluster=trine.load_cluster("dgx-h100"))


def test_the_first_numbers_are_those_of_the_json(step):
    document = step.document()
    assert step.mfu == pytest.approx(document["mfu"])
    assert 0 < step.mfu < 1
    assert step.tokens_per_s == pytest.approx(document["tokens_per_s"])
    assert step.tokens_per_s == pytest.approx(8 * 4 * 1024 / step.step_time_s)
    assert step.memory_verdict == document["memory_verdict"] == "fits"
    assert [step.verdict_of_row(row) for row in range(len(step.memory_uses))] == ["fits"] * len(step.memory_uses)


def test_a_trace_has_no_tokens():
    step = trine.simulate("vgg13-h100-b128", trine.Plan())
    assert step.tokens_per_s is None
    assert step.memory_verdict is not None


def test_dir_lists_the_public_names():
    assert set(dir(trine)) == {*trine.__all__, "__version__"}
    assert all(hasattr(trine, name) for name in dir(trine))


def test_a_cell_shows_the_headline(step):
    html = step._repr_html_()
    assert step.headline.partition(":")[0] in html.partition("</b>")[0]


def test_a_missing_machine_is_named_and_a_missing_batch_is_assumed():
    with pytest.raises(trine.InputError, match="a search needs a machine or a number of GPUs"):
        trine.plan("llama-3-8b")
    found = trine.plan("llama-3-8b", gpus=8, fix={"tp": 8, "micro_batch": 1, "recompute": "none"})
    assert found.global_batch == 512
    assert [each.what for each in found.evidence[:2]] == ["machine", "global batch"]


def test_a_missing_model_is_named():
    with pytest.raises(ArgumentError, match="plan: missing a required argument: 'model'"):
        trine.plan(gpus=8, global_batch=8)
