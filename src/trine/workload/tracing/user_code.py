"""Find the line of the user's code that a call comes from."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_TRINE = str(Path(__file__).parents[2])
#: Folders of installed code: the standard library and packages.
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_TORCH = str(Path("/", "torch", "_"))[:-1]


def user_line() -> str:
    """Return ``train.py:12``, the innermost line under way that is in no installed package.

    Without such a line, return the innermost one of a package other than PyTorch (a model of transformers).
    """
    of_package = "the step"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        line = f"{Path(file).name}:{frame.f_lineno}"
        if not file.startswith((*_INSTALLED, _TRINE, "<")):
            return line
        if of_package == "the step" and not file.startswith((_TRINE, "<")) and _TORCH not in file:
            of_package = line
        frame = frame.f_back
    return of_package
