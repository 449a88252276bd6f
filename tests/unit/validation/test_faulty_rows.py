"""A faulty row of a measured table is listed with the reason, and validation goes on with the others."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from validation import measured, memory, training_rows
from validation import scaling as validate_scaling
from validation.collectives import validate_collectives
from validation.gpu import measured as gpu_measured
from validation.gpu.measured import FILE, compared_or_unread, read_fine_grained
from validation.harness import UnreadRow
from validation.layouts import validate_layouts
from validation.measured import load_measurements
from validation.memory import GOLDEN, SIMUMAX, read_memory_rows, validate_memory
from validation.scaling import ROWS, read_pairs
from validation.training import validate_training
from validation.training_rows import FOLDER

#: Changed cells of a copy of a sound row -> a part of the stated reason.
FAULTY_STEPS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "unknown GPU": ({"gpu": "h100_81gb"}, "unknown GPU 'h100_81gb'; did you mean 'h100_80gb'"),
    "unknown source": ({"source": "nobody"}, "unknown source 'nobody'"),
    "hybrid": ({"dp": "2", "gpus": "2", "sharding": "zero1", "shard_ways": "1"}, "hybrid sharding"),
    "no number": ({"layers": "many"}, "layers: must be a whole number of at least 1, got 'many'"),
    "zero": ({"heads": "0"}, "heads: must be a whole number of at least 1, got '0'"),
    "no GPUs": ({"gpus": ""}, "gpus: must be a whole number"),
    "negative step": ({"step_s": "-1"}, "step_s: must be a positive number of seconds"),
    "text for a step": ({"step_s": "fast"}, "step_s: must be a positive number of seconds"),
    "unknown precision": ({"precision": "fp7"}, "unknown dtype 'fp7'"),
}


def _rows(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(io.StringIO(text)))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the folder of the published steps and peaks by one without rows."""
    for name in ("sources.yaml", "fabric.csv"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    header = (FOLDER / "tuned.csv").read_text().splitlines()[0]
    (tmp_path / "tuned.csv").write_text(f"{header}\n")
    (tmp_path / "clusters").symlink_to(FOLDER / "clusters")
    for module in (training_rows, memory):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    read_memory_rows.cache_clear()
    yield tmp_path
    read_memory_rows.cache_clear()


def _layouts(folder: Path, *changed: Mapping[str, str]) -> None:
    sound = next(r for r in _rows(FOLDER / "layouts.csv.gz") if r["nodes"] == "1" and r["population"] == "clean")
    rows = [{**sound, "row": f"layout-{at}", **cells} for at, cells in enumerate(changed)]
    _write(folder / "layouts.csv.gz", [sound, *rows])


def test_training_lists_faulty_rows_with_the_reason(folder: Path) -> None:
    every = _rows(FOLDER / "steps.csv.gz")
    sound = next(row for row in every if row["row"] == "mpt-131")
    base = next(row for row in every if row["source"] == "mpt" and row["gpus"] == "8")
    faulty = [{**base, "row": name, **cells} for name, (cells, _) in FAULTY_STEPS.items()]
    _write(folder / "steps.csv.gz", [*faulty, sound])
    _layouts(folder, {"nodes": "one"})
    found = validate_training(blind=True, jobs=1, sources=["mpt", "nobody"])
    assert [step.row.name for step in found.counted] == ["mpt-131"]
    reasons = {step.row.name: step.answer.why_not for step in found.failed}
    assert set(reasons) == set(FAULTY_STEPS)
    for name, (_, reason) in FAULTY_STEPS.items():
        assert reason in reasons[name]
        assert f"{name}: {reasons[name]}" in found.details()
    assert found.document()["not_predicted"] == [{"row": name, "why": why} for name, why in reasons.items()]


def test_layouts_list_faulty_rows_with_the_reason(folder: Path) -> None:
    _layouts(folder, {"nodes": "one"}, {"iteration_s": "inf"}, {"TP": "0"})
    found = validate_layouts(sample=True, jobs=1)
    assert len(found.counted) == 1
    assert [step.row.name for step in found.failed] == ["layout-0", "layout-1", "layout-2"]
    assert "layout-0: nodes: must be a whole number of at least 1, got 'one'" in found.details()


def test_memory_lists_faulty_rows_with_the_reason(folder: Path) -> None:
    """Hybrid sharding of two replicas in two groups leaves no state to shard, so the plan refuses it."""
    runs = [row for row in _rows(FOLDER / "memory_megatron.csv.gz") if row["test"].startswith("gpt/")]
    instances = next(row for row in runs if '"num-distributed-optimizer-instances": 2' in row["model_args"])
    arguments = {**json.loads(instances["model_args"]), "tensor-model-parallel-size": 1}
    hybrid = {**instances, "gpus": "2", "test": "gpt/hybrid", "model_args": json.dumps(arguments)}
    _write(folder / "memory_megatron.csv.gz", [hybrid, {**instances, "model_args": "{", "test": "gpt/cut"}])
    sound = next(row for row in _rows(FOLDER / "memory_simumax.csv.gz") if row["mem_max_allocated_GiB"])
    rows = [{**sound, "case": "bad", "layers": "x"}, {**sound, "case": "even", "DP": "0"}, sound]
    _write(folder / "memory_simumax.csv.gz", rows)
    found = validate_memory(sources=[SIMUMAX, GOLDEN])
    assert [answer.row.name for answer in found.answers] == [sound["case"]]
    assert [row.name for row in found.unread] == ["bad", "even", "gpt/hybrid", "gpt/cut"]
    assert "hybrid sharding cuts the replicas into equal groups" in found.unread[2].why
    assert all(f"not predicted: {row.name}: {row.why}" in found.details() for row in found.unread)


def test_collectives_list_series_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = _rows(measured.FOLDER / "series.csv")[:3]
    points = [row for row in _rows(measured.FOLDER / "points.csv") if row["series"] in {r["series"] for r in series}]
    series[0]["machine"], series[1]["gpus"] = "nobodys", "eight"
    _write(tmp_path / "series.csv", series)
    _write(tmp_path / "points.csv", points)
    (tmp_path / "machines.yaml").write_bytes((measured.FOLDER / "machines.yaml").read_bytes())
    header = (FOLDER / "tuned.csv").read_text().splitlines()[0]
    (tmp_path / "tuned.csv").write_text(f"{header}\n")
    (tmp_path / "clusters").symlink_to(measured.FOLDER / "clusters")
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    load_measurements.cache_clear()
    found = validate_collectives(load_measurements())
    load_measurements.cache_clear()
    assert [why for _, why in found.skipped if "nobodys" in why or "eight" in why] == [why for _, why in found.skipped]
    assert len(found.skipped) == 2
    assert found.compared


def test_loadstore_lists_rows_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in _rows(FILE) if row["size_bytes"]][:2]
    path = tmp_path / "fine_grained.csv"
    _write(path, [{**rows[0], "series": "nobodys"}, {**rows[0], "time_us": "soon"}, {**rows[0], "gpus": "0"}, rows[1]])
    monkeypatch.setattr(gpu_measured, "FILE", path)
    read_fine_grained.cache_clear()
    points, unread = read_fine_grained()
    read_fine_grained.cache_clear()
    assert len(points) == 1
    assert [row.name for row in unread] == ["line 2", "line 3", "line 4"]
    assert "unknown series 'nobodys'" in unread[0].why
    many = compared_or_unread(gpu_measured.replace(points[0], gpus=1 << 20))
    assert isinstance(many, UnreadRow)


def test_scaling_lists_rows_that_cannot_be_read(tmp_path: Path) -> None:
    rows = _rows(ROWS)
    path = tmp_path / "pairs.csv.gz"
    _write(path, [{**rows[0], "gpus": "eight"}, *rows[1:]])
    pairs, unread = read_pairs(path)
    assert [row.name for row in unread] == [f"{rows[0]['source']}:{rows[0]['line']}"]
    judged = next(pair for pair in pairs if pair.is_judged)
    lost: list[UnreadRow] = []
    assert validate_scaling.scaling_rows([validate_scaling.replace(judged, cluster="nowhere")], lost) == []
    assert "not of nowhere" in lost[0].why
