"""Is ideal overlap never slower than modelled overlap, and modelled overlap never slower than none?

If all ranks do the same and only one axis's collectives share the links, slower compute can only delay other tasks,
so the order is exact. Several axes and pipelines can break the order, as in any list scheduling: an operator that
ends later can keep two transfers apart (docs/background/contention.md).
"""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Chain, Proportional

import trine
from trine.engine import run
from trine.graph.program import Collective
from trine.parallel.build import build_job
from trine.parallel.instantiate import instantiate
from trine.parallel.plan import Plan
from trine.training import placement_of

US = 10**6
times = st.integers(1, 3_000)


@st.composite
def chains(draw):
    layers = draw(st.integers(1, 5))
    return Chain(
        forward_ps=[US * draw(times) for _ in range(layers)],
        backward_ps=[US * draw(times) for _ in range(layers)],
        weight_bytes=[4 * draw(st.integers(1, 10**6)) for _ in range(layers)],
        optimizer_ps=US * draw(times),
    ).workload()


def pressed(job, ppm):
    """Return the job with a pressure of ``ppm`` on every collective."""
    programs = [
        replace(p, steps=tuple(s._replace(pressure_ppm=ppm) if isinstance(s, Collective) else s for s in p.steps))
        for p in job.programs
    ]
    return replace(job, programs=tuple(programs))


def step_ps(workload, plan, ppm=0):
    cluster = trine.build_topology("ring", "10 GB/s", "1 us", plan.num_ranks)
    job, _ = build_job(workload, plan.filled(), Proportional(workload))
    graph, _ = instantiate(pressed(job, ppm), placement_of(cluster, plan.num_ranks))
    return int(run(graph).end_ps.max())


@given(
    workload=chains(),
    ranks=st.integers(2, 5),
    ppm=st.integers(1, 990_000),
    bucket=st.integers(1, 4 * 10**6),
    steps=st.integers(1, 2),
)
@settings(max_examples=40, deadline=None)
def test_ideal_modelled_none(workload, ranks, ppm, bucket, steps):
    plan = Plan(dp=ranks, first_bucket_bytes=bucket, bucket_bytes=bucket, steps=steps)
    ideal = step_ps(workload, plan)
    modelled = step_ps(workload, plan, ppm)
    none = step_ps(workload, replace(plan, overlap="none"))
    assert ideal <= modelled <= none


@given(workload=chains(), ppm=st.lists(st.integers(0, 990_000), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_more_pressure_is_never_faster(workload, ppm):
    plan = Plan(dp=3, first_bucket_bytes=1, bucket_bytes=1)
    found = [step_ps(workload, plan, one) for one in sorted(ppm)]
    assert (np.diff(found) >= 0).all()
