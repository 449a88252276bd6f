"""The folder of compiled kernels: made for the user alone, and what to say if it or a file in it cannot be used.

Only the user and root may have write access to the folder and its files: anyone who can change a pickle can run
arbitrary code. trine warns once about any problem and compiles the kernel.
"""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

_OWN = "or set NUMBA_CACHE_DIR to another folder"


class CacheWarning(UserWarning):
    """Warning that kernels are compiled again needlessly; the message names the folder and the fix."""


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
        reason = unsafe(os.stat(folder), is_folder=True)
    except OSError as error:
        say_once(_unwritable(folder, error))
        return False
    if reason is not None:
        say_once(f"kernels are compiled anew in each process: {folder} {reason}: chmod go-w it, {_OWN}")
    return reason is None


def say_damaged(path: Path, reason: str) -> None:
    """Warn that the kernel in ``path`` is compiled again, with the reason."""
    say_once(
        f"{path} {reason}: trine compiles the kernel again and replaces the file if it can; if this comes again, "
        "delete the folder and run 'trine warmup'"
    )


def say_unwritable(folder: Path, error: OSError) -> None:
    """Warn that a kernel cannot be kept."""
    say_once(_unwritable(folder, error))


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"kernels are compiled anew in each process: cannot write {folder} ({error.strerror or error}): make room, or "
        f"let it be written, {_OWN}"
    )


def _make(folder: Path) -> None:
    """Create the folder and its parent, also trine's, writable by the user alone whatever the umask."""
    if folder.is_dir():
        return
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for directory in (folder.parent, folder):
        with suppress(FileExistsError):
            directory.mkdir(0o755)
    os.listdir(folder)


def unsafe(status: os.stat_result, *, is_folder: bool = False) -> str | None:
    """Return the reason why other users may have changed a file or folder, or None."""
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(status.st_mode):
        return "is no folder" if is_folder else "is no regular file"
    if not hasattr(os, "geteuid"):  # Windows: folders of users are closed to others
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({status.st_uid})"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
