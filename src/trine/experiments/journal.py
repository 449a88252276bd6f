"""Journals: the results of an experiment as lines of JSON, one append-only file per worker process.

The first line says whose results follow; each later line is one point. A line counts once its end is written: a kill
leaves at most one torn last line, which readers skip. Journals of shard i of n lie in ``journal/i-of-n``, so that a
shard reads the results of its points only.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trine.common.spec import parse_json
from trine.errors import InputError
from trine.experiments.spec import RESULT_VERSION, ExperimentSpec, Shard, canonical

#: One result: point, key, status, fields, result (or reason), seconds.
Entry = dict[str, Any]
#: Text that only a failed point's line has: quotes inside values are escaped.
FAILED = b'"status":"failed"'


def folder_of(directory: Path, shard: Shard) -> Path:
    """Return the folder of a shard's journals."""
    return directory / "journal" / f"{shard.number}-of-{shard.of}"


class WorkerJournal:
    """The journal of one process, opened for its first entry and closed with the process."""

    def __init__(self, directory: Path, spec: ExperimentSpec, shard: Shard) -> None:
        folder = folder_of(directory, shard)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self.append({"experiment": spec.id, "result_version": RESULT_VERSION, "host": socket.gethostname()})

    def append(self, entry: Entry) -> None:
        """Write one result. A kill after this call loses nothing; :meth:`sync` guards against loss of power."""
        content = canonical(entry).encode() + b"\n"
        while content:
            content = content[os.write(self._file, content) :]

    def sync(self) -> None:
        """Wait until the disk has the results."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Line(NamedTuple):
    """A complete line of a journal with its place."""

    path: Path
    offset: int
    text: bytes

    @property
    def point(self) -> int:
        """The number of the point, which the text begins with. Raises InputError for a damaged line."""
        try:
            return int(self.text[9 : self.text.index(b",", 9)])
        except ValueError:
            raise self._damage() from None

    def entry(self) -> Entry:
        """Return the result. Raises InputError for a damaged line."""
        try:
            entry: Entry = json.loads(self.text)
            return {**entry, "point": self.point}
        except (ValueError, TypeError, LookupError):
            raise self._damage() from None

    def _damage(self) -> InputError:
        return InputError(f"has a damaged line {self.text[:40]!r}: remove it to repeat its point", file=self.path)


def journals(directory: Path, shard: Shard | None = None) -> list[Path]:
    """Return the journals that may have points of a shard, by default of the whole experiment, sorted.

    Shards of one size have separate points; a shard of another size may share points with any of them.
    """
    folders = sorted((directory / "journal").glob("*-of-*"))
    if shard is not None:
        ending, own = f"-of-{shard.of}", folder_of(directory, shard)
        folders = [each for each in folders if each == own or not each.name.endswith(ending)]
    return [path for each in folders for path in sorted(each.glob("*.jsonl"))]


def lines_of(path: Path) -> Iterator[Line]:
    """Return the complete lines of one journal, without the header."""
    with path.open("rb") as file:
        offset = len(file.readline())
        for text in file:
            if text.endswith(b"\n"):  # else torn by a kill, or being written
                yield Line(path, offset, text)
                offset += len(text)


def read_lines(directory: Path, spec: ExperimentSpec, shard: Shard | None = None) -> Iterator[Line]:
    """Return the lines of all journals of this result version, in the order of :func:`journals`.

    A point may occur twice. Raises InputError for the journal of another experiment.
    """
    for path in journals(directory, shard):
        with path.open("rb") as file:
            first = file.readline(1 << 16)
        if not first.endswith(b"\n"):
            continue
        header = parse_json(first.decode(), f"{path}:1")
        if not isinstance(header, Mapping) or header.get("experiment") != spec.id:
            raise InputError("belongs to another experiment", file=path)
        if header.get("result_version") == RESULT_VERSION:
            yield from lines_of(path)
