"""Rows of JSON and tables from objects: each column is an attribute, under its JSON key.

A key ending in a unit (``time_s``, ``time_us``, ``busbw_GBps``) also names the attribute in trine's own unit
(``time_ps``, ``busbw_bytes_per_s``). A field with another key, or with a value that means None, says so where it is
declared: ``start_ps: int = field(metadata=column("begins_s", none=-1))``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from trine.common.units import PS_PER_S

Row = dict[str, object]

#: Ending of a key, ending of the attribute with its value, and the divisor between their units.
_UNITS = (("_s", "_ps", PS_PER_S), ("_us", "_ps", 10**6), ("_GBps", "_bytes_per_s", 10**9))


def column(key: str = "", *, none: object = None) -> Mapping[str, object]:
    """Return the metadata of a dataclass field: its key unless it is the field's name, and a value that means None."""
    return {"key": key, "none": none}


def to_row(thing: Any, keys: str = "") -> Row:
    """Return the attributes of ``thing`` with these keys, separated by spaces; by default all fields of a dataclass.

    Tuples become lists. Raises AttributeError for an unknown key.
    """
    found: Row = {}
    kind: Any = type(thing)  # mypy takes type[Any] for unhashable
    for key, name, divisor, none in _columns(kind, keys):
        value = getattr(thing, name)
        if value is None or (none is not None and value == none):
            found[key] = None
        else:
            found[key] = value / divisor if divisor else list(value) if type(value) is tuple else value
    return found


def to_rows(things: Iterable[Any], keys: str = "") -> list[Row]:
    """Return :func:`to_row` of each object."""
    return [to_row(thing, keys) for thing in things]


class _Column(NamedTuple):
    """A column: its key, its attribute, the divisor to the key's unit (0: the same unit), the value that means None."""

    key: str
    name: str
    divisor: int
    none: object


@cache
def _columns(kind: type[Any], keys: str) -> tuple[_Column, ...]:
    """Return the columns with these keys of a class; by default one per field, with times in seconds."""
    declared: dict[str, Mapping[str, object]] = {}
    if is_dataclass(kind):
        declared = {each.name: each.metadata for each in fields(kind)}
    renamed = {str(data["key"]): name for name, data in declared.items() if data.get("key")}
    chosen = keys.split() or [str(data.get("key") or _in_seconds(name)) for name, data in declared.items()]
    found = []
    for key in chosen:
        name, divisor = renamed.get(key, key), 0
        if name not in declared and not hasattr(kind, name):
            name, divisor = _in_own_unit(name)
        found.append(_Column(key, name, divisor, declared.get(name, {}).get("none")))
    return tuple(found)


def _in_own_unit(key: str) -> tuple[str, int]:
    """Return the attribute in trine's own unit that a key names, and the divisor to the unit of the key."""
    for ending, own, divisor in _UNITS:
        if key.endswith(ending):
            return key.removesuffix(ending) + own, divisor
    return key, 0


def _in_seconds(name: str) -> str:
    return f"{name.removesuffix('_ps')}_s" if name.endswith("_ps") else name
