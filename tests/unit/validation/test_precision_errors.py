"""Does trine validate training show the stored errors of steps in FP8, of experts and of adapters?"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from trine.results.precision_errors import KINDS, precision_errors, precision_lines
from validation.training import load_stored_training

ROWS = Path(__file__).parents[3] / "benchmarks" / "precision_rows.csv"


def groups_of_rows() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            found[row["kind"], row["precision"]].append(row["group"])
    return found


def test_the_stored_errors_are_of_the_rows() -> None:
    rows, stored = groups_of_rows(), precision_errors()
    assert stored
    assert [(each.kind, each.precision) for each in stored] == sorted({(e.kind, e.precision) for e in stored})
    for each in stored:
        groups = rows[each.kind, each.precision]
        assert each.rows <= len(groups)
        assert each.groups <= len(set(groups))


def test_mean_and_bias_lie_within_the_worst_group() -> None:
    for each in precision_errors():
        assert abs(each.bias) <= each.mean_error + 1e-4
        assert each.mean_error <= abs(each.worst) + 1e-4


def test_the_report_has_a_line_for_each() -> None:
    stored, report = precision_errors(), load_stored_training()
    lines = precision_lines()
    assert len(lines) == 1 + len(stored)
    for each, line in zip(stored, lines[1:], strict=True):
        assert line.strip().startswith(f"{KINDS[each.kind]}, {each.precision}")
        assert f"{each.mean_error:.1%}" in line
    assert lines in [list(paragraph) for paragraph in report.paragraphs()]
    assert [row["mean_error"] for row in report.document()["precisions"]] == [each.mean_error for each in stored]
