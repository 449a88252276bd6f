"""Is a simulated training step lawful: bounded, monotone, deterministic, conserving?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import build_topology
from trine.engine import run
from trine.parallel.build import build_job
from trine.parallel.instantiate import instantiate
from trine.parallel.plan import Plan
from trine.training import placement_of


def end_of(chain, plan, cluster, engine="compiled"):
    workload = chain.workload()
    job, _ = build_job(workload, plan.filled(), Proportional(workload))
    graph, _ = instantiate(job, placement_of(cluster, plan.num_ranks))
    return graph, run(graph, engine=engine)


@st.composite
def chains(draw):
    layers = draw(st.integers(1, 6))
    times = st.lists(st.integers(0, 5 * MS), min_size=layers, max_size=layers)
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=layers, max_size=layers))
    return Chain(draw(times), draw(times), [4 * s for s in sizes], optimizer_ps=draw(st.integers(0, MS)))


@settings(max_examples=40, deadline=None)
@given(chains(), st.integers(2, 6), st.sampled_from(["ring", "switch", "full"]), st.integers(1, 100))
def test_ddp_lies_between_the_longer_part_and_the_sum(chain, ranks, topology, gigabytes):
    plan = Plan(dp=ranks, first_bucket_bytes=1 << 16, bucket_bytes=1 << 22)
    cluster = build_topology(topology, f"{gigabytes} GB/s", "1 us", ranks)
    _, records = end_of(chain, plan, cluster)
    compute = sum(op.gpu_time_ps for op in chain.operators)
    assert compute <= records.end_ps.max()
    still = Chain([0] * len(chain.parameters), [0] * len(chain.parameters), [p.size_bytes for p in chain.parameters])
    _, communication = end_of(still, plan, cluster)
    assert communication.end_ps.max() <= records.end_ps.max() <= compute + communication.end_ps.max()


@settings(max_examples=25, deadline=None)
@given(chains(), st.integers(2, 5), st.integers(1, 50), st.integers(1, 50))
def test_ddp_never_gets_slower_with_more_bandwidth(chain, ranks, slow, more):
    plan = Plan(dp=ranks, first_bucket_bytes=1 << 16, bucket_bytes=1 << 22)
    ends = [
        end_of(chain, plan, build_topology("ring", f"{rate} GB/s", "1 us", ranks))[1].end_ps.max()
        for rate in (slow, slow + more)
    ]
    assert ends[1] <= ends[0]


@settings(max_examples=25, deadline=None)
@given(
    chains(),
    st.sampled_from([(2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (2, 2, 2)]),
    st.sampled_from([1, 2, 3, 8]),
)
def test_every_layout_runs_the_same_on_both_engines(chain, ways, micro):
    dp, tp, pp = ways
    if pp > len(chain.parameters):
        return
    plan = Plan(dp=dp, tp=tp, pp=pp, micro_batch=micro, schedule="1f1b", steps=2)
    cluster = build_topology("switch", "10 GB/s", "1 us", plan.num_ranks)
    graph, records = end_of(chain, plan, cluster)
    _, twin = end_of(chain, plan, cluster, engine="reference")
    assert np.array_equal(records.start_ps, twin.start_ps)
    assert np.array_equal(records.end_ps, twin.end_ps)
    for task in range(graph.num_tasks):
        for predecessor in graph.predecessors(task):
            assert records.end_ps[predecessor] <= records.start_ps[task]


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=4),
        Plan(tp=4),
        Plan(pp=4, micro_batch=16),
        Plan(dp=2, tp=2),
        Plan(dp=4, data="dp"),
        Plan(dp=2, pp=2, micro_batch=32),
    ],
)
def test_memory_returns_to_where_it_began_and_never_goes_below(plan):
    cluster = build_topology("switch", "100 GB/s", "1 us", 4)
    for name in ("vgg13-h100-b128", "resnet50-h100-b128"):
        result = trine.simulate(name, plan, cluster=cluster)
        changes = np.zeros(4, dtype=np.int64)
        np.add.at(changes, result.memory.rank, result.memory.delta_bytes)
        assert not changes.any()
        assert all(peak.total_bytes >= 0 for peak in result.memory_peaks)


def test_two_runs_are_bit_identical():
    cluster = build_topology("torus:2x4", "30 GB/s", "1 us", 8)
    runs = [trine.simulate("resnet50-h100-b128", trine.Plan(dp=4, tp=2), cluster=cluster) for _ in range(2)]
    assert np.array_equal(runs[0].records.end_ps, runs[1].records.end_ps)


def test_each_step_of_a_steady_state_takes_the_same_time():
    cluster = build_topology("ring", "65 GB/s", "1 us", 4)
    result = trine.simulate("vgg13-h100-b128", Plan(dp=4, steps=4), cluster=cluster)
    lengths = np.diff(np.concatenate(([0], result.step_ends_ps)))
    assert len(set(lengths[1:].tolist())) == 1
    one = trine.simulate("vgg13-h100-b128", Plan(dp=4), cluster=cluster)
    assert result.step_time_ps == one.step_time_ps
