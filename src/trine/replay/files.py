"""Files of writes: CSV, JSON and Parquet (docs/formats/peer-writes.md)."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trine.errors import InputError, SpecError, nearest
from trine.outputs import open_output, write_csv, write_text
from trine.replay.cells import COLUMNS, Cells, Fault, read_header, whole_numbers
from trine.replay.parquet import pyarrow, read_table
from trine.replay.writes import MAX_WRITES, MEMORY, WriteTable

#: Of CSV; with MAX_WRITES, reading stays below 2 GiB of memory. JSON, of which a byte takes more, has its own limit.
MAX_FILE_BYTES = 128 * 2**20
SUFFIXES = (".csv", ".json", ".parquet")


def read_writes(path: str | os.PathLike[str]) -> WriteTable:
    """Read ``peer, address, bytes, value, time`` from a file whose name ends in .csv, .json or .parquet.

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
    found = {name: columns[place] for name, (place, _) in header.items()}
    numbers = {}
    for name, (_, factor) in header.items():
        if name != "address":
            try:
                numbers[name] = whole_numbers(name, found[name], factor)
            except Fault as fault:
                raise SpecError(str(fault), file=f"{file}:{lines[fault.row]}", field=name) from None
    table.register_writes(
        peer=numbers["peer"],
        address=_addresses(found["address"], file, lines),
        size_bytes=numbers["bytes"],
        value=numbers.get("value", 0),
        time_ps=numbers["time"],
        file=file,
        lines=lines,
    )
    return table


def save_writes(path: str | os.PathLike[str], table: WriteTable) -> None:
    """Write a table so that :func:`read_writes` reads the same; by time, peer and address.

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
    """Names, columns and line numbers; empty lines and those that begin with # are passed over."""
    from trine.inputs import read_text

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
    """``{"writes": [{"peer": 1, ...}, ...]}``, or ``{"writes": {"peer": [1, ...], ...}}``; rows count from 0."""
    from trine.inputs import read_text
    from trine.spec import parse_json

    file = os.fspath(path)
    data = parse_json(read_text(path), file)
    if not isinstance(data, dict) or list(data) != ["writes"]:
        odd = [key for key in data if key != "writes"] if isinstance(data, dict) else []
        hint = f"; unknown key {odd[0]!r:.80}" if odd else ""
        raise SpecError(f"must be an object with 'writes' alone{hint}", file=file)
    writes = data["writes"]
    if isinstance(writes, dict):
        names, columns = list(writes), list(writes.values())
        if not all(isinstance(column, list) for column in columns) or len({len(c) for c in columns}) > 1:
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
    return names, [[write[name] for write in writes] for name in names]


def _read_parquet(path: str | os.PathLike[str]) -> Read:
    """Columns of whole numbers as arrays, others as lists; rows count from 0."""
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
    """Numbers, texts, or nothing at all."""
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
