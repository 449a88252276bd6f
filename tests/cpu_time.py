"""Guards against runaway cost, for tests on machines of any speed. Claims of speed belong in benchmarks/."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A guard allows this multiple of the time on an idle core: slower machines pass, quadratic growth does not.
SLACK = 10


@contextmanager
def computes_in_about(seconds: float) -> Iterator[None]:
    """Assert that the block uses at most ``SLACK`` times this CPU time; waiting and other processes do not count."""
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
