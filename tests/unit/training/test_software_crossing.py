"""Does the cost of tensor-parallel collectives beside pipelines across nodes count there, and nowhere else?"""

from __future__ import annotations

import pytest

import trine
from trine.parallel.plan import Plan
from trine.software import Software

COLLECTIVES = 4  # of a layer under tensor parallelism of Megatron's kind: two forward, two backward
TEXT = "model:gpt-2-medium,layers=4,sequence=128,times=roofline"


def step_us(plan, crossing_us, nodes):
    profile = Software(name="s", description="a test", launch={"cpu_us_per_kernel": 1000, "crossing_us": crossing_us})
    cluster = trine.load_cluster("dgx-h100", nodes=nodes)
    return trine.simulate(TEXT, plan, cluster=cluster, software=profile, collective_costs="links").step_time_s * 1e6


@pytest.mark.parametrize(
    ("plan", "nodes"),
    [
        ({"tp": 4, "pp": 2}, 1),  # the pipeline stays in the node
        ({"tp": 8, "dp": 2}, 2),  # no pipeline
        ({"pp": 2, "dp": 8}, 2),  # no tensor parallelism
    ],
)
def test_elsewhere_it_costs_nothing(plan, nodes):
    whole = Plan(**plan, batch=2, micro_batch=1, inputs="none")
    assert step_us(whole, 0, nodes) == step_us(whole, 500, nodes)


def test_each_collective_of_a_group_costs_so_much_for_each_of_its_ranks():
    """Bound by launches, a step grows by the collectives on the longest way through the pipeline."""
    plan = Plan(tp=8, pp=2, batch=1, micro_batch=1, inputs="none")
    grown = step_us(plan, 500, 2) - step_us(plan, 0, 2)
    # the first stage launches its backward pass while the second computes: of its collectives the forward ones count
    layers = 4 * COLLECTIVES * 8 * 500
    assert layers / 2 <= grown <= layers
