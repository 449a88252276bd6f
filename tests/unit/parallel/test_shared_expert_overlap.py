"""Do shared experts run beside the exchanges of routed experts, with the same work in no more time?"""

from __future__ import annotations

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import PlanError
from trine.graph.program import Collective, Compute
from trine.parallel.plan import Plan
from trine.training.memory import stage_programs

CLUSTER = load_cluster("dgx-h100", nodes=2)


@pytest.fixture(scope="module")
def workload():
    return trine.synthesize("deepseek-v3", gpu="h100-sxm", software="megatron-core", layers=5, sequence=1024)


def step(workload, beside, **fields):
    plan = Plan(ep=8, sharding="zero1", inputs="none", overlap="ideal", shared_expert_overlap=beside, **fields)
    return trine.simulate(workload, plan, cluster=CLUSTER, software="megatron-core")


@pytest.mark.parametrize("fields", [
    {"dp": 16, "batch": 2, "micro_batch": 1}, {"dp": 8, "tp": 2, "batch": 1, "sequence_parallel": True},
    {"dp": 16, "batch": 1, "dispatch": "deepep"}, {"dp": 16, "batch": 1, "recompute": "full"},
    {"dp": 16, "batch": 1, "expert_imbalance": "zipf:1.0"},
    {"dp": 8, "pp": 2, "batch": 4, "micro_batch": 1, "schedule": "1f1b", "stage_layers": (3, 2)},
])  # fmt: skip
def test_the_same_work_in_less_time(workload, fields):
    without, beside = (step(workload, overlap, **fields) for overlap in (False, True))
    assert beside.step_time_s < without.step_time_s
    assert beside.compute_s == pytest.approx(without.compute_s, rel=1e-9)

    def exchanged(result):
        return sum(row.count * row.size_bytes for row in result.collectives if row.kind in ("all_to_all", "send_recv"))

    assert exchanged(beside) == exchanged(without) > 0


def test_the_saved_time_of_one_layer():
    """Closed form, within 5 %: the four exchanges of a layer hide all operators beside them."""
    layers = trine.synthesize("deepseek-v3", gpu="h100-sxm", software="none", layers=4, sequence=1024)
    times = []
    for beside in (False, True):
        plan = Plan(dp=8, ep=8, batch=1, inputs="none", overlap="ideal", dp_overlap=False, shared_expert_overlap=beside)
        times.append(trine.simulate(layers, plan, cluster=load_cluster("dgx-h100"), software="none").step_time_s)
    beside_ps = 0
    for op in layers.operators:
        if ".shared." in op.layer and not op.layer.endswith(".add"):
            beside_ps += op.gpu_time_ps
    assert times[0] - times[1] == pytest.approx(beside_ps / 1e12, rel=0.05)


def test_shared_experts_lie_between_an_exchange_and_its_first_reader(workload):
    """In the program, operators of the shared experts do not wait for the exchange, and those of the experts do."""
    plan = Plan(dp=8, ep=8, inputs="none", batch=1, micro_batch=1, shared_expert_overlap=True).filled()
    program = stage_programs(workload, plan, None)[0]
    exchanges = [
        i for i, each in enumerate(program.steps) if isinstance(each, Collective) and each.kind == "all_to_all"
    ]
    assert len(exchanges) == 4 * 2  # two layers with experts
    for start in exchanges:
        later = [i for i, each in enumerate(program.steps) if isinstance(each, Compute) and i > start]
        reader = next(i for i in later if start in program.steps[i].after)
        assert later.index(reader) >= 1  # at least one operator runs beside it


@pytest.mark.parametrize(("fields", "words"), [
    ({"dp": 2}, "shared_expert_overlap cannot matter"),
    ({"dp": 2, "ep": 2, "expert_overlap": True}, "give one"),
])  # fmt: skip
def test_contradictions_are_refused(fields, words):
    with pytest.raises(PlanError, match=words):
        Plan(shared_expert_overlap=True, **fields)


def test_a_model_without_shared_experts_is_refused():
    workload = trine.synthesize("mixtral-8x7b", gpu="h100-sxm", layers=1, sequence=64)
    with pytest.raises(PlanError, match="shared experts"):
        trine.simulate(workload, Plan(dp=2, ep=2, batch=1, shared_expert_overlap=True), cluster=CLUSTER)
