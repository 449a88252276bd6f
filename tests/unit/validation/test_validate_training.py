"""Replay of published steps: rows match their sources, totals weigh sources alike, few micro-batches stand for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trine
from trine.errors import InputError
from trine.software import load_software
from validation.bands import band_document, share_inside, share_left_out
from validation.harness import Errors, read_table
from validation.layouts import LayoutValidation, spearman
from validation.replay_rows import Answers, Ask, Predicted, predict
from validation.step_factors import AskedStep, ComparedStep, calibrated, fit
from validation.training import TrainingValidation, chosen_rows, thinned, validate_training
from validation.training_page import write_page
from validation.training_rows import even_layers, fabric_bandwidth, layer_cuts, load_layouts, load_rows


def test_every_counted_row_is_a_job_on_as_many_gpus_as_it_says() -> None:
    for row in (*load_rows(), *load_layouts()):
        if row.apart or row.step_s is None:
            continue
        assert row.plan().num_ranks == row.num_gpus, row.name
        assert row.transformer().num_parameters > 1e8
        assert row.step_s > 0


def test_parameters_follow_from_the_shapes_of_rows_that_state_both() -> None:
    for row in load_layouts()[::97]:
        assert row.transformer().num_parameters == pytest.approx(float(row.facts["params_B"]) * 1e9, rel=0.01)


def test_the_file_of_a_row_is_its_layout() -> None:
    row = next(row for row in load_rows() if row.name == "korthikanti-4")
    plan = row.plan()
    assert (plan.tp, plan.pp, plan.virtual_stages, plan.schedule) == (8, 8, 3, "interleaved")
    assert plan.sequence_parallel
    assert plan.recompute == "selective"
    assert len(plan.cuts) == 23
    assert plan.cuts[0] == "layers.4.attention.norm"
    assert any("vocabulary" in text for text in row.open)


def test_layers_are_spread_as_frameworks_do() -> None:
    assert even_layers(96, 8) == [12] * 8
    assert even_layers(70, 12) == [5, *[6] * 10, 5]
    assert sum(even_layers(78, 12)) == 78


@pytest.mark.parametrize("most", [1, 3, 10_000])
def test_rows_are_thinned_by_group_and_those_apart_left_out(most) -> None:  # type: ignore[no-untyped-def]
    rows = [row for row in load_layouts() if row.step_s is not None]
    chosen = thinned(rows, most, lambda row: row.model)
    counted = [row for row in rows if not row.apart]
    sizes = {name: sum(row.model == name for row in counted) for name in {row.model for row in counted}}
    assert {row.name for row in chosen} <= {row.name for row in counted}
    assert {name: sum(row.model == name for row in chosen) for name in sizes} == {
        name: min(most, size) for name, size in sizes.items()
    }


def test_stages_without_layers_are_cut_behind_the_last_one() -> None:
    assert layer_cuts("2|1") == layer_cuts([2, 1]) == ("layers.2.attention.norm",)
    assert layer_cuts([2, 2, 0]) == ("layers.2.attention.norm", "final_norm")
    assert layer_cuts([2, 2, 0, 0]) == ("layers.2.attention.norm", "final_norm", "head")
    assert layer_cuts([1, 1, 0, 0, 0]) == ("layers.1.attention.norm", "layers.1.mlp.add", "final_norm", "head")
    assert layer_cuts([1, 1, 0, 0, 0, 0]) == ()  # the software's rule decides


def test_a_head_as_large_as_four_layers_ends_the_stages_of_the_1b_model() -> None:
    """By hand: a layer with its norms is a little over a quarter of the head; 5 are a little over a quarter of all."""
    stages = {row.whole("pp"): row.facts["stage_layers"] for row in load_layouts() if row.facts["model"] == "1B"}
    assert [stages[pp] for pp in (1, 2, 4, 8)] == ["16", "10|6", "5|5|5|1", "3|2|3|2|3|2|1|0"]


def test_the_fabric_is_as_slow_as_the_collective_of_the_replicas() -> None:
    assert fabric_bandwidth("all_reduce", 2) == pytest.approx(436.13e9)
    assert fabric_bandwidth("all_reduce", 24) == fabric_bandwidth("all_reduce", 16)
    assert fabric_bandwidth("reduce_scatter", 32) == pytest.approx(77.29e9)
    rows = [row for row in load_layouts() if row.replica_nodes == 32 and row.num_nodes == 32]
    ports = {}
    for sharding in ("none", "zero1"):
        cluster = next(row for row in rows if row.facts["sharding"] == sharding).load_cluster()
        links = [link for link in cluster.link_table.numbers if (link.medium or "").startswith("efa")]
        ports[sharding] = {link.bytes_per_s for link in links}
    assert ports == {"none": {round(194.23e9 / 8)}, "zero1": {round(77.29e9 / 8)}}


def test_a_row_is_predicted_from_few_micro_batches_as_from_all() -> None:
    row = next(row for row in load_layouts() if row.name == "ultrascale-1301")
    answer = predict(row)
    assert 0 < answer.simulated < answer.micro_batches == row.micro_batches == 128
    software = load_software("nanotron-2024")
    workload = trine.synthesize(row.transformer(), gpu=row.gpu, dtype=row.dtype, software=software)
    every = trine.simulate(workload, row.plan(), cluster=row.load_cluster(), software=software, fold="ranks")
    assert every.repeats is None
    assert answer.step_s == every.step_time_ps / 1e12
    assert answer.shares[0] == every.critical_path_times["compute"] / every.step_time_ps
    assert answer.memory_bytes == every.memory_peak_bytes
    assert every.work is not None
    assert answer.model_flops == every.work.model_flops / every.work.num_gpus


def test_sources_weigh_the_same() -> None:
    rows = {row.name: row for row in load_rows()}
    many = [rows[f"mpt-{i}"] for i in range(1, 5)]
    one = rows["korthikanti-1"]
    steps = tuple(
        ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) * by))
        for row, by in [*((row, 1.2) for row in many), (one, 0.9)]
    )
    errors = TrainingValidation(steps=steps).errors(steps)
    assert errors is not None
    assert errors.mean == pytest.approx(0.15)
    assert errors.bias == pytest.approx(0.05)


def test_rows_apart_count_nowhere_and_show_their_errors() -> None:
    rows = [row for row in load_rows() if row.source.key == "narayanan"][:3]
    assert all(row.apart for row in rows)
    steps = tuple(
        ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) * by))
        for row, by in zip(rows, (1.1, 1.2, 1.3), strict=True)
    )
    found = TrainingValidation(steps=steps)
    assert found.counted == ()
    assert "by source" not in found.details()
    apart = found.details().split("apart, counted nowhere")[1].splitlines()
    assert apart[1].split() == ["narayanan", "3", "+20.0%", "20.0%", "20.0%", "30.0%", "0%"]
    assert apart[2].strip() == rows[0].apart


def test_statistics_of_errors() -> None:
    errors = Errors.of([0.05, -0.1, 0.2, -0.4])
    assert errors.mean == pytest.approx(0.1875)
    assert errors.bias == pytest.approx(-0.0625)
    assert errors.median == pytest.approx(0.1)
    assert errors.p90 == pytest.approx(0.4)
    assert errors.within == pytest.approx(0.5)


def test_rank_correlation() -> None:
    values = np.array([3.0, 1.0, 2.0, 5.0])
    assert spearman(values, values**3) == pytest.approx(1)
    assert spearman(values, -values) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(np.sqrt(3) / 2)


def test_shares_scale_a_step() -> None:
    answer = Predicted(row="x", step_s=2.0, shares=(0.5, 0.25, 0.0))
    assert answer.scaled((2, 1, 1)) == pytest.approx(3.0)
    assert answer.scaled((1, 3, 9)) == pytest.approx(3.0)


def test_answers_are_kept_and_a_broken_line_is_passed_over(tmp_path) -> None:  # type: ignore[no-untyped-def]
    row = load_rows()[0]
    kept = Answers(tmp_path)
    kept.add(row, Ask(), Predicted(row=row.name, step_s=1.5))
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"key": "half')
    again = Answers(tmp_path)
    assert again.get(row, Ask()) == Predicted(row=row.name, step_s=1.5)
    assert again.get(row, Ask(software="none")) is None


def test_one_row_is_predicted_and_said(tmp_path) -> None:  # type: ignore[no-untyped-def]
    row = next(row for row in chosen_rows(["simumax"], True))
    answer = predict(row)
    assert not answer.why_not
    assert 0.2 < answer.step_s / (row.step_s or 1) < 5
    found = TrainingValidation(steps=(ComparedStep(row=row, answer=answer),), is_sample=True)
    assert "simumax" in found.details()
    assert found.document()["rows"]
    assert replace(found, steps=()).headline.endswith("no row that counts was predicted")


def _asked(row, shares, step_s):  # type: ignore[no-untyped-def]
    return AskedStep(row, Predicted(row=row.name, step_s=step_s, shares=shares))


def test_fitted_factors_are_those_that_made_the_steps() -> None:
    """Steps made of known parts and known factors give these factors back, apart from the prior's pull."""
    rows = [row for row in load_rows() if row.source.key == "mpt"][:24]
    made = (1.2, 1.5, 0.8)
    shares = [(0.9 - 0.035 * i, 0.03 * i, 0.005 * i) for i in range(24)]
    steps = []
    for row, parts in zip(rows, shares, strict=True):
        whole = 1 - sum(parts) + sum(part * factor for part, factor in zip(parts, made, strict=True))
        steps.append(_asked(row, parts, (row.step_s or 0) / whole))
    found = fit(steps)
    assert found[0] == pytest.approx(1.2, rel=0.02)
    assert found[1] == pytest.approx(1.5, rel=0.1)
    one = fit(steps, 1)
    assert one[1:] == (1, 1)
    assert one[0] > 1.1


def test_an_outlier_moves_no_factor_far() -> None:
    rows = [row for row in load_rows() if row.source.key == "mpt"][:20]
    steps = [_asked(row, (1.0, 0.0, 0.0), (row.step_s or 0) / 1.1) for row in rows]
    spoilt = [_asked(rows[0], (1.0, 0.0, 0.0), (rows[0].step_s or 0) / 5), *steps[1:]]
    assert fit(spoilt, 1)[0] == pytest.approx(1.1, rel=0.02)


def test_calibrated_steps_use_other_models_only() -> None:
    rows = [row for row in load_rows() if row.source.key == "korthikanti"]
    small, large = [row for row in rows if row.num_gpus == 8], [row for row in rows if row.num_gpus == 64]
    assert small
    assert large
    steps = [
        ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) / by))
        for row, by in [*((row, 1.1) for row in small), *((row, 1.3) for row in large)]
    ]
    errors = {step.row.name: step.calibrated_error for step in calibrated(steps)}
    assert errors[small[0].name] == pytest.approx(1.3 / 1.1 - 1, rel=0.1)
    assert errors[large[0].name] == pytest.approx(1.1 / 1.3 - 1, rel=0.1)


def test_layouts_are_ranked_and_their_choice_costed() -> None:
    rows = [row for row in load_layouts() if not row.apart and row.num_nodes == 1][:6]
    steps = tuple(ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) * 1.1)) for row in rows)
    found = LayoutValidation(steps=steps, least=2)
    assert all(group.regret == 0 and group.spearman == pytest.approx(1) for group in found.groups())
    assert found.by_nodes()[0][1].mean == pytest.approx(1 - 1 / 1.1)
    assert found.document()["groups"]
    assert "Spearman" in found.details()


def _validation() -> TrainingValidation:
    rows = [row for row in load_rows() if row.source.key in ("mpt", "simumax")]
    steps = tuple(
        ComparedStep(
            row=row,
            answer=Predicted(row=row.name, step_s=(row.step_s or 0) * by, model_flops=1e14, peak_flops=1e15),
            calibrated_s=(row.step_s or 0) * by**0.5,
        )
        for row, by in zip(rows, np.exp(np.linspace(-0.2, 0.2, len(rows))).tolist(), strict=True)
    )
    return TrainingValidation(steps=steps)


def test_bands_hold_eight_of_ten_of_the_rows_that_they_come_from() -> None:
    found = _validation()
    document = band_document(found)
    inside, width = share_inside(found, document)
    assert 0.75 <= inside <= 0.95
    fitted, narrower = share_inside(found, document, True)
    assert 0.75 <= fitted <= 0.95
    assert 1 < narrower < width
    everything = next(level for level in document["levels"] if not level["of"])
    assert everything["rows"] == len(found.counted)
    assert everything["low"] < 1 < everything["high"]


def test_bands_are_judged_by_rows_whose_model_was_left_out() -> None:
    """A model far from all others lies inside the band that includes it, and outside the band that leaves it out."""
    found = _validation()
    rows = [row for row in load_rows() if row.name in ("torchtitan-1", "torchtitan-2")]
    assert len({row.model for row in rows}) == 1
    far = tuple(
        ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) / 2), calibrated_s=row.step_s)
        for row in rows
    )
    both = replace(found, steps=(*found.steps, *far))
    inside, left_out = share_inside(both, band_document(both)), share_left_out(both)
    assert left_out[0] <= 2 / 3 < inside[0]


def test_the_page_shows_every_source_and_draws(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    found = _validation()
    rows = [row for row in load_layouts() if not row.apart and row.num_nodes <= 2][:40]
    steps = tuple(ComparedStep(row=row, answer=Predicted(row=row.name, step_s=(row.step_s or 0) * 1.1)) for row in rows)
    written = write_page(found, LayoutValidation(steps=steps, least=2), tmp_path)
    assert all(path.stat().st_size > (200 if path.suffix == ".csv" else 2000) for path in written)
    rows = read_table(tmp_path / "training-accuracy-rows.csv")
    assert len(rows) == len(found.counted)
    text = written[0].read_text()
    assert all(path.name in text for path in written[1:])
    assert "| mpt |" in text
    assert "calculon" in text
    assert "/work" not in text


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(InputError, match="mptt"):
        validate_training(sources=["mptt"])
