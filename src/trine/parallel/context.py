"""Context parallelism: each rank holds a part of every sample's tokens, and attention needs all of them.

ring: keys and values circulate in cp - 1 steps, overlapped with the attention of the blocks already present (Liu et
al., Ring Attention with Blockwise Transformers, 2023). Each rank has two parts of the sequence, one from each end, so
all blocks have equal work under a causal mask. In the backward pass, keys and values circulate again, one step ahead of
their gradients, from their positions at the end of the forward pass: cp - 1 steps of each.
all-gather: keys and values are gathered before attention, forward and backward, and their gradients are
reduce-scattered (Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2).
ulysses: an all-to-all before attention gives each rank all tokens of a part of the heads, and another one after it
restores the layout (Jacobs et al., DeepSpeed Ulysses, 2023).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from trine.errors import PlanError, nearest_numbers
from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.layer_codes import LayerCodes
from trine.parallel.sequence import parts
from trine.parallel.token_partition import is_attention


class ContextAttention(Extension):
    """The communication of attention on the ``cp`` axis."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._degree, self._style = self.context.plan.cp, self.context.plan.cp_style
        self._axis = self.context.plan.groups.context
        self._gathered: dict[int, tuple[int, int]] = {}  # lane -> step and bytes of gathered keys and values
        for op in program.forward:
            if is_attention(op):
                self._check(op)

    def _check(self, op: Operator) -> None:
        shapes = [self.context.workload.tensors[t].shape for t in op.inputs[:3]]
        if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
            raise PlanError(
                f"context parallelism needs queries, keys and values of operator {op.id} ({op.name}), each (batch, "
                "heads, tokens, size)"
            )
        tp = self.context.plan.tp if self.context.split_of(op) is not None else 1
        fewest = min(shape[1] for shape in shapes)
        if self._style == "ulysses" and fewest % (self._degree * tp):
            product = f"cp x tp = {self._degree * tp}" if tp > 1 else f"cp = {self._degree}"
            valid = [n for n in range(1, fewest + 1) if fewest % (n * tp) == 0]
            near = nearest_numbers(valid, self._degree)
            hint = f": the nearest valid cp is {' or '.join(map(str, near))}" if near else ""
            raise PlanError(f"ulysses divides heads: {product} does not divide the {fewest} heads of {op.layer}{hint}")

    def forgets(self) -> bool:
        return True

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        return ()

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _bytes(self, op: Operator, tensors: Iterable[int], batch: int) -> int:
        """Return the bytes of an attention's tensors on one rank: its part of the tokens and heads."""
        return sum(self.context.head_bytes(op, t, batch) for t in tensors)

    def _forward(self, op: Operator) -> Operator:
        return self.context.operators[op.forward_id] if op.phase == BACKWARD and op.forward_id is not None else op

    def _keys(self, op: Operator, batch: int) -> int:
        """Return the bytes of keys and values."""
        return self._bytes(op, self._forward(op).inputs[1:3], batch)

    def _collective(self, kind: str, size: int, op: Operator, place: Place, number: int, after: tuple[int, ...]) -> int:
        label = self.label(op, place)
        return self.writer.collective(kind, self._axis, ("cp", kind, op.id, number, *place.key), size, after, label)

    # -- points of a program -----------------------------------------------------------------------------------------

    def before(self, op: Operator, place: Place) -> None:
        if place.phase == Phase.OPTIMIZER or self._style == "ring" or not is_attention(op):
            return
        batch, after = self.context.micro_batches[place.microbatch], self.writer.last_compute_and_waits()
        if self._style == "all-gather":
            size = self._keys(op, batch) * self._degree
            step = self._collective("all_gather", size, op, place, 0, after)
            self._gathered[self.writer.lane] = step, size
        else:
            forward = self._forward(op)
            tensors = forward.outputs[:1] if op.phase == BACKWARD else forward.inputs[:3]
            step = self._collective("all_to_all", self._bytes(op, tensors, batch), op, place, 0, after)
        self.writer.wait(step)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase == Phase.OPTIMIZER or self._style == "ring" or not is_attention(op):
            return
        if self._style == "all-gather":
            step, size = self._gathered.pop(self.writer.lane)
            backward = op.phase == BACKWARD
            self.program.memory.temporary(size * (1 + backward), step, done)
            if backward:
                self.writer.wait(self._collective("reduce_scatter", size, op, place, 1, (done,)))
            return
        forward = self._forward(op)
        tensors = forward.inputs[:3] if op.phase == BACKWARD else forward.outputs[:1]
        self.writer.wait(self._collective("all_to_all", self._bytes(op, tensors, batch), op, place, 1, (done,)))

    def write(self, run: OperatorRun, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write ring attention block by block, each overlapped with the transfer of the next block."""
        if self._style != "ring" or not is_attention(run.op):
            return None
        op, size, backward = run.op, self._keys(run.op, batch), run.op.phase == BACKWARD
        ready, first, done, step = self.writer.last_compute_and_waits(), -1, -1, -1
        for i, block_ps in enumerate(parts(duration_ps, self._degree)):
            is_last = i == self._degree - 1
            arrived, num_bytes = step, size * ((not is_last) + (backward and i > 0))
            if num_bytes:
                if i == 0:
                    after = ready
                elif backward:
                    after = (arrived, done)
                else:
                    after = (arrived,)
                step = self._collective("shift", num_bytes, op, place, i, after)
                first = step if first < 0 else first
            if arrived >= 0:
                self.writer.wait(arrived)
            done = self.writer.operator(op, block_ps, label, is_first=i == 0)
        if backward:
            self.writer.wait(step)  # the gradients of this rank's keys and values have returned
        # One block in use and one in transfer; in the backward pass their gradients too.
        self.program.memory.temporary(size * (4 if backward else 2), first, done)
        return done
