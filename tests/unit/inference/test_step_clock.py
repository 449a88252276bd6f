"""The clock of steps with many tokens: the power balance of training steps, its limits, and what it changes."""

import numpy as np
import pytest

import trine
from trine.cluster import load_gpu
from trine.compute.power_curve import curve_of
from trine.inference.deployment import resolve, step_timer
from trine.inference.products import TOKENS
from trine.inference.step_clock import NO_SLOWDOWN, StepWork, slowdown_of

H100 = load_gpu("h100-sxm")


def work(products_us, flops, others_us=1.0, dtype="bfloat16"):
    ones = np.ones(TOKENS.shape)
    return StepWork(products_us * ones, others_us * ones, flops * ones, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_a_long_step_of_products_alone_runs_at_the_measured_sustained_clock(dtype):
    """Sustained clocks at 700 W were measured (presets/power_curves.yaml); 10 s are 200 time constants."""
    tensor = curve_of(H100).tensor
    rate = 0.74 * H100.flop_per_s[dtype]
    found = slowdown_of(H100, work(10e6, 10 * rate, dtype=dtype)).products[-1]
    assert found == pytest.approx(tensor.table[dtype] / tensor.sustained[dtype], rel=0.06)


def test_a_short_step_runs_at_the_ceiling_of_gemms_and_waits_for_memory_keep_their_time():
    curve = curve_of(H100)
    short = slowdown_of(H100, work(10.0, 10e-6 * 0.74 * H100.flop_per_s["bfloat16"]))
    assert short.products[-1] == pytest.approx(curve.table_clock("bfloat16") / curve.ceiling, rel=1e-3)
    assert short.attention[-1] == pytest.approx(1 / curve.ceiling, rel=1e-3)
    idle = slowdown_of(H100, work(1e5, 1.0))
    assert idle.products == pytest.approx(np.ones(TOKENS.shape), abs=1e-6)


def test_steps_slow_down_with_their_length_and_small_ones_not_at_all():
    timer = step_timer(resolve(trine.StepLayout(tp=1).job("llama-3-8b", "dgx-h100")))
    large = timer.slowdown.products[TOKENS >= 1024]
    assert (np.diff(large) > 0).all()
    assert 1.05 < large[-1] < 1.25
    assert (timer.slowdown.products[TOKENS < 256] == 1).all()
    assert (timer.slowdown.attention >= 1).all()


@pytest.mark.parametrize("gpu", ["a100-80gb", "b200", "mi300x"])
def test_gpus_without_known_clocks_keep_the_times_of_the_tables(gpu):
    assert slowdown_of(load_gpu(gpu), work(1e6, 1e15)) is NO_SLOWDOWN
