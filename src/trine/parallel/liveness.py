"""Memory of one stage over its program: what each operator allocates and when the last reader lets go of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from trine.compute import kind_of
from trine.model.memory import MEMORY_CATEGORIES
from trine.model.program import MemoryChange
from trine.model.workload import BACKWARD, OPTIMIZER, Operator
from trine.parallel.context import JobContext
from trine.parallel.extension import Extension
from trine.parallel.ownership import OwnedWeight, trained_bytes
from trine.parallel.stages import Crossing
from trine.parallel.writer import ProgramWriter

#: Forward operators of these kinds keep what they read until their backward operator has run.
SAVES_INPUT = frozenset({"conv", "linear", "matmul", "attention", "batch_norm", "layer_norm", "group_norm", "loss"})
CATEGORY = {name: i for i, name in enumerate(MEMORY_CATEGORIES)}

Key = tuple[int, int]  # storage, micro-batch


class StageMemory:
    """Turns the operators that a stage runs into memory changes, per storage and micro-batch.

    Not modelled: workspaces of libraries, fragmentation and caching of the allocator, the CUDA context.
    """

    def __init__(
        self,
        context: JobContext,
        stage: int,
        forward: Sequence[Operator],
        backward: Sequence[Operator],
        writer: ProgramWriter,
    ) -> None:
        self._context = context
        self._stage = stage
        self._writer = writer
        self._tensors = context.workload.tensors
        optimizer = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self._last_use = self._last_uses([*forward, *backward])
        self._optimizer_last_use = self._last_uses(optimizer)
        self._saved = self._saved_for_backward(forward, backward)
        self._from_elsewhere = self._made_elsewhere(forward, backward)
        self._used = {*self._storages(op.inputs for op in forward)}
        self._live: dict[Key, tuple[int, int]] = {}  # bytes, category
        self._gradients: dict[int, int] = {}
        self._gradients_of: dict[int, list[int]] = {}
        for owned in context.weights[stage]:
            if owned.gradient_operator is not None:
                self._gradients_of.setdefault(owned.gradient_operator, []).append(owned.weight)

    # -- what is known before anything runs ------------------------------------------------------------------------

    def _storages(self, groups: Iterable[Iterable[int]]) -> dict[int, None]:
        return dict.fromkeys(self._tensors[t].storage for group in groups for t in group)

    def _last_uses(self, operators: Sequence[Operator]) -> dict[int, int]:
        """Storage -> id of the last operator that touches it, counting what autograd keeps for the backward pass."""
        order = {op.id: i for i, op in enumerate(operators)}
        backward_of = {op.forward_id: op.id for op in operators if op.phase == BACKWARD and op.forward_id is not None}
        last: dict[int, int] = {}
        for op in operators:
            keeps = op.id in backward_of and kind_of(op) in SAVES_INPUT
            read = self._storages([op.inputs])
            for storage in read | self._storages([op.outputs]):
                user = backward_of[op.id] if keeps and storage in read else op.id
                last[storage] = max(user, last.get(storage, op.id), key=order.__getitem__)
        return last

    def _saved_for_backward(self, forward: Sequence[Operator], backward: Sequence[Operator]) -> dict[int, list[int]]:
        """Forward operator -> tensors that only its backward operator names (pooling indices, dropout masks)."""
        listed = {op.id for op in forward}
        made = self._storages(op.outputs for op in self._context.workload.operators)
        read = self._storages(op.inputs for op in forward)
        saved: dict[int, list[int]] = {}
        for op in backward:
            if op.forward_id in listed:
                for tensor_id in op.inputs:
                    tensor = self._tensors[tensor_id]
                    if tensor.role == "activation" and tensor.storage not in made and tensor.storage not in read:
                        saved.setdefault(op.forward_id, []).append(tensor_id)
        return saved

    def _made_elsewhere(self, forward: Sequence[Operator], backward: Sequence[Operator]) -> list[int]:
        """Tensors that backward operators here read and other stages make: gradients that arrive."""
        here = self._storages(op.outputs for op in (*forward, *backward)) | self._storages(op.inputs for op in forward)
        anywhere = self._storages(op.outputs for op in self._context.workload.operators)
        found: dict[int, int] = {}
        for op in backward:
            for tensor_id in op.inputs:
                storage = self._tensors[tensor_id].storage
                if storage not in here and storage in anywhere:
                    found.setdefault(storage, tensor_id)
        return list(found.values())

    # -- what happens ----------------------------------------------------------------------------------------------

    def ran(self, op: Operator, step: int, microbatch: int, batch: int, share: Fraction) -> None:
        """Account for operator ``op``, which is step ``step`` of the program."""
        if op.phase == OPTIMIZER:
            self._touch(op, step, -1, batch, share, self._optimizer_last_use)
            return
        self._touch(op, step, microbatch, batch, self._local_share(op), self._last_use)
        for weight in self._gradients_of.get(op.id, ()):
            if weight not in self._gradients:
                self._gradients[weight] = self._context.local_bytes[weight]
                self._change(step, False, self._gradients[weight], CATEGORY["gradients"])

    def _local_share(self, op: Operator) -> Fraction:
        """The part of an operator's output that one rank of the tp group holds.

        Forward: an output that stays divided, or that of an operator on divided tensors. Backward: the gradient of an
        input that was divided, which is that of a row split.
        """
        split = self._context.split_of(op)
        if split is None:
            return Fraction(1)
        divided = split.mode == "shared" or (
            split.mode == "row" if op.phase == BACKWARD else split.mode == "column" and not split.forward
        )
        return Fraction(1, self._context.plan.tp) if divided else Fraction(1)

    def _touch(
        self, op: Operator, step: int, microbatch: int, batch: int, share: Fraction, last_use: dict[int, int]
    ) -> None:
        outputs = (*op.outputs, *self._saved.get(op.id, ()))
        produced, consumed = self._storages([outputs]), self._storages([op.inputs])
        for tensor_id in (*op.inputs, *outputs):
            tensor = self._tensors[tensor_id]
            key = (tensor.storage, microbatch)
            if key in self._live or not tensor.size_bytes:
                continue
            made_here = tensor.storage in produced and tensor.storage not in consumed
            if tensor.role == "input" and op.phase != OPTIMIZER:
                self._allocate(key, step, self._context.scaled_bytes(tensor_id, batch), CATEGORY["inputs"])
            elif made_here and (tensor.role == "activation" or op.phase == OPTIMIZER):
                size = self._context.scaled_bytes(tensor_id, batch) * share
                self._allocate(key, step, -(-size.numerator // size.denominator), CATEGORY["activations"])
        for storage in produced | consumed:
            if last_use.get(storage) == op.id and (storage, microbatch) in self._live:
                self._free((storage, microbatch), step)

    def received(self, tensor_id: int, step: int, microbatch: int) -> None:
        """A forward tensor arrived from another stage at program step ``step``."""
        key = (self._tensors[tensor_id].storage, microbatch)
        if key not in self._live and key[0] in self._last_use:
            size = self._context.rank_bytes(tensor_id, self._context.micro_batches[microbatch])
            self._allocate(key, step, size, CATEGORY["activations"])

    def received_gradient(self, crossing: Crossing, step: int, microbatch: int) -> None:
        """The gradient of a tensor that this stage had sent arrived; it is as large as the tensor.

        It takes the storage of a tensor of its size that backward operators here read, or one of its own until the
        pass ends, where the trace lists none.
        """
        wanted = self._tensors[crossing.tensor].size_bytes
        storages = (self._tensors[t].storage for t in self._from_elsewhere if self._tensors[t].size_bytes == wanted)
        storage = next((s for s in storages if (s, microbatch) not in self._live), -1 - crossing.tensor)
        if (storage, microbatch) not in self._live:
            size = self._context.rank_bytes(crossing.tensor, self._context.micro_batches[microbatch])
            self._allocate((storage, microbatch), step, size, CATEGORY["activations"])

    def gathered(self, size_bytes: int, step: int) -> None:
        """What other replicas sent to this one at ``step`` stays until the step ends."""
        self._allocate((-1, step), step, size_bytes, CATEGORY["activations"])

    def end_backward(self, microbatch: int) -> None:
        """After a micro-batch's backward pass nothing of it is left (tensors that no listed operator reads again)."""
        done = self._writer.last_compute()[0]
        for key in [key for key in self._live if key[1] == microbatch]:
            self._free(key, done)

    def end_step(self, last: tuple[int, ...]) -> None:
        """Gradients are set to None, and whatever else the step left is given back."""
        if not last:
            return
        for size in self._gradients.values():
            self._change(last[0], True, -size, CATEGORY["gradients"])
        self._gradients.clear()
        for key in list(self._live):
            self._free(key, last[0])

    def resident(
        self,
        weights: Sequence[OwnedWeight],
        optimizer: Sequence[Operator],
        has_buckets: bool,
        extensions: Sequence[Extension] = (),
    ) -> tuple[int, ...]:
        """Bytes of each category that stay from step to step."""
        context = self._context
        trained = trained_bytes(weights, context.local_bytes)
        buffers = {
            t.storage: t.size_bytes for t in self._tensors.values() if t.role == "buffer" and t.storage in self._used
        }
        read = self._storages(op.inputs for op in optimizer)
        made_afresh: dict[int, bool] = {}  # written before it is read: a temporary of the optimizer
        for op in optimizer:
            for storage in self._storages([op.inputs]):
                made_afresh.setdefault(storage, False)
            for storage in self._storages([op.outputs]):
                made_afresh.setdefault(storage, True)
        state = {
            t.storage: t.size_bytes
            for t in self._tensors.values()
            if t.role == "optimizer_state" and t.storage in read and not made_afresh.get(t.storage, False)
        }
        sizes = dict.fromkeys(MEMORY_CATEGORIES, 0)
        sizes["weights"] = sum(context.local_bytes[w.weight] for w in weights) + sum(buffers.values())
        sizes["optimizer_state"] = int(sum(state.values()) * context.optimizer_share(self._stage))
        sizes["buckets"] = trained if has_buckets else 0
        for extension in extensions:
            extension.resident(sizes)
        return tuple(sizes[name] for name in MEMORY_CATEGORIES)

    def _allocate(self, key: Key, step: int, size: int, category: int) -> None:
        self._live[key] = (size, category)
        self._change(step, False, size, category)

    def _free(self, key: Key, step: int) -> None:
        size, category = self._live.pop(key)
        self._change(step, True, -size, category)

    def _change(self, step: int, at_end: bool, delta: int, category: int) -> None:
        if delta:
            self._writer.memory.append(MemoryChange(step, at_end, delta, category))
