"""Files of GPU models on top of each other: a file may stand on a preset or a file, and say only what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trine.errors import SpecError, nearest
from trine.evidence import ASSUMED, MEASURED, MODELLED
from trine.gpu.model_fields import GROUPS, PATHS

#: Of each field: evidence and source.
Origins = dict[str, tuple[str, str]]
FindBase = Callable[[object, Path], Path]


def layered(path: Path, find_base: FindBase) -> tuple[object, Origins]:
    """What a file says, on top of what its base says; and where each number comes from.

    ``find_base``: the file that the word after ``base:`` means, in a file.

    Raises
    ------
    SpecError: a file that cannot be read, bases without end, or notes on fields that a file does not set.
    """
    from trine.spec import with_bases

    data: dict[str, Any] | None = None
    origins: Origins = {}
    for place, own in reversed(with_bases(path, find_base)):
        if not isinstance(own, Mapping):
            if place != path:
                raise SpecError("is not a mapping", file=place)
            return own, {}
        added = _origins(own, place)
        if data is None:
            data, origins = {**own, "sources": {}, "evidence": {}}, added
            continue
        merged = _merged(data, own)
        gone = _fields(data) - _fields(merged)
        data, origins = merged, {**{key: entry for key, entry in origins.items() if key not in gone}, **added}
    return data, origins


def _merged(under: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``under``; groups field by field. Rows and columns go with a mesh that is one no more."""
    data = {**under, **own, "sources": {}, "evidence": {}, "name": own.get("name")}
    for group in GROUPS:
        below, above = under.get(group), own.get(group)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            data[group] = {**below, **above}
    if isinstance(own.get("noc"), Mapping) and own["noc"].get("kind") == "crossbar":
        data["noc"] = {
            key: value for key, value in data["noc"].items() if key not in ("rows", "cols") or key in own["noc"]
        }
    return data


def _fields(data: Mapping[str, Any]) -> set[str]:
    """The paths of the fields that a file sets."""
    found = {path for path in PATHS if "." not in path and path in data}
    for group in GROUPS:
        if isinstance(data.get(group), Mapping):
            found |= {path for path in PATHS if path.startswith(f"{group}.") and path.split(".")[1] in data[group]}
    return found


def _origins(own: Mapping[str, Any], path: Path) -> Origins:
    """Evidence and source of each field that this file sets: its own entry, else that of its group, else assumed."""
    fields = _fields(own)
    notes = {}
    for key in ("evidence", "sources"):
        given = own.get(key) or {}
        if not isinstance(given, Mapping):
            raise SpecError(f"must be a mapping of fields, got {given!r:.80}", file=path, field=key)
        notes[key] = {str(name): str(text) for name, text in given.items()}
        for name in notes[key]:
            _check_key(name, fields, key, path)
    _check_words(notes["evidence"], path)
    return {
        field: (_of(field, notes["evidence"], ASSUMED), _of(field, notes["sources"], f"no source given in {path.name}"))
        for field in fields
    }


def _of(field: str, notes: Mapping[str, str], otherwise: str) -> str:
    return notes.get(field) or notes.get(field.split(".")[0]) or otherwise


def _check_key(name: str, fields: set[str], key: str, path: Path) -> None:
    known = (*PATHS, *GROUPS)
    if name not in known:
        raise SpecError(f"unknown field{nearest(name[:80], known)}", file=path, field=f"{key}.{name[:80]}")
    if name not in fields and not any(field.startswith(f"{name}.") for field in fields):
        raise SpecError(f"this file does not set {name!r}", file=path, field=f"{key}.{name}")


def _check_words(evidence: Mapping[str, str], path: Path) -> None:
    words = (MEASURED, MODELLED, ASSUMED)
    for name, word in evidence.items():
        if word not in words:
            raise SpecError(
                f"unknown word {word!r:.80}{nearest(word[:80], words)}", file=path, field=f"evidence.{name}"
            )
