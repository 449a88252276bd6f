"""The one place that opens user files: only regular files, of bounded size; and the location of the presets.

A device such as ``/dev/zero`` never ends and a pipe may never begin, so both are refused before they are opened.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from trine.errors import InputError, SpecError

#: Data that ships with trine; each number in it has its source.
PRESETS = Path(__file__).parents[1] / "presets"
#: Default size limit of a file, in bytes.
MAX_FILE_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20
#: Device and inode of every file read.
_read_files: set[tuple[int, int]] = set()
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


@contextmanager
def open_input(
    path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES, error: type[InputError] = SpecError
) -> Iterator[BinaryIO]:
    """Open a file of at most ``max_bytes`` for reading bytes; read errors inside the block also become an ``error``.

    A file may grow, and some (in ``/proc``) hide their size, so the caller must read at most ``max_bytes``.

    Raises
    ------
    error: the file does not exist, is not readable, is not a regular file, or is larger.
    """
    try:
        _check_kind(os.stat(path), path, error)
        # the path may have changed since: O_NONBLOCK keeps a pipe from blocking, and the kind is checked again
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            _check_kind(status, path, error)
            if status.st_size > max_bytes:
                raise error(f"is larger than {max_bytes} bytes", file=path)
            _read_files.add((status.st_dev, status.st_ino))
            yield file
    except OSError as fault:
        raise error(f"cannot be read: {fault.strerror or fault}", file=path) from None
    except ValueError as fault:
        if isinstance(fault, InputError) or can_be_named(path):
            raise
        raise error("cannot be read: no file has such a name", file=path) from None


def was_read(path: str | os.PathLike[str]) -> bool:
    """Return whether :func:`open_input` has opened this file since :func:`forget_inputs`."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return (status.st_dev, status.st_ino) in _read_files


def forget_inputs() -> None:
    """Clear the record of files read."""
    _read_files.clear()


def _check_kind(status: os.stat_result, path: str | os.PathLike[str], error: type[InputError]) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "something else")
        raise error(f"cannot be read: it is {kind}, not a regular file", file=path)


def can_be_named(path: str | os.PathLike[str]) -> bool:
    """Return whether a file can have this name: no NUL, and the file system can encode it."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def read_at_most(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the rest of an open file, at most ``max_bytes``, in memory that grows with the content.

    ``file.read(max_bytes)`` reserves all of ``max_bytes`` first, however small the file is.
    """
    parts: list[bytes] = []
    remaining = max_bytes
    while remaining and (part := file.read(min(remaining, _CHUNK_BYTES))):
        parts.append(part)
        remaining -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_bytes(
    path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES, error: type[InputError] = SpecError
) -> bytes:
    """Return the content of a file of at most ``max_bytes``. Raises ``error`` as :func:`open_input` does."""
    with open_input(path, max_bytes, error) as file:
        content = read_at_most(file, max_bytes + 1)
    if len(content) > max_bytes:
        raise error(f"is larger than {max_bytes} bytes", file=path)
    return content


def read_text(
    path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES, error: type[InputError] = SpecError
) -> str:
    """Return the text of a UTF-8 file of at most ``max_bytes`` bytes; line ends stay, a byte order mark is dropped.

    Raises
    ------
    error: as in :func:`open_input`, or the file is not UTF-8.
    """
    content = read_bytes(path, max_bytes, error)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise error(f"is not UTF-8 text (byte {fault.start})", file=path) from None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a regular file; False for an impossible name."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a file, folder or device; False for an impossible name."""
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


@cache
def preset_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the files of a preset folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def head(path: str | os.PathLike[str], size_bytes: int) -> bytes:
    """Return the first bytes of a regular file, or of a gzip file's content; empty if it cannot be read."""
    if not is_file(path):
        return b""
    try:
        with open(path, "rb") as file:
            start = file.read(size_bytes)
        return zlib.decompressobj(31).decompress(start, size_bytes) if start[:2] == b"\x1f\x8b" else start
    except (OSError, zlib.error):
        return b""
