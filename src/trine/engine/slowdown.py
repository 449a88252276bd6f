"""Streams below full speed, in plain Python: the readable definition, and the oracle of ``_loop.py``.

A task runs at the speed of its stream: full speed less all slowdowns, at least one hundredth. All changes at one
instant apply together. Work is an exact fraction of a picosecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from trine.common.arrays import Int32
from trine.engine._limits import FULL_PPM, LEAST_PPM
from trine.engine.describe import faster_than_full
from trine.graph.taskgraph import TaskGraph


@dataclass(slots=True)
class RunningTask:
    """Remaining work of a task at ``since_ps``, in ps at full speed, and its predicted end (-1: unknown)."""

    task: int
    left_ps: Fraction
    since_ps: int
    due_ps: int = -1


class RateLimitedStreams:
    """All streams of a run. Tasks without a duration or without a stream are not affected."""

    def __init__(self, graph: TaskGraph, slowdown_ppm: Int32, slowdown_stream: Int32) -> None:
        self.graph = graph
        self.slowdown_ppm = slowdown_ppm.tolist()
        self.slowdown_stream = slowdown_stream.tolist()
        self.nominal_ppm = [FULL_PPM] * len(graph.stream_names)
        self.speed_ppm = [FULL_PPM] * len(graph.stream_names)
        self.running: dict[int, RunningTask] = {}
        self.changed: set[int] = set()

    def apply_slowdown(self, finished: int) -> None:
        """Change the stream's speed after a task has ended."""
        stream = self.slowdown_stream[finished]
        if stream >= 0:
            self.nominal_ppm[stream] -= self.slowdown_ppm[finished]
            self.changed.add(stream)

    def begin(self, task: int, now: int) -> bool:
        """Start ``task`` on its stream. Returns False if it has no stream or no duration."""
        stream, duration_ps = int(self.graph.stream[task]), int(self.graph.duration_ps[task])
        if stream < 0 or duration_ps == 0:
            return False
        self.running[stream] = RunningTask(task, Fraction(duration_ps), now)
        self.changed.add(stream)
        return True

    def ends(self, task: int, now: int) -> bool:
        """Return whether the event of ``task`` is still valid; if so, the task ends now."""
        stream = int(self.graph.stream[task])
        if stream < 0 or not self.graph.duration_ps[task]:
            return True
        running = self.running.get(stream)
        if running is None or (running.task, running.due_ps) != (task, now):
            return False
        del self.running[stream]
        return True

    def predict_completion(self, now: int, *, is_over: bool) -> list[tuple[int, int]]:
        """Apply the changes of an instant; return the tasks whose end has moved, with the new end.

        ``is_over``: no more changes come at this instant, so a stream above full speed is an error.
        """
        moved = []
        for stream in sorted(self.changed):
            if is_over and self.nominal_ppm[stream] > FULL_PPM:
                raise faster_than_full(self.graph, stream, now)
            running = self.running.get(stream)
            if running is not None:
                running.left_ps -= Fraction((now - running.since_ps) * self.speed_ppm[stream], FULL_PPM)
                running.since_ps = now
            self.speed_ppm[stream] = max(LEAST_PPM, self.nominal_ppm[stream])
            if running is not None:
                due_ps = now + ceil(running.left_ps * FULL_PPM / self.speed_ppm[stream])
                if due_ps != running.due_ps:
                    running.due_ps = due_ps
                    moved.append((running.task, due_ps))
        self.changed.clear()
        return moved
