"""The only importer of numba: one decorator for kernels and one for the functions that they inline.

Kernels are compiled once per installation and kept in
``<cache>/trine/<hash of the kernel sources, of numba and of its settings>``, where ``<cache>`` is ``NUMBA_CACHE_DIR``,
``XDG_CACHE_HOME`` or ``~/.cache``. Numba notices a change of the kernel's own file only; the hash covers every callee.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

#: Scalars of a kernel: numbers of Python or of numpy, int64 and float64 once compiled. Numba does not read annotations.
Int: TypeAlias = Any
Float: TypeAlias = Any

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave the garbage collector off meanwhile: importing numba and loading kernels makes objects that stay.

    Going through them again and again took 0.1 s of a start of 1.2 s.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def kernel(function: F) -> F:
    """Compile ``function``, keep the machine code on disk, and let go of the GIL while it runs.

    Kernels take few arguments (arrays and NamedTuples of arrays), allocate nothing, raise nothing and return a status.
    """
    import numba

    directory = cache_directory()
    options = {"nogil": True, "error_model": "numpy", "_nrt": False}
    if directory is None:
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    finally:
        numba.config.CACHE_DIR = before


def inlined(function: F) -> F:
    """Compile ``function`` into each kernel that calls it.

    Without ``_nrt=False`` every call with arrays counts references, atomically: 1.5 to 3 times slower. Nothing calls
    these functions from Python: without wrappers for that, kernels compile in 0.7 of the time.
    """
    import numba

    options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(forceinline=True, **options)(function)  # type: ignore[no-any-return]


def is_cold(function: Callable[..., Any]) -> bool:
    """Whether the next call of the kernel ``function`` has to compile it first."""
    if not hasattr(function, "py_func"):  # NUMBA_DISABLE_JIT
        return False
    if function.signatures:  # type: ignore[attr-defined]
        return False
    directory = cache_directory()
    name = function.py_func.__qualname__
    return directory is None or next(directory.rglob(f"*.{name}-*.nbc"), None) is None


@cache
def cache_directory() -> Path | None:
    """Where machine code is kept; None, after a warning, where nothing can be written."""
    import numba

    base = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(base) / "trine" / _fingerprint()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        warnings.warn(f"kernels are compiled anew in each process: cannot write {directory} ({error})", stacklevel=2)
        return None
    return directory


def _fingerprint() -> str:
    """Hash of all kernel sources, of the versions of numba and numpy, and of what changes the code they make.

    Place and age of the sources count too, as they do for numba: only so does :func:`is_cold` know what it will do.
    """
    import numba
    import numpy

    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("_*.py")):
        if path.name != "__init__.py":
            digest.update(f"{path}\0{path.stat().st_mtime_ns}\0".encode() + path.read_bytes() + b"\0")
    settings = (numba.__version__, numpy.__version__, numba.config.BOUNDSCHECK, numba.config.OPT)
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:16]
