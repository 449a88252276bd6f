"""An experiment's directory: its specification, progress and results."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trine.errors import InputError, one_line
from trine.experiments.journal import FAILED, read_lines, repair
from trine.experiments.locks import locked
from trine.experiments.picture import DrawnPoint, draw_points
from trine.experiments.spec import ExperimentSpec, Shard, stored_spec
from trine.experiments.table import PARQUET_FILE, column_named, compact, read_rows
from trine.results.document import SEPARATOR
from trine.results.frames import pyarrow
from trine.results.memory import DOES_NOT_FIT
from trine.results.report import Report, Row, Table
from trine.results.text import MAX_LINES, columns, first_screen, wrapped

if TYPE_CHECKING:
    import pandas

#: Most rows in text and JSON; Parquet and data frames have all of them.
MAX_ROWS = 10_000
#: Results to show first, by command; other commands show their first numbers.
MAIN_RESULTS = {
    "train": ("step_time_s", "step_time_low_s", "step_time_high_s", "memory_verdict", "tokens_per_s", "mfu"),
    "collective": ("time_us", "low_us", "high_us", "busbw_GBps", "algorithm", "protocol"),
    "size": ("cluster", "gpus", "run_expected_days", "run_expected_days_low", "run_expected_days_high", "usd"),
}  # fmt: skip
_MAX_RESULTS = 4
#: Letters of a warning on the screen.
_MAX_LETTERS = 170
#: Column with the verdict on a point's memory.
VERDICT = "memory_verdict"


@dataclass(frozen=True, eq=False, repr=False)
class Experiment(Report):
    """The results of an experiment; :func:`trine.sweep` runs it. ``Experiment(directory)`` opens an existing one.

    is_kept: whether the directory outlives the answer.

    Raises InputError if the directory holds no experiment.
    """

    SCHEMA: ClassVar[str] = "experiment"
    directory: str | os.PathLike[str]
    is_kept: bool = True

    def __post_init__(self) -> None:
        _ = self.spec

    @property
    def folder(self) -> Path:
        """The directory as a path."""
        return Path(self.directory)

    @cached_property
    def spec(self) -> ExperimentSpec:
        """The resolved specification."""
        return stored_spec(self.folder)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Answered points, and failed points among them."""
        lines = read_lines(self.folder, self.spec)
        found = np.fromiter((value for line in lines for value in (line.point, FAILED in line.text)), np.int64)
        _, first = np.unique(found[::2], return_index=True)  # a copied journal, or two drivers, repeat points
        return len(first), int(found[1::2][first].sum())

    @cached_property
    def rows(self) -> list[Row]:
        """One row for each of the first MAX_ROWS answered points, in the order of the points."""
        return read_rows(self.folder, self.spec, MAX_ROWS)

    @property
    def left(self) -> int:
        """Points without an answer."""
        return max(0, self.spec.size - self.counts[0])

    @property
    def headline(self) -> str:
        """The question and the number of points, answered and failed."""
        answered, failed = self.counts
        words = f"{answered - failed:,} of {self.spec.size:,} points answered"
        words += f", {failed:,} failed" if failed else ""
        words += f", {self.left:,} left" if self.left else ""
        return f"{self.spec.command} by {' x '.join(self.spec.vary) or 'no field'}: {words}"

    @property
    def shown(self) -> list[str]:
        """Columns of the readable table: varied fields, and the main results or numbers that differ, times first."""
        good = [row for row in self.rows if row["status"] == "done"]
        columns = self.rows[0] if self.rows else ()
        values = {name: [row[name] for row in good] for name in columns}
        fields = [name for name in self.spec.vary if values.pop(name, None) is not None]
        main_names = [name for name in MAIN_RESULTS.get(self.spec.command, ()) if name in values]
        if main := main_names:
            return fields + main
        names = [name for name, column in values.items() if name != "point" and any(map(_is_number, column))]
        names = [name for name in names if len(set(map(str, values[name]))) > 1] or names
        return fields + sorted(names, key=lambda name: not name.endswith(("_s", "_us", "_ps")))[:_MAX_RESULTS]

    def summary(self) -> str:
        """Return the table, or its beginning, on one screen."""
        return first_screen(self._text(MAX_LINES))

    def details(self) -> str:
        """Return the table with all answered points."""
        return self._text(None)

    def _text(self, most: int | None) -> str:
        reasons = [line for reason, count in self.reasons()[:3] for line in wrapped(f"{count:,} failed", reason)]
        for text, count in self.warnings()[: None if most is None else 2]:
            shown_text = text if most is None else one_line(text, _MAX_LETTERS)
            reasons += wrapped("warning", f"{shown_text} ({_points(count)})")
        following = ["", *wrapped("next", self._next())]
        head = [*wrapped(self.spec.command, self.headline.partition(": ")[2]), ""]
        space = None if most is None else most - len(head) - len(reasons) - len(following) - 3
        good, shown = [row for row in self.rows if row["status"] == "done"][:space], self.shown
        table = [tuple(shown), *(tuple(_cell(row[name]) for name in shown) for row in good)]
        lines = columns(table, range(len(shown) - 1, len(self.spec.vary), -1)) if good else []
        if (more := self.counts[0] - self.counts[1] - len(good)) > 0:
            lines.append(f"... {more:,} more rows: --details, or --parquet DIR")
        return "\n".join([*head, *lines, *(["", *reasons] if reasons else []), *following])

    def _next(self) -> str:
        if not self.is_kept:
            return "--experiment DIR keeps the points (trine plot DIR x=... y=...); --parquet DIR; trine help sweeps"
        where = os.fspath(self.directory)
        if self.left:
            return f"trine sweep {where} goes on with the {self.left:,} points left"
        y = next((name for name in self.shown if name not in self.spec.vary), "y")
        return f"trine plot {where} x={next(iter(self.spec.vary), 'point')} y={y}"

    def reasons(self) -> list[tuple[str, int]]:
        """Return the reasons of failed points and their counts, the most frequent first."""
        return Counter(str(row["reason"]) for row in self.rows if row["status"] == "failed").most_common()

    def warnings(self) -> list[tuple[str, int]]:
        """Return the warnings of answered points and the number of points with each, the most frequent first."""
        texts = (str(row["point_warnings"]).split(SEPARATOR) for row in self.rows if row.get("point_warnings"))
        return Counter(chain.from_iterable(texts)).most_common()

    @cached_property
    def num_unfit(self) -> int:
        """Number of answered points whose job does not fit in memory; pictures draw them hollow."""
        return sum(row["status"] == "done" and not _fits(row) for row in self.rows)

    def document(self) -> Row:
        """Return the experiment's keys, with up to MAX_ROWS rows."""
        reasons = [{"reason": reason, "points": count} for reason, count in self.reasons()]
        warnings = [{"warning": text, "points": count} for text, count in self.warnings()]
        return {
            "experiment": self.spec.id, "question": self.spec.command, "fields": list(self.spec.vary),
            **self.progress(),
            "reasons": reasons,
            "warnings": warnings,
            "rows": self.rows, "rows_left_out": max(0, self.counts[0] - len(self.rows)),
        }  # fmt: skip

    def progress(self) -> Row:
        """Return the counts of points without reading the results: points, done, failed, left."""
        answered, failed = self.counts
        return {"points": self.spec.size, "done": answered - failed, "failed": failed, "left": self.left}

    def tables(self) -> dict[str, Table]:
        """Return one table: the rows of all answered points."""
        return {"points": read_rows(self.folder, self.spec)}

    def compact(self) -> Path:
        """Write all results to ``points.parquet`` in the directory, in bounded memory; return its path."""
        return compact(self.folder, self.spec)

    def repair(self) -> list[Path]:
        """Set damaged lines and foreign files of the journals aside, and return the new names of these files.

        The next run answers the missing points. Raises InputError if a process is answering points of it.
        """
        with locked(self.folder, self.spec, Shard()):
            return repair(self.folder, self.spec)

    def to_frame(self, table: str | None = None) -> pandas.DataFrame:
        """Return one row per answered point as a pandas data frame, from the Parquet file if it has all points."""
        stored = self._stored() if table is None else None
        return super().to_frame(table) if stored is None else stored.to_pandas()

    def _stored(self, names: list[str] | None = None) -> Any:
        """Return columns of ``points.parquet`` as an Arrow table; None if it has not every answered point."""
        path = self.folder / PARQUET_FILE
        if not path.is_file() or pyarrow()[1].read_metadata(path).num_rows != self.counts[0]:
            return None
        return pyarrow()[1].read_table(path, columns=names)

    def pictures(self) -> dict[str, Any]:
        """Return one picture: a result against a field; its options are x, y and color."""
        return {"points": self._draw}

    def _draw(self, x: str, y: str, color: str | None = None) -> Any:
        """Return a figure with ``y`` against ``x``: all points, and a line through the best per value of ``color``.

        Points whose job does not fit in memory are hollow, and on no line.

        Raises InputError: an unknown column, or no point has a number in ``y``.
        """
        known = self.rows[0] if self.rows else {}
        third = [] if color is None else [color]
        names = [column_named(name, known) for name in (x, y, *third)]
        extra = [VERDICT] if VERDICT in known else []
        stored = self._stored([*dict.fromkeys([*names, "status", *extra])])
        found: list[Any] = read_rows(self.folder, self.spec) if stored is None else stored.to_pylist()
        points = []
        for row in found:
            if row["status"] == "done" and row[names[0]] is not None and _is_number(row[names[1]]):
                group = None if color is None else row[names[2]]
                points.append(DrawnPoint(row[names[0]], row[names[1]], group, _fits(row)))
        if not points:
            raise InputError("no point has a number", field=names[1])
        return draw_points(self.spec, names, points)


def _fits(row: Row) -> bool:
    return row.get(VERDICT) != DOES_NOT_FIT


def _points(count: int) -> str:
    return f"{count:,} point{'' if count == 1 else 's'}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)
