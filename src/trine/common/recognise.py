"""Recognise files of other programs from their content, so that errors name the writer and the right command.

A reader calls :func:`foreign_file` before it parses: a parser's complaint about the first odd character helps nobody
who gave the wrong file.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trine.common.known_files import CHAKRA, CLUSTER, KNOWN_FILES, LOG, MODEL, NEEDS, OTHER, TABLE, TRACE, KnownFile

__all__ = [
    "CHAKRA", "CLUSTER", "LOG", "MAX_CHARS", "MODEL", "OTHER", "TABLE", "TRACE", "foreign_file", "foreign_table",
]  # fmt: skip

#: Characters of a file that are searched.
MAX_CHARS = 1 << 18
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COMPILED = [(row, [re.compile(pattern, re.MULTILINE) for pattern in row.patterns]) for row in KNOWN_FILES]


def foreign_file(text: str, kind: str) -> str | None:
    """Return what a text is and what to do with it, or None if no row fits or the row is of the reader's own kind.

    Example: ``is a profiler trace of PyTorch: trine trace inspect FILE``.
    """
    row = _first(text, lambda known: known.kind != kind)
    if row is None:
        return None
    remedy = row.remedy or NEEDS.get(kind, "")
    return f"is {row.program}: {remedy}" if remedy else f"is {row.program}"


def foreign_table(text: str) -> str | None:
    """Return what a text is if it is another benchmark's table, whose lines may look like those of nccl-tests."""
    row = _first(text, lambda known: known.kind == TABLE)
    return None if row is None else row.program


def _first(text: str, is_wanted: Callable[[KnownFile], bool]) -> KnownFile | None:
    """Return the first wanted row whose patterns all occur in the start of a text."""
    start = text[:MAX_CHARS]
    if "\x1b" in start:
        start = _COLOURS.sub("", start)
    for row, patterns in _COMPILED:
        if is_wanted(row) and all(pattern.search(start) for pattern in patterns):
            return row
    return None
