"""Writing one rank program: steps, what the next operator must wait for, and memory changes."""

from __future__ import annotations

from trine.model.program import Compute, Label, MemoryChange, RankProgram, Step


class ProgramWriter:
    """Collects the steps of one rank program, in program order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.memory: list[MemoryChange] = []
        self._waits: list[int] = []
        self._last_compute = -1
        self._end_of_step: tuple[int, ...] = ()

    def add(self, step: Step) -> int:
        """Append a step and return its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    def wait(self, index: int) -> None:
        """Make the next operator on the compute stream wait for step ``index``."""
        self._waits.append(index)

    def compute(self, duration_ps: int, label: Label) -> int:
        """Append an operator on the compute stream, after everything that was waited for."""
        self._last_compute = self.add(Compute("compute", duration_ps, tuple(self._waits), label))
        self._waits.clear()
        return self._last_compute

    def last_compute(self) -> tuple[int, ...]:
        """The latest operator on the compute stream, if any."""
        return (self._last_compute,) if self._last_compute >= 0 else ()

    def last_compute_and_waits(self) -> tuple[int, ...]:
        """The latest operator and what the next one would wait for: when the results so far are complete."""
        return (*self.last_compute(), *self._waits)

    def end_step(self) -> None:
        """Remember what ends a training step."""
        self._end_of_step = self.last_compute_and_waits()

    def last_of_step(self) -> tuple[int, ...]:
        """What ended the training step before; empty in the first."""
        return self._end_of_step

    def finish(self, name: str, resident_bytes: tuple[int, ...]) -> RankProgram:
        return RankProgram(name=name, steps=tuple(self.steps), memory=tuple(self.memory), resident_bytes=resident_bytes)
