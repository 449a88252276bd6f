"""Journals: the results of an experiment as lines of JSON, one append-only file per worker process.

The first line says whose results follow; each later line is one point. A line counts once its end is written: a kill
leaves at most one torn last line, which readers skip. Journals of shard i of n lie in ``journal/i-of-n``, so that a
shard reads the results of its points only.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trine.common._version import __version__
from trine.common.spec import parse_json
from trine.errors import InputError
from trine.experiments.spec import RESULT_VERSION, ExperimentSpec, Shard, canonical

#: One result: point, key, status, fields, result (or reason), seconds.
Entry = dict[str, Any]
FOLDER = "journal"
#: Text that only a failed point's line has: quotes inside values are escaped.
_FAILED = b'"status":"failed"'


def folder_of(directory: Path, shard: Shard) -> Path:
    """Return the folder of a shard's journals."""
    return directory / FOLDER / f"{shard.number}-of-{shard.count}"


def environment() -> dict[str, Any]:
    """Return the versions and the host of this process."""
    return {
        "trine": __version__, "result_version": RESULT_VERSION, "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")}, "platform": platform.platform(),
        "host": socket.gethostname(), "cpus": os.cpu_count(),
    }  # fmt: skip


class WorkerJournal:
    """The journal of one process, opened for its first entry and closed with the process."""

    def __init__(self, directory: Path, spec: ExperimentSpec, shard: Shard) -> None:
        folder = folder_of(directory, shard)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        self.path = folder / name
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        header = {"experiment": spec.id, "result_version": RESULT_VERSION, "host": socket.gethostname()}
        self._write(canonical(header))

    def append(self, entry: Entry) -> None:
        """Write one result. A kill after this call loses nothing; :meth:`sync` guards against loss of power."""
        self._write(canonical(entry))

    def _write(self, line: str) -> None:
        content = line.encode() + b"\n"
        while content:
            content = content[os.write(self._file, content) :]

    def sync(self) -> None:
        """Wait until the disk has the results."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def journals(directory: Path, shard: Shard | None = None) -> list[Path]:
    """Return the journals that may have points of a shard, by default of the whole experiment, sorted.

    Shards of one size have separate points; a shard of another size may share points with any of them.
    """
    root = directory / FOLDER
    folders = sorted(root.iterdir()) if root.is_dir() else []
    if shard is not None:
        ending, own = f"-of-{shard.count}", folder_of(directory, shard)
        folders = [each for each in folders if each == own or not each.name.endswith(ending)]
    return [path for each in folders if each.is_dir() for path in sorted(each.glob("*.jsonl"))]


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Return the offsets and complete lines of a journal, without the header."""
    with path.open("rb") as file:
        offset = len(file.readline())
        for line in file:
            if not line.endswith(b"\n"):
                return  # torn by a kill, or being written
            yield offset, line
            offset += len(line)


def is_current(path: Path, spec: ExperimentSpec) -> bool:
    """Return whether a journal has results of this specification and result version.

    Raises InputError for the journal of another experiment.
    """
    with path.open("rb") as file:
        first = file.readline(1 << 16)
    if not first.endswith(b"\n"):
        return False
    header = parse_json(first.decode(), f"{path}:1")
    if not isinstance(header, Mapping) or header.get("experiment") != spec.id:
        raise InputError("belongs to another experiment", file=path)
    return bool(header.get("result_version") == RESULT_VERSION)


def parse_line(line: bytes, path: Path) -> Entry:
    """Return the entry of a complete line. Raises InputError for a damaged line."""
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("point"), int):
        raise InputError(f"has a damaged line {line[:40]!r}: remove the line to repeat its point", file=path)
    return entry


def read_entries(directory: Path, spec: ExperimentSpec, shard: Shard | None = None) -> Iterator[Entry]:
    """Return the results of all current journals, in the order of files and lines; a point may occur twice."""
    for path in journals(directory, shard):
        if is_current(path, spec):
            for _, line in lines(path):
                yield parse_line(line, path)


def count_entries(directory: Path, spec: ExperimentSpec) -> tuple[int, int]:
    """Return the number of results and of failed points among them, without parsing the lines."""
    total = failed = 0
    for path in journals(directory):
        if is_current(path, spec):
            content = path.read_bytes()
            total += content.count(b"\n") - 1
            failed += content.count(_FAILED)
    return total, failed
