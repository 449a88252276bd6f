"""Lines of readable answers, as wide as the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

#: Narrowest and widest answers, in columns; the widest without a terminal.
NARROW, WIDE = 60, 100
#: Lines that fit on a terminal with the prompt.
MAX_LINES = 24
#: A space that no line break takes: between a number and its unit. Its name would need the module unicodedata, whose
#: shared library does not load where memory is short.
_BLANK = "\u00a0"
_NUMBER_AND_UNIT = re.compile(r"(\d) (?=%|[kKMGT]?i?[BJW]\b|[GMTk]B/s|[munp]?s\b)")
_width: ContextVar[int] = ContextVar("width", default=WIDE)


def width() -> int:
    """Return the columns of a line."""
    return _width.get()


@contextmanager
def fitted(terminal: int) -> Iterator[None]:
    """Write lines for a terminal of this many columns: NARROW to WIDE."""
    token = _width.set(min(WIDE, max(NARROW, terminal)))
    try:
        yield
    finally:
        _width.reset(token)


def wrapped_at(label: str, text: str, column: int) -> list[str]:
    """Return ``label`` and ``text`` from ``column`` on, in lines of the terminal's width that continue there."""
    if not text:
        return []
    bound = _NUMBER_AND_UNIT.sub("\\1" + _BLANK, text)
    first, indent = label.ljust(column), " " * (column or 4)
    lines = textwrap.wrap(bound, width(), initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_BLANK, " ") for line in lines]


def wrapped(label: str, text: str) -> list[str]:
    """Return "label: text" in lines of :func:`width` columns, continued with an indent."""
    return wrapped_at("", f"{label}: {text}", 0) if text else []


def first_screen(text: str) -> str:
    """Return the lines of ``text`` that fit on a screen, up to the end of a paragraph if one ends near the last."""
    lines = text.splitlines()
    if len(lines) <= MAX_LINES:
        return text
    visible = lines[: MAX_LINES - 1]
    if "" in visible[-6:]:
        visible = visible[: len(visible) - 1 - visible[::-1].index("")]
    return "\n".join([*visible, f"... {len(lines) - len(visible)} more lines: --details"])


def behaviour(ranks: int, classes: int) -> str:
    """Return how many of the ranks behave differently, in plain words."""
    if ranks == 1:
        return "1 rank is left"
    if classes == 1:
        return f"{'both' if ranks == 2 else f'all {ranks}'} ranks are identical: simulated one of them"
    if classes == ranks:
        return f"{ranks} ranks, each simulated"
    return f"{ranks} ranks in {classes} classes of identical ones: simulated one of each"


def aligned(rows: Sequence[tuple[str, ...]], least: int, left: int = 1) -> list[str]:
    """Return lines of a table: ``left`` columns to the left, the first at least ``least`` wide, the others right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    wide[0] = max(wide[0], least)
    lines = []
    for r in rows:
        lines.append(
            "  ".join(
                c.ljust(w) if n < left else c.rjust(w) for n, (c, w) in enumerate(zip(r, wide, strict=True))
            ).rstrip()
        )
    return lines


def columns(rows: Sequence[tuple[str, ...]], spare: Sequence[int] = (), margin: int = 0) -> list[str]:
    """Return lines of a table whose first column is as wide as its longest cell.

    spare: columns to leave out, in this order, while lines are wider than the terminal less ``margin`` columns.
    """
    lines = aligned(rows, 0) if rows else []
    if not spare or max(map(len, lines), default=0) <= width() - margin:
        return lines
    first, *later = spare
    narrower = []
    for row in rows:
        narrower.append(tuple(cell for column, cell in enumerate(row) if column != first))
    return columns(narrower, [column - (column > first) for column in later], margin)


def unused_options(options: Mapping[str, object], same_without: Callable[[str], bool], scope: str) -> Iterator[str]:
    """Yield a sentence for each option that changes no time.

    options: option -> its value, None if not set. same_without: whether a run without this option takes the same time.
    scope: the range that the sentence names, such as ``at these sizes``.
    """
    for name, value in options.items():
        if value is not None and same_without(name):
            yield f"{name} {value} changes no time {scope}: without it the time is the same"


def gpus_words(count: int) -> str:
    """Return ``1 GPU`` or ``8 GPUs``."""
    return f"{count:,} GPU{'' if count == 1 else 's'}"
