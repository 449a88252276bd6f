"""Values of an answer's JSON document, which may come from a file: missing or odd values are None or empty."""

from __future__ import annotations

import math
from collections.abc import Mapping

Document = Mapping[str, object]


def number(document: Document, key: str) -> float | None:
    """Return a finite number, or None."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def amount(document: Document, key: str) -> float:
    """Return a number, 0 if it is missing."""
    return number(document, key) or 0.0


def text(document: Document, key: str) -> str:
    """Return a text, or a number as text; "" for anything else."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)


def section(document: Document, key: str) -> Document:
    """Return the object of a key; empty if there is none."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def rows(document: Document, key: str) -> list[Document]:
    """Return the objects of a list; empty if there is none."""
    value = document.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def texts(document: Document, key: str) -> list[str]:
    """Return the texts of a list; empty if there is none."""
    value = document.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def numbers(document: Document) -> dict[str, float]:
    """Return the entries of an object that are finite numbers."""
    found = {}
    for key in document:
        value = number(document, key)
        if value is not None:
            found[key] = value
    return found
