"""State shared by all programs of one job: the facts of a workload under a plan, and the ranks of one kind."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.common.units import PS_PER_S
from trine.compute.models import FROM_SHAPES
from trine.compute.resize import Split
from trine.compute.roofline import alike_in
from trine.engine._limits import MAX_PS
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Tensor, Workload
from trine.parallel.chunks import Chunk, Place, operators_by_chunk
from trine.parallel.layer_places import block_places
from trine.parallel.plan import TIME, Plan, micro_batches
from trine.parallel.rank_kinds import MixedGpus, gpus_of_stages, replica_of
from trine.parallel.recompute import check_recompute, kept_operators, left_out_again, recomputed
from trine.parallel.schedules import SCHEDULES, Pipeline, PipelineSchedule
from trine.parallel.stages import BOTH, INPUT_PART, Crossing, OwnedWeight, Stages, cut_into_stages, owned_weights
from trine.parallel.tensor_layout import TensorLayout, TensorSplit, local_parameter_bytes
from trine.parallel.token_dispatch import ONE_PLACE, ExpertSpan
from trine.parallel.token_partition import WHOLE, ExpertLoad, TokenPartition, expert_load, is_attention, is_expert
from trine.parallel.workload_facts import (
    cast_copies,
    gradient_of_weights,
    layer_names,
    made_storages,
    name_indices,
    operators_by_id,
    storage_of_tensors,
    tensors_of_role,
)
from trine.software.profile import MemoryStyle, Software, ZeroStyle

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts
    from trine.compute.launch import OperatorLaunch
    from trine.parallel.tensor_times import TensorTimes

#: Sums of some thousand tensors of this size still fit into an int64.
MAX_TENSOR_BYTES = 2**50
PHASE_NUMBER = {FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, OPTIMIZER: Phase.OPTIMIZER}


@dataclass(frozen=True, eq=False)
class JobFacts:
    """A workload under a filled plan. Each fact is computed on first use, from the others.

    compute: operator times on the first GPU model. mixed: the GPU models of the ranks if there are several.
    software: the profile, or None. host_bytes_per_s: host memory bandwidth per rank, for offload of the optimizer.
    simulated: the number of micro-batches that programs contain; None: all. tensor_times: of the collectives that
    overlap with GEMMs in pieces, or None if unknown. expert_span: nodes and ranks of an expert-parallel group.
    """

    workload: Workload
    plan: Plan
    compute: ComputeModel
    launch: LaunchCosts | None
    software: Software | None = None
    mixed: MixedGpus | None = None
    host_bytes_per_s: float | None = None
    simulated: int | None = None
    tensor_times: TensorTimes | None = None
    expert_span: ExpertSpan = ONE_PLACE

    def __post_init__(self) -> None:
        """Compute the facts that may raise PlanError, in the order of their errors."""
        if not self.plan.is_filled:
            raise ValueError("the plan has open fields: pass plan.filled(), or the plan of resolve_layout()")
        for name in ("requested_pipeline", "launches", "local_bytes", "expert_load", "schedule", "stages", "batches",
                     "chunks", "weights", "total_trained_bytes"):  # fmt: skip
            getattr(self, name)

    @cached_property
    def operators(self) -> dict[int, Operator]:
        return operators_by_id(self.workload)

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        return layer_names(self.workload)

    @cached_property
    def name_indices(self) -> dict[int, tuple[int, int]]:
        """Operator id -> the indices of its name and of its layer's."""
        return name_indices(self.workload)

    @cached_property
    def made_storages(self) -> set[int]:
        """Storages that any operator writes."""
        return made_storages(self.workload)

    @cached_property
    def storage_of(self) -> dict[int, int]:
        """Tensor id -> its storage."""
        return storage_of_tensors(self.workload)

    @cached_property
    def tensors_of_role(self) -> dict[str, list[Tensor]]:
        """Role -> its tensors, in the workload's order."""
        return tensors_of_role(self.workload)

    @cached_property
    def launches(self) -> dict[int, OperatorLaunch]:
        """Operator id -> its launches."""
        return {} if self.launch is None else dict(zip(self.operators, self.launch.launches(), strict=True))

    @cached_property
    def gpu_factor(self) -> float:
        """Operator times of the profile, relative to the compute model's."""
        return 1.0 if self.software is None else self.software.factors.gpu.value

    @cached_property
    def memory_style(self) -> MemoryStyle:
        """Memory settings of the profile, or the defaults without a profile."""
        return MemoryStyle() if self.software is None else self.software.memory

    @cached_property
    def zero_style(self) -> ZeroStyle:
        """ZeRO 1 and 2 settings of the profile, or the defaults without a profile."""
        return ZeroStyle() if self.software is None else self.software.zero

    @cached_property
    def tensor(self) -> TensorLayout:
        """The layout over tp ranks."""
        plan = self.plan
        if plan.tp == 1 and plan.expert_tp == 1:
            return TensorLayout()
        from trine.parallel.splits import tensor_layout

        return tensor_layout(self.workload, plan)

    @cached_property
    def splits(self) -> Mapping[int, TensorSplit]:
        """Tensor splits of operators."""
        return self.tensor.splits

    @cached_property
    def local_bytes(self) -> dict[int, int]:
        """Bytes of each weight on one tp and ep rank."""
        plan = self.plan
        sizes = local_parameter_bytes(self.workload, self.splits, plan.tp, plan.expert_tp)
        return sizes | {t: -(-sizes[t] // plan.ep) for t in self.token_partition.expert_weights}

    @cached_property
    def token_partition(self) -> TokenPartition:
        return TokenPartition(self.workload, self.plan)

    @cached_property
    def expert_load(self) -> ExpertLoad:
        return expert_load(self.workload, self.plan)

    @cached_property
    def works(self) -> tuple[RankWork, ...]:
        """Operator times on each GPU model, under an even load."""
        models = self.mixed.models if self.mixed else (self.compute,)
        return tuple(RankWork(self, model) for model in models)

    @cached_property
    def requested_batch(self) -> int:
        """Samples of one replica before ``replica_batches`` "time" balances them; of the largest if they differ."""
        plan, workload = self.plan, self.workload
        batch = max(self._explicit_batches, default=plan.batch if plan.batch is not None else workload.batch)
        if batch != workload.batch and not any(t.batch_dims for t in workload.tensors.values()):
            raise PlanError(
                f"nothing in the trace scales with the batch, so it runs at its own batch of {workload.batch} only"
            )
        return batch

    @property
    def _explicit_batches(self) -> tuple[int, ...]:
        if self.plan.replica_batches == TIME:
            return ()
        return tuple(int(size) for size in self.plan.replica_batches)

    def pipeline_of(self, batch: int) -> Pipeline:
        """Return the shape of the pipeline of a replica of ``batch`` samples."""
        plan, sizes = self.plan, micro_batches(batch, self.plan.micro_batch)
        return Pipeline(plan.pp, len(sizes), plan.virtual_stages, self.workload.is_training)

    @cached_property
    def requested_pipeline(self) -> Pipeline:
        return self.pipeline_of(self.requested_batch)

    @cached_property
    def schedule(self) -> PipelineSchedule:
        """The order of the pipeline's passes."""
        plan = self.plan
        schedule = SCHEDULES.get(plan.schedule if plan.pp > 1 and plan.schedule else "1f1b")
        if plan.defer_head_gradient is not None and self.workload.is_training:
            if self.software is not None and self.software.operators.accumulation != "fused":
                raise PlanError(
                    f"defer_head_gradient needs weight gradients that GEMMs accumulate; {self.software.name} adds them "
                    "in passes of their own"
                )
            from trine.parallel.deferred import DeferredHead

            schedule = DeferredHead(schedule, plan.defer_head_gradient)
        if plan.expert_overlap:
            from trine.parallel.expert_overlap import ExpertOverlap

            schedule = ExpertOverlap(schedule)
        schedule.check(self.requested_pipeline)
        return schedule

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Samples of each replica; empty if all have ``requested_batch``."""
        batches = self._balanced_batches() if self.plan.replica_batches == TIME else self._explicit_batches
        if batches:
            from trine.parallel.replica_batches import check_counts

            check_counts(self.plan, batches)
            self.schedule.check(self.pipeline_of(max(batches)))
        return batches

    @cached_property
    def replica_batches(self) -> tuple[int, ...]:
        """Samples of each replica if they differ, else empty."""
        return self.batches if len(set(self.batches)) > 1 else ()

    def _balanced_batches(self) -> tuple[int, ...]:
        """Return replica batches whose slowest stages end together, as closely as micro-batches allow."""
        plan, size = self.plan, max(micro_batches(self.requested_batch, self.plan.micro_batch))
        stage_ps = np.zeros((len(self.works), plan.pp))
        for gpu in range(len(self.works)):
            for op_id, ps in self._pass_times(gpu).items():
                for stage in self._ranks_of_operators()[op_id]:
                    stage_ps[gpu, stage] += ps / size
        ranks = np.arange(plan.num_ranks, dtype=np.int64)
        gpu_of = np.zeros(len(ranks), np.int64) if self.mixed is None else self.mixed.of_rank
        sample_ps = np.zeros(plan.dp)
        np.maximum.at(sample_ps, replica_of(plan), stage_ps[gpu_of, RankGrid(plan.axes).coordinates(ranks, "pp")])
        from trine.parallel.replica_batches import balanced_batches

        return balanced_batches(self.requested_batch * plan.dp, plan.micro_batch or 1, sample_ps.tolist())

    def _pass_times(self, gpu: int) -> dict[int, int]:
        """Return operator id -> time of one micro-batch in one forward and backward pass on a GPU model, in ps."""
        size, work = max(micro_batches(self.requested_batch, self.plan.micro_batch)), self.works[gpu]
        times = {op.id: work.duration(op, size)[0] for op in self.workload.operators if op.phase != OPTIMIZER}
        if self.plan.recompute_layers is None and self.workload.is_training:
            segments = self._segments_of([op for op in self.workload.operators if op.phase == FORWARD])
            times |= {op.id: 2 * times[op.id] for segment in self._without_left_out(segments) for op in segment}
        return times

    @cached_property
    def stages(self) -> Stages:
        """The cuts. Recomputed operators count twice, unless they depend on the cuts (``recompute_layers``)."""
        plan = self.plan
        times: list[dict[int, int]] = [{}]
        of_chunk: list[list[int]] = []
        counts = self._chunk_layers()
        if plan.pp > 1 and not plan.cuts and not counts and plan.balance == "time":
            times = [self._pass_times(gpu) for gpu in range(len(self.works))]
            gpus = gpus_of_stages(plan, self.mixed)
            of_chunk = []
            for ranks in self._ranks_of_chunks():
                of_chunk.append(sorted({gpu for stage in ranks for gpu in gpus[stage]}))
        times_of_models: Sequence[Sequence[Mapping[int, int]]] = ()
        if len(times) > 1:
            times_of_models = [[times[gpu] for gpu in numbers] for numbers in of_chunk]
        stages = cut_into_stages(
            self.workload, self.requested_pipeline.num_chunks, plan.cuts, times[0], plan.balance or "time",
            times_of_models, counts,
        )  # fmt: skip
        if plan.defer_head_gradient is None or not self.workload.is_training:
            return stages
        from trine.parallel.deferred import with_deferred_head

        return with_deferred_head(self.workload, stages)

    def _chunk_layers(self) -> Sequence[int]:
        """Return the blocks of each chunk that the plan asks for; empty if a rule places the cuts."""
        plan = self.plan
        ends = plan.first_stage_layers, plan.last_stage_layers
        if not plan.stage_layers and ends == (None, None):
            return ()
        forward = [op for op in self.workload.operators if op.phase == FORWARD]
        layers = len(block_places(self.workload, forward))
        if plan.stage_layers:
            from trine.parallel.layer_counts import check_sum

            check_sum(plan.stage_layers, layers)
            return plan.stage_layers
        from trine.parallel.layer_counts import uneven_counts

        return uneven_counts(layers, plan.pp, plan.virtual_stages, *ends)

    def _ranks_of_chunks(self) -> list[list[int]]:
        """Return the pipeline ranks that hold each chunk."""
        ranks: list[list[int]] = [[] for _ in range(self.requested_pipeline.num_chunks)]
        for rank in range(self.plan.pp):
            for chunk in self.schedule.chunks_of(rank, self.requested_pipeline):
                ranks[chunk].append(rank)
        return ranks

    def _ranks_of_operators(self) -> dict[int, tuple[int, ...]]:
        """Return forward or backward operator id -> the pipeline ranks that run it."""
        ranks = self._ranks_of_chunks()
        return {op_id: tuple(ranks[chunk]) for op_id, chunk in self.stages.stage_of.items()}

    @cached_property
    def chunks(self) -> list[Chunk]:
        """The parts of the model; a pipeline rank holds one or several."""
        operators, segments = operators_by_chunk(self.workload, self.stages), self._segments_of_chunks
        check_recompute(self.workload, self.plan, segments)
        skipped = frozenset(op.id for ops in segments for segment in ops for op in segment) - self.runs_again
        splits = self.schedule.splits_backward
        return [Chunk(i, self.stages, operators[i], segments[i], splits, skipped) for i in range(len(segments))]

    @cached_property
    def weights(self) -> list[list[OwnedWeight]]:
        """The weights of each pipeline rank."""
        return owned_weights(self.workload, self.plan.pp, self._ranks_of_operators())

    @cached_property
    def total_trained_bytes(self) -> int:
        """Bytes of all weights with gradients."""
        size = sum(p.size_bytes for p in self.workload.parameters if p.gradient_operator is not None)
        if self.plan.dp * self.plan.cp > 1 and self.workload.is_training and not size:
            raise PlanError(
                "the trace names no weights with gradients, so data-parallel replicas have nothing to reduce: record "
                "it with tensor shapes and an optimizer step"
            )
        return size

    @cached_property
    def earlier_targets(self) -> dict[Crossing, tuple[int, ...]]:
        """Earlier stages that receive the same tensor, for crossings that have any."""
        targets: dict[tuple[int, int], list[int]] = {}
        earlier: dict[Crossing, tuple[int, ...]] = {}
        for crossing in self.stages.crossings:
            stages = targets.setdefault((crossing.producer, crossing.tensor), [])
            if stages:
                earlier[crossing] = tuple(stages)
            stages.append(crossing.target)
        return earlier

    def _segments_of(self, forward: Sequence[Operator]) -> list[list[Operator]]:
        """Return the segments of a part of the model that recomputation covers."""
        return recomputed(self.workload, self.plan, forward, self.memory_style.selective)

    @cached_property
    def _segments_of_chunks(self) -> list[list[list[Operator]]]:
        return [self._segments_of(forward) for forward, _ in operators_by_chunk(self.workload, self.stages)]

    @cached_property
    def rerun_segments(self) -> list[list[Operator]]:
        return self._without_left_out([segment for segments in self._segments_of_chunks for segment in segments])

    def _without_left_out(self, segments: Sequence[Sequence[Operator]]) -> list[list[Operator]]:
        """Return the segments without the operators that this software does not recompute."""
        software = self.software
        skipped = kept_operators(self.workload, self.plan, segments, self.memory_style)
        if software is not None and software.operators.checkpoint == "early-stop" and self.plan.recompute == "full":
            skipped |= left_out_again(self.workload, segments)
        kept = []
        for segment in segments:
            kept.append([op for op in segment if op.id not in skipped])
        return kept

    @cached_property
    def runs_again(self) -> frozenset[int]:
        """Recomputed forward operators."""
        return frozenset(op.id for segment in self.rerun_segments for op in segment)

    def launch_of(self, op: Operator, stage: int) -> tuple[int, float]:
        """Return the launching thread's time for an operator on one rank of ``stage``, in ps, and its launches."""
        ps, kernels, by_weight, experts, expert_ps = self.launches[op.id]
        if experts:
            local = experts // self.plan.ep
            return ps + local * expert_ps, kernels + local - 1
        if by_weight:
            # Launches scale with the number of trained weights on one rank of ``stage``
            total = sum(p.gradient_operator is not None for p in self.workload.parameters)
            on_stage = sum(w.gradient_operator is not None for w in self.weights[stage])
            share = on_stage / total if total else 1.0
            return round(ps * share), kernels * share
        return ps, kernels

    @cached_property
    def gradient_of(self) -> dict[int, int]:
        """Weight -> gradient, as tensor ids."""
        return gradient_of_weights(self.workload)

    @cached_property
    def cast_copies(self) -> dict[int, float]:
        """Weight -> bytes of its copies for cast products, relative to its own (attribute ``weight_copies``)."""
        return cast_copies(self.workload)

    def gradient_bytes(self, weight: int) -> int:
        """Return the bytes of a weight's gradient on one rank, in the dtype of its accumulation and reduction."""
        local, whole = self.local_bytes[weight], self.workload.tensors[weight].size_bytes
        gradient = self.gradient_of.get(weight)
        size = whole if gradient is None else self.workload.tensors[gradient].size_bytes
        return local if size == whole or not whole else -(-local * size // whole)

    def gradient_dtype(self, weight: int) -> str:
        """Return the dtype of a weight's gradient, or the weight's dtype if the workload names no gradient."""
        return self.workload.tensors[self.gradient_of.get(weight, weight)].dtype

    def split_of(self, op: Operator) -> TensorSplit | None:
        """Return the tensor split of an operator; a backward operator uses its forward operator's split.

        None for the cast of the gradient of a row split's output, which has all features.
        """
        owner = op.forward_id if op.phase == BACKWARD else op.id
        split = self.splits.get(owner) if owner is not None else None
        is_whole = split is not None and split.mode == "row" and op.attributes.get("of_output") is True
        return None if is_whole else split

    def output_share(self, op: Operator) -> Fraction:
        """Return the part of an operator's output that one rank of the tp group holds.

        Divided forward outputs: outputs that stay split, and outputs of operators on divided tensors. Divided backward
        outputs: gradients of a divided input, as in a row split. Sequence parallelism divides everything.
        """
        split = self.split_of(op)
        if split is not None and split.groups is not None and (op.phase == FORWARD or split.mode == "shared"):
            from trine.parallel.splits import rank_part

            return rank_part(self.workload.tensors[op.outputs[0]], split.groups, self.plan.tp)
        if self.plan.sequence_parallel:
            return self.tensor_part
        if split is None:
            return WHOLE
        divided = split.mode == "shared" or (
            split.mode == "row" if op.phase == BACKWARD else split.mode == "column" and not split.forward
        )
        return self.tensor_part if divided else WHOLE

    @cached_property
    def tensor_part(self) -> Fraction:
        """The part of one rank of the tp group."""
        return Fraction(1, self.plan.tp)

    def buffer_bytes(self, operators: Iterable[Operator]) -> int:
        """Return the bytes of the buffers (running statistics) that ``operators`` read."""
        tensors = (self.workload.tensors[t] for op in operators for t in op.inputs)
        return sum({tensor.storage: tensor.size_bytes for tensor in tensors if tensor.role == "buffer"}.values())

    def optimizer_share(self, stage: int) -> Fraction:
        """Return the share of the recorded optimizer step on one rank of ``stage``, by the bytes of its weights."""
        if not self.total_trained_bytes:
            return Fraction(1, self.plan.pp * self.plan.tp)
        on_stage = sum(self.local_bytes[w.weight] for w in self.weights[stage] if w.gradient_operator is not None)
        return min(Fraction(on_stage, self.total_trained_bytes), Fraction(1))

    def label(self, op: Operator, stage: int, microbatch: int, step: int, rerun: bool = False) -> Label:
        """Return the label of an operator. ``rerun``: it is recomputed."""
        phase = Phase.RECOMPUTE if rerun else PHASE_NUMBER[op.phase]
        return Label(phase, *self.name_indices[op.id], stage, microbatch, step)


class RankWork:
    """Operator times and tensor sizes on one GPU model, for ranks whose experts get ``load`` times an even share."""

    def __init__(self, facts: JobFacts, compute: ComputeModel, load: Fraction = WHOLE) -> None:
        self.compute = compute
        self.load = load
        self._facts = facts
        self._durations: dict[tuple[object, ...], tuple[int, str]] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self._scales: dict[tuple[int, int], Fraction] = {}  # of tensors, by batch and number of batch dimensions
        self._splits: dict[tuple[object, ...], Split] = {}  # by all that a split depends on
        self._numbers: dict[TensorSplit | None, int] = {}  # of tensor splits; equal ones have one number
        self._alike = alike_in(facts.workload) if compute.name in FROM_SHAPES else None
        self._of_alike: dict[tuple[object, ...], tuple[int, str]] = {}  # durations of operators with equal shapes

    def under(self, load: Fraction) -> RankWork:
        """Return the work of ranks on the same GPU model whose experts get ``load``."""
        return self if load == self.load else RankWork(self._facts, self.compute, load)

    def duration(self, op: Operator, batch: int, share: Fraction = WHOLE, part: str = BOTH) -> tuple[int, str]:
        """Return the time of an operator at ``batch`` samples on one rank of the tp group, in ps, and its evidence.

        ``part``: one of the two products of a backward operator that runs in halves. trine assumes half of the time
        for each product; the gradient of activations is rounded up.
        """
        # A fraction takes longer to hash than the other parts of the key, and nearly every operator runs whole.
        key = (op.id, batch, part) if share is WHOLE else (op.id, batch, part, share)
        cached = self._durations.get(key)
        if cached is None:
            cached = self._durations[key] = self._duration(self.compute, op, batch, share, part)
        return cached

    def slowest(self, op: Operator, batch: int, part: str = BOTH) -> int:
        """Return the time on the slowest GPU model: passes that run together alternate in the same way on each."""
        mixed = self._facts.mixed
        if mixed is None:
            return self.duration(op, batch, part=part)[0]
        return max(self._duration(model, op, batch, WHOLE, part)[0] for model in mixed.models)

    def piece_ps(self, op: Operator, batch: int, pieces: int, part: str = BOTH, at_once: int = 1) -> int:
        """Return the time of a GEMM on one of ``pieces`` equal parts of the tokens, in ps: of its own shape.

        at_once: pieces that run beside each other in streams of their own, as one GEMM of their tokens.
        """
        key = op.id, batch, part, pieces, at_once
        cached = self._durations.get(key)
        if cached is None:
            shares = Fraction(pieces, min(at_once, pieces))
            answer = self._duration(self.compute, op, batch, WHOLE, part, shares)
            cached = self._durations[key] = (-(-answer[0] // min(at_once, pieces)), answer[1])
        return cached[0]

    def split(self, op: Operator, batch: int, share: Fraction = WHOLE) -> Split:
        """Return the sizes at which an operator runs on one rank. share: of the optimizer step."""
        divided = self._facts.split_of(op)
        share_key = share if op.phase == OPTIMIZER else None
        key = share_key, self._number_of(divided), is_expert(op), is_attention(op), batch
        split = self._splits.get(key)
        if split is None:
            partition = self._facts.token_partition
            split = self._splits[key] = partition.split(op, batch, share, divided, self.load)
        return split

    def _duration(
        self, model: ComputeModel, op: Operator, batch: int, share: Fraction, part: str, pieces: Fraction = WHOLE
    ) -> tuple[int, str]:
        divided = self._facts.split_of(op)
        if self._alike is None or model is not self.compute:  # recorded times differ between equal operators
            return self._duration_in(model, op, batch, share, part, pieces, divided)
        key: tuple[object, ...] = (self._alike.first(op), self._number_of(divided), batch, part)
        if share is not WHOLE or pieces is not WHOLE:  # fractions take long to hash
            key = (*key, share, pieces)
        duration = self._of_alike.get(key)
        if duration is None:
            duration = self._duration_in(model, op, batch, share, part, pieces, divided)
            self._of_alike[key] = duration
        return duration

    def _duration_in(
        self, model: ComputeModel, op: Operator, batch: int, share: Fraction, part: str, pieces: Fraction,
        divided: TensorSplit | None,
    ) -> tuple[int, str]:  # fmt: skip
        """Return the time and the evidence of an operator that ``divided`` splits."""
        facts, partition = self._facts, self._facts.token_partition
        split = self.split(op, batch, share)
        if pieces > 1:
            split = replace(split, tokens=split.tokens / pieces)
        answer = model.duration(op, split)
        ps = answer.ps * partition.repeats(op)
        if facts.gpu_factor != 1:
            ps = round(ps * facts.gpu_factor)
        if ps > MAX_PS:
            raise PlanError(f"operator {op.layer or op.name!r} takes {ps / PS_PER_S:.3g} s, more than a run may last")
        if part == BOTH:
            return ps, answer.evidence
        return (ps + (part == INPUT_PART)) // 2, "assumed"

    def _number_of(self, divided: TensorSplit | None) -> int:
        return self._numbers.setdefault(divided, len(self._numbers))

    def copy_ps(self, tensor_id: int, batch: int) -> int:
        """Return the time of a copy of a tensor on the tokens of one rank, with all features, in picoseconds."""
        copied = Operator(
            id=-1, name="aten::cat", phase=FORWARD, inputs=(tensor_id,), outputs=(tensor_id,), gpu_time_ps=0
        )
        split = Split(batch=batch, tokens=self._facts.token_partition.context)
        return round(self.compute.duration(copied, split).ps * self._facts.gpu_factor)

    def scaled_bytes(self, tensor_id: int, batch: int) -> int:
        """Return a tensor's bytes on the tokens of one rank at ``batch`` samples, with all features, rounded up."""
        size = self._bytes.get((tensor_id, batch))
        if size is None:
            facts, tensor = self._facts, self._facts.workload.tensors[tensor_id]
            scale = self._scale(batch, len(tensor.batch_dims))
            part = facts.token_partition.of_tensor(tensor, self.load)
            if part is not WHOLE:
                scale *= part
            whole = facts.tensor.padded_bytes.get(tensor_id, tensor.size_bytes)
            size = self._bytes[tensor_id, batch] = -(-whole * scale.numerator // scale.denominator)
            if size > MAX_TENSOR_BYTES:
                raise PlanError(f"a tensor of {size / 2**50:.3g} PiB at a batch of {batch} is more than any GPU holds")
        return size

    def _scale(self, batch: int, num_batch_dims: int) -> Fraction:
        """Return the size of a tensor at ``batch`` samples, relative to the workload's."""
        key = batch, num_batch_dims
        scale = self._scales.get(key)
        if scale is None:
            scale = self._scales[key] = Fraction(batch, self._facts.workload.batch) ** num_batch_dims
        return scale


class JobContext(JobFacts):
    """The facts of a job, for ranks of one kind; at first, of the largest replicas, on the first GPU model.

    kind: the name of the kind. batch: samples of one replica. micro_batches: sizes of those in programs, and
    all_micro_batches of all. pipeline: the shape of the programs. work: operator times and tensor sizes.
    evidence_ps: micro-batch -> evidence -> operator time over all programs; micro-batch -1: outside micro-batches.
    written_layers, layer_numbers: of :mod:`trine.parallel.layer_copies`, while the programs are written.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind = ""
        self.work = self.works[0]
        self.evidence_ps: dict[int, dict[str, int]] = {}
        self.written_layers: dict[Hashable, Any] = {}
        self.layer_numbers: dict[Hashable, int] = {}
        self._split_numbers: dict[int, int] = {}  # by id of the split
        self._set_batch(max(self.batches, default=self.requested_batch))

    def _set_batch(self, batch: int) -> None:
        self.batch = batch
        self.all_micro_batches = micro_batches(batch, self.plan.micro_batch)
        self.micro_batches = self.all_micro_batches[: self.simulated]
        self.pipeline = self.pipeline_of(batch)._replace(num_microbatches=len(self.micro_batches))

    def for_ranks(self, kind: str = "", *, gpu: int = 0, batch: int = 0, load: Fraction = WHOLE) -> JobContext:
        """Return the context of another kind of ranks. gpu: an index in ``mixed``; batch 0: unchanged."""
        context = copy.copy(self)
        context.kind, context.work = kind, self.works[gpu].under(load)
        if batch:
            context._set_batch(batch)
            self.schedule.check(context.pipeline)
        return context

    def with_batch(self, plan: Plan) -> JobContext:
        """Return this context under a plan that differs in the batch alone. Raises PlanError if it cannot run."""
        context = copy.copy(self)
        for name in ("requested_batch", "requested_pipeline", "batches", "replica_batches"):
            context.__dict__.pop(name, None)
        object.__setattr__(context, "plan", plan)
        context.schedule.check(context.requested_pipeline)
        context._set_batch(context.requested_batch)
        return context

    def with_load(self, load: Fraction) -> JobContext:
        """Return this context for a rank whose experts get ``load`` times an even share of the tokens."""
        context = copy.copy(self)
        context.work = self.work.under(load)
        return context

    def duration(
        self, op: Operator, batch: int, share: Fraction = WHOLE, *, part: str = BOTH, microbatch: int = -1
    ) -> int:
        """Return the time of an operator (see :meth:`RankWork.duration`), and count it by its evidence."""
        ps, evidence = self.work.duration(op, batch, share, part)
        self.count(microbatch, evidence, ps)
        return ps

    def count(self, microbatch: int, evidence: str, ps: int) -> None:
        """Count operator time by its evidence."""
        counted = self.evidence_ps.setdefault(microbatch, {})
        counted[evidence] = counted.get(evidence, 0) + ps

    def number_of_split(self, op: Operator) -> int:
        """Return a number of the tensor split of an operator; equal ones have one number in all contexts of a job."""
        split = self.split_of(op)
        number = self._split_numbers.get(id(split))
        if number is None:
            number = self._split_numbers[id(split)] = self.layer_numbers.setdefault(split, len(self.layer_numbers))
        return number

    def forget_layers(self) -> None:
        """Forget the layers that programs were written with."""
        self.written_layers.clear()
        self.layer_numbers.clear()
        self._split_numbers.clear()

    def scaled_bytes(self, tensor_id: int, batch: int) -> int:
        """Return a tensor's bytes on the tokens of one rank at ``batch`` samples, with all features, rounded up."""
        return self.work.scaled_bytes(tensor_id, batch)

    def gathered_bytes(self, op: Operator, tensor_id: int, batch: int) -> int:
        """Return the bytes of an input or result of ``op`` on the tokens of its whole tensor-parallel group."""
        size = self.scaled_bytes(tensor_id, batch)
        part = self.token_partition.expert_tokens if is_expert(op) else WHOLE
        return size if part == WHOLE else -(-size * part.numerator // part.denominator)

    def rank_bytes(self, tensor_id: int, batch: int) -> int:
        """Return the bytes of a tensor on one rank of the tp group: its part if features or tokens are divided."""
        size, tensor = self.scaled_bytes(tensor_id, batch), self.workload.tensors[tensor_id]
        part = self.tensor.divided.get(tensor.storage, WHOLE)
        if part == WHOLE and self.plan.sequence_parallel and self.token_partition.has_tokens(tensor):
            part = self.tensor_part
        return -(-size * part.numerator // part.denominator)

    def head_bytes(self, op: Operator, tensor_id: int, batch: int) -> int:
        """Return the bytes of an attention's queries, keys, values or results, with the heads of one tp rank."""
        size, split = self.scaled_bytes(tensor_id, batch), self.split_of(op)
        if split is None:
            return size
        part = Fraction(1, self.plan.tp)
        if split.groups is not None:
            part = split.groups.part(self.workload.tensors[tensor_id], 1, self.plan.tp)
        return -(-size * part.numerator // part.denominator)

    def input_bytes(self, operators: Iterable[Operator], batch: int) -> int:
        """Return the bytes of input data that ``operators`` read: the largest view of each storage, at ``batch``."""
        sizes: dict[int, int] = {}
        for op in operators:
            for tensor_id in op.inputs:
                tensor = self.workload.tensors[tensor_id]
                if tensor.role == "input" and tensor.storage not in self.made_storages:
                    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), self.scaled_bytes(tensor_id, batch))
        return sum(sizes.values())

    def replica_key(self, place: Place) -> tuple[int | str, ...]:
        """Return the key of a reduction over replicas, counted from the last micro-batch if their counts differ."""
        if not self.replica_batches:
            return place.key
        return place._replace(microbatch=place.microbatch - len(self.micro_batches)).key
