"""Does a step predicted from tables wait for its slowest GPU, by the time that order statistics give?"""

from __future__ import annotations

import math

import pytest

import trine
from trine.compute.spread import GPU_SPREAD, MAX_SPREAD, slowest_of
from trine.errors import InputError
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers, parse_jitter
from trine.training.ensemble import step_ensemble

TEXT = "model:gpt-2,layers=2,sequence=128"


def step(text=TEXT, gpus=2, **options):
    plan = Plan(tp=gpus, inputs="none")
    return trine.simulate(text, plan, cluster="dgx-h100", software="none", compare=False, **options)


@pytest.mark.parametrize(
    ("gpus", "largest"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 3 / (2 * math.sqrt(math.pi))),
        # Harter, Expected values of normal order statistics, Biometrika 48 (1961), table 1
        (8, 1.42360),
        (100, 2.50759),
    ],
)
def test_the_largest_of_normal_numbers(gpus, largest):
    assert slowest_of(gpus, 0.1) == pytest.approx(0.1 * largest, abs=2e-6)


def test_more_gpus_have_a_slower_one():
    found = [slowest_of(gpus, GPU_SPREAD) for gpus in (1, 2, 8, 64, 1024, 131072)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_all_operators_take_longer_by_it_and_messages_do_not():
    without, by_default = step(gpu_spread=0.0), step()
    ratio = by_default.rank_times.compute[0] / without.rank_times.compute[0]
    assert ratio == pytest.approx(1 + slowest_of(2, GPU_SPREAD), rel=1e-6)
    assert by_default.collectives[0].time_ps == without.collectives[0].time_ps
    assert [row.what for row in by_default.evidence].count("GPU variation") == 1
    assert "GPU variation" not in [row.what for row in without.evidence]


@pytest.mark.parametrize("fold", ["verify", "off"])
def test_ranks_go_on_behaving_alike(fold):
    assert step(gpus=4, fold=fold).step_time_ps == step(gpus=4).step_time_ps


def test_one_gpu_and_a_recorded_step_wait_for_nobody():
    assert step(gpus=1).step_time_ps == step(gpus=1, gpu_spread=0.0).step_time_ps
    with pytest.raises(InputError, match="gpu_spread: one GPU waits for no slower one"):
        step(gpus=1, gpu_spread=0.2)
    trace, plan = "vgg13-h100-b128", Plan(dp=4, data="ddp")
    recorded = trine.simulate(trace, plan, cluster="dgx-h100")
    assert recorded.step_time_ps == trine.simulate(trace, plan, cluster="dgx-h100", gpu_spread=0.0).step_time_ps
    assert recorded.step_time_ps < trine.simulate(trace, plan, cluster="dgx-h100", gpu_spread=0.05).step_time_ps


def test_jitter_says_itself_how_ranks_differ():
    jitter = Stragglers(jitter=parse_jitter("normal:1%"), per="step")
    assert step(stragglers=jitter).step_time_ps == step(stragglers=jitter, gpu_spread=0.0).step_time_ps
    slow = Stragglers(slow=((0, 1.5),))
    assert step(stragglers=slow).step_time_ps > step(stragglers=slow, gpu_spread=0.0).step_time_ps


def test_an_ensemble_without_jitter_keeps_the_slowest_gpu():
    """Its variations of 1e-6 are equal on all ranks, so they must not replace the 2 % spread between GPUs."""
    plan = Plan(tp=2, inputs="none")
    found = step_ensemble(TEXT, plan, repeats=2, cluster="dgx-h100", software="none", compare=False)
    alone = found.result.step_time_ps
    assert all(abs(ps / alone - 1) < 1e-5 for ps in found.runs.times_ps)


@pytest.mark.parametrize("spread", [-0.01, MAX_SPREAD + 0.01, math.nan, math.inf, True, "1%"])
def test_what_is_no_spread_is_refused(spread):
    with pytest.raises(InputError, match="gpu_spread"):
        step(gpu_spread=spread)
