"""Stored reports of trine validate: printed at once, equal to a replay, and marked when data or code changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.common._version import __version__
from trine.errors import InputError
from trine.results import stored
from trine.results.stored import REPORTS, hash_inputs, stored_report
from validation import harness, replay_rows, serving_predictions, shown
from validation import memory as validate_memory
from validation.__main__ import COMMANDS
from validation.harness import ReplayProgress
from validation.layouts import load_stored_layouts
from validation.memory import load_stored_memory
from validation.serving import judged_rows, load_stored_serving
from validation.training import chosen_rows, load_stored_training

#: Reports whose predictions are stored.
PREDICTED = ("training", "layouts", "memory", "serving")
AGAIN = "store the reports again: python benchmarks/store_reports.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/store_reports.py"""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    sys.modules.pop("store_reports", None)
    import store_reports

    return store_reports


@pytest.fixture
def no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a row is predicted."""

    def fail(*given: object) -> Any:
        raise AssertionError("a row was predicted")

    monkeypatch.setattr(replay_rows, "_answers", fail)
    monkeypatch.setattr(validate_memory.ModelledMemory, "compared", fail)
    monkeypatch.setattr(serving_predictions, "answer", fail)


def expect_current(name: str) -> None:
    """Let a test fail as expected if an earlier minor version stored the report, which the report's first line says."""
    version = stored_report(name).stored.version
    if version.rpartition(".")[0] != __version__.rpartition(".")[0]:
        pytest.xfail(f"trine {version} stored the report of {name}: {AGAIN}")


def run(line: str) -> str:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, f"{line}\n{done.output[-2000:]}{done.exception!r}"
    return done.stdout


@pytest.mark.usefixtures("no_replay")
@pytest.mark.parametrize("name", REPORTS)
def test_the_stored_report_is_printed_without_a_replay(name: str) -> None:
    origin = stored_report(name).stored
    for option in ("", " --details"):
        first, empty, headline = run(f"validate {name}{option}").splitlines()[:3]
        assert first == origin.line
        assert first.startswith(f"stored report of trine {origin.version}")
        assert not empty
        assert headline
    brief = run(f"validate {name} --brief")
    assert brief.startswith(headline)
    assert brief.endswith(f"; {first}\n")
    assert brief.count("\n") == 1
    found = json.loads(run(f"validate {name} --json -"))
    assert found["stored"]["version"] == origin.version
    rows = {"collectives": "points", "loadstore": "points", "operators": "errors"}.get(name, "rows")
    assert len(found[rows]) >= 20


@pytest.mark.parametrize("name", REPORTS)
def test_the_command_that_repeats_a_report_is_named(name: str) -> None:
    assert run(f"validate {name} --again").endswith(f"python -m validation {name}\n")
    assert name in COMMANDS
    done = CliRunner().invoke(app, ["validate", name, "--again", "--brief"])
    assert done.exit_code == 2
    assert "--again: prints a command, not a report" in done.output


@pytest.mark.parametrize("name", ["training", "layouts"])
def test_blind_reports_fit_no_factor(name: str) -> None:
    fitted, blind = (stored_report(name, is_blind) for is_blind in (False, True))
    assert any(row["calibrated_s"] for row in fitted.content["rows"])
    assert not any(row["calibrated_s"] for row in blind.content["rows"])
    assert blind.headline != fitted.headline


def test_a_report_without_fits_is_not_also_blind() -> None:
    with pytest.raises(InputError, match="fits no factors"):
        stored_report("memory", blind=True)
    with pytest.raises(InputError, match="did you mean 'memory'"):
        stored_report("memori")


@pytest.mark.parametrize("name", PREDICTED)
def test_the_printed_report_follows_from_the_stored_predictions(name: str, script: ModuleType) -> None:
    computed = json.loads(json.dumps(shown.form_of(script.LOADED[name]())))
    assert computed == shown.read_shown(name)["fitted"], AGAIN


@pytest.mark.usefixtures("no_replay")
@pytest.mark.parametrize("name", REPORTS)
def test_changed_data_or_code_are_announced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stored_report(name).stored
    monkeypatch.setattr(stored, "hash_inputs", lambda: made.hash)
    assert "changed" not in run(f"validate {name}").splitlines()[0]
    monkeypatch.setattr(stored, "hash_inputs", lambda: "of other files")
    first = run(f"validate {name}").splitlines()[0]
    assert first.startswith(f"stored report of trine {made.version}; data or code changed since (")
    assert json.loads(run(f"validate {name} --json -"))["stored"]["is_current"] is False


def test_the_hash_depends_on_data_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets" / "stored").mkdir(parents=True)
    (tmp_path / "cli").mkdir()
    (tmp_path / "engine.py").write_text("one")
    monkeypatch.setattr(stored, "PRESETS", tmp_path / "presets")
    compute = hash_inputs.__wrapped__
    first = compute()
    (tmp_path / "cli" / "shown.py").write_text("of the command line")
    (tmp_path / "presets" / "stored" / "training.json.gz").write_text("a report")
    assert compute() == first
    (tmp_path / "presets" / "gpus.yaml").write_text("data")
    second = compute()
    (tmp_path / "engine.py").write_text("two")
    assert len({first, second, compute()}) == 3


@pytest.mark.parametrize("name", PREDICTED)
def test_stored_rows_equal_a_replay(name: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_current(name)
    monkeypatch.setattr(script, "MAX_CPU_S", 1.0)
    assert not script.differences(name, 1), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICTED)
def test_more_stored_rows_equal_a_replay(name: str, script: ModuleType) -> None:
    expect_current(name)
    assert not script.differences(name, 3), AGAIN


def test_stored_reports_hold_all_rows() -> None:
    steps, layouts, memory = load_stored_training(), load_stored_layouts(), load_stored_memory()
    assert {step.row.name for step in steps.steps} == {row.name for row in chosen_rows(None, False)}, AGAIN
    assert len(layouts.counted) > 600
    assert layouts.num_fitted == 143
    assert len(memory.answers) == 2249, AGAIN
    assert {run.row.name for run in load_stored_serving().runs} == {row.name for row in judged_rows()[0]}, AGAIN


def test_the_page_has_the_stored_serving_report(script: ModuleType) -> None:
    expect_current("serving")
    page = script.SERVING_PAGE.read_text()
    assert script.serving_block() == page.split(script.REPORT_START)[1].split(script.REPORT_END)[0], AGAIN


def test_a_report_is_stored_and_loaded(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = load_stored_training()
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    (tmp_path / "shown").mkdir()
    monkeypatch.setattr(stored, "FOLDER", tmp_path / "shown")
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.store("training", {"rows": script.step_records(steps.steps)}, 119.0)
    again = load_stored_training()
    assert again.steps == steps.steps
    assert again.stored is not None
    assert again.stored.is_current
    assert stored_report("training").stored.line.endswith("(2 CPU min; to repeat it: --again)")
    assert stored_report("training").headline == steps.headline


def test_progress_counts_the_stored_time_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_row_costs", lambda report: {"short": 1000, "long": 9000})
    seen: list[tuple[int, int]] = []
    work = ReplayProgress("training", ["short", "long", "new"], lambda done, total: seen.append((done, total)))
    for row in ("long", "new", "short", "short"):
        work(row)
    assert seen == [(9000, 15000), (14000, 15000), (15000, 15000), (15000, 15000)]
