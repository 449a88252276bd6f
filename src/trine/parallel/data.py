"""DistributedDataParallel: gradients are reduced bucket by bucket, overlapped with the backward pass."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from trine.collectives.one_operation import ONE_OPERATION
from trine.graph.program import Label, Phase
from trine.graph.workload import Operator
from trine.parallel.chunks import Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.layer_codes import LayerCodes
from trine.parallel.stages import OwnedWeight

#: Prefix of the key of a buffer broadcast.
BUFFERS = "buffers"


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient of ``size_bytes`` that is ready after backward operator ``ready_after``."""

    weight: int
    size_bytes: int
    dtype: str
    ready_after: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Weights whose gradients are reduced together; it is ready after operator ``ready_after``.

    ``is_expert``: the weights belong to an expert, which fewer ranks share.
    """

    weights: tuple[int, ...]
    size_bytes: int
    ready_after: int
    is_expert: bool = False


def fill_buckets(
    gradients: Sequence[Gradient], first_cap: int, cap: int, is_expert: bool = False
) -> tuple[Bucket, ...]:
    """Put gradients, sorted by when they become ready, into buckets of one dtype each.

    A bucket closes when it reaches its cap in bytes: ``first_cap`` for the first of a dtype, ``cap`` for the others. A
    gradient is never split. This is the steady state of PyTorch's DDP, which rebuilds its buckets in arrival order
    after the first step (Li et al., PyTorch Distributed, VLDB 2020, section 4.2). The result is sorted by when buckets
    become ready.
    """
    order = {gradient.weight: i for i, gradient in enumerate(gradients)}
    closed: list[tuple[int, Bucket]] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        members: list[Gradient] = []
        size, current = 0, first_cap
        for gradient in gradients:
            if gradient.dtype != dtype:
                continue
            members.append(gradient)
            size += gradient.size_bytes
            if size >= current:
                closed.append(_close(members, order, is_expert))
                members, size, current = [], 0, cap
        if members:
            closed.append(_close(members, order, is_expert))
    in_order = []
    for _, bucket in sorted(closed, key=lambda item: item[0]):
        in_order.append(bucket)
    return tuple(in_order)


def _close(members: Sequence[Gradient], order: dict[int, int], is_expert: bool) -> tuple[int, Bucket]:
    size = sum(member.size_bytes for member in members)
    weights = tuple(member.weight for member in members)
    return order[members[-1].weight], Bucket(weights, size, members[-1].ready_after, is_expert)


class BucketReductions(Extension):
    """All-reduces of full buckets over the replicas, and the broadcast of buffers before the forward pass."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self.groups = self.context.plan.groups
        self.buckets = self.make_buckets()
        self.reductions = self.kept_steps
        self.reduced: list[tuple[Bucket, int]] = []  # since the consumer (offload) last cleared it
        self._ready_buckets: dict[int, list[int]] = {}
        for number, bucket in enumerate(self.buckets):
            self._ready_buckets.setdefault(bucket.ready_after, []).append(number)
        self._late: list[tuple[int, Label, Place]] = []

    def forgets(self) -> bool:
        return not self._late

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        return ()  # only operators that complete a bucket change it, and their layers are no copies

    def make_buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets to reduce."""
        return buckets_of(self.program)

    def begin_step(self, step: int) -> None:
        """Broadcast buffers from the first replica before the forward pass, as DDP does."""
        program, writer, plan = self.program, self.writer, self.context.plan
        size = self.context.buffer_bytes(program.forward) if self.context.workload.is_training else 0
        if size and plan.sharding == "none" and plan.buffers != "none":
            label = Label(phase=Phase.FORWARD, stage=program.stage, step=step)
            after = (*writer.last_compute(), *list(program.copies.values())[:1])
            key = (BUFFERS, program.stage, step)
            algorithm = ONE_OPERATION if plan.buffers == "auto" else None
            writer.wait(
                writer.collective("broadcast", self.groups.data, key, size, after, label, root=0, algorithm=algorithm)
            )

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase != Phase.BACKWARD or not place.is_last:
            return
        for number in self._ready_buckets.get(op.id, ()):
            label = self.label(op, place)
            if self.context.plan.dp_overlap:
                self._reduce(number, label, place)
            else:
                self._late.append((number, label, place))

    def end_pass(self, place: Place) -> None:
        """Reduce a micro-batch's late buckets after its backward pass, if each micro-batch is reduced by itself."""
        if self.context.plan.reduces_each:
            self._reduce_late([late for late in self._late if late[2].microbatch == place.microbatch])

    def complete(self) -> tuple[int, ...]:
        """Return the steps that a bucket's reduction waits for: the latest operator; after all passes also the sends.

        Megatron-LM calls finalize_model_grads after the last send of its pipeline has ended.
        """
        plan = self.context.plan
        late = () if plan.dp_overlap or plan.reduces_each else self.writer.sent
        return (*self.writer.last_compute(), *late)

    def reduce(self, number: int, label: Label, place: Place) -> int:
        """Reduce a bucket after the latest operator, and return the last step of the reduction."""
        bucket = self.buckets[number]
        axis = self.groups.expert if bucket.is_expert else self.groups.data
        key, after = ("bucket", self.program.stage, number, *self.context.replica_key(place)), self.complete()
        self.reductions.append(self.writer.collective("all_reduce", axis, key, bucket.size_bytes, after, label))
        return self.reductions[-1]

    def _reduce(self, number: int, label: Label, place: Place) -> None:
        self.reduced.append((self.buckets[number], self.reduce(number, label, place)))

    def _reduce_late(self, late: Iterable[tuple[int, Label, Place]]) -> None:
        for entry in tuple(late):
            self._late.remove(entry)
            self._reduce(*entry)

    def before_optimizer(self, step: int) -> None:
        self._reduce_late(self._late)
        for done in self.reductions:
            self.writer.wait(done)
        self.reductions.clear()


def buckets_of(program: StageProgram, cap: int | None = None) -> tuple[Bucket, ...]:
    """Return the buckets of a stage's gradients, in the order they fill up. cap: bytes, instead of the plan's."""
    plan, groups, buckets = program.context.plan, program.context.plan.groups, list[Bucket]()
    first_cap, cap = (plan.first_bucket_bytes, plan.bucket_bytes) if cap is None else (cap, cap)
    gradients = ready_gradients(program, program.weights)
    experts = program.context.token_partition.expert_weights
    for is_expert in (False, True):
        # Fewer ranks, or no ranks, reduce the experts' gradients, so these have separate buckets.
        members = [gradient for gradient in gradients if (gradient.weight in experts) == is_expert]
        if members and (groups.expert if is_expert else groups.data):
            buckets += fill_buckets(members, first_cap, cap, is_expert)
    return in_order(program, buckets)


def in_order(program: StageProgram, buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    """Return the buckets sorted by when they become ready."""
    order = {op.id: i for i, op in enumerate(program.backward)}
    return tuple(sorted(buckets, key=lambda bucket: order[bucket.ready_after]))


def ready_gradients(program: StageProgram, weights: Iterable[OwnedWeight]) -> list[Gradient]:
    """Return the gradients of ``weights``, sorted by when they become ready."""
    context = program.context
    order = {op.id: i for i, op in enumerate(program.backward)}
    # Gradients of one operator become ready in the order the trace created them (by id), as autograd accumulates a
    # linear's bias before its weight; without ids, in registration order.
    rows = sorted(
        (order[w.gradient_operator], context.gradient_of.get(w.weight, 0), i, w)
        for i, w in enumerate(weights)
        if w.gradient_operator is not None
    )
    return [
        Gradient(
            weight=parameter.weight,
            size_bytes=context.gradient_bytes(parameter.weight),
            dtype=context.gradient_dtype(parameter.weight),
            ready_after=program.backward[position].id,
        )
        for position, _, _, parameter in rows
    ]
