"""How a check says what is wrong."""

from __future__ import annotations


def require(condition: bool, message: str) -> None:
    """``assert`` that python -O keeps."""
    if not condition:
        raise AssertionError(message)
