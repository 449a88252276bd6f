"""The CPU thread that launches a rank's operators and collectives, in program order, ahead of the GPU.

An operator starts after its launch and its other dependencies. Most launches delay nothing, because the GPU is still
busy with earlier operators. These launches are not written, yet the result is exact: the thread keeps a lower bound on
the latest operator's end, as time after the last written launch (the launched operator cannot start earlier, and
durations only grow). A launch that ends within the bound is always in time. Its cost is added to the next written
launch, so the thread is equally busy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from trine.graph.program import LAUNCH_STREAM, Compute, Label, LaunchClock, Step

#: Lower bound on the latest operator's end when it is unknown.
_UNKNOWN = -(2**62)
#: Entries of a collective in the launch queue: besides its kernel, ProcessGroupNCCL records an event and waits for it
#: on either stream (4), and the allocator records one for a freed block (CUDACachingAllocator.cpp).
ENTRIES_PER_COLLECTIVE = 6


class LaunchThread:
    """The writer of the launches of one rank program; appends them to ``steps``.

    merges: leave out launches that cannot delay anything; False if durations may shrink (jitter).
    queue_limit: maximum launches ahead of the GPU at the start of a pass, None for no limit.
    """

    def __init__(self, steps: list[Step], merges: bool, queue_limit: int | None = None) -> None:
        self._steps = steps
        self._merges = merges
        self._limit = queue_limit
        self.last_written = -1  # step of the last written launch
        self._unwritten_ps = 0  # launches since the last written one
        self._ahead_ps = _UNKNOWN  # lower bound on the latest operator's end, after that launch
        self._waits: list[int] = []  # dependencies of the next launch
        self._takes_waits = False
        self._count = 0.0  # launches since the thread last waited for all of the GPU
        self._counts: list[float] = []  # launches up to each operator since then, and its step
        self._operators: list[int] = []

    def operator(self, launch_ps: int, kernels: float, waits: Sequence[int], label: Label) -> int | None:
        """Launch a compute-stream operator that waits for ``waits``; return its launch step, or None if merged."""
        self._count += kernels
        if self._takes_waits:
            self._takes_waits = False
            self._waits += waits
        total = self._unwritten_ps + launch_ps
        if not launch_ps or (self._merges and total <= self._ahead_ps):
            self._unwritten_ps = total
            return None
        step = self._write(total, label)
        self._ahead_ps = 0
        return step

    def runs(self, step: int, duration_ps: int) -> None:
        """Note that the operator launched last is ``step`` of the program and takes at least ``duration_ps``."""
        self._ahead_ps += duration_ps
        if self._limit is not None:
            self._counts.append(self._count)
            self._operators.append(step)

    def communication(self, launch_ps: int, follows: bool, label: Label) -> int | None:
        """Launch a collective or message. follows: whether it waits for the latest operator anyway."""
        self._count += 1
        total = self._unwritten_ps + launch_ps
        if not launch_ps or (self._merges and follows and total <= self._ahead_ps):
            self._unwritten_ps = total
            return None
        self._ahead_ps -= total
        return self._write(total, label)

    def busy(self, cpu_ps: int) -> None:
        """Keep the thread busy with work that delays only its next launch."""
        self._unwritten_ps += cpu_ps

    def synchronise(self, steps: Sequence[int], label: Label, *, and_next: bool = False) -> None:
        """Make the thread wait for ``steps``, which include the latest operator.

        and_next: the next launch also waits for all dependencies of its operator (arriving messages).
        """
        if self._unwritten_ps and (self._waits or self._unwritten_ps > self._ahead_ps):
            self._write(self._unwritten_ps, label)
        self._wait_for(steps)
        self._takes_waits = and_next
        self._count = 0.0
        self._counts.clear()
        self._operators.clear()

    def begin_pass(self, label: Label) -> None:
        """Wait until at most ``queue_limit`` launches are ahead of the GPU."""
        if self._limit is None or self._count <= self._limit:
            return
        position = bisect_right(self._counts, self._count - self._limit) - 1
        if position < 0:
            return
        step = self._operators[position]
        del self._counts[: position + 1], self._operators[: position + 1]
        if self._unwritten_ps:
            self._write(self._unwritten_ps, label)
        self._wait_for((step,))

    @property
    def unwritten_ps(self) -> int:
        """CPU time of the launches since the last written one."""
        return self._unwritten_ps

    def _wait_for(self, steps: Sequence[int]) -> None:
        self._waits += steps
        self._unwritten_ps, self._ahead_ps = 0, _UNKNOWN

    def _write(self, duration_ps: int, label: Label) -> int:
        self._steps.append(Compute(LAUNCH_STREAM, duration_ps, tuple(dict.fromkeys(self._waits)), label))
        self._waits.clear()
        self._unwritten_ps = 0
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
