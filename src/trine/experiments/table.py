"""The results of an experiment as one table in the order of the points: rows, or Parquet in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trine.common.outputs import open_output
from trine.errors import InputError, nearest
from trine.experiments.journal import Entry, is_current, journals, lines, parse_line
from trine.experiments.run import point_of
from trine.experiments.spec import ExperimentSpec
from trine.results.frames import Row, pyarrow

PARQUET_FILE = "points.parquet"
#: Rows that are in memory at a time.
GROUP_ROWS = 20_000
#: Columns of every row, before the fields and the results.
Types = dict[str, set[type]]
FIRST_COLUMNS = ("point", "key", "status", "reason")


class LineIndex(NamedTuple):
    """Place of each point's line: journal number, offset and length, sorted by point.

    points, files, offsets: int64[num_points]; paths: the journals.
    """

    points: Any
    files: Any
    offsets: Any
    paths: list[Path]


def index_lines(directory: Path, spec: ExperimentSpec) -> LineIndex:
    """Return the place of each answered point; of a point that was in flight twice, one of its equal lines."""
    paths = [path for path in journals(directory) if is_current(path, spec)]
    places: list[Any] = [np.empty((0, 3), np.int64)]
    for number, path in enumerate(paths):
        found = [(point_of(line), number, offset) for offset, line in lines(path)]
        places.append(np.array(found, np.int64).reshape(-1, 3))
    table = np.concatenate(places)
    points, first = np.unique(table[:, 0], return_index=True)
    return LineIndex(points, table[first, 1], table[first, 2], paths)


def entries(index: LineIndex, start: int = 0, stop: int | None = None) -> list[Entry]:
    """Return the entries of the points at positions ``start`` to ``stop``, in the order of the points."""
    files, offsets = index.files[start:stop], index.offsets[start:stop]
    found: list[Any] = [None] * len(files)
    order = np.lexsort((offsets, files))
    for number in np.unique(files).tolist():
        with index.paths[number].open("rb") as file:
            for position in order[files[order] == number].tolist():
                file.seek(int(offsets[position]))
                found[position] = parse_line(file.readline(), index.paths[number])
    return found


def row_of(entry: Entry) -> Row:
    """Return the entry as a flat row: point, key, status, reason, its fields, then its results without these names."""
    row: Row = {"point": entry["point"], "key": entry["key"], "status": entry["status"], "reason": entry.get("reason")}
    row |= entry["fields"]
    for name, value in (entry.get("result") or {}).items():
        row.setdefault(name, value)
    return row


def read_rows(directory: Path, spec: ExperimentSpec, most: int | None = None) -> list[Row]:
    """Return the rows of the first ``most`` answered points, by default of all; all rows have the same columns."""
    rows = [row_of(entry) for entry in entries(index_lines(directory, spec), 0, most)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def compact(directory: Path, spec: ExperimentSpec) -> Path:
    """Write all results to ``points.parquet`` in the directory, and return its path.

    Equal results give equal files, however many workers and journals there were. Raises MissingExtraError without
    pyarrow, InputError for an experiment without results.
    """
    pa, pq = pyarrow()
    index = index_lines(directory, spec)
    if not len(index.points):
        raise InputError("has no results yet", file=directory)
    path = directory / PARQUET_FILE
    types = _types([next(_groups(index))])
    try:
        _write(path, index, types, pa, pq)
    except _OtherTypesError:  # rare: later points have other results than the first ones
        _write(path, index, _types(_groups(index)), pa, pq)
    return path


class _OtherTypesError(Exception):
    """A row with a column or a type that the schema does not have."""


def _write(path: Path, index: LineIndex, types: Types, pa: Any, pq: Any) -> None:
    kinds = {name: _arrow_type(found - {type(None)}, pa) for name, found in types.items()}
    schema = pa.schema(list(kinds.items()))
    with open_output(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for columns in _groups(index):
            if any(not found <= types.get(name, set()) for name, found in _types([columns]).items()):
                raise _OtherTypesError
            size = len(columns["point"])
            arrays = [_array(columns.get(name, [None] * size), kind, pa) for name, kind in kinds.items()]
            writer.write_table(pa.table(arrays, schema=schema))


def _groups(index: LineIndex) -> Iterator[dict[str, list[object]]]:
    """Yield the columns of GROUP_ROWS points at a time; a column has None for points without it."""
    for start in range(0, len(index.points), GROUP_ROWS):
        rows = [row_of(entry) for entry in entries(index, start, start + GROUP_ROWS)]
        yield {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}


def _types(groups: Iterable[dict[str, list[object]]]) -> Types:
    """Return the types of the values in each column."""
    types: Types = {name: {type(None)} for name in FIRST_COLUMNS}
    for columns in groups:
        for name, values in columns.items():
            types.setdefault(name, {type(None)}).update(map(type, values))
    return types


def _arrow_type(kinds: set[type], pa: Any) -> Any:
    """Return a type that holds every value of a column: text if the values have different types."""
    single = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    if len(kinds) == 1:
        return single.get(next(iter(kinds)), pa.string())
    return pa.float64() if kinds == {int, float} else pa.string()


def _array(values: list[object], kind: Any, pa: Any) -> Any:
    if kind == pa.string():
        values = [None if value is None else str(value) for value in values]
    return pa.array(values, kind)


def column_named(name: str, columns: Iterable[str]) -> str:
    """Return the column of this name, or the only column that ends in ``.name``.

    Raises InputError with the nearest name.
    """
    known = list(columns)
    wanted = name.replace("-", "_")
    if wanted in known:
        return wanted
    ending = [column for column in known if column.endswith(f".{wanted}")]
    plain = wanted.rpartition(".")[2]
    if len(ending) == 1:
        return ending[0]
    if plain in known:
        return plain
    raise InputError(f"no column {name!r:.80}{nearest(name, known)}")
