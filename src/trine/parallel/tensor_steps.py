"""The collectives of tensor parallelism: after each split operator, and the next operator waits for them."""

from __future__ import annotations

from trine.model.program import PHASE_OPTIMIZER
from trine.model.workload import BACKWARD, FORWARD, Operator
from trine.parallel.extension import WEIGHT_PART, Extension, Place


class TensorCollectives(Extension):
    """All-gathers and all-reduces on the ``tp`` axis."""

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """The collective that follows a split operator; the next operator waits for it."""
        if place.phase == PHASE_OPTIMIZER:
            return
        split = self.context.split_of(op)
        if split is None or place.part == WEIGHT_PART:
            return
        if op.phase == FORWARD and split.forward:
            kind, tensors = split.forward, op.outputs[:1]
        elif op.phase == BACKWARD and split.backward and self.builder.last_backward[op.forward_id] == op.id:
            kind, tensors = "all_reduce", self._differentiable_input(op)
        else:
            return
        size = sum(self.context.scaled_bytes(t, batch) for t in tensors)
        if size:
            label = self.context.label(op, self.builder.stage, place.microbatch, place.step)
            key = ("tp", op.id, *place.key)
            self.writer.wait(self.writer.collective(kind, "tp", key, size, (done,), label))

    def _differentiable_input(self, op: Operator) -> tuple[int, ...]:
        """The activation that the forward operator read: its gradient has the same size."""
        forward = self.context.operators[op.forward_id] if op.forward_id is not None else op
        tensors = self.context.workload.tensors
        return tuple(t for t in forward.inputs if tensors[t].role == "activation" and tensors[t].size_bytes)[:1]
