"""Shared parts of all comparisons with measurements: tables of rows, groups, errors, unpredicted rows, pages."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from trine.common.inputs import is_file, read_bytes, read_text
from trine.common.outputs import drop_link, write_text
from trine.errors import TrineError
from trine.results import frames
from trine.results.columns import column, to_row
from trine.results.report import Report, Row, Table
from trine.results.stored import Origin, blocks, hash_inputs
from trine.results.text import aligned

#: Predictions of all rows of a stored report, which :func:`load_stored_training` and others put beside the rows again.
FOLDER = Path(__file__).parent / "stored"


@cache
def hash_sources() -> str:
    """Return SHA-256 of all that a prediction depends on: trine's data and code, and the code of this folder."""
    digest = hashlib.sha256(hash_inputs().encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read_stored(name: str) -> tuple[Origin, dict[str, Any]]:
    """Return the origin and the predictions of a report: ``training``, ``layouts``, ``memory`` or ``serving``."""
    content = json.loads(gzip.decompress(read_bytes(FOLDER / f"{name}.json.gz")))
    made = content.pop("made")
    is_current = made["hash"] == hash_sources()
    return Origin(version=made["version"], hash=made["hash"], cpu_s=made["cpu_s"], is_current=is_current), content


class ReplayProgress:
    """Milliseconds of CPU time of finished rows and of all rows, as stored with each row.

    A row without a stored time counts as the mean row.
    """

    def __init__(self, report: str, rows: Iterable[str], progress: Callable[[int, int], None] | None) -> None:
        self._costs_ms = _row_costs(report)
        self._mean_ms = max(1, sum(self._costs_ms.values()) // max(1, len(self._costs_ms)))
        self._done_ms, self._total_ms, self._progress = 0, sum(map(self._cost_ms, rows)), progress

    def __call__(self, row: str) -> None:
        """Count a row as done."""
        self._done_ms = min(self._done_ms + self._cost_ms(row), self._total_ms)
        if self._progress is not None:
            self._progress(self._done_ms, self._total_ms)

    def _cost_ms(self, row: str) -> int:
        return self._costs_ms.get(row, self._mean_ms)


def _row_costs(report: str) -> dict[str, int]:
    """Return milliseconds of CPU time by row; empty without a stored report."""
    if not (FOLDER / f"{report}.json.gz").is_file():
        return {}
    rows = read_stored(report)[1]["rows"]
    return {row["row"]: 1 + round(1000 * row["cpu_s"]) for row in rows}


Item = TypeVar("Item")
Read = TypeVar("Read")
Key = TypeVar("Key", bound=Hashable)
Pictures = Mapping[str, Callable[[Path], None]]

# -- rows --------------------------------------------------------------------------------------------------------------

#: Exceptions of a faulty row.
ROW_ERRORS = (TrineError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadRow:
    """A row of a table without a prediction, and why."""

    source: str
    name: str
    why: str


def why_unread(error: Exception) -> str:
    """Return why a row cannot be read."""
    if isinstance(error, TrineError):
        return str(error)
    return f"no column {error}" if isinstance(error, KeyError) else f"not a row of this table: {error}"


_GZIP = b"\x1f\x8b"


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or of the same with ``.gz``, by column; lines that begin with # are comments."""
    data = read_bytes(path if is_file(path) else path.with_name(f"{path.name}.gz"))
    text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode()
    lines = (line for line in io.StringIO(text, newline="") if not line.startswith("#"))
    rows = []
    for row in csv.DictReader(lines):
        rows.append({name: cell or "" for name, cell in row.items() if name})
    return rows


def read_each(
    rows: Iterable[Item], read: Callable[[Item], Read | None], name: Callable[[Item], tuple[str, str]]
) -> tuple[tuple[Read, ...], tuple[UnreadRow, ...]]:
    """Return the results of ``read`` that are not None, and the rows that it cannot read.

    read: returns None for a row on another subject. name: returns source and name of a row.
    """
    results, unread = [], []
    for row in rows:
        try:
            results.append(read(row))
        except ROW_ERRORS as error:
            source, row_name = name(row)
            unread.append(UnreadRow(source=source, name=row_name, why=why_unread(error)))
    return tuple(result for result in results if result is not None), tuple(unread)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key; keys and items in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# -- errors ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Statistics of signed errors, as parts of one.

    bias: mean of the signed error. mean, median, p90, worst: of its size. within: part of them of at most 10 %.
    """

    count: int
    bias: float
    mean: float = field(metadata=column("mean_error"))
    median: float = field(metadata=column("median_error"))
    p90: float = field(metadata=column("p90_error"))
    worst: float = field(default=0.0, metadata=column("worst_error"))
    within: float = field(default=0.0, metadata=column("share_within_10_percent"))

    @classmethod
    def of(cls, errors: npt.ArrayLike, weights: npt.ArrayLike | None = None, **extra: Any) -> Self:
        """Return weighted statistics of at least one error; quantiles are values of the list. extra: other fields."""
        signed = np.asarray(errors)
        size, weight = np.abs(signed), np.ones(len(signed)) if weights is None else np.asarray(weights)
        weight = weight / weight.sum()
        statistics: dict[str, Any] = {
            "count": len(signed), "bias": float(signed @ weight), "mean": float(size @ weight),
            "median": quantile(size, weight, 0.5), "p90": quantile(size, weight, 0.9), "worst": float(size.max()),
            "within": float(weight[size <= 0.1].sum()),
        }  # fmt: skip
        return cls(**{**statistics, **extra})

    @classmethod
    def interpolated(cls, errors: npt.ArrayLike, **extra: Any) -> Self:
        """Return :meth:`of` for equal weights, with quantiles interpolated between neighbours, as in numpy."""
        signed = np.asarray(errors)
        size = np.abs(signed)
        means: dict[str, Any] = {"bias": float(signed.mean()), "mean": float(size.mean())}
        middle: dict[str, Any] = {"median": float(np.median(size)), "p90": float(np.quantile(size, 0.9))}
        return cls.of(errors, **means, **middle, **extra)

    @classmethod
    def of_some(cls, errors: Sequence[float], weights: Sequence[float] | None = None) -> Self | None:
        """Return :meth:`of`, or None without errors."""
        return cls.of(errors, weights) if errors else None

    def row(self) -> Row:
        """Return the errors as plain data."""
        errors = to_row(self, "bias", "mean_error", "median_error", "p90_error", "share_within_10_percent")
        return {"num_rows": self.count, **errors}


class Target(NamedTuple):
    """Upper limits of absolute errors and of the bias's size, as fractions; None: no limit."""

    median: float | None = None
    mean: float | None = None
    p90: float | None = None
    bias: float | None = None

    def limits(self, name: str) -> Row:
        """Return the limits that are set, by ``name`` with the statistic's in place of ``{}``."""
        return {name.format(each): limit for each, limit in self._asdict().items() if limit is not None}

    def met(self, errors: Errors) -> bool | None:
        """Return whether the errors are within the limits; None without limits."""
        checks = [abs(getattr(errors, name)) <= limit for name, limit in self._asdict().items() if limit is not None]
        return all(checks) if checks else None


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return the smallest value that, with all below it, has at least ``share`` of the weights."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1] * (1 - 1e-9))])


def errors_by(items: Iterable[Item], key: Callable[[Item], Key], error: Callable[[Item], float]) -> dict[Key, Errors]:
    """Return the errors of each group of items, groups in the order of their first item."""
    errors = {}
    for name, members in grouped(items, key).items():
        errors[name] = Errors.of([error(item) for item in members])
    return errors


#: Heads of the columns that :func:`cells` fills.
HEAD = ("rows", "bias", "mean", "median", "p90", "<=10%")


def cells(errors: Errors) -> tuple[str, ...]:
    """Return a table's cells for some errors."""
    return (
        f"{errors.count}", f"{errors.bias:+.1%}", f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.p90:.1%}",
        f"{errors.within:.0%}",
    )  # fmt: skip


def error_lines(title: str, errors: Iterable[tuple[str, Errors]], least: int) -> list[str]:
    """Return a table with a line for each group of errors; its first column is at least ``least`` wide."""
    return aligned([(title, *HEAD), *((name, *cells(each)) for name, each in errors)], least)


def named_rows(name: str, errors: Iterable[tuple[str, Errors]]) -> list[Row]:
    """Return the errors of groups as plain data; ``name``: key of a group's name."""
    return [{name: group, **each.row()} for group, each in errors]


# -- reports -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class Validation(Report):
    """Predictions and measurements, row by row.

    unread: rows without a prediction. is_sample: of some rows of each source only. finished: False: stopped before the
    last row. stored: the origin of a stored report; None after a replay.
    """

    unread: tuple[UnreadRow, ...] = ()
    is_sample: bool = False
    finished: bool = True
    stored: Origin | None = None

    @property
    def origin(self) -> str:
        """The line that introduces a stored report, empty after a replay."""
        return self.stored.line if self.stored is not None else ""

    def paragraphs(self) -> Iterable[str | Sequence[str]]:
        """Return the paragraphs of the details below the headline."""
        return ()

    def details(self) -> str:
        """Return the origin of a stored report, the headline, and all paragraphs."""
        return blocks(self.origin, self.headline, *self.paragraphs())

    @property
    def unpredicted(self) -> tuple[UnreadRow, ...]:
        """All rows without a prediction: those that cannot be read, and those that cannot be modelled."""
        return self.unread

    def replayed(self) -> Row:
        """Return the origin of a stored report, and whether it is a sample, as plain data."""
        return {"stored": self.stored and asdict(self.stored), "is_sample": self.is_sample}

    def not_predicted(self) -> list[Row]:
        """Return the rows without a prediction, as plain data."""
        return [{"row": row.name, "why": row.why} for row in self.unpredicted]

    def not_predicted_lines(self) -> list[str]:
        """Return :meth:`not_predicted` as lines of text, with the source of each row."""
        return [f"not predicted: {row.source}, {row.name}: {row.why}" for row in self.unpredicted]


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def page_text(name: str, **parts: object) -> str:
    """Return a page of pages/ with its parts, tables and numbers, in place."""
    return read_text(Path(__file__).parent / "pages" / name).format(**parts)


def write_with_pictures(
    folder: str | Path, name: str, text: str, pictures: Pictures, tables: Mapping[str, Table]
) -> list[Path]:
    """Write a page, its pictures (each by its function) and its CSV tables; needs the extra ``plot``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for each in (name, *pictures, *tables):
        drop_link(folder / each)
    for picture, draw in pictures.items():
        draw(folder / picture)
    for table, rows in tables.items():
        if isinstance(rows, list):
            rows = [_rounded(row) for row in rows]
        frames.to_csv({table: rows}, folder / table)
    write_text(folder / name, text)  # last, because it links to the others
    return [folder / each for each in (name, *pictures, *tables)]


def _rounded(row: Row) -> Row:
    """Return a row with numbers of 6 significant digits, and lists as sentences."""
    texts = {name: "; ".join(value) for name, value in row.items() if isinstance(value, list)}
    return row | texts | {name: float(f"{value:.6g}") for name, value in row.items() if isinstance(value, float)}
