"""Is the history of speed complete, and does its page show it?"""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def history():
    spec = importlib.util.spec_from_file_location("bench_history", ROOT / "benchmarks" / "history.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_line_names_commit_machine_and_figures_in_seconds(history):
    rows = history.read_history()
    assert rows
    for row in rows:
        assert set(row) == {"commit", "date", "machine", "figures"}
        assert set(row["machine"]) == {"cpu", "cores", "python", "numba", "numpy"}
        assert set(row["figures"]) <= set(history.FIGURES)
        assert all(figure["cpu_s"] > 0 and figure["wall_s"] > 0 for figure in row["figures"].values())


def test_the_page_shows_the_latest_figures(history):
    text = history.PAGE.read_text()
    last = history.read_history()[-1]
    assert last["commit"] in text
    for name, row in last["figures"].items():
        assert f"| {name} | {history.FIGURES[name][0]} | {row['cpu_s']} |" in text


def test_a_measured_process_is_timed_and_a_failing_one_stops(history, tmp_path, monkeypatch):
    row = history.figure("import", 1, ROOT / "src")
    assert 0 < row["cpu_s"] < 60
    assert row["peak_mib"] > 1
    monkeypatch.setitem(history.FIGURES, "import", ("wrong", "no-such-command"))
    with pytest.raises(SystemExit, match="failed"):
        history.figure("import", 1, ROOT / "src")
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    assert history.read_history(path) == [row]
