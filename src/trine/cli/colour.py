"""Colours of text on a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    pass


DIM, CYAN, YELLOW, RED = "2", "1;36", "33", "1;31"


def has_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colour: no pipe, no NO_COLOR (no-color.org), no TERM=dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, code: str, colour: bool) -> str:
    """Return ``text`` in a terminal colour."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and text else text
