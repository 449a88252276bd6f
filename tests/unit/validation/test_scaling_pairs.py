"""Data parallelism on 1 and 8 GPUs against NVIDIA's published rows, from the one-GPU row."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import trine
from trine.errors import InputError
from validation.__main__ import app
from validation.scaling import (
    Pair,
    load_pairs,
    measured_workload,
    pairs_not_asked,
    predict,
    scaling_errors,
    scaling_numbers,
    scaling_rows,
    slowest_of,
)


@pytest.fixture
def fits(monkeypatch):
    """benchmarks/fit_host.py"""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return __import__("fit_host")


@cache
def rows():
    return tuple(scaling_rows())


def test_the_twenty_pairs_are_predicted_within_four_percent():
    judged = [row for row in rows() if row.pair.is_judged]
    errors, constant = scaling_errors(judged)
    assert errors.count == 20
    assert {row.pair.framework for row in judged} == {"PyTorch", "TensorFlow"}
    assert {row.pair.precision for row in judged} == {"fp32", "tf32", "amp"}
    assert errors.mean < 0.04
    assert errors.p90 < 0.08
    assert errors.mean < 0.75 * constant.mean
    assert errors.p90 < 0.75 * constant.p90 or errors.p90 < 0.06
    assert abs(errors.bias) < 0.03


def test_no_judged_row_is_fitted_on(fits):
    assert not [pair for pair in load_pairs() if pair.is_judged and pair.is_fitted_on]
    assert {pair.model for pair in fits.host_rows()} == {"ConvNets/efficientnet"}


def test_the_fitted_numbers_are_those_of_the_preset(fits):
    rows = fits.host_rows()
    host, fitted = scaling_numbers().host, fits.fit_host(rows)
    assert host.evidence == "fitted"
    assert host.rows == len(rows)
    assert fitted.step_ms == pytest.approx(host.step_ms, rel=0.01)
    assert fitted.machines["dgx-a100"] == pytest.approx(host.machines["dgx-a100"], rel=0.01)
    assert fitted.amp == pytest.approx(host.amp, rel=0.01)
    assert fits.left_out_error(rows) == pytest.approx(host.left_out_error, abs=0.002)


@pytest.mark.parametrize(
    ("gpus", "largest"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (8, 1.42360)]
)
def test_the_slowest_of_some_gpus_is_the_expected_largest_of_normal_numbers(gpus, largest):
    assert slowest_of(gpus, 0.02) == pytest.approx(0.02 * largest, abs=2e-6)


def test_batches_are_those_printed_where_no_column_has_them():
    found = {
        (p.model.rpartition("/")[2], p.machine, p.precision): p.batch
        for p in load_pairs() if p.is_judged and p.framework == "TensorFlow"
    }  # fmt: skip
    assert found["resnext101-32x4d", "NVIDIA DGX A100 (8x A100 40GB)", "tf32"] == 128
    assert found["resnext101-32x4d", "NVIDIA DGX A100 (8x A100 40GB)", "amp"] == 256
    assert found["se-resnext101-32x4d", "NVIDIA DGX-1 (8x V100 16G)", "fp32"] == 64
    assert found["se-resnext101-32x4d", "NVIDIA DGX-1 (8x V100 16G)", "amp"] == 96


def test_the_rest_of_the_table_is_listed():
    others = pairs_not_asked()
    assert len(others) > 8
    assert sum(map(len, others.values())) > 40
    assert all(pair.measured <= 1.02 for pairs in others.values() for pair in pairs)


def test_operators_take_the_measured_time_together():
    pair = next(pair for pair in load_pairs() if pair.is_judged)
    workload = measured_workload(pair, pair.step_s)
    result = trine.simulate(workload, trine.Plan(inputs="none"), compute="recorded")
    assert result.step_time_s == pytest.approx(pair.step_s, rel=1e-6)


def test_parts_add_up_and_are_none_for_one_gpu():
    row = rows()[0]
    parts = row.collectives_s + row.slowest_s + row.software_s
    assert row.predicted == pytest.approx(row.pair.step_s / (row.pair.step_s + parts))
    assert row.to_dict()["error"] == row.error
    assert min(row.collectives_s, row.slowest_s, row.software_s) > 0


def test_a_model_without_shapes_is_refused():
    pair = Pair(
        model="BART", variant="", framework="PyTorch", cluster="dgx-a100", machine="", precision="amp", batch=8, gpus=8,
        one=10.0, several=79.0, source="",
    )  # fmt: skip
    with pytest.raises(InputError, match="no shapes of BART"):
        predict(pair)


def test_the_command_prints_the_pairs_and_writes_them(tmp_path):
    target = tmp_path / "scaling.json"
    done = CliRunner().invoke(app, ["scaling", "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert "20 published pairs of 1 and 8 GPUs" in done.output
    assert "PyTorch se-resnext101 DGX-1 16GB amp" in done.output
    document = json.loads(target.read_text())
    assert len(document["rows"]) == document["errors"]["num_pairs"] == 20
    assert len(document["fitted_on"]) == sum(pair.is_fitted_on for pair in load_pairs())
    assert sum(document["not_asked"].values()) == sum(map(len, pairs_not_asked().values()))
    assert abs(document["rows"][0]["error"]) == max(abs(row["error"]) for row in document["rows"])
    assert document["errors"]["mean"] < document["targets"]["mean_error_max"]


def test_a_step_of_ones_own_has_a_prediction_and_no_error():
    mine = Pair(
        model="resnet50", variant="", framework="PyTorch", cluster="dgx-a100", machine="ours", precision="amp",
        batch=256, gpus=8, one=2470.0,
    )  # fmt: skip
    assert 0.7 < predict(mine).predicted < 0.95
    assert math.isnan(mine.measured)
    with pytest.raises(InputError, match="known of dgx1-v100, dgx-a100"):
        predict(replace(mine, cluster="dgx-h100"))
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        predict(replace(mine, model="resnet5"))
