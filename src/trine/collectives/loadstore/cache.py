"""Durations of load-store runs, kept on disk: JSON, bounded, and never believed where it is damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trine.outputs import open_whole, user_cache

_FORMAT, _VERSION = "trine-loadstore-durations", 1
_MAX_BYTES, _MAX_ENTRIES, _MAX_NAME = 1 << 20, 4096, 256
#: Files of a folder; beyond, the ones that were not written for longest go.
MAX_FILES = 512

#: size in bytes -> (duration in ps, the program that took it)
Known = dict[int, tuple[int, str]]


def user_folder() -> Path | None:
    """``$XDG_CACHE_HOME/trine/loadstore``, or that of ``~/.cache``; None where there is no home."""
    base = user_cache()
    return None if base is None else base / "trine" / "loadstore"


class DurationCache:
    """One file a key, in ``folder``; None keeps nothing. ``notes``: what went wrong, in sentences.

    A key is plain data; a file is believed only if it holds the whole key, and every entry is what it should be.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def read(self, key: Mapping[str, Any]) -> Known:
        """What is known for ``key``; empty where there is no file, or a damaged one, which a note names."""
        path = self._path(key)
        if path is None or not path.exists():
            return {}
        try:
            found = _durations(path, key)
        except OSError as error:
            self._note(f"cannot read {path} ({error.strerror or error}): it is not used")
            return {}
        if found is None:
            self._note(f"{path} is damaged: it is not used, and is written anew")
            return {}
        return found

    def add(self, key: Mapping[str, Any], size_bytes: int, time_ps: int, name: str) -> None:
        """Keep one more duration; a note says where that cannot be done."""
        path = self._path(key)
        if path is None:
            return
        known = self.read(key)
        known[size_bytes] = time_ps, name
        rows = [[size, *known[size]] for size in sorted(known)][:_MAX_ENTRIES]
        data = {"format": _FORMAT, "version": _VERSION, "key": key, "durations": rows}
        try:
            _write(path, json.dumps(data, separators=(",", ":"), allow_nan=False))
            _drop_old(path.parent)
        except OSError as error:
            self._note(f"durations of collectives are not kept: cannot write {path.parent} ({error.strerror or error})")

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        text = json.dumps(key, sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _durations(path: Path, key: Mapping[str, Any]) -> Known | None:
    """The entries of a file; None where anything is not as :meth:`DurationCache.add` writes it."""
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"format", "version", "key", "durations"}:
        return None
    if (data["format"], data["version"], data["key"]) != (_FORMAT, _VERSION, dict(key)):
        return None
    rows = data["durations"]
    if not isinstance(rows, list) or len(rows) > _MAX_ENTRIES or not all(map(_is_row, rows)):
        return None
    return {size: (time_ps, name) for size, time_ps, name in rows}


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    size, time_ps, name = row
    whole = all(type(number) is int and 0 < number < 1 << 62 for number in (size, time_ps))
    return whole and isinstance(name, str) and len(name) <= _MAX_NAME


def _write(path: Path, text: str) -> None:
    """All of it or nothing, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(os.fspath(path)) as file:
        file.write(text.encode())


def _drop_old(folder: Path) -> None:
    files = [Path(entry) for entry in os.scandir(folder) if entry.name.endswith((".json", ".part"))]
    if len(files) <= MAX_FILES:
        return
    files.sort(key=_written_at)
    for path in files[: len(files) - MAX_FILES]:
        path.unlink(missing_ok=True)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process has dropped it in the meantime
        return 0.0
