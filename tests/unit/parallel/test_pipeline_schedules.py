"""Do pipeline schedules match their sources: orders, activations held at a time, refused shapes?"""

import pytest

import trine
from trine.errors import PlanError
from trine.parallel.plan import Plan
from trine.parallel.schedules import FORWARD_PASS, SCHEDULES, WEIGHT_PASS, Pipeline
from trine.testing import check_schedule


def words(name, rank, pipeline):
    """Return the passes as F, B, I, W with chunk and micro-batch."""
    passes = SCHEDULES.get(name).passes(rank, pipeline)
    return " ".join(f"{'FBIW'[one.kind]}{one.chunk}.{one.microbatch}" for one in passes)


#: Passes whose activations a rank holds at most: GPipe all; 1F1B and interleaved Narayanan et al. 2021 (interleaved:
#: Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1)/(p v) of the layers' activations on the first rank); ZB-H1 Qi et
#: al. 2024, Table 2; DualPipe DeepSeek-V3 2024, Table 2.
HELD = {
    "gpipe": lambda rank, s: s.num_microbatches,
    "1f1b": lambda rank, s: min(s.num_ranks - rank, s.num_microbatches),
    "interleaved": lambda rank, s: min(
        2 * (s.num_ranks - 1 - rank) + (s.virtual_stages - 1) * s.num_ranks + 1, s.num_microbatches * s.virtual_stages
    ),
    "zb-h1": lambda rank, s: min(s.num_ranks, s.num_microbatches),
    "dualpipe": lambda rank, s: s.num_ranks + 1,
}


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_activations_held_are_those_of_the_source(name):
    check_schedule(SCHEDULES.get(name), in_flight=HELD[name])


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_that_many_are_really_held_somewhere(name):
    shape = Pipeline(4, 12, 2 if name == "interleaved" else 1)
    peaks = []
    for rank in range(4):
        held, peak = 0, 0
        for one in SCHEDULES.get(name).passes(rank, shape):
            held += (one.kind == FORWARD_PASS) - (one.kind in (1, WEIGHT_PASS))
            peak = max(peak, held)
        peaks.append(peak - HELD[name](rank, shape))
    assert max(peaks) == 0
    if name != "dualpipe":
        assert peaks == [0] * 4


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
