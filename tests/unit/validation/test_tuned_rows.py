"""Steps of tuned software: which rows are selected, one vote a group, and the command that prints them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from trine.errors import InputError
from validation import training
from validation.replay_rows import Predicted
from validation.step_factors import ComparedStep, source_weights
from validation.training import TrainingValidation, chosen_rows
from validation.training_rows import TrainingRow, load_left_out, load_rows, sources_of

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
#: Dense bf16 rows of training_tuned.csv, and rows of training-rows.csv.
NUM_TUNED, NUM_REPORTED = 123, 29


def _script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _rows() -> dict[str, TrainingRow]:
    return {row.name: row for row in load_rows() if row.source.set == "tuned"}


def _report(errors: dict[str, float]) -> TrainingValidation:
    rows = _rows()
    return TrainingValidation(
        steps=tuple(
            ComparedStep(row=rows[name], answer=Predicted(row=name, step_s=(rows[name].step_s or 0) * (1 + error)))
            for name, error in errors.items()
        )
    )


def test_every_row_is_compared_or_left_out_with_a_reason() -> None:
    left_out = load_left_out()
    assert len(_rows()) + sum(int(row["rows"]) for row in left_out) == NUM_TUNED + NUM_REPORTED
    assert all(row["reason"] for row in left_out)
    assert {f"dg{number}" for number in range(1, 16)} <= set(_rows())


def test_rows_left_out_are_jax_doubtful_or_without_a_profile() -> None:
    reasons = {row["group"]: row["reason"] for row in load_left_out() if not row["reason"].startswith("weak scaling")}
    assert reasons["dgxc-maxtext|llama-3-70b|H100"] == "JAX"
    assert "CHECK" in reasons["torchao|llama-3-8b|H100"]
    assert {group.split("|")[0] for group, why in reasons.items() if "no profile" in why} == {
        "colossal", "kempner", "rocm-te", "tinyllama", "torchtune",
    }  # fmt: skip


def test_a_group_has_a_few_rows_on_machines_as_large_as_the_job() -> None:
    rows = _rows().values()
    for group in {row.group for row in rows}:
        assert 1 <= sum(row.group == group for row in rows) <= 3
    for name, nodes in (("dg1", 1), ("dg12", 32), ("dg15", 4)):
        row = _rows()[name]
        assert (row.num_nodes, len(row.load_cluster().gpus)) == (nodes, row.num_gpus)


def test_releases_name_their_profile() -> None:
    rows = _rows()
    assert {name: rows[name].software for name in ("dg1", "dg6", "dg14", "tt1", "rx1")} == {
        "dg1": "nemo-24", "dg6": "nemo-25", "dg14": "nemo-24", "tt1": "torchtitan-2024", "rx1": "megatron-core",
    }  # fmt: skip
    assert rows["dg7"].profile().operators.dropout
    assert rows["dg7"].profile().operators.attention_kernel == "flash-2"
    assert not rows["dg1"].profile().operators.dropout
    with pytest.raises(InputError, match="unknown variant 'v99'"):
        replace(rows["dg1"], facts={**rows["dg1"].facts, "variant": "v99"}).profile()


def test_layers_are_split_as_published() -> None:
    """126 layers on 64 chunks: embedding and loss count as a layer each, so the first and the last chunk have one."""
    cuts = _rows()["dg6"].plan().cuts
    assert len(cuts) == 63
    assert cuts[0] == "layers.1.attention.norm"
    assert cuts[-1] == "layers.125.attention.norm"


def test_a_group_has_one_vote() -> None:
    """Groups: 8B +10 and +30 %, 70B -10 %: mean of 20 and 10 %, bias 5 %. Their source weighs as much as another."""
    report = _report({"dg1": 0.1, "dg2": 0.3, "dg3": -0.1, "rx1": 0.4})
    assert source_weights(report.counted) == [0.25, 0.25, 0.5, 1.0]
    dgxc = replace(report, steps=report.steps[:3])
    voted = dgxc.voted()
    assert voted is not None
    assert (voted.count, voted.mean, voted.bias) == (2, pytest.approx(0.15), pytest.approx(0.05))
    over_sources = report.errors(report.counted)
    assert over_sources is not None
    assert over_sources.mean == pytest.approx((0.15 + 0.4) / 2)
    assert [name.split("|")[1] for name, _ in report.votes()] == ["llama-2-7b", "llama-3-8b", "llama-3-70b"]
    text = report.details()
    assert "one vote a group" in text
    assert "JAX" in text
    assert report.document()["left_out"]


def test_the_set_is_selected_by_its_name() -> None:
    assert {row.source.key for row in chosen_rows(["tuned"], False)} == set(sources_of(["tuned"]))
    assert {row.source.key for row in chosen_rows(["tuned", "mpt"], False)} == {*sources_of(["tuned"]), "mpt"}
    assert sources_of(["mpt"]) == ("mpt",)


def test_selection_takes_reported_rows_and_the_ends_of_the_newest_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str, variant: str, gpus: int, why: str = "", source: str = "dgxc") -> dict[str, str]:
        return {"row": name, "group": "a", "variant": variant, "gpus": str(gpus), "why": why, "source": source}

    rows = [
        row("dg1", "v24.11", 8), row("tt-1", "v25.04", 8), row("tt-2", "v25.04", 16), row("tt-3", "v25.04", 64),
        row("tt-4", "v25.02", 128), row("tt-5", "v25.05", 32), row("tt-6", "v25.05", 8, "JAX"),
    ]  # fmt: skip
    kept, left_out = _script("bundle_tuned", monkeypatch).select(rows)
    assert [each["row"] for each in kept] == ["dg1", "tt-1", "tt-5"]
    assert {each["reason"][:4]: each["rows"] for each in left_out} == {"JAX": "1", "weak": "3"}
    kept, _ = _script("bundle_tuned", monkeypatch).select(rows[1:])
    assert [each["row"] for each in kept] == ["tt-1", "tt-3", "tt-5"]


def test_the_command_prints_groups_totals_and_coverage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _script("tuned_rows", monkeypatch)
    script.print_steps(_report({"dg1": 0.1, "dg2": 0.3, "dg3": -0.3, "dg9": 0.02}))
    text = capsys.readouterr().out
    assert "3 groups: mean 17.3%, 90th percentile 28.0%" in text
    assert "groups above 20%: dgxc|llama-3-70b|H100" in text
    assert "likely range, dgxc:" in text


@pytest.mark.slow
def test_memory_verdicts_of_runs_with_a_public_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two logs of NVIDIA within 3 %, and torchtitan's run that goes out of memory."""
    script = _script("tuned_rows", monkeypatch)
    runs = [run for run in script.memory_runs() if run[0] in ("8B log", "15B log", "tt9")]
    monkeypatch.setattr(script, "memory_runs", lambda: runs)
    script.print_verdicts()
    text = capsys.readouterr().out
    assert "3 of 3 verdicts are right" in text
    errors = [float(part.split("%")[0]) for part in text.split("(")[1:]]
    assert len(errors) == 2
    assert all(abs(error) < 3 for error in errors)


def test_fitted_factors_of_tuned_rows_need_no_second_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tuned row is simulated once; rows of another source once blind and once with factors."""
    rows = [row for row in load_rows() if row.name in ("dg1", "dg2", "dg3", "korthikanti-1", "korthikanti-2")]
    simulated: list[str] = []

    def answers(rows: list[TrainingRow], ask: object, **options: object) -> list[Predicted]:
        simulated.extend(row.name for row in rows)
        return [Predicted(row=row.name, step_s=1.2 * (row.step_s or 0)) for row in rows]

    monkeypatch.setattr(training, "chosen_rows", lambda sources, sample: rows)
    monkeypatch.setattr(training, "replay", answers)
    report = training.validate_training()
    assert [simulated.count(row.name) for row in rows] == [2 if "korth" in row.name else 1 for row in rows]
    assert [step.row.name for step in report.steps] == [row.name for row in rows]
    errors = {step.row.name: step.calibrated_error for step in report.steps}
    assert all(abs(errors[name] or 1) < 0.15 for name in ("dg1", "dg2", "dg3"))
