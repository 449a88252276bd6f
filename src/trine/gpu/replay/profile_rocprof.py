"""Rows of rocprofv3's JSON (``--output-format json``): kernels, copies between GPUs, roctx ranges.

Fields are as the writer names them (ROCprofiler-SDK, source/lib/output/generateJSON.cpp, and cxx/serialization) and as
its tests read them: a list of processes, each with its agents, kernels and strings by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trine.errors import SpecError
from trine.gpu.replay.profile_rows import COPY, KERNEL, RANGE, ProfileRow, limited, spanned

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
    said: dict[str, Any]
    agents: dict[object, tuple[str, object]] = field(default_factory=dict)
    kernels: dict[object, str] = field(default_factory=dict)
    messages: dict[object, str] = field(default_factory=dict)
    kinds: list[object] = field(default_factory=list)

    def rows(self) -> Iterator[ProfileRow]:
        self._name()
        records = self.said.get("buffer_records", {})
        for what, row in (("kernel_dispatch", self._kernel), ("memory_copy", self._copy), ("marker_api", self._range)):
            place = self._place(f"buffer_records.{what}")
            found = _list(_mapping(records, self.file, self._place("buffer_records")).get(what, []), self.file, place)
            for number, record in enumerate(limited(found, what, self.file)):
                made = row(_mapping(record, self.file, f"{place}[{number}]"), f"{self.file}, {place}", number)
                if made is not None:
                    yield made

    def _name(self) -> None:
        for agent in self._listed("agents"):
            logical = agent.get("logical_node_id", agent.get("node_id"))
            self.agents[_handle(agent.get("id"))] = (str(logical), agent.get("type"))
        for symbol in self._listed("kernel_symbols"):
            name = symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
            self.kernels[_handle(symbol.get("kernel_id"))] = str(name or "")
        strings = _mapping(self.said.get("strings", {}), self.file, self._place("strings"))
        for message in _list(strings.get("marker_api", []), self.file, self._place("strings.marker_api")):
            if isinstance(message, dict):
                self.messages[_handle(message.get("key"))] = str(message.get("value", ""))
        kinds = _list(strings.get("buffer_records", []), self.file, self._place("strings.buffer_records"))
        self.kinds = [kind.get("kind") if isinstance(kind, dict) else None for kind in kinds]

    def _listed(self, key: str) -> list[dict[str, Any]]:
        return [each for each in _list(self.said.get(key, []), self.file, self._place(key)) if isinstance(each, dict)]

    def _place(self, key: str) -> str:
        return f"{TOOL}[{self.number}].{key}"

    def _agent(self, handle: object, where: str, key: str) -> tuple[str, object]:
        """Return the name and type of an agent."""
        found = self.agents.get(_handle(handle))
        if found is None:
            raise SpecError(f"names no agent of the file: {str(handle)[:40]!r}", file=where, field=key)
        return found

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
        (source, one), (target, other) = (self._agent(record.get(key), f"{where}:{number}", key) for key in keys)
        if source == target or (one, other) != (_GPU, _GPU):
            return None
        size = record.get("bytes")
        name = "MEMORY_COPY_DEVICE_TO_DEVICE"
        return spanned(COPY, name, _span(record), (source, target), size, where, number)

    def _range(self, record: dict[str, Any], where: str, number: int) -> ProfileRow | None:
        """Return the row of a range; None for other markers: the tool's own controls, thread names."""
        kind = record.get("kind")
        known = isinstance(kind, int) and 0 <= kind < len(self.kinds)
        if known and not str(self.kinds[int(kind or 0)]).startswith("MARKER_CORE"):
            return None
        correlation = record.get("correlation_id")
        said = correlation.get("internal") if isinstance(correlation, dict) else None
        return spanned(RANGE, self.messages.get(_handle(said), ""), _span(record), ("", ""), None, where, number)


def _span(record: dict[str, Any]) -> tuple[object, object]:
    return record.get("start_timestamp"), record.get("end_timestamp")


def _handle(agent: object) -> object:
    """Return the number in ``{"handle": 3}``, or None for an invalid handle."""
    found = agent.get("handle") if isinstance(agent, dict) else agent
    return found if isinstance(found, int | str) else None


def _list(value: object, file: str, place: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise SpecError(f"must be a list, got {str(value)[:40]!r}", file=file, field=place)


def _mapping(value: object, file: str, place: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise SpecError(f"must be an object, got {str(value)[:40]!r}", file=file, field=place)
