"""Progress on stderr."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from trine.common.observer import current_observer, observing
from trine.errors import safe


class ProgressLine:
    """Progress on stderr after two silent seconds, with an estimate of the remaining time.

    The estimate uses the speed of the last seconds, because the start of a run and the compilation of kernels before it
    are not representative. things: name of the counted items; None: work without a unit.
    """

    SILENT_S = 2.0
    #: Longest and shortest window over which the speed is measured.
    WINDOW_S, MIN_S = 10.0, 2.0

    def __init__(self, things: str | None = "tasks") -> None:
        self._things = things
        self._began = time.monotonic()
        self._stages: list[str] = []
        self._width = 0
        self._next_s = self.SILENT_S
        self._history: deque[tuple[float, int]] = deque()

    def __call__(self, done: int, total: int, now_ps: int) -> None:
        """Report progress; the callback of :func:`trine.engine.run`."""
        control = current_observer().control
        if control is not None:
            control.progress(done, total, now_ps)
        now = time.monotonic()
        self._see(now, done)
        elapsed = now - self._began
        if elapsed < self._next_s or not done:
            return
        self._say_stages()
        is_terminal = sys.stderr.isatty()
        self._next_s = elapsed + (0.2 if is_terminal else 5.0)
        self._print(self._sentence(done, total, now_ps), is_terminal)

    def _see(self, now: float, done: int) -> None:
        """Record the time and the work done; drop entries from before the window or from another run."""
        history = self._history
        if history and done < history[-1][1]:
            history.clear()
        history.append((now, done))
        while len(history) > 2 and history[1][0] <= now - self.WINDOW_S:
            history.popleft()

    def _sentence(self, done: int, total: int, now_ps: int) -> str:
        from trine.common.units import format_time

        subject = "the work" if self._things is None else f"{total:,} {self._things}"
        left_s = self._left_s(total)
        estimate = "" if left_s is None else f"; about {left_s:.0f} s left"
        return f"simulated {100 * done / total:.1f} % of {subject}, up to {format_time(now_ps)}{estimate}"

    def _left_s(self, total: int) -> float | None:
        """Return the remaining time at the speed since the window began, or None if the window is too short."""
        (first_s, first), (last_s, last) = self._history[0], self._history[-1]
        if last_s - first_s < self.MIN_S or last == first:
            return None
        return (last_s - first_s) * (total - last) / (last - first)

    def _print(self, line: str, is_terminal: bool) -> None:
        line = safe(line)
        if not is_terminal:
            print(line, file=sys.stderr, flush=True)
            return
        print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)  # at least as long as the previous line
        self._width = len(line)

    def stage(self, sentence: str) -> None:
        """Announce the next stage of a run; each stage has a separate estimate."""
        self._history.clear()
        self.queue(sentence)

    def queue(self, sentence: str) -> None:
        """Queue a sentence about completed work; it is printed if the run takes long or is interrupted."""
        control = current_observer().control
        if control is not None:
            control.stage(sentence)
        self._stages.append(sentence)
        if time.monotonic() - self._began >= self.SILENT_S:
            self._say_stages()

    def _say_stages(self) -> None:
        for sentence in self._stages:
            self._end_line()
            print(safe(sentence), file=sys.stderr, flush=True)
        self._stages.clear()

    def compiling(self) -> None:
        """Explain the long first run."""
        control = current_observer().control
        if control is not None:
            control.stage("compiling kernels")
        self._end_line()
        print("compiling kernels (first run on this machine only, about 5 to 20 s) ...", file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._width:
            print(file=sys.stderr, flush=True)
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is KeyboardInterrupt:
            self._say_stages()
        self._end_line()


@contextmanager
def watched(things: str = "tasks") -> Iterator[None]:
    """Show the progress of the runs in this context; ``things``: see :class:`ProgressLine`."""
    with ProgressLine(things) as line, observing(progress=line, on_compile=line.compiling, on_stage=line.stage):
        yield


class RowsLine(ProgressLine):
    """Progress over rows of a table, each simulated separately; done and total may count rows or their work.

    The estimate excludes the first two seconds, when replays count rows from a cache.
    """

    WINDOW_S = 600.0

    def __init__(self, label: str = "rows predicted") -> None:
        super().__init__(None)
        self._label = label

    def rows(self, done: int, total: int) -> None:
        """Report progress; the callback of functions that replay rows."""
        self(done, total, 0)

    def _see(self, now: float, done: int) -> None:
        if now - self._began < self.SILENT_S:
            self._history.clear()
        super()._see(now, done)

    def _sentence(self, done: int, total: int, now_ps: int) -> str:
        left_s = self._left_s(total)
        return f"{self._label}: {done / total:.0%}" + ("" if left_s is None else f"; about {left_s:.0f} s left")
