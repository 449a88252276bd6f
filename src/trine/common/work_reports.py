"""What each worker process does now: short reports to the control of the run that waits for them.

A worker sends a line through a pipe when it begins or ends a piece of work. Lines are shorter than PIPE_BUF, so that
the system writes each at once: no lock, which a killed worker could keep. Without a control there is no pipe.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from trine.common.observer import Control, current_observer

#: Characters of a report; escaped, they take at most 12 bytes each, less than PIPE_BUF (512 by POSIX, 4,096 on Linux).
MAX_WORDS = 120
_END = b""


class _Sender:
    """The end of the pipe in a worker process; None elsewhere."""

    connection: Connection[Any, Any] | None = None


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report that this process does ``what``, and at the end that it waits for work."""
    _report(what)
    try:
        yield
    finally:
        _report("")


def _report(what: str) -> None:
    if _Sender.connection is not None:
        line = json.dumps([os.getpid(), what[:MAX_WORDS]])
        with suppress(OSError):  # the driver has ended, or shows nothing any more
            _Sender.connection.send_bytes(line.encode())
        return
    control = current_observer().control
    if control is not None:
        control.work(os.getpid(), what[:MAX_WORDS])


def reporting_pool(
    control: Control, context: BaseContext, count: int, initializer: Callable[[], None] | None
) -> ProcessPoolExecutor:
    """Return a pool of processes whose reports reach ``control``."""
    receiver, sender = context.Pipe(duplex=False)
    threading.Thread(target=_relay, args=(receiver, control), name="reports of workers", daemon=True).start()
    return _ReportingPool(sender, count, context, initializer)


class _ReportingPool(ProcessPoolExecutor):
    """A pool whose end ends its reports."""

    def __init__(
        self, sender: Connection[Any, Any], count: int, context: BaseContext, initializer: Callable[[], None] | None
    ) -> None:
        super().__init__(count, mp_context=context, initializer=_start, initargs=(sender, initializer))
        self._reports = sender

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, then their reports."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        with suppress(OSError):  # ended before
            self._reports.send_bytes(_END)
            self._reports.close()


def _start(sender: Connection[Any, Any], initializer: Callable[[], None] | None) -> None:
    """Prepare a worker process."""
    _Sender.connection = sender
    if initializer is not None:
        initializer()


def _relay(receiver: Connection[Any, Any], control: Control) -> None:
    """Hand the reports to the control until the pool ends; later reports fail in their workers, which ignore it."""
    with suppress(EOFError, OSError), receiver:
        while line := receiver.recv_bytes():
            worker, what = json.loads(line)
            control.work(worker, what)
    control.end_of_work()
