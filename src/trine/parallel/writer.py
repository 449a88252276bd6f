"""Writing one rank program: steps, pending waits of the next operator, and memory changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trine.graph.program import (
    COMPUTE_STREAM,
    LAUNCH_STREAM,
    Collective,
    Compute,
    Label,
    LaunchClock,
    RankProgram,
    Recv,
    Send,
    Step,
)
from trine.graph.workload import Operator
from trine.parallel.job import JobContext
from trine.parallel.program_parts import MemoryLog, StepLog

# The CPU thread that launches a rank's operators and collectives, in program order, ahead of the GPU.
#
# An operator starts after its launch and its other dependencies. Most launches delay nothing, because the GPU is
# still busy with earlier operators. These launches are not written, yet the result is exact: the thread keeps a lower
# bound on the latest operator's end, as time after the last written launch (the launched operator cannot start
# earlier, and durations only grow). A launch that ends within the bound is always in time. Its cost is added to the
# next written launch, so the thread is equally busy.

#: Lower bound on the latest operator's end when it is unknown.
_UNKNOWN = -(2**62)
#: Slack of no launch: longer than any.
NO_SLACK = 2**62
#: Entries of a collective in the launch queue: besides its kernel, ProcessGroupNCCL records an event and waits for it
#: on either stream (4), and the allocator records one for a freed block (CUDACachingAllocator.cpp).
ENTRIES_PER_COLLECTIVE = 6


class LaunchQueue(NamedTuple):
    """Launches ahead of the GPU in a program.

    filled: the most after the passes of a step, as a part of the queue's limit; 0 if the thread waits for the GPU in
    between. waits_from: the first micro-batch whose launches wait because the queue is full; -1: none.
    """

    filled: float = 0.0
    waits_from: int = -1

    def waits_of(self, micro_batches: int, written: int) -> int:
        """Return ``waits_from`` for this number of micro-batches; ``written`` if the program leaves that one out."""
        leaves_out = self.waits_from < 0 and self.filled * micro_batches > written
        return written if leaves_out else self.waits_from


def is_inexact(count: float) -> bool:
    """Return whether sums with ``count`` launches may depend on their order."""
    return bool(count * 1024 % 1)


class LaunchThread:
    """The writer of the launches of one rank program; appends them to ``steps``.

    merges: leave out launches that cannot delay anything; False if durations may shrink (jitter).
    queue_limit: maximum launches ahead of the GPU at the start of a pass, None for no limit.
    synchronisations: how often the thread has waited for all of the GPU. least_slack: the least time by which merged
    launches ended before the lower bound, since a reader last set it.
    """

    def __init__(self, steps: StepLog | list[Step], merges: bool, queue_limit: int | None = None) -> None:
        self._steps = steps
        self._merges = merges
        self._limit = queue_limit
        self.last_written = -1  # step of the last written launch
        self.unwritten_ps = 0  # launches since the last written one
        self.least_slack = NO_SLACK
        self.ahead_ps = _UNKNOWN  # lower bound on the latest operator's end, after that launch
        self.waits: list[int] = []  # dependencies of the next launch
        self.takes_waits = False
        self.synchronisations = 0
        self.queue = LaunchQueue()
        self.count = 0.0  # launches since the thread last waited for all of the GPU
        self.counts: list[float] = []  # launches up to each operator since then, and its step
        self.operators: list[int] = []

    def operator(self, launch_ps: int, kernels: float, waits: Sequence[int], label: Label) -> int | None:
        """Launch a compute-stream operator that waits for ``waits``; return its launch step, or None if merged."""
        self.count += kernels
        if self.takes_waits:
            self.takes_waits = False
            self.waits += waits
        total = self.unwritten_ps + launch_ps
        if not launch_ps or (self._merges and total <= self.ahead_ps):
            self._merge(total, launch_ps)
            return None
        step = self._write(total, label)
        self.ahead_ps = 0
        return step

    def runs(self, step: int, duration_ps: int) -> None:
        """Note that the operator launched last is ``step`` of the program and takes at least ``duration_ps``."""
        self.ahead_ps += duration_ps
        if self._limit is not None:
            self.counts.append(self.count)
            self.operators.append(step)

    def communication(self, launch_ps: int, follows: bool, label: Label) -> int | None:
        """Launch a collective or message. follows: whether it waits for the latest operator anyway."""
        self.count += 1
        total = self.unwritten_ps + launch_ps
        if not launch_ps or (self._merges and follows and total <= self.ahead_ps):
            self._merge(total, launch_ps)
            return None
        self.ahead_ps -= total
        return self._write(total, label)

    def _merge(self, total_ps: int, launch_ps: int) -> None:
        """Leave out a launch that ends ``total_ps`` after the last written one."""
        self.unwritten_ps = total_ps
        if launch_ps:
            self.least_slack = min(self.least_slack, self.ahead_ps - total_ps)

    def busy(self, cpu_ps: int) -> None:
        """Keep the thread busy with work that delays only its next launch."""
        self.unwritten_ps += cpu_ps

    def synchronise(self, steps: Sequence[int], label: Label, *, and_next: bool = False) -> None:
        """Make the thread wait for ``steps``, which include the latest operator.

        and_next: the next launch also waits for all dependencies of its operator (arriving messages).
        """
        if self.unwritten_ps and (self.waits or self.unwritten_ps > self.ahead_ps):
            self._write(self.unwritten_ps, label)
        self._wait_for(steps)
        self.takes_waits = and_next
        self.synchronisations += 1
        self.count = 0.0
        self.counts.clear()
        self.operators.clear()

    def end_passes(self, synchronisations: int) -> None:
        """Note the queue after the passes of a step. synchronisations: the number before them."""
        if self._limit is not None and self.synchronisations == synchronisations:
            self.queue = self.queue._replace(filled=max(self.queue.filled, self.count / self._limit))

    def begin_pass(self, label: Label) -> None:
        """Wait until at most ``queue_limit`` launches are ahead of the GPU."""
        if self._limit is None or self.count <= self._limit:
            return
        position = bisect_right(self.counts, self.count - self._limit) - 1
        if position < 0:
            return
        step = self.operators[position]
        if self.queue.waits_from < 0:
            self.queue = self.queue._replace(waits_from=label.microbatch)
        del self.counts[: position + 1], self.operators[: position + 1]
        if self.unwritten_ps:
            self._write(self.unwritten_ps, label)
        self._wait_for((step,))

    def _wait_for(self, steps: Sequence[int]) -> None:
        self.waits += steps
        self.unwritten_ps, self.ahead_ps = 0, _UNKNOWN

    def _write(self, duration_ps: int, label: Label) -> int:
        self._steps.append(Compute(LAUNCH_STREAM, duration_ps, tuple(dict.fromkeys(self.waits)), label))
        self.waits.clear()
        self.unwritten_ps = 0
        self.last_written = len(self._steps) - 1
        return self.last_written


class LaunchClocks:
    """Times at which the launching thread reaches each step, for blocks that collectives hold (``record_stream``)."""

    def __init__(self, thread: LaunchThread, queue_limit: int | None) -> None:
        self.of_steps: list[LaunchClock] = []
        self._thread = thread
        self._limit = queue_limit
        self._count = 0.0
        self._counts: list[float] = []  # launches up to each operator, and its step
        self._operators: list[int] = []

    def launched(self, kernels: float, step: int) -> None:
        """Note the launches of operator ``step``."""
        self._count += kernels
        self._counts.append(self._count)
        self._operators.append(step)

    def note(self, num_steps: int) -> None:
        """Note the clock of all steps up to the latest one."""
        behind = -1 if self._limit is None else bisect_right(self._counts, self._count - self._limit) - 1
        clock = LaunchClock(
            self._thread.last_written, self._thread.unwritten_ps, self._operators[behind] if behind >= 0 else -1
        )
        self.of_steps += [clock] * (num_steps - len(self.of_steps))


class ProgramWriter:
    """A builder of one rank program, in program order.

    ``lane``: the lane written to, 0 or 1, when two passes run together (0 for a single pass). Both lanes share the
    compute stream; an operator only waits for steps of the same lane.
    """

    def __init__(self, context: JobContext, stage: int = 0) -> None:
        self.context = context
        self.stage = stage
        self.steps = StepLog()
        self.memory = MemoryLog()
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
        self.has_clocks = is_recorded

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
        self.sent.append(self.add(step._replace(after=(*step.after, *launched)) if launched else step))

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

    def continue_after(self, last: int, waits: tuple[int, ...]) -> None:
        """Set the latest operator and the pending waits, after the copy of a pass."""
        self._last_compute[0] = last
        self._waits[0][:] = waits

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
        root: int = -1, queue: str = "", algorithm: str | None = None, is_first: bool = True,
    ) -> int:  # fmt: skip
        """Append a collective. The plan's algorithm for its kind takes precedence over ``algorithm``.

        ``is_first``: False for a later piece of a transfer that is launched with its first piece.
        """
        algorithm = dict(self.context.plan.algorithm).get(kind) or algorithm
        launch_ps = self.collective_launch_ps(axis) if is_first else 0
        after = (*after, *self._launched(launch_ps, after, label))
        step = self.add(Collective(kind, axis, key, size_bytes, root, algorithm, after, label, queue))
        if self._clocks is not None:
            self._clocks.launched(ENTRIES_PER_COLLECTIVE, step)
        return step

    def collective_launch_ps(self, axis: str) -> int:
        """Return the launch cost of a collective on ``axis``."""
        if self._launch is None:
            return 0
        of_tensor_axis = self._launch.tensor_ps * self.context.plan.tp if axis == self._tensor_axis else 0
        return self._launch.communication_ps + of_tensor_axis

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
        mode, has_messages = self._launch.synchronises, self.context.plan.pp > 1
        is_pass = has_messages and mode in ("pass", "forward")
        if is_pass or (mode == "micro-batch" and is_backward) or (mode == "forward" and not is_backward):
            steps = (*self.last_compute_and_waits(), *self.sent[-1:])
            self.thread.synchronise(steps, label, and_next=is_pass)

    def last_of_step(self) -> tuple[int, ...]:
        """Return the steps that ended the previous training step; empty in the first."""
        return self._end_of_step

    def finish(self, name: str, resident_bytes: tuple[int, ...]) -> RankProgram:
        """Return the finished program."""
        clocks = () if self._clocks is None else self._clocks.of_steps
        return RankProgram(
            name=name, steps=self.steps.steps(), memory=self.memory.changes(), resident_bytes=resident_bytes,
            clocks=tuple(clocks),
        )  # fmt: skip
