"""Laws of machines with several GPU models: the order of nodes and slower GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import build_topology, load_cluster

#: From fast to slow, by data sheet and by measured tables.
GPUS = ("b200", "h100-sxm", "a100-80gb", "v100")
MODEL = "model:gpt-2,layers=2,sequence=512,dtype=fp16"
PLANS = {
    "ddp": trine.Plan(dp=4, batch=4),
    "zero1": trine.Plan(dp=4, sharding="zero1", batch=4, micro_batch=2),
    "fsdp": trine.Plan(dp=4, sharding="fsdp", batch=4),
    "tp": trine.Plan(tp=2, dp=2, batch=4),
    "pp": trine.Plan(pp=2, dp=2, batch=4, micro_batch=1, schedule="1f1b"),
}


def machine(gpus, base="full"):
    made = build_topology(base, "50 GB/s", "2 us", len(gpus))
    names = dict(zip(made.gpus, gpus, strict=True))
    return replace(made, devices=tuple(replace(d, gpu=names.get(i, d.gpu)) for i, d in enumerate(made.devices)))


def step_ps(gpus, plan, **options):
    return trine.simulate(
        MODEL, PLANS[plan], cluster=machine(gpus), software="megatron-core", gpu_spread=0.0, compare=False, **options
    ).step_time_ps


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["ddp", "zero1", "fsdp"])
@settings(max_examples=4)
@given(order=st.permutations(["h100-sxm", "h100-sxm", "a100-80gb", "v100"]))
def test_the_order_of_replicas_does_not_matter(plan, order):
    assert step_ps(order, plan) == step_ps(["h100-sxm", "h100-sxm", "a100-80gb", "v100"], plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@settings(max_examples=8)
@given(ranks=st.lists(st.integers(0, 2), min_size=4, max_size=4), at=st.integers(0, 3), is_roofline=st.booleans())
def test_a_slower_gpu_never_makes_a_step_faster(plan, ranks, at, is_roofline):
    slower = [rank + (i == at) for i, rank in enumerate(ranks)]
    compute = "roofline" if is_roofline else "auto"
    before, after = (step_ps([GPUS[rank] for rank in each], plan, compute=compute) for each in (ranks, slower))
    assert before <= after


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("first", ["dgx-h100", "hgx-b200"])
def test_a_node_of_slower_gpus_never_makes_a_step_faster(plan, first):
    pair = load_cluster(first, nodes=2, gpus=4)
    second = set(pair.gpus[2:])
    devices = tuple(replace(d, gpu="a100-80gb") if i in second else d for i, d in enumerate(pair.devices))
    steps = [
        trine.simulate(MODEL, PLANS[plan], cluster=machine, software="megatron-core", compare=False).step_time_ps
        for machine in (pair, replace(pair, devices=devices))
    ]
    assert steps[0] <= steps[1]


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("gpus", [("h100-sxm", "a100-80gb") * 2, ("h100-sxm", "h100-sxm", "a100-80gb", "v100")])
def test_folding_of_mixed_machines_is_exact(plan, gpus):
    whole = step_ps(gpus, plan, fold="off")
    assert step_ps(gpus, plan, fold="verify") == whole
