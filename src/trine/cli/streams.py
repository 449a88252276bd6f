"""Robust stdout, stderr and Ctrl-C: readers that close, disks that fill up, interrupts that a library swallows.

The command continues without a reader (``2>&1 | head -4``) and still writes its other outputs. The exit code tells
whether output is missing. If a library's callback swallows Ctrl-C, trine raises it again.
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

#: Errors of a stream that its reader closed: the reader has read enough.
_CLOSED = (EPIPE, EBADF)


class Stream(io.TextIOWrapper):
    """A text stream to a file descriptor that silently drops all output after a failure.

    failure: the first error. is_wanted: all output is needed (``--json -``), even if the reader closes the stream.
    """

    failure: OSError | None = None
    is_wanted = False

    def write(self, text: str) -> int:
        """Write the text, or drop it after a failure."""
        try:
            return super().write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Write the buffer, or drop it after a failure."""
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    @property
    def is_missed(self) -> bool:
        """True if output is missing that a reader still needs."""
        return self.failure is not None and (self.is_wanted or self.failure.errno not in _CLOSED)

    def _lose(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)  # otherwise the buffer fails again
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def keep_streams() -> None:
    """Replace stdout and stderr by :class:`Stream`; one that is closed from the start writes to /dev/null."""
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: no file of ours becomes stdout
    sys.stdout = _replacement(1, sys.stdout, 1 in closed)
    sys.stderr = _replacement(2, sys.stderr, 2 in closed)


def want_stdout() -> None:
    """Mark everything on stdout as output the user requested."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.is_wanted = True


def end_streams(code: int) -> int:
    """Flush both streams and return the exit code, which is never 0 if requested output is missing."""
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


def _replacement(number: int, stream: TextIO | None, is_closed: bool) -> Stream:
    if is_closed or not isinstance(stream, io.TextIOWrapper):
        sink = Stream(cast(BinaryIO, open(number, "wb", closefd=False)), encoding="utf-8", errors="replace")  # noqa: SIM115
        sink.failure = OSError(EBADF, os.strerror(EBADF)) if is_closed else None
        return sink
    encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
    return Stream(stream.detach(), encoding=encoding, errors=errors, line_buffering=by_line)


#: Delay before Ctrl-C is raised again: the callback has returned by then.
AGAIN_S = 0.05


def keep_interrupts() -> None:
    """Raise Ctrl-C again after a callback swallowed it, such as a ctypes callback of the compiler (llvmlite)."""
    sys.unraisablehook = _swallowed


def _swallowed(hook: UnraisableHookArgs) -> None:
    from trine.common.lack_of_memory import lacks_memory

    if hook.exc_value is not None and lacks_memory(hook.exc_value):  # the caller that ran out of memory reports it
        return
    if not issubclass(hook.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(hook)
        return
    timer = threading.Timer(AGAIN_S, _thread.interrupt_main)
    timer.daemon = True
    timer.start()
