"""Implementations by name: built in, registered at run time, or found through entry points of other packages.

A registry is made once, at module level, by the package whose plug-ins it names::

    READERS = Registry("trace reader", "trine.traces", {"triosim": "trine.traces.triosim:TRIOSIM"})

Built-in and entry-point implementations are given as ``"module:attribute"`` and imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Generic, TypeVar

from trine.errors import InputError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one kind of plug-in, in a fixed order: built in, registered, then entry points by name."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._targets: dict[str, str] = dict(builtin)
        self._loaded: dict[str, T] = {}
        self._entry_points_read = False

    def register(self, name: str, implementation: T) -> None:
        """Add ``implementation`` as ``name``. Raises InputError if the name is taken."""
        if name in self._targets or name in self._loaded:
            raise InputError(f"a {self.kind} named {name!r} exists already")
        self._loaded[name] = implementation

    def names(self) -> tuple[str, ...]:
        """Every known name, in the order of the class's docstring."""
        self._read_entry_points()
        return tuple(dict.fromkeys((*self._targets, *self._loaded)))

    def get(self, name: str) -> T:
        """Return the implementation called ``name``. Raises InputError, listing the known names, if there is none."""
        self._read_entry_points()
        if name not in self._loaded:
            if name not in self._targets:
                raise InputError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
            module, _, attribute = self._targets[name].partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        return self._loaded[name]

    def _read_entry_points(self) -> None:
        if self._entry_points_read:
            return
        self._entry_points_read = True
        for point in sorted(metadata.entry_points(group=self.group), key=lambda point: point.name):
            self._targets.setdefault(point.name, point.value)
