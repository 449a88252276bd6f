"""Does a comparison explain the difference exactly, and name the inputs that differ?"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trine import InputError, Plan, collective, compare, load_cluster, simulate
from trine.decide.compare import flat
from trine.results import Result

GPT = "model:gpt-2,layers=2,sequence=128"
LAYOUTS = {
    "dp": {"dp": 4, "batch": 4},
    "tp": {"tp": 4, "batch": 4},
    "pp": {"pp": 2, "dp": 2, "batch": 4, "micro_batch": 1, "recompute": "full"},
    "fsdp": {"dp": 4, "batch": 4, "sharding": "fsdp"},
}


@cache
def answer(name: str, cluster: str = "dgx-h100", **options: Any) -> Result:
    return simulate(GPT, Plan(**LAYOUTS[name]), cluster=cluster, compare=False, **options)


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_terms_sum_exactly_to_the_difference(first: str, second: str) -> None:
    comparison = compare(answer(first).to_json(), json.loads(json.dumps(answer(second).to_json())))
    assert comparison.a_ps == answer(first).step_time_ps
    assert comparison.steps_ps == (answer(first).step_time_ps, answer(second).step_time_ps)
    assert comparison.tokens is not None
    exact_ps = Fraction(answer(second).step_time_ps * comparison.tokens[0], comparison.tokens[1])
    assert abs(comparison.b_ps - exact_ps) <= Fraction(1, 2)
    assert sum(term.difference_ps for term in comparison.terms) == comparison.difference_ps
    assert sum(term.a_ps for term in comparison.terms) == comparison.a_ps
    assert "unexplained" not in {term.name for term in comparison.terms}


@pytest.mark.parametrize("first", LAYOUTS)
def test_old_answers_have_coarse_terms_that_sum_too(first: str) -> None:
    old = {key: value for key, value in answer(first).to_json().items() if key not in ("terms", "inputs")}
    comparison = compare(old, answer("dp"))
    assert [term.name for term in comparison.terms] == ["compute", "communication", "pipeline bubble", "other waits"]
    assert sum(term.difference_ps for term in comparison.terms) == comparison.difference_ps


def test_an_unexplained_remainder_keeps_the_sum_exact() -> None:
    changed = json.loads(json.dumps(answer("dp").to_json()))
    changed["terms"]["compute_s"].popitem()
    comparison = compare(answer("dp"), changed)
    assert comparison.difference_ps == 0
    assert sum(term.b_ps for term in comparison.terms) == comparison.b_ps
    assert comparison.terms[-1].name == "unexplained"


def test_equal_answers_differ_in_nothing() -> None:
    comparison = compare(answer("pp"), answer("pp"))
    assert not comparison.inputs
    assert all(term.difference_ps == 0 for term in comparison.terms)
    assert "no input differs" in comparison.headline


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"software": "nanotron-2024"}, "software.name"),
        ({"network": "equal"}, "options.network"),
        ({"gpu_spread": 0.05}, "options.gpu_spread"),
        ({"cluster": "hgx-h200"}, "gpus[0].name"),
    ],
    ids=["software", "network", "spread", "cluster"],
)
def test_the_first_input_that_differs(changes: dict[str, Any], first: str) -> None:
    comparison = compare(answer("dp"), answer("dp", **changes))
    assert comparison.inputs[0].name == first
    assert comparison.document()["first_input"] == first


def test_a_slow_link_is_an_input_of_the_cluster() -> None:
    slow = load_cluster("dgx-h100", slow_links=[("gpu0-nvswitch", "0.5")])
    comparison = compare(answer("tp"), simulate(GPT, Plan(**LAYOUTS["tp"]), cluster=slow, compare=False))
    assert {each.name.partition(".")[0] for each in comparison.inputs} == {"cluster"}


def test_collectives_by_their_parts() -> None:
    one, other = (collective("all_reduce", "1M,64M", "dgx-h100", range(gpus), explain=True) for gpus in (4, 8))
    comparison = compare(one, other)
    assert sum(term.difference_ps for term in comparison.terms) == comparison.difference_ps
    assert len(comparison.terms) > 1
    assert comparison.inputs[0].name == "num_ranks"
    assert [row["size_bytes"] for row in comparison.sizes] == [2**20, 2**26]
    assert "2^" not in comparison.summary()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is no answer of trine"),
        ("[]", "is no answer of trine"),
        ('{"schema": "trine/check/1"}', "'trine train' and 'trine collective' compare"),
        ('{"schema": "trine/result/1"}', "step_time_s: has no time of this name"),
        ('{"schema": "trine/result/1", "step_time_s": 1e300}', "step_time_s"),
        ('{"schema": "trine/collective/1", "rows": 3}', "compare answers of one command"),
        ("{", "not valid JSON"),
    ],
)
def test_invalid_answers(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"b\.json") as error:
        compare(answer("dp"), path)
    assert words in str(error.value)


def test_flat_names() -> None:
    assert flat({"a": {"b": 1}, "c": [{"d": 2}, {"d": 3}], "e": [1, 2]}) == {
        "a.b": 1, "c[0].d": 2, "c[1].d": 3, "e": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("columns", [60, 100])
def test_the_answer_fits_a_screen(columns: int) -> None:
    from trine.results.text import fitted

    with fitted(columns):
        lines = compare(answer("pp"), answer("pp", cluster="dgx-a100")).summary().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns


def test_other_global_batches_compare_per_token() -> None:
    """A step with twice the samples takes longer, but not per token; the terms still add up exactly."""
    model = "model:llama-3-8b,layers=2,sequence=2048"
    small = simulate(model, Plan(dp=4, batch=4), cluster="dgx-h100", compare=False)
    large = simulate(model, Plan(dp=4, batch=8), cluster="dgx-h100", compare=False)
    comparison = compare(small, large)
    assert comparison.tokens == (4 * 4 * 2048, 4 * 8 * 2048)
    assert comparison.steps_ps == (small.step_time_ps, large.step_time_ps)
    assert comparison.b_ps == round(Fraction(large.step_time_ps, 2))
    assert comparison.difference_ps < 0 < large.step_time_ps - small.step_time_ps  # its optimizer step is as long
    assert sum(term.difference_ps for term in comparison.terms) == comparison.difference_ps
    assert sum(term.b_ps for term in comparison.terms) == comparison.b_ps
    assert "unexplained" not in {term.name for term in comparison.terms}
    assert "times per 32,768 tokens, because the global batches differ" in " ".join(comparison.summary().split())
    document = comparison.document()
    assert (document["a_tokens"], document["b_tokens"]) == comparison.tokens
    assert document["b_step_s"] == large.step_time_s


def test_both_memory_verdicts() -> None:
    fits = answer("dp")
    over = dict(fits.to_json(), memory_verdict="does not fit")
    comparison = compare(fits, over)
    assert comparison.verdicts == ("fits", "does not fit")
    assert "memory fits" in comparison.summary()
    assert "memory does not fit" in comparison.summary()
    assert comparison.document()["b_memory_verdict"] == "does not fit"
    assert "memory does not fit" in comparison.details()
