"""Do expert exchanges hide behind another micro-batch's compute, as combined 1F1B of Megatron-core hides them?"""

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import PlanError
from trine.parallel.expert_overlap import ExpertOverlap
from trine.parallel.plan import Plan
from trine.parallel.schedules import SCHEDULES, Pipeline
from trine.testing import check_schedule
from trine.training.run import simulate
from trine.workload import synthesize

CLUSTER = load_cluster("dgx-h100", nodes=2)


def step(paired, workload, **fields):
    plan = Plan(ep=8, micro_batch=1, sharding="zero1", inputs="none", expert_overlap=paired, **fields)
    return simulate(workload, plan, cluster=CLUSTER)


@pytest.fixture(scope="module")
def mixture():
    return synthesize("mixtral-8x7b", gpu="h100-sxm", software="megatron-core", layers=4, sequence=4096)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_the_paired_schedule_runs_every_pass_and_ends(name):
    check_schedule(ExpertOverlap(SCHEDULES.get(name)))


def test_a_rank_holds_one_more_pass_than_without():
    """Megatron-core, schedules.py get_pp_rank_microbatches: one warm-up pass more, then pairs."""
    passes = ExpertOverlap(SCHEDULES.get("1f1b")).passes(0, Pipeline(1, 4))
    words = ["FB"[each.kind] + str(each.microbatch) + ("+" if each.joined else "") for each in passes]
    assert words == ["F0", "F1", "B0+", "F2", "B1+", "F3", "B2+", "B3"]


def test_further_micro_batches_wait_for_no_exchange(mixture):
    """Closed form: where compute is longer than the exchanges, only F0 and the last backward pass wait for theirs."""
    exposed = {}
    for paired in (False, True):
        for micro_batches in (3, 8):
            result = step(paired, mixture, dp=16, batch=micro_batches, overlap="ideal")
            exposed[paired, micro_batches] = result.exposed_communication_s
    assert exposed[False, 8] > 1.2 * exposed[False, 3]
    assert exposed[True, 8] <= exposed[True, 3]


@pytest.mark.parametrize("fields", [
    {"dp": 16, "batch": 6}, {"dp": 8, "pp": 2, "batch": 8, "schedule": "interleaved", "virtual_stages": 2},
    {"dp": 8, "tp": 2, "batch": 4}, {"dp": 16, "batch": 4, "dispatch": "deepep"},
    {"dp": 16, "batch": 4, "expert_imbalance": "zipf:1.0"},
])  # fmt: skip
def test_the_same_bytes_in_no_more_time(mixture, fields):
    without, beside = (step(overlap, mixture, **fields, overlap="ideal") for overlap in (False, True))
    assert beside.step_time_s < without.step_time_s
    assert beside.compute_s == pytest.approx(without.compute_s, rel=1e-9)

    def exchanged(result):
        return sum(row.count * row.size_bytes for row in result.collectives if row.kind in ("all_to_all", "send_recv"))

    assert exchanged(beside) == exchanged(without) > 0


def test_the_published_gain():
    """Megatron-Bridge, skills/nemo-mbridge-perf-expert-parallel-overlap/card.yaml (July 2026): 15.1 % less time.

    Qwen3-30B-A3B in bfloat16, 16 H100, expert parallelism 16, global batch 1,024 of 4,096 tokens, HybridEP. trine
    hides all exchanges; of the measured ones a third to a half was hidden.
    """
    workload = synthesize("qwen3-30b-a3b", gpu="h100-sxm", software="megatron-bridge", sequence=4096)
    times = []
    for overlap in (False, True):
        plan = Plan(
            dp=16, ep=16, batch=64, micro_batch=1, sharding="zero1", inputs="none", expert_overlap=overlap,
        )  # fmt: skip
        times.append(simulate(workload, plan, cluster=CLUSTER, software="megatron-bridge").step_time_s)
    gain = 1 - times[1] / times[0]
    print(f"expert overlap: {gain:.1%} less time predicted, 15.1 % measured")
    assert gain == pytest.approx(0.151, abs=0.08)


@pytest.mark.parametrize(("fields", "words"), [
    ({"dp": 2}, "expert_overlap cannot matter"),
    ({"dp": 2, "ep": 2, "recompute": "full"}, "full recomputation"),
    ({"dp": 2, "ep": 2, "pp": 2, "schedule": "1f1b", "batch": 8, "micro_batch": 1}, "virtual stages"),
])  # fmt: skip
def test_contradictions_are_refused(fields, words):
    with pytest.raises(PlanError, match=words):
        trine.Plan(expert_overlap=True, **fields)


def test_another_schedule_is_refused():
    with pytest.raises(PlanError, match="not of gpipe"):
        ExpertOverlap(SCHEDULES.get("gpipe"))
