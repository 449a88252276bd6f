"""Answers as HTML for notebooks: a headline, facts, tables and lists; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

#: Rows and columns of a table that a notebook shows.
MAX_ROWS, MAX_COLUMNS = 12, 12


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
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in rows[:MAX_ROWS]
    )
    left = f" (first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
    return f"<table><caption>{escape(caption + left)}</caption><tr>{head}</tr>{body}</table>"


def folded(title: str, lines: Iterable[str]) -> str:
    """Return a list that opens on a click; "" for none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>" if items else ""


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))
