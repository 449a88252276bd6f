"""CPU-time limits for tests that share the machine with other work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def computes_for_less_than(seconds: float) -> Iterator[None]:
    """Assert that the block uses less CPU time than this; waiting and other processes do not count."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds
