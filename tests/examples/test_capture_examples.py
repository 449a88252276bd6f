"""The capture example and benchmark run, from the first step to the printed table."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


def test_the_example_says_what_it_captured(tmp_path, capsys):
    runpy.run_path(str(ROOT / "examples" / "capture_training_step.py"))["main"](tmp_path)
    printed = capsys.readouterr().out
    assert "small-cnn-b16: batch 16," in printed
    assert "parameters: 39.91 KiB" in printed  # 10 218 float32: 448 + 4 640 + 5 130


def test_the_example_without_a_gpu_prints_its_recorded_output(capsys):
    runpy.run_path(str(ROOT / "examples" / "capture_on_meta.py"))["main"]()
    printed = capsys.readouterr().out
    assert printed == (ROOT / "examples" / "capture_on_meta.out").read_text()
    assert "1,557,611,200 parameters" in printed  # those of trine's own gpt-2-xl


def test_the_benchmark_predicts_each_batch_from_both(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = tmp_path / "table.json"
    options = ["--device", "cpu", "--tiny", "--models", "vgg13", "--timed", "1", "--json", str(table)]
    monkeypatch.setattr(sys, "argv", ["capture_models.py", *options, "--keep", str(tmp_path / "kept")])
    runpy.run_path(str(ROOT / "benchmarks" / "capture_models.py"), run_name="__main__")
    rows = json.loads(table.read_text())["rows"]
    assert [(row["traced_batch"], row["predicted_batch"]) for row in rows] == [(4, 4), (6, 4), (4, 6), (6, 6)]
    assert all(row["unprofiled_s"] > 0 and row["operators_s"] > 0 and row["step_s"] > 0 for row in rows)
    assert rows[0]["operators_s"] < rows[2]["operators_s"]  # the same trace at a larger batch
    assert "un-profiled" in capsys.readouterr().out
    assert sorted(entry.name for entry in (tmp_path / "kept").iterdir()) == ["vgg13-b4", "vgg13-b6"]
