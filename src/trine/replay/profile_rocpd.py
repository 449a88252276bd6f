"""Rows of rocprofv3's databases (rocpd, SQLite, schema 3): kernels, copies between GPUs, roctx ranges.

Tables and columns: those that the writer creates (ROCprofiler-SDK, rocpd_tables.sql). Each is called after what it
holds and the file's GUID (``rocpd_memory_copy_0123_...``); a merged file has several of each. Tables are read, not the
views beside them, which are code of the file.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

from trine.errors import SpecError
from trine.replay.profile_rows import COPY, KERNEL, RANGE, ProfileRow, selected, spanned

ROCPD = "rocpd SQLite"
_TABLE = re.compile(r"rocpd_(kernel_dispatch|memory_copy|region)(\w*)")
#: Of each table that is read: the kind of its rows, its columns, and what of other tables goes with a row.
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
    """Whether a database with these tables is one of rocprofv3's."""
    return any(_TABLE.fullmatch(name) for name in tables)


def rocpd_rows(database: sqlite3.Connection, tables: set[str], file: str) -> Iterator[ProfileRow]:
    """The rows; a device is called by the agent's ``logical_index``.

    Raises
    ------
    SpecError: tables of another schema, or with too many rows; times that are none; names file, table and row.
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
            yield _row(kind, row, f"{file}, {name}")


def _check(database: sqlite3.Connection, table: str, columns: tuple[str, ...], file: str) -> None:
    there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    missing = [column for column in columns if column not in there]
    if missing:
        problem = f"has no {missing[0]!r}: it is of a schema of rocpd that trine does not read (it reads 3)"
        raise SpecError(problem, file=file, field=table)


def _row(kind: str, row: tuple[Any, ...], where: str) -> ProfileRow:
    number, start_ns, end_ns, name, device, other, size = row
    if kind == RANGE:
        name, device = _message(device) or name, None
    return spanned(kind, name, (start_ns, end_ns), (device, other), size, where, number)


def _message(text: object) -> str:
    """What a marker says, where its event has it beside the name of the call."""
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return ""
    said = found.get("message") if isinstance(found, dict) else None
    return said if isinstance(said, str) else ""
