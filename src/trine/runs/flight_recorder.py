"""Dumps of PyTorch's flight recorder as JSON: the last collectives that one rank called, with their state.

Keys: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (``dump_json``), versions 2.0 to
2.10. A dump does not name its rank; the file's name does. PyTorch writes pickles by default, which are not read
because unpickling runs code: ``torch._C._distributed_c10d._dump_nccl_trace_json()`` writes JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trine.errors import TraceError
from trine.workload.files import short

COMPLETED, STARTED, SCHEDULED = "completed", "started", "scheduled"
_STATES = (COMPLETED, STARTED, SCHEDULED)
_MAX_ENTRIES = 1_000_000
_MAX_NS = 2**63
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """A collective that a rank called.

    group: name of its process group. number: position among the group's collectives, as PyTorch counts. operation:
    such as ``all_reduce``. shapes: of the inputs, as text. state: completed, started or scheduled (its kernel has not
    begun). created_ns: when the rank called it, on its own clock.
    """

    group: str
    number: int
    operation: str
    shapes: str
    state: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank. groups: the ranks of each process group by name. last_ns: the last time in the dump."""

    file: str
    rank: int
    entries: tuple[DumpEntry, ...]
    groups: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]
    last_ns: int


def is_dump(content: Mapping[str, object]) -> bool:
    """Return whether the top-level object is a dump of the flight recorder."""
    return "pg_config" in content and "version" in content


def dump_from_json(path: Path, content: Mapping[str, object], rank: int | None) -> Dump:
    """Return a rank's dump. rank: from the file's name.

    Raises TraceError naming the entry at fault, or for a dump of another version or without a rank.
    """
    if rank is None:
        raise TraceError("names no rank: a dump's file name ends in its rank, such as nccl_trace_rank_3", file=path)
    version = content.get("version")
    if not isinstance(version, str) or (found := _VERSION.fullmatch(version)) is None or found[1] != "2":
        raise TraceError(f"is a flight recorder dump of version {short(version)}; versions 2.x are known", file=path)
    groups, descriptions = _groups(content.get("pg_config"))
    rows = content.get("entries", [])
    if not isinstance(rows, list) or len(rows) > _MAX_ENTRIES:
        raise TraceError(f"must be a list of at most {_MAX_ENTRIES} entries", file=path, field="entries")
    entries, last_ns = [], 0
    for index, row in enumerate(rows):
        entry = _entry(row, path, f"entries[{index}]")
        if entry is not None:
            entries.append(entry)
        if isinstance(row, dict):
            for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
                last_ns = max(last_ns, _count(row.get(key)) or 0)
    return Dump(str(path), rank, tuple(entries), groups, descriptions, last_ns)


def _groups(config: object) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for name, facts in config.items() if isinstance(config, dict) else ():
        ranks = facts.get("ranks") if isinstance(facts, dict) else None
        if isinstance(ranks, str) and re.fullmatch(r"\[[\d, ]*\]", ranks):
            groups[name] = tuple(sorted(int(each) for each in re.findall(r"\d{1,8}", ranks)))
        if isinstance(facts, dict) and isinstance(facts.get("desc"), str):
            descriptions[name] = facts["desc"][:100]
    return groups, descriptions


def _entry(row: object, path: Path, place: str) -> DumpEntry | None:
    """Return a collective, None for a message between two ranks, which its group does not count."""
    if not isinstance(row, dict):
        raise TraceError(f"must be an object, got {short(row)}", file=path, field=place)
    if row.get("is_p2p") is True:
        return None
    number, group, state = _count(row.get("collective_seq_id")), row.get("process_group"), row.get("state")
    if number is None:
        raise TraceError(f"must be a number, got {short(row.get('collective_seq_id'))}", file=path,
                         field=f"{place}.collective_seq_id")  # fmt: skip
    if not isinstance(group, list) or not group or not isinstance(group[0], str):
        raise TraceError(f"must be a name and a description, got {short(group)}", file=path,
                         field=f"{place}.process_group")  # fmt: skip
    if state not in _STATES:
        raise TraceError(f"must be one of {', '.join(_STATES)}, got {short(state)}", file=path, field=f"{place}.state")
    name = row.get("profiling_name")
    operation = name.rpartition(":")[2][:100] if isinstance(name, str) else "collective"
    shapes = str(row.get("input_sizes", ""))[:200]
    return DumpEntry(group[0][:100], number, operation, shapes, str(state), _count(row.get("time_created_ns")) or 0)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_NS:
        return None
    return value
