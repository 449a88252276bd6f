"""Are the parts of a parallel layout right: grid, micro-batches, buckets, schedules, stages?"""

from itertools import combinations

import pytest
from synthetic import MS, Chain

from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.program import Peer
from trine.parallel.data import Gradient, fill_buckets
from trine.parallel.plan import Plan, form_facts, micro_batches
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, SCHEDULES, Pipeline, PipelineAction
from trine.parallel.stages import INPUT_PART, WEIGHT_PART, Stages, cut_into_stages


def test_grid_numbers_tensor_parallel_ranks_next_to_each_other():
    grid = RankGrid(Plan(dp=2, tp=4, pp=3).axes)
    assert grid.num_ranks == 24
    assert grid.group(13, "tp") == (12, 13, 14, 15)
    assert grid.group(13, "dp") == (9, 13)
    assert grid.group(13, "pp") == (5, 13, 21)
    assert grid.resolve(13, Peer("pp", 2)) == 21
    assert sorted(r for g in grid.groups("dp") for r in g) == list(range(24))


@pytest.mark.parametrize(
    ("batch", "micro", "sizes"),
    [(8, None, (8,)), (8, 2, (2, 2, 2, 2)), (10, 3, (3, 3, 2, 2)), (7, 7, (7,)), (5, 1, (1,) * 5)],
)
def test_micro_batches_differ_by_at_most_one_sample_and_lose_none(batch, micro, sizes):
    assert micro_batches(batch, micro) == sizes


def test_a_micro_batch_larger_than_the_batch_is_refused():
    with pytest.raises(PlanError, match="larger than the replica's batch of 4"):
        micro_batches(4, 5)


def test_a_bucket_closes_when_it_has_reached_its_cap_and_no_gradient_is_split():
    sizes = [(0, 30, 10), (1, 5, 11), (2, 94, 12), (3, 1, 12), (4, 200, 13), (5, 7, 14)]
    buckets = fill_buckets([Gradient(w, size, "float32", op) for w, size, op in sizes], 20, 100)
    assert [(b.weights, b.size_bytes, b.ready_after) for b in buckets] == [
        ((0,), 30, 10),
        ((1, 2, 3), 100, 12),
        ((4,), 200, 13),
        ((5,), 7, 14),
    ]


def test_buckets_hold_one_dtype_each_and_come_in_the_order_in_which_they_are_ready():
    dtypes = ["float16", "float32", "float16", "float32", "float16"]
    buckets = fill_buckets([Gradient(i, 10, dtype, i) for i, dtype in enumerate(dtypes)], 20, 20)
    assert [(b.weights, b.size_bytes) for b in buckets] == [((0, 2), 20), ((1, 3), 20), ((4,), 10)]


def test_one_f_one_b_holds_no_more_micro_batches_than_stages_are_left():
    for stages in range(1, 6):
        for stage in range(stages):
            shape = Pipeline(stages, 8)
            passes = SCHEDULES.get("1f1b").passes(stage, shape)
            assert sorted(passes) == sorted(SCHEDULES.get("gpipe").passes(stage, shape))
            live = peak = 0
            for one in passes:
                live += 1 if one.kind == FORWARD_PASS else -1
                peak = max(peak, live)
            assert peak == min(stages - stage, 8)
            for m in range(8):
                forward, backward = PipelineAction(FORWARD_PASS, stage, m), PipelineAction(BACKWARD_PASS, stage, m)
                assert passes.index(forward) < passes.index(backward)


def test_balanced_cuts_are_optimal():
    forward = [5 * MS, 1 * MS, 4 * MS, 2 * MS, 7 * MS, 3 * MS, 6 * MS, 1 * MS]
    workload = Chain(forward, [2 * t for t in forward]).workload()
    times = {op.id: op.gpu_time_ps for op in workload.operators}
    for stages in range(1, 6):
        found = cut_into_stages(workload, stages, (), times)
        loads = [0] * stages
        for op in workload.operators:
            loads[found.stage_of[op.id]] += op.gpu_time_ps
        best = min(
            max(3 * sum(forward[a:b]) for a, b in zip((0, *cut), (*cut, 8), strict=True))
            for cut in combinations(range(1, 8), stages - 1)
        )
        assert max(loads) == best


def test_backward_is_cut_where_forward_is_and_every_crossing_has_its_gradient():
    workload = Chain([MS] * 4, [MS] * 4).workload()
    found = cut_into_stages(workload, 2, ("linear.3",), {})
    for op in workload.operators:
        assert found.stage_of[op.id] == (0 if op.layer in ("linear.1", "linear.2") else 1)
    assert [(c.source, c.target, c.has_gradient) for c in found.crossings] == [(0, 1, True)]
    assert workload.tensors[found.crossings[0].tensor].shape == (8, 64)


@pytest.mark.parametrize(
    ("cuts", "says"),
    [(("linear.9",), "no forward operator is called 'linear.9'; did you mean"), (("linear.1",), "does not come after")],
)
def test_wrong_cuts_are_refused_by_name(cuts, says):
    with pytest.raises(PlanError, match=says):
        cut_into_stages(Chain([MS] * 4, [MS] * 4).workload(), 2, cuts, {})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dp": 0}, "dp must be a positive whole number"),
        ({"data": "zero"}, "data must be one of ddp, dp"),
        ({"schedule": "gpip"}, "schedule must be one of gpipe, 1f1b"),
        ({"data": "dp", "dp": 2, "tp": 2}, "does not combine"),
        ({"pp": 3, "cuts": ("a",)}, "3 stages need 2 cuts"),
        ({"batch": 0}, "batch must be a positive"),
    ],
)
def test_plans_that_cannot_run_are_refused(fields, says):
    with pytest.raises(PlanError, match=says):
        Plan(**fields)


def test_only_another_dispatch_of_experts_is_a_form_of_the_plan():
    spread = {"dp": 4, "ep": 4}
    assert form_facts(Plan(**spread, dispatch="deepep"))["dispatch"] == "deepep"
    assert form_facts(Plan(**spread, dispatch="all-to-all")).get("dispatch") is None


def test_a_deferred_operator_completes_its_gradients_in_the_weight_part():
    """On the last stage, where the head is deferred; other stages keep the part of their own operators."""
    stages = Stages(2, {1: 0, 2: 1, 3: 1}, ("b",), (), {1: INPUT_PART}, frozenset({3}))
    assert [stages.part_that_completes(op) for op in (1, 2, 3)] == [INPUT_PART, INPUT_PART, WEIGHT_PART]
    whole = Stages(2, {1: 0, 2: 1, 3: 1}, ("b",), (), {3: WEIGHT_PART})
    assert [whole.part_that_completes(op) for op in (1, 2, 3)] == ["", "", WEIGHT_PART]
