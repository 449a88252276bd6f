"""Rows of profilers' CSV files: copies, kernels and named ranges, with their times (docs/formats/peer-writes.md)."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.common.units import MAX_INT64, parse_bytes, parse_time, whole_number
from trine.errors import InputError, SpecError, UnitError, nearest

if TYPE_CHECKING:
    import sqlite3

Row = TypeVar("Row")

MAX_FILE_BYTES = 128 * 2**20
MAX_ROWS = 2 * 10**6

COPY, KERNEL, RANGE = "copy", "kernel", "range"
KINDS = (COPY, KERNEL, RANGE)


class ProfileRow(NamedTuple):
    """One row. device: the device that ran it, or the source of a copy; other: a copy's destination; "" if unknown.

    size_bytes: None if the profile has no size, or only a rounded one. line: of the file.
    """

    kind: str
    name: str
    start_ps: int
    end_ps: int
    device: str
    other: str
    size_bytes: int | None
    file: str
    line: int

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileFormat:
    """Columns of a profile, by lower-case header without its unit.

    columns: of name, start, end or duration, device, other, bytes. marks: headers that distinguish the format from
    others. only: a column and a pattern (``*`` matches any text); rows whose value does not match are skipped.
    """

    name: str
    kind: str
    columns: Mapping[str, str]
    marks: tuple[str, ...] = ()
    only: tuple[str, str] | None = None


_HEADER = re.compile(r"(.*?)\s*(?:\(([A-Za-zµμ]+)\))?\s*")
_DEVICE = re.compile(r"(?:Agent|GPU|Device)?[ _]*(\d+)|.*\((\d+)\)", re.IGNORECASE)
_PEER_COPY = re.compile(r"\[CUDA memcpy (Peer-to-Peer|PtoP)\]")


def read_rows(path: str | os.PathLike[str], aliases: Mapping[str, str] | None = None) -> tuple[str, list[ProfileRow]]:
    """Return the format's name, and its rows; ``aliases``: names of columns that differ in this file.

    Raises SpecError with file, line and column.
    """
    from trine.common.inputs import read_text

    file = os.fspath(path)
    texts = read_text(path, MAX_FILE_BYTES).splitlines()
    reader = csv.reader(texts, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise SpecError("is empty: the first line names the columns", file=file)
        plan = _plan(header, aliases or {}, file)
        return plan.format.name, list(_rows(reader, plan, file))
    except csv.Error as error:
        raise SpecError(f"is not CSV: {error}", file=f"{file}:{reader.line_num}") from None


def device_of(text: str) -> str:
    """Return the number in ``Agent 2``, ``2``, ``GPU 2`` or ``NVIDIA A100 (2)``; return other texts unchanged."""
    match = _DEVICE.fullmatch(text.strip())
    return (match[1] or match[2]) if match else text.strip()


@cache
def profile_formats() -> tuple[ProfileFormat, ...]:
    """Return the known formats; the first that fits a file counts."""
    data: Any = load_mapping(PRESETS / "formats" / "profiles.yaml")
    lists = []
    for entry in data.values():
        lists.append({key: tuple(value) for key, value in entry.items() if isinstance(value, list)})
    return tuple(
        ProfileFormat(**{"name": name, **entry, **tuples})
        for (name, entry), tuples in zip(data.items(), lists, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    format: ProfileFormat
    place: Mapping[str, int]
    unit: Mapping[str, str]
    width: int
    only: int = -1


def _plan(header: Sequence[str], aliases: Mapping[str, str], file: str) -> _Plan:
    """Return the plan of the first format whose columns are all present."""
    parsed = [_HEADER.fullmatch(text.strip()) for text in header]
    names = []
    for match, text in zip(parsed, header, strict=True):
        names.append((match[1] if match else text).lower())
    units = {name: match[2] or "" for name, match in zip(names, parsed, strict=True) if match}
    if aliases:
        profile = _own_format(aliases, names, file)
    else:
        formats = profile_formats()
        candidates = []
        for f in formats:
            if all(column in names for column in (*f.columns.values(), *f.marks)):
                candidates.append(f)
        if not candidates:
            known_formats = "; ".join(f"{f.name}: {', '.join(f.columns.values())}" for f in formats)
            raise SpecError(
                f"has the columns of no known profile; say 'columns' in the mapping. Known: {known_formats}", file=file
            )
        profile = candidates[0]
    place = {role: names.index(column) for role, column in profile.columns.items()}
    unit = {role: units.get(column, "") for role, column in profile.columns.items()}
    return _Plan(profile, place, unit, len(header), names.index(profile.only[0]) if profile.only else -1)


def _own_format(aliases: Mapping[str, str], names: Sequence[str], file: str) -> ProfileFormat:
    columns = {}
    for role, column in aliases.items():
        if role == "kind":
            continue
        match = _HEADER.fullmatch(column.strip())
        columns[role] = (match[1] if match else column).lower()
        if columns[role] not in names:
            raise SpecError(f"has no column {column!r}{nearest(columns[role], names)}", file=file)
    return ProfileFormat(name="own columns", kind=aliases.get("kind", COPY), columns=columns)


def _rows(reader: Any, plan: _Plan, file: str) -> Iterator[ProfileRow]:
    for number, cells in enumerate(reader):
        where = f"{file}:{reader.line_num}"
        if not any(cells):
            continue
        if number > MAX_ROWS:
            raise SpecError(f"has more than {MAX_ROWS} rows", file=file)
        if len(cells) != plan.width:
            raise SpecError(f"has {len(cells)} values, the header {plan.width}", file=where)
        if plan.format.only and not matches(plan.format.only[1], cells[plan.only]):
            continue
        row = _row(cells, plan, file, reader.line_num)
        if row is not None:
            yield row


def _row(cells: Sequence[str], plan: _Plan, file: str, line: int) -> ProfileRow | None:
    def cell(role: str) -> str:
        return cells[plan.place[role]].strip() if role in plan.place else ""

    kind, name = plan.format.kind, cell("name")
    if plan.format.name == "nsys cuda_gpu_trace" and name.startswith("[CUDA mem"):
        if not _PEER_COPY.fullmatch(name):
            return None
        kind = COPY
    if kind == RANGE and not cell("start"):
        return None  # a range without GPU work
    try:
        start = _time(cell("start"), plan.unit["start"])
        end = (
            _time(cell("end"), plan.unit["end"])
            if "end" in plan.place
            else start + _time(cell("duration"), plan.unit["duration"])
        )
        size = _size(cell("bytes"), plan.unit.get("bytes", ""))
    except UnitError as error:
        raise SpecError(str(error), file=f"{file}:{line}") from None
    if end < start:
        raise SpecError(f"ends before it begins: {cells[plan.place['start']]}", file=f"{file}:{line}")
    device, other = device_of(cell("device")), device_of(cell("other"))
    return ProfileRow(kind, name, start, end, device, other, size, file, line)


def _time(text: str, unit: str) -> int:
    """Return a time in ps; profilers write nanoseconds if the header has no unit."""
    nanoseconds = whole_number(text, most=MAX_INT64 // 1000) if unit in ("", "ns") else None
    return parse_time(f"{text} {unit or 'ns'}", "its time") if nanoseconds is None else nanoseconds * 1000


def _size(text: str, unit: str) -> int | None:
    """Return bytes, or None if the profile rounds them to millions of bytes with three digits."""
    if not text or unit not in ("", "B"):
        return None
    return parse_bytes(f"{text} B", "its bytes")


def check_columns(own: Mapping[str, str], file: object) -> None:
    """Check the ``columns`` of a mapping. Raises InputError for an unknown key or kind, or a missing required key."""
    roles = ("kind", "name", "start", "end", "duration", "device", "other", "bytes")
    for role in own:
        if role not in roles:
            raise InputError(f"unknown key {role!r}{nearest(role, roles)}", file=file, field="columns")
    if own.get("kind", COPY) not in KINDS:
        raise InputError(f"unknown kind {own['kind']!r}{nearest(own['kind'], KINDS)}", file=file, field="columns.kind")
    if "start" not in own or ("end" in own) == ("duration" in own) or "name" not in own:
        raise InputError("needs name, start, and either end or duration", file=file, field="columns")


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` matches ``pattern``; ``*`` matches any text."""
    prefix, *parts = pattern.split("*")
    if not parts:
        return name == pattern
    if not name.startswith(prefix):
        return False
    position = len(prefix)
    for part in parts[:-1]:
        index = name.find(part, position)
        if index < 0:
            return False
        position = index + len(part)
    return len(name) - position >= len(parts[-1]) and name.endswith(parts[-1])


def selected(database: sqlite3.Connection, query: str, table: str, file: str) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a query on a table of a profiler's database. Raises SpecError beyond :data:`MAX_ROWS` rows."""
    return limited(database.execute(f"{query} LIMIT {MAX_ROWS + 1}"), table, file)


def limited(rows: Iterable[Row], table: str, file: str) -> Iterator[Row]:
    """Yield the rows. Raises SpecError beyond :data:`MAX_ROWS` of them."""
    for number, row in enumerate(rows):
        if number == MAX_ROWS:
            raise SpecError(f"has more than {MAX_ROWS} rows in {table}", file=file)
        yield row


def spanned(
    kind: str, name: object, span_ns: tuple[object, object], devices: tuple[object, object], size: object, where: str,
    line: int,
) -> ProfileRow:  # fmt: skip
    """Return a row from times in whole nanoseconds. devices: the executing device and a copy's destination, or None.

    Raises SpecError for invalid times, with ``where`` and the row.
    """
    times = [ns for ns in span_ns if isinstance(ns, int) and 0 <= ns <= MAX_INT64 // 1000]
    if len(times) < 2 or times[1] < times[0]:
        text = " to ".join(f"{ns!r:.40}" for ns in span_ns)
        raise SpecError(f"is no span of nanoseconds: {text}", file=f"{where}:{line}")
    device, other = ("" if each is None else str(each) for each in devices)
    size_bytes = size if isinstance(size, int) and size > 0 else None
    return ProfileRow(kind, str(name or ""), times[0] * 1000, times[1] * 1000, device, other, size_bytes, where, line)
