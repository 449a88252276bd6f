"""Are the tables of a vocabulary padded as Megatron-LM pads them, and does the answer say it?"""

from __future__ import annotations

import pytest

import trine
from trine.parallel.splits import padded_rows
from trine.software import load_software
from trine.workload.architecture.counts import counts_of
from trine.workload.synthesis.model import synthesize
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.padding import with_padded_vocabulary

MEGATRON = "megatron-core"


@pytest.mark.parametrize(("name", "tables"), [("gpt-2", 1), ("gpt-3-175b", 1), ("bert-large", 1), ("opt-175b", 1)])
def test_parameters_grow_by_the_padded_rows(name: str, tables: int) -> None:
    model = load_model(name)
    padded = with_padded_vocabulary(model, load_software(MEGATRON))
    assert padded.vocab % 128 == 0
    assert 0 < padded.vocab - model.vocab < 128
    head_biases = padded.vocab - model.vocab if name.startswith("bert") else 0
    more = (padded.vocab - model.vocab) * model.hidden * tables + head_biases
    assert padded.num_parameters - model.num_parameters == more
    written = synthesize(name, gpu="h100-sxm", dtype="bf16", software=load_software(MEGATRON))
    assert int(written.metadata["parameters"]) == padded.num_parameters


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "mixtral-8x7b"])
def test_even_vocabularies_are_left_alone(name: str) -> None:
    model = load_model(name)
    assert with_padded_vocabulary(model, load_software(MEGATRON)) is model
    assert counts_of(model) is not None


@pytest.mark.parametrize("software", [None, "torchtitan", "pytorch-eager"])
def test_other_software_keeps_the_published_rows(software: str | None) -> None:
    model = load_model("gpt-2")
    profile = None if software is None else load_software(software)
    assert with_padded_vocabulary(model, profile) is model


@pytest.mark.parametrize("rows", [1, 127, 128, 30522, 50257, 128256, 250000])
@pytest.mark.parametrize("degree", [1, 2, 3, 8])
def test_padding_first_changes_nothing_under_tensor_parallelism(rows: int, degree: int) -> None:
    padded = -(-rows // 128) * 128
    assert padded_rows(padded, degree) == padded_rows(rows, degree)


def warnings_of(software: str, tp: int) -> str:
    model = synthesize("gpt-2", gpu="h100-sxm", dtype="bf16", software=load_software(software))
    plan = trine.Plan(dp=8 // tp, tp=tp)
    return " ".join(trine.simulate(model, plan=plan, cluster="dgx-h100", software=software).warnings)


@pytest.mark.parametrize(("software", "tp", "warns"), [
    ("torchtitan", 1, True), ("torchtitan", 2, False), (MEGATRON, 1, False), (MEGATRON, 2, False),
])  # fmt: skip
def test_slow_rows_are_named_only_if_the_job_has_them(software: str, tp: int, warns: bool) -> None:
    assert ("rows of 50257" in warnings_of(software, tp)) is warns


def test_the_answer_names_the_padding() -> None:
    model = synthesize("gpt-2", gpu="h100-sxm", dtype="bf16", software=load_software(MEGATRON))
    text = "the vocabulary of 50,257 is padded to 50,304, a multiple of 128, as megatron-core does"
    assert text in model.assumptions
