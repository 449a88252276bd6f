"""Further times of the first and the last passes, in simulated small jobs and by hand."""

import pytest

from trine.cluster import load_cluster
from trine.parallel.plan import Plan
from trine.search.pass_times import EndRates, end_passes, end_rates
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import synthesize
from trine.workload.synthesis.model_files import load_model

LAYERS = 8


@pytest.fixture(scope="module")
def small_model():
    return synthesize(load_model("llama-3.2-1b"), gpu="h100-sxm", dtype="bf16", layers=LAYERS)


def passes_of(workload, dp):
    """Return the further passes of a pipeline of four stages on ``dp`` replicas."""
    plan = Plan(dp=dp, pp=4, schedule="1f1b", batch=8, micro_batch=1, sharding="zero1", inputs="none")
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=4 * dp), compare=False, fold="ranks")
    return end_passes(simulate(workload, plan, options=options), plan)


def test_rates_pass_through_both_numbers_of_layers():
    rates = end_rates((5.0, 3.0, 3.0, 8.0), (7.0, 5.0, 5.0, 10.0), (1, 1, 1, 1))
    assert rates == EndRates(layer=2.0, first=3.0, middle=1.0, last=6.0)
    assert rates.of([1.0, 1.0, 1.0, 1.0]) == [5.0, 3.0, 3.0, 8.0]
    assert rates.of([2.0, 2.0, 2.0, 2.0]) == [7.0, 5.0, 5.0, 10.0]


def test_chunks_without_layers_take_no_further_time():
    assert EndRates(2.0, 3.0, 1.0, 6.0).of([1.0, 1.0, 0.0]) == [5.0, 3.0, 0.0]


def test_no_gradients_are_reduced_on_one_replica(small_model):
    passes = passes_of(small_model, 1)
    assert passes.last_backward == pytest.approx((0,) * 4, abs=1e6)  # 1 us of some 10 ms
    assert passes.behind == (0,) * 4


def test_reductions_slow_the_last_backward_passes_down(small_model):
    passes = passes_of(small_model, 8)
    assert min(passes.last_backward) > 1e7
    assert max(passes.first_forward) < min(passes.last_backward)
