"""DistributedDataParallel: gradients are all-reduced bucket by bucket while the backward pass goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.model.program import PHASE_BACKWARD, PHASE_FORWARD, Label
from trine.model.workload import Operator
from trine.parallel.buckets import Bucket, Gradient, fill_buckets
from trine.parallel.extension import Extension, Place

if TYPE_CHECKING:
    from trine.parallel.stage import StageBuilder


class BucketReductions(Extension):
    """All-reduces of full buckets on the ``dp`` axis, and the broadcast of buffers before the forward pass."""

    def __init__(self, builder: StageBuilder) -> None:
        super().__init__(builder)
        self.buckets = buckets_of(builder)
        self.reductions: list[int] = []

    def begin_step(self, step: int) -> None:
        """As DDP does, broadcast buffers from the first replica before the forward pass."""
        builder, writer = self.builder, self.writer
        size = self.context.buffer_bytes(builder.forward)
        if size and self.context.workload.is_training:
            label = Label(phase=PHASE_FORWARD, stage=builder.stage, step=step)
            after = (*writer.last_compute(), *list(builder.copies.values())[:1])
            key = ("buffers", builder.stage, step)
            writer.wait(writer.collective("broadcast", "dp", key, size, after, label, root=0))

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase != PHASE_BACKWARD or not place.is_last:
            return
        for number, bucket in enumerate(self.buckets):
            if bucket.ready_after == op.id:
                label = self.context.label(op, self.builder.stage, place.microbatch, place.step)
                key, after = ("bucket", self.builder.stage, number, *place.key), self.writer.last_compute()
                self.reductions.append(self.writer.collective("all_reduce", "dp", key, bucket.size_bytes, after, label))

    def before_optimizer(self, step: int) -> None:
        for done in self.reductions:
            self.writer.wait(done)
        self.reductions.clear()


def buckets_of(builder: StageBuilder) -> tuple[Bucket, ...]:
    """The buckets of a stage's gradients, in the order in which they fill up."""
    context, plan = builder.context, builder.context.plan
    order = {op.id: i for i, op in enumerate(builder.backward)}
    # Gradients of one operator are ready in the order in which the trace made them (their ids grow), as autograd
    # accumulates a linear's bias before its weight; without ids, in the order of registration.
    made = {p.weight: p.gradient for p in context.workload.parameters if p.gradient is not None}
    ready = sorted(
        (order[w.gradient_operator], made.get(w.weight, 0), i)
        for i, w in enumerate(builder.weights)
        if w.gradient_operator is not None
    )
    gradients = [
        Gradient(
            weight=builder.weights[i].weight,
            size_bytes=context.local_bytes[builder.weights[i].weight],
            dtype=context.workload.tensors[builder.weights[i].weight].dtype,
            ready_after=builder.backward[position].id,
        )
        for position, _, i in ready
    ]
    return fill_buckets(gradients, plan.first_bucket_bytes, plan.bucket_bytes)
