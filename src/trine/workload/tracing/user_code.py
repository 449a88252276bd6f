"""Find the line of the user's code that a call comes from."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

_TRINE = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def user_line() -> str:
    """Return ``train.py:12`` for the innermost line under way that is in no installed library, else in none of torch."""
    library = "the step"
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_torch = f"{Path('/', 'torch', '')}" in file or file.startswith("<")
        if not file.startswith((_TRINE, *_LIBRARIES)) and not is_torch:
            return f"{Path(file).name}:{frame.f_lineno}"
        if library == "the step" and not file.startswith(_TRINE) and not is_torch:
            library = f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return library
