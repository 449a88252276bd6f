"""Rows of JSON and tables from objects: each column is an attribute, under its JSON key.

Keys that end in a unit (``time_s``, ``time_us``, ``busbw_GBps``) convert attributes in trine's own unit (``time_ps``,
``busbw_bytes_per_s``). A field declares a different key, or a value shown as None, with :func:`column`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from trine.common.units import PS_PER_S

Row = dict[str, object]

#: Ending of a key, ending of the attribute with its value, and the divisor between their units.
_UNITS = (("_s", "_ps", PS_PER_S), ("_us", "_ps", 10**6), ("_GBps", "_bytes_per_s", 10**9))


def column(key: str = "", *, none: object = None) -> Mapping[str, object]:
    """Return the metadata of a dataclass field: a key that differs from its name, and a value that means None."""
    return {"key": key, "none": none}


def to_row(thing: Any, keys: str = "") -> Row:
    """Return the attributes of ``thing`` with these keys, separated by spaces; by default all fields of a dataclass.

    Tuples become lists. Raises AttributeError for an unknown key.
    """
    row: Row = {}
    kind: Any = type(thing)  # mypy rejects type[Any] as a cache key
    for key, name, divisor, absent in _columns(kind, keys):
        value = getattr(thing, name)
        if value is None or (absent is not None and value == absent):
            row[key] = None
        else:
            if divisor:
                row[key] = value / divisor
            elif type(value) is tuple:
                row[key] = list(value)
            else:
                row[key] = value
    return row


def to_rows(things: Iterable[Any], keys: str = "") -> list[Row]:
    """Return :func:`to_row` of each object."""
    return [to_row(thing, keys) for thing in things]


@cache
def _columns(kind: type[Any], keys: str) -> tuple[tuple[str, str, int, object], ...]:
    """Return each column of a class: key, attribute, divisor (0: same unit), and a value that means None."""
    if is_dataclass(kind):
        declared = {each.name: each.metadata for each in fields(kind)}
    else:
        declared = {}
    renamed = {str(data["key"]): name for name, data in declared.items() if data.get("key")}
    chosen_keys = keys.split() or [str(data.get("key") or _in_seconds(name)) for name, data in declared.items()]
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


def _in_seconds(name: str) -> str:
    return f"{name.removesuffix('_ps')}_s" if name.endswith("_ps") else name
