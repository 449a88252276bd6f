"""Tables with a size and a time or bandwidth per line, as people copy them out of logs: CSV, markdown, spreadsheets.

A header names the columns. Each line has at least a size, and a time, an algbw or a busbw.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trine.check.nccl_rows import LogRow, Measure, number_of, time_of, without_group_marks
from trine.collectives.sizes import parse_size
from trine.errors import InputError, UnitError

__all__ = ["ShortTable", "read_short_table"]

_SIZE, _TIME, _ALGBW, _BUSBW = "size", "time", "algbw", "busbw"
#: Names of the columns, without units, blanks, underscores and capitals.
_NAMES = {
    _SIZE: (
        "size",
        "sizes",
        "bytes",
        "messagesize",
        "msgsize",
        "datasize",
        "buffersize",
        "message",
        "sizebytes",
        "payload",
        "payloadsize",
        "nbytes",
        "transfersize",
    ),
    _TIME: ("time", "avgtime", "latency", "avglatency", "duration"),
    _ALGBW: ("algbw", "algbandwidth", "algorithmbandwidth", "algorithmbw"),
    _BUSBW: ("busbw", "busbandwidth"),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
#: Units of sizes, in bytes; without a unit, bytes.
_BYTES = {
    "": 1, "b": 1, "byte": 1, "bytes": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30,
    "gib": 1 << 30,
}  # fmt: skip
#: Units of times; without a unit, microseconds.
_TIMES = {
    "": "us", "ns": "ns", "nsec": "ns", "us": "us", "\u00b5s": "us", "\u03bcs": "us", "usec": "us",
    "microseconds": "us", "ms": "ms", "msec": "ms", "milliseconds": "ms", "s": "s", "sec": "s", "seconds": "s",
}  # fmt: skip
#: A unit of bandwidths: prefix, i of powers of 1024, bytes or bits.
_RATE = re.compile(r"(?P<prefix>[KMGT]?)(?P<binary>i?)(?P<what>B|bytes?|bits?)(?:/s|/sec|ps|s)?", re.IGNORECASE)
#: A bandwidth with its unit in one cell: ``17.13GBps``.
_RATE_CELL = re.compile(rf"(?P<number>[\d.,]+) ?(?P<unit>{_RATE.pattern})", re.IGNORECASE)
#: The units to write, by the kind of column.
_ACCEPTED = {
    _SIZE: "B, KiB, MiB or GiB", _TIME: "ns, us, ms or s", _ALGBW: "GB/s, GiB/s, MB/s or Gbit/s",
    _BUSBW: "GB/s, GiB/s, MB/s or Gbit/s",
}  # fmt: skip
#: A column's name with its unit: ``time (us)``, ``time_us``, ``busbw GB/s``, ``size[B]``.
_COLUMN = re.compile(r"(?P<name>[A-Za-z][A-Za-z _-]*?)[\s_]*(?:[(\[](?P<unit>[^)\]]{1,20})[)\]])?")
_TRAILING_UNIT = re.compile(
    r"(?P<name>.+?)[ _](?P<unit>[kmgt]?i?B|bytes|[num\u00b5\u03bc]?s|[num]?sec|seconds"
    r"|[kmgt]?i?b(?:its?)?(?:/s|/sec|ps)|[kmgt]i?bs)",
    re.IGNORECASE,
)
#: Largest distance of a size from a whole number of bytes.
_WHOLE = 1e-3
#: A printed algbw below this is rounded too far to contradict a time.
_PRECISE_BYTES_PER_S = 1e9
_RULE = re.compile(r"[\s|:+=-]*")


@dataclass(frozen=True, slots=True)
class ShortTable:
    """Rows of such a table; a time, algbw or busbw of 0 is not in it.

    notes: units that no header states, and columns and lines left out.
    """

    rows: tuple[LogRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that is read: its place, title and kind, and its unit, "" without one."""

    place: int
    title: str
    kind: str
    unit: str


@dataclass(frozen=True, slots=True)
class _Header:
    """The separator of the cells, "" for blanks, the columns that are read, and the titles of the others."""

    separator: str
    columns: tuple[_Column, ...]
    others: tuple[str, ...]


def read_short_table(text: str) -> ShortTable | None:
    """Return the first table of sizes with times or bandwidths in a text, or None without one.

    Raises InputError for a column with an unknown unit.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        header = _header(line)
        if header is None:
            continue
        header = _with_units_of_cells(header, lines[number + 1 :])
        _check_units(header.columns)
        found = _rows(lines[number + 1 :], header)
        if any(row.out_of_place is not None for row in found.rows):
            further = _further_tables(lines[number + 1 :])
            unread = f"columns that trine does not read: {', '.join(header.others[:8])}"
            notes = (*_assumed(header.columns), *([unread] if header.others else []), *found.notes, *further)
            return ShortTable(found.rows, notes)
    return None


def _further_tables(lines: Sequence[str]) -> tuple[str, ...]:
    """Return a note if further tables follow."""
    num_further = sum(_header(line) is not None for line in lines)
    return (f"only the first of {num_further + 1} tables is read",) if num_further else ()


def _separator(line: str) -> str:
    """Return the character between the cells of a line, "" for blanks."""
    inner = line.strip().strip("#|")
    return next((separator for separator in ("|", "\t", ";", ",") if separator in inner), "")


def _cells(line: str, separator: str) -> list[str]:
    """Return the cells of a line of a table; none for a line that no CSV reader can read."""
    line = line.strip().strip("#|").strip()
    if not separator:
        return re.split(r"\s{2,}", line) if "  " in line else line.split()
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return []


def _header(line: str) -> _Header | None:
    """Return the columns that a header names, or None without a size and a result."""
    separator = _separator(line)
    columns: dict[str, _Column] = {}
    others: list[str] = []
    for place, cell in enumerate(_cells(line, separator)):
        column = _column(place, cell)
        if column is not None and column.kind not in columns:
            columns[column.kind] = column
        elif cell:
            others.append(cell)
    if _SIZE not in columns or not any(kind in columns for kind in (_TIME, _ALGBW, _BUSBW)):
        return None
    return _Header(separator, tuple(columns.values()), tuple(others))


def _column(place: int, cell: str) -> _Column | None:
    """Return a column by its name, or None for another one."""
    match = _COLUMN.fullmatch(cell)
    if match is None or not match["unit"]:
        match = _TRAILING_UNIT.fullmatch(cell) or match
    if match is None:
        return None
    kind = _KINDS.get(re.sub(r"[\s_-]", "", match["name"]).lower())
    return None if kind is None else _Column(place, cell, kind, (match["unit"] or "").strip())


def _with_units_of_cells(header: _Header, lines: Sequence[str]) -> _Header:
    """Return a header whose bandwidths without a unit have the one that all their cells state."""
    columns = []
    for column in header.columns:
        if column.kind in (_ALGBW, _BUSBW) and not column.unit:
            units = {match["unit"] for match in _rate_cells(lines, header.separator, column.place)}
            column = replace(column, unit=units.pop()) if len(units) == 1 else column
        columns.append(column)
    return replace(header, columns=tuple(columns))


def _rate_cells(lines: Sequence[str], separator: str, place: int) -> list[re.Match[str]]:
    """Return the cells of a column that state a bandwidth with its unit, up to the first blank line."""
    found: list[re.Match[str]] = []
    for line in lines:
        cells = _cells(line, separator)
        if found and not line.strip():
            break
        match = _RATE_CELL.fullmatch(cells[place]) if place < len(cells) else None
        if match is not None:
            found.append(match)
    return found


def _check_units(columns: Sequence[_Column]) -> None:
    """Raise InputError for a column with an unknown unit."""
    for column in columns:
        if column.kind == _SIZE:
            is_known = column.unit.lower() in _BYTES
        elif column.kind == _TIME:
            is_known = column.unit.lower() in _TIMES
        else:
            is_known = not column.unit or _RATE.fullmatch(column.unit) is not None
        if not is_known:
            message = f"the column {column.title!r} has the unknown unit {column.unit!r}"
            raise InputError(f"{message}: write {_ACCEPTED[column.kind]}")


def _rows(lines: Sequence[str], header: _Header) -> ShortTable:
    """Return the rows below a header, up to a blank line or another header; notes: of lines that are no rows."""
    rows: list[LogRow] = []
    num_others = 0
    for line in lines:
        if (rows and not line.strip()) or _header(line) is not None:
            break
        if _RULE.fullmatch(line):
            continue
        row = _row(_cells(line, header.separator), header.columns)
        if row is None:
            num_others += 1
        else:
            rows.append(row)
    others = "1 line" if num_others == 1 else f"{num_others} lines"
    notes = (f"{others} without a size in the table: left out",) if num_others else ()
    return ShortTable(tuple(rows), notes)


def _row(cells: Sequence[str], columns: Sequence[_Column]) -> LogRow | None:
    """Return a row, without a result if no cell has one, or None for a line without a size."""
    size, time_ps = None, 0
    rates = {_ALGBW: 0.0, _BUSBW: 0.0}
    for column in columns:
        if column.place >= len(cells):
            return None
        cell = cells[column.place]
        if column.kind in (_ALGBW, _BUSBW) and (stated := _RATE_CELL.fullmatch(cell)) is not None:
            if stated["unit"] != column.unit:
                return None
            cell = stated["number"]
        cell = without_group_marks(cell)
        if column.kind == _SIZE:
            size = _size_of(cell, column.unit)
        elif column.kind == _TIME:
            time_ps = time_of(cell.replace(" ", ""), _TIMES[column.unit.lower()]) or 0
        else:
            rates[column.kind] = (number_of(cell) or 0.0) * _bytes_per_s(column.unit)
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
    """Return a size in bytes: ``8M``, ``8 MB`` and ``8 MiB`` are 2^23, as nccl-tests reads them.

    A size with decimals is of powers of 1000 if only they give whole bytes: ``134.217728 MB``.
    """
    text = re.sub(r"(?i)(?<=[KMGT])i?B$|(?<=\d)\s*B(?:ytes)?$", "", cell.strip())
    try:
        return parse_size(text) * _BYTES[unit.lower()]
    except UnitError:
        value = number_of(text)
    power = {"kb": 1, "mb": 2, "gb": 3}.get(unit.lower().replace("i", ""))
    if value is None or power is None:
        return None
    for base in (1024, 1000) if "i" not in unit.lower() else (1024,):
        size = value * float(base**power)
        if size >= 1 and abs(size - round(size)) < _WHOLE:
            return round(size)
    return None


def _bytes_per_s(unit: str) -> float:
    """Return a bandwidth's unit in bytes per second: ``Gb/s``, ``Gbps`` and ``Gbit/s`` are bits; without one, GB/s."""
    match = _RATE.fullmatch(unit or "GB/s")
    assert match is not None
    base = 1024 if match["binary"] else 1000
    power = " KMGT".index(match["prefix"].upper() or " ")
    is_bits = match["what"].lower().startswith("bit") or (match["what"] == "b" and not unit.islower())
    return float(base**power) / (8 if is_bits else 1)


def _assumed(columns: Sequence[_Column]) -> tuple[str, ...]:
    """Return the units that the header does not state."""
    notes = []
    for column in columns:
        if column.kind == _TIME and not column.unit:
            notes.append("guess: times are microseconds: the header names no unit")
        if column.kind in (_ALGBW, _BUSBW) and not column.unit:
            notes.append(f"guess: {column.kind} is in GB/s: the header names no unit")
        elif column.kind in (_ALGBW, _BUSBW) and _is_unclear(column.unit):
            notes.append(f"guess: {column.unit} of {column.kind} is bytes, not bits")
    return tuple(notes)


def _is_unclear(unit: str) -> bool:
    """Return whether a unit in small letters may mean bytes or bits."""
    match = _RATE.fullmatch(unit)
    return match is not None and match["what"] == "b" and unit.islower()
