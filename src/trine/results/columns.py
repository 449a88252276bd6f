"""Rows of JSON and tables from objects: each column is an attribute, under its JSON key.

A table of an answer is a :class:`Columns`: it declares each :class:`Column` once, with key, unit and meaning, and
``tools/json_reference.py`` writes the reference of the JSON keys from it. :func:`to_row` serves objects of a few keys.

Keys that end in a unit (``time_s``, ``time_us``, ``busbw_GBps``) convert attributes in trine's own unit (``time_ps``,
``busbw_bytes_per_s``). A field declares a different key, or a value shown as None, with :func:`column`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from trine.common.units import PS_PER_S

Row = dict[str, object]
#: Of each column: key, getter of its value, divisor to the key's unit (0: same unit), and a value that means None.
Getters = tuple[tuple[str, Callable[[Any], object], int, object], ...]

#: Ending of a key, ending of the attribute with its value, and the divisor between their units.
_UNITS = (("_s", "_ps", PS_PER_S), ("_us", "_ps", 10**6), ("_GBps", "_bytes_per_s", 10**9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table, or key of an object.

    key: in JSON. unit: of the value in the reference, such as ``s``, ``bytes`` or ``text``. meaning: a sentence of the
    reference; columns with one meaning share a line. null_if: when the value is None; empty: never. attribute: path of
    the value from the object of a row, such as ``outcome.step_ps``; empty: the key, or its name in trine's own unit.
    none: a value that is shown as None.
    """

    key: str
    unit: str
    meaning: str
    null_if: str = ""
    attribute: str = ""
    none: object = None


class Columns:
    """The columns of a table or an object, in the order of its keys."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns
        self._of: dict[type[Any], Getters] = {}

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def row(self, thing: Any) -> Row:
        """Return the columns of an object under their keys. Raises AttributeError if it lacks one."""
        kind: Any = type(thing)
        return _row(thing, self._getters_of(kind))

    def rows(self, things: Iterable[Any]) -> list[Row]:
        """Return :meth:`row` of each object."""
        return [self.row(thing) for thing in things]

    def _getters_of(self, kind: type[Any]) -> Getters:
        """Return the getters of the columns for objects of a class."""
        if kind not in self._of:
            keys = tuple(column.key for column in self.columns)
            found = []
            for column, (key, name, divisor, none) in zip(self.columns, _columns(kind, keys), strict=True):
                if column.attribute:
                    name, divisor = column.attribute, _divisor(key, column.attribute)
                none = none if column.none is None else column.none
                found.append((key, attrgetter(name), divisor, none))
            self._of[kind] = tuple(found)
        return self._of[kind]


def column(key: str = "", *, none: object = None) -> Mapping[str, object]:
    """Return the metadata of a dataclass field: a key that differs from its name, and a value that means None."""
    return {"key": key, "none": none}


def to_row(thing: Any, *keys: str) -> Row:
    """Return the attributes of ``thing`` with these keys; without keys, all fields of a dataclass.

    Tuples become lists. Raises AttributeError for an unknown key.
    """
    kind: Any = type(thing)  # mypy rejects type[Any] as a cache key
    return _row(thing, _getters(kind, keys))


def _row(thing: Any, getters: Getters) -> Row:
    row: Row = {}
    for key, value_of, divisor, absent in getters:
        value: Any = value_of(thing)
        if value is None or (absent is not None and value == absent):
            row[key] = None
        elif divisor:
            row[key] = value / divisor
        elif type(value) is tuple:
            row[key] = list(value)
        else:
            row[key] = value
    return row


@cache
def _getters(kind: type[Any], keys: tuple[str, ...]) -> Getters:
    return tuple((key, attrgetter(name), divisor, none) for key, name, divisor, none in _columns(kind, keys))


def _columns(kind: type[Any], keys: tuple[str, ...]) -> tuple[tuple[str, str, int, object], ...]:
    """Return each column of a class: key, attribute, divisor (0: same unit), and a value that means None."""
    if is_dataclass(kind):
        declared = {each.name: each.metadata for each in fields(kind)}
    else:
        declared = {}
    renamed = {str(data["key"]): name for name, data in declared.items() if data.get("key")}
    chosen_keys = list(keys) or [str(data.get("key") or _in_seconds(name)) for name, data in declared.items()]
    columns = []
    for key in chosen_keys:
        name, divisor = renamed.get(key, key), 0
        if name not in declared and not hasattr(kind, name):
            name, divisor = _in_own_unit(name)
        columns.append((key, name, divisor, declared[name].get("none") if name in declared else None))
    return tuple(columns)


def _in_own_unit(key: str) -> tuple[str, int]:
    """Return the attribute in trine's own unit that a key names, and the divisor to the unit of the key."""
    for ending, unit_ending, divisor in _UNITS:
        if key.endswith(ending):
            return key.removesuffix(ending) + unit_ending, divisor
    return key, 0


def _divisor(key: str, attribute: str) -> int:
    """Return the divisor from the unit of an attribute to that of a key; 0 for the same unit."""
    for ending, unit_ending, divisor in _UNITS:
        if key.endswith(ending) and attribute.endswith(unit_ending):
            return divisor
    return 0


def _in_seconds(name: str) -> str:
    return f"{name.removesuffix('_ps')}_s" if name.endswith("_ps") else name
