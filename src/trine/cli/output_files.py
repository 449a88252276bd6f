"""Output files of commands, checked before the command runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trine.common.inputs import is_file
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.parallel.plan import Plan
    from trine.training.options import SimulateOptions

    #: Workload, layout and options of a step.
    StepRequest = tuple[str, Plan, SimulateOptions]


#: The file of ``--report`` of commands that answer; ``report`` alone is the folder of ``validate``.
REPORT_FILE = "report_file"
_NAMES = {REPORT_FILE: "--report"}
#: Parameters of commands that name output files, pictures, folders, and prefixes of file names.
FILES = (
    "json",
    "csv",
    "yaml",
    "output",
    "perfetto",
    "inside_perfetto",
    "detail_perfetto",
    "memory_snapshot",
    REPORT_FILE,
)
PICTURES = ("plot", "plot_noc", "timeline")
FOLDERS = ("parquet", "report", "kineto")
PREFIXES = ("chakra",)
#: Outputs that need matplotlib.
DRAWN = (*PICTURES, "report")
STDOUT = "-"


def check_outputs(options: Mapping[str, object]) -> None:
    """Check all output files that the parameters of a command name.

    Raises InputError: a file that is not writable, has no ending of a picture, or is named twice. MissingExtraError:
    pictures without matplotlib, Parquet without pyarrow.
    """
    option_of: dict[str, str] = {}
    outputs = (*FILES, *PICTURES, *FOLDERS, *PREFIXES)
    values = (options[name] for name in options if name not in outputs)
    words = (word for value in values for word in (value if isinstance(value, list | tuple) else (value,)))
    inputs = [word for word in words if isinstance(word, str) and is_file(word)]
    for name in outputs:
        target = options.get(name)
        if not isinstance(target, str) or (name == "json" and target == STDOUT):
            continue
        option = _NAMES.get(name, f"--{name.replace('_', '-')}")
        if not target:
            raise InputError(f"{option} names no file")
        if target == STDOUT:
            raise InputError(f"{option} - names no file: only --json writes to stdout (./- is a file of that name)")
        try:
            place = os.path.realpath(target)
        except ValueError as error:  # characters that no file name has
            raise InputError(f"{option} is no name of a file: {error}") from None
        if place in option_of and not _is_device(place):
            raise InputError(f"{option_of[place]} and {option} both write it", file=target)
        option_of[place] = option
        same = (word for word in inputs if is_file(target) and os.path.samefile(word, target))
        if (source := next(same, None)) is not None:
            raise InputError(f"{option} would overwrite {source}, an input of this command", file=target)
        _check(name, target)


def _is_device(place: str) -> bool:
    """Return whether the path is a device such as /dev/null, which may be written twice."""
    return os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place)


def _check(name: str, target: str) -> None:
    if name in DRAWN:
        _check_drawing(name, target)
    if name == "parquet":
        from trine.results.frames import pyarrow

        pyarrow()
    try:
        if name in FOLDERS:
            _try_folder(Path(target))
        elif name in PREFIXES:
            _try_folder(Path(target).parent, is_made=False)
        else:
            _try_file(Path(target))
    except OSError as error:
        place = f": {error.filename}" if error.filename not in (None, target) else ""
        raise InputError(f"cannot write: {error.strerror or error}{place}", file=target) from None


def _check_drawing(name: str, target: str) -> None:
    from trine.results.picture import check_ending, matplotlib

    if name in PICTURES:
        check_ending(target)
    matplotlib()


def _try_file(path: Path) -> None:
    """Open a file without changing it; for a new file, check its name and folder."""
    if path.is_file() or path.is_dir():
        os.close(os.open(path, os.O_WRONLY))
    elif not path.exists() and not path.is_symlink():
        _try_folder(path.parent, is_made=False)
        with suppress(FileNotFoundError):
            os.lstat(path)


def _try_folder(path: Path, is_made: bool = True) -> None:
    """Check a folder. is_made: trine creates it, with its parents, if it does not exist."""
    if is_made:
        folder = next((parent for parent in (path, *path.parents) if parent.exists()), path)
    else:
        folder = path
    os.listdir(folder)  # there, and no file
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
