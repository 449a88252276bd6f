"""Memory of one stage over its program: what each operator allocates and when the last reader lets go of it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from trine.compute import kind_of
from trine.model.memory import MEMORY_CATEGORIES
from trine.model.program import MemoryChange
from trine.model.workload import BACKWARD, OPTIMIZER, Operator
from trine.parallel.writer import ProgramWriter

if TYPE_CHECKING:
    from trine.parallel.build import JobContext

#: Forward operators of these kinds keep what they read until their backward operator has run.
SAVES_INPUT = frozenset({"conv", "linear", "matmul", "attention", "batch_norm", "layer_norm", "group_norm", "loss"})
CATEGORY = {name: i for i, name in enumerate(MEMORY_CATEGORIES)}


class StageMemory:
    """Turns the operators that a stage runs into memory changes, per storage and micro-batch.

    Not modelled: workspaces of libraries, fragmentation and caching of the allocator, the CUDA context.
    """

    def __init__(
        self, context: JobContext, forward: Sequence[Operator], backward: Sequence[Operator], writer: ProgramWriter
    ) -> None:
        self._context = context
        self._writer = writer
        self._tensors = context.workload.tensors
        self._last_use = self._last_uses([*forward, *backward])
        self._saved = self._saved_for_backward(forward, backward)
        self._live: dict[tuple[int, int], tuple[int, int]] = {}  # (storage, micro-batch) -> bytes, category
        self._gradients: dict[int, int] = {}
        self._optimizer_last_use = self._last_uses([op for op in context.workload.operators if op.phase == OPTIMIZER])
        self._gradient_of: dict[int, list[int]] = {}
        for p in context.workload.parameters:
            if p.gradient_operator is not None:
                self._gradient_of.setdefault(p.gradient_operator, []).append(p.weight)

    def _last_uses(self, operators: Sequence[Operator]) -> dict[int, int]:
        """Storage -> id of the last operator that touches it, counting what autograd keeps for the backward pass."""
        order = {op.id: i for i, op in enumerate(operators)}
        backward_of = {op.forward_id: op.id for op in operators if op.phase == BACKWARD and op.forward_id is not None}
        last: dict[int, int] = {}
        for op in operators:
            for tensor_id in (*op.inputs, *op.outputs):
                storage = self._tensors[tensor_id].storage
                if storage not in last or order[op.id] > order[last[storage]]:
                    last[storage] = op.id
            if op.id in backward_of and kind_of(op) in SAVES_INPUT:
                keeper = backward_of[op.id]
                for tensor_id in op.inputs:
                    storage = self._tensors[tensor_id].storage
                    if order[keeper] > order[last[storage]]:
                        last[storage] = keeper
        return last

    def _saved_for_backward(self, forward: Sequence[Operator], backward: Sequence[Operator]) -> dict[int, list[int]]:
        """Forward operator -> tensors that only its backward operator names (pooling indices, dropout masks)."""
        listed = {op.id for op in forward}
        made = {self._tensors[t].storage for op in (*forward, *backward) for t in op.outputs}
        read_forward = {self._tensors[t].storage for op in forward for t in op.inputs}
        saved: dict[int, list[int]] = {}
        for op in backward:
            if op.forward_id not in listed:
                continue
            for tensor_id in op.inputs:
                tensor = self._tensors[tensor_id]
                if tensor.role == "activation" and tensor.storage not in made and tensor.storage not in read_forward:
                    saved.setdefault(op.forward_id, []).append(tensor_id)
        return saved

    def ran(self, op: Operator, step: int, microbatch: int, batch: int, share: Fraction) -> None:
        """Account for operator ``op``, which is step ``step`` of the program."""
        if op.phase == OPTIMIZER:
            self._touch(op, step, -1, batch, share, self._optimizer_last_use)
            return
        self._touch(op, step, microbatch, batch, self._local_share(op), self._last_use)
        for weight in self._gradient_of.get(op.id, ()):
            if weight not in self._gradients:
                self._gradients[weight] = self._context.local_bytes[weight]
                self._change(step, False, self._gradients[weight], CATEGORY["gradients"])

    def _local_share(self, op: Operator) -> Fraction:
        """The part of an operator's output that one rank of the tp group holds."""
        split = self._context.split_of(op)
        if split is None or (split.mode == "column" and split.forward) or split.mode in ("row", "embedding"):
            return Fraction(1)
        return Fraction(1, self._context.plan.tp)

    def _touch(
        self, op: Operator, step: int, microbatch: int, batch: int, share: Fraction, last_use: dict[int, int]
    ) -> None:
        outputs = (*op.outputs, *self._saved.get(op.id, ()))
        produced = {self._tensors[t].storage for t in outputs}
        consumed = {self._tensors[t].storage for t in op.inputs}
        for tensor_id in (*op.inputs, *outputs):
            tensor = self._tensors[tensor_id]
            key = (tensor.storage, microbatch)
            made_here = tensor.storage in produced and tensor.storage not in consumed
            if key in self._live or not tensor.size_bytes:
                continue
            if tensor.role == "input" and op.phase != OPTIMIZER:
                self._allocate(key, step, self._context.scaled_bytes(tensor_id, batch), CATEGORY["inputs"])
            elif made_here and (tensor.role == "activation" or op.phase == OPTIMIZER):
                size = -(-self._context.scaled_bytes(tensor_id, batch) * share.numerator // share.denominator)
                self._allocate(key, step, size, CATEGORY["activations"])
        for storage in sorted(produced | consumed):
            if last_use.get(storage) == op.id and (storage, microbatch) in self._live:
                self._free((storage, microbatch), step)

    def received(self, tensor_id: int, step: int, microbatch: int) -> None:
        """A tensor arrived from another stage at program step ``step``."""
        key = (self._tensors[tensor_id].storage, microbatch)
        if key not in self._live and key[0] in self._last_use:
            size = self._context.scaled_bytes(tensor_id, self._context.micro_batches[microbatch])
            self._allocate(key, step, size, CATEGORY["activations"])

    def end_backward(self, microbatch: int) -> None:
        """After a micro-batch's backward pass nothing of it is left (tensors that no listed operator reads again)."""
        for key in [k for k in self._live if k[1] == microbatch]:
            self._free(
                key, len(self._writer.steps) - 1 if not self._writer.last_compute() else self._writer.last_compute()[0]
            )

    def end_step(self, last: tuple[int, ...]) -> None:
        """Gradients are set to None, and whatever else the step left is given back."""
        if not last:
            return
        for size in self._gradients.values():
            self._change(last[0], True, -size, CATEGORY["gradients"])
        self._gradients.clear()
        for key in list(self._live):
            self._free(key, last[0])

    def resident(self, parameters: Sequence[int], optimizer: Sequence[Operator], has_buckets: bool) -> tuple[int, ...]:
        """Bytes of each category that stay from step to step, for the weights with these tensor ids."""
        context = self._context
        own = sum(context.local_bytes[w] for w in parameters)
        total = sum(p.size_bytes for p in context.workload.parameters)
        buffers = {t.storage: t.size_bytes for t in self._tensors.values() if t.role == "buffer"}
        made = {self._tensors[t].storage for op in optimizer for t in op.outputs}
        read = {self._tensors[t].storage for op in optimizer for t in op.inputs}
        state = {
            t.storage: t.size_bytes
            for t in self._tensors.values()
            if t.role == "optimizer_state"
            and (t.storage in read)
            and not (t.storage in made and self._is_temporary(t.storage, optimizer))
        }
        sizes = dict.fromkeys(MEMORY_CATEGORIES, 0)
        used = {
            self._tensors[t].storage
            for op in context.operators.values()
            if context.stages.stage_of.get(op.id) == self._stage()
            for t in op.inputs
        }
        sizes["weights"] = own + sum(size for storage, size in buffers.items() if storage in used)
        sizes["optimizer_state"] = sum(state.values()) * own // total if total else 0
        sizes["buckets"] = own if has_buckets else 0
        return tuple(sizes[name] for name in MEMORY_CATEGORIES)

    def _stage(self) -> int:
        return next(
            (
                self._context.stages.stage_of[op]
                for op in self._last_use.values()
                if op in self._context.stages.stage_of
            ),
            0,
        )

    def _is_temporary(self, storage: int, optimizer: Sequence[Operator]) -> bool:
        """Whether the optimizer makes this storage afresh: it is written before it is read."""
        for op in optimizer:
            if storage in {self._tensors[t].storage for t in op.inputs}:
                return False
            if storage in {self._tensors[t].storage for t in op.outputs}:
                return True
        return False

    def _allocate(self, key: tuple[int, int], step: int, size: int, category: int) -> None:
        self._live[key] = (size, category)
        self._change(step, False, size, category)

    def _free(self, key: tuple[int, int], step: int) -> None:
        size, category = self._live.pop(key)
        self._change(step, True, -size, category)

    def _change(self, step: int, at_end: bool, delta: int, category: int) -> None:
        if delta:
            self._writer.memory.append(MemoryChange(step, at_end, delta, category))
