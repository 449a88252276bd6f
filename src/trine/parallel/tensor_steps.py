"""The collectives of tensor parallelism: after each split operator, and the next operator waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.graph.program import Phase
from trine.graph.workload import BACKWARD, FORWARD, Operator
from trine.parallel.extension import WEIGHT_PART, Extension, Place

if TYPE_CHECKING:
    from trine.parallel.stage import StageBuilder


class SplitCollectives(Extension):
    """What tensor and sequence parallelism have in common: a reduction of an input's gradient runs beside the operator
    that computes the gradient of the weight, where the trace has one of its own (as Megatron-LM does by default).
    """

    def __init__(self, builder: StageBuilder) -> None:
        super().__init__(builder)
        self._reduced: dict[int, tuple[int | None, int]] = {}  # lane -> forward operator, step of the reduction
        self._held: dict[int, int] = {}  # lane -> step that the next operator but one waits for

    def wait_beside_weights(self, op: Operator, step: int) -> None:
        """Make the next operator wait for ``step``, but not the one that computes the gradient of its weight."""
        self.writer.wait(step)
        self._reduced[self.writer.lane] = op.forward_id, step

    def let_weights_pass(self, op: Operator) -> None:
        """Before ``op``: take back what it needs not wait for."""
        forward, step = self._reduced.pop(self.writer.lane, (None, -1))
        if op.phase == BACKWARD and op.forward_id == forward and self.context.stages.parts[op.id] == WEIGHT_PART:
            self.writer.release(step)
            self._held[self.writer.lane] = step

    def hold_again(self) -> None:
        """After an operator: what it needed not wait for the next one does."""
        step = self._held.pop(self.writer.lane, None)
        if step is not None:
            self.writer.wait(step)

    def differentiable_input(self, op: Operator) -> tuple[int, ...]:
        """The activation that the forward operator read: its gradient has the same size."""
        forward = self.context.operators[op.forward_id] if op.forward_id is not None else op
        tensors = self.context.workload.tensors
        return tuple(t for t in forward.inputs if tensors[t].role == "activation" and tensors[t].size_bytes)[:1]


class TensorCollectives(SplitCollectives):
    """All-gathers and all-reduces on the ``tp`` axis."""

    def before(self, op: Operator, place: Place) -> None:
        self.let_weights_pass(op)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """The collective that follows a split operator; the next operator waits for it."""
        self.hold_again()
        if place.phase == Phase.OPTIMIZER:
            return
        split = self.context.split_of(op)
        if split is None or place.part == WEIGHT_PART:
            return
        if op.phase == FORWARD and split.forward:
            kind, tensors = split.forward, op.outputs[:1]
        elif op.phase == BACKWARD and split.backward and self.builder.last_backward[op.forward_id] == op.id:
            kind, tensors = "all_reduce", self.differentiable_input(op)
        else:
            return
        size = sum(self.context.scaled_bytes(t, batch) for t in tensors)
        if size:
            label = self.context.label(op, self.builder.stage, place.microbatch, place.step, place.rerun)
            key = ("tp", op.id, *place.key)
            self.wait_beside_weights(op, self.writer.collective(kind, "tp", key, size, (done,), label))
