"""Factors of ``trine validate``: one row with a prior, and many rows without noise, computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from validation.replay_rows import Predicted
from validation.step_factors import AskedStep, ComparedStep, asked_factors, calibrated, fit, left_out
from validation.training_rows import TrainingRow, load_rows

#: Standard deviations of a row's log error and of the log factor of compute; Huber's limit, in deviations.
NOISE, PRIOR, HUBER = 0.06, 0.4, 1.5
#: The prior's weight against one row: log factor = - log error / (1 + NARROW).
NARROW = (NOISE / PRIOR) ** 2


def asked(log_error: float, shares=(1.0, 0.0, 0.0), before=(1.0, 1.0, 1.0)) -> AskedStep:
    row = SimpleNamespace(step_s=1.0)
    return AskedStep(row, Predicted(row="", step_s=math.exp(log_error), shares=shares), before)


@pytest.mark.parametrize("log_error", [-0.08, 0.0, 0.05])
def test_one_row_moves_its_factor_but_for_the_prior(log_error: float) -> None:
    """The factor f minimises (error + log f)^2 / noise^2 + (log f)^2 / prior^2."""
    factors = fit([asked(log_error)], 1)
    assert math.log(factors[0]) == pytest.approx(-log_error / (1 + NARROW), abs=1e-5)
    assert factors[1:] == (1.0, 1.0)


def test_errors_beyond_the_noise_count_in_proportion() -> None:
    """Beyond Huber's limit a row pulls with HUBER / noise at any distance: 100 rows at 0 hold one at 1."""
    pull = HUBER * NOISE
    rows = [*[asked(0.0)] * 100, asked(-1.0)]
    assert math.log(fit(rows, 1)[0]) == pytest.approx(pull / (100 + NARROW), rel=1e-3)
    assert fit([*rows[:-1], asked(-2.0)], 1)[0] == pytest.approx(fit(rows, 1)[0], rel=1e-6)
    near = fit([*rows[:-1], asked(-pull / 2)], 1)[0]
    assert math.log(near) == pytest.approx(pull / 2 / (101 + NARROW), rel=1e-3)


def test_rows_of_different_shares_tell_three_factors_apart() -> None:
    truth = (1.1, 0.8, 1.25)
    rows = []
    for shares in ((0.9, 0.05, 0.0), (0.2, 0.7, 0.05), (0.3, 0.1, 0.5), (0.5, 0.2, 0.2)):
        slower = 1 - sum(shares) + sum(s * f for s, f in zip(shares, truth, strict=True))
        rows += [asked(-math.log(slower), shares)] * 200
    assert fit(rows) == pytest.approx(truth, rel=2e-3)


def test_a_prediction_that_was_asked_with_factors_needs_them_again() -> None:
    """Compute that is 3/4 of a step with compute x 2 is 3/5 of the step without the factor."""
    rows = [asked(0.0, (0.75, 0.0, 0.0), (2.0, 1.0, 1.0))] * 500
    assert fit(rows, 1)[0] == pytest.approx(2.0, rel=1e-2)
    assert rows[0].log_error((1.0, 1.0, 1.0)) == pytest.approx(math.log(0.25 + 0.75 / 2))
    assert rows[0].slopes((2.0, 1.0, 1.0)).tolist() == [0.75, 0.0, 0.0]
    assert rows[0].slopes((1.0, 1.0, 1.0)).tolist() == pytest.approx([0.375 / 0.625, 0.0, 0.0])


def test_factors_are_asked_to_three_digits() -> None:
    assert asked_factors((1.23456, 0.99949, 1.0)) == (1.235, 0.999, 1.0)


def told(row: TrainingRow, **facts: object) -> TrainingRow:
    """Return a row with changed facts."""
    return replace(row, facts={**row.facts, **{name: str(value) for name, value in facts.items()}})


def steps_of(count: int) -> list[ComparedStep]:
    """Return rows of two models; steps with mostly communication are slower than predicted."""
    row = next(row for row in load_rows() if row.step_s is not None and not row.apart)
    return [
        ComparedStep(
            row=told(replace(row, name=f"{number}", step_s=1.0 + 0.2 * (number % 3)), model=("one", "two")[number % 2]),
            answer=Predicted(row="", step_s=1.0, shares=((0.8, 0.1, 0.0), (0.3, 0.6, 0.0))[number % 3 > 0]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "num_factors"), [(7, 1), (8, 3)])
def test_a_source_of_eight_rows_has_three_factors(count: int, num_factors: int) -> None:
    steps = steps_of(count)
    found = [step.calibrated_s for step in calibrated(steps)]
    rows = [AskedStep(step.row, step.answer) for step in steps]
    assert found == left_out(rows, num_factors)
    assert found != left_out(rows, 4 - num_factors)
    own = fit([row for row in rows if row.row.facts["model"] == "two"], num_factors)
    assert found[0] == rows[0].answer.scaled(own)


def test_rows_apart_unanswered_or_alone_are_not_calibrated() -> None:
    steps = steps_of(6)
    odd = [
        replace(steps[0], row=replace(steps[0].row, apart="why")),
        replace(steps[1], answer=replace(steps[1].answer, why_not="no such GPU")),
    ]
    found = calibrated([*odd, *steps[2:]])
    assert [step.calibrated_s is None for step in found] == [True, True, False, False, False, False]
    same = [replace(step, row=told(step.row, model="one")) for step in steps]
    assert all(step.calibrated_s is None for step in calibrated(same))
    sizes = [replace(step, row=told(step.row, gpus=8 * (1 + i % 2))) for i, step in enumerate(same)]
    assert all(step.calibrated_s is not None for step in calibrated(sizes))
