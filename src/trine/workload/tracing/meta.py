"""The third file of a capture, ``meta.json``, read strictly and written deterministically.

A capture is a directory with :data:`KINETO_FILE`, :data:`EXECUTION_TRACE_FILE` and :data:`META_FILE`. The first two are
PyTorch's own formats; the third has data they cannot hold: step times measured without the profiler, and the machine.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trine.common.inputs import read_text
from trine.common.outputs import write_text
from trine.common.units import MAX_INT64
from trine.errors import TraceError, nearest
from trine.graph.workload import TRACED_STEP, Workload

KINETO_FILE = "kineto.json.gz"
EXECUTION_TRACE_FILE = "execution_trace.json.gz"
META_FILE = "meta.json"
CAPTURE_FILES = (EXECUTION_TRACE_FILE, KINETO_FILE, META_FILE)

FORMAT, VERSION = "trine-capture", 1
_MAX_BYTES = 1 << 20  # the file has some 30 short lines
_MAX_TEXT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureMeta:
    """Conditions of a capture.

    ``device``: ``cuda`` or ``cpu``; ``device_name``: from the driver or the system. ``warmup_steps``: steps before the
    first measured one. ``unprofiled_steps_ps``: wall time of each step without the profiler, device synchronised before
    and after, in picoseconds. ``traced_step_ps``: the same for the traced step, with the profiler. ``versions``,
    ``host``, ``settings``: names and values for people.
    """

    name: str
    device: str
    device_name: str
    captured_at: str
    warmup_steps: int
    unprofiled_steps_ps: tuple[int, ...]
    traced_step_ps: int
    versions: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def unprofiled_step_ps(self) -> int:
        """Median of the un-profiled steps in picoseconds (the lower of two middle steps)."""
        return statistics.median_low(self.unprofiled_steps_ps)


def write_meta(meta: CaptureMeta, path: Path) -> None:
    """Write ``meta`` as JSON to ``path``; it includes the median for people, which is checked on reading."""
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(meta)}
    document["unprofiled_step_median_ps"] = meta.unprofiled_step_ps
    write_text(path, json.dumps(document, indent=2) + "\n")


def read_meta(path: Path) -> CaptureMeta:
    """Read a capture's ``meta.json``.

    Raises TraceError, naming the file and the field, if the file is invalid.
    """
    document = _read_object(path)
    version = (document.pop("format", None), document.pop("version", None))
    if version != (FORMAT, VERSION):
        raise TraceError(f"must be {(FORMAT, VERSION)}, got {version}", file=path, field="format, version")
    median = document.pop("unprofiled_step_median_ps", None)
    names = [f.name for f in dataclasses.fields(CaptureMeta)]
    for key in document:
        if key not in names:
            raise TraceError(f"unknown field{nearest(key, names)}", file=path, field=key[:80])
    for key in names:
        if key not in document:
            raise TraceError("missing field", file=path, field=key)
    meta = CaptureMeta(**{key: _checked(key, document[key], path) for key in names})
    if median != meta.unprofiled_step_ps:
        raise TraceError(
            f"is {median!r}, but the median of unprofiled_steps_ps is {meta.unprofiled_step_ps}",
            file=path,
            field="unprofiled_step_median_ps",
        )
    return meta


def with_meta(workload: Workload, meta: CaptureMeta) -> Workload:
    """Return ``workload`` with the un-profiled step time, device and machine from ``meta``."""
    metadata = {key: value for key, value in workload.metadata.items() if value}  # a capture blanks the host's name
    metadata.update(device=meta.device, device_name=meta.device_name, captured_at=meta.captured_at)
    metadata.update(warmup_steps=str(meta.warmup_steps), timed_steps=str(len(meta.unprofiled_steps_ps)))
    metadata[TRACED_STEP] = str(meta.traced_step_ps)
    for group in ("versions", "host", "settings"):
        metadata.update({f"{group}.{key}": value for key, value in getattr(meta, group).items()})
    gpu = meta.device_name if meta.device == "cuda" else None
    return dataclasses.replace(
        workload,
        name=meta.name,
        gpu=workload.gpu or gpu,
        unprofiled_step_ps=meta.unprofiled_step_ps,
        metadata=metadata,
    )


def with_meta_beside(workload: Workload, kineto: Path) -> Workload:
    """Return ``workload``, read from the profiler file ``kineto``, with the metadata beside that file, if any.

    Raises TraceError if the file has a capture's name and its ``meta.json`` cannot be read.
    """
    path = kineto.with_name(META_FILE)
    if kineto.name != KINETO_FILE or not path.exists():
        return workload
    return with_meta(workload, read_meta(path))


def _read_object(path: Path) -> dict[str, Any]:
    text = read_text(path, _MAX_BYTES, TraceError)
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:  # bad JSON, a repeated key, too deep
        raise TraceError(f"is not the JSON of a capture: {error}", file=path) from error
    if not isinstance(document, dict):
        raise TraceError(f"must be a JSON object, got {type(document).__name__}", file=path)
    return document


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice")
    return document


def _checked(key: str, value: Any, path: Path) -> Any:
    """Return ``value`` of field ``key`` in CaptureMeta's type, or raise TraceError."""
    if key in ("versions", "host", "settings"):
        if isinstance(value, dict) and all(_is_text(item) for pair in value.items() for item in pair):
            return value
        raise TraceError("must be an object of strings", file=path, field=key)
    if key == "unprofiled_steps_ps":
        if isinstance(value, list) and value and all(_is_count(item) and item > 0 for item in value):
            return tuple(value)
        raise TraceError("must be a list of positive whole picoseconds", file=path, field=key)
    if key in ("warmup_steps", "traced_step_ps"):
        if _is_count(value):
            return value
        raise TraceError(f"must be a whole number, zero or more; got {str(value)[:80]!r}", file=path, field=key)
    if not _is_text(value):
        raise TraceError(f"must be a string of at most {_MAX_TEXT} characters", file=path, field=key)
    if key == "device" and value not in ("cuda", "cpu"):
        raise TraceError(f"must be 'cuda' or 'cpu', got {value!r}", file=path, field=key)
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT64
