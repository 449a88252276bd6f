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
