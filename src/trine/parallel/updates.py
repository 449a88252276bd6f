"""ZeRO 1 and 2: each replica updates a part of the parameters, which are made whole behind the optimizer.

By all-gathers, bucket by bucket, as DeepSpeed and Megatron-LM's distributed optimizer do; or, where the software's
profile says so (:class:`trine.software.profile.ZeroStyle`), by one broadcast of each rank, one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from trine.collectives.one_operation import ONE_OPERATION
from trine.graph.program import Label, Phase
from trine.graph.workload import FORWARD, Operator
from trine.parallel.chunks import Place
from trine.parallel.data import Bucket, BucketReductions, buckets_of
from trine.parallel.extension import StageProgram
from trine.parallel.plan import DEFAULT_BUCKETS
from trine.parallel.sharded import ShardedReductions


class ParameterUpdates(ShardedReductions):
    """Reductions of gradients, a part of the optimizer step, and the exchange of what it updated."""

    def __init__(self, program: StageProgram) -> None:
        self._style = program.context.zero_style
        super().__init__(program)
        self._overlaps = bool(self.context.plan.prefetch)
        self._pending: dict[int, int] = {}  # storage of a weight -> step that makes it whole

    def make_buckets(self) -> tuple[Bucket, ...]:
        """Of the size that the plan says, else the software."""
        plan, own = self.context.plan, self._style.bucket_bytes
        is_usual = (plan.first_bucket_bytes, plan.bucket_bytes) == DEFAULT_BUCKETS
        return buckets_of(self.program, own if is_usual else None)

    def reduce(self, number: int, label: Label, place: Place) -> int:
        if self._is_scattered or self._style.gradients == "scatter":
            return super().reduce(number, label, place)
        return BucketReductions.reduce(self, number, label, place)

    def after_optimizer(self, step: int) -> None:
        label = Label(phase=Phase.OPTIMIZER, stage=self.program.stage, step=step)
        after = self.writer.last_compute_and_waits()
        by_broadcast = self._style.parameters == "broadcast"
        tensors, done = self.context.workload.tensors, -1
        for weights, done in (self._broadcasts if by_broadcast else self._gathers)(label, after):
            if self._overlaps:
                self._pending.update({tensors[weight].storage: done for weight in weights})
            else:
                self.writer.wait(done)
        if done >= 0 and self.context.memory_style.parameter_gather == "copy":
            whole = sum(self._bytes(bucket.weights) for bucket in self.buckets)
            self.program.memory.temporary(whole, done, done, "workspaces")

    def _bytes(self, weights: Sequence[int]) -> int:
        return sum(self.context.local_bytes[weight] for weight in weights)

    def _gathers(self, label: Label, after: tuple[int, ...]) -> Iterator[tuple[Sequence[int], int]]:
        """All-gathers, bucket by bucket, first layers first: weights, and the step that makes them whole."""
        for number in reversed(range(len(self.buckets))):
            bucket = self.buckets[number]
            axis = self.groups.expert_shard if bucket.is_expert else self.groups.shard
            if axis:
                key = ("parameters", self.program.stage, number, label.step)
                size = self._bytes(bucket.weights)
                yield bucket.weights, self.writer.collective("all_gather", axis, key, size, after, label)

    def _broadcasts(self, label: Label, after: tuple[int, ...]) -> Iterator[tuple[Sequence[int], int]]:
        """A broadcast of each rank that has weights, as one operation of all, so that ranks go on behaving alike."""
        for is_expert, axis in ((False, self.groups.shard), (True, self.groups.expert_shard)):
            weights = [w for bucket in self.buckets if bucket.is_expert == is_expert for w in bucket.weights]
            if not axis:
                continue
            for number, part in enumerate(owned_parts(weights, self.context.local_bytes, self.degrees[is_expert])):
                key = ("parameters", self.program.stage, int(is_expert), number, label.step)
                size = self._bytes(part)
                yield (
                    part,
                    self.writer.collective("broadcast", axis, key, size, after, label, root=0, algorithm=ONE_OPERATION),
                )

    def before(self, op: Operator, place: Place) -> None:
        """The first operator that reads a parameter waits until it is whole."""
        if not self._pending or op.phase != FORWARD:
            return
        tensors = self.context.workload.tensors
        steps = [self._pending.pop(tensors[t].storage, -1) for t in op.inputs]
        for step in dict.fromkeys(steps):
            if step >= 0:
                self.writer.wait(step)


def owned_parts(weights: Sequence[int], sizes: dict[int, int], ranks: int) -> list[list[int]]:
    """Whole weights of each rank that has any: each goes to the first rank with the fewest bytes, the largest first."""
    held = [(0, rank) for rank in range(ranks)]
    parts: dict[int, list[int]] = {}
    for weight in sorted(weights, key=lambda weight: -sizes[weight]):
        size, rank = held[0]
        heapq.heapreplace(held, (size + sizes[weight], rank))
        parts.setdefault(rank, []).append(weight)
    return [parts[rank] for rank in sorted(parts)]
