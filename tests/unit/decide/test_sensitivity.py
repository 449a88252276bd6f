"""Does the ranking show the times of the step at the ends of each range?"""

from __future__ import annotations

from functools import cache

import pytest

from trine import Plan, load_cluster, overlap_range, sensitivity, simulate
from trine.common.evidence import Evidence
from trine.decide.sensitivity import (
    Effect,
    Sensitivity,
    bandwidth_range,
    launch_range,
    operator_time_range,
    ranges,
)
from trine.software import load_software

SIZES = "model:llama-3-8b,layers=2,sequence=2048"
PLAN = Plan(dp=2, tp=2, batch=2)


@cache
def answer() -> Sensitivity:
    return sensitivity(SIZES, PLAN, cluster="dgx-h100")


def effect(name: str) -> Effect:
    return next(each for each in answer().effects if each.input.name == name)


def test_ranked_by_effect() -> None:
    step_ps = answer().base.step_time_ps
    swings = [each.swing_ps(step_ps) for each in answer().effects]
    assert swings == sorted(swings, reverse=True)
    assert swings[0] > 0
    assert all(each.input.source for each in answer().effects)


def test_the_ends_of_overlap_are_those_of_the_overlap_range() -> None:
    both = overlap_range(SIZES, PLAN, cluster="dgx-h100")
    assert (effect("overlap").low_ps, effect("overlap").high_ps) == (both.ideal.step_time_ps, both.none.step_time_ps)


def test_the_low_end_of_the_bandwidth_is_that_of_slow_links() -> None:
    machine = load_cluster("dgx-h100")
    ends = bandwidth_range([machine.link_table.numbers[0]], machine, 1)
    names = [f"gpu{number}-nvswitch" for number in range(8)]
    slow = load_cluster("dgx-h100", slow_links=[(name, repr(ends.low)) for name in names])
    run = simulate(SIZES, PLAN, cluster=slow, compare=False)
    assert effect("bandwidth of links between GPUs").low_ps == run.step_time_ps


def test_the_high_end_of_launches_is_that_of_a_scaled_profile() -> None:
    profile = load_software("megatron-core")
    high = launch_range(profile.launch.cpu_us_per_kernel).high
    run = simulate(SIZES, PLAN, cluster="dgx-h100", software=profile.scaled({"cpu": high}, "a test"), compare=False)
    assert effect("CPU time of a launch").high_ps == run.step_time_ps


def test_the_spread_ends_at_no_spread() -> None:
    run = simulate(SIZES, PLAN, cluster="dgx-h100", gpu_spread=0.0, compare=False)
    assert effect("spread of GPU speeds").low_ps == run.step_time_ps


@pytest.mark.parametrize("name", ["operator times", "time of collectives", "latency of links between GPUs"])
def test_larger_costs_take_no_less_time(name: str) -> None:
    assert effect(name).low_ps <= answer().base.step_time_ps <= effect(name).high_ps


def test_a_range_by_shares_is_a_geometric_mean() -> None:
    known = ranges().operator_time
    rows = [Evidence("operator time", "interpolated", "", 0.5), Evidence("operator time", "assumed", "", 0.5)]
    assert operator_time_range(rows).high == pytest.approx((known["interpolated"].high * known["assumed"].high) ** 0.5)
    assert operator_time_range(rows[:1]).low == pytest.approx(known["interpolated"].low)


def test_every_range_holds_the_value_and_names_a_source() -> None:
    file = ranges()
    factors = [*file.operator_time.values(), *file.launch, file.latency]
    assert all(each.low <= 1 <= each.high and each.source for each in factors)


def test_one_gpu_without_a_profile_has_nothing_to_vary() -> None:
    ranking = sensitivity("vgg13-h100-b128", software="none")
    assert not ranking.effects
    assert "no software profile" in ranking.notes[0]
    assert "no input" in ranking.headline


@pytest.mark.parametrize("columns", [60, 100])
def test_the_answer_fits_a_screen(columns: int) -> None:
    from trine.results.text import fitted

    with fitted(columns):
        lines = answer().summary().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns


def test_a_profile_in_the_name_of_the_model_is_scaled_too() -> None:
    named = sensitivity(f"{SIZES},software=nanotron-2024", PLAN, cluster="dgx-h100")
    chosen = sensitivity(SIZES, PLAN, cluster="dgx-h100", software="nanotron-2024")
    assert named.document() == chosen.document()
