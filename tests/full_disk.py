"""A disk that is full: no file of this process may grow beyond a few bytes meanwhile."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(left_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``left_bytes``.

    Keep the block short: what pytest prints in it fails as well.
    """
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
