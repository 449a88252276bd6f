"""Numba's cache of one kernel, behind a guard: files that are damaged or foreign are ignored with a note.

Numba keeps an index and numbered files of machine code, all pickled, and loads them unchecked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import sigutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from trine.common import _jit_files

#: Numba writes with the process's umask, which may let a group write.
_UMASK = 0o022


class _Place:
    """Where numba keeps a kernel's files; the folder's name covers all sources, so that no time stamp is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def ensure_cache_path(self) -> None:
        """Do nothing: :func:`trine.common._jit.cache_directory` makes the folder, which may be read-only."""

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return ""


class KernelCache(FunctionCache):  # type: ignore[misc]
    """A kernel's cache in ``folder``."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        class Files(CompileResultCacheImpl):  # type: ignore[misc]
            """Names of this kernel's files, in place of those that numba derives from its settings."""

            locator = _Place(folder)
            filename_base = file_stem(function)
            _lineno = function.__code__.co_firstlineno

            def __init__(self, py_func: Callable[..., Any]) -> None: ...

        self._impl_class = Files
        self._folder, self._stem = folder, Files.filename_base
        self._is_used = True
        super().__init__(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code compiled for ``sig``, or None."""
        self._remove_foreign()
        if not self._is_used:
            return None
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:  # a truncated pickle raises anything
            _jit_files.say_damaged(self._folder / self._stem, f"cannot be loaded ({type(error).__name__})")
        else:
            if found is None or tuple(found.signature.args) == tuple(sigutils.normalize_signature(sig)[0]):
                return found
            # two processes at once can give two signatures one number
            _jit_files.say_damaged(self._folder / self._stem, "is of other arguments")
        with suppress(OSError):
            self.flush()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled code; warn if that fails."""
        if not self._is_used:
            return
        before = os.umask(_UMASK)
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _jit_files.say_unwritable(self._folder, error)
        finally:
            os.umask(before)

    def is_empty(self) -> bool:
        """Return whether no code of the kernel is kept."""
        return next(self._folder.glob(f"{self._stem}.*.nbc"), None) is None

    def _remove_foreign(self) -> None:
        """Remove the kernel's files that others can have written; if that is impossible, use none."""
        for path in self._folder.glob(f"{self._stem}.*nb[ci]"):
            with suppress(FileNotFoundError):
                reason = _jit_files.unsafe(path.lstat())
                if reason is None:
                    continue
                _jit_files.say_damaged(path, reason)
                try:
                    path.unlink()
                except OSError:
                    self._is_used = False


def file_stem(function: Callable[..., Any]) -> str:
    """Return the prefix of a kernel's file names."""
    return f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
