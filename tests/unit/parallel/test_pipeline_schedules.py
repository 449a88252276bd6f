"""Do pipeline schedules match their sources: orders, activations held at a time, refused shapes?"""

import re
from contextlib import suppress

import pytest

import trine
from trine.errors import PlanError
from trine.parallel.plan import Plan
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, SCHEDULES, WEIGHT_PASS, Pipeline
from trine.testing import check_schedule


def words(name, rank, pipeline):
    """Return the passes as F, B, I, W with chunk and micro-batch."""
    passes = SCHEDULES.get(name).passes(rank, pipeline)
    return " ".join(f"{'FBIW'[one.kind]}{one.chunk}.{one.microbatch}" for one in passes)


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_activations_held_are_those_of_the_source(name):
    """The record of a schedule has the closed form of its source; its passes hold no more."""
    check_schedule(SCHEDULES.get(name), in_flight=SCHEDULES.get(name).held)


def held_passes(schedule, rank, shape):
    """Return the most passes whose activations a rank holds at a time."""
    held, peak = 0, 0
    for one in schedule.passes(rank, shape):
        held += (one.kind == FORWARD_PASS) - (one.kind in (1, WEIGHT_PASS))
        peak = max(peak, held)
    return peak


def shape_of(schedule):
    return Pipeline(4, 12, 2 if schedule.takes_virtual_stages else 1)


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_that_many_are_really_held_somewhere(name):
    schedule, shape = SCHEDULES.get(name), shape_of(SCHEDULES.get(name))
    peaks = [held_passes(schedule, rank, shape) - schedule.held(rank, shape) for rank in range(4)]
    assert max(peaks) == 0
    if not schedule.joins_passes:
        assert peaks == [0] * 4


def test_activations_held_on_the_first_of_four_ranks():
    """Twelve micro-batches: GPipe all; 1F1B one a rank; interleaved 2 x 3 + 4 + 1 (Korthikanti et al. 2022); ..."""
    held = {name: SCHEDULES.get(name).held(0, shape_of(SCHEDULES.get(name))) for name in SCHEDULES.built_in}
    assert held | {"gpipe": 12, "1f1b": 4, "interleaved": 11, "zb-h1": 4, "dualpipe": 5} == held


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_facts_of_the_record_describe_the_passes(name):
    schedule, shape = SCHEDULES.get(name), shape_of(SCHEDULES.get(name))
    orders = [schedule.passes(rank, shape) for rank in range(4)]
    assert any(one.joined for order in orders for one in order) == schedule.joins_passes
    assert any(one.kind == WEIGHT_PASS for order in orders for one in order) == schedule.splits_backward
    assert all(order[-1].kind == BACKWARD_PASS for order in orders) == schedule.ends_backward
    if schedule.alternates:
        kinds = "".join("FB"[one.kind] for one in orders[0])
        assert re.fullmatch("F+(BF)+B+", kinds)


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_micro_batches_are_a_multiple_of_the_number_in_the_record(name):
    schedule = SCHEDULES.get(name)
    multiple = schedule.microbatch_multiple(4)
    shapes = [shape_of(schedule)._replace(num_microbatches=count) for count in range(8, 17)]
    taken = []
    for shape in shapes:
        with suppress(PlanError):
            schedule.check(shape)
            taken.append(shape.num_microbatches)
    assert taken == [count for count in range(8, 17) if count % multiple == 0]


def test_the_figure_of_interleaving():
    """Narayanan et al. 2021, Figure 4 bottom, first device: 1 2 3 4, then its second chunk, then 5 6 7 8 ..."""
    assert words("interleaved", 0, Pipeline(4, 8, 2)).startswith(
        "F0.0 F0.1 F0.2 F0.3 F4.0 F4.1 F4.2 F4.3 F0.4 F0.5 F0.6 B4.0 F0.7 B4.1 F4.4"
    )
    assert words("interleaved", 3, Pipeline(4, 8, 2)).startswith("F3.0 F3.1 F3.2 F3.3 F7.0 B7.0 F7.1 B7.1")


def test_the_figure_of_zero_bubble():
    """Qi et al. 2024, Figure 2 top: the first device holds no weight gradient back, the last one three."""
    assert words("zb-h1", 0, Pipeline(4, 8)).startswith("F0.0 F0.1 F0.2 F0.3 I0.0 W0.0 F0.4 I0.1 W0.1")
    assert words("zb-h1", 3, Pipeline(4, 8)).startswith("F3.0 I3.0 F3.1 I3.1 F3.2 I3.2 F3.3 I3.3 W3.0 F3.4 I3.4 W3.1")


def test_the_figure_of_dualpipe():
    """DeepSeek-V3 2024, Figure 5, 8 ranks and 20 micro-batches: the first device, and its mirror image."""
    shape = Pipeline(8, 20)
    first, last = words("dualpipe", 0, shape), words("dualpipe", 7, shape)
    assert first.startswith("F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F7.10 I7.10 W7.10 F7.11 I7.11 W7.11 F7.12")
    assert last.startswith("F0.10 F0.11 F0.12 F0.13 F0.14 F0.15 F0.16 F7.0 I7.0 W7.0")
    joined = [one for one in SCHEDULES.get("dualpipe").passes(0, shape) if one.joined]
    assert len(joined) == 2 * (10 - 8 + 1) + 3


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("1f1b", Pipeline(4, 8, 2), "the 1f1b schedule gives each rank one stage, not 2 virtual stages"),
        ("interleaved", Pipeline(4, 8), "needs 2 or more virtual stages a rank"),
        ("interleaved", Pipeline(4, 6, 2), "6 micro-batches on 4 ranks do not divide evenly: take a multiple"),
        ("dualpipe", Pipeline(3, 6), "even number of pipeline ranks and of micro-batches; got 3 and 6"),
        ("dualpipe", Pipeline(4, 6), "at least two micro-batches a rank: 8 on 4 ranks, got 6"),
    ],
)
def test_shapes_without_an_order_are_refused_with_the_reason(name, shape, says):
    with pytest.raises(PlanError, match=says):
        SCHEDULES.get(name).check(shape)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"virtual_stages": 2}, "virtual stages need a pipeline: pp must be above 1"),
        ({"pp": 2, "virtual_stages": 2, "cuts": ("a",)}, "4 stages need 3 cuts, got 1"),
        ({"balance": "layers"}, "pp = 1 has no cuts"),
        ({"pp": 2, "balance": "layers", "cuts": ("a",)}, "cuts say where"),
        ({"pp": 2, "balance": "layer"}, "balance must be one of time, layers, blocks, .*nanotron; got 'layer'"),
        ({"recompute": "ful"}, "recompute must be one of none, full, selective"),
        ({"recompute_layers": 2}, "recompute_layers is about full recomputation"),
        ({"sync": "each"}, "sync needs replicas: dp must be above 1"),
        ({"dp": 2, "data": "dp", "recompute": "full"}, "modelled without recomputation"),
    ],
)
def test_plans_whose_pipeline_options_cannot_be_are_refused(fields, says):
    with pytest.raises(PlanError, match=says):
        Plan(**fields)


def test_more_recomputed_layers_than_there_are_are_refused():
    workload = trine.synthesize("llama-3.2-1b", layers=4, sequence=512)
    trine.simulate(workload, trine.Plan(recompute="full", recompute_layers=4), compare=False)
    with pytest.raises(PlanError, match=r"recompute_layers is 5, and no part of 'llama-3.2-1b' has more than 4"):
        trine.simulate(workload, trine.Plan(recompute="full", recompute_layers=5), compare=False)
