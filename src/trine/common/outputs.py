"""Output files: trine writes each to a temporary neighbour and renames it once complete, so no file is ever partial.

A full disk, Ctrl-C or a kill leaves the previous file. Devices, pipes, and files that already receive stdout or stderr
cannot be replaced by a rename, so trine writes to them directly. A file in a folder that accepts no new files, or a
mount point, is overwritten once the content is complete.

For a symbolic link that the user names, trine replaces its target. For a name that trine chooses, it replaces the link
itself (``follow=False``): a folder from somebody else must not choose the file that is overwritten.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EBUSY, EPERM, EROFS
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO, cast

from trine.errors import InputError

#: The last file written to a folder: names and SHA-256 of all its files, in the format of ``sha256sum --check``.
MANIFEST = "SHA256SUMS"
#: Prefix and suffix of the names of incomplete files.
PART = (".trine-", ".part")
#: Errors of a folder, or a path in it, that accepts no other file.
_KEPT_IN_PLACE = (EACCES, EPERM, EROFS, EBUSY)


@contextmanager
def open_output(
    path: str | os.PathLike[str], *, error: type[InputError] = InputError, follow: bool = True
) -> Iterator[BinaryIO]:
    """Open a file to write bytes to; it appears at its path only if the block ends without an exception.

    Permissions are as with a plain ``open``: of the file that is replaced, else by the umask. follow: False for a name
    that trine chooses: a symbolic link there is replaced, and its target stays.

    Raises
    ------
    error: the file cannot be written; the message has its name and the reason.
    """
    place = os.fspath(path)
    if "\0" in place:
        raise error("cannot write: a path has no NUL in it", file=ascii(place))
    try:
        with open_whole(place, follow=follow) as file:
            yield file
    except OSError as problem:
        raise error(f"cannot write: {problem.strerror or problem}", file=place) from None


def write_bytes(
    path: str | os.PathLike[str], content: bytes, *, error: type[InputError] = InputError, follow: bool = True
) -> None:
    """Write a whole file, as :func:`open_output` does."""
    with open_output(path, error=error, follow=follow) as file:
        file.write(content)


def write_text(
    path: str | os.PathLike[str], text: str, *, error: type[InputError] = InputError, follow: bool = True
) -> None:
    """Write a whole UTF-8 file, as :func:`open_output` does."""
    write_bytes(path, text.encode(), error=error, follow=follow)


def write_json(path: str | os.PathLike[str], content: object, *, follow: bool = True) -> None:
    """Write plain data as JSON, as :func:`open_output` does. Raises InputError if it cannot."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", follow=follow)


def drop_link(path: str | os.PathLike[str]) -> None:
    """Remove a symbolic link at a path whose name trine chooses, before a library writes there."""
    if os.path.islink(path):
        os.unlink(path)


def write_csv(file: BinaryIO, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as UTF-8 CSV to an open file."""
    import csv

    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    text.detach()  # flushes, and leaves the file open


def save_figure(figure: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a matplotlib figure as a whole file, in the format of its ending; equal pictures give equal bytes.

    ``options``: arguments of ``figure.savefig``. Raises InputError if the figure or its file cannot be written.
    """
    from matplotlib import rc_context

    ending = os.path.splitext(path)[1].lower()
    metadata = {"Date": None} if ending == ".svg" else None
    try:
        with open_output(path) as file, rc_context({"svg.hashsalt": "trine"}):
            figure.savefig(file, format=ending[1:] or None, metadata=metadata, **options)
    except InputError:
        raise
    except ValueError as problem:
        raise InputError(f"cannot be drawn: {problem}", file=path) from None


class OutputFolder:
    """A group of files: each is written by :func:`open_output`; their list comes last, if all succeeded.

    A kill in between leaves old files, new files and the old list: ``sha256sum --check SHA256SUMS`` tells them apart.

    Parameters
    ----------
    folder: created if needed. manifest: path of the list in it.
    """

    def __init__(self, folder: str | os.PathLike[str], manifest: str = MANIFEST) -> None:
        self._folder, self._manifest = Path(folder), manifest
        self._digests: dict[str, str] = {}

    def __enter__(self) -> OutputFolder:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write: {problem.strerror or problem}", file=self._folder) from None
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open one of its files."""
        with open_output(self._folder / name, follow=False) as file:
            yield file
            file.flush()
            if file.readable():  # no device
                file.seek(0)
                self._digests[name] = hashlib.file_digest(cast(io.BytesIO, file), "sha256").hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            rows = (f"{digest}  {name}\n" for name, digest in self._digests.items())
            write_text(self._folder / self._manifest, "".join(rows), follow=False)


@contextmanager
def open_whole(place: str, mode: int = 0o666, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a file like :func:`open_output`, but raise OSError. mode: permissions of a new file, less the umask."""
    if not follow:
        with _temporary_beside(place, _status_of_file(place), mode) as file:
            yield file
        return
    try:
        status = os.stat(place)
    except FileNotFoundError:  # or a dangling link
        status = None
    stream = None if status is None else _stream_to(status)
    if stream is not None:
        stream.flush()
        with os.fdopen(os.dup(stream.fileno()), "wb") as file:
            yield file
    elif status is not None and not stat.S_ISREG(status.st_mode):
        with open(place, "wb") as file:
            yield file
    else:
        with _temporary_beside(os.path.realpath(place), status, mode) as file:
            yield file


def _status_of_file(place: str) -> os.stat_result | None:
    """Return the status of a regular file; None for a link, or if there is no file."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _stream_to(status: os.stat_result) -> TextIO | None:
    """Return stdout or stderr if it goes to this same regular file: its earlier output must stay."""
    if stat.S_ISREG(status.st_mode):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or None
                if os.path.samestat(status, os.fstat(stream.fileno())):
                    return stream
    return None


@contextmanager
def _temporary_beside(place: str, status: os.stat_result | None, mode: int) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``place`` that is renamed at the end, and removed after any exception."""
    if status is not None and not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(EACCES, os.strerror(EACCES), place)
    path = os.path.join(os.path.dirname(place), f"{PART[0]}{os.urandom(8).hex()}{PART[1]}")
    try:
        with _spare(path, status, mode) as file:
            yield file
            file.flush()
            if not os.path.lexists(path):
                _overwrite(place, file)
                return
            os.fsync(file.fileno())
        try:
            os.replace(path, place)
        except OSError as problem:
            if status is None or problem.errno not in _KEPT_IN_PLACE:
                raise
            with open(path, "rb") as content:
                _overwrite(place, content)
    finally:
        with suppress(OSError):
            os.unlink(path)


def _spare(path: str, status: os.stat_result | None, mode: int) -> BinaryIO:
    """Create ``path`` with owner and permissions of ``status``, or an unnamed file if the folder accepts no new one."""
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "w+b")
    except OSError as problem:
        if status is None or problem.errno not in _KEPT_IN_PLACE:
            raise
        import tempfile

        return cast(BinaryIO, tempfile.TemporaryFile())
    if status is not None and hasattr(os, "fchmod"):
        with suppress(OSError):  # only root may change the owner
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
    return cast(BinaryIO, file)


def _overwrite(place: str, file: BinaryIO) -> None:
    """Copy a complete file to a place that accepts no rename."""
    import shutil

    file.seek(0)
    with open(place, "wb") as target:
        shutil.copyfileobj(file, target)
        target.flush()
        os.fsync(target.fileno())
