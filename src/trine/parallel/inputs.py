"""Copies of input data from the host, which run ahead of the forward passes that read them."""

from __future__ import annotations

from trine.graph.program import HostCopy, Label, Phase
from trine.parallel.job import JobContext
from trine.parallel.schedules import FORWARD_PASS


class InputCopies:
    """The copies of one pipeline rank: one for each forward pass that reads inputs, one after the other.

    read: (chunk, micro-batch) of each forward pass in the program. ahead: number of copies at the start of a training
    step: for all passes, or for the program's. behind: each training step, and the step before its other copies, which
    come behind the program.
    """

    def __init__(self, context: JobContext, stage: int, may_come_last: bool) -> None:
        self._context, self._stage, self._may_come_last = context, stage, may_come_last
        self.read = self._forward(len(context.micro_batches))
        self._copied = self._forward(len(context.all_micro_batches))
        self._sizes: dict[tuple[int, int], int] = {}
        self.ahead = len(self.read if may_come_last else self._copied)
        self.behind: list[tuple[int, tuple[int, ...]]] = []

    def _forward(self, micro_batches: int) -> tuple[tuple[int, int], ...]:
        pipeline = self._context.pipeline._replace(num_microbatches=micro_batches)
        passes = self._context.schedule.passes(self._stage, pipeline)
        return tuple((action.chunk, action.microbatch) for action in passes if action.kind == FORWARD_PASS)

    def copy(self, number: int, step: int, after: tuple[int, ...]) -> HostCopy | None:
        """Return the copy for forward pass ``number`` of all; None if it reads no inputs."""
        chunk, microbatch = self._copied[number]
        key = chunk, self._context.all_micro_batches[microbatch]
        if key not in self._sizes:
            self._sizes[key] = self._context.input_bytes(self._context.chunks[chunk].forward, key[1])
        label = Label(phase=Phase.INPUT, stage=self._stage, microbatch=microbatch, step=step)
        return HostCopy(self._sizes[key], after, label) if self._sizes[key] else None

    def of_batch(self, context: JobContext) -> InputCopies | None:
        """Return the copies for another number of micro-batches; None if those in the program would differ."""
        other = InputCopies(context, self._stage, self._may_come_last)
        other.behind = self.behind
        return other if other._copied[: other.ahead] == self._copied[: self.ahead] else None

    def further(self, num_steps: int) -> tuple[HostCopy, ...]:
        """Return the copies that come behind a program of ``num_steps`` steps."""
        copies: list[HostCopy] = []
        for step, after in self.behind:
            for number in range(self.ahead, len(self._copied)):
                if copy := self.copy(number, step, after):
                    after = (num_steps + len(copies),)
                    copies.append(copy)
        return tuple(copies)
