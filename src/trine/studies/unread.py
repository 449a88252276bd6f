"""Rows of measured tables that cannot be read: validation lists them with the reason and goes on."""

from __future__ import annotations

from dataclasses import dataclass

from trine.errors import TrineError

#: What reading a faulty row raises.
ROW_ERRORS = (TrineError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadRow:
    """A row of a table without a prediction, and why."""

    source: str
    name: str
    why: str


def why_unread(error: Exception) -> str:
    """Return why a row cannot be read."""
    if isinstance(error, TrineError):
        return str(error)
    return f"no column {error}" if isinstance(error, KeyError) else f"not a row of this table: {error}"
