"""ZeRO and FSDP: replicas keep only a part of optimizer state, gradients and parameters.

Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020; Zhao et al., PyTorch
FSDP, VLDB 2023. Gradients are reduce-scattered over the ranks that share one copy of what is spread, and with hybrid
sharding the parts all-reduced over the copies.

zero1, zero2: each rank updates its part of the parameters, and an all-gather behind the optimizer makes them whole (as
DeepSpeed and Megatron-LM's distributed optimizer do). zero3, fsdp: see :mod:`trine.parallel.sharded_gathers`.

Gradients are model states, as in the ZeRO paper: with zero1 they have one buffer for all of them that lasts
(Megatron-Core's ``grad_data``), with zero2 and zero3 one for the rank's share (DeepSpeed's flat partition), to which
each bucket adds its part when it has been reduced; until then the bucket is whole. PyTorch's FSDP allocates its shares
as they come and gives them back with the step; an optimizer in host memory leaves nothing on the GPU (ZeRO-Offload).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from trine.graph.program import Label, Phase
from trine.graph.workload import FORWARD, Operator
from trine.parallel.ddp import BucketReductions
from trine.parallel.extension import Place

if TYPE_CHECKING:
    from trine.parallel.stage import StageBuilder


class ShardedReductions(BucketReductions):
    """Reduce-scatters of gradients, and a part of the optimizer step."""

    def __init__(self, builder: StageBuilder) -> None:
        super().__init__(builder)
        self.ways = shard_ways(builder)
        self._is_scattered = self.context.plan.splits_gradients
        builder.memory.keep_gradients(self._lasting_gradients())

    def _lasting_gradients(self) -> dict[int, int]:
        """Bytes of the gradient of each trained weight that stay on this rank from step to step."""
        plan, experts = self.context.plan, self.context.portions.expert_weights
        if plan.sharding == "fsdp" or plan.offload == "optimizer":
            return {}
        sizes = {
            w.weight: self.context.local_bytes[w.weight]
            for w in self.builder.weights
            if w.gradient_operator is not None
        }
        if not self._is_scattered:
            return sizes
        return {weight: -(-size // self.ways[weight in experts]) for weight, size in sizes.items()}

    def reduce(self, number: int, label: Label, place: Place) -> int:
        bucket, writer, groups = self.buckets[number], self.writer, self.groups
        axis, ways = (groups.expert_shard if bucket.is_expert else groups.shard), self.ways[bucket.is_expert]
        key, done = ("bucket", self.builder.stage, number, *place.key), self.complete()
        if axis:
            done = (writer.collective("reduce_scatter", axis, key, bucket.size_bytes, done, label),)
        if groups.copies:
            part, key = -(-bucket.size_bytes // ways), ("copies", *key)
            done = (writer.collective("all_reduce", groups.copies, key, part, done, label, queue="copies"),)
        if self._is_scattered:
            self.builder.memory.scattered(bucket.weights, ways, done[0])
        self.reductions.append(done[0])
        return done[0]

    def optimizer_share(self, share: Fraction) -> Fraction:
        return share * self._part_of_weights()

    def _part_of_weights(self) -> Fraction:
        """The part of the stage's trained weights whose optimizer state this rank keeps."""
        whole, own = 0, Fraction(0)
        for weight in self.builder.weights:
            if weight.gradient_operator is not None:
                size = self.context.local_bytes[weight.weight]
                whole += size
                own += Fraction(size, self.ways[weight.weight in self.context.portions.expert_weights])
        return own / whole if whole else Fraction(1, self.ways[False])

    def resident(self, sizes: dict[str, int]) -> None:
        part = self._part_of_weights()
        sizes["optimizer_state"] = -(-sizes["optimizer_state"] * part.numerator // part.denominator)
        sizes["buckets"] = 0


class ParameterUpdates(ShardedReductions):
    """ZeRO 1 and 2: all-gathers of the updated parameters, bucket by bucket, first layers first."""

    def __init__(self, builder: StageBuilder) -> None:
        super().__init__(builder)
        self._overlaps = bool(self.context.plan.prefetch)
        self._pending: dict[int, int] = {}  # storage of a weight -> step that makes it whole

    def after_optimizer(self, step: int) -> None:
        after = self.writer.last_compute_and_waits()
        tensors = self.context.workload.tensors
        for number in reversed(range(len(self.buckets))):
            bucket = self.buckets[number]
            axis = self.groups.expert_shard if bucket.is_expert else self.groups.shard
            if not axis:
                continue
            label = Label(phase=Phase.OPTIMIZER, stage=self.builder.stage, step=step)
            key = ("parameters", self.builder.stage, number, step)
            done = self.writer.collective("all_gather", axis, key, bucket.size_bytes, after, label)
            if self._overlaps:
                self._pending.update({tensors[w].storage: done for w in bucket.weights})
            else:
                self.writer.wait(done)

    def before(self, op: Operator, place: Place) -> None:
        """The first operator that reads a parameter waits until it is whole."""
        if not self._pending or op.phase != FORWARD:
            return
        tensors = self.context.workload.tensors
        steps = [self._pending.pop(tensors[t].storage, -1) for t in op.inputs]
        for step in dict.fromkeys(steps):
            if step >= 0:
                self.writer.wait(step)


def shard_ways(builder: StageBuilder) -> tuple[int, int]:
    """Ranks over which weights are spread, and weights of experts."""
    groups = builder.context.plan.groups
    return groups.size(groups.shard), groups.size(groups.expert_shard)
