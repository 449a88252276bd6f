"""Do traces that trine writes read back to the same task graph, over plans of every layout?"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import build_topology
from trine.compute import make_compute
from trine.engine import run
from trine.formats.chakra import read_chakra, trace_graph, trace_job, write_chakra
from trine.graph.program import Collective, HostCopy
from trine.graph.taskgraph import COMPUTE, TaskGraph
from trine.parallel.build import build_job
from trine.parallel.instantiate import instantiate
from trine.parallel.plan import Plan
from trine.training import placement_of

#: Columns that define a task and its rank, without arbitrary ids.
COLUMNS = ("kind", "rank", "peer", "duration_ps", "size_bytes")
LABELS = ("phase", "layer", "stage", "microbatch", "step")


def read_back(job, target="astra-sim"):
    """Return the trace read back after writing a job."""
    with tempfile.TemporaryDirectory() as folder:
        write_chakra(job, Path(folder) / "x", target=target)
        return read_chakra(Path(folder) / "x")


def edges(graph: TaskGraph) -> set[tuple[int, int]]:
    """Return (waiting task, predecessor) pairs, with stream order, which traces can only express as dependencies."""
    waits = np.repeat(np.arange(graph.num_tasks), np.diff(graph.predecessor_ptr))
    found = set(zip(waits.tolist(), graph.predecessor_idx.tolist(), strict=True))
    for stream in np.unique(graph.stream[graph.kind == COMPUTE]).tolist():
        queue = np.flatnonzero((graph.stream == stream) & (graph.kind == COMPUTE)).tolist()
        found |= set(zip(queue[1:], queue, strict=False))
    return found


def assert_same(job, target="astra-sim", cluster=None):
    trace = read_back(job, target)
    back, _ = trace_job(trace)
    assert back is not None
    assert back.axes == job.axes
    assert back.layer_names == job.layer_names
    num_ranks = len(job.program_of)
    cluster = cluster or build_topology("switch", "20 GB/s", "1 us", num_ranks)
    one, other = (instantiate(each, placement_of(cluster, num_ranks))[0] for each in (job, back))
    for name in COLUMNS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in LABELS:
        assert np.array_equal(getattr(one.labels, name), getattr(other.labels, name)), name
    assert edges(one) == edges(other)
    names = [[graph.operator_names[i] if i >= 0 else "" for i in graph.labels.operator] for graph in (one, other)]
    assert names[0] == names[1]
    assert [(c.kind, c.size_bytes, c.ranks) for c in one.collectives] == [
        (c.kind, c.size_bytes, c.ranks) for c in other.collectives
    ]
    assert np.array_equal(run(one).end_ps, run(other).end_ps)
    return trace, cluster, one


@st.composite
def jobs(draw):
    dp, tp, pp = draw(
        st.sampled_from([(1, 1, 1), (4, 1, 1), (1, 4, 1), (1, 1, 3), (2, 2, 1), (3, 1, 2), (1, 2, 2), (2, 2, 2)])
    )
    layers = draw(st.integers(pp, 5))
    times = st.lists(st.integers(0, 5 * MS), min_size=layers, max_size=layers)
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=layers, max_size=layers))
    workload = Chain(draw(times), draw(times), [4 * s for s in sizes], optimizer_ps=draw(st.integers(0, MS))).workload()
    plan = Plan(
        dp=dp, tp=tp, pp=pp, micro_batch=draw(st.sampled_from([1, 3, 8])),
        schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
        steps=draw(st.integers(1, 2)), tp_style=draw(st.sampled_from(["column", "megatron"])),
        first_bucket_bytes=1 << 16, bucket_bytes=1 << 22,
    )  # fmt: skip
    return build_job(workload, plan.filled(), Proportional(workload))[0]


@settings(max_examples=30, deadline=None)
@given(jobs())
def test_the_task_graph_that_was_written_is_read(job):
    assert_same(job)


@settings(max_examples=10, deadline=None)
@given(jobs())
def test_without_a_rank_grid_every_task_still_runs_alike(job):
    trace, cluster, graph = assert_same(job)
    by_rank = trace_graph(trace, cluster)
    assert np.array_equal(np.sort(run(by_rank).end_ps), np.sort(run(graph).end_ps))


@pytest.mark.parametrize("name", ["vgg13-h100-b128", "resnet50-h100-b128"])
@pytest.mark.parametrize("plan", [Plan(dp=4), Plan(dp=2, tp=2), Plan(pp=4, micro_batch=32), Plan(dp=3, data="dp")])
def test_recorded_models(name, plan):
    workload = trine.load(name)
    model = make_compute("auto", workload, target=None, source=None, calibration=None)
    assert_same(build_job(workload, plan.filled(), model)[0], "chakra" if plan.data == "dp" else "astra-sim")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(pp=2, dp=2, schedule="interleaved", virtual_stages=2, batch=4, micro_batch=1, balance="layers"),
        Plan(pp=2, schedule="zb-h1", batch=4, micro_batch=1, recompute="full"),
        Plan(pp=2, schedule="dualpipe", batch=4, micro_batch=1),
        Plan(dp=4, sharding="fsdp", shard_ways=2),
        Plan(dp=2, tp=2, tp_style="megatron", sequence_parallel=True, sharding="zero2"),
        Plan(dp=2, cp=2, cp_style="all-gather", overlap="none"),
    ],
    ids=lambda plan: f"{plan.schedule}-{plan.sharding}-{plan.ways}",
)
def test_every_form_of_parallelism(plan):
    workload = trine.synthesize("gpt-2", layers=4, sequence=64)
    model = make_compute("auto", workload, target=None, source=None, calibration=None)
    assert_same(build_job(workload, plan.filled(), model)[0])


def test_copies_to_the_host_are_kept_and_lost_pressure_is_said(tmp_path):
    workload = trine.synthesize("gpt-2", layers=2, sequence=64)
    model = make_compute("auto", workload, target=None, source=None, calibration=None)
    job, _ = build_job(workload, Plan(dp=2, offload="activations").filled(), model, has_host=True)
    stored = [step for step in job.programs[0].steps if isinstance(step, HostCopy) and step.to_host]
    assert stored
    trace, _, _ = assert_same(job, "chakra", trine.load_cluster("dgx-h100", gpus=2))
    read = [step for step in trace.programs[0].steps if isinstance(step, HostCopy) and step.to_host]
    assert [step.size_bytes for step in read] == [step.size_bytes for step in stored]
    assert not any("overlap" in note for note in write_chakra(job, tmp_path / "x", target="chakra").notes)
    steps = tuple(s._replace(pressure_ppm=9) if isinstance(s, Collective) else s for s in job.programs[0].steps)
    pressed = replace(job, programs=(replace(job.programs[0], steps=steps),))
    assert any("--overlap modelled" in note for note in write_chakra(pressed, tmp_path / "y", target="chakra").notes)


def test_copies_and_launches_are_kept_for_readers_that_take_them():
    workload = trine.load("vgg13-h100-b128")
    model = make_compute("auto", workload, target=None, source=None, calibration=None)
    job, _ = build_job(workload, Plan(dp=2).filled(), model, has_host=True)
    back, _ = trace_job(read_back(job, "chakra"))
    steps = [[(type(s), getattr(s, "size_bytes", None)) for s in each.programs[0].steps] for each in (job, back)]
    assert steps[0] == steps[1]
