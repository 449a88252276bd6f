"""The formats of traces by name, and the traces that come with trine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trine.common.inputs import PRESETS, head
from trine.common.plugins import Registry
from trine.errors import TraceError
from trine.graph.workload import Workload


@dataclass(frozen=True, slots=True)
class TraceReader:
    """One format. ``find`` returns the files of the format at a path, by role, or None if they are not there.

    ``read`` takes what ``find`` returned and the batch size that overrides the inferred one. ``looks_for``
    describes the files of the format, for errors.
    """

    name: str
    looks_for: str
    find: Callable[[Path], dict[str, Path] | None]
    read: Callable[[dict[str, Path], int | None], Workload]


READERS: Registry[TraceReader] = Registry(
    "trace reader",
    "trine.traces",
    {
        "native": "trine.workload.native_reader:READER",
        "triosim": "trine.workload.triosim:READER",
        "pytorch": "trine.workload.pytorch.reader:READER",
    },
)

_TRACES = PRESETS / "traces"
#: The GPU of the bundled traces: TrioSim's raw pair of the same set of recordings names it (SOURCE.md beside each).
_BUNDLED_GPU = "NVIDIA H100 80GB HBM3"


def bundled() -> tuple[str, ...]:
    """Return the names of the traces that come with trine."""
    if _TRACES.is_dir():
        return tuple(sorted(p.name for p in _TRACES.iterdir() if p.is_dir()))
    return ()


def load_bundled(name: str, batch: int | None) -> Workload:
    """Load a bundled trace, and add the GPU name that its files lack."""
    workload = read_trace(_TRACES / name, batch)
    missing = tuple(text for text in workload.missing if text != "the GPU's name")
    return replace(workload, source=f"bundled:{name}", gpu=_BUNDLED_GPU, missing=missing)


def read_trace(place: Path, batch: int | None) -> Workload:
    """Read the trace at ``place`` with the first reader that finds its files. Raises TraceError if none does."""
    for reader in READERS.each():
        files_found = reader.find(place)
        if files_found is not None:
            return reader.read(files_found, batch)
    from trine.common.recognise import TRACE, foreign_file

    start = head(place / "config.json" if place.is_dir() else place, 1 << 18)
    if place.is_file() and not start.strip():
        raise TraceError("is empty", file=place)
    foreign = foreign_file(start.decode("utf-8", "replace"), TRACE) if start else None
    if foreign is not None:
        raise TraceError(foreign, file=place)
    formats = "; ".join(f"{reader.name}: {reader.looks_for}" for reader in READERS.each())
    raise TraceError(f"not a trace; trine reads: {formats}", file=place)
