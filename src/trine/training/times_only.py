"""Simulations whose reader needs times and memory only, such as the small jobs of a search.

They leave out the sentence about exposed launches, the one part of a result that needs the reason of every wait: for
that, the tasks of further ranks are put together again, which takes up to half of a small job's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TIMES_ONLY: ContextVar[bool] = ContextVar("times_only", default=False)


@contextmanager
def times_only() -> Iterator[None]:
    """Leave out what only explains a result."""
    token = _TIMES_ONLY.set(True)
    try:
        yield
    finally:
        _TIMES_ONLY.reset(token)


def is_times_only() -> bool:
    """Return whether the caller needs times and memory only."""
    return _TIMES_ONLY.get()
