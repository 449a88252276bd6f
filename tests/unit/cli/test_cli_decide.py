"""Do compare, size, support and the options of train for a whole run answer, refuse and write JSON as documented?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trine.cli.main import app

GPT = "model:gpt-2,layers=2,sequence=128"
TRAIN = ["train", GPT, *["--dp", "2", "--batch", "2", "--cluster", "dgx-h100"]]
SIZE = ["size", GPT, *["--tokens", "1M", "--cluster", "dgx-h100", "--max-gpus", "2", "--global-batch", "4"]]


def run(words: list[str], code: int = 0) -> Any:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def answers(tmp_path: Path) -> tuple[str, str]:
    files = str(tmp_path / "one.json"), str(tmp_path / "two.json")
    run([*TRAIN, "--json", files[0]])
    run([*TRAIN, "--recompute", "full", "--json", files[1]])
    return files


def test_compare_names_the_term_and_the_input(answers: tuple[str, str]) -> None:
    done = run(["compare", *answers])
    assert "first input   layout.recompute: none (A), full (B)" in done.stdout
    assert "launches" in done.stdout
    assert "memory: recomputation" in run(["compare", *answers, "--details"]).stdout
    assert run(["compare", *answers, "--brief"]).stdout.count("\n") == 1


def test_compare_in_json_is_deterministic(answers: tuple[str, str]) -> None:
    contents = [json.loads(run(["compare", *answers, "--json", "-"]).stdout) for _ in range(2)]
    assert contents[0] == contents[1]
    assert contents[0]["schema"] == "trine/compare/1"
    assert contents[0]["first_input"] == "layout.recompute"


def test_the_cost_of_a_run_in_text_and_json() -> None:
    done = run([*TRAIN, "--tokens", "1B", "--price", "2"])
    assert "GPU-hours" in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    cost = json.loads(run([*TRAIN, "--tokens", "1B", "--price", "2", "--json", "-"]).stdout)["cost"]
    assert cost["usd"] == pytest.approx(2 * cost["gpu_hours"])
    assert cost["days_low"] < cost["days"] < cost["days_high"]


def test_size_in_json_has_a_machine_and_its_cost() -> None:
    (machine,) = json.loads(run([*SIZE, "--days", "1", "--json", "-"]).stdout)["machines"]
    assert (machine["cluster"], machine["gpus"], machine["cost"]["usd"]) == ("dgx-h100", 1, None)


def test_size_names_the_command_for_its_layout() -> None:
    line = next(line for line in run([*SIZE, "--days", "1"]).stdout.splitlines() if line.startswith("next"))
    words = run([*SIZE, "--days", "1"]).stdout.partition("next")[2].split()[1:]
    assert words[0] == "train", line
    step = json.loads(run([*words, "--json", "-"]).stdout)["step_time_s"]
    (machine,) = json.loads(run([*SIZE, "--days", "1", "--json", "-"]).stdout)["machines"]
    assert step == machine["step_time_s"]


def test_size_says_why_there_is_no_answer() -> None:
    done = run([*SIZE, "--days", "0.000001"])
    assert "no answer" in done.stdout
    assert "GPUs need" in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["compare", "missing.json", "missing.json"], "missing.json: cannot be read"),
        ([*TRAIN, "--price", "2"], "--price is about a whole run: add --tokens"),
        ([*TRAIN, "--tokens", "much"], "--tokens: must be an amount"),
        ([*TRAIN, "--sensitivity", "--overlap", "range"], "--sensitivity varies one run"),
        (["train", "vgg13-h100-b128", "--tokens", "1T"], "--tokens: 'vgg13-h100-b128' has no training step of tokens"),
        (SIZE, "give --days or --budget"),
        ([*SIZE, "--budget", "1M"], "--budget: needs --price"),
        ([*SIZE, "--days", "1", "--price", "free"], "--price: must be dollars per GPU-hour"),
        (["support", "h100-smx"], "did you mean 'h100-sxm'"),
    ],
)
def test_wrong_input_exits_with_2(words: list[str], error: str) -> None:
    done = run(words, 2)
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_price_file_without_a_date_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("usd_per_gpu_hour: {h100-sxm: 2}\n")
    assert "date: prices need their date" in run([*TRAIN, "--tokens", "1B", "--price", str(path)], 2).stderr
