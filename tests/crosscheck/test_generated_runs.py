"""How often does `trine check FOLDER` name the injected cause? A smaller run of benchmarks/generated_runs.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trine.results import Result
from trine.results.kineto import write_kineto
from trine.runs.causes import IMBALANCE, LATE_LAUNCH, SLOW_LINK, STRAGGLER
from trine.runs.comparison import MeasuredComparison, compare_measured
from trine.runs.differences import ALGORITHM, KERNELS, LAUNCHES, TRANSFERS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "generated_runs", raising=False)
    return __import__("generated_runs")


@pytest.mark.parametrize("kind", [STRAGGLER, LATE_LAUNCH, SLOW_LINK, IMBALANCE])
def test_the_injected_cause_is_named_first(generated: ModuleType, kind: str) -> None:
    chance = random.Random(f"one {kind}")
    case = generated.draw(kind, chance)
    verdict = generated.judge(case, chance)
    assert verdict.kind == kind
    assert generated.is_right_rank(case, verdict)


def test_a_healthy_run_names_none(generated: ModuleType) -> None:
    chance = random.Random(4)
    assert generated.judge(generated.draw("", chance), chance).kind == ""


@pytest.mark.slow
def test_thirty_runs_and_ten_healthy_ones(generated: ModuleType) -> None:
    chance = random.Random(40)
    ranks = kinds = 0
    for case in generated.cases(30, 10, chance):
        verdict = generated.judge(case, chance)
        if case.kind:
            ranks += generated.is_right_rank(case, verdict)
            kinds += case.kind == verdict.kind
        else:
            assert verdict.kind == "", case.name
    assert ranks >= 29
    assert kinds >= 27


def compared(a: Result, b: Result, folder: Path) -> MeasuredComparison:
    write_kineto(a, folder / "usual")
    write_kineto(b, folder / "slow")
    return compare_measured(folder / "usual", folder / "slow")


@pytest.mark.parametrize("cause", [TRANSFERS, ALGORITHM, STRAGGLER, LAUNCHES, KERNELS])
def test_the_cause_of_a_difference_comes_first_with_its_gain(generated: ModuleType, cause: str, tmp_path: Path) -> None:
    job = generated.JOBS["tp2 dp4"]
    ranks: tuple[int, ...] = ()
    if cause == TRANSFERS:
        slow = job.simulate(1, links=("gpu5->nvswitch", "nvswitch->gpu5"), slow_link=0.3)
    elif cause == ALGORITHM:
        slow = job.simulate(1, algorithm=(("all_reduce", "tree"),))
    elif cause == STRAGGLER:
        slow, ranks = job.simulate(1, slow=((3, 1.28),)), (3,)
    elif cause == LAUNCHES:
        job = generated.SMALL_JOBS["gpt-2, tp2 dp4"]
        slow = job.simulate(1, launch_us=120)
    else:
        slow = job.simulate(1, slow=tuple((rank, 1.1) for rank in range(8)))
    answer = compared(job.simulate(1), slow, tmp_path)
    first = answer.differences.effects[0]
    assert first.kind == cause
    assert first.ps == pytest.approx(answer.difference_ps, rel=0.1)
    if ranks:
        assert first.ranks == ranks
    assert f"mostly {cause}" in answer.headline


@pytest.mark.parametrize("cause", [KERNELS, STRAGGLER, TRANSFERS])
def test_an_answer_in_json_is_a_reference_too(generated: ModuleType, cause: str, tmp_path: Path) -> None:
    job = generated.JOBS["tp2 dp4"]
    job.simulate(1).to_json(tmp_path / "usual.json")
    faults = {
        KERNELS: {"slow": tuple((rank, 1.1) for rank in range(8))},
        STRAGGLER: {"slow": ((3, 1.28),)},
        TRANSFERS: {"links": ("gpu5->nvswitch", "nvswitch->gpu5"), "slow_link": 0.3},
    }
    write_kineto(job.simulate(1, **faults[cause]), tmp_path / "slow")
    answer = compare_measured(tmp_path / "usual.json", tmp_path / "slow")
    first = answer.differences.effects[0]
    assert answer.is_predicted
    assert first.kind == cause
    assert first.ps == pytest.approx(answer.difference_ps, rel=0.15)  # times of operators are less exact than kernels'
    swapped = compare_measured(tmp_path / "slow", tmp_path / "usual.json")
    assert swapped.differences == answer.differences
    assert "sides swapped" in swapped.notes[0]
