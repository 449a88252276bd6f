"""Writing one rank program: steps, what the next operator must wait for, and memory changes."""

from __future__ import annotations

from trine.graph.program import (
    COMPUTE_STREAM,
    LAUNCH_STREAM,
    Collective,
    Compute,
    Label,
    MemoryChange,
    RankProgram,
    Send,
    Step,
)
from trine.graph.workload import Operator
from trine.parallel.job import JobContext


class ProgramWriter:
    """Collects the steps of one rank program, in program order.

    ``lane``: which of two passes that run together is written to (0 or 1, 0 where one runs alone). Both are on the same
    compute stream; each operator waits for what was waited for in its own lane only.
    """

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.steps: list[Step] = []
        self.memory: list[MemoryChange] = []
        self.lane = 0
        self.sent: list[int] = []
        self._waits: tuple[list[int], list[int]] = ([], [])
        self._last_compute = [-1, -1]
        self._end_of_step: tuple[int, ...] = ()

    def add(self, step: Step) -> int:
        """Append a step and return its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    def wait(self, index: int) -> None:
        """Make the next operator on the compute stream wait for step ``index``."""
        self._waits[self.lane].append(index)

    def release(self, index: int) -> None:
        """Take back :meth:`wait` of step ``index``."""
        self._waits[self.lane].remove(index)

    def operator(self, op: Operator, duration_ps: int, label: Label, is_first: bool = True) -> int:
        """Append an operator on the compute stream, after everything that was waited for and after its launch.

        ``is_first``: False for a further piece of an operator that was launched with the first one.
        """
        launch_ps = self.context.launch_ps.get(op.id, 0) if is_first else 0
        if launch_ps:
            self.wait(self.add(Compute(LAUNCH_STREAM, launch_ps, (), label)))
        waits = self._waits[self.lane]
        done = self._last_compute[self.lane] = self.add(Compute(COMPUTE_STREAM, duration_ps, tuple(waits), label))
        waits.clear()
        return done

    def send(self, step: Send) -> None:
        """Append a message, and remember it until the step ends."""
        self.sent.append(self.add(step))

    def fork(self) -> None:
        """Begin two lanes: the second one follows what the first one has done so far."""
        self._last_compute[1] = self._last_compute[0]

    def join(self) -> None:
        """End two lanes: the first one goes on, after what both have done and wait for."""
        self._last_compute[0] = max(self._last_compute)
        self._waits[0].extend(self._waits[1])
        self._waits[1].clear()
        self.lane = 0

    def collective(
        self, kind: str, axis: str, key: tuple[int | str, ...], size_bytes: int, after: tuple[int, ...], label: Label,
        root: int = -1, queue: str = "", algorithm: str | None = None,
    ) -> int:  # fmt: skip
        """Append a collective by the algorithm that the plan names for its kind, else by the one given."""
        algorithm = self.context.algorithm(kind) or algorithm
        return self.add(Collective(kind, axis, key, size_bytes, root, algorithm, after, label, queue))

    def last_compute(self) -> tuple[int, ...]:
        """The latest operator on the compute stream, if any."""
        last = self._last_compute[self.lane]
        return (last,) if last >= 0 else ()

    def last_compute_and_waits(self) -> tuple[int, ...]:
        """The latest operator and what the next one would wait for: when the results so far are complete."""
        return (*self.last_compute(), *self._waits[self.lane])

    def end_step(self) -> None:
        """Remember what ends a training step."""
        self._end_of_step = self.last_compute_and_waits()
        self.sent.clear()

    def last_of_step(self) -> tuple[int, ...]:
        """What ended the training step before; empty in the first."""
        return self._end_of_step

    def finish(self, name: str, resident_bytes: tuple[int, ...]) -> RankProgram:
        """The program."""
        return RankProgram(name=name, steps=tuple(self.steps), memory=tuple(self.memory), resident_bytes=resident_bytes)
