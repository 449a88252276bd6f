"""CPU-time limits of tests. ``make bench`` checks them as they stand; elsewhere SLACK allows for slow machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Factor on every limit: CI has slower and busier cores than the machines on which the limits were set.
SLACK = float(os.environ.get("TRINE_SLACK", "3"))


@contextmanager
def computes_for_less_than(seconds: float) -> Iterator[None]:
    """Assert that the block uses less CPU time, times ``SLACK``; waiting and other processes do not count."""
    began = time.process_time()
    yield
    assert time.process_time() - began < SLACK * seconds


def fastest(work: Callable[[], object], tries: int = 3) -> float:
    """Return the CPU time of the fastest try in seconds: the other tries had colder caches."""
    seconds = []
    for _ in range(tries):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)
