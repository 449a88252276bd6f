"""Are the validation's statistics correct, and are all points counted?"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trine.collectives.options import CollectiveTime
from trine.errors import InputError, SpecError
from validation.__main__ import app
from validation.collectives import (
    BELOW,
    FROM,
    CollectiveValidation,
    Predictor,
    left_out,
    select,
    validate_collectives,
)
from validation.harness import quantile, read_table
from validation.measured import COUNTED, MeasuredPoint, Series, load_measurements
from validation.report import summary_text, verdicts, write_report


def answer(series: Series, point: MeasuredPoint, factor: float, width: float = 1.5) -> CollectiveTime:
    time = round(point.time_ps * factor)
    return CollectiveTime(
        op=series.op, size_bytes=point.size_bytes, sent_bytes=point.size_bytes, num_ranks=series.num_gpus,
        time_ps=time, low_ps=round(time / width**0.5), high_ps=round(time * width**0.5), algorithm="ring",
        protocol="simple", channels=1, bus_factor=1.0, evidence="modelled", limit="",
    )  # fmt: skip


def off_by(factor: float) -> Predictor:
    return lambda series: [answer(series, point, factor) for point in series.points]


def test_a_perfect_model_has_no_error_and_all_inside() -> None:
    found = validate_collectives(predictor=off_by(1.0))
    assert len(found.totals()) == 14
    for _, band, stats in found.totals():
        assert (stats.median, stats.p90, stats.bias, stats.inside) == (0, 0, 0, 1)
        assert stats.meets(band)
    assert not found.skipped


def test_errors_are_signed_and_bands_counted() -> None:
    found = validate_collectives(predictor=off_by(1.3))
    (_, _, stats) = found.totals()[0]
    assert stats.median == pytest.approx(0.3, abs=1e-6)
    assert stats.bias == pytest.approx(0.3, abs=1e-6)
    assert stats.inside == 0  # 1.3 > sqrt(1.5)
    assert stats.width == pytest.approx(1.5, rel=1e-3)
    assert not stats.meets(FROM)
    assert not stats.meets(BELOW)


def test_only_qualities_that_count_are_in_the_totals() -> None:
    found = validate_collectives(predictor=off_by(1.0))
    points = sum(point.quality in COUNTED for series in load_measurements() for point in series.points)
    assert sum(stats.count for name, _, stats in found.totals() if name == "all machines") == points
    assert sum(stats.count for *_, stats in found.groups()) == points


def test_versions_of_a_library_together_weigh_as_one_run() -> None:
    everything = load_measurements()
    mine = [s for s in everything if s.machine.name == "aic-b200" and s.op == "all_reduce" and s.num_gpus == 8]
    mine = [s for s in mine if s.options.nvls is None]  # int8, without NVLS, is a different setting
    assert len(mine) > 2
    other = [s for s in everything if s.machine.name == "aic-a100" and s.op == "all_reduce" and s.num_gpus == 8]
    assert len(other) == 1
    found = validate_collectives([*mine, *other], off_by(1.0))
    by_machine = {name: sum(x.weight for x in found.compared if x.series.machine.name == name)
                  for name in ("aic-b200", "aic-a100")}  # fmt: skip
    assert by_machine["aic-b200"] == pytest.approx(by_machine["aic-a100"])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_quantile_is_the_usual_one_where_weights_are_equal(values: list[float], share: float) -> None:
    expected = sorted(values)[max(0, int(np.ceil(round(share * len(values), 9))) - 1)]
    assert quantile(np.array(values), np.ones(len(values)), share) == expected


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=20))
def test_a_weight_is_as_good_as_repeats(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    repeated = [value for value, weight in pairs for _ in range(weight)]
    assert quantile(values, weights, 0.5) == statistics.median_low(repeated)


def test_what_cannot_be_predicted_is_listed() -> None:
    def refuse(series: Series) -> list[CollectiveTime]:
        raise InputError("no such thing")

    found = validate_collectives(load_measurements()[:3], refuse)
    assert [why for _, why in found.skipped] == ["no such thing"] * 3
    assert "not predicted" in summary_text(found)
    assert found.totals() == []


def test_select_by_machine_or_family() -> None:
    everything = load_measurements()
    assert {s.machine.name for s in select(everything, ["aic-h100"])} == {"aic-h100"}
    assert {s.machine.family for s in select(everything, ["h100", "v100"])} == {"h100", "v100"}
    with pytest.raises(InputError, match="did you mean 'aic-h100'"):
        select(everything, ["aic-h10"])


def test_verdicts_of_a_slow_machine() -> None:
    series = load_measurements()[::3]
    healthy = validate_collectives(series, off_by(1.0))
    assert {suspicious for _, suspicious, _ in verdicts(healthy)} == {0}
    slow = validate_collectives(series, off_by(0.3))
    assert all(suspicious == total for _, suspicious, total in verdicts(slow))


def test_left_out_predictions_replace_the_time_and_keep_the_band(tmp_path: Path) -> None:
    (series,) = [
        s for s in load_measurements() if s.machine.name == "aic-a100" and s.op == "all_gather" and s.num_gpus == 8
    ]
    found = validate_collectives([series], off_by(2.0))
    path = tmp_path / "left_out.csv"
    head = "series,size_bytes,predicted_us,usual_us,measured_us"
    times = [(point.size_bytes, point.time_ps / 1e6) for point in series.points]
    rows = [f"{series.number},{size},{us * 1.1:.9g},{us * 2:.9g},{us:.9g}" for size, us in times]
    path.write_text("\n".join([head, *rows]) + "\n")
    without, doubt = left_out(found, path)
    assert doubt == ""
    assert without is not None
    assert [x.point for x in without.compared] == list(series.points)
    assert all(x.error == pytest.approx(0.1, rel=1e-3) for x in without.compared)
    assert all(x.width == pytest.approx(1.5, rel=1e-3) for x in without.compared)
    assert "older model" in left_out(validate_collectives([series], off_by(1.9)), path)[1]
    path.write_text("\n".join([head, *rows[:-1]]) + "\n")
    assert "older model" in left_out(found, path)[1]  # a table with a missing row
    assert left_out(found, tmp_path / "none.csv")[0] is None
    path.write_text("# x\nseries,size\n1,2\n")
    with pytest.raises(SpecError, match="not a table"):
        left_out(found, path)


@pytest.fixture(scope="module")
def small() -> CollectiveValidation:
    return validate_collectives(
        [s for s in load_measurements() if s.machine.name in ("aic-h100", "h100-2x8", "aic-b60")]
    )


def test_json_holds_every_point_and_serialises(small: CollectiveValidation) -> None:
    data = json.loads(json.dumps(small.document(), allow_nan=False))
    assert len(data["points"]) == len(small.compared)
    assert data["skipped"][0]["why"] == "oneccl is not modelled"
    medians = [group["median_error"] for group in data["groups"]]
    assert medians == sorted(medians, reverse=True)


def test_the_page_and_its_pictures(small: CollectiveValidation, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = write_report(replace(small, left_out=replace(small, skipped=())), tmp_path / "new")
    text = written[0].read_text()
    for heading in ("## Error by group", "family left out: several nodes", "## Known misses", "## Reproduce"):
        assert heading in text
    for path in written[1:]:
        assert path.name in text
        assert path.stat().st_size > (10_000 if path.suffix == ".png" else 1000)
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block.splitlines()[0]
    assert "oneccl is not modelled (6)" in text
    series = read_table(tmp_path / "new" / "collective-accuracy-series.csv")
    assert {row["machine"] for row in series} == {"aic-h100", "h100-2x8", "aic-b60"}
    assert {row["not_predicted"] for row in series if row["machine"] == "aic-b60"} == {"oneccl is not modelled"}
    assert [row["not_predicted"] for row in series[:2]] == ["", ""]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_command_prints_totals_and_writes_json(tmp_path: Path) -> None:
    code, output = run("collectives", "--machine", "aic-h100", "--json", tmp_path / "answer.json")
    assert code == 0, output
    assert "all machines" in output
    assert "from 1 MiB" in output
    assert json.loads((tmp_path / "answer.json").read_text())["groups"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--machine", "dgx"], "no measurements of 'dgx'"), (["--machine", "h100", "--report", "x"], "all machines")],
)
def test_command_refuses(arguments: list[str], says: str) -> None:
    code, output = run("collectives", *arguments)
    assert code == 2
    assert says in output
