"""Writing one rank program: steps, pending waits of the next operator, and memory changes."""

from __future__ import annotations

from dataclasses import replace

from trine.graph.program import (
    COMPUTE_STREAM,
    Collective,
    Compute,
    Label,
    MemoryChange,
    RankProgram,
    Recv,
    Send,
    Step,
)
from trine.graph.workload import Operator
from trine.parallel.job import JobContext
from trine.parallel.launching import ENTRIES_PER_COLLECTIVE, LaunchClocks, LaunchThread


class ProgramWriter:
    """A builder of one rank program, in program order.

    ``lane``: the lane written to, 0 or 1, when two passes run together (0 for a single pass). Both lanes share the
    compute stream; an operator only waits for steps of the same lane.
    """

    def __init__(self, context: JobContext, stage: int = 0) -> None:
        self.context = context
        self.stage = stage
        self.steps: list[Step] = []
        self.memory: list[MemoryChange] = []
        self.lane = 0
        self.sent: list[int] = []
        self._waits: tuple[list[int], list[int]] = ([], [])
        self._last_compute = [-1, -1]
        self._end_of_step: tuple[int, ...] = ()
        self._launch = context.launch
        launch = self._launch
        limit = None if launch is None else launch.queue_limit
        self._tensor_axis = context.plan.groups.tensor
        self.thread = LaunchThread(self.steps, launch is not None and launch.merges, limit)
        is_recorded = launch is not None and context.memory_style.record_streams
        self._clocks = LaunchClocks(self.thread, limit) if is_recorded else None

    def add(self, step: Step) -> int:
        """Append a step and return its index."""
        self.steps.append(step)
        if self._clocks is not None:
            self._clocks.note(len(self.steps))
        return len(self.steps) - 1

    def wait(self, index: int) -> None:
        """Make the next operator on the compute stream wait for step ``index``."""
        self._waits[self.lane].append(index)

    def release(self, index: int) -> None:
        """Take back :meth:`wait` of step ``index``."""
        self._waits[self.lane].remove(index)

    def operator(self, op: Operator, duration_ps: int, label: Label, is_first: bool = True) -> int:
        """Append an operator on the compute stream, after all pending waits and its launch.

        ``is_first``: False for a later piece of an operator that is launched with its first piece.
        """
        waits = self._waits[self.lane]
        launch = self._launch
        if launch is not None and is_first:
            launch_ps, kernels = self.context.launch_of(op, self.stage)
            launched = self.thread.operator(launch_ps, kernels, waits, label)
            if launched is not None:
                waits.append(launched)
        done = self._last_compute[self.lane] = self.add(Compute(COMPUTE_STREAM, duration_ps, tuple(waits), label))
        if launch is not None:
            self.thread.runs(done, duration_ps)
            if self._clocks is not None and is_first:
                self._clocks.launched(kernels, done)
        waits.clear()
        return done

    def send(self, step: Send) -> None:
        """Append a message, and remember it until the step ends."""
        launched = self._launched(0 if self._launch is None else self._launch.message_ps, step.after, step.label)
        self.sent.append(self.add(replace(step, after=(*step.after, *launched)) if launched else step))

    def receive(self, step: Recv) -> int:
        """Append the arrival of a message; the launching thread issues the receive."""
        if self._launch is not None:
            self.thread.busy(self._launch.message_ps)
        return self.add(step)

    def _launched(self, launch_ps: int, after: tuple[int, ...], label: Label) -> tuple[int, ...]:
        """Append the launch of a communication step that follows ``after``, if the launch can delay it."""
        if not launch_ps:
            return ()
        follows = max(self._last_compute) in after
        launched = self.thread.communication(launch_ps, follows, label)
        return () if launched is None else (launched,)

    def fork(self) -> None:
        """Begin two lanes: the second one starts after the work already in the first one."""
        self._last_compute[1] = self._last_compute[0]

    def join(self) -> None:
        """End two lanes: the first one continues after the work and the pending waits of both."""
        self._last_compute[0] = max(self._last_compute)
        self._waits[0].extend(self._waits[1])
        self._waits[1].clear()
        self.lane = 0

    def collective(
        self, kind: str, axis: str, key: tuple[int | str, ...], size_bytes: int, after: tuple[int, ...], label: Label,
        root: int = -1, queue: str = "", algorithm: str | None = None,
    ) -> int:  # fmt: skip
        """Append a collective. The plan's algorithm for its kind takes precedence over ``algorithm``."""
        algorithm = self.context.algorithm(kind) or algorithm
        launch_ps = 0 if self._launch is None else self._launch.communication_ps
        if axis == self._tensor_axis and self._launch is not None:
            launch_ps += self._launch.tensor_ps * self.context.plan.tp
        after = (*after, *self._launched(launch_ps, after, label))
        step = self.add(Collective(kind, axis, key, size_bytes, root, algorithm, after, label, queue))
        if self._clocks is not None:
            self._clocks.launched(ENTRIES_PER_COLLECTIVE, step)
        return step

    def last_compute(self) -> tuple[int, ...]:
        """Return the latest operator on the compute stream, if any."""
        last = self._last_compute[self.lane]
        return (last,) if last >= 0 else ()

    def last_compute_and_waits(self) -> tuple[int, ...]:
        """Return the latest operator and the pending waits; their ends complete all results up to now."""
        return (*self.last_compute(), *self._waits[self.lane])

    def end_step(self) -> None:
        """Record the end of a training step; the launching thread may wait for it."""
        self._end_of_step = self.last_compute_and_waits()
        if self._launch is not None and self._launch.synchronises != "none":
            self.thread.synchronise(self._end_of_step, Label())
        self.sent.clear()

    def begin_pass(self, label: Label) -> None:
        """Start a pass, before its first operator: the launching thread waits if it is too far ahead."""
        self.thread.begin_pass(label)

    def end_pass(self, label: Label, is_backward: bool) -> None:
        """End a pass, after its last operator and its sends: the launching thread may wait for the GPU."""
        if self._launch is None:
            return
        wanted, has_messages = self._launch.synchronises, self.context.plan.pp > 1
        is_pass = has_messages and wanted in ("pass", "forward")
        if is_pass or (wanted == "micro-batch" and is_backward) or (wanted == "forward" and not is_backward):
            steps = (*self.last_compute_and_waits(), *self.sent[-1:])
            self.thread.synchronise(steps, label, and_next=is_pass)

    def last_of_step(self) -> tuple[int, ...]:
        """Return the steps that ended the previous training step; empty in the first."""
        return self._end_of_step

    def finish(self, name: str, resident_bytes: tuple[int, ...]) -> RankProgram:
        """Return the finished program."""
        clocks = () if self._clocks is None else self._clocks.of_steps
        return RankProgram(
            name=name, steps=tuple(self.steps), memory=tuple(self.memory), resident_bytes=resident_bytes,
            clocks=tuple(clocks),
        )  # fmt: skip
