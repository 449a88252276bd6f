"""Memory of one pipeline rank over its program: the allocations of each operator, freed after their last reader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from trine.common.kept import keep
from trine.compute import kind_of
from trine.graph.memory import BLOCKS_PER_STREAM, MEMORY_CATEGORIES
from trine.graph.program import MemoryChange
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.chunks import OperatorRun
from trine.parallel.job import JobContext
from trine.parallel.program_parts import new_tuple
from trine.parallel.saved import Extras, Logits
from trine.parallel.stages import Crossing, OwnedWeight
from trine.parallel.workload_facts import lasting_storages, operators_by_id, storage_of_tensors, tensors_of_role
from trine.parallel.writer import ProgramWriter

#: Forward operators of these kinds keep their inputs until their backward operator has run.
SAVES_INPUT = frozenset({"conv", "linear", "matmul", "attention", "batch_norm", "layer_norm", "group_norm", "loss"})
CATEGORY = {name: i for i, name in enumerate(MEMORY_CATEGORIES)}
#: Streams of FSDP with separate cached blocks; stream 0 runs the operators.
GATHER_STREAM, SCATTER_STREAM = 1, 2

RunKey = tuple[int, str, bool]  # OperatorRun.key


class Block(NamedTuple):
    """An allocated block: its bytes, category and number, and the program step that allocated it."""

    size: int
    category: int
    number: int
    step: int


class Touch(NamedTuple):
    """Possible allocations of one run, as (storage, tensor that sets the size, category), and the storages it frees."""

    allocates: tuple[tuple[int, int, int], ...]
    frees: tuple[int, ...]


class GradientFacts(NamedTuple):
    """All that the memory of a weight's gradient depends on.

    lasting_bytes: of the buffer that keeps it across steps; -1: none. is_fused: its product adds to it in place.
    """

    local_bytes: int
    gradient_bytes: int
    lasting_bytes: int
    is_fused: bool


@keep
def touches_of_optimizer(workload: Workload) -> dict[RunKey, Touch]:
    """Return the allocations and frees of each operator of the optimizer phase, the same in all stages.

    Without the weights and their gradients and states, which no operator allocates or frees. Operators of each
    micro-batch may free whatever it holds.
    """
    runs = [OperatorRun(op) for op in workload.operators if op.phase == OPTIMIZER]
    allocated: dict[int, None] = {}
    last_use: dict[int, int] = {}
    allocates = []
    for i, run in enumerate(runs):
        rows, touched = _made_by_optimizer(workload, run.op)
        allocates.append(rows)
        allocated.update(dict.fromkeys(storage for storage, _, _ in rows))
        last_use.update(dict.fromkeys(touched, i))
    lasting = lasting_storages(workload)
    frees: list[list[int]] = [[] for _ in runs]
    for storage, i in last_use.items():
        is_each = runs[i].op.attributes.get("when") == "micro-batch"
        if is_each or storage in allocated or storage not in lasting:
            frees[i].append(storage)
    return {
        run.key: Touch(rows, tuple(freed)) for run, rows, freed in zip(runs, allocates, frees, strict=True)
    }  # fmt: skip


def _made_by_optimizer(workload: Workload, op: Operator) -> tuple[tuple[tuple[int, int, int], ...], dict[int, None]]:
    """Return the storages that an optimizer operator makes, as in :class:`Touch`, and all that it touches."""
    storage_of, made = storage_of_tensors(workload), dict[int, tuple[int, int, int]]()
    read = dict.fromkeys([storage_of[t] for t in op.inputs])
    for tensor_id in op.outputs:
        storage = storage_of[tensor_id]
        if storage not in read and workload.tensors[tensor_id].size_bytes:
            made.setdefault(storage, (storage, tensor_id, CATEGORY["activations"]))
    return tuple(made.values()), read | dict.fromkeys([storage_of[t] for t in op.outputs])


@keep
def optimizer_state_bytes(workload: Workload, optimizer: tuple[int, ...]) -> int:
    """Return the bytes of the whole state of these operators (ids); a state written before it is read is temporary."""
    storage_of, operators = storage_of_tensors(workload), operators_by_id(workload)
    read, written_first = dict[int, None](), dict[int, bool]()
    for number in optimizer:
        op = operators[number]
        inputs = [storage_of[t] for t in op.inputs]
        read.update(dict.fromkeys(inputs))
        for storage in inputs:
            written_first.setdefault(storage, False)
        for tensor in op.outputs:
            written_first.setdefault(storage_of[tensor], True)
    state = {}
    for each in tensors_of_role(workload).get("optimizer_state", ()):
        if each.storage in read and not written_first[each.storage]:
            state[each.storage] = each.size_bytes
    return sum(state.values())


class StageMemory:
    """Memory changes of a rank's operators, per storage and micro-batch.

    ``orders`` holds one list of runs per path of micro-batches, from the first forward to the last backward operator
    of a micro-batch; ``order_of[micro-batch]`` is the index of its list. A storage lives from the run that makes it
    to the last run that touches it or for which autograd keeps it. A recomputed storage does not live in between.

    A software profile (``MemoryStyle``) adds gradient buffers and dummies, further tensors that its autograd saves,
    copies of the logits, and workspaces. The CUDA context, communicators and the allocator's reserve are in
    :mod:`trine.results.allocator`.
    """

    def __init__(
        self,
        context: JobContext,
        stage: int,
        orders: Sequence[Sequence[OperatorRun]],
        order_of: Sequence[int],
        writer: ProgramWriter,
    ) -> None:
        self._context = context
        self._stage = stage
        self._writer = writer
        self._style = context.memory_style
        self.num_blocks = 0
        self.users: dict[int, int] = {}  # block -> step of the collective that uses it
        self._tensors = context.workload.tensors
        self._storage_of = context.storage_of
        self._order_of = order_of
        runs = [run for order in orders for run in order]
        self._backward = {run.op.id: run.op for run in runs if run.op.phase == BACKWARD}
        forward = {run.op.id: run.op for run in runs if run.op.phase == FORWARD}
        self._forward = forward
        self._saved = self._saved_for_backward()
        self._extras = Extras(context, forward.values())
        self._logits = Logits(context, forward.values())
        self._touches = [self._touches_of(order) for order in orders]
        self._optimizer_touches = touches_of_optimizer(context.workload)
        touched = []
        for order in orders:
            touched.append(set(self._storages(run.op.inputs for run in order)))
        self._touched = touched
        self._from_elsewhere = self._made_elsewhere()
        self._reads = self._storages(op.inputs for op in forward.values())
        self._sizes: dict[tuple[RunKey, int], tuple[tuple[int, int, int], ...]] = {}
        self._live: dict[int, dict[int, Block]] = {}  # micro-batch -> storage -> its block
        self.gradients: dict[int, Block] = {}
        self.parts: dict[int, Block] = {}  # gradients that are spread over replicas
        self._lasting: dict[int, int] = {}  # weight -> bytes of its gradient that persist across steps
        if self._style.gradient_buffer:  # also with an offloaded optimizer: gradients leave after the last micro-batch
            trained = [w.weight for w in context.weights[stage] if w.gradient_operator is not None]
            self._lasting = {weight: context.gradient_bytes(weight) for weight in trained}
        self._gradients_of: dict[int, list[int]] = {}
        for parameter in context.weights[stage]:
            if parameter.gradient_operator is not None:
                self._gradients_of.setdefault(parameter.gradient_operator, []).append(parameter.weight)

    # -- facts known before the run --------------------------------------------------------------------------------

    def _storages(self, groups: Iterable[Iterable[int]]) -> dict[int, None]:
        storage_of = self._storage_of
        return dict.fromkeys([storage_of[t] for group in groups for t in group])

    def _storages_of(self, tensors: Iterable[int]) -> dict[int, None]:
        storage_of = self._storage_of
        return dict.fromkeys([storage_of[t] for t in tensors])

    def _outputs(self, run: OperatorRun) -> tuple[int, ...]:
        saved = self._saved.get(run.op.id)
        return run.op.outputs if saved is None else (*run.op.outputs, *saved)

    def _touches_of(self, order: Sequence[OperatorRun]) -> dict[RunKey, Touch]:
        """Return the allocations and frees of each run of ``order``."""
        users: dict[int, list[int]] = {}
        recomputed: set[tuple[int, int]] = set()  # (storage, run that recomputes it)
        allocated = []
        for i, run in enumerate(order):
            inputs, outputs = self._storages_of(run.op.inputs), self._storages_of(self._outputs(run))
            allocated.append((*self._allocated(run, inputs, outputs), *self._extras.allocated(run)))
            outputs |= self._extras.new_storages(run)
            for storage in self._extras.kept_storages(run, {**inputs, **outputs, **self._kept_for(run)}):
                users.setdefault(storage, []).append(i)
            if run.rerun:
                recomputed.update((storage, i) for storage in outputs if storage not in inputs)
        frees: list[list[int]] = [[] for _ in order]
        for storage, uses in users.items():
            if recomputed:
                for use, later in pairwise(uses):
                    if (storage, later) in recomputed:
                        frees[use].append(storage)
            frees[uses[-1]].append(storage)
        return {
            run.key: Touch(of_run, tuple(freed))
            for run, of_run, freed in zip(order, allocated, frees, strict=True)
        }  # fmt: skip

    def _kept_for(self, run: OperatorRun) -> dict[int, None]:
        """Return the tensors that autograd kept from the forward operator whose gradient ``run`` computes."""
        forward = self._forward.get(run.op.forward_id, None) if run.op.forward_id is not None else None
        if run.op.phase != BACKWARD or forward is None:
            return {}
        storages = self._storages_of(forward.inputs) if kind_of(forward) in SAVES_INPUT else {}
        return storages | self._extras.storages_of(forward)

    def _allocated(
        self, run: OperatorRun, read: Collection[int], written: Collection[int]
    ) -> tuple[tuple[int, int, int], ...]:
        """Return the storages that ``run`` makes, and the step's input data that it is the first to read.

        read, written: storages of the run's inputs and outputs.
        """
        allocated: dict[int, tuple[int, int, int]] = {}
        for tensor_id in (*run.op.inputs, *self._outputs(run)):
            tensor = self._tensors[tensor_id]
            storage = tensor.storage
            if storage in allocated or not tensor.size_bytes or storage in self._logits.in_place:
                continue
            if tensor.role == "input":
                allocated[storage] = (storage, tensor_id, CATEGORY["inputs"])
            elif tensor.role == "activation" and storage in written and storage not in read:
                allocated[storage] = (storage, tensor_id, CATEGORY["activations"])
        return tuple(allocated.values())

    def _saved_for_backward(self) -> dict[int, list[int]]:
        """Return forward operator -> tensors that only its backward operator names (pooling indices, dropout masks)."""
        outputs = self._context.made_storages
        inputs = self._storages(op.inputs for op in self._forward.values())
        saved: dict[int, list[int]] = {}
        for op in self._backward.values():
            if op.forward_id in self._forward:
                for tensor_id in op.inputs:
                    tensor = self._tensors[tensor_id]
                    if tensor.role == "activation" and tensor.storage not in outputs and tensor.storage not in inputs:
                        saved.setdefault(op.forward_id, []).append(tensor_id)
        return saved

    def _made_elsewhere(self) -> list[int]:
        """Return tensors that backward operators here read and other stages make: received gradients."""
        forward, backward = self._forward.values(), self._backward.values()
        written = self._storages(op.outputs for op in (*forward, *backward))
        read = self._storages(op.inputs for op in forward)
        local = written | read
        anywhere = self._context.made_storages
        received: dict[int, int] = {}
        for op in backward:
            for tensor_id in op.inputs:
                storage = self._tensors[tensor_id].storage
                if storage not in local and storage in anywhere:
                    received.setdefault(storage, tensor_id)
        return list(received.values())

    # -- events ----------------------------------------------------------------------------------------------------

    def ran(self, run: OperatorRun, step: int, microbatch: int, batch: int, share: Fraction = Fraction(1)) -> None:
        """Account for ``run``, which is step ``step`` of the program."""
        op, key = run.op, run.key
        if op.phase == OPTIMIZER:
            touch, sizes = self._optimizer_touches[key], self._resolve(self._optimizer_touches[key], batch, share)
        else:
            touch = self._touches[self._order_of[microbatch]][key]
            sizes = self._sizes_of(run, touch, batch)
        live = self._live.setdefault(microbatch, {})
        for storage, size, category in sizes:
            if storage not in live:
                live[storage] = self._alloc(step, size, category)
        for size in self._logits.missing(op, live, batch):
            self.temporary(size, step, step)
        for storage in touch.frees:
            if storage in live:
                self._free_block(live.pop(storage), step)
        for weight in self.gradients_of(run):
            self._allocate_gradient(weight, step)

    def _sizes_of(self, run: OperatorRun, touch: Touch, batch: int) -> tuple[tuple[int, int, int], ...]:
        key = run.key, batch
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = self._resolve(touch, batch, self._context.output_share(run.op))
        return sizes

    def touches(
        self, run: OperatorRun, microbatch: int, batch: int
    ) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]:
        """Return (storage, bytes, category) of what a run allocates, and the storages that it frees."""
        touch = self._touches[self._order_of[microbatch]][run.key]
        return self._sizes_of(run, touch, batch), touch.frees

    def gradients_of(self, run: OperatorRun) -> Sequence[int]:
        """Return the weights to whose gradients a run adds."""
        return self._gradients_of.get(run.op.id, ()) if run.adds else ()

    def gradient_facts(self, weight: int) -> GradientFacts:
        """Return all that the memory of a weight's gradient depends on."""
        return GradientFacts(
            local_bytes=self._context.local_bytes[weight], gradient_bytes=self._context.gradient_bytes(weight),
            lasting_bytes=self._lasting.get(weight, -1), is_fused=weight in self._extras.fused,
        )  # fmt: skip

    def _allocate_gradient(self, weight: int, step: int) -> None:
        """Allocate a gradient that has no memory yet; in a bucket if part of it is in a persistent buffer."""
        context, policy = self._context, self._style.weight_gradients
        size = context.local_bytes[weight]
        category = CATEGORY["buckets" if weight in self._lasting else "gradients"]
        if policy == "step":
            if weight not in self.gradients and self._lasting.get(weight, 0) < context.gradient_bytes(weight):
                self.gradients[weight] = self._alloc(step, size, category)
        elif policy == "backward":
            if weight not in self.gradients:
                self.gradients[weight] = self._alloc(step, size, CATEGORY["gradients"])
        elif policy == "operator" or weight not in self._extras.fused:
            self.temporary(size, step, step, "gradients")

    def keep_gradients(self, sizes: Mapping[int, int]) -> None:
        """Keep this many bytes of each weight's gradient in a buffer that is never freed.

        If the buffer holds only part of a gradient, the whole is in a bucket until :meth:`scattered`. Call this first.
        """
        self._lasting = dict(sizes)

    def _resolve(self, touch: Touch, batch: int, share: Fraction) -> tuple[tuple[int, int, int], ...]:
        """Return (storage, bytes, category) of the allocations of ``touch``; inputs are whole on every rank."""
        rows = []
        for storage, tensor_id, category in touch.allocates:
            size = self._extras.times(storage, self._context.scaled_bytes(tensor_id, batch))
            if category != CATEGORY["inputs"] and not self._extras.is_whole(storage):
                size = -(-size * share.numerator // share.denominator)
            rows.append((storage, size, category))
        return tuple(row for row in rows if row[1])

    def received(self, tensor_id: int, step: int, microbatch: int, is_kept: bool = False) -> None:
        """Record that a forward tensor arrived from another stage at program step ``step``.

        is_kept: it arrived in a pass without operators, and autograd keeps it until the backward pass.
        """
        storage = self._tensors[tensor_id].storage
        live = self._live.setdefault(microbatch, {})
        if storage not in live and (is_kept or storage in self._touched[self._order_of[microbatch]]):
            size = self._context.rank_bytes(tensor_id, self._context.micro_batches[microbatch])
            self._allocate(storage, microbatch, step, size, CATEGORY["activations"])

    def received_gradient(self, crossing: Crossing, step: int, microbatch: int) -> None:
        """Record the arrival of the gradient of a tensor that this stage had sent; it is as large as the tensor.

        The gradient uses the storage of a tensor of its size that backward operators here read. If the trace lists
        no such tensor, it gets a separate storage until the pass ends.
        """
        size_bytes = self._tensors[crossing.tensor].size_bytes
        live = self._live.setdefault(microbatch, {})
        storages = (self._tensors[t].storage for t in self._from_elsewhere if self._tensors[t].size_bytes == size_bytes)
        storage = next((s for s in storages if s not in live), -1 - crossing.tensor)
        if storage not in live:
            size = self._context.rank_bytes(crossing.tensor, self._context.micro_batches[microbatch])
            self._allocate(storage, microbatch, step, size, CATEGORY["activations"])

    def temporary(
        self, size_bytes: int, first: int, last: int, category: str = "activations", stream: int = 0, user: int = -1
    ) -> None:
        """Allocate ``size_bytes`` in a stream's pool from the start of program step ``first`` to the end of ``last``.

        user: step of a collective that uses it.
        """
        if size_bytes:
            block = self._alloc(first, size_bytes, CATEGORY[category], stream=stream)
            self.users[block.number] = user
            self._free_block(block, last)

    def used_by(self, tensors: Iterable[int], microbatch: int, step: int) -> None:
        """Record that the collective ``step`` uses tensors of a micro-batch."""
        for tensor_id in tensors:
            block = self._live.get(microbatch, {}).get(self._tensors[tensor_id].storage)
            if block is not None:
                self.users[block.number] = step

    def scattered(self, weights: Iterable[int], degree: int, step: int) -> None:
        """Keep only 1 / ``degree`` of the gradients of ``weights`` at the end of ``step``."""
        for weight in weights:
            block = self.gradients.pop(weight, None)
            if block is None:
                continue
            self._free_block(block, step)
            if weight not in self.parts and weight not in self._lasting:
                part = -(-self._context.gradient_bytes(weight) // degree)
                stream = SCATTER_STREAM if self._style.fsdp.pools == "own" else 0
                self.parts[weight] = self._alloc(step, part, CATEGORY["gradients"], at_end=True, stream=stream)

    def gathered(self, size_bytes: int, step: int) -> None:
        """Keep the data that other replicas sent to this one at ``step`` until the training step ends."""
        self._live.setdefault(-1, {})
        self._allocate(-1 - step, -1, step, size_bytes, CATEGORY["activations"])

    def live(self, microbatch: int) -> dict[int, Block]:
        """Return storage -> block for the memory that a micro-batch holds now."""
        return self._live.setdefault(microbatch, {})

    def gradients_left(self, weights: Iterable[int], step: int) -> None:
        """Free the gradients of ``weights`` at the end of ``step``, because they have moved elsewhere."""
        for weight in weights:
            for blocks in (self.gradients, self.parts):
                if weight in blocks:
                    self._free_block(blocks.pop(weight), step)

    def end_of_backward(self) -> None:
        """Free the gradients of a micro-batch after its backward pass, once they are in the common buffer."""
        if self._style.weight_gradients == "backward":
            for block in self.gradients.values():
                self._free_block(block, self._writer.last_compute()[0])
            self.gradients.clear()

    def end_of_microbatch(self, microbatch: int, kept: Collection[int] = ()) -> None:
        """Free the remaining tensors of a micro-batch after its last pass here (no listed operator reads them).

        kept: storages that deferred operators still read.
        """
        last = self._writer.last_compute() or (len(self._writer.steps) - 1,)  # a rank without operators has messages
        for storage in list(self._live.get(microbatch, ())):
            if storage not in kept:
                self._free(storage, microbatch, last[0])

    def end_step(self, last: tuple[int, ...]) -> None:
        """Set gradients to None and free everything that remains of the step."""
        if not last:
            return
        for blocks in (self.gradients, self.parts):
            for block in blocks.values():
                self._free_block(block, last[0])
            blocks.clear()
        for microbatch, live in self._live.items():
            for storage in list(live):
                self._free(storage, microbatch, last[0])

    def resident(
        self,
        weights: Sequence[OwnedWeight],
        optimizer: Sequence[Operator],
        bucket_bytes: int,
        changes: Iterable[Callable[[dict[str, int]], None]] = (),
    ) -> tuple[int, ...]:
        """Return the bytes of each category that persist across steps; ``bucket_bytes``: DDP's buckets."""
        context = self._context
        fixed = context.tensors_of_role.get("buffer", ()), context.tensors_of_role.get("table", ())
        buffers = {t.storage: t.size_bytes for group in fixed for t in group if t.storage in self._reads}
        state_bytes = optimizer_state_bytes(context.workload, tuple(op.id for op in optimizer))
        sizes = dict.fromkeys(MEMORY_CATEGORIES, 0)
        copies = context.cast_copies
        cast_bytes = sum(int(context.local_bytes[w.weight] * copies.get(w.weight, 0.0)) for w in weights)
        sizes["weights"] = sum(context.local_bytes[w.weight] for w in weights) + cast_bytes + sum(buffers.values())
        sizes["optimizer_state"] = int(state_bytes * context.optimizer_share(self._stage))
        sizes["buckets"] = bucket_bytes
        sizes["gradients"] = sum(self._lasting.values())
        extras = self._extras
        sizes["workspaces"] = self._style.workspace_bytes + extras.expert_workspace_bytes + extras.dummy_bytes
        for change in changes:
            change(sizes)
        return tuple(sizes[name] for name in MEMORY_CATEGORIES)

    def _allocate(self, storage: int, microbatch: int, step: int, size: int, category: int) -> None:
        self._live[microbatch][storage] = self._alloc(step, size, category)

    def _free(self, storage: int, microbatch: int, step: int) -> None:
        self._free_block(self._live[microbatch].pop(storage), step)

    def _alloc(self, step: int, size: int, category: int, at_end: bool = False, stream: int = 0) -> Block:
        """Allocate a block in a stream's pool, from the start (or the end) of ``step`` on."""
        self.num_blocks += 1
        number = self.num_blocks + stream * BLOCKS_PER_STREAM
        if size:
            self._writer.memory.append(new_tuple(MemoryChange, (step, at_end, size, category, number, -1)))
        return new_tuple(Block, (size, category, number, step))

    def _free_block(self, block: Block, step: int) -> None:
        """Free a block at the end of ``step``, or of the step that allocated it if that is later."""
        if block.size:
            user = self.users.pop(block.number, -1)
            last = max(step, block.step)
            change = (last, True, -block.size, block.category, block.number, user)
            self._writer.memory.append(new_tuple(MemoryChange, change))
