"""How objects show themselves: in one line, and as HTML in notebooks, where every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from html import escape
from typing import Any

from trine.errors import one_line

#: The most columns that the ``repr`` of an object has, and that a value in it has.
MAX_REPR, _MAX_VALUE = 199, 40

#: Rows and columns of a table that a notebook shows.
MAX_ROWS, MAX_COLUMNS = 12, 12


class OneLine:
    """A dataclass with a one-line ``repr``: fields that differ from their defaults; arrays and long lists by size."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "__repr__" not in cls.__dict__:  # @dataclass does not overwrite it
            cls.__repr__ = _repr_of_fields  # type: ignore[method-assign]


def titled(thing: object, text: str) -> str:
    """Return ``<Class: text>`` as one line of at most MAX_REPR columns."""
    return one_line(f"<{type(thing).__name__}: {text}>", MAX_REPR)


def _repr_of_fields(self: Any) -> str:
    pairs = ((each.name, getattr(self, each.name)) for each in fields(self) if each.repr and not _is_usual(self, each))
    return one_line(f"{type(self).__name__}({', '.join(f'{name}={_value(value)}' for name, value in pairs)})", MAX_REPR)


def _is_usual(thing: object, field: Field[object]) -> bool:
    value = getattr(thing, field.name)
    if hasattr(value, "dtype"):
        return False
    usual = field.default if field.default_factory is MISSING else field.default_factory()
    return usual is not MISSING and bool(value == usual)


def _value(value: object) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list | dict | set | frozenset):
        text = repr(value) if len(value) <= 8 and not any(map(is_dataclass, value)) else ""
        return text if text and len(text) <= _MAX_VALUE else f"<{len(value)} items>"
    return (
        one_line(repr(value), _MAX_VALUE)
        if isinstance(value, str | int | float | None)
        else f"<{type(value).__name__}>"
    )


def page(headline: str, *parts: str) -> str:
    """Return one block: the headline, then the parts, which are HTML."""
    return f'<div class="trine"><p><b>{escape(headline)}</b></p>{"".join(parts)}</div>'


def facts(rows: Mapping[str, object]) -> str:
    """Return a table of names and values; "" for none."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>" if cells else ""


def table(caption: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Return the first rows and columns of a table; "" for none. Rows have the keys of the first."""
    if not rows:
        return ""
    names = list(rows[0])[:MAX_COLUMNS]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    table_rows = []
    for row in rows[:MAX_ROWS]:
        table_rows.append(f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>")
    body = "".join(table_rows)
    remark = f" (first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
    return f"<table><caption>{escape(caption + remark)}</caption><tr>{head}</tr>{body}</table>"


def folded(title: str, lines: Iterable[str]) -> str:
    """Return a list that opens on a click; "" for none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>" if items else ""


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))
