"""Journals: the results of an experiment as lines of JSON, one append-only file per worker process.

The first line says whose results follow; each later line is one point. The last key of each line is its checksum. A
line counts once its end is written: a kill leaves at most one torn last line, which readers skip. A write that fails is
cut back to the last complete line. Journals of shard i of n lie in ``journal/i-of-n``, so that a shard reads the
results of its points only.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import socket
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from trine.common.inputs import open_input
from trine.common.outputs import write_bytes
from trine.common.units import whole_number
from trine.errors import InputError, StorageError
from trine.experiments.places import make_folder, place_in
from trine.experiments.spec import CLI_QUESTION, RESULT_VERSION, ExperimentSpec, Shard, canonical

#: One result: point, key, status, fields, result (or reason), seconds.
Entry = dict[str, Any]
#: Text that only a failed point's line has: quotes inside values are escaped.
FAILED = b'"status":"failed"'
#: Folder of all journals, and names of the folders in it.
JOURNAL = "journal"
_FOLDER = re.compile(r"(\d{1,10})-of-(\d{1,10})", re.ASCII)
#: The end of a line: its checksum, of the JSON without it.
_SUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n\Z')
_SUM_LENGTH = len(b',"crc32":"00000000"}\n')
#: Most bytes of a journal, of a line, and of the header.
_MAX_BYTES, _MAX_LINE, _MAX_HEADER = 2**40, 1 << 26, 1 << 16


def folder_of(directory: Path, shard: Shard) -> Path:
    """Return the folder of a shard's journals. Raises StorageError if it is a symbolic link."""
    return place_in(directory, JOURNAL, f"{shard.number}-of-{shard.of}")


def with_checksum(content: str) -> bytes:
    """Return a JSON object as a line with its CRC-32 as last key."""
    text = content.encode()
    return b'%s,"crc32":"%08x"}\n' % (text[:-1], zlib.crc32(text))


def _is_intact(text: bytes) -> bool:
    """Return whether a line is as :func:`with_checksum` wrote it."""
    match = _SUM.search(text, max(0, len(text) - _SUM_LENGTH))
    return match is not None and zlib.crc32(b"}", zlib.crc32(text[: match.start()])) == int(match[1], 16)


class WorkerJournal:
    """The journal of one process, opened for its first entry and closed with the process.

    Raises StorageError if a disk or folder refuses a write; the complete lines stay.
    """

    def __init__(self, directory: Path, spec: ExperimentSpec, shard: Shard) -> None:
        folder = make_folder(directory, JOURNAL, f"{shard.number}-of-{shard.of}")
        self.path = folder / f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        self._directory, self._size = directory, 0
        self._is_command = spec.question == CLI_QUESTION
        self._writing = Lock()
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except OSError as error:
            raise self._refused(error) from None
        self.append({"experiment": spec.id, "result_version": RESULT_VERSION, "host": socket.gethostname()})

    def append(self, entry: Entry) -> None:
        """Write one result. A kill after this call loses nothing; :meth:`sync` guards against loss of power."""
        content = with_checksum(canonical(entry))
        size = len(content)
        with self._writing:
            try:
                while content:
                    content = content[os.write(self._file, content) :]
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
                raise self._refused(error) from None
            self._size += size

    def sync(self) -> None:
        """Wait until the disk has the results."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _refused(self, error: OSError) -> StorageError:
        again = f"trine sweep {shlex.quote(str(self._directory))}" if self._is_command else "the same call"
        hint = f"earlier points are kept; once that is solved, {again} goes on"
        return StorageError(f"cannot write: {error.strerror or error} ({hint})", file=self.path)


class Line(NamedTuple):
    """A complete, intact line of a journal with its place. number: of the line, from 1; point: its point."""

    path: Path
    offset: int
    text: bytes
    number: int
    point: int

    def entry(self) -> Entry:
        """Return the result. Raises InputError for a line that no worker writes."""
        try:
            entry: Entry = json.loads(self.text)
            is_plain = all_finite(entry)
            del entry["crc32"]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise damage(self.path, self.number) from None
        is_done = entry.get("status") == "done"
        kinds = {"key": str, "status": str, "fields": dict, "seconds": int | float, "reason": str, "result": dict}
        del kinds["reason" if is_done else "result"]
        if not all(isinstance(entry.get(name), kind) for name, kind in kinds.items()):
            raise damage(self.path, self.number)
        if not is_plain or entry["status"] not in ("done", "failed") or entry.get("point") != self.point:
            raise damage(self.path, self.number)
        return entry


def all_finite(value: object) -> bool:
    """Return whether plain data has no number beyond the largest float (``1e309``) and no NaN."""
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list):
        return all(map(all_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def damage(path: Path, number: int) -> InputError:
    """Return the error of a damaged line, with the command that goes on. number: from 1, or 0 if not known."""
    return InputError(f"line {number} is damaged{_repair(path)}" if number else f"is damaged{_repair(path)}", file=path)


def _repair(path: Path) -> str:
    directory = shlex.quote(os.fspath(path.parents[2]))
    return f": 'trine sweep {directory} --repair' sets it aside, and answers the points that are missing"


def journals(directory: Path, shard: Shard | None = None) -> list[Path]:
    """Return the journals that may have points of a shard, by default of the whole experiment, sorted.

    Shards of one size have separate points; a shard of another size may share points with any of them.
    """
    found = shard_folders(directory)
    if shard is not None:
        found = {other: folder for other, folder in found.items() if other == shard or other.of != shard.of}
    return [path for folder in found.values() for path in sorted(folder.glob("*.jsonl"))]


def shard_folders(directory: Path) -> dict[Shard, Path]:
    """Return the folders of journals, sorted by name. Raises StorageError if one is a symbolic link."""
    folders: dict[Shard, Path] = {}
    for path in sorted(place_in(directory, JOURNAL).glob("*-of-*")):
        if match := _FOLDER.fullmatch(path.name):
            folders[Shard(int(match[1]), int(match[2]))] = place_in(directory, JOURNAL, path.name)
    return folders


def lines_of(path: Path, size: int) -> Iterator[Line]:
    """Return the complete lines of one journal, without the header. size: number of points of the experiment.

    Raises InputError for a damaged line, and for a point that the experiment does not have.
    """
    with open_input(path, _MAX_BYTES, InputError) as file:
        offset = len(file.readline())
        for number, text in enumerate(_texts(file), 2):
            if not text.endswith(b"\n") and len(text) < _MAX_LINE:  # torn by a kill, or being written
                return
            point = _point_of(text, size)
            if point is None:
                raise damage(path, number)
            yield Line(path, offset, text, number, point)
            offset += len(text)


def _texts(file: BinaryIO) -> Iterator[bytes]:
    """Yield the remaining lines of a file, of at most _MAX_LINE bytes."""
    while text := file.readline(_MAX_LINE):
        yield text


def _point_of(text: bytes, size: int) -> int | None:
    """Return the point of a line; None if the line is damaged, or the experiment has no such point."""
    if not _is_intact(text) or not text.startswith(b'{"point":'):
        return None
    return whole_number(text[9 : text.find(b",", 9)].decode("latin-1"), 0, size - 1)


def read_lines(directory: Path, spec: ExperimentSpec, shard: Shard | None = None) -> Iterator[Line]:
    """Return the lines of all journals of this result version, in the order of :func:`journals`.

    A point may occur twice. Raises InputError for the journal of another experiment, a foreign file, or a damaged line.
    """
    for path in journals(directory, shard):
        header = _header(path)
        if header is None:
            continue
        if header.get("experiment") != spec.id:
            raise InputError(f"belongs to another experiment{_repair(path)}", file=path)
        if header.get("result_version") == RESULT_VERSION:
            yield from lines_of(path, spec.size)


def _header(path: Path) -> Mapping[str, Any] | None:
    """Return the first line of a journal; None if it is not complete yet. Raises InputError for a foreign file."""
    with open_input(path, _MAX_BYTES, InputError) as file:
        first = file.readline(_MAX_HEADER)
    if not first.endswith(b"\n") and len(first) < _MAX_HEADER and first[:1] in (b"", b"{"):
        return None
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or "experiment" not in header:
        raise InputError(f"is no journal of trine{_repair(path)}", file=path)
    return header


def repair(directory: Path, spec: ExperimentSpec) -> list[Path]:
    """Set aside the journals that cannot be read, keep their intact lines, and return the new names of these files.

    ``NAME.jsonl`` becomes ``NAME.jsonl.HEX.damaged``. Raises StorageError if the folder refuses the change.
    """
    damaged = []
    for path in journals(directory):
        kept = _intact_lines(path, spec)
        if kept is None:
            continue
        aside = path.with_name(f"{path.name}.{os.urandom(2).hex()}.damaged")
        try:
            os.replace(path, aside)
        except OSError as error:
            raise StorageError(f"cannot be renamed: {error.strerror or error}", file=path) from None
        if kept:
            write_bytes(path, b"".join(kept), error=StorageError, follow=False)
        damaged.append(aside)
    return damaged


def _intact_lines(path: Path, spec: ExperimentSpec) -> list[bytes] | None:
    """Return the header and the intact lines of a damaged journal, empty for a foreign file; None without damage."""
    if path.is_symlink() or not path.is_file():
        return []
    try:
        header = _header(path)
    except InputError:
        return []
    if header is None:
        return None
    if header.get("experiment") != spec.id:
        return []
    if header.get("result_version") != RESULT_VERSION:
        return None
    with open_input(path, _MAX_BYTES, InputError) as file:
        lines = [file.readline(), *(text for text in _texts(file) if text.endswith(b"\n"))]
    kept = [text for number, text in enumerate(lines[1:], 2) if _is_entry(path, number, text, spec.size)]
    return None if len(kept) == len(lines) - 1 else [lines[0], *kept]


def _is_entry(path: Path, number: int, text: bytes, size: int) -> bool:
    point = _point_of(text, size)
    if point is None:
        return False
    try:
        Line(path, 0, text, number, point).entry()
    except InputError:
        return False
    return True
