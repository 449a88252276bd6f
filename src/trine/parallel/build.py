"""From a workload and a plan to rank programs: one program for each pipeline stage, shared by all its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from trine.compute import Split
from trine.errors import PlanError
from trine.model.program import (
    PHASE_BACKWARD,
    PHASE_FORWARD,
    PHASE_INPUT,
    PHASE_OPTIMIZER,
    Collective,
    Compute,
    HostCopy,
    Job,
    Label,
    Peer,
    RankProgram,
    Recv,
    Send,
)
from trine.model.workload import BACKWARD, FORWARD, Operator, Workload
from trine.parallel.buckets import Bucket, fill_buckets
from trine.parallel.liveness import StageMemory
from trine.parallel.plan import Plan, micro_batches
from trine.parallel.schedules import SCHEDULES
from trine.parallel.stages import Crossing, Stages, cut_into_stages, optimizer_operators
from trine.parallel.tensor import TensorSplit, local_parameter_bytes, split_operators
from trine.parallel.writer import ProgramWriter

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts

PHASE_NUMBER = {FORWARD: PHASE_FORWARD, BACKWARD: PHASE_BACKWARD, "optimizer": PHASE_OPTIMIZER}


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


class JobContext:
    """What all stages of one job share: sizes, splits, stages, and how long each operator takes."""

    def __init__(self, workload: Workload, plan: Plan, compute: ComputeModel, launch: LaunchCosts | None) -> None:
        self.workload = workload
        self.plan = plan
        self.compute = compute
        self.batch = plan.batch if plan.batch is not None else workload.batch
        self.micro_batches = micro_batches(self.batch, plan.micro_batch)
        self.layer_names = tuple(dict.fromkeys(op.layer for op in workload.operators))
        self.layer_index = {name: i for i, name in enumerate(self.layer_names)}
        self.operator_index = {op.id: i for i, op in enumerate(workload.operators)}
        self.operators = {op.id: op for op in workload.operators}
        self.launch_ps = dict(zip(self.operators, launch.cost_ps, strict=True)) if launch is not None else {}
        self.splits = split_operators(workload, plan.tp_style) if plan.tp > 1 else {}
        if plan.tp > 1 and not self.splits:
            raise PlanError("tensor parallelism finds no linear, convolution or embedding with a weight to split")
        self.local_bytes = local_parameter_bytes(workload, self.splits, plan.tp)
        self.evidence_ps: dict[str, int] = {}
        self.stages = self._cut()

    def _cut(self) -> Stages:
        time = (
            {
                op.id: self.duration(op, self.batch, count=False)
                for op in self.workload.operators
                if op.phase in (FORWARD, BACKWARD)
            }
            if self.plan.pp > 1 and not self.plan.cuts
            else {}
        )
        return cut_into_stages(self.workload, self.plan.pp, self.plan.cuts, time)

    def split_of(self, op: Operator) -> TensorSplit | None:
        """The tensor split of a forward operator, or of the forward operator that a backward one belongs to."""
        owner = op.forward_id if op.phase == BACKWARD else op.id
        return self.splits.get(owner) if owner is not None else None

    def duration(self, op: Operator, batch: int, share: Fraction = Fraction(1), *, count: bool = True) -> int:
        """Time of an operator at ``batch`` samples on one rank of the tp group, in picoseconds."""
        split = self.split_of(op)
        if split is None:
            answer = self.compute.duration(op, Split(batch=batch, share=share))
        else:
            mode = "column" if split.mode == "shared" else split.mode
            answer = self.compute.duration(op, Split(batch=batch, ways=self.plan.tp, mode=mode))
        if count:
            self.evidence_ps[answer.evidence] = self.evidence_ps.get(answer.evidence, 0) + answer.ps
        return answer.ps

    def scaled_bytes(self, tensor_id: int, batch: int) -> int:
        """Bytes of a tensor when the step runs at ``batch`` samples, rounded up."""
        tensor = self.workload.tensors[tensor_id]
        if not tensor.batch_dims:
            return tensor.size_bytes
        return -(-tensor.size_bytes * batch // self.workload.batch)

    def label(self, op: Operator, microbatch: int, step: int) -> Label:
        stage = self.stages.stage_of.get(op.id, -1)
        phase = PHASE_NUMBER[op.phase]
        return Label(phase, self.operator_index[op.id], self.layer_index[op.layer], stage, microbatch, step)


class StageBuilder:
    """Writes the program of one pipeline stage."""

    def __init__(self, context: JobContext, stage: int, has_host: bool) -> None:
        self.context = context
        self.stage = stage
        self.has_host = has_host and context.plan.input_copy != "none"
        operators = context.workload.operators
        of_stage = context.stages.stage_of
        self.forward = [op for op in operators if op.phase == FORWARD and of_stage[op.id] == stage]
        self.backward = [op for op in operators if op.phase == BACKWARD and of_stage[op.id] == stage]
        self.optimizer = optimizer_operators(context.workload)
        self.parameters = self._own_parameters()
        self.buckets = self._fill_buckets()
        self.writer = ProgramWriter()
        self.memory = StageMemory(context, self.forward, self.backward, self.writer)
        self.reductions: list[int] = []
        self.copies: dict[int, int] = {}
        self.next_copies: dict[int, int] = {}

    # -- what this stage owns ------------------------------------------------------------------------------------

    def _own_parameters(self) -> list[int]:
        """Weights that the forward operators of this stage read, in registration order."""
        tensors = self.context.workload.tensors
        used = {tensors[t].storage for op in self.forward for t in op.inputs}
        return [p.weight for p in self.context.workload.parameters if tensors[p.weight].storage in used]

    def _fill_buckets(self) -> tuple[Bucket, ...]:
        plan, workload = self.context.plan, self.context.workload
        if plan.dp == 1 or plan.data != "ddp":
            return ()
        order = {op.id: i for i, op in enumerate(self.backward)}
        owned = set(self.parameters)
        ready = sorted(
            (order[p.gradient_operator], i, p.weight, p.gradient_operator)
            for i, p in enumerate(workload.parameters)
            if p.weight in owned and p.gradient_operator is not None and p.gradient_operator in order
        )
        gradients = [(weight, self.context.local_bytes[weight], op) for _, _, weight, op in ready]
        return fill_buckets(gradients, plan.first_bucket_bytes, plan.bucket_bytes)

    # -- one step ------------------------------------------------------------------------------------------------

    def build(self) -> RankProgram:
        context, plan = self.context, self.context.plan
        passes = SCHEDULES[plan.schedule](
            self.stage, plan.pp, len(context.micro_batches), backward=context.workload.is_training
        )
        for step in range(plan.num_steps):
            self._begin_step(step)
            for phase, microbatch in passes:
                if phase == PHASE_FORWARD:
                    self._forward_pass(microbatch, step)
                else:
                    self._backward_pass(microbatch, step)
            self._optimizer_step(step)
        resident = self.memory.resident(self.parameters, self.optimizer, bool(self.buckets))
        return self.writer.finish(f"stage {self.stage}", resident)

    def _begin_step(self, step: int) -> None:
        """Copy inputs and, as DDP does, broadcast buffers from the first replica before the forward pass."""
        writer, plan = self.writer, self.context.plan
        if self.has_host:
            copied = self._copy_inputs(step)
            self.copies, self.next_copies = (copied, {}) if plan.input_copy == "step" else (self.next_copies, copied)
        size = sum(self._buffer_sizes())
        if size and plan.dp > 1 and plan.data == "ddp" and self.context.workload.is_training:
            label = Label(phase=PHASE_FORWARD, stage=self.stage, step=step)
            key = ("buffers", self.stage, step)
            writer.wait(writer.add(Collective("broadcast", "dp", key, size, 0, writer.last_compute(), label)))

    def _copy_inputs(self, step: int) -> dict[int, int]:
        """Copy the inputs of each micro-batch, one after the other, from the end of the step before."""
        copies: dict[int, int] = {}
        after = self.writer.last_of_step()
        for microbatch, batch in enumerate(self.context.micro_batches):
            label = Label(phase=PHASE_INPUT, stage=self.stage, microbatch=microbatch, step=step)
            size = sum(self.context.scaled_bytes(t, batch) for t in self._data_inputs())
            if size:
                copies[microbatch] = self.writer.add(HostCopy(size, after, label))
                after = (copies[microbatch],)
        return copies

    def _data_inputs(self) -> list[int]:
        tensors = self.context.workload.tensors
        found = {tensors[t].storage: t for op in self.forward for t in op.inputs if tensors[t].role == "input"}
        return list(found.values())

    def _buffer_sizes(self) -> list[int]:
        tensors = self.context.workload.tensors
        found = {
            tensors[t].storage: tensors[t].size_bytes
            for op in self.forward
            for t in op.inputs
            if tensors[t].role == "buffer"
        }
        return list(found.values())

    def _forward_pass(self, microbatch: int, step: int) -> None:
        if microbatch in self.copies:
            self.writer.wait(self.copies[microbatch])
        crossings = self.context.stages.crossings
        for op in self.forward:
            for crossing in crossings:
                if crossing.target == self.stage and crossing.consumer == op.id:
                    self._receive(crossing, PHASE_FORWARD, microbatch, step)
            self._run(op, microbatch, step)
            for crossing in crossings:
                if crossing.source == self.stage and crossing.producer == op.id:
                    self._send(crossing, PHASE_FORWARD, microbatch, step)

    def _backward_pass(self, microbatch: int, step: int) -> None:
        crossings = self.context.stages.crossings
        for crossing in crossings:
            if crossing.source == self.stage and crossing.has_gradient:
                self._receive(crossing, PHASE_BACKWARD, microbatch, step)
        last = microbatch == len(self.context.micro_batches) - 1
        for op in self.backward:
            self._run(op, microbatch, step)
            if last:
                self._reduce_ready_buckets(op, step)
        for crossing in crossings:
            if crossing.target == self.stage and crossing.has_gradient:
                self._send(crossing, PHASE_BACKWARD, microbatch, step)
        self.memory.end_backward(microbatch)

    def _reduce_ready_buckets(self, op: Operator, step: int) -> None:
        for number, bucket in enumerate(self.buckets):
            if bucket.ready_after == op.id:
                label = self.context.label(op, len(self.context.micro_batches) - 1, step)
                key = ("bucket", self.stage, number, step)
                reduce = Collective("all_reduce", "dp", key, bucket.size_bytes, -1, self.writer.last_compute(), label)
                self.reductions.append(self.writer.add(reduce))

    def _optimizer_step(self, step: int) -> None:
        """One optimizer step after all gradients have arrived; a stage does the share of it that its weights are."""
        for done in self.reductions:
            self.writer.wait(done)
        self.reductions.clear()
        total = sum(p.size_bytes for p in self.context.workload.parameters)
        own = sum(self.context.local_bytes[w] for w in self.parameters)
        if own and total:
            for op in self.optimizer:
                self._run(op, -1, step, share=Fraction(own, total))
        self.memory.end_step(self.writer.last_compute())
        self.writer.end_step()

    # -- one operator --------------------------------------------------------------------------------------------

    def _run(self, op: Operator, microbatch: int, step: int, share: Fraction = Fraction(1)) -> None:
        context, writer = self.context, self.writer
        label = context.label(op, microbatch, step)
        if op.phase not in (FORWARD, BACKWARD):
            label = label._replace(stage=self.stage)
        batch = context.micro_batches[microbatch] if microbatch >= 0 else context.batch
        launch = context.launch_ps.get(op.id, 0)
        if launch:
            writer.wait(writer.add(Compute("cpu", launch, (), label)))
        done = writer.compute(context.duration(op, batch, share), label)
        self.memory.ran(op, done, microbatch, batch, share)
        if context.plan.tp > 1:
            self._tensor_collective(op, done, microbatch, batch, label)

    def _tensor_collective(self, op: Operator, done: int, microbatch: int, batch: int, label: Label) -> None:
        context = self.context
        split = context.split_of(op)
        if split is None or op.phase not in (FORWARD, BACKWARD):
            return
        if op.phase == FORWARD and split.forward:
            kind, tensors = split.forward, op.outputs[:1]
        elif op.phase == BACKWARD and split.backward and self._is_last_backward_of(op):
            kind, tensors = "all_reduce", self._differentiable_input(op)
        else:
            return
        size = sum(context.scaled_bytes(t, batch) for t in tensors)
        if size:
            key = ("tp", op.id, microbatch, label.step)
            self.writer.wait(self.writer.add(Collective(kind, "tp", key, size, -1, (done,), label)))

    def _is_last_backward_of(self, op: Operator) -> bool:
        return [b.id for b in self.backward if b.forward_id == op.forward_id][-1] == op.id

    def _differentiable_input(self, op: Operator) -> tuple[int, ...]:
        """The activation that the forward operator read: its gradient has the same size."""
        forward = self.context.operators[op.forward_id] if op.forward_id is not None else op
        tensors = self.context.workload.tensors
        return tuple(t for t in forward.inputs if tensors[t].role == "activation" and tensors[t].size_bytes)[:1]

    # -- between stages ------------------------------------------------------------------------------------------

    def _send(self, crossing: Crossing, phase: int, microbatch: int, step: int) -> None:
        target = crossing.target if phase == PHASE_FORWARD else crossing.source
        size = self.context.scaled_bytes(crossing.tensor, self.context.micro_batches[microbatch])
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


def build_job(
    workload: Workload, plan: Plan, compute: ComputeModel, *, launch: LaunchCosts | None = None, has_host: bool = False
) -> tuple[Job, BuildReport]:
    """Build the rank programs of ``workload`` under ``plan``.

    Raises PlanError when the layout, the batch or the cuts cannot run.
    """
    from trine.parallel.data_parallel import build_data_parallel

    context = JobContext(workload, plan, compute, launch)
    if plan.data == "dp" and plan.dp > 1:
        programs: tuple[RankProgram, ...] = build_data_parallel(context, has_host)
        program_of: tuple[int, ...] = (0, *([1] * (plan.dp - 1)))
        buckets: tuple[tuple[int, ...], ...] = ()
    else:
        builders = [StageBuilder(context, stage, has_host) for stage in range(plan.pp)]
        programs = tuple(builder.build() for builder in builders)
        ranks_per_stage = plan.dp * plan.tp
        program_of = tuple(rank // ranks_per_stage for rank in range(plan.num_ranks))
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
    plan, found = context.plan, []
    if plan.pp > 1 and len(context.micro_batches) == 1:
        found.append(
            f"one micro-batch in a pipeline of {plan.pp} stages keeps each GPU idle most of the time: set --micro-batch"
        )
    if len(set(context.micro_batches)) > 1:
        found.append(
            f"the batch of {context.batch} is cut into uneven micro-batches of {max(context.micro_batches)} and "
            f"{min(context.micro_batches)} samples"
        )
    if plan.dp > 1 and not context.workload.is_training:
        found.append("the trace has no backward pass: data-parallel replicas run inference and exchange nothing")
    return tuple(found)
