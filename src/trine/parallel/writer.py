"""Writing one rank program: steps, what the next operator must wait for, and memory changes."""

from __future__ import annotations

from trine.model.program import (
    COMPUTE_STREAM,
    LAUNCH_STREAM,
    Collective,
    Compute,
    Label,
    MemoryChange,
    RankProgram,
    Step,
)
from trine.model.workload import Operator
from trine.parallel.context import JobContext


class ProgramWriter:
    """Collects the steps of one rank program, in program order."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
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

    def operator(self, op: Operator, duration_ps: int, label: Label) -> int:
        """Append an operator on the compute stream, after everything that was waited for and after its launch."""
        launch_ps = self.context.launch_ps.get(op.id, 0)
        if launch_ps:
            self.wait(self.add(Compute(LAUNCH_STREAM, launch_ps, (), label)))
        self._last_compute = self.add(Compute(COMPUTE_STREAM, duration_ps, tuple(self._waits), label))
        self._waits.clear()
        return self._last_compute

    def collective(
        self, kind: str, axis: str, key: tuple[int | str, ...], size_bytes: int, after: tuple[int, ...], label: Label,
        root: int = -1, queue: str = "",
    ) -> int:  # fmt: skip
        """Append a collective by the algorithm that the plan names for its kind."""
        algorithm = self.context.algorithm(kind)
        return self.add(Collective(kind, axis, key, size_bytes, root, algorithm, after, label, queue))

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
        """The program."""
        return RankProgram(name=name, steps=tuple(self.steps), memory=tuple(self.memory), resident_bytes=resident_bytes)
