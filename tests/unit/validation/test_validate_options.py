"""Does every option of ``python -m validation training``, ``layouts``, ``operators`` and ``scaling`` have an effect?

Rows are not simulated: predictions are made up from the row, the profile and the factors.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from trine.errors import SpecError
from validation import layouts as validate_layouts
from validation import operators as validate_operators
from validation import replay_rows
from validation import scaling as validate_scaling
from validation import training as validate_training
from validation.__main__ import app
from validation.operators import SHAPES, OperatorErrors, OperatorQuestion
from validation.replay_rows import Ask, Predicted
from validation.scaling import Pair, Scaled, ScalingValidation
from validation.training_rows import TrainingRow, load_layouts, load_rows

RUNNER = CliRunner()
#: Rows per source, model and number of GPUs, at most: fitting the factors dominates the test's time.
FEW = 2


@dataclass
class Asked:
    """Requested predictions of rows, and the numbers of parallel jobs."""

    rows: list[tuple[str, Ask]] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Replace simulations by made-up predictions, with a separate cache, and return the requests."""
    found = Asked()

    def predict(rows: Any, ask: Ask, jobs: int) -> Any:
        found.jobs.add(jobs)
        for row in rows:
            found.rows.append((row.name, ask))
            yield row, made_up(row, ask)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(replay_rows, "_answers", predict)
    monkeypatch.setattr(replay_rows, "hash_sources", lambda: "made up")
    for module in (validate_training, validate_layouts):
        monkeypatch.setattr(module, "load_layouts", few(load_layouts))
    monkeypatch.setattr(validate_training, "load_rows", few(load_rows))
    return found


def few(load: Callable[[], Sequence[TrainingRow]]) -> Callable[[], list[TrainingRow]]:
    """Return a loader of at most ``FEW`` rows of each model, GPU count and source."""

    def thinned() -> list[TrainingRow]:
        groups: dict[tuple[str, ...], list[TrainingRow]] = {}
        for row in load():
            if row.step_s is not None and not row.apart:
                groups.setdefault((row.source.key, row.model, str(row.num_gpus)), []).append(row)
        return [row for group in groups.values() for row in group[:FEW]]

    return thinned


def made_up(row: TrainingRow, ask: Ask) -> Predicted:
    """Return a prediction within 20 % of the row, larger if a profile is requested."""
    assert row.step_s is not None
    error = 0.8 + 0.4 * zlib.crc32(row.name.encode()) / 2**32 + (0.05 if ask.software else 0)
    first = Predicted(
        row=row.name, step_s=row.step_s * error, shares=(0.7, 0.1, 0.1), software=str(ask.software or "own")
    )
    return Predicted(row=row.name, step_s=first.scaled(ask.factors), shares=first.shares, software=first.software)


def run(line: str) -> str:
    done = RUNNER.invoke(app, line.split())
    assert done.exit_code == 0, f"{line}\n{done.output[-2000:]}{done.exception!r}"
    return done.stdout


def document(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(f"{line} --json -"))
    return found


def options(command: str) -> set[str]:
    """Return the long names of a command's options, except those that every test here uses."""
    found = app.get_command(click.Context(app), command)
    assert found is not None
    return {max(p.opts, key=len) for p in found.params if p.param_type_name == "option" and p.expose_value} - {
        "--json",
        "--brief",
        "--details",
    }


#: Options that change the answer, with their values.
ANSWERS = {
    "training": {
        "--sample": "",
        "--source": " korthikanti",
        "--software": " megatron-2021",
        "--blind": "",
        "--rows": " 3",
    },
    "layouts": {"--sample": "", "--software": " megatron-2021", "--blind": ""},
    "operators": {"--sample": "", "--gpu": " t4"},
    "scaling": {},
}
#: Options that do not change the answer.
OTHERS = {"training": {"--report", "--jobs", "--again", "--stored"}, "layouts": {"--jobs", "--again", "--stored"}}


@pytest.mark.parametrize("command", ANSWERS)
def test_every_option_is_flipped_here(command: str) -> None:
    assert options(command) == {*ANSWERS[command], *OTHERS.get(command, ())}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("command", ["training", "layouts"])
def test_rows_and_what_is_asked_of_them_change_the_answer(command: str) -> None:
    usual = document(f"{command} --again")
    assert usual == document(f"{command} --again")
    for option, value in ANSWERS[command].items():
        assert document(f"{command} {option}{value}") != usual, option


@pytest.mark.parametrize("command", ["training", "layouts"])
def test_a_profile_and_blindness_reach_every_question(command: str, asked: Asked) -> None:
    run(f"{command} --brief --again")
    assert len({ask.factors for _, ask in asked.rows}) > 1
    asked.rows.clear()
    run(f"{command} --brief --blind --software megatron-2021")
    assert {ask for _, ask in asked.rows} == {Ask(software="megatron-2021")}


@pytest.mark.parametrize("command", ["training", "layouts"])
def test_kept_answers_are_taken_unless_asked_again(command: str, asked: Asked) -> None:
    line = f"{command} --sample --brief"
    first = run(f"{line} --jobs 3")
    num_rows = len(asked.rows)
    assert asked.jobs == {3}
    assert run(line) == first
    assert len(asked.rows) == num_rows
    assert run(f"{line} --again") == first
    assert len(asked.rows) == 2 * num_rows


@pytest.mark.parametrize("command", ["training", "layouts"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--software torchtitn", "--software: unknown software 'torchtitn' (a file ends in .yaml); did you mean"),
        ("--jobs 0", "--jobs: must be at least 1, got 0"),
        ("--rows -1", "--rows: must be at least 1, got -1"),
        ("--source mtp", "--source: unknown source 'mtp'; did you mean 'mpt'"),
        ("--source mpt --report page", "--report: the report is about all sources"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_row(command: str, option: str, says: str, asked: Asked) -> None:
    if option.split()[0] in options(command):
        done = RUNNER.invoke(app, [command, *option.split()])
        assert done.exit_code == 2
        assert f"error: {says}" in done.output
    assert not asked.rows


@pytest.mark.parametrize("validate", [validate_training.validate_training, validate_layouts.validate_layouts])
def test_python_refuses_an_unknown_profile_too(validate: Callable[..., Any], asked: Asked) -> None:
    with pytest.raises(SpecError, match=r"unknown software 'megatron-cor'.*'megatron-core'"):
        validate(software="megatron-cor")
    assert not asked.rows


def test_answers_of_a_profile_file_are_those_of_what_is_in_it(tmp_path: Path, asked: Asked) -> None:
    file = tmp_path / "mine.yaml"
    counts = []
    for text in ("pytorch", "pytorch", "another"):
        file.write_text(f"name: mine\ndescription: {text}\n")
        run(f"layouts --sample --brief --software {file}")
        counts.append(len(asked.rows))
    assert counts[0] == counts[1] == counts[2] // 2


@pytest.mark.usefixtures("asked")
def test_the_page_is_written(tmp_path: Path) -> None:
    run(f"training --sample --report {tmp_path / 'page'}")
    assert len(list((tmp_path / "page").iterdir())) > 1


def operator_steps(gpus: tuple[str, ...], *, every: int = 1) -> list[Callable[[], list[OperatorErrors]]]:
    def one(gpu: str) -> list[OperatorErrors]:
        about = OperatorQuestion(SHAPES, "gemm", gpu, gpu)
        return [OperatorErrors(about=about, count=100 // every, median=0.1, mean=0.1, p90=0.2, worst=0.3, bias=0.0)]

    return [partial(one, gpu) for gpu in gpus or ("t4", "v100")]


def scaled() -> ScalingValidation:
    pair = Pair(
        model="ConvNets/resnext101-32x4d", variant="", framework="PyTorch", cluster="dgx-a100", machine="A100",
        precision="amp", batch=128, gpus=8, one=1000.0, several=7600.0,
    )  # fmt: skip
    pairs = pair, replace(pair, model="ConvNets/efficientnet")
    rows = [Scaled(pair=pair, collectives_s=2e-3, slowest_s=1e-3, software_s=1e-3) for pair in pairs]
    return ScalingValidation(rows=tuple(rows), not_asked={})


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the errors of operators and of pairs by fixed ones, so that no test computes them."""
    monkeypatch.setattr(validate_operators, "steps", operator_steps)
    monkeypatch.setattr(validate_scaling, "validate_scaling", scaled)


@pytest.mark.usefixtures("tables")
def test_options_of_operators_change_the_answer() -> None:
    usual = document("operators")
    for option, value in ANSWERS["operators"].items():
        assert document(f"operators {option}{value}") != usual, option


@pytest.mark.usefixtures("asked", "tables")
@pytest.mark.parametrize("line", ["training --sample", "layouts --sample", "operators", "scaling"])
def test_brief_is_one_line_and_json_is_the_whole(line: str, tmp_path: Path) -> None:
    short, long = (run(f"{line}{option}").splitlines() for option in ("", " --details"))
    assert 1 < len(short) <= min(24, len(long))
    assert short == long or short[-1] == f"... {len(long) - len(short) + 1} more lines: --details"
    assert [line for line in short if not line.startswith("... ")] == long[: len(short) - (short != long)]
    assert len(run(f"{line} --brief").splitlines()) == 1
    run(f"{line} --json {tmp_path / 'v.json'}")
    assert json.loads((tmp_path / "v.json").read_text())["schema"].startswith("trine/validate-")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("command", ["training", "layouts"])
def test_stored_predictions_are_not_asked_otherwise(command: str) -> None:
    assert document(f"{command} --stored")["stored"]["version"]
    done = RUNNER.invoke(app, [command, "--stored", "--sample"])
    assert done.exit_code == 2
    assert "leave out the other options" in done.output
