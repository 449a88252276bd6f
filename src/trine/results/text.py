"""Lines of readable answers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100


def wrapped(label: str, text: str, most: int = 4) -> list[str]:
    """Return "label: text" in lines of WIDTH columns, continued with an indent, cut after ``most`` lines."""
    if not text:
        return []
    lines = textwrap.wrap(f"{label}: {text}", WIDTH, subsequent_indent="    ")
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 4]} ..."]
    return lines


def behaviour(ranks: int, classes: int) -> str:
    """Return how many of the ranks behave differently, in plain words."""
    if ranks == 1:
        return "1 rank is left"
    if classes == 1:
        return f"{'both' if ranks == 2 else f'all {ranks}'} ranks behave alike, one stands for them"
    if classes == ranks:
        return f"each of {ranks} ranks behaves in its own way"
    return f"{ranks} ranks behave in {classes} ways"


def aligned(rows: Sequence[tuple[str, ...]], least: int) -> list[str]:
    """Return lines of a table: the first column to the left, at least ``least`` wide, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(widths[0], least)
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
