"""Does the estimate of the micro-batches until a run repeats follow the paces, and does it never change an answer?"""

from __future__ import annotations

import numpy as np
import pytest

import trine
from trine.cluster import load_cluster
from trine.folding import convergence
from trine.folding.convergence import Paces, estimated_count
from trine.results import Result
from trine.training import run as training_run

FILL = 31


def geometric(largest_ps: float, factor: float, known: int) -> Paces:
    """Return the paces of ``known`` micro-batches whose deviations shrink by one factor."""
    return Paces((largest_ps * factor ** np.arange(known)).astype(np.int64), FILL)


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.69, 0.9])
@pytest.mark.parametrize("known", [2, 3, 8])
def test_the_estimate_is_just_behind_the_last_deviation(factor: float, known: int) -> None:
    largest_ps = 6.0e8
    vanishes = next(k for k in range(10_000) if largest_ps * factor**k < 0.5)
    estimate = estimated_count(geometric(largest_ps, factor, known))
    assert estimate is not None
    assert FILL + vanishes < estimate <= FILL + 1.15 * vanishes + 5


@pytest.mark.parametrize(
    "deviations", [[], [0, 0, 0], [5_000_000], [5_000_000, 10, 3], [1000, 1000, 1000], [1000, 990, 980, 970]]
)
def test_paces_without_a_factor_below_one_have_no_estimate(deviations: list[int]) -> None:
    assert estimated_count(Paces(np.array(deviations, np.int64), FILL)) is None


def test_small_deviations_behind_large_ones_do_not_count() -> None:
    """Behind the fast decay a small remainder stays, as a period of two micro-batches leaves it."""
    fast = geometric(1e9, 0.5, 8)
    with_rest = Paces(np.concatenate([fast.deviations, np.full(30, 300)]), FILL)
    assert estimated_count(with_rest) == estimated_count(fast)


@pytest.mark.parametrize(
    ("estimate", "later"),
    [
        (None, [12, 24, 48]),
        (8, [12, 24, 48]),  # the plan is at least as good
        (14, [14, 24, 48]),
        (19, [20, 48]),  # even, as the total; 24 would be too close
        (45, [48]),
        (200, [48]),  # may repeat nearly
    ],
)
def test_an_estimate_takes_the_place_of_planned_counts(
    monkeypatch: pytest.MonkeyPatch, estimate: int | None, later: list[int]
) -> None:
    monkeypatch.setattr(convergence, "tracks_of", lambda run: [])
    monkeypatch.setattr(convergence, "estimated_count", lambda paces: estimate)
    assert convergence.counts_after([12, 24, 48], None, 1) == later  # type: ignore[arg-type]
    assert convergence.counts_after([], None, 1) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("deviations", "later"), [
    ([900, 900, 900, 900], [48]),
    ([900, 890, 900, 890, 880], [48]),
    ([900, 900, 900], [12, 24, 48]),  # too few to tell
    ([0, 0, 0, 0], [12, 24, 48]),
    ([0, 0, 0, 5], [12, 24, 48]),
])  # fmt: skip
def test_paces_that_stay_apart_leave_the_last_count_alone(
    monkeypatch: pytest.MonkeyPatch, deviations: list[int], later: list[int]
) -> None:
    paces = convergence.Paces(np.array(deviations, np.int64), 6)
    monkeypatch.setattr(convergence, "tracks_of", lambda run: [])
    monkeypatch.setattr(convergence, "paces_of", lambda tracks, distance: paces)
    assert convergence.counts_after([12, 24, 48], None, 1) == later  # type: ignore[arg-type]


def simulated_counts(
    monkeypatch: pytest.MonkeyPatch, pp: int, batch: int, **settings: str
) -> tuple[Result, list[int | None]]:
    """Simulate a pipeline on one node for each stage; return its result, and the micro-batches of each attempt."""
    tried: list[int | None] = []
    original = training_run._run_micro_batches

    def noted(setup: object, simulated: int | None) -> object:
        tried.append(simulated)
        return original(setup, simulated)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training_run, "_run_micro_batches", noted)
        workload = trine.load(f"model:llama-3-8b,layers={pp + 2},gpu=h100-sxm")
        plan = trine.Plan(tp=8, pp=pp, schedule="1f1b", batch=batch, micro_batch=1, inputs="none")
        result = trine.simulate(workload, plan, cluster=load_cluster("dgx-h100", nodes=pp), **settings)  # type: ignore[arg-type]
    return result, tried


def test_counts_that_are_too_small_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paces of this pipeline converge slowly: 12 and 24 micro-batches, planned at first, cannot repeat."""
    few, tried = simulated_counts(monkeypatch, 4, 192)
    every, _ = simulated_counts(monkeypatch, 4, 192, fold="ranks")
    assert few.repeats is not None
    assert tried[0] == 6
    assert 12 not in tried
    assert sum(count or 0 for count in tried) < 6 + 12 + 24 + 48
    assert abs(few.step_time_ps - every.step_time_ps) <= few.repeats.bound_ps
