"""Tables with a size and a time or bandwidth per line, as people copy them out of logs: CSV, markdown, spreadsheets.

A header names the columns. Each line has at least a size, and a time, an algbw or a busbw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trine.check.nccl_rows import LogRow, Measure, number_of, time_of, without_group_marks
from trine.collectives.sizes import parse_size
from trine.errors import UnitError

__all__ = ["ShortTable", "read_short_table"]

_SIZE, _TIME, _ALGBW, _BUSBW = "size", "time", "algbw", "busbw"
#: Names of the columns, without units, blanks, underscores and capitals.
_NAMES = {
    _SIZE: ("size", "sizes", "bytes", "messagesize", "msgsize", "datasize", "buffersize", "message", "sizebytes"),
    _TIME: ("time", "avgtime", "latency", "avglatency", "duration"),
    _ALGBW: ("algbw", "algbandwidth", "algorithmbandwidth", "algorithmbw"),
    _BUSBW: ("busbw", "busbandwidth"),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
#: Factors to GB/s and to bytes; b stands for bits.
_RATES = {
    "gb/s": 1.0, "gbps": 1.0, "gib/s": 2**30 / 1e9, "mb/s": 1e-3, "mib/s": 2**20 / 1e9, "gbit/s": 0.125, "gbit": 0.125,
    "gbits/s": 0.125, "tb/s": 1e3,
}  # fmt: skip
_BYTES = {
    "b": 1,
    "bytes": 1,
    "kb": 1 << 10,
    "kib": 1 << 10,
    "mb": 1 << 20,
    "mib": 1 << 20,
    "gb": 1 << 30,
    "gib": 1 << 30,
}
_TIMES = ("ns", "us", "ms", "s")
#: A column's name with its unit: ``time (us)``, ``time_us``, ``busbw GB/s``, ``size[B]``.
_COLUMN = re.compile(r"(?P<name>[A-Za-z][A-Za-z _-]*?)[\s_]*(?:[(\[](?P<unit>[^)\]]{1,10})[)\]])?")
_TRAILING_UNIT = re.compile(r"(?P<name>.+?)[ _](?P<unit>[KMGT]?i?B|bytes|[num]?s|[GMTgmt]i?[Bb](?:it)?s?(?:/s|ps))")
#: A printed algbw below this is rounded too far to contradict a time.
_PRECISE_BYTES_PER_S = 1e9
_RULE = re.compile(r"[\s|:+=-]*")


@dataclass(frozen=True, slots=True)
class ShortTable:
    """Rows of such a table; a time, algbw or busbw of 0 is not in it. ``assumed``: the units that no header states."""

    rows: tuple[LogRow, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that is read: its place, kind and unit, "" without one."""

    place: int
    kind: str
    unit: str


def read_short_table(text: str) -> ShortTable | None:
    """Return the first table of sizes with times or bandwidths in a text, or None without one."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        columns = _header(line)
        if columns is None:
            continue
        rows = _rows(lines[number + 1 :], columns)
        if any(row.out_of_place is not None for row in rows):
            return ShortTable(tuple(rows), _assumed(columns))
    return None


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    line = line.strip().strip("#|").strip()
    for separator in ("|", "\t", ";", ","):
        if separator in line:
            return [cell.strip().strip('"').strip() for cell in line.split(separator)]
    return re.split(r"\s{2,}", line) if "  " in line else line.split()


def _header(line: str) -> list[_Column] | None:
    """Return the columns that a header names, or None without a size and a result."""
    columns: dict[str, _Column] = {}
    for place, cell in enumerate(_cells(line)):
        column = _column(place, cell)
        if column is not None and column.kind not in columns:
            columns[column.kind] = column
    has_result = any(kind in columns for kind in (_TIME, _ALGBW, _BUSBW))
    return list(columns.values()) if _SIZE in columns and has_result else None


def _column(place: int, cell: str) -> _Column | None:
    """Return a column by its name, or None for another one."""
    match = _COLUMN.fullmatch(cell)
    if match is None or not match["unit"]:
        match = _TRAILING_UNIT.fullmatch(cell) or match
    if match is None:
        return None
    kind = _KINDS.get(re.sub(r"[\s_-]", "", match["name"]).lower())
    return None if kind is None else _Column(place, kind, (match["unit"] or "").strip())


def _rows(lines: Sequence[str], columns: Sequence[_Column]) -> list[LogRow]:
    """Return the rows below a header, up to the first line that is none."""
    rows: list[LogRow] = []
    for line in lines:
        if _RULE.fullmatch(line):
            if rows and not line.strip():
                break
            continue
        row = _row(_cells(without_group_marks(line)), columns)
        if row is None:
            break
        rows.append(row)
    return rows


def _row(cells: Sequence[str], columns: Sequence[_Column]) -> LogRow | None:
    """Return a row, without a result if all are zero, or None for a line without a size."""
    size, time_ps = None, 0
    rates = {_ALGBW: 0.0, _BUSBW: 0.0}
    for column in columns:
        if column.place >= len(cells):
            return None
        cell = cells[column.place]
        if column.kind == _SIZE:
            size = _size_of(cell, column.unit)
        elif column.kind == _TIME:
            time_ps = time_of(cell.replace(" ", ""), column.unit if column.unit in _TIMES else "us") or 0
        else:
            number = number_of(cell)
            if number is None:
                return None
            rates[column.kind] = number * _rate_unit(column.unit) * 1e9
    if size is None:
        return None
    if not (time_ps or rates[_ALGBW] or rates[_BUSBW]):
        return LogRow(size, 0, "", None, None, None, None)
    if not time_ps and rates[_ALGBW]:
        time_ps = max(1, round(size * 1e12 / rates[_ALGBW]))
    algbw = rates[_ALGBW]
    if time_ps and algbw < _PRECISE_BYTES_PER_S:
        algbw = size * 1e12 / time_ps
    return LogRow(size, 0, "", None, None, Measure(time_ps, algbw, rates[_BUSBW], None), None)


def _size_of(cell: str, unit: str) -> int | None:
    """Return a size in bytes: ``8M``, ``8 MB`` and ``8 MiB`` are 2^23, as nccl-tests reads them."""
    text = re.sub(r"(?i)(?<=[KMGT])i?B$|(?<=\d)\s*B(?:ytes)?$", "", cell.strip())
    try:
        return parse_size(text) * _BYTES.get(unit.lower(), 1)
    except UnitError:
        return None


def _rate_unit(unit: str) -> float:
    """Return the factor of a bandwidth's unit to GB/s; ``Gb/s`` and ``Gbps`` are bits."""
    if unit in ("Gb/s", "Gbps"):
        return 0.125
    return _RATES.get(unit.lower(), 1.0)


def _assumed(columns: Sequence[_Column]) -> tuple[str, ...]:
    """Return the units that the header does not state."""
    notes = []
    for column in columns:
        if column.kind == _TIME and column.unit not in _TIMES:
            notes.append("guess: times are microseconds: the header names no unit")
        if column.kind in (_ALGBW, _BUSBW) and not column.unit:
            notes.append(f"guess: {column.kind} is in GB/s: the header names no unit")
        elif column.kind in (_ALGBW, _BUSBW) and column.unit.islower():
            notes.append(f"guess: {column.unit} of {column.kind} is bytes, not bits")
    return tuple(notes)
