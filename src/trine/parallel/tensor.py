"""Collectives of tensor parallelism: one after each split operator; the next operator waits for it.

Also gathers queries, keys and values if a tp group has more ranks than there are key-value heads.

As in Megatron-core (``Attention.get_query_key_value_tensors``, fewer query groups than tensor-parallel ranks), the
projection's weight stays sharded by columns, so each rank holds a fraction of a key head. Its outputs are all-gathered
over the group. Each rank then takes its queries and the one key head and value head that they need. In the backward
pass the gradient of the gathered tensor is a partial sum, zero except for the rank's own heads. A reduce-scatter sums
it and leaves each rank the part of its columns.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from trine.graph.program import Phase
from trine.graph.workload import BACKWARD, FORWARD, Operator
from trine.parallel.chunks import Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.layer_codes import LayerCodes
from trine.parallel.stages import WEIGHT_PART
from trine.software.precision import CAST_DTYPES


class SplitCollectives(Extension):
    """The base class of tensor and sequence parallelism. Overlaps the reduction of an input gradient with the operator
    that computes the weight gradient, if the trace has a separate one (Megatron-LM's default).
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._reduced: dict[int, tuple[int | None, int]] = {}  # lane -> forward operator, step of the reduction
        self._deferred: dict[int, int] = {}  # lane -> step that the next operator but one waits for
        self.axis = self.context.plan.groups.tensor

    def forgets(self) -> bool:
        return True

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        reduced, deferred = self._reduced.get(0), self._deferred.get(0)
        return (
            None if reduced is None else (codes.name(reduced[0]), codes.code(reduced[1])),
            None if deferred is None else codes.code(deferred),
        )

    def set_layer_state(self, state: Any, codes: LayerCodes, place: Place) -> None:
        reduced, deferred = state
        self._reduced.pop(0, None)
        self._deferred.pop(0, None)
        if reduced is not None:
            self._reduced[0] = codes.operator(reduced[0]), codes.step(reduced[1])
        if deferred is not None:
            self._deferred[0] = codes.step(deferred)

    def end_pass(self, place: Place) -> None:
        """Forget the reduction: the first operator of the next pass computes no gradient of that weight."""
        self._reduced.pop(self.writer.lane, None)

    def wait_beside_weights(self, op: Operator, step: int) -> None:
        """Make the next operator wait for ``step``, unless it computes the gradient of the weight of ``op``."""
        self.writer.wait(step)
        self._reduced[self.writer.lane] = op.forward_id, step

    def let_weights_pass(self, op: Operator) -> None:
        """Drop the wait if ``op`` computes the weight gradient."""
        forward, step = self._reduced.pop(self.writer.lane, (None, -1))
        if op.phase == BACKWARD and op.forward_id == forward and self.context.stages.parts[op.id] == WEIGHT_PART:
            self.writer.release(step)
            self._deferred[self.writer.lane] = step

    def hold_again(self) -> None:
        """Make the operator after the weight gradient wait for the reduction."""
        step = self._deferred.pop(self.writer.lane, None)
        if step is not None:
            self.writer.wait(step)

    def differentiable_input(self, op: Operator) -> tuple[int, ...]:
        """Return the forward operator's input activation."""
        forward = self.context.operators[op.forward_id] if op.forward_id is not None else op
        tensors = self.context.workload.tensors
        return tuple(t for t in forward.inputs if tensors[t].role == "activation" and tensors[t].size_bytes)[:1]

    def input_gradient(self, op: Operator) -> tuple[int, ...]:
        """Return the gradient of the forward operator's input, or the input if the trace lists no gradient.

        The gradient of a cast input has 16 bits.
        """
        tensors, inputs = self.context.workload.tensors, self.differentiable_input(op)
        if not inputs or tensors[inputs[0]].dtype not in CAST_DTYPES:
            return inputs
        gradients = [t for t in op.outputs if tensors[t].shape == tensors[inputs[0]].shape]
        return tuple(gradients[:1]) or inputs


def sums_of(op: Operator) -> int:
    """Return the number of all-reduces behind a forward operator: more than one for some losses."""
    number = op.attributes.get("sums", 1) if op.phase == FORWARD else 1
    return number if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 8 else 1


class TensorCollectives(SplitCollectives):
    """All-gathers and all-reduces on the ``tp`` axis."""

    def before(self, op: Operator, place: Place) -> None:
        self.let_weights_pass(op)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """Add the collective that follows a split operator; the next operator waits for it."""
        self.hold_again()
        if place.phase == Phase.OPTIMIZER:
            return
        split = self.context.split_of(op)
        if split is None or place.part == WEIGHT_PART:
            return
        if op.phase == FORWARD and split.forward:
            kind, tensors = split.forward, op.outputs[:1]
        elif op.phase == BACKWARD and split.backward and self.program.last_backward[op.forward_id] == op.id:
            kind, tensors = "all_reduce", self.input_gradient(op)
        else:
            return
        size = sum(self.context.scaled_bytes(t, batch) for t in tensors)
        if size:
            label = self.label(op, place)
            after = (done,)
            for number in range(sums_of(op) - 1):  # of a loss: one after the other
                after = (
                    self.writer.collective(kind, self.axis, ("tp", number, op.id, *place.key), size, after, label),
                )
            step = self.writer.collective(kind, self.axis, ("tp", op.id, *place.key), size, after, label)
            self.program.memory.used_by(op.outputs[:1], place.microbatch, step)
            self.wait_beside_weights(op, step)


class HeadGathers(Extension):
    """All-gathers after the projections of a regrouped attention, reduce-scatters before their backward operators.

    The gathered tensor lives until its first reader ends, which is assumed to copy the rank's heads out of it. The
    gradient of all heads lives during its reduce-scatter.
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._pending: dict[int, tuple[int, int, int]] = {}  # lane -> storage, step and bytes of the gathered tensor
        self._scattered: set[tuple[int, int, int]] = set()  # forward operator, micro-batch, step
        self._axis = self.context.plan.groups.tensor

    def forgets(self) -> bool:
        return True

    def before(self, op: Operator, place: Place) -> None:
        """Add a reduce-scatter before the first backward operator of a projection."""
        if place.phase == Phase.OPTIMIZER or op.phase != BACKWARD or op.forward_id is None or not self._regroups(op):
            return
        once = op.forward_id, place.microbatch, place.step
        if once in self._scattered:
            return
        self._scattered.add(once)
        forward = self.context.operators[op.forward_id]
        step, size = self._collective("reduce_scatter", forward, op, place, self.writer.last_compute_and_waits())
        self.writer.wait(step)
        self.program.memory.temporary(size, step, step, user=step)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """Add an all-gather after the projection, and free its result after the first reader."""
        if place.phase == Phase.OPTIMIZER:
            return
        tensors = self.context.workload.tensors
        pending = self._pending.get(self.writer.lane)
        if pending is not None and any(tensors[t].storage == pending[0] for t in op.inputs):
            self._free_gathered(done)
        if op.phase == FORWARD and self._regroups(op):
            self._free_gathered(done)
            step, size = self._collective("all_gather", op, op, place, (done,))
            self.writer.wait(step)
            self._pending[self.writer.lane] = tensors[op.outputs[0]].storage, step, size

    def end_pass(self, place: Place) -> None:
        """Free the gathered tensor: a stage that ends right after a projection sends only the heads."""
        pending = self._pending.get(self.writer.lane)
        if pending is not None:
            self._free_gathered(pending[1])

    def _regroups(self, op: Operator) -> bool:
        split = self.context.split_of(op)
        return split is not None and split.regroups

    def _free_gathered(self, last: int) -> None:
        pending = self._pending.pop(self.writer.lane, None)
        if pending is not None:
            self.program.memory.temporary(pending[2], pending[1], last, user=pending[1])

    def _collective(
        self, kind: str, projection: Operator, op: Operator, place: Place, after: tuple[int, ...]
    ) -> tuple[int, int]:
        """Add the collective; return its step and its bytes: all features of the projection, on this rank's tokens."""
        size = self.context.scaled_bytes(projection.outputs[0], self.context.micro_batches[place.microbatch])
        label = self.label(op, place)
        key = ("tp", "heads", op.id, *place.key)
        return self.writer.collective(kind, self._axis, key, size, after, label), size
