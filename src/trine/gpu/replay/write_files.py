"""Files of writes: CSV, JSON and Parquet (docs/formats/peer-writes.md).

Columns are whole numbers: the header or each value has the unit.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.inputs import read_text
from trine.common.outputs import open_output, write_csv, write_text
from trine.common.units import MAX_INT64, parse_bytes, parse_time, whole_number
from trine.errors import InputError, SpecError, UnitError, nearest
from trine.gpu.replay.tables import pyarrow, read_table
from trine.gpu.replay.writes import MAX_WRITES, MEMORY, WriteTable

#: A column of a file: texts and numbers, or an array of whole numbers.
Cells = Sequence[object] | npt.NDArray[Any]

COLUMNS = ("peer", "address", "bytes", "value", "time")
#: Maximum distinct texts of a column that are cached.
MAX_KNOWN = 10**6
_UNIT = re.compile(r"\s*([A-Za-z]+)(?:_([A-Za-zµμ]+)|\s*[(\[]\s*([A-Za-zµμ]+)\s*[)\]])?\s*")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_PARSERS: dict[str, Callable[..., int]] = {"time": parse_time, "bytes": parse_bytes}


class CellError(InputError):
    """A cell that cannot be read; ``row`` counts from 0."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def read_header(names: Iterable[object], file: str) -> dict[str, tuple[int, int | None]]:
    """Return each column's position and unit factor (ps or bytes; None if the header has no unit).

    Columns: ``peer``, ``address``, ``bytes`` (or ``bytes_KiB``, or with units in the values), ``value`` (optional) and
    ``time`` with units in the values, or ``time_us``, ``time (us)``.

    Raises InputError: an unknown, repeated or missing column, or an unknown unit.
    """
    header: dict[str, tuple[int, int | None]] = {}
    for place, text in enumerate(names):
        match = _UNIT.fullmatch(text) if isinstance(text, str) and len(text) <= 80 else None
        name = match[1] if match else str(text)[:80]
        if name not in COLUMNS:
            raise InputError(f"unknown column {name!r}{nearest(name, COLUMNS)}", file=file)
        if name in header:
            raise InputError(f"the column {name!r} is there twice", file=file)
        header[name] = place, _factor(name, (match[2] or match[3]) if match else None, file)
    missing = [name for name in COLUMNS if name not in header and name != "value"]
    if missing:
        hint = " (time_us, or time with a unit in each value)" if missing[0] == "time" else ""
        raise InputError(f"has no column {missing[0]!r}{hint}", file=file)
    return header


def _factor(name: str, unit: str | None, file: str) -> int | None:
    if unit is None:
        return None
    if name not in _PARSERS:
        raise InputError(f"has no unit, but the header says {unit!r}", file=file, field=name)
    try:
        return _PARSERS[name](f"1 {unit}")
    except UnitError as error:
        raise InputError(str(error), file=file, field=name) from None


def whole_numbers(name: str, cells: Cells, factor: int | None) -> Int64:
    """Return int64[rows]: ps, bytes, or plain numbers. Raises CellError for the first invalid cell."""
    if isinstance(cells, np.ndarray):
        return _scaled(name, cells, factor)
    if (name != "time" or factor is not None) and all(map(_is_short_number, cells)):
        return _scaled(name, np.array([int(cell) for cell in cells], np.int64), factor)  # type: ignore[call-overload]
    parsed: dict[str, int] = {}
    numbers = []
    for row, cell in enumerate(cells):
        number = parsed.get(cell) if isinstance(cell, str) else None
        if number is None:
            number = _number(name, cell, factor, row)
            if isinstance(cell, str) and len(parsed) < MAX_KNOWN:
                parsed[cell] = number
        numbers.append(number)
    return np.array(numbers, np.int64)


def _is_short_number(cell: object) -> bool:
    """Return whether the cell is just a whole number within int64, as most are."""
    if type(cell) is str:
        return len(cell) < 19 and cell.isascii() and cell.isdecimal()
    return type(cell) is int and -(10**18) < cell < 10**18


def _scaled(name: str, cells: npt.NDArray[Any], factor: int | None) -> Int64:
    if name == "time" and factor is None and cells.any():
        raise CellError("needs a unit: name the column time_us, or write '10 us'", int((cells != 0).argmax()))
    scale = factor or 1
    wrong = (cells > MAX_INT64 // scale) | (cells.astype(np.int64) < -(MAX_INT64 // scale))
    if wrong.any():
        raise CellError(f"{cells[wrong.argmax()]} is too large", int(wrong.argmax()))
    return cells.astype(np.int64) * scale


def _number(name: str, cell: object, factor: int | None, row: int) -> int:
    if isinstance(cell, str):
        cell = cell.strip()
    if (cell is None or cell == "") and name == "value":
        return 0
    if cell is None or cell == "":
        raise CellError("is missing", row)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float) or len(str(cell)) > 64:
        raise CellError(f"must be a number, got {str(cell)[:80]!r}", row)
    try:
        number = _parsed(name, cell, factor)
    except UnitError as error:
        if "must not be negative" in str(error):
            raise CellError(
                f"{cell!r} is in the past: the run begins at 0" if name == "time" else str(error), row
            ) from None
        raise CellError(str(error).removeprefix("a time ").removeprefix("a size "), row) from None
    except OverflowError:
        raise CellError(f"{cell!r} is too large", row) from None
    except (InvalidOperation, ValueError):
        raise CellError(f"must be a{'' if name == 'time' else ' whole'} number, got {cell!r}", row) from None
    if abs(number) > MAX_INT64:
        raise CellError(f"{cell!r} is too large", row)
    return number


def _parsed(name: str, cell: str | int | float, factor: int | None) -> int:
    """Parse a cell. Raises UnitError, ValueError, OverflowError or InvalidOperation."""
    if name == "time" and factor is None:
        return parse_time(cell)
    if name == "bytes" and factor is None and isinstance(cell, str) and whole_number(cell, -MAX_INT64) is None:
        return parse_bytes(cell)
    if name == "value" and isinstance(cell, str) and cell[:2] in ("0x", "0X"):
        return int(cell, 16)
    if isinstance(cell, str) and not _DECIMAL.fullmatch(cell):
        raise ValueError
    exact = Decimal(str(cell))
    if not exact.is_finite():
        raise ValueError
    if exact.adjusted() > 20:
        raise OverflowError
    scaled = (exact * (factor or 1)).to_integral_value(ROUND_CEILING)
    if scaled != exact * (factor or 1) and name != "time":
        raise ValueError
    return int(scaled)


#: Limit for CSV; with MAX_WRITES, reading stays below 2 GiB of memory. JSON needs more per byte and has its own limit.
MAX_FILE_BYTES = 128 * 2**20
SUFFIXES = (".csv", ".json", ".parquet")


def read_writes(path: str | os.PathLike[str]) -> WriteTable:
    """Read ``peer, address, bytes, value, time`` from a .csv, .json or .parquet file.

    Raises
    ------
    SpecError, InputError: names file and line (row), field and value.
    MissingExtraError: Parquet without pyarrow.
    """
    file = os.fspath(path)
    reader = {".csv": _read_csv, ".json": _read_json, ".parquet": _read_parquet}[_suffix(path)]
    names, columns, lines = reader(path)
    header = read_header(names, file)
    table = WriteTable()
    if not len(lines):
        return table
    cells = {name: columns[place] for name, (place, _) in header.items()}
    numbers = {}
    for name, (_, factor) in header.items():
        if name != "address":
            try:
                numbers[name] = whole_numbers(name, cells[name], factor)
            except CellError as fault:
                raise SpecError(str(fault), file=f"{file}:{lines[fault.row]}", field=name) from None
    table.register_writes(
        peer=numbers["peer"], address=_addresses(cells["address"], file, lines), size_bytes=numbers["bytes"],
        value=numbers.get("value", 0), time_ps=numbers["time"], file=file, lines=lines,
    )  # fmt: skip
    return table


def save_writes(path: str | os.PathLike[str], table: WriteTable) -> None:
    """Write a table, sorted by time, peer and address; :func:`read_writes` reads the same table back.

    Raises
    ------
    InputError: the name does not end in .csv, .json or .parquet, or the file cannot be written.
    MissingExtraError: Parquet without pyarrow.
    """
    suffix = _suffix(path)
    columns = table.columns
    order = np.lexsort(
        (columns.value, columns.size_bytes, columns.address, columns.base, columns.peer, columns.time_ps)
    )
    addresses: list[int] | list[str]
    if suffix == ".parquet" and (columns.base == MEMORY).all():
        addresses = columns.address[order].tolist()
    else:
        addresses = [table.address_text(row) for row in order.tolist()]
    rows = {
        "peer": columns.peer[order].tolist(),
        "address": addresses,
        "bytes": columns.size_bytes[order].tolist(),
        "value": columns.value[order].tolist(),
        "time_ps": columns.time_ps[order].tolist(),
    }
    if suffix == ".parquet":
        pa, pq = pyarrow("writes")
        with open_output(path) as sink:
            pq.write_table(pa.table(rows), sink)
    elif suffix == ".csv":
        with open_output(path) as sink:
            write_csv(sink, rows, zip(*rows.values(), strict=True))
    else:
        writes = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        write_text(path, json.dumps({"writes": writes}))


Read = tuple[Sequence[object], Sequence[Cells], Sequence[int]]


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"writes are .csv, .json or .parquet, not {suffix!r}{nearest(suffix, SUFFIXES)}", file=path)
    return suffix


def _read_csv(path: str | os.PathLike[str]) -> Read:
    """Return names, columns and line numbers; skips empty lines and comments (#)."""
    file = os.fspath(path)
    texts = read_text(path, MAX_FILE_BYTES).splitlines()
    lines = [number for number, text in enumerate(texts, 1) if text.strip() and not text.lstrip().startswith("#")]
    if len(lines) > MAX_WRITES:
        raise SpecError(f"has more than {MAX_WRITES} writes", file=file)
    try:
        rows = list(csv.reader([texts[number - 1] for number in lines], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise SpecError(f"is not CSV: {error}", file=file) from None
    if not rows:
        raise SpecError("is empty: the first line names the columns", file=file)
    if len(rows) != len(lines):
        raise SpecError("a quoted value goes over several lines", file=file)
    width = len(rows[0])
    for number, row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise SpecError(f"has {len(row)} values, the header {width}", file=f"{file}:{number}")
    columns = list(zip(*rows[1:], strict=True)) or [()] * width
    return rows[0], columns, lines[1:]


def _read_json(path: str | os.PathLike[str]) -> Read:
    """Read ``{"writes": [{"peer": 1, ...}, ...]}`` or ``{"writes": {"peer": [1, ...], ...}}``; rows count from 0."""
    from trine.common.spec import parse_json

    file = os.fspath(path)
    data = parse_json(read_text(path), file)
    if not isinstance(data, dict) or list(data) != ["writes"]:
        if isinstance(data, dict):
            odd = [key for key in data if key != "writes"]
        else:
            odd = []
        hint = f"; unknown key {odd[0]!r:.80}" if odd else ""
        raise SpecError(f"must be an object with 'writes' alone{hint}", file=file)
    writes = data["writes"]
    if isinstance(writes, dict):
        names, columns = list(writes), list(writes.values())
        are_lists = all(isinstance(column, list) for column in columns)
        if not are_lists or len({len(c) for c in columns}) > 1:
            raise SpecError("must be lists of one length", file=file, field="writes")
    elif isinstance(writes, list):
        names, columns = _json_columns(writes, file)
    else:
        raise SpecError("must be a list of writes, or an object of columns", file=file, field="writes")
    number = len(columns[0]) if columns else 0
    if number > MAX_WRITES:
        raise SpecError(f"has more than {MAX_WRITES} writes", file=file, field="writes")
    return names, columns, range(number)


def _json_columns(writes: list[Any], file: str) -> tuple[list[str], list[list[object]]]:
    if not writes:
        return list(COLUMNS), [[] for _ in COLUMNS]
    names = list(writes[0]) if isinstance(writes[0], dict) else []
    keys = set(names)
    for row, write in enumerate(writes):
        if not isinstance(write, dict):
            raise SpecError("must be an object", file=f"{file}:{row}", field="writes")
        if write.keys() != keys:
            odd = sorted(write.keys() ^ keys)[0]
            raise SpecError(f"must have the keys of the first write; {odd!r} is in one alone", file=f"{file}:{row}")
    columns = []
    for name in names:
        columns.append([write[name] for write in writes])
    return names, columns


def _read_parquet(path: str | os.PathLike[str]) -> Read:
    """Return whole-number columns as arrays, others as lists; rows count from 0."""
    pa, _ = pyarrow("writes")
    file = os.fspath(path)
    content = read_table(path, MAX_WRITES, "writes")
    columns: list[Cells] = []
    for name, column in zip(content.column_names, content.columns, strict=True):
        if pa.types.is_integer(column.type) and not column.null_count:
            columns.append(column.to_numpy())
        elif _is_plain(pa, column.type):
            columns.append(column.to_pylist())
        else:
            raise SpecError(f"must be numbers or text, not {column.type}", file=file, field=name)
    return content.column_names, columns, range(content.num_rows)


def _is_plain(pa: Any, kind: Any) -> bool:
    """Return whether a column type is numbers, text, or null."""
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(text) or pa.types.is_large_string(text):
        return True
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _addresses(cells: Cells, file: str, lines: Sequence[int]) -> Any:
    if isinstance(cells, np.ndarray):
        return cells
    for line, cell in zip(lines, cells, strict=True):
        if type(cell) is not str and (type(cell) is not int or cell < 0):
            problem = f"must be a number, 'buffer+0x40' or 'sem 3', got {str(cell)[:80]!r}"
            raise SpecError(problem, file=f"{file}:{line}", field="address")
    return [str(cell) for cell in cells]
