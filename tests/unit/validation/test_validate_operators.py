"""Are errors of operator times measured on held-out shapes, and small enough?"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from trine.compute.tables.fp32 import surface
from trine.compute.tables.fp32_files import NEUSIGHT, folds, measured
from trine.errors import InputError
from validation.__main__ import app
from validation.left_out import asked_rows, from_another_us, left_out_us
from validation.operators import (
    ALL,
    ANOTHER,
    GPU,
    MOVED,
    MOVED_TARGET,
    SHAPES,
    TABLES,
    OperatorQuestion,
    OperatorValidation,
    Target,
    _bench,
    _bench_products,
    answers,
    errors_of,
    steps,
    validate_operators,
)


def check_pairs(found: OperatorValidation) -> None:
    pairs = [each for each in found.of(ANOTHER) if each.about.operator == ALL]
    assert {(each.about.source, each.about.gpu) for each in pairs} == {(a, b) for a in MOVED for b in MOVED if a != b}
    assert MOVED_TARGET.mean == 0.15
    for each in pairs:
        assert each.mean <= 0.15, each
        assert each.meets


def test_times_move_between_four_gpus_within_15_percent_of_a_sample() -> None:
    found = validate_operators(MOVED, every=40)
    check_pairs(found)
    assert "12 of 12 pairs" in found.headline
    shapes = {(each.about.gpu, each.about.operator): each for each in found.of(SHAPES)}
    assert all((gpu, table) in shapes for gpu in MOVED for table in TABLES)
    assert max(each.median for (_, table), each in shapes.items() if table in ("bmm", "linear")) < 0.1
    assert max(each.median for (_, table), each in shapes.items() if table == "elementwise") < 0.02


@pytest.mark.slow
def test_times_move_between_four_gpus_within_15_percent_of_all_shapes() -> None:
    found = validate_operators(MOVED, every=1)
    check_pairs(found)
    for each in found.of(ANOTHER):
        assert each.mean <= 0.15, each  # also for each kind of operator


def test_a_left_out_shape_is_predicted_without_its_fold() -> None:
    """The prediction equals a surface made by hand from the other folds' rows, not the measured time."""
    rows = asked_rows("softmax", 4)
    predicted, actual = left_out_us("t4", "softmax", 4)
    assert actual == pytest.approx(measured(NEUSIGHT, "softmax").times_us["t4"][rows], nan_ok=True)
    own = folds(NEUSIGHT, "softmax")[rows]
    assert set(own.tolist()) == {0, 1, 2, 3, 4}
    for i in (0, 5, 11):
        alone, distance = surface("t4", "softmax", without=int(own[i])).us(
            measured(NEUSIGHT, "softmax").shapes[rows[[i]]]
        )
        assert predicted[i] == pytest.approx(alone[0])
        assert distance[0] > 0


def test_a_gpu_left_out_is_its_source_by_the_data_sheets() -> None:
    predicted, actual = from_another_us("v100-pcie", "a100-pcie-40gb", "elementwise", 5)
    assert len(predicted) == len(actual) > 0
    assert np.median(np.abs(predicted / actual - 1)) < 0.05


def test_convolutions_products_and_attention_are_asked_too() -> None:
    found = validate_operators(["a100-80gb"], every=60)
    names = {(each.about.operator, each.about.dtype): each for each in found.of(SHAPES)}
    assert names["gemm", "bfloat16"].target == Target(median=0.04, p90=0.14)
    assert names["attention", "bfloat16"].meets
    found = OperatorValidation(
        errors=tuple(answers([step for step in steps(["t4", "h100-sxm"]) if step.func is _bench]))
    )  # type: ignore[attr-defined]
    of = {(each.about.gpu, each.about.operator, each.about.dtype) for each in found.errors}
    assert ("t4", "conv, gradient of the weight", "float16") in of
    assert ("h100-sxm", "conv, both gradients", "tfloat32") in of
    assert max(each.median for each in found.errors) < 0.25


def test_products_of_deepbench_are_near_what_a_sibling_says() -> None:
    """V100 is predicted from its data sheet alone, T4 also from its sustained rate."""
    for gpu in ("v100", "t4"):
        every, large = (each for step in steps([gpu]) if step.func is _bench_products for each in step())  # type: ignore[attr-defined]
        assert (every.count, large.count) == (160, 76)
        assert every.median < 0.1
        assert large.median < 0.05
        assert every.about.source == "a100-80gb"


def test_statistics_are_those_of_the_definition() -> None:
    about = OperatorQuestion(SHAPES, "bmm", "t4", "t4")
    predicted, actual = np.array([11.0, 8.0, 10.0, 5.0, np.nan]), np.array([10.0, 10.0, 10.0, 10.0, 1.0])
    [found] = errors_of(predicted, actual, about, Target(mean=0.2))
    assert (found.count, found.worst, found.meets) == (4, 0.5, True)
    assert (found.mean, found.median, found.bias) == pytest.approx((0.2, 0.15, -0.15))
    assert not replace(found, target=Target(median=0.15, mean=0.1)).meets
    assert errors_of(predicted[4:], actual[4:], about) == []


def test_gpus_without_measurements_are_named() -> None:
    with pytest.raises(InputError, match=r"known: .*t4"):
        steps(["t5"])
    done = CliRunner().invoke(app, ["operators", "--gpu", "v100-pci"])
    assert done.exit_code == 2
    assert "v100-pcie" in done.output
    assert "Traceback" not in done.output


def test_the_command_says_what_was_asked(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "errors.json"
    done = CliRunner().invoke(app, ["operators", "--sample", "--gpu", "mi210", "--json", str(path)])
    assert done.exit_code == 0, done.output
    for text in ("a sample", "mi210", "published by others", "3.63 %"):
        assert text in done.output
    found = json.loads(path.read_text())
    assert found["schema"] == "trine/validate-operators/1"
    assert {row["gpu"] for row in found["errors"]} == {"mi210"}
    assert {row["what"] for row in found["errors"]} == {SHAPES, GPU}
    assert all(row["num_points"] > 0 and row["p90_error"] >= row["median_error"] for row in found["errors"])
    assert (found["sampled"], found["finished"], len(found["peers"])) == (10, True, 3)
