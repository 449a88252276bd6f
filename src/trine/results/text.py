"""Lines of readable answers."""

from __future__ import annotations

import textwrap

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
