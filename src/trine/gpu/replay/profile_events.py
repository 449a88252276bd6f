"""Rows of profiles other than CSV: PyTorch profiler traces (Kineto), rocprofv3 JSON, rocprofv3 and nsys SQLite.

Kineto's categories and arguments: pytorch/kineto, libkineto/src/CuptiActivity.h and output_json.cpp, and published
traces (HolisticTraceAnalysis, tests/data). Tables of nsys: its exporter's schema reference.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from trine.common.inputs import head, open_input, read_bytes
from trine.common.units import MAX_INT64
from trine.errors import SpecError
from trine.gpu.replay.profile_rocprof import ROCPROF, is_rocprof, rocprof_rows
from trine.gpu.replay.profile_rows import COPY, KERNEL, MAX_FILE_BYTES, RANGE, ProfileRow, read_rows, selected, spanned

KINETO, NSYS = "Kineto trace", "nsys SQLite"
#: Limits of an unpacked trace, and of a database, which is not read as a whole.
MAX_UNPACKED_BYTES, MAX_DATABASE_BYTES = 1 << 30, 1 << 34
_SQLITE = b"SQLite format 3\0"
#: Categories of Kineto's events, current and before 2022.
_KINDS = {"kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": COPY, "Memcpy": COPY, "gpu_user_annotation": RANGE}
#: CUPTI's kinds of copies between device memories: on one or two devices, and peer to peer.
_DEVICE_TO_DEVICE, _PEER_TO_PEER = 8, 10


def read_events(
    path: str | os.PathLike[str], own: dict[str, str] | None, by_rank: bool
) -> tuple[str, list[ProfileRow]]:
    """Return format name and rows of a file of any known kind; ``own``, for CSV: columns with other names.

    by_rank: name devices of a Kineto trace ``rank 3``, after the process that wrote it, instead of by number.

    Raises SpecError, naming file and place.
    """
    first = head(path, 4096)
    if first.startswith(_SQLITE):
        return _database(path)
    if first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        document = _loaded(path, os.fspath(path))
        if is_rocprof(document):
            return ROCPROF, list(rocprof_rows(document, os.fspath(path)))
        return KINETO, list(_kineto(document, os.fspath(path), by_rank))
    return read_rows(path, own)


# Kineto


def _kineto(trace: Any, file: str, by_rank: bool) -> Iterator[ProfileRow]:
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise SpecError("has no list of events, as traces of PyTorch's profiler have", file=file, field="traceEvents")
    base_ns = trace.get("baseTimeNanoseconds", 0) if isinstance(trace, dict) else 0
    rank = ""
    if by_rank:
        said = trace.get("distributedInfo") if isinstance(trace, dict) else None
        if not isinstance(said, dict) or not isinstance(said.get("rank"), int):
            raise SpecError("has no rank", file=file, field="distributedInfo.rank")
        rank = f"rank {said['rank']}"
    if not isinstance(base_ns, int) or not 0 <= base_ns <= MAX_INT64:
        raise SpecError(f"must be whole nanoseconds, got {str(base_ns)[:40]}", file=file, field="baseTimeNanoseconds")
    for number, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph") == "X" and event.get("cat") in _KINDS:
            row = _event(event, base_ns * 1000, rank, file, number)
            if row is not None:
                yield row


def _loaded(path: str | os.PathLike[str], file: str) -> Any:
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        if content[:2] == b"\x1f\x8b":
            unpacking = zlib.decompressobj(31)
            content = unpacking.decompress(content, MAX_UNPACKED_BYTES + 1)
            if len(content) > MAX_UNPACKED_BYTES:
                raise SpecError(f"is larger than {MAX_UNPACKED_BYTES} bytes when unpacked", file=file)
            if not unpacking.eof:
                raise SpecError("is cut short", file=file)
        return json.loads(content, parse_float=Decimal)  # microseconds with three digits: exact
    except (ValueError, RecursionError, zlib.error) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"is no JSON: {str(error)[:80]}", file=file) from None


def _event(event: dict[str, Any], base_ps: int, rank: str, file: str, number: int) -> ProfileRow | None:
    """Return the row of an event; None for a copy within a device, or to or from the host."""
    kind, name = _KINDS[event["cat"]], str(event.get("name", ""))
    given = event.get("args")
    said = given if isinstance(given, dict) else {}
    source, target = said.get("fromDevice"), said.get("toDevice")
    if kind == COPY and source is None and "PtoP" not in name and "Peer" not in name:
        return None
    if kind == COPY and source is not None and source == target:
        return None
    where = f"{file}, event {number}"
    start_ps, lasts_ps = (_microseconds(event.get(key), where, key) for key in ("ts", "dur"))
    device = source if source is not None else said.get("device", event.get("pid"))
    given_bytes = said.get("bytes")
    size = given_bytes if isinstance(given_bytes, int) and given_bytes > 0 else None
    other = "" if rank or target is None else str(target)
    begins_ps = base_ps + start_ps
    return ProfileRow(kind, name, begins_ps, begins_ps + lasts_ps, rank or str(device), other, size, file, number)


def _microseconds(value: object, where: str, key: str) -> int:
    """Return picoseconds from a number of microseconds; older traces store it as text."""
    try:
        found = Decimal(value) if isinstance(value, int | str | Decimal) and not isinstance(value, bool) else None
    except ArithmeticError:
        found = None
    if found is None or not found.is_finite() or not 0 <= found <= MAX_INT64 // 1000:
        raise SpecError(f"must be microseconds, got {str(value)[:40]!r}", file=where, field=key)
    return int(found * 10**6)


# Databases


def _database(path: str | os.PathLike[str]) -> tuple[str, list[ProfileRow]]:
    """Return format name and rows of an SQLite file, opened read-only."""
    file = os.fspath(path)
    with open_input(path, MAX_DATABASE_BYTES):  # check: a readable regular file
        pass
    try:
        with closing(sqlite3.connect(f"file:{quote(os.path.abspath(file))}?mode=ro&immutable=1", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if is_rocpd(tables):
                return ROCPD, list(rocpd_rows(database, tables, file))
            return NSYS, list(_nsys(database, tables, file))
    except sqlite3.Error as error:
        raise SpecError(f"is no export of nsys or rocprofv3: {str(error)[:80]}", file=file) from None


def _nsys(database: sqlite3.Connection, tables: set[str], file: str) -> Iterator[ProfileRow]:
    found = 0
    for table, kind, device, name, condition in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, "deviceId", "demangledName", ""),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, "deviceId", "copyKind",
         f"WHERE copyKind IN ({_DEVICE_TO_DEVICE}, {_PEER_TO_PEER})"),
        ("NVTX_EVENTS", RANGE, "0", "text", "WHERE end IS NOT NULL"),
    ):  # fmt: skip
        if table not in tables:
            continue
        found += 1
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        names = "(SELECT value FROM StringIds WHERE id = {})"
        if kind == KERNEL:
            name = names.format(name)
        elif kind == RANGE and "textId" in columns:
            name = f"COALESCE(text, {names.format('textId')})"
        between = kind == COPY and {"srcDeviceId", "dstDeviceId"} <= columns
        source, target = ("srcDeviceId", "dstDeviceId") if between else (device, "NULL")
        size = "bytes" if kind == COPY else "NULL"
        query = f"SELECT rowid, {name}, start, end, {source}, {target}, {size}, {device} FROM {table} {condition}"
        for row in selected(database, query, table, file):
            made = _row(kind, row, f"{file}, {table}")
            if made is not None:
                yield made
    if not found:
        raise SpecError("has no table of kernels, copies or ranges that nsys or rocprofv3 exports", file=file)


def _row(kind: str, row: tuple[Any, ...], where: str) -> ProfileRow | None:
    number, name, start_ns, end_ns, source, target, size, device = row
    if kind == COPY:
        if name == _DEVICE_TO_DEVICE and (target is None or source == target):
            return None  # on one device
        name = "Peer-to-Peer" if name == _PEER_TO_PEER else "Device-to-Device"
    own = None if kind == RANGE else str(device if source is None else source)
    return spanned(kind, name, (start_ns, end_ns), (own, target), size, where, number)


# Rows of rocprofv3's databases (rocpd, SQLite, schema 3): kernels, copies between GPUs, roctx ranges.
#
# Tables and columns: as created by the writer (ROCprofiler-SDK, rocpd_tables.sql). A table's name has its content and
# the file's GUID (``rocpd_memory_copy_0123_...``); a merged file has several of each. trine reads tables and not the
# views beside them, because views are code from the file.

ROCPD = "rocpd SQLite"
_TABLE = re.compile(r"rocpd_(kernel_dispatch|memory_copy|region)(\w*)")
#: For each table read: the kind of its rows, its columns, values from other tables, and a condition.
_ROWS = {
    "kernel_dispatch": (
        KERNEL, ("id", "start", "end", "agent_id", "kernel_id"),
        "(SELECT display_name FROM {kernel_symbol} WHERE id = kernel_id), {agent_id}, NULL, NULL", "",
    ),
    "memory_copy": (
        COPY, ("id", "start", "end", "name_id", "src_agent_id", "dst_agent_id", "size"),
        "(SELECT string FROM {string} WHERE id = name_id), {src_agent_id}, {dst_agent_id}, size",
        "WHERE src_agent_id <> dst_agent_id AND 2 = (SELECT count(*) FROM {agent} "
        "WHERE id IN (src_agent_id, dst_agent_id) AND type = 'GPU')",
    ),
    "region": (
        RANGE, ("id", "start", "end", "name_id", "event_id"),
        "(SELECT string FROM {string} WHERE id = name_id), "
        "(SELECT extdata FROM {event} WHERE id = event_id), NULL, NULL",
        "WHERE event_id IN (SELECT id FROM {event} WHERE category_id IN "
        "(SELECT id FROM {string} WHERE string LIKE 'MARKER%'))",
    ),
}  # fmt: skip
_BESIDE = {
    "string": ("rocpd_string", ("id", "string")),
    "agent": ("rocpd_info_agent", ("id", "type", "absolute_index", "logical_index")),
    "kernel_symbol": ("rocpd_info_kernel_symbol", ("id", "display_name")),
    "event": ("rocpd_event", ("id", "category_id", "extdata")),
}


def is_rocpd(tables: set[str]) -> bool:
    """Return whether a database with these tables comes from rocprofv3."""
    return any(_TABLE.fullmatch(name) for name in tables)


def rocpd_rows(database: sqlite3.Connection, tables: set[str], file: str) -> Iterator[ProfileRow]:
    """Yield the rows; a device is named by the agent's ``logical_index``.

    Raises SpecError: tables of another schema, or with too many rows; invalid times. Names file, table and row.
    """
    for name in sorted(tables):
        found = _TABLE.fullmatch(name)
        if found is None:
            continue
        what, suffix = found[1], found[2]
        kind, columns, wanted, condition = _ROWS[what]
        beside = {short: f"{table}{suffix}" for short, (table, _) in _BESIDE.items()}
        _check(database, name, columns, file)
        for short, table in beside.items():
            if f"{{{short}}}" in wanted + condition or ("agent_id" in wanted and short == "agent"):
                _check(database, table, _BESIDE[short][1], file)
        agent = f"(SELECT COALESCE(logical_index, absolute_index) FROM {beside['agent']} WHERE id = {{0}})"
        agents = {column: agent.format(column) for column in columns if column.endswith("agent_id")}
        parts = {**beside, **agents}
        query = f'SELECT id, start, "end", {wanted.format(**parts)} FROM {name} {condition.format(**parts)}'
        for row in selected(database, query, name, file):
            yield _rocpd_row(kind, row, f"{file}, {name}")


def _check(database: sqlite3.Connection, table: str, columns: tuple[str, ...], file: str) -> None:
    there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    missing = [column for column in columns if column not in there]
    if missing:
        problem = f"has no {missing[0]!r}: it is of a schema of rocpd that trine does not read (it reads 3)"
        raise SpecError(problem, file=file, field=table)


def _rocpd_row(kind: str, row: tuple[Any, ...], where: str) -> ProfileRow:
    number, start_ns, end_ns, name, device, other, size = row
    if kind == RANGE:
        name, device = _message(device) or name, None
    return spanned(kind, name, (start_ns, end_ns), (device, other), size, where, number)


def _message(text: object) -> str:
    """Return a marker's message, if its event has one beside the call's name."""
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return ""
    said = found.get("message") if isinstance(found, dict) else None
    return said if isinstance(said, str) else ""
