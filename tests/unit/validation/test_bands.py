"""Likely ranges: quantiles by votes, scales that stand in for others, networks' own rows, coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trine
from trine.results import headline
from trine.results.headline import CNN_STEPS, MIN_VOTES, MIN_VOTES_OF_SCALE, StepBand, nearest_in
from trine.results.scales import MIN_AT_SCALE, NAMES, RUN_TO_RUN, stand_in_factors
from validation.bands import band_document, cnn_level, coverage, scale_widening, share_left_out
from validation.cnn_rows import CnnStep
from validation.layouts import LayoutValidation, load_stored_layouts
from validation.replay_rows import Predicted
from validation.step_factors import ComparedStep, asked_factors
from validation.training import TrainingValidation
from validation.training_rows import TrainingRow, load_layouts, load_rows

VOTES = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30))


def _step(row: TrainingRow, ratio: float) -> ComparedStep:
    """Return a step that took ``ratio`` times as long as predicted."""
    predicted_s = (row.step_s or 0) / ratio
    answer = Predicted(row=row.name, step_s=predicted_s, software=row.software)
    return ComparedStep(row=row, answer=answer, calibrated_s=predicted_s)


def _layouts(nodes: int, count: int) -> list[TrainingRow]:
    rows = [row for row in load_layouts() if row.num_nodes == nodes and not row.apart and row.step_s is not None]
    return rows[:count]


@given(VOTES, st.sampled_from(NAMES), st.lists(st.floats(0, 0.5), min_size=6, max_size=6))
def test_a_stand_in_is_never_narrower(votes: dict[str, int], scale: str, steps: list[float]) -> None:
    low, high = 1 - np.cumsum(steps[:3]) / 2, 1 + np.cumsum(steps[3:])
    widening = {NAMES[0]: {"low": 1.0, "high": 1.0}}
    widening |= {name: {"low": low[i], "high": high[i]} for i, name in enumerate(NAMES[1:])}
    entry = {"of": {}, "rows": 40, "votes": 40, "scales": votes, "shared_scales": {}, "low": 0.9, "high": 1.2}
    nodes = {"1 node": 1, "2-3 nodes": 2, "4-32 nodes": 9, "more nodes": 99}[scale]
    bands = {"generations": {}, "levels": [entry], "scales": widening}
    band = nearest_in(bands, "h100-sxm", "x", nodes)
    assert band is not None
    if votes.get(scale, 0) >= MIN_AT_SCALE:
        assert (band.low, band.high, band.widened_for) == (0.9, 1.2, "")
    else:
        assert band.low <= 0.9 * (1 - RUN_TO_RUN) < 1.2 * (1 + RUN_TO_RUN) <= band.high
        assert scale in band.words


def test_steps_of_one_node_stand_in_for_many_as_layouts_scatter() -> None:
    widening = {"4-32 nodes": {"low": 0.9, "high": 1.3}, "2-3 nodes": {"low": 0.95, "high": 1.1}}
    assert stand_in_factors({"1 node": 20}, "4-32 nodes", widening) == (0.9, 1.3)
    between = stand_in_factors({"1 node": 20, "2-3 nodes": 3}, "4-32 nodes", widening)
    assert between == pytest.approx((0.9 / 0.95, 1.3 / 1.1))
    assert stand_in_factors({"4-32 nodes": 20}, "1 node", widening) == (1 - RUN_TO_RUN, 1 + RUN_TO_RUN)
    assert stand_in_factors({"4-32 nodes": 3}, "4-32 nodes", widening) is None


def test_factors_of_scales_are_ends_over_those_of_one_node() -> None:
    """Equal rows: the ends are the errors themselves. A larger scale is at least as wide as a smaller one."""
    one, two, eight = _layouts(1, 2), _layouts(2, 2), _layouts(8, 2)

    def errors(rows: list[TrainingRow], ends: tuple[float, float]) -> list[tuple[ComparedStep, float]]:
        return [(_step(row, float(np.exp(end))), end) for row, end in zip(rows, np.log(ends), strict=True)]

    found = scale_widening(errors(one, (0.95, 1.05)), [*errors(two, (0.9, 1.2)), *errors(eight, (0.94, 1.5))])
    assert found["1 node"] == {"low": 1.0, "high": 1.0}
    assert found["2-3 nodes"] == {"low": round(0.9 / 0.95, 4), "high": round(1.2 / 1.05, 4)}
    assert found["4-32 nodes"] == {"low": round(0.9 / 0.95, 4), "high": round(1.5 / 1.05, 4)}
    assert found["more nodes"] == found["4-32 nodes"]
    assert scale_widening(errors(one, (0.9, 1.1)), [])["more nodes"] == {"low": 1.0, "high": 1.0}


def test_a_level_counts_votes_and_many_rows_of_one_group_are_one() -> None:
    rows = {row.name: row for row in load_rows()}
    steps = tuple(_step(rows[name], ratio) for name, ratio in (("dg1", 1.0), ("dg2", 1.2), ("dg3", 0.8)))
    document = band_document(TrainingValidation(steps=steps))
    level = next(level for level in document["levels"] if level["of"] == {"gpu": "h100-sxm", "software": "nemo-24"})
    assert (level["rows"], level["votes"]) == (3, 2)
    assert level["scales"] == {"1 node": 1, "4-32 nodes": 2}
    assert (level["low"], level["high"]) == (0.8, 1.2)


def test_few_steps_of_one_scale_are_no_level() -> None:
    of = {"gpu": "h100-sxm", "software": "x"}
    narrow = {
        "of": {**of, "scale": "1 node"},
        "rows": 14,
        "votes": 14,
        "scales": {"1 node": 14},
        "low": 0.99,
        "high": 1,
    }
    wide = {"of": of, "rows": 20, "votes": MIN_VOTES, "scales": {"1 node": 14}, "low": 0.8, "high": 1.3}
    bands = {"generations": {}, "levels": [narrow, wide], "scales": {}}
    for votes, low in ((MIN_VOTES_OF_SCALE - 1, 0.8), (MIN_VOTES_OF_SCALE, 1 - RUN_TO_RUN)):
        narrow["votes"] = votes
        band = nearest_in(bands, "h100-sxm", "x", 1)
        assert band is not None
        assert band.low == pytest.approx(low)


def test_layouts_on_several_nodes_have_their_fitted_factors_taken_out() -> None:
    """A step of 8 s computes for 6 s at factor 1.5; without the factor it computes for 4 s."""
    row, alone = _layouts(2, 1)[0], _layouts(1, 1)[0]
    answers = [Predicted(row=each.name, step_s=8.0, shares=(0.75, 0.0, 0.0)) for each in (row, alone)]
    steps = tuple(ComparedStep(row=each, answer=a) for each, a in zip((row, alone), answers, strict=True))
    found = LayoutValidation(steps=steps, factors=(1.5, 1.0, 1.0)).on_several_nodes()
    assert [step.row.name for step in found] == [row.name]
    assert found[0].answer.step_s == pytest.approx(6.0)


def test_taking_factors_out_agrees_with_blind_predictions_on_one_node() -> None:
    """The stored report has one-node layouts of 3B and 8B with and without factors."""
    stored = load_stored_layouts()
    blind = {step.row.name: step.answer.step_s for step in stored.blind}
    pairs = [
        (step.answer.scaled((1.0, 1.0, 1.0), asked_factors(stored.factors)), blind[step.row.name])
        for step in stored.counted
        if step.row.num_nodes == 1 and step.row.name in blind
    ]
    ratios = np.array([without / alone for without, alone in pairs])
    assert len(ratios) > 20
    assert np.abs(ratios - 1).mean() < 0.02


def test_steps_on_other_fabrics_are_of_another_scale_on_a_shared_one() -> None:
    votes = {"4-32 nodes": 20}
    level = {"of": {}, "rows": 20, "votes": 20, "scales": votes, "shared_scales": {}, "low": 0.9, "high": 1.1}
    widening = {"4-32 nodes": {"low": 0.95, "high": 1.3}}
    for is_shared, shared_votes, nodes, high in (
        (False, {}, 8, 1.1), (True, {}, 8, 1.43), (True, votes, 8, 1.1), (True, {"1 node": 5}, 8, 1.43),
    ):  # fmt: skip
        bands = {"generations": {}, "levels": [{**level, "shared_scales": shared_votes}], "scales": widening}
        band = nearest_in(bands, "h100-sxm", "x", nodes, is_shared=is_shared)
        assert band is not None
        assert band.high == pytest.approx(high)


def test_layouts_enter_only_the_level_of_their_scale() -> None:
    one, eight = _layouts(1, 20), _layouts(8, 20)
    report = TrainingValidation(steps=tuple(_step(row, 1.0) for row in one))
    document = band_document(report, [_step(row, 1.3) for row in eight])
    rows = {tuple(sorted(level["of"].values())): level["rows"] for level in document["levels"]}
    assert rows[("4-32 nodes", "h100-sxm", "nanotron-2024")] == 20
    assert rows[("h100-sxm", "nanotron-2024")] == 20
    assert rows[()] == 20
    band = nearest_in(document, "h100-sxm", "nanotron-2024", 8)
    assert band is not None
    assert (band.high, band.widened_for) == (1.3, "")


def test_coverage_is_by_votes() -> None:
    rows = {row.name: row for row in load_rows()}
    steps = [_step(rows[name], ratio) for name, ratio in (("dg1", 1.0), ("dg2", 2.0), ("dg3", 1.0), ("rx1", 2.0))]
    entry = {
        "of": {},
        "rows": 40,
        "votes": 40,
        "scales": dict.fromkeys(NAMES, 10),
        "shared_scales": {},
        "low": 0.9,
        "high": 1.2,
    }
    found = coverage(steps, {"generations": {}, "levels": [entry], "scales": {}})
    assert found == [("all", 4, 3, pytest.approx(0.5)), ("dgxc", 3, 2, pytest.approx(0.75)), ("infini-4090", 1, 1, 0.0)]


def test_networks_have_one_vote_a_network_gpu_and_precision() -> None:
    steps = [
        CnnStep(name=str(n), group=group, measured_s=measured_s, predicted_s=1.0)
        for n, (group, measured_s) in enumerate([*[("a", 0.5)] * 30, *((str(i), 1.0 + i / 100) for i in range(30))])
    ]
    level = cnn_level(steps)
    assert level is not None
    assert (level["rows"], level["votes"]) == (60, 31)
    assert level["low"] == 1.0  # group a has one vote of 31, below the 8th percentile
    assert level["high"] == pytest.approx(1.27)
    assert cnn_level([]) is None


def test_convolutional_networks_do_not_borrow_the_range_of_transformers() -> None:
    result = trine.simulate(trine.synthesize("resnet50", gpu="h100-sxm", batch=32), trine.Plan())
    band = result.band
    assert isinstance(band, StepBand)
    assert band.level == CNN_STEPS
    assert "convolutional networks on one A100 or V100" in band.words
    assert not any("transformer" in text for text in result.warnings)
    several = headline.cnn_band(8)
    assert several is not None
    assert several.low < band.low
    assert several.high > band.high


def test_bands_without_a_model_use_no_layout_of_it() -> None:
    """One-node layouts 1.3 times slower than predicted lie in the band that only layouts of their own model widen."""
    rows = [row for row in load_layouts() if row.num_nodes == 1 and not row.apart and row.step_s is not None]
    one, others = ([row for row in rows if (row.facts["model"] == "1B") == own][:8] for own in (True, False))
    slow = [_step(row, 1.3) for row in _layouts(8, 200) if row.facts["model"] == "1B"]
    steps = [*(_step(row, 1.0) for row in others), *(_step(row, 1.1) for row in one)]
    report = TrainingValidation(steps=tuple(steps))
    moved = [replace(step, row=replace(step.row, facts={**step.row.facts, "gpus": "8"})) for step in slow]
    inside = coverage(report.counted, band_document(report, moved))[0][3]
    left_out, _ = share_left_out(report, layouts=moved)
    assert inside == 1.0
    assert left_out == pytest.approx(len(others) / len(steps))
