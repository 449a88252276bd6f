"""How often is `trine check` right? Faults put on measured curves, as benchmarks/check_confusion.py counts them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def confusion(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("check_confusion", "fit_check_noise"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__("check_confusion")


def test_a_few_faults_on_a_few_curves(confusion: ModuleType) -> None:
    found = confusion.curves(machines=("aic-a100", "mi355x-8", "h100-2x8", "a100-2x8-ring"))
    expected = [confusion.expected_of(curve) for curve in found]
    cases = confusion.draw(expected, 120, seed=12)
    assert len({(case.curve, case.fault.name, case.fault.times_ps) for case in cases}) > 100
    for step in (1, 2):
        tally = confusion.judge_faults(found, expected, cases, False, step, {})
        print(f"every {step}: right {tally.share():.1%}, among the first two {tally.share_near():.1%}")
        assert tally.share() >= (0.75 if step == 1 else 0.7)  # of 120; the targets are of 300, below
        assert tally.share_near() >= 0.75
        assert confusion.judge_healthy(found, expected, False, step, {}) == []


@pytest.mark.slow
def test_300_faults_and_every_measured_curve(confusion: ModuleType) -> None:
    """The targets are met; on machines as if never seen the cause is right less often, a known gap."""
    from fit_check_noise import without_each_family

    found = confusion.curves()
    expected = [confusion.expected_of(curve) for curve in found]
    cases = confusion.draw(expected, 300, seed=12)
    assert {case.fault.kind for case in cases} == set(confusion.KINDS)
    for unseen, least in ((False, 0.70), (True, 0.58)):
        noises = without_each_family() if unseen else {}
        for step in (1, 2):
            right = confusion.judge_faults(found, expected, cases, unseen, step, noises).share()
            healthy = 1 - len(confusion.judge_healthy(found, expected, unseen, step, noises)) / len(found)
            print(f"left out {unseen}, every {step}: right {right:.1%}, healthy {healthy:.1%}")
            assert right >= least
            assert healthy >= (0.95 if not unseen else 0.90)


@pytest.mark.slow
def test_the_noise_is_what_predictions_left_of_machines_that_had_no_part_in_them(confusion: ModuleType) -> None:
    from fit_check_noise import FITTED, Problem, moved

    from trine.check.likelihood import NOISE

    problem = Problem(confusion.curves(min_sizes=1))
    shipped = problem.value(NOISE)
    for name in FITTED:
        for step in (-0.2, 0.2):
            assert problem.value(moved(NOISE, name, step)) < shipped + 0.1, name
