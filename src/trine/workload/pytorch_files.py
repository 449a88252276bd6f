"""Finding the two halves of a PyTorch pair by contents and names."""

from __future__ import annotations

from pathlib import Path

from trine.errors import TraceError
from trine.inputs import head

KINETO, EXECUTION_TRACE = "kineto", "execution_trace"
_SUFFIXES = (".json", ".json.gz")
_SNIFFED = 65536


def kind_of_file(path: Path) -> str | None:
    """``kineto``, ``execution_trace`` or None, from the first 64 KiB (and the last, of an uncompressed file)."""
    start = head(path, _SNIFFED) if path.name.endswith(_SUFFIXES) else b""
    if b'"traceEvents"' in start:
        return KINETO
    if b'"nodes"' in start and (b"execution_trace" in start or b'"rf_id"' in start or b'"schema"' in start):
        return EXECUTION_TRACE
    return None


def find_pair(path: Path) -> dict[str, Path] | None:
    """The pair at ``path``: a folder that holds it, or one half, whose other half is looked for.

    The other half lies in the same folder or, as TrioSim's tracer writes them, in ``profiler/`` and ``graph/`` beside
    each other. Of several candidates the one whose name shares most with the first half is taken.
    """
    if path.is_dir():
        found = {kind: files for kind in (KINETO, EXECUTION_TRACE) if (files := _candidates(path, kind))}
        if not found.get(KINETO):
            return None
        if len(found[KINETO]) > 1:
            names = ", ".join(file.name for file in found[KINETO][:3])
            raise TraceError(f"holds {len(found[KINETO])} profiler traces ({names}, ...): name one", file=path)
        kineto = found[KINETO][0]
        pair = {KINETO: kineto}
        if other := _closest(kineto, found.get(EXECUTION_TRACE, [])):
            pair[EXECUTION_TRACE] = other
        return pair
    kind = kind_of_file(path)
    if kind is None:
        return None
    other_kind = EXECUTION_TRACE if kind == KINETO else KINETO
    candidates = _candidates(path.parent, other_kind)
    if not candidates and path.parent.name in ("profiler", "graph"):
        candidates = _candidates(path.parent.parent, other_kind)
    pair = {kind: path}
    if other := _closest(path, candidates):
        pair[other_kind] = other
    return pair


def _candidates(folder: Path, kind: str) -> list[Path]:
    places = [folder, folder / "profiler", folder / "graph"]
    files = [file for place in places if place.is_dir() for file in sorted(place.iterdir())]
    return [file for file in files if kind_of_file(file) == kind]


def _closest(path: Path, candidates: list[Path]) -> Path | None:
    """The candidate that shares most words of its name with ``path``; the first by name among equals."""

    def words(file: Path) -> set[str]:
        return set(file.name.removesuffix(".gz").removesuffix(".json").replace("-", "_").split("_"))

    return max(candidates, key=lambda file: len(words(file) & words(path)), default=None)
