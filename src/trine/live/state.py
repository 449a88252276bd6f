"""The state of a run for the live page: progress, stages and rates, and the page's commands.

The simulation's thread calls :meth:`LiveRun.chunk`, :meth:`~LiveRun.progress` and :meth:`~LiveRun.stage`; the server's
threads call the other methods. A view of the simulation is computed in its own thread, between two chunks, and only
while a page is open.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from trine.common.observer import View

#: Most events of one step, so that a step ends at once.
STEP_EVENTS = 10_000
#: Seconds between two views, and after the page's last question until it counts as closed.
VIEW_S, CLOSED_S = 0.4, 5.0
#: Seconds that an ended run waits for an open page to learn of it.
LAST_S = 1.0
#: Seconds between two looks of a paused run, so that Ctrl-C ends it.
WAIT_S = 0.1
#: Seconds over which rates are measured.
WINDOW_S = 5.0
MAX_STAGES = 100


class Worker(NamedTuple):
    """What a worker process or thread does, "" if it waits; since when (s); and the pieces of work it has done."""

    what: str
    since: float
    done: int


class LiveRun:
    """The state of one command. title: its command line."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Condition()
        self._began = time.monotonic()
        self._paused_s, self._paused_since = 0.0, 0.0
        self._is_paused = self._is_stopping = self._is_finished = self._is_told = False
        self._steps = 0
        self._asked = -CLOSED_S
        self._rank = -1
        self._stages: deque[str] = deque(maxlen=MAX_STAGES)
        self._progress: tuple[int, int, int] | None = None
        self._history: deque[tuple[float, int, int]] = deque()
        self._view: dict[str, Any] = {}
        self._viewed = 0.0
        self._needs_view = False
        self._workers: dict[int, Worker] = {}

    # The simulation's side ------------------------------------------------------------------------------------------

    def chunk(self, most: int, view: View) -> int:
        """Return the number of events that may run next, at most ``most``; wait while paused.

        Raises KeyboardInterrupt if the run is to stop.
        """
        if self._wants_view():
            self._look(view)
        if not self._is_paused and not self._is_stopping:
            return most
        self._look(view)
        with self._lock:
            while self._is_paused and not self._steps and not self._is_stopping:
                if self._needs_view:
                    self._needs_view = False
                    self._look(view)
                self._lock.wait(WAIT_S)
            if self._is_stopping:
                raise KeyboardInterrupt
            if self._steps:
                self._steps -= 1
                return min(most, STEP_EVENTS)
        return most

    def progress(self, done: int, total: int, now_ps: int) -> None:
        """Take the progress of the run; wait while it is paused. Raises KeyboardInterrupt if it is to stop."""
        now = time.monotonic()
        with self._lock:
            self._progress = (done, total, now_ps)
            self._remember(now, done, now_ps)
            while self._is_paused and not self._steps and not self._is_stopping:
                self._lock.wait(WAIT_S)
            if self._is_stopping:
                raise KeyboardInterrupt

    def stage(self, sentence: str) -> None:
        """Take the name of the stage that begins."""
        with self._lock:
            self._stages.append(sentence)
            self._history.clear()

    def work(self, worker: int, what: str) -> None:
        """Take what a worker does from now on; "": it waits for work."""
        with self._lock:
            before = self._workers.get(worker)
            done = 0 if before is None else before.done + (not what)
            self._workers[worker] = Worker(what, time.monotonic(), done)

    def end_of_work(self) -> None:
        """Forget all workers."""
        with self._lock:
            self._workers.clear()

    def finish(self) -> None:
        """Tell the page that the run has ended; if one is open, wait until it has asked once more."""
        with self._lock:
            self._is_finished, self._is_paused = True, False
            self._lock.notify_all()
            is_open = time.monotonic() - self._asked < CLOSED_S
            self._lock.wait_for(lambda: self._is_told, LAST_S if is_open else 0.0)

    def _wants_view(self) -> bool:
        now = time.monotonic()
        return now - self._asked < CLOSED_S and now - self._viewed >= VIEW_S

    def _look(self, view: View) -> None:
        found = view(self._rank)
        with self._lock:
            self._view, self._viewed = found, time.monotonic()
            self._remember(self._viewed, int(found["events"]), int(found["now_ps"]))

    def _remember(self, now: float, count: int, now_ps: int) -> None:
        """Add a point of the rates; drop points from before the window or from another run."""
        history = self._history
        if history and (count < history[-1][1] or now_ps < history[-1][2]):
            history.clear()
        history.append((now, count, now_ps))
        while len(history) > 2 and history[1][0] <= now - WINDOW_S:
            history.popleft()

    # The page's side ------------------------------------------------------------------------------------------------

    def status(self, rank: int = -1) -> dict[str, Any]:
        """Return the whole content of the page. rank: whose tasks or compute units to list; -1: of no rank."""
        now = time.monotonic()
        with self._lock:
            self._needs_view = self._needs_view or rank != self._rank
            self._rank, self._asked = rank, now
            self._is_told = self._is_finished
            self._lock.notify_all()
            rates = self._rates()
            paused_s = self._paused_s + (now - self._paused_since if self._is_paused else 0.0)
            done, total, now_ps = self._progress or (0, 0, 0)
            return {
                "title": self._title,
                "state": self._state(),
                "wall_s": now - self._began,
                "paused_s": paused_s,
                "left_s": self._left_s(done, total),
                "done": done,
                "total": total,
                "now_ps": self._view.get("now_ps", now_ps),
                "stages": list(self._stages),
                "events_per_s": rates[0],
                "simulated_ps_per_s": rates[1],
                "workers": self._worker_rows(now),
                "view": self._view,
            }

    def _worker_rows(self, now: float) -> list[dict[str, Any]]:
        rows = []
        for number, worker in self._workers.items():
            since_s = now - worker.since
            rows.append({"worker": number, "what": worker.what, "since_s": since_s, "done": worker.done})
        return rows

    def _state(self) -> str:
        if self._is_finished:
            return "finished"
        if self._is_stopping:
            return "stopping"
        return "paused" if self._is_paused else "running"

    def _rates(self) -> tuple[float, float]:
        """Return events, and picoseconds of simulated time, per second of wall time."""
        if len(self._history) < 2 or self._is_paused:
            return 0.0, 0.0
        (first_s, first, first_ps), (last_s, last, last_ps) = self._history[0], self._history[-1]
        seconds = max(last_s - first_s, 1e-9)
        return (last - first) / seconds, (last_ps - first_ps) / seconds

    def _left_s(self, done: int, total: int) -> float | None:
        """Return the remaining time at the run's mean speed, without pauses; None at the start."""
        if not done or not total or self._is_finished:
            return None
        spent = time.monotonic() - self._began - self._paused_s
        return max(0.0, spent * (total - done) / done)

    def pause(self) -> None:
        """Let the run wait after its current chunk."""
        with self._lock:
            if not self._is_paused and not self._is_finished:
                self._is_paused, self._paused_since = True, time.monotonic()

    def resume(self) -> None:
        """Let a paused run go on."""
        with self._lock:
            if self._is_paused:
                self._paused_s += time.monotonic() - self._paused_since
            self._is_paused, self._steps = False, 0
            self._lock.notify_all()

    def step(self) -> None:
        """Let a paused run process one chunk of at most STEP_EVENTS events."""
        with self._lock:
            if self._is_paused:
                self._steps += 1
                self._lock.notify_all()

    def stop(self) -> None:
        """End the run as Ctrl-C does: the answer covers its finished part."""
        with self._lock:
            self._is_stopping = True
            self._lock.notify_all()
