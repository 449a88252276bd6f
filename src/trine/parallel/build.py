"""From a workload and a plan to rank programs: one program for each pipeline stage, shared by all its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from trine.errors import PlanError
from trine.model.program import (
    PHASE_BACKWARD,
    PHASE_FORWARD,
    PHASE_INPUT,
    HostCopy,
    Job,
    Label,
    Peer,
    RankProgram,
    Recv,
    Send,
)
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.buckets import Bucket, Gradient, fill_buckets
from trine.parallel.context import JobContext
from trine.parallel.data_parallel import build_data_parallel
from trine.parallel.liveness import StageMemory
from trine.parallel.plan import Plan
from trine.parallel.schedules import SCHEDULES
from trine.parallel.stages import Crossing
from trine.parallel.writer import ProgramWriter

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts


#: Operators that one rank may run; a program of this size takes some ten seconds to write.
MAX_STEPS = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """What the build decided: the resolved plan in numbers, time by evidence, and what a user should know."""

    batch: int
    micro_batches: tuple[int, ...]
    cuts: tuple[str, ...]
    buckets: tuple[tuple[int, ...], ...]
    num_split_operators: int
    evidence_ps: Mapping[str, int]
    warnings: tuple[str, ...]


class StageBuilder:
    """Writes the program of one pipeline stage."""

    def __init__(self, context: JobContext, stage: int, has_host: bool) -> None:
        self.context = context
        self.stage = stage
        self.has_host = has_host and context.plan.input_copy != "none"
        self.forward = self._operators(FORWARD)
        self.backward = self._operators(BACKWARD)
        self.optimizer = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self.last_backward = {op.forward_id: op.id for op in self.backward}
        self.weights = context.weights[stage]
        self.buckets = self._fill_buckets()
        self.writer = ProgramWriter(context)
        self.memory = StageMemory(context, stage, self.forward, self.backward, self.writer)
        self.reductions: list[int] = []
        self.last_pass = (PHASE_BACKWARD, -1)
        self.copies: dict[int, int] = {}
        self.next_copies: dict[int, int] = {}

    def _operators(self, phase: str) -> list[Operator]:
        stage_of = self.context.stages.stage_of
        return [op for op in self.context.workload.operators if op.phase == phase and stage_of[op.id] == self.stage]

    def _fill_buckets(self) -> tuple[Bucket, ...]:
        plan, context = self.context.plan, self.context
        if plan.dp == 1:
            return ()
        order = {op.id: i for i, op in enumerate(self.backward)}
        # Gradients of one operator are ready in the order in which the trace made them (their ids grow), as autograd
        # accumulates a linear's bias before its weight; without ids, in the order of registration.
        made = {p.weight: p.gradient for p in context.workload.parameters if p.gradient is not None}
        ready = sorted(
            (order[w.gradient_operator], made.get(w.weight, 0), i)
            for i, w in enumerate(self.weights)
            if w.gradient_operator is not None
        )
        gradients = [
            Gradient(
                weight=self.weights[i].weight,
                size_bytes=context.local_bytes[self.weights[i].weight],
                dtype=context.workload.tensors[self.weights[i].weight].dtype,
                ready_after=self.backward[position].id,
            )
            for position, _, i in ready
        ]
        return fill_buckets(gradients, plan.first_bucket_bytes, plan.bucket_bytes)

    # -- one step ------------------------------------------------------------------------------------------------

    def build(self) -> RankProgram:
        """Write all steps."""
        context, plan = self.context, self.context.plan
        schedule = SCHEDULES.get(plan.schedule)
        passes = schedule(self.stage, plan.pp, len(context.micro_batches), backward=context.workload.is_training)
        self.last_pass = passes[-1]
        for step in range(plan.num_steps):
            self._begin_step(step)
            for phase, microbatch in passes:
                if phase == PHASE_FORWARD:
                    self._forward_pass(microbatch, step)
                else:
                    self._backward_pass(microbatch, step)
            self._optimizer_step(step)
        resident = self.memory.resident(self.weights, self.optimizer, bool(self.buckets))
        return self.writer.finish(f"stage {self.stage}", resident)

    def _begin_step(self, step: int) -> None:
        """Copy inputs and, as DDP does, broadcast buffers from the first replica before the forward pass."""
        writer, plan = self.writer, self.context.plan
        if self.has_host:
            copied = self._copy_inputs(step)
            self.copies, self.next_copies = (copied, {}) if plan.input_copy == "step" else (self.next_copies, copied)
        size = self.context.buffer_bytes(self.forward)
        if size and plan.dp > 1 and self.context.workload.is_training:
            label = Label(phase=PHASE_FORWARD, stage=self.stage, step=step)
            after = (*writer.last_compute(), *list(self.copies.values())[:1])
            key = ("buffers", self.stage, step)
            writer.wait(writer.collective("broadcast", "dp", key, size, after, label, root=0))

    def _copy_inputs(self, step: int) -> dict[int, int]:
        """Copy the inputs of each micro-batch, one after the other, from the end of the step before."""
        copies: dict[int, int] = {}
        after = self.writer.last_of_step()
        for microbatch, batch in enumerate(self.context.micro_batches):
            label = Label(phase=PHASE_INPUT, stage=self.stage, microbatch=microbatch, step=step)
            size = self.context.input_bytes(self.forward, batch)
            if size:
                copies[microbatch] = self.writer.add(HostCopy(size, after, label))
                after = (copies[microbatch],)
        return copies

    def _forward_pass(self, microbatch: int, step: int) -> None:
        if microbatch in self.copies:
            self.writer.wait(self.copies[microbatch])
        arriving = _by(lambda c: c.consumer, (c for c in self._crossings() if c.target == self.stage))
        leaving = _by(lambda c: c.producer, (c for c in self._crossings() if c.source == self.stage))
        for op in self.forward:
            for crossing in arriving.get(op.id, ()):
                self._receive(crossing, PHASE_FORWARD, microbatch, step)
            self._run(op, microbatch, step)
            for crossing in leaving.get(op.id, ()):
                self._send(crossing, PHASE_FORWARD, microbatch, step)

    def _backward_pass(self, microbatch: int, step: int) -> None:
        """Run backward; a gradient arrives before its producer needs it and leaves after its last reader made it."""
        if not self.backward:
            return
        first, last = self.backward[0].id, self.backward[-1].id
        here = {op.id for op in self.backward}
        gradients = [c for c in self._crossings() if c.has_gradient]
        arriving = _by(
            lambda c: c.gradient_before if c.gradient_before in here else first,
            (c for c in gradients if c.source == self.stage),
        )
        leaving = _by(
            lambda c: c.gradient_after if c.gradient_after in here else last,
            (c for c in gradients if c.target == self.stage),
        )
        reduces = (PHASE_BACKWARD, microbatch) == self.last_pass  # gradients are complete then
        for op in self.backward:
            for crossing in arriving.get(op.id, ()):
                self._receive(crossing, PHASE_BACKWARD, microbatch, step)
            self._run(op, microbatch, step)
            if reduces:
                self._reduce_ready_buckets(op, microbatch, step)
            for crossing in leaving.get(op.id, ()):
                self._send(crossing, PHASE_BACKWARD, microbatch, step)
        self.memory.end_backward(microbatch)

    def _reduce_ready_buckets(self, op: Operator, microbatch: int, step: int) -> None:
        for number, bucket in enumerate(self.buckets):
            if bucket.ready_after == op.id:
                label = self.context.label(op, self.stage, microbatch, step)
                key, after = ("bucket", self.stage, number, step), self.writer.last_compute()
                self.reductions.append(self.writer.collective("all_reduce", "dp", key, bucket.size_bytes, after, label))

    def _optimizer_step(self, step: int) -> None:
        """One optimizer step after all gradients have arrived; a stage does the share of it that its weights are."""
        for done in self.reductions:
            self.writer.wait(done)
        self.reductions.clear()
        self._add_up_tied_gradients(step)
        share = self.context.optimizer_share(self.stage)
        if share:
            for op in self.optimizer:
                self._run(op, -1, step, share)
        self.memory.end_step(self.writer.last_compute())
        self.writer.end_step()

    def _add_up_tied_gradients(self, step: int) -> None:
        """Two stages that keep the same weight exchange their gradients (as Megatron-LM does for embeddings)."""
        for owned in self.weights:
            if owned.tied_to < 0 or owned.gradient_operator is None:
                continue
            peer = Peer("pp", owned.tied_to)
            label = Label(phase=PHASE_BACKWARD, stage=self.stage, step=step)
            tag = ("tied", owned.weight, step)
            size = self.context.local_bytes[owned.weight]
            self.writer.add(Send(peer, size, tag, self.writer.last_compute_and_waits(), label))
            self.writer.wait(self.writer.add(Recv(peer, tag, (), label)))

    # -- one operator --------------------------------------------------------------------------------------------

    def _run(self, op: Operator, microbatch: int, step: int, share: Fraction = Fraction(1)) -> None:
        context, writer = self.context, self.writer
        label = context.label(op, self.stage, microbatch, step)
        batch = context.micro_batches[microbatch] if microbatch >= 0 else context.batch
        done = writer.operator(op, context.duration(op, batch, share), label)
        self.memory.ran(op, done, microbatch, batch, share)
        if context.plan.tp > 1 and op.phase != OPTIMIZER:
            self._tensor_collective(op, done, batch, label)

    def _tensor_collective(self, op: Operator, done: int, batch: int, label: Label) -> None:
        """The collective that follows a split operator; the next operator waits for it."""
        split = self.context.split_of(op)
        if split is None:
            return
        if op.phase == FORWARD and split.forward:
            kind, tensors = split.forward, op.outputs[:1]
        elif op.phase == BACKWARD and split.backward and self.last_backward[op.forward_id] == op.id:
            kind, tensors = "all_reduce", self._differentiable_input(op)
        else:
            return
        size = sum(self.context.scaled_bytes(t, batch) for t in tensors)
        if size:
            key = ("tp", op.id, label.microbatch, label.step)
            self.writer.wait(self.writer.collective(kind, "tp", key, size, (done,), label))

    def _differentiable_input(self, op: Operator) -> tuple[int, ...]:
        """The activation that the forward operator read: its gradient has the same size."""
        forward = self.context.operators[op.forward_id] if op.forward_id is not None else op
        tensors = self.context.workload.tensors
        return tuple(t for t in forward.inputs if tensors[t].role == "activation" and tensors[t].size_bytes)[:1]

    # -- between stages ------------------------------------------------------------------------------------------

    def _crossings(self) -> tuple[Crossing, ...]:
        return self.context.stages.crossings

    def _send(self, crossing: Crossing, phase: int, microbatch: int, step: int) -> None:
        target = crossing.target if phase == PHASE_FORWARD else crossing.source
        size = self.context.rank_bytes(crossing.tensor, self.context.micro_batches[microbatch])
        label = Label(phase=phase, stage=self.stage, microbatch=microbatch, step=step)
        tag = ("pp", phase, crossing.source, crossing.target, crossing.tensor, microbatch, step)
        self.writer.add(Send(Peer("pp", target), size, tag, self.writer.last_compute_and_waits(), label))

    def _receive(self, crossing: Crossing, phase: int, microbatch: int, step: int) -> None:
        source = crossing.source if phase == PHASE_FORWARD else crossing.target
        label = Label(phase=phase, stage=self.stage, microbatch=microbatch, step=step)
        tag = ("pp", phase, crossing.source, crossing.target, crossing.tensor, microbatch, step)
        received = self.writer.add(Recv(Peer("pp", source), tag, (), label))
        self.writer.wait(received)
        if phase == PHASE_FORWARD:
            self.memory.received(crossing.tensor, received, microbatch)
        else:
            self.memory.received_gradient(crossing, received, microbatch)


def _by(key: Callable[[Crossing], int], crossings: Iterable[Crossing]) -> dict[int, list[Crossing]]:
    """Group crossings by an operator id."""
    groups: dict[int, list[Crossing]] = {}
    for crossing in crossings:
        groups.setdefault(key(crossing), []).append(crossing)
    return groups


def build_job(
    workload: Workload, plan: Plan, compute: ComputeModel, *, launch: LaunchCosts | None = None, has_host: bool = False
) -> tuple[Job, BuildReport]:
    """Build the rank programs of ``workload`` under ``plan``.

    Raises PlanError when the layout, the batch or the cuts cannot run.
    """
    context = JobContext(workload, plan, compute, launch)
    steps = len(workload.operators) * len(context.micro_batches) * plan.num_steps
    if steps > MAX_STEPS:
        raise PlanError(
            f"{plan.num_steps} steps of {len(context.micro_batches)} micro-batches of {len(workload.operators)} "
            f"operators are more than {MAX_STEPS:,} on one rank: take fewer steps or larger micro-batches"
        )
    if plan.data == "dp" and plan.dp > 1:
        programs: tuple[RankProgram, ...] = build_data_parallel(context, has_host)
        program_of: tuple[int, ...] = (0, *([1] * (plan.dp - 1)))
        buckets: tuple[tuple[int, ...], ...] = ()
    else:
        builders = [StageBuilder(context, stage, has_host) for stage in range(plan.pp)]
        programs = tuple(builder.build() for builder in builders)
        program_of = tuple(rank // (plan.dp * plan.tp) for rank in range(plan.num_ranks))
        buckets = tuple(tuple(bucket.size_bytes for bucket in builder.buckets) for builder in builders)
    job = Job(
        axes=plan.axes,
        programs=programs,
        program_of=program_of,
        operator_names=tuple(op.name for op in workload.operators),
        layer_names=context.layer_names,
    )
    report = BuildReport(
        batch=context.batch,
        micro_batches=context.micro_batches,
        cuts=context.stages.cuts,
        buckets=buckets,
        num_split_operators=len(context.splits),
        evidence_ps=context.evidence_ps,
        warnings=_warnings(context),
    )
    return job, report


def _warnings(context: JobContext) -> tuple[str, ...]:
    plan, sizes, found = context.plan, context.micro_batches, []
    if plan.pp > 1 and len(sizes) == 1:
        found.append(
            f"one micro-batch in a pipeline of {plan.pp} stages keeps each GPU idle most of the time: set --micro-batch"
        )
    if len(set(sizes)) > 1:
        found.append(
            f"the batch of {context.batch} is cut into uneven micro-batches of {max(sizes)} and {min(sizes)} samples"
        )
    if plan.dp > 1 and not context.workload.is_training:
        found.append("the trace has no backward pass: data-parallel replicas run inference and exchange nothing")
    for crossing in context.stages.crossings:
        if crossing.guessed:
            layer = context.operators[crossing.consumer].layer
            found.append(f"the trace does not link the stages at {layer}: the output of the operator before it is sent")
    if context.launch_ps and plan.num_steps == 1:
        found.append("one step begins with an idle launching thread: --steps 3 shows the steady state")
    if context.workload.is_training and not context.total_trained_bytes and plan.num_ranks > 1:
        found.append("the trace names no weights with gradients: the optimizer's time is divided evenly over the ranks")
    return tuple(found)
