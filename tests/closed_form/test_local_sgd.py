"""Does local SGD move 1/H of DDP's bytes, and does a round take the time of its parts?"""

from functools import cache

import numpy as np
import pytest

import trine
from trine.compute import make_compute
from trine.engine import run
from trine.errors import PlanError
from trine.graph.program import Collective
from trine.graph.taskgraph import COMPUTE, TRANSFER
from trine.parallel.build import build_job
from trine.parallel.data_parallel import local_sgd
from trine.parallel.instantiate import instantiate
from trine.training import placement_of

STEPS = 4
CLUSTER = trine.build_topology("switch", "50 GB/s", "1 us", 4)


@cache
def job_of(trace="vgg13-h100-b128", **plan):
    workload = trine.load(trace)
    compute = make_compute("auto", workload, target=None, source=None, calibration=None)
    plan = trine.Plan(steps=STEPS, inputs="none", **plan)
    return build_job(workload, plan.filled(), compute)[0]


def simulated(job):
    ranks = len(job.program_of)
    graph, _ = instantiate(job, placement_of(CLUSTER, ranks))
    return graph, run(graph)


def moved_bytes(graph):
    return int(graph.size_bytes[graph.kind == TRANSFER].sum())


def test_a_stage_that_trains_nothing_averages_nothing():
    """The cut is behind the last weight: the second stage is the loss alone."""
    workload = trine.load("vgg13-h100-b128")
    last = [op.layer for op in workload.operators if op.phase == "forward"][-1]
    job = local_sgd(job_of(dp=2, pp=2, cuts=(last,), micro_batch=64), 2)
    averages = [sum(isinstance(s, Collective) and s.key[0] == "average" for s in p.steps) for p in job.programs]
    assert averages == [STEPS // 2, 0]
    simulated(job)


@pytest.mark.parametrize("trace", ["vgg13-h100-b128", "resnet50-h100-b128"])
@pytest.mark.parametrize("every", [1, 2, 4])
def test_bytes_are_one_hth_of_ddp(trace, every):
    job = job_of(trace, dp=2)
    whole = moved_bytes(simulated(job)[0])
    local = moved_bytes(simulated(local_sgd(job, every))[0])
    # One all-reduce cuts all parameters into chunks at once, DDP each bucket by itself: a few bytes of rounding.
    assert local * every == pytest.approx(whole, rel=1e-5)
    assert whole > 0


def test_a_round_is_its_steps_and_one_all_reduce():
    """Two replicas on one stream: nothing overlaps with the average, nothing waits inside a round."""
    graph, records = simulated(local_sgd(job_of(dp=2), STEPS))
    busy = int(graph.duration_ps[(graph.kind == COMPUTE) & (graph.rank == 0)].sum())
    transfers = graph.kind == TRANSFER
    average = int(records.end_ps[transfers].max() - records.start_ps[transfers].min())
    parameters = sum(p.size_bytes for p in trine.load("vgg13-h100-b128").parameters)
    # A ring of two over a switch: two rounds, each a half of the parameters over 50 GB/s and two links of 1 us.
    assert average == 2 * (-(-(parameters // 2) * 10**12 // (50 * 10**9)) + 2 * 10**6)
    assert int(records.end_ps.max()) == busy + average


def test_the_next_round_waits_for_the_average():
    graph, records = simulated(local_sgd(job_of(dp=2), 2))
    step = graph.labels.step
    computes = (graph.kind == COMPUTE) & (graph.rank == 0)
    averages = records.end_ps[(graph.kind == TRANSFER) & (step == 1)].max()
    assert records.start_ps[computes & (step == 2)].min() == averages
    assert records.start_ps[computes & (step == 1)].min() == records.end_ps[computes & (step == 0)].max()


def test_stages_average_their_own_parameters():
    job = local_sgd(job_of(dp=2, pp=2, micro_batch=32), 2)
    sizes = [
        [s.size_bytes for s in program.steps if isinstance(s, Collective) and s.axis == "dp"]
        for program in job.programs
    ]
    assert [len(each) for each in sizes] == [2, 2]
    assert sum(each[0] for each in sizes) == sum(p.size_bytes for p in trine.load("vgg13-h100-b128").parameters)
    records = simulated(job)[1]
    assert np.all(records.end_ps >= 0)


@pytest.mark.parametrize(
    ("plan", "every", "why"),
    [
        ({"dp": 2}, 3, "multiple of sync_every"),
        ({"dp": 2}, 0, "positive whole number"),
        ({"pp": 2}, 2, "nobody to average with"),
        ({"dp": 2, "data": "dp"}, 2, "takes the place of DDP"),
    ],
)
def test_what_cannot_be_is_refused(plan, every, why):
    with pytest.raises(PlanError, match=why):
        local_sgd(job_of(**plan), every)
