"""The report that the running command writes beside its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class ReportTarget(NamedTuple):
    """A report. path: its file; line: the command line that repeats the answer."""

    path: str
    line: str


#: The report of the running command; None without ``--report``.
_target: ContextVar[ReportTarget | None] = ContextVar("report", default=None)


@contextmanager
def reporting(target: ReportTarget) -> Iterator[None]:
    """Let the command inside the block write a report with its answer."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def report_target() -> ReportTarget | None:
    """Return the report of the running command, None without one."""
    return _target.get()
