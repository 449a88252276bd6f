"""Conversion of a workload and a plan to rank programs: one program per pipeline stage, shared by all its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from trine.collectives.nccl.costs import LIBRARY_ALGORITHMS
from trine.collectives.one_operation import ONE_OPERATION
from trine.common.units import format_bytes
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.program import Collective, Job, RankProgram, Send, Step
from trine.graph.workload import FORWARD, Workload
from trine.parallel.inputs import InputCopies
from trine.parallel.job import JobContext
from trine.parallel.layer_counts import ACCOUNTED
from trine.parallel.layer_places import has_layers, layer_starts
from trine.parallel.plan import PARAMETERS_SHARDED, Plan
from trine.parallel.program_parts import extend_steps, steps_as_written
from trine.parallel.rank_kinds import MixedGpus, replica_of
from trine.parallel.recompute import recompute_notes
from trine.parallel.stage import StageBuilder
from trine.parallel.stages import Crossing
from trine.parallel.writer import LaunchQueue

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts
    from trine.results.repeats import Repeats
    from trine.software.profile import Software


#: Maximum operators per rank; a program of this size takes about ten seconds to write.
MAX_STEPS = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """The decisions of the build: the resolved plan in numbers, time by evidence, and warnings for the user.

    batch, micro_batches: of one replica, the largest; replica_batches: of each if they differ.
    cut_rule: the placement of the pipeline's cuts, in words; empty without a pipeline.
    one_operation_bytes: bytes per step that all stages broadcast with ONE_OPERATION: ``buffers``, or ``parameters``
    updated by ZeRO. built_ps: micro-batch -> evidence -> operator time in all programs; -1: outside micro-batches.
    queue_waits_from: the first micro-batch whose launches wait for a full queue in all programs; -1: none does.
    """

    batch: int
    replica_batches: tuple[int, ...]
    micro_batches: tuple[int, ...]
    cuts: tuple[str, ...]
    buckets: tuple[tuple[int, ...], ...]
    num_split_operators: int
    tp_style: str
    tp_notes: tuple[str, ...]
    built_ps: Mapping[int, Mapping[str, int]]
    warnings: tuple[str, ...]
    cut_rule: str = ""
    one_operation_bytes: Mapping[str, int] = field(default_factory=dict)
    queue_waits_from: int = -1

    def evidence_ps(self, repeats: Repeats | None) -> dict[str, int]:
        """Return the operator time by evidence; repeats: of the run, if it stands for a longer one."""
        total: dict[str, int] = {}
        for microbatch, counted in self.built_ps.items():
            times = 1 if repeats is None or microbatch not in repeats.repeated else 1 + repeats.count
            for evidence, ps in counted.items():
                total[evidence] = total.get(evidence, 0) + ps * times
        return total

    def samples(self, replicas: int) -> int:
        """Return the samples of all ``replicas`` in one step."""
        return sum(self.replica_batches) or self.batch * replicas


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WrittenJob:
    """The programs of a job, without copies of inputs for micro-batches that they leave out.

    program_of: the program of each rank. buckets: bytes of each stage's. inputs: of each program that may lack copies.
    queues: of the launches of each program.
    """

    context: JobContext
    programs: tuple[RankProgram, ...]
    program_of: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...] = ()
    inputs: tuple[InputCopies | None, ...] = ()
    queues: tuple[LaunchQueue, ...] = ()

    @property
    def num_steps(self) -> int:
        """Steps of all programs."""
        return sum(len(program.steps) for program in self.programs)

    def with_batch(self, plan: Plan) -> WrittenJob | None:
        """Return the same programs under a plan that differs in the batch alone; None if they would differ."""
        context = self.context.with_batch(plan)
        inputs = tuple(each and each.of_batch(context) for each in self.inputs)
        return None if inputs.count(None) > self.inputs.count(None) else replace(self, context=context, inputs=inputs)


def build_job(
    workload: Workload, plan: Plan, compute: ComputeModel, *, launch: LaunchCosts | None = None, has_host: bool = False,
    host_bytes_per_s: float | None = None, software: Software | None = None, mixed: MixedGpus | None = None,
    simulated: int | None = None,
) -> tuple[Job, BuildReport]:  # fmt: skip
    """Build the rank programs of ``workload`` under ``plan``, which has no open fields (:meth:`Plan.filled`).

    software: the profile that determines memory. has_host: whether ranks have host memory; host_bytes_per_s: its
    bandwidth per rank, for offload of the optimizer. mixed: the GPU models of the ranks if there are several;
    ``compute`` is then for the first of its models. simulated: micro-batches that the programs contain; None: all.

    Raises PlanError for a layout, batch or cuts that cannot run, and ValueError for a plan with open fields.
    """
    context = JobContext(workload, plan, compute, launch, software, mixed, host_bytes_per_s, simulated)
    return job_of(write_job(context, has_host))


def write_job(context: JobContext, has_host: bool) -> WrittenJob:
    """Write the programs of a job; see :func:`build_job`."""
    plan = context.plan
    for kind, algorithm in plan.algorithm:
        if algorithm not in LIBRARY_ALGORITHMS.get(kind, ()):  # nvlstree: the library's flows, not a schedule
            from trine.collectives.registry import known_name

            known_name(kind, algorithm)
    if plan.offload != "none":
        from trine.parallel.offload import check_offload

        check_offload(context, has_host)
    if plan.sync == "each" and len(context.all_micro_batches) == 1:
        raise PlanError("sync 'each' cannot matter: the batch is one micro-batch; set micro_batch")
    steps = len(context.workload.operators) * len(context.micro_batches) * plan.steps
    if steps > MAX_STEPS:
        raise PlanError(
            f"{plan.steps} steps of {len(context.micro_batches)} micro-batches of {len(context.workload.operators)} "
            f"operators are more than {MAX_STEPS:,} on one rank: take fewer steps or larger micro-batches"
        )
    written = _data_parallel(context, has_host) if plan.data == "dp" and plan.dp > 1 else _of_stages(context, has_host)
    if plan.offload != "none":
        from trine.parallel.offload import require_copies

        require_copies(plan.offload, written.programs)
    if plan.overlap == "none":
        from trine.parallel.no_overlap import in_sequence

        written = replace(written, programs=tuple(in_sequence(program) for program in written.programs))
    return written


def job_of(written: WrittenJob) -> tuple[Job, BuildReport]:
    """Return the job with all copies of inputs, and its report."""
    context, programs = written.context, written.programs
    workload, plan = context.workload, context.plan
    if written.inputs:
        programs = tuple(map(_with_further_copies, programs, written.inputs))
    job = Job(
        axes=plan.axes,
        programs=programs,
        program_of=written.program_of,
        operator_names=tuple(op.name for op in workload.operators),
        layer_names=context.layer_names,
    )
    if plan.sync_every is not None:
        from trine.parallel.data_parallel import local_sgd

        job = local_sgd(job, plan.sync_every)
    _refuse_unused_algorithms(plan, job)
    sizes = len(context.all_micro_batches), len(context.micro_batches)
    report = BuildReport(
        batch=context.batch,
        replica_batches=context.replica_batches,
        micro_batches=context.all_micro_batches,
        cuts=context.stages.cuts,
        buckets=written.buckets,
        num_split_operators=len(context.splits),
        tp_style=context.tensor.style,
        tp_notes=context.tensor.notes,
        built_ps=context.evidence_ps,
        warnings=_warnings(context),
        cut_rule=cut_rule(context),
        one_operation_bytes=_one_operation_bytes(job),
        queue_waits_from=max((queue.waits_of(*sizes) for queue in written.queues), default=-1),
    )
    return job, report


def _with_further_copies(program: RankProgram, inputs: InputCopies | None) -> RankProgram:
    further = () if inputs is None else inputs.further(len(program.steps))
    return replace(program, steps=extend_steps(program.steps, further)) if further else program


def _one_operation_bytes(job: Job) -> Mapping[str, int]:
    """Return the first step's ONE_OPERATION broadcast bytes by kind; stages with the same key broadcast together."""
    broadcasts = []
    for program in job.programs:
        if any(_is_one_operation(step) for step in steps_as_written(program.steps)):
            broadcasts += [step for step in program.steps if _is_one_operation(step)]
    first = min((step.label.step for step in broadcasts), default=0)
    sizes = {step.key: step.size_bytes for step in broadcasts if step.label.step == first}
    total: dict[str, int] = {}
    for key, size in sizes.items():
        total[str(key[0])] = total.get(str(key[0]), 0) + size
    return total


def _is_one_operation(step: Step) -> TypeGuard[Collective]:
    return isinstance(step, Collective) and step.algorithm == ONE_OPERATION


def _of_stages(context: JobContext, has_host: bool) -> WrittenJob:
    """Write a program for each kind of rank of a pipeline stage."""
    kinds, program_of = _kinds(context)
    builders = [
        StageBuilder(_context_of(context, position, gpu, batch), stage, has_host, position)
        for stage, position, gpu, batch in kinds
    ]
    programs = tuple(builder.build() for builder in builders)
    context.forget_layers()
    first_of_stage = {builder.stage: builder for builder in reversed(builders)}
    stages = range(context.plan.pp)
    sizes = []
    for stage in stages:
        sizes.append(tuple(bucket.size_bytes for bucket in first_of_stage[stage].buckets))
    inputs = tuple(builder.inputs for builder in builders)
    queues = tuple(builder.writer.thread.queue for builder in builders)
    return WrittenJob(
        context=context, programs=programs, program_of=program_of, buckets=tuple(sizes), inputs=inputs, queues=queues,
    )  # fmt: skip


def _data_parallel(context: JobContext, has_host: bool) -> WrittenJob:
    """Write the programs of DataParallel: the first GPU's, then one for each GPU model among the others."""
    plan, mixed = context.plan, context.mixed
    from trine.parallel.data_parallel import build_data_parallel

    gpus = [0] * plan.dp if mixed is None else mixed.of_rank.tolist()
    later_gpus = sorted(set(gpus[1:]))
    programs = [build_data_parallel(context.for_ranks(gpu=gpus[0]), True, has_host)]
    programs += [build_data_parallel(context.for_ranks(gpu=gpu), False, has_host) for gpu in later_gpus]
    program_of = (0, *(1 + later_gpus.index(gpu) for gpu in gpus[1:]))
    return WrittenJob(context=context, programs=tuple(programs), program_of=program_of)


def _kinds(context: JobContext) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return the kinds of ranks of a job, sorted, and the kind of each rank; ranks of a kind share a program.

    A kind is a stage, the position on the ep axis if it matters, the GPU model, and the batch (0: all have the same).
    """
    plan, mixed = context.plan, context.mixed
    grid = RankGrid(plan.axes)
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    zeros = np.zeros(len(ranks), np.int64)
    experts = zeros if context.expert_load.is_even else grid.coordinates(ranks, plan.groups.experts)
    kinds = zeros if mixed is None else mixed.of_rank
    batches = np.array(context.replica_batches)[replica_of(plan)] if context.replica_batches else zeros
    columns = [grid.coordinates(ranks, "pp"), experts, kinds, batches]
    number = zeros
    for column in columns:
        number = np.unique(number * (int(column.max()) + 1) + column, return_inverse=True)[1].astype(np.int64)
    first = np.unique(number, return_index=True)[1]
    return np.stack(columns, axis=1)[first].tolist(), tuple(number.tolist())


def _context_of(context: JobContext, position: int, gpu: int, batch: int) -> JobContext:
    """Return the context of the ranks of one kind."""
    words = [] if context.mixed is None else [context.mixed.names[gpu]]
    words += [f"batch {batch}"] if batch else []
    return context.for_ranks(", ".join(words), gpu=gpu, batch=batch, load=context.expert_load.of(position))


def _refuse_unused_algorithms(plan: Plan, job: Job) -> None:
    """Raise PlanError if the plan sets an algorithm for a collective that the job never runs."""
    if not plan.algorithm:
        return
    steps = [step for program in job.programs for step in steps_as_written(program.steps)]
    present = {step.kind for step in steps if isinstance(step, Collective)}
    sends = any(isinstance(step, Send) for step in steps)
    present |= {"send_recv"} if sends else set()
    for kind, name in plan.algorithm:
        if kind not in present:
            has = ", ".join(sorted(present)) or "no communication"
            raise PlanError(f"algorithm {kind}={name} cannot matter: the job has no {kind}; it has {has}")


def _warnings(context: JobContext) -> tuple[str, ...]:
    plan, sizes = context.plan, context.all_micro_batches
    notes = [*context.tensor.warnings, *recompute_notes(plan, context.rerun_segments)]
    if plan.sharding in PARAMETERS_SHARDED:
        from trine.parallel.sharded import unit_notes

        notes += unit_notes(context)
    if context.expert_load.dropped:
        notes.append(f"{float(context.expert_load.dropped):.1%} of the tokens' copies are dropped by full experts")
    if plan.pp > 1 and len(sizes) == 1:
        notes.append(
            f"one micro-batch in a pipeline of {plan.pp} stages keeps each GPU idle most of the time: set --micro-batch"
        )
    if len(set(sizes)) > 1:
        notes.append(
            f"the batch of {context.batch} is cut into uneven micro-batches of {max(sizes)} and {min(sizes)} samples"
        )
    if plan.dp * plan.cp > 1 and not context.workload.is_training:
        notes.append("the trace has no backward pass: data-parallel replicas run inference and exchange nothing")
    if plan.buffers != "auto" and not context.buffer_bytes(context.workload.operators):
        notes.append(f"buffers {plan.buffers!r} changes nothing: {context.workload.name} has no buffers")
    for crossing in context.stages.crossings:
        if crossing.guessed:
            layer = context.operators[crossing.consumer].layer
            notes.append(f"the trace does not link the stages at {layer}: the output of the operator before it is sent")
    notes += wide_crossings(context)
    if plan.sharding in ("zero1", "zero2") and plan.prefetch and plan.steps == 1:
        notes.append("one step has no next forward pass beside which parameters are gathered: --steps 2 shows prefetch")
    if context.launch is not None and context.launch.synchronises == "none" and plan.steps == 1:
        notes.append("one step begins with an idle launching thread: --steps 3 shows the steady state")
    if context.workload.is_training and not context.total_trained_bytes and plan.num_ranks > 1:
        notes.append("the trace names no weights with gradients: the optimizer's time is divided evenly over the ranks")
    return tuple(notes)


#: Maximum cuts named one by one; the rest are counted.
MAX_NAMED = 3


def cut_rule(context: JobContext) -> str:
    """Return the placement of the cuts, in words; empty without a pipeline."""
    plan, forward = context.plan, [op for op in context.workload.operators if op.phase == FORWARD]
    if plan.pp == 1:
        return ""
    if plan.has_cuts:
        return "at the requested places"
    if plan.balance in ACCOUNTED:
        parts = " and ".join(part for part in ("embedding", "loss") if part in plan.balance)
        return f"between layers, found by operator names; {parts} count as one layer each (Megatron-core)"
    if has_layers(forward):
        return "between layers, found by operator names"
    return "between any two operators of different names up to the head, since names show no layers"


def wide_crossings(context: JobContext) -> tuple[str, ...]:
    """Return a sentence for each cut crossed by an activation larger than its layer's output."""
    limit = _layer_outputs(context)
    tensors = context.workload.tensors
    widest: dict[int, Crossing] = {}  # target -> crossing
    for crossing in context.stages.crossings:
        size = tensors[crossing.tensor].size_bytes
        best = widest.get(crossing.target)
        if size > limit.get(crossing.producer, size) and (best is None or size > tensors[best.tensor].size_bytes):
            widest[crossing.target] = crossing
    batch, sentences = max(context.micro_batches), []
    for target, crossing in list(widest.items())[:MAX_NAMED]:
        message_bytes = context.rank_bytes(crossing.tensor, batch)
        tensor_bytes = tensors[crossing.tensor].size_bytes
        sentences.append(
            f"the cut at {context.stages.cuts[target - 1]!r} lies inside a layer: of each micro-batch tensor "
            f"{crossing.tensor}, the output of {context.operators[crossing.producer].layer!r}, crosses it with "
            f"{format_bytes(message_bytes)}, {tensor_bytes / limit[crossing.producer]:.3g} times the layer's output"
        )
    if len(widest) > MAX_NAMED:
        sentences.append(f"{len(widest) - MAX_NAMED} more cuts lie inside layers and send more than these put out")
    return tuple(sentences)


def _layer_outputs(context: JobContext) -> Mapping[int, int]:
    """Return for each forward operator id the bytes of the largest activation leaving its layer; {} without layers.

    The output of the last layer is the output of its last operator (the loss).
    """
    tensors, forward = context.workload.tensors, [op for op in context.workload.operators if op.phase == FORWARD]
    if not has_layers(forward):
        return {}
    starts = layer_starts(forward)
    outputs: dict[int, int] = {}
    layers = [forward[a:b] for a, b in zip(starts, [*starts[1:], len(forward)], strict=True)]
    layer_of = {op.id: number for number, layer in enumerate(layers) for op in layer}
    read_last: dict[int, int] = {}  # storage -> the last layer that reads it
    for op in forward:
        for tensor_id in op.inputs:
            read_last[tensors[tensor_id].storage] = layer_of[op.id]
    for number, layer in enumerate(layers):
        activations = [tensors[t] for op in layer for t in op.outputs if tensors[t].role == "activation"]
        leaving = [tensor.size_bytes for tensor in activations if read_last.get(tensor.storage, number) > number]
        last = [tensors[t].size_bytes for t in layer[-1].outputs]
        size = max(leaving, default=max(last, default=0))
        if size:
            outputs |= dict.fromkeys((op.id for op in layer), size)
    return outputs
