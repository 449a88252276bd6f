"""Rows of rocprofv3's databases (rocpd, SQLite, schema 3): kernels, copies between GPUs, roctx ranges.

Tables and columns: as created by the writer (ROCprofiler-SDK, rocpd_tables.sql). A table's name has its content and the
file's GUID (``rocpd_memory_copy_0123_...``); a merged file has several of each. trine reads tables and not the views
beside them, because views are code from the file.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.errors import SpecError
from trine.gpu.replay.profile_rows import RANGE, ProfileRow, selected, spanned

ROCPD = "rocpd SQLite"
_TABLE = re.compile(r"rocpd_(kernel_dispatch|memory_copy|region)(\w*)")


def is_rocpd(tables: set[str]) -> bool:
    """Return whether a database with these tables comes from rocprofv3."""
    return any(_TABLE.fullmatch(name) for name in tables)


def rocpd_rows(database: sqlite3.Connection, tables: set[str], file: str) -> Iterator[ProfileRow]:
    """Yield the rows; a device is named by the agent's ``logical_index``.

    Raises SpecError: tables of another schema, or with too many rows; invalid times. Names file, table and row.
    """
    read: Any = load_mapping(PRESETS / "formats" / "rocpd.yaml")
    for name in sorted(tables):
        match = _TABLE.fullmatch(name)
        if match is None:
            continue
        content, suffix = match[1], match[2]
        columns, values, condition = (read["rows"][content][key] for key in ("columns", "values", "condition"))
        beside = {short: f"{other['table']}{suffix}" for short, other in read["others"].items()}
        _check(database, name, columns, file)
        for short, table in beside.items():
            if f"{{{short}}}" in values + condition or ("agent_id" in values and short == "agent"):
                _check(database, table, read["others"][short]["columns"], file)
        agent = f"(SELECT COALESCE(logical_index, absolute_index) FROM {beside['agent']} WHERE id = {{0}})"
        agents = {column: agent.format(column) for column in columns if column.endswith("agent_id")}
        parts = {**beside, **agents}
        query = f'SELECT id, start, "end", {values.format(**parts)} FROM {name} {condition.format(**parts)}'
        for row in selected(database, query, name, file):
            yield _rocpd_row(read["rows"][content]["kind"], row, f"{file}, {name}")


def _check(database: sqlite3.Connection, table: str, columns: Sequence[str], file: str) -> None:
    present = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    missing = [column for column in columns if column not in present]
    if missing:
        problem = f"has no {missing[0]!r}: it is of a schema of rocpd that trine does not read (it reads 3)"
        raise SpecError(problem, file=file, field=table)


def _rocpd_row(kind: str, row: tuple[Any, ...], where: str) -> ProfileRow:
    number, start_ns, end_ns, name, device, target, size = row
    if kind == RANGE:
        name, device = _message(device) or name, None
    return spanned(kind, name, (start_ns, end_ns), (device, target), size, where, number)


def _message(text: object) -> str:
    """Return a marker's message, if its event has one beside the call's name."""
    try:
        data = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return ""
    message = data.get("message") if isinstance(data, dict) else None
    return message if isinstance(message, str) else ""
