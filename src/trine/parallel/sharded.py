"""ZeRO and FSDP: replicas keep only a part of optimizer state, gradients and parameters.

Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020; Zhao et al., PyTorch
FSDP, VLDB 2023. Gradients are reduce-scattered over the ranks of one sharded copy. With hybrid sharding, the parts are
then all-reduced over the copies.

zero1, zero2: each rank updates its part of the parameters, and the ranks exchange the parts after the optimizer. By
default they all-gather bucket by bucket, like DeepSpeed and Megatron-LM's distributed optimizer. With
``ZeroStyle.parameters`` (:mod:`trine.software.profile`) set to ``broadcast``, the ranks broadcast in turn. zero3, fsdp:
parameters are gathered unit by unit before use and freed after it.

Gradients are model states, as in the ZeRO paper. With zero1, all gradients share a persistent buffer (Megatron-Core's
``grad_data``). With zero2 and zero3, the buffer holds the rank's share (DeepSpeed's flat partition); a bucket is whole
until it is reduced and its part is added to the buffer. PyTorch's FSDP allocates each share when it is reduced and
frees it with the step. An optimizer in host memory leaves no gradients on the GPU (ZeRO-Offload).

A unit is a layer, or operators whose parameters have ``Plan.shard_unit_bytes``. The gather of a unit begins when the
unit ``Plan.prefetch`` units earlier starts to compute, so at most ``prefetch`` + 1 units are alive. Gathers and
reductions share a queue, because PyTorch runs both on one communicator (Zhao et al., section 3.3.2). In the backward
pass, the prefetched gather precedes the unit's reduction. Gathered parameters are freed after the unit's last operator
in a pass, and gathered again for the backward pass, unless ``Plan.reshard`` is off.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from trine.collectives.one_operation import ONE_OPERATION
from trine.common.precision import HALVES
from trine.graph.program import COMPUTE_STREAM, Compute, Label, Phase
from trine.graph.workload import FORWARD, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.data import Bucket, BucketReductions, buckets_of, fill_buckets, in_order, ready_gradients
from trine.parallel.extension import StageProgram
from trine.parallel.job import JobContext
from trine.parallel.layer_codes import LayerCodes, OtherStateError
from trine.parallel.layer_places import has_layers, layer_starts
from trine.parallel.memory import GATHER_STREAM
from trine.parallel.plan import DEFAULT_BUCKETS, PARAMETERS_SHARDED
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, INPUT_PASS
from trine.parallel.stages import INPUT_PART, WEIGHT_PART


class ShardedReductions(BucketReductions):
    """Reduce-scatters of gradients, and this rank's part of the optimizer step."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self.degrees = shard_degrees(program)
        self._is_scattered = self.context.plan.splits_gradients
        plan, style = self.context.plan, self.context.memory_style.fsdp
        self._copies_scattered = style.scatters == "copy" and plan.sharding in PARAMETERS_SHARDED
        self._scattered: tuple[int, int] = (0, 0)  # bytes and step of the latest reduce-scatter's input
        program.memory.keep_gradients(self._lasting_gradients())

    def forgets(self) -> bool:
        return super().forgets() and not self._copies_scattered

    def _lasting_gradients(self) -> dict[int, int]:
        """Return, for each trained weight, the gradient bytes that stay on this rank between steps."""
        plan, experts = self.context.plan, self.context.token_partition.expert_weights
        leave = plan.offload == "optimizer" and not self.context.memory_style.gradient_buffer
        if plan.sharding == "fsdp" or leave:
            return {}
        trained = [w.weight for w in self.program.weights if w.gradient_operator is not None]
        sizes = {weight: self.context.gradient_bytes(weight) for weight in trained}
        if not self._is_scattered:
            return sizes
        return {weight: -(-size // self.degrees[weight in experts]) for weight, size in sizes.items()}

    def reduce(self, number: int, label: Label, place: Place) -> int:
        bucket, writer, groups = self.buckets[number], self.writer, self.groups
        axis, degree = (groups.expert_shard if bucket.is_expert else groups.shard), self.degrees[bucket.is_expert]
        key, done = ("bucket", self.program.stage, number, *self.context.replica_key(place)), self.complete()
        if axis:
            self._free_scattered(done[-1])
            done = (writer.collective("reduce_scatter", axis, key, bucket.size_bytes, done, label),)
            if self._copies_scattered:
                self._scattered = bucket.size_bytes, done[0]
        if groups.copies:
            part, key = -(-bucket.size_bytes // degree), ("copies", *key)
            done = (writer.collective("all_reduce", groups.copies, key, part, done, label, queue="copies"),)
        if self._is_scattered:
            self.program.memory.scattered(bucket.weights, degree, done[0])
        self.reductions.append(done[0])
        return done[0]

    def _free_scattered(self, last: int) -> None:
        """Free the input of the latest reduce-scatter at the end of step ``last``."""
        size, step = self._scattered
        self.program.memory.temporary(size, step, last, "gradients")
        self._scattered = (0, 0)

    def before_optimizer(self, step: int) -> None:
        super().before_optimizer(step)
        self._free_scattered(self._scattered[1])

    def optimizer_share(self, share: Fraction) -> Fraction:
        return share * self._part_of_weights()

    def _part_of_weights(self) -> Fraction:
        """Return the fraction of the stage's trained weights whose optimizer state this rank keeps."""
        total, on_rank = 0, Fraction(0)
        for weight in self.program.weights:
            if weight.gradient_operator is not None:
                size = self.context.local_bytes[weight.weight]
                total += size
                on_rank += Fraction(size, self.degrees[weight.weight in self.context.token_partition.expert_weights])
        return on_rank / total if total else Fraction(1, self.degrees[False])

    def resident(self, sizes: dict[str, int]) -> None:
        part = self._part_of_weights()
        sizes["optimizer_state"] = -(-sizes["optimizer_state"] * part.numerator // part.denominator)
        if self.context.memory_style.buckets != "always":
            sizes["buckets"] = 0


def shard_degrees(program: StageProgram) -> tuple[int, int]:
    """Return the number of ranks that shard weights, and the number that shard experts' weights."""
    groups = program.context.plan.groups
    return groups.size(groups.shard), groups.size(groups.expert_shard)


#: Parameter bytes at which a unit closes if the operator names do not show layers.
DEFAULT_UNIT_BYTES = 25 * 2**20
_NO_LIMIT = 2**62


@dataclass(slots=True)
class _Unit:
    """Operators (forward ids) whose parameters are gathered together.

    sizes: bytes of weights, and of experts' weights. steps: steps of the gathers while the unit is whole. begin: step
    of the first operator since then. users: number of passes that use the unit.
    """

    number: int
    operators: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    steps: tuple[int, ...] = ()
    begin: int = -1
    is_whole: bool = False
    users: int = 0


@dataclass(slots=True)
class _Walk:
    """Units of one kind of pass in order of use, with the first and last operator of each."""

    units: list[int]
    begins: dict[tuple[int, bool], int]
    ends: dict[tuple[int, bool], list[int]]


class ParameterGathers(ShardedReductions):
    """All-gathers of parameters, and reduce-scatters of a unit's gradients once they are complete."""

    def __init__(self, program: StageProgram) -> None:
        self._units: list[_Unit] = []
        self._unit_of: dict[int, int] = {}  # forward operator -> unit
        self._make_units(program)
        super().__init__(program)
        plan = self.context.plan
        self._ahead = 1 if plan.prefetch is None else plan.prefetch
        self._keeps = not plan.reshard and self.context.workload.is_training
        chunks = dict.fromkeys((action.chunk, action.kind) for action in program.actions.passes)
        self._walks = {key: self._walk(program.context.chunks[key[0]].passes[key[1]].runs) for key in chunks if
                       key[1] in program.context.chunks[key[0]].passes}  # fmt: skip
        self._count = 0
        self._style = self.context.memory_style.fsdp
        self._begun: tuple[_Unit, int] | None = None  # a unit before its first operator, and the next step
        self._buffer: tuple[int, int] = (0, 0)  # bytes and step of the gather with the latest copy out

    def forgets(self) -> bool:
        return super().forgets() and not any(unit.is_whole for unit in self._units)

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        raise OtherStateError

    # -- units -------------------------------------------------------------------------------------------------------

    def _make_units(self, program: StageProgram) -> None:
        context = program.context
        storage_of = {context.workload.tensors[w.weight].storage: w.weight for w in program.weights}
        for number in context.schedule.chunks_of(program.stage, context.pipeline):
            for operators in unit_operators(context, context.chunks[number].forward):
                unit = _Unit(len(self._units), [op.id for op in operators])
                weights = {storage_of.get(context.workload.tensors[t].storage) for op in operators for t in op.inputs}
                for weight in weights - {None}:
                    assert weight is not None
                    unit.sizes[weight in context.token_partition.expert_weights] += context.local_bytes[weight]
                self._unit_of.update(dict.fromkeys(unit.operators, unit.number))
                self._units.append(unit)

    def _walk(self, runs: Sequence[OperatorRun]) -> _Walk:
        """Return the walk over ``runs``. An operator without a forward operator joins the unit before it."""
        begins: dict[int, tuple[int, bool]] = {}
        ends: dict[int, tuple[int, bool]] = {}
        unit = -1
        for run in runs:
            forward = run.op.id if run.op.phase == FORWARD else run.op.forward_id
            unit = self._unit_of.get(forward, unit) if forward is not None else unit
            if unit >= 0:
                begins.setdefault(unit, (run.op.id, run.rerun))
                ends[unit] = run.op.id, run.rerun
        at_end: dict[tuple[int, bool], list[int]] = {}
        for number, key in ends.items():
            at_end.setdefault(key, []).append(number)
        return _Walk(list(begins), {key: number for number, key in begins.items()}, at_end)

    def make_buckets(self) -> tuple[Bucket, ...]:
        """Return buckets with the gradients of each unit, by dtype."""
        program, experts = self.program, self.context.token_partition.expert_weights
        members: dict[tuple[int, bool], list[int]] = {}
        for i, weight in enumerate(program.weights):
            if weight.gradient_operator is not None:
                forward = self.context.operators[weight.gradient_operator].forward_id
                unit = self._unit_of.get(forward, 0) if forward is not None else 0
                members.setdefault((unit, weight.weight in experts), []).append(i)
        buckets: list[Bucket] = []
        for (_, is_expert), numbers in members.items():
            gradients = ready_gradients(program, [program.weights[i] for i in numbers])
            buckets += fill_buckets(gradients, _NO_LIMIT, _NO_LIMIT, is_expert)
        return in_order(program, buckets)

    # -- passes ------------------------------------------------------------------------------------------------------

    def _walk_of(self, place: Place) -> _Walk | None:
        """Return the walk of a pass; None in the optimizer and in weight-gradient passes, which need no parameters."""
        if place.phase == Phase.OPTIMIZER or place.part == WEIGHT_PART:
            return None
        kind = INPUT_PASS if place.part == INPUT_PART else BACKWARD_PASS
        return self._walks.get((place.chunk, FORWARD_PASS if place.phase == Phase.FORWARD else kind))

    def begin_pass(self, place: Place) -> None:
        walk = self._walk_of(place)
        for number in walk.units[: self._ahead + 1] if walk is not None else ():
            self._gather(self._units[number], place)

    def before(self, op: Operator, place: Place) -> None:
        """Wait for the parameters at the first operator of a unit, and start the gather of a later unit."""
        walk = self._walk_of(place)
        number = walk.begins.get((op.id, place.rerun)) if walk is not None else None
        if walk is None or number is None:
            return
        index = walk.units.index(number)
        for later in (number, *walk.units[index + self._ahead : index + self._ahead + 1]):
            self._gather(self._units[later], place)
        unit = self._units[number]
        if place.phase == Phase.FORWARD or not self._keeps:
            unit.users += 1
        for step in unit.steps:
            self.writer.wait(step)
        if self._style.gathers == "copy" and unit.begin < 0 and unit.steps:
            self._begun = unit, len(self.writer.steps)

    def _begin_unit(self, unit: _Unit, first: int, done: int) -> None:
        """Copy the unit's parameters out of their buffer at its first operator, one of the steps ``first`` to ``done``;
        the steps before it launch it, perhaps much earlier."""
        steps = self.writer.steps.from_step(first)[: done + 1 - first]
        is_operator = (isinstance(step, Compute) and step.stream == COMPUTE_STREAM for step in steps)
        unit.begin = first + next(i for i, is_one in enumerate(is_operator) if is_one)
        self._free_buffer(unit.begin)
        self._buffer = self._shared_bytes(unit), unit.steps[0]
        self._begun = None

    def _free_buffer(self, last: int) -> None:
        """Free the buffer of the gather with the latest copy out, at the end of step ``last``."""
        size, step = self._buffer
        stream = GATHER_STREAM if self._style.pools == "own" else 0
        self.program.memory.temporary(size, step, last, "weights", stream)
        self._buffer = (0, 0)

    def end_pass(self, place: Place) -> None:
        super().end_pass(place)
        self._free_buffer(len(self.writer.steps) - 1)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        super().after(op, done, batch, place)
        if self._begun is not None:
            self._begin_unit(*self._begun, done)
        walk = self._walk_of(place)
        for number in walk.ends.get((op.id, place.rerun), ()) if walk is not None else ():
            if self._keeps and place.phase == Phase.FORWARD:
                continue
            unit = self._units[number]
            unit.users -= 1
            if not unit.users:
                if unit.steps:
                    first = unit.steps[0] if self._style.gathers == "in-place" else unit.begin
                    self.program.memory.temporary(self._shared_bytes(unit), first, done, "weights")
                unit.is_whole, unit.steps, unit.begin = False, (), -1

    def _gather(self, unit: _Unit, place: Place) -> None:
        if unit.is_whole:
            return
        unit.is_whole, steps = True, []
        label = Label(phase=place.phase, stage=self.program.stage, microbatch=place.microbatch, step=place.step)
        for is_expert, axis in ((False, self.groups.shard), (True, self.groups.expert_shard)):
            size = unit.sizes[is_expert]
            if size and axis:
                self._count += 1
                at = (self._count,) if self.context.replica_batches else (place.phase, *place.key)
                key = ("unit", self.program.stage, unit.number, int(is_expert), *at)
                steps.append(self.writer.collective("all_gather", axis, key, size, self._begin(), label))
        unit.steps = tuple(steps)

    def _begin(self) -> tuple[int, ...]:
        """Return the steps that a gather waits for: the latest operator, or all that ended the last training step."""
        last, before = self.writer.last_compute(), self.writer.last_of_step()
        return before if set(last) <= set(before) else last

    def _shared_bytes(self, unit: _Unit) -> int:
        """Return the bytes of a unit's sharded parameters."""
        return sum(size for size, degree in zip(unit.sizes, self.degrees, strict=True) if degree > 1)

    def resident(self, sizes: dict[str, int]) -> None:
        super().resident(sizes)
        for weight in self.program.weights:
            size = self.context.local_bytes[weight.weight]
            degree = self.degrees[weight.weight in self.context.token_partition.expert_weights]
            part = -(-size // degree)
            if self._style.weights == "master" and self.context.workload.tensors[weight.weight].dtype in HALVES:
                part = 0 if degree > 1 else part  # the optimizer's float32 shard is the only one
            sizes["weights"] -= size - part


def unit_operators(context: JobContext, forward: Sequence[Operator]) -> list[list[Operator]]:
    """Return the forward operators of a part of the model, grouped by unit."""
    plan = context.plan
    if plan.shard_unit_bytes is None and has_layers(forward):
        starts = layer_starts(forward)
        return [list(forward[a:b]) for a, b in zip(starts, [*starts[1:], len(forward)], strict=True)]
    limit = plan.shard_unit_bytes if plan.shard_unit_bytes is not None else DEFAULT_UNIT_BYTES
    storages = {context.workload.tensors[p.weight].storage: p.weight for p in context.workload.parameters}
    units: list[list[Operator]] = [[]]
    size, counted = 0, set[int]()
    for op in forward:
        if size >= limit:
            units.append([])
            size = 0
        units[-1].append(op)
        for tensor_id in op.inputs:
            weight = storages.get(context.workload.tensors[tensor_id].storage)
            if weight is not None and weight not in counted:
                counted.add(weight)
                size += context.local_bytes[weight]
    return units


def unit_notes(context: JobContext) -> tuple[str, ...]:
    """Return notes for the user about the units."""
    if context.plan.shard_unit_bytes is not None or has_layers(context.workload.operators):
        return ()
    return (
        f"the names of the operators tell no layers: parameters are gathered in units of at least "
        f"{DEFAULT_UNIT_BYTES // 2**20} MiB; shard_unit_bytes sets another size",
    )


class ParameterUpdates(ShardedReductions):
    """Reductions of gradients, a part of the optimizer step, and the exchange of updated parameters."""

    def __init__(self, program: StageProgram) -> None:
        self._style = program.context.zero_style
        super().__init__(program)
        plan = self.context.plan
        self._is_first = self._style.gather_beside == "next-forward" and plan.prefetch is None
        self._overlaps = bool(plan.prefetch) or self._is_first
        self._pending: dict[int, int] = {}  # storage of a weight -> step that makes it whole

    def forgets(self) -> bool:
        return super().forgets() and not self._pending

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        if self._pending:
            raise OtherStateError
        return super().layer_state(codes, place)

    def make_buckets(self) -> tuple[Bucket, ...]:
        """Return buckets of the plan's size, or of the software's size if the plan has DDP's default."""
        plan, software_bytes = self.context.plan, self._style.bucket_bytes
        if self._style.bucket_elements is not None:
            dtypes = [self.context.gradient_dtype(w.weight) for w in self.program.weights]
            are_half = all(dtype in HALVES for dtype in dtypes)
            software_bytes = self._style.bucket_elements * (2 if are_half else 4)
        is_usual = (plan.first_bucket_bytes, plan.bucket_bytes) == DEFAULT_BUCKETS
        return buckets_of(self.program, software_bytes if is_usual else None)

    def reduce(self, number: int, label: Label, place: Place) -> int:
        if self._is_scattered or self._style.gradients == "scatter":
            return super().reduce(number, label, place)
        return BucketReductions.reduce(self, number, label, place)

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        if self._is_first and self.context.workload.is_training:
            self._gather_all(
                Label(phase=Phase.FORWARD, stage=self.program.stage, step=step), self.writer.last_of_step()
            )

    def after_optimizer(self, step: int) -> None:
        if not self._is_first:
            label = Label(phase=Phase.OPTIMIZER, stage=self.program.stage, step=step)
            self._gather_all(label, self.writer.last_compute_and_waits())

    def _gather_all(self, label: Label, after: tuple[int, ...]) -> None:
        """Exchange the updated parameters after the steps ``after``."""
        by_broadcast = self._style.parameters == "broadcast"
        tensors, done = self.context.workload.tensors, -1
        for weights, done in (self._broadcasts if by_broadcast else self._gathers)(label, after):
            if self._overlaps:
                self._pending.update({tensors[weight].storage: done for weight in weights})
            else:
                self.writer.wait(done)
        if done >= 0 and self.context.memory_style.parameter_gather == "copy":
            size = sum(self._bytes(bucket.weights) for bucket in self.buckets)
            self.program.memory.temporary(size, done, done, "workspaces")

    def _bytes(self, weights: Sequence[int]) -> int:
        return sum(self.context.local_bytes[weight] for weight in weights)

    def _gathers(self, label: Label, after: tuple[int, ...]) -> Iterator[tuple[Sequence[int], int]]:
        """Yield the weights of each all-gathered bucket and the step that makes them whole, first layers first."""
        for number in reversed(range(len(self.buckets))):
            bucket = self.buckets[number]
            axis = self.groups.expert_shard if bucket.is_expert else self.groups.shard
            if axis:
                key = ("parameters", self.program.stage, number, label.step)
                size = self._bytes(bucket.weights)
                yield bucket.weights, self.writer.collective("all_gather", axis, key, size, after, label)

    def _broadcasts(self, label: Label, after: tuple[int, ...]) -> Iterator[tuple[Sequence[int], int]]:
        """Yield one broadcast per rank with weights, as one operation of all ranks, so that ranks stay identical."""
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
        """Make the first operator that reads a parameter wait until it is whole."""
        if not self._pending or op.phase != FORWARD:
            return
        tensors = self.context.workload.tensors
        steps = [self._pending.pop(tensors[t].storage, -1) for t in op.inputs]
        for step in dict.fromkeys(steps):
            if step >= 0:
                self.writer.wait(step)


def owned_parts(weights: Sequence[int], sizes: dict[int, int], ranks: int) -> list[list[int]]:
    """Return the whole weights of each rank with any: largest first, each to the first rank with the fewest bytes."""
    heap = [(0, rank) for rank in range(ranks)]
    parts: dict[int, list[int]] = {}
    for weight in sorted(weights, key=lambda weight: -sizes[weight]):
        size, rank = heap[0]
        heapq.heapreplace(heap, (size + sizes[weight], rank))
        parts.setdefault(rank, []).append(weight)
    return [parts[rank] for rank in sorted(parts)]
