"""Numba's cache of one kernel, stored in the files of :mod:`trine.common._jit_files`.

Numba's own format keeps a pickled index of its files, and unpickles them without checking their content.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from trine.common import _jit_files


class KernelCache(_Cache):  # type: ignore[misc]
    """A cache in ``folder`` with one file for each signature of ``function`` and each type of processor."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._function, self._folder = function, folder
        self._damaged: set[str] = set()

    @property
    def cache_path(self) -> str:
        """The folder of the files."""
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code compiled for ``sig``, or None."""
        target_context.refresh()
        name = self._name(sig, target_context.codegen())
        content = _jit_files.read(self._folder, name)
        if content is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(content))
        except Exception as error:  # the same numba wrote the file, and still cannot load it
            self._damaged.add(name)
            _jit_files.say_damaged(self._folder, name, f"cannot be loaded ({type(error).__name__})")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled code."""
        if data.library.has_dynamic_globals or not all(each.can_cache for each in data.lifted):
            return
        name = self._name(sig, data.codegen)
        _jit_files.write(self._folder, name, dumps(data._reduce()), is_damaged=name in self._damaged)

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: part of numba's interface that trine never calls."""

    def flush(self) -> None:
        """Delete the kernel's files before a recompilation."""
        for path in self._folder.glob(f"{file_stem(self._function)}-*.nbc"):
            path.unlink(missing_ok=True)

    def _name(self, sig: Any, codegen: Any) -> str:
        """Return a file name derived from all inputs of the machine code that the folder name does not cover."""
        key = (_words(sig), codegen.magic_tuple(), self._function.__code__.co_code)
        return f"{file_stem(self._function)}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"


def file_stem(function: Callable[..., Any]) -> str:
    """Return the prefix of a kernel's file names."""
    return f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")


def _words(kind: Any) -> str:
    """Return the name of a type; named tuples include their fields, which numba's name omits."""
    if isinstance(kind, tuple):
        return f"({', '.join(map(_words, kind))})"
    named_tuple = getattr(kind, "instance_class", None)
    if named_tuple is None:
        return str(kind)
    fields = ", ".join(f"{name}: {_words(part)}" for name, part in zip(kind.fields, kind.types, strict=True))
    return f"{named_tuple.__module__}.{named_tuple.__qualname__}({fields})"
