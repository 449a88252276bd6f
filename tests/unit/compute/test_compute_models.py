"""Do the compute models answer, refuse and report as documented?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from compute_cases import BATCH, US, Made, linear, relus

from trine.compute import Duration, Split, make_compute
from trine.errors import InputError, PlanError

SIZES = [(1000, 100 * US), (3000, 300 * US), (7000, 700 * US)]


def test_recorded_returns_the_trace_and_refuses_other_sizes() -> None:
    made = relus(SIZES)
    model = make_compute("recorded", made.workload())
    assert [model.duration(op, Split(BATCH)).ps for op in made.operators] == [100 * US, 300 * US, 700 * US]
    assert model.duration(made.operators[0], Split(BATCH)).evidence == "measured"
    assert model.duration(made.operators[0], Split(BATCH, ways=4)).ps == 100 * US
    for split in (Split(4), Split(BATCH, 2, "column")):
        with pytest.raises(PlanError, match=r"operator 1 \(aten::relu\).*batch is 8.*auto or linear"):
            model.duration(made.operators[0], split)
    assert model.fit_report() is None


@pytest.mark.parametrize("name", ["auto", "linear"])
def test_linear_is_recorded_at_the_recorded_size(name: str) -> None:
    made = relus([*SIZES, (5000, 900 * US)])
    model = make_compute(name, made.workload())
    assert model.name == name
    assert [model.duration(op, Split(BATCH)) for op in made.operators] == [
        Duration(op.gpu_time_ps, "measured") for op in made.operators
    ]


def test_linear_scales_proportional_operators_exactly() -> None:
    made = relus(SIZES)
    model = make_compute("linear", made.workload())
    for batch in (1, 3, 16, 4096):
        expected = [Duration(-(-op.gpu_time_ps * batch // BATCH), "modelled") for op in made.operators]
        assert [model.duration(op, Split(batch)) for op in made.operators] == expected
    assert model.duration(made.operators[0], Split(BATCH, 2, "column")).ps == 50 * US


def test_operators_without_a_batch_keep_their_time() -> None:
    made = relus(SIZES)
    made.tensor("p", (500,), "weight")
    made.tensor("g", (500,), "gradient")
    step = made.run("aten::_foreach_add_", ["p", "g"], [], "optimizer", 77 * US)
    constant = made.run("aten::add_", ["p", "g"], [], "forward", 5 * US)
    for name in ("recorded", "linear"):
        model = make_compute(name, made.workload())
        assert model.duration(step, Split(3)) == Duration(77 * US, "measured")
        assert model.duration(constant, Split(3)) == Duration(5 * US, "measured")


def test_a_share_of_the_optimizer_takes_less() -> None:
    made = relus(SIZES)
    made.tensor("p", (50_000,), "weight")
    made.tensor("g", (50_000,), "gradient")
    step = made.run("aten::_foreach_add_", ["p", "g"], [], "optimizer", 77 * US)
    half = make_compute("linear", made.workload()).duration(step, Split(BATCH, share=Fraction(1, 2)))
    assert half.evidence == "modelled"
    assert 77 * US // 2 <= half.ps < 77 * US
    with pytest.raises(PlanError):
        make_compute("recorded", made.workload()).duration(step, Split(BATCH, share=Fraction(1, 2)))


def test_zero_time_stays_zero() -> None:
    made = relus([*SIZES, (50, 0)])
    assert make_compute("linear", made.workload()).duration(made.operators[-1], Split(64)).ps == 0


def test_uneven_sizes_are_noted() -> None:
    made, forward, _ = linear(features=(64, 33))
    model = make_compute("linear", made.workload())
    assert model.notes == ()
    model.duration(forward, Split(BATCH, 2, "column"))
    assert "aten::linear" in model.notes[0]


def test_same_bits_whatever_is_asked_first() -> None:
    made = relus([(1000, 101 * US), (3000, 290 * US), (7000, 710 * US), (900, 99 * US)])
    first, second = make_compute("linear", made.workload()), make_compute("linear", made.workload())
    forwards = [first.duration(op, Split(5)).ps for op in made.operators]
    assert forwards == [second.duration(op, Split(5)).ps for op in reversed(made.operators)][::-1]
    assert first.fit_report() == second.fit_report()


def test_report_says_how_each_kind_was_fitted() -> None:
    made = relus([*SIZES, (9000, 990 * US)])
    made.tensor("x", (BATCH, 10))
    made.run("aten::softmax", ["x"], ["x"], time_ps=3 * US)
    report = make_compute("linear", made.workload()).fit_report()
    assert report is not None
    elementwise, softmax = report.kinds
    assert (elementwise.kind, elementwise.origin, elementwise.num_operators, elementwise.num_sizes) == (
        "elementwise",
        "own",
        4,
        4,
    )
    assert (softmax.kind, softmax.origin, softmax.left_out_max_error) == ("softmax", "pooled", None)
    assert elementwise.max_error == pytest.approx(0.1, abs=0.02)
    assert elementwise.left_out_max_error is not None
    assert elementwise.left_out_max_error > elementwise.max_error * 0.99
    assert report.text().splitlines()[1].split()[:4] == ["elementwise", "4", "4", "own"]
    assert report.to_json()["kinds"][0]["law"]["ps_per_byte"] == elementwise.law.ps_per_byte  # type: ignore[index]


def test_wrong_requests() -> None:
    workload = relus(SIZES).workload()
    with pytest.raises(InputError, match="did you mean 'linear'"):
        make_compute("linaer", workload)
    assert make_compute("auto", replace(workload, gpu="x")).name == "auto"


def test_unknown_operators_are_bound_by_memory() -> None:
    made = relus(SIZES)
    made.tensor("z", (BATCH, 4000))
    op = made.run("ext::mystery", ["z"], ["z"], time_ps=400 * US)
    assert make_compute("linear", made.workload()).duration(op, Split(2 * BATCH)).ps == 800 * US


def test_made_of_no_time_at_all() -> None:
    made = Made()
    made.tensor("x", (BATCH, 4))
    op = made.run("aten::relu", ["x"], ["x"], time_ps=0)
    model = make_compute("linear", made.workload())
    assert model.duration(op, Split(99)).ps == 0
    assert model.fit_report().kinds == ()  # type: ignore[union-attr]
