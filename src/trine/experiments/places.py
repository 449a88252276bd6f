"""Files and folders whose names trine chooses inside an experiment's directory: none of them is a symbolic link.

The directory may come from somebody else: a link in it must not choose which files trine writes or removes.
"""

from __future__ import annotations

from pathlib import Path

from trine.errors import StorageError


def place_in(directory: Path, *parts: str) -> Path:
    """Return a path below an experiment's directory. Raises StorageError if one of its parts is a symbolic link."""
    path = directory
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise StorageError("is a symbolic link, which may lead out of the experiment: remove it", file=path)
    return path


def make_folder(directory: Path, *parts: str) -> Path:
    """Create a folder below an experiment's directory, with its parents, and return it.

    Raises StorageError if a part is a symbolic link, or if it cannot be created.
    """
    path = place_in(directory, *parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write: {error.strerror or error}", file=path) from None
    return path
