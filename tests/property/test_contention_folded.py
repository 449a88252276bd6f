"""Are folded runs with contention, offload and host copies equal to unfolded ones, for every task?"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Chain

import trine
from trine.parallel.plan import Plan

US = 10**6
CLUSTER = trine.load_cluster("dgx-h100", nodes=2)


def chain(seed_times, layers):
    """Return a chain of layers whose times do not divide each other, as if recorded on an H100."""
    made = Chain(
        forward_ps=[US * (seed_times[i % len(seed_times)] + i) for i in range(layers)],
        backward_ps=[US * (2 * seed_times[i % len(seed_times)] + 3 * i) for i in range(layers)],
        weight_bytes=[4 * 10**5 * (i + 1) for i in range(layers)],
        optimizer_ps=50 * US,
    )
    return replace(made.workload(), gpu="h100-sxm")


plans = st.builds(
    dict,
    dp=st.sampled_from([2, 4]),
    pp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2]),
    overlap=st.sampled_from(["ideal", "modelled", "none"]),
    offload=st.sampled_from(["none", "optimizer", "activations"]),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    micro_batch=st.sampled_from([2, 4]),
    steps=st.integers(1, 2),
)


@given(fields=plans, times=st.lists(st.integers(1, 500), min_size=1, max_size=4), slow=st.sampled_from([None, 0, 3]))
@settings(max_examples=20, deadline=None)
def test_every_task_of_every_rank(fields, times, slow):
    ranks = fields["dp"] * fields["pp"] * fields["tp"]
    stragglers = None if slow is None else trine.Stragglers(slow=((slow % ranks, 1.3),))
    trine.simulate(chain(times, 6), Plan(**fields), cluster=CLUSTER, fold="verify", stragglers=stragglers, cpu=False)


@pytest.mark.parametrize("overlap", ["modelled", "none"])
def test_a_slow_rank_that_splits_classes_under_way(overlap):
    """64 GPUs: the slow one leaves its class when its bucket is late; pressure carries over between classes."""
    cluster = trine.load_cluster("dgx-h100", nodes=8)
    plan = Plan(dp=8, tp=4, pp=2, micro_batch=64, overlap=overlap)
    slow = trine.Stragglers(slow=((9, 1.2),))
    trine.simulate("vgg13-h100-b128", plan, cluster=cluster, fold="verify", stragglers=slow)


@pytest.mark.parametrize(
    ("schedule", "ways"),
    [("interleaved", {"virtual_stages": 2}), ("zb-h1", {"dp": 2}), ("dualpipe", {})],
)
def test_every_schedule_without_overlap_and_with_its_activations_on_the_host(schedule, ways):
    """Alternating compute and transfers must not cause circular waits; each part needs its fetched layers."""
    plan = Plan(pp=4, micro_batch=16, schedule=schedule, overlap="none", offload="activations", **ways)
    slow = trine.simulate("vgg13-h100-b128", plan, cluster=CLUSTER, fold="verify")
    assert (
        slow.step_time_ps
        > trine.simulate("vgg13-h100-b128", replace(plan, overlap="modelled"), cluster=CLUSTER).step_time_ps
    )
