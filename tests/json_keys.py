"""Keys of JSON answers, and whether docs/reference/json-keys.csv has them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from json_reference import Row, declared_rows, paths, read_rows

__all__ = ["ROWS", "Row", "declared_rows", "documented", "paths", "problems", "row_of"]
ROWS = read_rows()
Key = tuple[str, ...]


def documented(answer: str) -> dict[Key, Row]:
    """Return the keys of an answer as the CSV has them, without marks of lists, and the objects they are in."""
    known = {tuple(key.replace("[]", "").split(".")): row for key, row in paths(ROWS, answer)}
    inside = {key[:length] for key in known for length in range(1, len(key)) if key[length - 1] == "*"}
    return {key: Row(answer, (".".join(key),), "object", "", "") for key in inside} | known


def leaves(value: Any, at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Return every key at any depth, with its value; entries of lists have the key of their list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name), inner
            yield from leaves(inner, (*at, name))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, at)


def _match(pattern: Key, key: Key) -> bool:
    return len(pattern) == len(key) and all(part in ("*", name) for part, name in zip(pattern, key, strict=True))


def row_of(known: dict[Key, Row], key: Key) -> Row | None:
    """Return the row of a key, or of an object or list above it whose keys are free."""
    for length in range(len(key), 0, -1):
        part = key[:length]
        row = known.get(part) or next((row for pattern, row in known.items() if _match(pattern, part)), None)
        if row is not None:
            return row if length == len(key) or row.is_open else None
    return None


def problems(answer: str, contents: Iterable[dict[str, Any]], *, rare: Collection[str] = ()) -> list[str]:
    """Compare answers with the CSV, in both directions; ``rare``: keys that these answers need not have."""
    known, used, found = documented(answer), set[Key](), []
    for content in contents:
        for key, value in leaves(content):
            row = row_of(known, key)
            if row is None:
                found.append(f"{answer}: {'.'.join(key)} is not in json-keys.csv")
            elif value is None and not row.null_if and not row.is_open:
                found.append(f"{answer}: {'.'.join(key)} is null; json-keys.csv has no null_if")
            used.update(pattern for pattern in known if _match(pattern, key))
    missing = {".".join(key) for key in set(known) - used}
    found += [f"{answer}: no answer has {key}" for key in sorted(missing - set(rare))]
    return list(dict.fromkeys(found))
