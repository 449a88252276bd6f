"""Rows of profiles other than CSV: PyTorch profiler traces (Kineto), rocprofv3 JSON, rocprofv3 and nsys SQLite.

Kineto's categories and arguments: pytorch/kineto, libkineto/src/CuptiActivity.h and output_json.cpp, and published
traces (HolisticTraceAnalysis, tests/data). Tables of nsys: its exporter's schema reference.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from trine.common.inputs import head, open_input, read_bytes
from trine.common.units import MAX_INT64
from trine.errors import SpecError
from trine.gpu.replay.profile_rows import (
    COPY,
    KERNEL,
    MAX_FILE_BYTES,
    RANGE,
    ProfileRow,
    limited,
    read_rows,
    selected,
    spanned,
)
from trine.gpu.replay.rocpd import ROCPD, is_rocpd, rocpd_rows

# Rows of rocprofv3's JSON (``--output-format json``): kernels, copies between GPUs, roctx ranges.
#
# Fields are as the writer names them (ROCprofiler-SDK, source/lib/output/generateJSON.cpp, and cxx/serialization) and
# as its tests read them: a list of processes, each with its agents, kernels and strings by number.

ROCPROF = "rocprofv3 JSON"
TOOL = "rocprofiler-sdk-tool"
_GPU = 2


def is_rocprof(document: object) -> bool:
    """Return whether a JSON document comes from rocprofv3."""
    return isinstance(document, dict) and TOOL in document


def rocprof_rows(document: dict[str, Any], file: str) -> Iterator[ProfileRow]:
    """Yield the rows; a device is named by its agent's ``logical_node_id``.

    Raises SpecError for a missing field, a field of the wrong type, invalid times, or too many rows; the error names
    the file and the place.
    """
    processes = document[TOOL]
    for number, process in enumerate([processes] if isinstance(processes, dict) else _list(processes, file, TOOL)):
        yield from _Process(file, number, _mapping(process, file, f"{TOOL}[{number}]")).rows()


@dataclass(slots=True)
class _Process:
    """Activity of one process. agents: name and type by handle; kernels, messages: texts by number."""

    file: str
    number: int
    data: dict[str, Any]
    agents: dict[object, tuple[str, object]] = field(default_factory=dict)
    kernels: dict[object, str] = field(default_factory=dict)
    messages: dict[object, str] = field(default_factory=dict)
    kinds: list[object] = field(default_factory=list)

    def rows(self) -> Iterator[ProfileRow]:
        self._name()
        records = self.data.get("buffer_records", {})
        for name, read in (("kernel_dispatch", self._kernel), ("memory_copy", self._copy), ("marker_api", self._range)):
            place = self._place(f"buffer_records.{name}")
            items = _list(_mapping(records, self.file, self._place("buffer_records")).get(name, []), self.file, place)
            for number, record in enumerate(limited(items, name, self.file)):
                row = read(_mapping(record, self.file, f"{place}[{number}]"), f"{self.file}, {place}", number)
                if row is not None:
                    yield row

    def _name(self) -> None:
        for agent in self._listed("agents"):
            logical = agent.get("logical_node_id", agent.get("node_id"))
            self.agents[_handle(agent.get("id"))] = (str(logical), agent.get("type"))
        for symbol in self._listed("kernel_symbols"):
            name = symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
            self.kernels[_handle(symbol.get("kernel_id"))] = str(name or "")
        strings = _mapping(self.data.get("strings", {}), self.file, self._place("strings"))
        for message in _list(strings.get("marker_api", []), self.file, self._place("strings.marker_api")):
            if isinstance(message, dict):
                self.messages[_handle(message.get("key"))] = str(message.get("value", ""))
        kinds = _list(strings.get("buffer_records", []), self.file, self._place("strings.buffer_records"))
        kind_names = []
        for kind in kinds:
            kind_names.append(kind.get("kind") if isinstance(kind, dict) else None)
        self.kinds = kind_names

    def _listed(self, key: str) -> list[dict[str, Any]]:
        return [item for item in _list(self.data.get(key, []), self.file, self._place(key)) if isinstance(item, dict)]

    def _place(self, key: str) -> str:
        return f"{TOOL}[{self.number}].{key}"

    def _agent(self, handle: object, where: str, key: str) -> tuple[str, object]:
        """Return the name and type of an agent."""
        agent = self.agents.get(_handle(handle))
        if agent is None:
            raise SpecError(f"names no agent of the file: {str(handle)[:40]!r}", file=where, field=key)
        return agent

    def _kernel(self, record: dict[str, Any], where: str, number: int) -> ProfileRow:
        info = record.get("dispatch_info")
        if not isinstance(info, dict):
            raise SpecError("is missing: rocprofv3 of another version wrote it", file=f"{where}:{number}",
                            field="dispatch_info")  # fmt: skip
        device, _ = self._agent(info.get("agent_id"), f"{where}:{number}", "dispatch_info.agent_id")
        name = self.kernels.get(_handle(info.get("kernel_id")), "")
        return spanned(KERNEL, name, _span(record), (device, ""), None, where, number)

    def _copy(self, record: dict[str, Any], where: str, number: int) -> ProfileRow | None:
        """Return the row of a copy between GPUs; None for a copy within a device, or to or from the host."""
        keys = ("src_agent_id", "dst_agent_id")
        (source, kind), (target, other_kind) = (self._agent(record.get(key), f"{where}:{number}", key) for key in keys)
        if source == target or (kind, other_kind) != (_GPU, _GPU):
            return None
        size = record.get("bytes")
        name = "MEMORY_COPY_DEVICE_TO_DEVICE"
        return spanned(COPY, name, _span(record), (source, target), size, where, number)

    def _range(self, record: dict[str, Any], where: str, number: int) -> ProfileRow | None:
        """Return the row of a range; None for other markers: the tool's own controls, thread names."""
        kind = record.get("kind")
        is_known = isinstance(kind, int) and 0 <= kind < len(self.kinds)
        if is_known and not str(self.kinds[int(kind or 0)]).startswith("MARKER_CORE"):
            return None
        correlation = record.get("correlation_id")
        handle = correlation.get("internal") if isinstance(correlation, dict) else None
        return spanned(RANGE, self.messages.get(_handle(handle), ""), _span(record), ("", ""), None, where, number)


def _span(record: dict[str, Any]) -> tuple[object, object]:
    return record.get("start_timestamp"), record.get("end_timestamp")


def _handle(agent: object) -> object:
    """Return the number in ``{"handle": 3}``, or None for an invalid handle."""
    number = agent.get("handle") if isinstance(agent, dict) else agent
    return number if isinstance(number, int | str) else None


def _list(value: object, file: str, place: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise SpecError(f"must be a list, got {str(value)[:40]!r}", file=file, field=place)


def _mapping(value: object, file: str, place: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise SpecError(f"must be an object, got {str(value)[:40]!r}", file=file, field=place)


KINETO, NSYS = "Kineto trace", "nsys SQLite"
#: Limits of an unpacked trace, and of a database, which is not read as a whole.
MAX_UNPACKED_BYTES, MAX_DATABASE_BYTES = 1 << 30, 1 << 34
_SQLITE = b"SQLite format 3\0"
#: Categories of Kineto's events, current and before 2022.
_KINDS = {"kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": COPY, "Memcpy": COPY, "gpu_user_annotation": RANGE}
#: CUPTI's kinds of copies between device memories: on one or two devices, and peer to peer.
_DEVICE_TO_DEVICE, _PEER_TO_PEER = 8, 10


def read_events(
    path: str | os.PathLike[str], aliases: dict[str, str] | None, by_rank: bool
) -> tuple[str, list[ProfileRow]]:
    """Return format name and rows of a file of any known kind; ``aliases``, for CSV: names of columns that differ.

    by_rank: name devices of a Kineto trace ``rank 3``, after the process that wrote it, instead of by number.

    Raises SpecError, naming file and place.
    """
    beginning = head(path, 4096)
    if beginning.startswith(_SQLITE):
        return _database(path)
    if beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        document = _loaded(path, os.fspath(path))
        if is_rocprof(document):
            return ROCPROF, list(rocprof_rows(document, os.fspath(path)))
        return KINETO, list(_kineto(document, os.fspath(path), by_rank))
    return read_rows(path, aliases)


# Kineto


def _kineto(trace: Any, file: str, by_rank: bool) -> Iterator[ProfileRow]:
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise SpecError("has no list of events, as traces of PyTorch's profiler have", file=file, field="traceEvents")
    base_ns = trace.get("baseTimeNanoseconds", 0) if isinstance(trace, dict) else 0
    rank = ""
    if by_rank:
        info = trace.get("distributedInfo") if isinstance(trace, dict) else None
        if not isinstance(info, dict) or not isinstance(info.get("rank"), int):
            raise SpecError("has no rank", file=file, field="distributedInfo.rank")
        rank = f"rank {info['rank']}"
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
    raw_args = event.get("args")
    args = raw_args if isinstance(raw_args, dict) else {}
    source, target = args.get("fromDevice"), args.get("toDevice")
    if kind == COPY and source is None and "PtoP" not in name and "Peer" not in name:
        return None
    if kind == COPY and source is not None and source == target:
        return None
    where = f"{file}, event {number}"
    start_ps, lasts_ps = (_microseconds(event.get(key), where, key) for key in ("ts", "dur"))
    device = source if source is not None else args.get("device", event.get("pid"))
    given_bytes = args.get("bytes")
    size = given_bytes if isinstance(given_bytes, int) and given_bytes > 0 else None
    target_name = "" if rank or target is None else str(target)
    begins_ps = base_ps + start_ps
    return ProfileRow(kind, name, begins_ps, begins_ps + lasts_ps, rank or str(device), target_name, size, file, number)


def _microseconds(value: object, where: str, key: str) -> int:
    """Return picoseconds from a number of microseconds; older traces store it as text."""
    try:
        number = Decimal(value) if isinstance(value, int | str | Decimal) and not isinstance(value, bool) else None
    except ArithmeticError:
        number = None
    if number is None or not number.is_finite() or not 0 <= number <= MAX_INT64 // 1000:
        raise SpecError(f"must be microseconds, got {str(value)[:40]!r}", file=where, field=key)
    return int(number * 10**6)


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
    num_tables = 0
    for table, kind, device, name, condition in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, "deviceId", "demangledName", ""),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, "deviceId", "copyKind",
         f"WHERE copyKind IN ({_DEVICE_TO_DEVICE}, {_PEER_TO_PEER})"),
        ("NVTX_EVENTS", RANGE, "0", "text", "WHERE end IS NOT NULL"),
    ):  # fmt: skip
        if table not in tables:
            continue
        num_tables += 1
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        names = "(SELECT value FROM StringIds WHERE id = {})"
        if kind == KERNEL:
            name = names.format(name)
        elif kind == RANGE and "textId" in columns:
            name = f"COALESCE(text, {names.format('textId')})"
        has_devices = kind == COPY and {"srcDeviceId", "dstDeviceId"} <= columns
        source, target = ("srcDeviceId", "dstDeviceId") if has_devices else (device, "NULL")
        size = "bytes" if kind == COPY else "NULL"
        query = f"SELECT rowid, {name}, start, end, {source}, {target}, {size}, {device} FROM {table} {condition}"
        for row in selected(database, query, table, file):
            profile_row = _row(kind, row, f"{file}, {table}")
            if profile_row is not None:
                yield profile_row
    if not num_tables:
        raise SpecError("has no table of kernels, copies or ranges that nsys or rocprofv3 exports", file=file)


def _row(kind: str, row: tuple[Any, ...], where: str) -> ProfileRow | None:
    number, name, start_ns, end_ns, source, target, size, device = row
    if kind == COPY:
        if name == _DEVICE_TO_DEVICE and (target is None or source == target):
            return None  # on one device
        name = "Peer-to-Peer" if name == _PEER_TO_PEER else "Device-to-Device"
    if kind == RANGE:
        device_name = None
    else:
        device_name = str(device if source is None else source)
    return spanned(kind, name, (start_ns, end_ns), (device_name, target), size, where, number)
