"""Fit a stack to measured points of a server: ``trine calibrate --serving ROWS.csv``."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trine.common.arguments import named_arguments
from trine.common.inputs import read_text
from trine.common.outputs import write_text
from trine.common.spec import dump_yaml
from trine.common.units import finite_number, whole_number
from trine.compute.tables.machine import is_foreign
from trine.errors import InputError, SpecError, nearest
from trine.inference.answer import ServingAnswer
from trine.inference.calibrated import calibrated, names_of, statement
from trine.inference.infer import infer
from trine.inference.ranges import Estimate, serving_ranges
from trine.inference.stack import MAX_POINTS, Stack, StackScale, StackSpread, fit_scale, spreads
from trine.results.text import aligned

#: Columns with whole numbers and others -> arguments of :func:`trine.infer`.
_WHOLE = {
    "isl": "input_tokens", "osl": "output_tokens", "concurrency": "concurrency", "batch": "batch",
    "prefix": "prefix_tokens", "tp": "tp", "pp": "pp", "ep": "ep", "attention_dp": "attention_dp",
    "max_batched_tokens": "max_batched_tokens", "max_sequences": "max_sequences",
}  # fmt: skip
_SHARES = {"length_spread": "length_spread", "memory_fraction": "memory_fraction"}
_NAMES = ("model", "cluster", "engine", "precision", "kv_precision")
#: Measured columns: milliseconds, and output tokens per second of all GPUs.
TPOT, TTFT, RATE = "tpot_ms", "ttft_ms", "tokens_per_s"
MEASURED = (TPOT, TTFT, RATE)
REQUIRED = ("model", "cluster", "engine", "isl", "osl")
_COLUMNS = (*_NAMES, *_WHOLE, *_SHARES, *MEASURED, "note")
_MAX_BYTES = 1 << 20
#: A measured time further from the prediction than this factor is in another unit, or of another load.
MAX_RATIO = 100.0
_MS = 1e3


@dataclass(frozen=True, slots=True)
class ServedPoint:
    """One row: the blind answer, and the measured values by column."""

    row: int
    answer: ServingAnswer
    measured: Mapping[str, float]

    def ratios(self) -> dict[str, float]:
        """Return measured / predicted times of ``tpot`` and ``ttft``; throughput stands in for a missing TPOT."""
        found = {}
        if self.answer.tpot_s is not None and TPOT in self.measured:
            found["tpot"] = self.measured[TPOT] / _MS / self.answer.tpot_s.value
        elif RATE in self.measured:
            found["tpot"] = self.answer.output_tokens_per_s.value / self.measured[RATE]
        if self.answer.ttft_s is not None and TTFT in self.measured:
            found["ttft"] = self.measured[TTFT] / _MS / self.answer.ttft_s.value
        return found

    def compared(self, answer: ServingAnswer) -> dict[str, tuple[float, float]]:
        """Return measured and predicted value of each measured column, the latter by ``answer``."""
        found = {}
        for column, estimate in _estimates(answer).items():
            if column in self.measured and estimate is not None:
                found[column] = (self.measured[column], estimate.value)
        return found


def _estimates(answer: ServingAnswer) -> dict[str, Estimate | None]:
    """Return the estimates of an answer by measured column, in its unit."""
    tpot, ttft = answer.tpot_s, answer.ttft_s
    return {
        TPOT: None if tpot is None else tpot.times(_MS), TTFT: None if ttft is None else ttft.times(_MS),
        RATE: answer.output_tokens_per_s,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StackFit:
    """A fitted stack and its points."""

    stack: Stack
    points: tuple[ServedPoint, ...]

    def text(self) -> str:
        """Return factors, likely ranges, and each point before and after the fit."""
        lines = [statement(self.stack)]
        for name, scale in (("TPOT", self.stack.tpot), ("TTFT", self.stack.ttft)):
            if scale is not None:
                lines.append(f"{name}: factor {scale.factor:.3g}, likely {scale.low:.2f} to {scale.high:.2f} x")
        rows: list[tuple[str, ...]] = [("row", "", "measured", "before", "after")]
        for each in self._rows():
            figures = [f"{each[key]:.4g}" for key in ("measured", "before", "after")]
            rows.append((str(each["row"]), str(each["column"]), *figures))
        return "\n".join([*lines, "", *aligned(rows, 2)])

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for point in self.points:
            before, after = point.compared(point.answer), point.compared(calibrated(point.answer, self.stack))
            for column, (measured, predicted) in before.items():
                facts = {"row": point.row, "column": column, "measured": measured}
                rows.append({**facts, "before": predicted, "after": after[column][1]})
        return rows

    def to_json(self) -> dict[str, object]:
        """Return stack and points as plain data."""
        return {"stack": self.stack.model_dump(), "points": self._rows()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stack to a file for ``trine infer --stack FILE``."""
        write_text(path, dump_yaml(self.stack.model_dump()))


@named_arguments
def calibrate_serving(rows: str | os.PathLike[str]) -> StackFit:
    """Fit a stack to the measured points of a CSV file.

    Each row is a server under a steady load, with the columns ``model``, ``cluster``, ``engine``, ``isl``, ``osl``,
    ``concurrency`` or ``batch``, and at least one of ``tpot_ms``, ``ttft_ms`` and ``tokens_per_s`` (output tokens, all
    GPUs). All rows are of one model, GPU, engine and precision.

    Raises InputError in one line: a missing or unknown column, a cell that is no number, rows of several stacks.
    """
    path = Path(rows)
    points = [_point(number, row, path) for number, row in _read(path)]
    names = [names_of(point.answer) for point in points]
    for point, own in zip(points, names, strict=True):
        for field, value in own.items():
            if value != names[0][field]:
                message = f"{value} differs from {names[0][field]} in the first row: calibrate one stack at a time"
                raise SpecError(message, file=path, field=f"row {point.row}, {field}")
    known, power = spreads(), serving_ranges().assumed_power if is_foreign(names[0]["gpu"]) else 1.0
    tpot = _scale("tpot", points, known.tpot.widened(power))
    ttft = _scale("ttft", points, known.ttft.widened(power))
    if tpot is None and ttft is None:
        raise SpecError("no row has a measured value that its answer predicts", file=path, field=TPOT)
    return StackFit(Stack(**names[0], points=len(points), tpot=tpot, ttft=ttft, source=path.name), tuple(points))


def _scale(name: str, points: list[ServedPoint], spread: StackSpread) -> StackScale | None:
    ratios = [ratio for point in points if (ratio := point.ratios().get(name)) is not None]
    return fit_scale(ratios, spread) if ratios else None


def _read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a file with their line numbers, without empty cells."""
    reader = csv.DictReader(io.StringIO(read_text(path, max_bytes=_MAX_BYTES)), strict=True)
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        cells = list(reader)
    except csv.Error as error:
        raise SpecError(f"is no CSV file: {error}", file=path) from None
    for name in columns:
        if name not in _COLUMNS:
            raise SpecError(f"unknown column {name[:40]!r}{nearest(name, _COLUMNS)}", file=path)
    for name in REQUIRED:
        if name not in columns:
            raise SpecError(f"column {name!r} is missing", file=path)
    for group in (("concurrency", "batch"), MEASURED):
        if not any(name in columns for name in group):
            words = " or ".join(repr(name) for name in group)
            raise SpecError(f"column {words} is missing", file=path)
    if not 0 < len(cells) <= MAX_POINTS:
        raise SpecError(f"has {len(cells):,} rows, and a stack takes 1 to {MAX_POINTS:,}", file=path)
    return [(number, _filled(row, number, path)) for number, row in enumerate(cells, 2)]


def _filled(row: Mapping[str, Any], number: int, path: Path) -> dict[str, str]:
    """Return the cells of a row that are not empty. Raises SpecError for a cell beyond the columns."""
    if None in row:
        raise SpecError("has more cells than columns", file=path, field=f"row {number}")
    return {name: text.strip() for name, text in row.items() if text is not None and text.strip()}


def _point(number: int, row: dict[str, str], path: Path) -> ServedPoint:
    """Return a row with its blind answer."""
    for name in REQUIRED:
        if name not in row:
            raise SpecError("is empty", file=path, field=f"row {number}, {name}")
    settings: dict[str, Any] = {name: row[name] for name in _NAMES[2:] if name in row}
    for name, argument in (*_WHOLE.items(), *_SHARES.items()):
        if name in row:
            value = whole_number(row[name]) if name in _WHOLE else finite_number(row[name])
            if value is None:
                raise SpecError(f"takes a number, got {row[name][:40]!r}", file=path, field=f"row {number}, {name}")
            settings[argument] = value
    measured = {name: _measured(row[name], number, name, path) for name in MEASURED if name in row}
    if not measured:
        raise SpecError(f"needs one of {', '.join(MEASURED)}", file=path, field=f"row {number}")
    try:
        answer = infer(row["model"], row["cluster"], **settings)
    except InputError as error:
        raise SpecError(str(error), file=path, field=f"row {number}") from None
    point = ServedPoint(number, answer, measured)
    _check_ratios(point, path)
    return point


def _check_ratios(point: ServedPoint, path: Path) -> None:
    """Raise SpecError for a measured value that no server is as far from."""
    for name, (measured, predicted) in point.compared(point.answer).items():
        if not 1 / MAX_RATIO < measured / predicted < MAX_RATIO:
            distance = f"more than {MAX_RATIO:.0f} times from the predicted {predicted:.3g}"
            raise SpecError(
                f"{measured:.6g} is {distance}: check its unit", file=path, field=f"row {point.row}, {name}"
            )


def _measured(text: str, number: int, name: str, path: Path) -> float:
    value = finite_number(text)
    if value is None or value <= 0:
        raise SpecError(f"takes a number above 0, got {text[:40]!r}", file=path, field=f"row {number}, {name}")
    return value
