"""What may happen to a process: stdout and stderr whose reader goes or whose disk is full, Ctrl-C that is swallowed.

The command goes on without a reader (``2>&1 | head -4``): whatever else was asked for is still written; how it ends
says whether something is missing. Ctrl-C that a library's callback swallows has to come again.
"""

from __future__ import annotations

import _thread
import io
import os
import sys
import threading
from errno import EBADF, EPIPE
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Whoever closed it has read enough.
_CLOSED = (EPIPE, EBADF)


class Stream(io.TextIOWrapper):
    """Text to a file descriptor; what comes after a failure is lost without another word.

    failure: the first error. is_wanted: all of what is written is (``--json -``), also where its reader goes.
    """

    failure: OSError | None = None
    is_wanted = False

    def write(self, text: str) -> int:
        """Write it, or lose it."""
        try:
            return super().write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered, or lose it."""
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    @property
    def is_missed(self) -> bool:
        """Whether something is missing that somebody waits for."""
        return self.failure is not None and (self.is_wanted or self.failure.errno not in _CLOSED)

    def _lose(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)  # else what is buffered fails again
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def keep_streams() -> None:
    """Put such streams in place of stdout and stderr; one that is closed from the start goes nowhere."""
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: no file of ours becomes stdout
    sys.stdout = _kept(1, sys.stdout, 1 in closed)
    sys.stderr = _kept(2, sys.stderr, 2 in closed)


def want_stdout() -> None:
    """Say that everything on stdout is an answer that was asked for."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.is_wanted = True


def end_streams(code: int) -> int:
    """Write what is buffered; the exit code, which is not 0 where an answer is missing."""
    sys.stdout.flush()
    if isinstance(sys.stdout, Stream) and sys.stdout.is_missed:
        failure = cast(OSError, sys.stdout.failure)
        print(f"error: stdout: {failure.strerror}: the answer there is not whole", file=sys.stderr)
        code = code or 1
    sys.stderr.flush()
    return code


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _kept(number: int, stream: TextIO | None, is_closed: bool) -> Stream:
    if is_closed or not isinstance(stream, io.TextIOWrapper):
        made = Stream(cast(BinaryIO, open(number, "wb", closefd=False)), encoding="utf-8", errors="replace")  # noqa: SIM115
        made.failure = OSError(EBADF, os.strerror(EBADF)) if is_closed else None
        return made
    encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
    return Stream(stream.detach(), encoding=encoding, errors=errors, line_buffering=by_line)


#: Until Ctrl-C comes again: the callback is over by then.
AGAIN_S = 0.05


def keep_interrupts() -> None:
    """Let Ctrl-C come again where it was swallowed, as in callbacks of the compiler (llvmlite, by ctypes)."""
    sys.unraisablehook = _swallowed


def _swallowed(what: UnraisableHookArgs) -> None:
    if issubclass(what.exc_type, MemoryError):  # whoever asked for the memory says so
        return
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    again = threading.Timer(AGAIN_S, _thread.interrupt_main)
    again.daemon = True
    again.start()
