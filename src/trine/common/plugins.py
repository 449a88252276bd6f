"""Implementations by name: built in, registered at run time, or found through entry points of other packages.

A registry is created once, at module level, by the package that owns the plug-in kind::

    READERS = Registry("trace reader", "trine.traces", {"triosim": "trine.workload.triosim:TRIOSIM"})

Built-in and entry-point implementations are written as ``"module:attribute"`` and imported on first use. Entry points
of installed packages are read only for a name that is neither built in nor registered, or for the list of all names; a
run without plug-ins never reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trine.errors import InputError, as_known, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def load_target(target: str) -> Any:
    """Import ``"module:attribute"``, a hook into a package that its importer must not import directly."""
    module, _, attribute = target.partition(":")
    return attrgetter(attribute)(import_module(module))


class Registry(Generic[T]):
    """A registry of one kind of plug-in, in a fixed order: built in, registered, then entry points by name."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.built_in = tuple(builtin)
        self._targets = dict(builtin)
        self._registered: list[str] = []
        self._points: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, T] = {}

    def register(self, name: str, implementation: T) -> None:
        """Add ``implementation`` as ``name``. Raises InputError for a duplicate name."""
        if name in self._targets or name in self._registered or name in (self._points or ()):
            raise InputError(f"a {self.kind} named {name!r} exists already")
        self._registered.append(name)
        self._loaded[name] = implementation

    def names(self) -> tuple[str, ...]:
        """Return all known names, in the order of the class's docstring. Raises InputError if two are the same."""
        return (*self.built_in, *self._registered, *self._entry_points())

    def __contains__(self, name: str) -> bool:
        """Return whether there is an implementation called ``name``."""
        return name in self._targets or name in self._registered or name in self._entry_points()

    def get(self, name: str) -> T:
        """Return the implementation called ``name``.

        Raises InputError, listing the known names, for an unknown name; also, with package and cause, if the package
        that offers it cannot be imported.
        """
        if name not in self:
            name = as_known(name, self.names())
        if name not in self._loaded:
            if name in self._targets:
                self._loaded[name] = load_target(self._targets[name])
            elif name in self._entry_points():
                self._loaded[name] = self._load(self._entry_points()[name])
            else:
                raise InputError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
        return self._loaded[name]

    def each(self) -> Iterator[T]:
        """Yield all implementations in name order; imports them, and reads entry points, one at a time."""
        for name in (*self.built_in, *self._registered):
            yield self.get(name)
        for name in self._entry_points():
            yield self.get(name)

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Return the entry points of the group, sorted by name."""
        if self._points is None:
            from importlib import metadata

            points: dict[str, EntryPoint] = {}
            for point in sorted(metadata.entry_points(group=self.group), key=lambda p: (p.name, _package(p), p.value)):
                earlier = points.setdefault(point.name, point)
                if point.name in self._targets:
                    first = "trine itself"
                elif point.name in self._registered:
                    first = "this program, at run time,"
                elif (_package(earlier), earlier.value) != (_package(point), point.value):
                    first = f"the package {_package(earlier)!r}"
                else:
                    continue
                raise InputError(
                    f"{first} and the package {_package(point)!r} both offer a {self.kind} named {point.name!r}: "
                    "one of them has to go"
                )
            self._points = points
        return self._points

    def _load(self, point: EntryPoint) -> T:
        try:
            implementation: T = point.load()
        except Exception as error:  # the other package's import may raise anything
            raise InputError(
                f"the {self.kind} {point.name!r} of the package {_package(point)!r} cannot be loaded from "
                f"{point.value!r}: {type(error).__name__}: {error}"
            ) from error
        return implementation


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else point.dist.name
