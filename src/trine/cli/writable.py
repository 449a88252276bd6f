"""Files that a command is to write: refused before it does anything else where they cannot be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trine.errors import InputError

#: Parameters of commands by what they name: a file, a picture, a folder, the beginning of files' names.
FILES = ("json", "csv", "yaml", "output", "perfetto", "inside_perfetto", "detail_perfetto", "memory_snapshot")
PICTURES = ("plot", "plot_noc", "timeline")
FOLDERS = ("parquet", "report")
PREFIXES = ("chakra",)
#: What needs matplotlib.
DRAWN = (*PICTURES, "report")
STDOUT = "-"


def check_outputs(given: Mapping[str, object]) -> None:
    """Look at all files that the parameters of a command name, None: not given.

    Raises
    ------
    InputError: one that cannot be written, is no picture where it should be, or is named twice. MissingExtraError:
        pictures without matplotlib.
    """
    seen: dict[str, str] = {}
    for name in (*FILES, *PICTURES, *FOLDERS, *PREFIXES):
        target = given.get(name)
        if not isinstance(target, str) or (name == "json" and target == STDOUT):
            continue
        option = f"--{name.replace('_', '-')}"
        if not target:
            raise InputError(f"{option} names no file")
        if target == STDOUT:
            raise InputError(f"{option} - names no file: only --json writes to stdout (./- is a file of that name)")
        place = os.path.realpath(target)
        if place in seen and not _is_device(place):
            raise InputError(f"{seen[place]} and {option} both write it", file=target)
        seen[place] = option
        _check(name, target)


def _is_device(place: str) -> bool:
    """/dev/null and its like may be written twice."""
    return os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place)


def _check(name: str, target: str) -> None:
    if name in DRAWN:
        _check_drawing(name, target)
    try:
        if name in FOLDERS:
            _try_folder(Path(target))
        elif name in PREFIXES:
            _try_folder(Path(target).parent, is_made=False)
        else:
            _try_file(Path(target))
    except OSError as error:
        where = f": {error.filename}" if error.filename not in (None, target) else ""
        raise InputError(f"cannot write: {error.strerror or error}{where}", file=target) from None


def _check_drawing(name: str, target: str) -> None:
    from trine.results.picture import check_ending, matplotlib

    if name in PICTURES:
        check_ending(target)
    matplotlib()


def _try_file(path: Path) -> None:
    """Open it, without changing it; of one that is not there yet, look at its name and its folder."""
    if path.is_file() or path.is_dir():
        os.close(os.open(path, os.O_WRONLY))
    elif not path.exists() and not path.is_symlink():
        _try_folder(path.parent, is_made=False)
        with suppress(FileNotFoundError):
            os.lstat(path)


def _try_folder(path: Path, is_made: bool = True) -> None:
    """is_made: it is made where it is not there, with those above it."""
    folder = next((each for each in (path, *path.parents) if each.exists()), path) if is_made else path
    os.listdir(folder)  # there, and no file
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
