"""The results of an experiment as one table in the order of the points: rows, or Parquet in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trine.common.outputs import open_output
from trine.errors import InputError, nearest
from trine.experiments.journal import Entry, Line, read_lines
from trine.experiments.spec import ExperimentSpec
from trine.results.frames import pyarrow
from trine.results.rows import Row

PARQUET_FILE = "points.parquet"
#: Rows that are in memory at a time.
GROUP_ROWS = 20_000
#: Columns of every row, before the fields and the results.
FIRST_COLUMNS = ("point", "key", "status", "reason")
#: Column -> types of its values.
Types = dict[str, set[type]]


class LineIndex(NamedTuple):
    """Place of each point's line: journal number and offset, int64[num_points] sorted by point; paths: the journals."""

    points: Any
    files: Any
    offsets: Any
    paths: list[Path]


def index_lines(directory: Path, spec: ExperimentSpec) -> LineIndex:
    """Return the place of each answered point; of a point that was in flight twice, one of its equal lines."""
    numbers: dict[Path, int] = {}
    found = (
        value
        for line in read_lines(directory, spec)
        for value in (line.point, numbers.setdefault(line.path, len(numbers)), line.offset)
    )
    table = np.fromiter(found, np.int64).reshape(-1, 3)
    points, first = np.unique(table[:, 0], return_index=True)
    return LineIndex(points, table[first, 1], table[first, 2], list(numbers))


def _entries(index: LineIndex, start: int, stop: int | None) -> list[Entry]:
    """Return the entries of the points at positions ``start`` to ``stop``, in the order of the points."""
    files, offsets = index.files[start:stop], index.offsets[start:stop]
    points = index.points[start:stop].tolist()
    found: list[Any] = [None] * len(files)
    order = np.lexsort((offsets, files))
    for number in np.unique(files).tolist():
        path = index.paths[number]
        with path.open("rb") as file:
            for position in order[files[order] == number].tolist():
                file.seek(int(offsets[position]))
                found[position] = Line(path, 0, file.readline(), 0, points[position]).entry()
    return found


def _row(entry: Entry) -> Row:
    """Return the entry as a flat row: point, key, status, reason, its fields, then its results without these names."""
    first = {name: entry.get(name) for name in FIRST_COLUMNS} | entry["fields"]
    row: Row = first | (entry.get("result") or {}) | first
    return row


def read_rows(directory: Path, spec: ExperimentSpec, most: int | None = None) -> list[Row]:
    """Return the rows of the first ``most`` answered points, by default of all; all rows have the same columns."""
    rows = [_row(entry) for entry in _entries(index_lines(directory, spec), 0, most)]
    names = dict.fromkeys(chain.from_iterable(rows))
    filled = []
    for row in rows:
        filled.append({name: row.get(name) for name in names})
    return filled


def compact(directory: Path, spec: ExperimentSpec) -> Path:
    """Write all results to ``points.parquet`` in the directory, and return its path.

    Equal results give equal files, however many workers and journals there were. Raises MissingExtraError without
    pyarrow, InputError for an experiment without results.
    """
    pa, pq = pyarrow()
    index, path = index_lines(directory, spec), directory / PARQUET_FILE
    if not len(index.files):
        raise InputError("has no results yet", file=directory)
    types: Types = {name: set() for name in FIRST_COLUMNS}
    _add_types(types, next(_groups(index)))
    while not _is_written(path, index, types, pa, pq):
        pass  # rare: later points have other columns or types than the first ones, which ``types`` has now
    return path


def _is_written(path: Path, index: LineIndex, types: Types, pa: Any, pq: Any) -> bool:
    """Write the table, and add the types of all rows to ``types``; return False if they did not fit the columns."""
    kinds = {name: _arrow_type(found, pa) for name, found in types.items()}
    schema = pa.schema(list(kinds.items()))
    with open_output(path, follow=False) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for columns in _groups(index):
            _add_types(types, columns)
            if kinds == {name: _arrow_type(found, pa) for name, found in types.items()}:
                none: list[object] = [None] * len(columns["point"])
                arrays = [_array(columns.get(name, none), kind, pa) for name, kind in kinds.items()]
                writer.write_table(pa.table(arrays, schema=schema))
    return kinds == {name: _arrow_type(found, pa) for name, found in types.items()}


def _groups(index: LineIndex) -> Iterator[dict[str, list[object]]]:
    """Yield the columns of GROUP_ROWS points at a time; a column has None for points without it."""
    for start in range(0, len(index.files), GROUP_ROWS):
        rows = [_row(entry) for entry in _entries(index, start, start + GROUP_ROWS)]
        columns = {}
        for name in dict.fromkeys(chain.from_iterable(rows)):
            columns[name] = [row.get(name) for row in rows]
        yield columns


def _add_types(types: Types, columns: dict[str, list[object]]) -> None:
    for name, values in columns.items():
        types.setdefault(name, set()).update(set(map(type, values)) - {type(None)})


def _arrow_type(kinds: set[type], pa: Any) -> Any:
    """Return a type that holds every value of a column: text if the values have different types."""
    if kinds == {int, float}:
        return pa.float64()
    single = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return single.get(next(iter(kinds)), pa.string()) if len(kinds) == 1 else pa.string()


def _array(values: list[object], kind: Any, pa: Any) -> Any:
    if kind != pa.string():
        return pa.array(values, kind)
    texts = []
    for value in values:
        texts.append(None if value is None else str(value))
    return pa.array(texts, kind)


def column_named(name: str, columns: Iterable[str]) -> str:
    """Return the column of this name, or the only column that ends in ``.name``.

    Raises InputError with the nearest name.
    """
    known, wanted = list(columns), name.replace("-", "_")
    ending = [column for column in known if column.endswith(f".{wanted}")]
    for column in (wanted, *(ending if len(ending) == 1 else []), wanted.rpartition(".")[2]):
        if column in known:
            return column
    raise InputError(f"no column {name!r:.80}{nearest(name, known)}")
