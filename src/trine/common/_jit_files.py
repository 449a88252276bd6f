"""Files with the machine code of kernels, read only if they are intact and no other user can have written them.

``NAME.nbc`` holds a line with its name, then the pickled machine code. ``NAME.sha256`` holds the SHA-256 of that file,
in the format of ``sha256sum --check``. Only the user and root may have write access to both and to their folder:
anyone who can change a pickle can run arbitrary code. trine warns once about any problem and compiles the kernel.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trine.common.inputs import read_at_most
from trine.common.outputs import PART, open_whole

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Maximum size of a machine code file.
MAX_BYTES = 1 << 28
#: Maximum time to wait for another process's lock; writers hold it for milliseconds.
LOCK_S = 2.0
_LOCK = ".lock"
_OWN = "or set NUMBA_CACHE_DIR to another folder"


class CacheWarning(UserWarning):
    """Warning that kernels are compiled again needlessly; the message names the folder and the fix."""


class Damaged(Exception):
    """Error for a file that must not be used, with the reason."""


#: Problems of this process; only the first one is shown.
_warnings: list[str] = []


def say_once(problem: str) -> None:
    """Warn, but only about the first problem of a process."""
    _warnings.append(problem)
    if len(_warnings) == 1:
        warnings.warn(problem, CacheWarning, stacklevel=2)


def said() -> str | None:
    """Return the warning of this process, or None."""
    return _warnings[0] if _warnings else None


def usable(folder: Path) -> bool:
    """Return whether the folder is usable; create it if needed. Warns if that fails or if others can write to it."""
    try:
        _make(folder)
        reason = _unsafe(os.stat(folder), is_folder=True)
    except OSError as error:
        say_once(_unwritable(folder, error))
        return False
    if reason is not None:
        say_once(f"kernels are compiled anew in each process: {folder} {reason}: chmod go-w it, {_OWN}")
    return reason is None


def read(folder: Path, name: str) -> bytes | None:
    """Return the content that :func:`write` stored under ``name``, or None; warns if there is a file it cannot use."""
    try:
        with _locked(folder, is_writer=False):
            return _read_safely(folder, name)
    except Damaged as error:
        say_damaged(folder, name, str(error))
    except OSError as error:
        say_damaged(folder, name, f"cannot be read ({error.strerror or error})")
    return None


def say_damaged(folder: Path, name: str, reason: str) -> None:
    """Warn that the kernel ``name`` is compiled again, with the reason."""
    say_once(
        f"{folder}: {name}.nbc {reason}: trine compiles it again and replaces the file if it can; if this comes "
        "again, delete the folder and run 'trine warmup'"
    )


def write(folder: Path, name: str, content: bytes, *, is_damaged: bool = False) -> None:
    """Store ``content`` unless another process already has; warns if the disk is full or read-only.

    is_damaged: replace the existing file, which is unusable although its checksum matches.
    """
    try:
        with _locked(folder, is_writer=True):
            for part in folder.glob(f"{PART[0]}*{PART[1]}"):  # left by a killed process: writers hold the lock
                part.unlink(missing_ok=True)
            if not is_damaged and _is_whole(folder, name):
                return
            code, digest = _paths(folder, name)
            content = _head(name) + content
            code.unlink(missing_ok=True)  # first, so that no file ever lacks its checksum or has a wrong one
            digest.unlink(missing_ok=True)
            _write(digest, f"{hashlib.sha256(content).hexdigest()}  {code.name}\n".encode())
            _write(code, content)
    except OSError as error:
        say_once(_unwritable(folder, error))


def _write(path: Path, content: bytes) -> None:
    with open_whole(os.fspath(path), 0o644, follow=False) as file:
        file.write(content)


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"kernels are compiled anew in each process: cannot write {folder} ({error.strerror or error}): make room, or "
        f"let it be written, {_OWN}"
    )


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.nbc", folder / f"{name}.sha256"


def _head(name: str) -> bytes:
    return f"trine kernel {name}\n".encode()


def _make(folder: Path) -> None:
    """Create the folder and its parent, also trine's, writable by the user alone whatever the umask."""
    if folder.is_dir():
        return
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for directory in (folder.parent, folder):
        with suppress(FileExistsError):
            directory.mkdir(0o755)
    os.listdir(folder)


def _unsafe(status: os.stat_result, *, is_folder: bool = False) -> str | None:
    """Return the reason why other users may have changed a file or folder, or None."""
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(status.st_mode):
        return "is no folder" if is_folder else "is no regular file"
    if not hasattr(os, "geteuid"):  # Windows: folders of users are closed to others
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({status.st_uid})"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def _is_whole(folder: Path, name: str) -> bool:
    try:
        return _read_safely(folder, name) is not None
    except (OSError, Damaged):
        return False


def _read_safely(folder: Path, name: str) -> bytes | None:
    reason = _unsafe(os.stat(folder), is_folder=True)
    if reason is not None:
        raise Damaged(f"is not read, because its folder {reason} (chmod go-w)")
    code, digest = _paths(folder, name)
    content = _content(code)
    if content is None:
        return None
    expected = _content(digest)
    if expected is None:
        raise Damaged("has no SHA-256 beside it")
    if hashlib.sha256(content).hexdigest().encode() != expected.partition(b" ")[0]:
        raise Damaged("does not match its SHA-256")
    head = _head(name)
    if not content.startswith(head):
        raise Damaged("is of another kernel")
    return content[len(head) :]


def _content(path: Path) -> bytes | None:
    """Return a file's content, or None if it is missing. Checks the permissions of the opened file, not the path's."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    try:
        reason = _unsafe(os.fstat(handle))
        if reason is not None:
            raise Damaged(reason)
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = read_at_most(file, MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > MAX_BYTES:
        raise Damaged(f"has more than {MAX_BYTES} bytes")
    return content


@contextmanager
def _locked(folder: Path, *, is_writer: bool) -> Iterator[None]:
    """Lock the folder, shared for readers and exclusively for a writer; goes on without a lock after LOCK_S."""
    handle = None
    with suppress(OSError):
        handle = os.open(folder / _LOCK, os.O_RDWR | (os.O_CREAT if is_writer else 0), 0o600)
    try:
        if handle is not None and fcntl is not None:
            _wait_for_lock(handle, fcntl.LOCK_EX if is_writer else fcntl.LOCK_SH)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _wait_for_lock(handle: int, kind: int) -> None:
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:  # a file system without locks
            return
        else:
            return
