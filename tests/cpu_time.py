"""How long a test's work takes, where others may be at work on the same machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def computes_for_less_than(seconds: float) -> Iterator[None]:
    """Of processor time: what the process waits for, and what others compute meanwhile, does not count."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds
