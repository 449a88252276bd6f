"""Does recomputation cost exactly the operators that run again, and keep exactly the bytes of its source?"""

from collections import Counter

import pytest
from small_transformers import AASB, CORE, SBH, TIMES, US, B, Transformer

import trine
from trine.cluster import build_topology
from trine.compute import make_compute
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Phase
from trine.parallel.build import build_job

LAYERS = 6
#: Bytes that a layer keeps for backward: Korthikanti et al., Reducing Activation Recomputation in Large Transformer
#: Models, 2022: sbh (34 + 5as/h) in equation 1, 34 sbh selective and 2 sbh full in section 5.
KEPT = {"none": 34 * SBH + 5 * AASB, "selective": 34 * SBH, "full": 2 * SBH}
AGAIN_US = {"none": 0, "selective": sum(TIMES[name] for name in CORE), "full": sum(TIMES.values())}
FORWARD_US = 1 + LAYERS * sum(TIMES.values())


def program(**fields):
    workload = Transformer(LAYERS).workload()
    job, _ = build_job(workload, trine.Plan(**fields).filled(), make_compute("auto", workload))
    return job.programs[0]


def held_after_forward(program):
    """Return the bytes of activations at the start of the first backward operator."""
    first = next(i for i, step in enumerate(program.steps) if step.label.phase in (Phase.BACKWARD, Phase.RECOMPUTE))
    kind = MEMORY_CATEGORIES.index("activations")
    return sum(change.delta_bytes for change in program.memory if change.step < first and change.category == kind)


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_kept_bytes_are_those_of_the_paper(how):
    assert held_after_forward(program(recompute=how)) == LAYERS * KEPT[how]


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_time_grows_by_what_runs_again(how):
    result = trine.simulate(Transformer(LAYERS).workload(), trine.Plan(recompute=how))
    assert result.step_time_ps == (3 * FORWARD_US + LAYERS * AGAIN_US[how]) * US
    phases = {share.name: share.compute_ps for share in result.phases}
    assert phases["forward"] == FORWARD_US * US
    assert phases.get("recompute", 0) == LAYERS * AGAIN_US[how] * US


def test_only_some_layers():
    """Two of six layers are recomputed: Megatron-LM's block method."""
    result = trine.simulate(Transformer(LAYERS).workload(), trine.Plan(recompute="full", recompute_layers=2))
    assert result.step_time_ps == (3 * FORWARD_US + 2 * AGAIN_US["full"]) * US
    assert held_after_forward(program(recompute="full", recompute_layers=2)) == 2 * KEPT["full"] + 4 * KEPT["none"]


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_nothing_is_left_and_the_peak_is_kept_bytes_and_one_layer(how):
    one = program(recompute=how)
    totals = Counter()
    for change in one.memory:
        totals[change.category] += change.delta_bytes
    assert not any(totals.values())
    peak = trine.simulate(Transformer(LAYERS).workload(), trine.Plan(recompute=how)).memory_peaks[0]
    most = LAYERS * KEPT[how] + (KEPT["none"] - KEPT[how]) + 20 * SBH  # 20 sbh: gradients on the way through the layer
    assert LAYERS * KEPT[how] < peak.by_category["activations"] <= most


@pytest.mark.parametrize(("how", "again"), [("none", 0), ("selective", 0), ("full", 2)])
def test_collectives_of_what_runs_again_are_repeated(how, again):
    """Megatron-style splits: two all-reduces per layer forward, two backward, and two more if the layer runs again."""
    cluster = build_topology("full", "100 GB/s", "1 us", 2)
    plan = trine.Plan(tp=2, tp_style="megatron", recompute=how)
    graph = trine.simulate(Transformer(LAYERS).workload(), plan, cluster=cluster, fold="off").graph
    kinds = Counter(label.kind for label in graph.collectives)
    # the embedding adds one; the three column splits of one input each reduce its gradient
    assert kinds["all_reduce"] == 1 + LAYERS * (2 + 4 + again)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "dualpipe"])
def test_every_schedule_runs_each_layer_again_once_a_micro_batch(schedule):
    cluster = build_topology("full", "100 GB/s", "1 us", 2)
    ways = 2 if schedule == "interleaved" else 1
    plan = trine.Plan(pp=2, batch=4 * B, micro_batch=B, schedule=schedule, virtual_stages=ways, recompute="full")
    result = trine.simulate(Transformer(LAYERS).workload(), plan, cluster=cluster, fold="off")
    total = sum(result.rank_times.compute.tolist())
    assert total == 4 * (3 * FORWARD_US + LAYERS * AGAIN_US["full"]) * US


def test_a_stage_without_layer_names_is_run_again_as_a_whole():
    workload = Transformer(2, prefix="layer_").workload()
    with pytest.raises(trine.PlanError, match="needs layers, and the operators' names show none"):
        trine.simulate(workload, trine.Plan(recompute="full"))
    cluster = build_topology("full", "100 GB/s", "1 us", 2)
    plan = trine.Plan(pp=2, batch=4 * B, micro_batch=B, recompute="full")
    forward = 1 + 2 * sum(TIMES.values())
    assert (
        sum(trine.simulate(workload, plan, cluster=cluster, fold="off").rank_times.compute.tolist())
        == 4 * 4 * forward * US
    )


def test_recomputation_that_finds_nothing_is_refused():
    with pytest.raises(trine.PlanError, match="selective recomputation finds nothing in 'resnet50"):
        trine.simulate("resnet50-h100-b128", trine.Plan(recompute="selective"))
