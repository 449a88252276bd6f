"""State shared by all programs of one job: sizes, splits, stages, and operator times."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trine.common.units import PS_PER_S
from trine.compute.resize import Split
from trine.engine._limits import MAX_PS
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.chunks import Chunk, Place, operators_by_chunk
from trine.parallel.plan import TIME, Plan, micro_batches
from trine.parallel.rank_kinds import MixedGpus, balanced_batches, check_counts, gpus_of_stages, replica_of
from trine.parallel.recompute import (
    check_recompute,
    kept_operators,
    left_out_again,
    recompute_notes,
    recomputed,
)
from trine.parallel.schedules import SCHEDULES, Pipeline
from trine.parallel.splits import TensorLayout, TensorSplit, local_parameter_bytes, rank_part, tensor_layout
from trine.parallel.stages import (
    BOTH,
    INPUT_PART,
    Crossing,
    OwnedWeight,
    Stages,
    cut_into_stages,
    owned_weights,
    trained_bytes,
)
from trine.parallel.token_partition import TokenPartition, expert_load, is_expert

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts
    from trine.software.profile import MemoryStyle, Software, ZeroStyle

#: Sums of some thousand tensors of this size still fit into an int64.
MAX_TENSOR_BYTES = 2**50
#: The share of an undivided operator.
WHOLE = Fraction(1)
PHASE_NUMBER = {FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, OPTIMIZER: Phase.OPTIMIZER}


class JobContext:
    """A workload under a plan.

    batch: samples of one replica. micro_batches: their sizes. tensor: the layout over tp ranks; splits: tensor splits
    of operators; divided: storages split over tp ranks, and the part on each rank. pipeline, schedule: the shape of the
    pipeline and the order of its passes. stages, chunks: the parts of the model; a pipeline rank holds one or several
    chunks. runs_again: recomputed forward operators. weights: the weights of each pipeline rank.
    token_partition, expert_load: parts of the tokens and experts. local_bytes: bytes of each weight on one tp and ep
    rank. software: the profile, or None. made_storages: storages that any operator writes. mixed: the GPU models of the
    ranks if there are several; the context then describes the first. replica_batches: samples of each replica if they
    differ; the context then describes the largest. kind: the name of its kind of ranks.
    evidence_ps: operator time by evidence, over all programs. notes: sentences for the warnings.
    """

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        compute: ComputeModel,
        launch: LaunchCosts | None,
        software: Software | None = None,
        mixed: MixedGpus | None = None,
    ) -> None:
        self.workload = workload
        self.plan = plan = plan.filled()
        self.compute = compute
        self.mixed = mixed
        self.kind = ""
        explicit = () if plan.replica_batches == TIME else tuple(int(size) for size in plan.replica_batches)
        self.batch = max(explicit, default=plan.batch if plan.batch is not None else workload.batch)
        if self.batch != workload.batch and not any(t.batch_dims for t in workload.tensors.values()):
            raise PlanError(
                f"nothing in the trace scales with the batch, so it runs at its own batch of {workload.batch} only"
            )
        self.micro_batches = micro_batches(self.batch, plan.micro_batch)
        self.operators = {op.id: op for op in workload.operators}
        self.operator_index = {op.id: i for i, op in enumerate(workload.operators)}
        self.layer_names = tuple(dict.fromkeys(op.layer for op in workload.operators))
        self.layer_index = {name: i for i, name in enumerate(self.layer_names)}
        self.launch = launch
        self._launches = {} if launch is None else dict(zip(self.operators, launch.launches(), strict=True))
        self.tensor = tensor_layout(workload, plan) if plan.tp > 1 or plan.expert_tp > 1 else TensorLayout()
        self.splits, self.divided = self.tensor.splits, self.tensor.divided
        self.local_bytes = local_parameter_bytes(workload, self.splits, plan.tp, plan.expert_tp)
        self.token_partition = TokenPartition(workload, plan)
        self.expert_load = expert_load(workload, plan)
        self.local_bytes |= {t: -(-self.local_bytes[t] // plan.ep) for t in self.token_partition.expert_weights}
        self.evidence_ps: dict[str, int] = {}
        self.host_bytes_per_s: float | None = None  # host memory bandwidth per rank, set only if needed
        self.software = software
        self.gpu_factor = 1.0 if software is None else software.factors.gpu.value
        self._durations: dict[tuple[object, ...], tuple[int, str]] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self.made_storages = {workload.tensors[t].storage for op in workload.operators for t in op.outputs}
        self.pipeline = Pipeline(plan.pp, len(self.micro_batches), plan.virtual_stages, workload.is_training)
        self.schedule = SCHEDULES.get(plan.schedule if plan.pp > 1 and plan.schedule else "1f1b")
        self.schedule.check(self.pipeline)
        self.stages = self._cut()
        batches = self._balanced_batches() if plan.replica_batches == TIME else explicit
        self.replica_batches = batches if len(set(batches)) > 1 else ()
        if batches:
            check_counts(plan, batches)
            self._set_batch(max(batches))
        self._earlier = self._earlier_targets()
        self.chunks = self._chunks()
        self.weights: list[list[OwnedWeight]] = owned_weights(workload, plan.pp, self._ranks_of_operators())
        self._gradient_of = {p.weight: p.gradient for p in workload.parameters if p.gradient is not None}
        self.total_trained_bytes = sum(p.size_bytes for p in workload.parameters if p.gradient_operator is not None)
        if plan.dp * plan.cp > 1 and workload.is_training and not self.total_trained_bytes:
            raise PlanError(
                "the trace names no weights with gradients, so data-parallel replicas have nothing to reduce: record "
                "it with tensor shapes and an optimizer step"
            )

    @cached_property
    def memory_style(self) -> MemoryStyle:
        """Memory settings of the profile, or the defaults without a profile."""
        from trine.software import MemoryStyle

        return MemoryStyle() if self.software is None else self.software.memory

    @cached_property
    def zero_style(self) -> ZeroStyle:
        """ZeRO 1 and 2 settings of the profile, or the defaults without a profile."""
        from trine.software import ZeroStyle

        return ZeroStyle() if self.software is None else self.software.zero

    def _cut(self) -> Stages:
        """Cut the model; recomputed operators count twice, unless they depend on the cuts (``recompute_layers``)."""
        times: list[dict[int, int]] = [{}]
        of_chunk: list[list[int]] = []
        if self.plan.pp > 1 and not self.plan.cuts and self.plan.balance == "time":
            times = [self._pass_times(max(self.micro_batches), number) for number in range(self.num_gpu_models)]
            gpus = gpus_of_stages(self.plan, self.mixed)
            of_chunk = [sorted({gpu for stage in held for gpu in gpus[stage]}) for held in self._holders()]
        return cut_into_stages(
            self.workload, self.pipeline.num_chunks, self.plan.cuts, times[0], self.plan.balance or "time",
            [[times[gpu] for gpu in used] for used in of_chunk] if len(times) > 1 else (),
        )  # fmt: skip

    def _pass_times(self, batch: int, gpu: int) -> dict[int, int]:
        """Return operator id -> time in one forward and backward pass of ``batch`` samples on a GPU model, in ps."""
        here = self.on_gpu(gpu)
        time = {op.id: here.duration(op, batch, count=False) for op in self.workload.operators if op.phase != OPTIMIZER}
        if self.plan.recompute_layers is None and self.workload.is_training:
            forward = [op for op in self.workload.operators if op.phase == FORWARD]
            segments = self._recomputed(forward)
            left_out = self._left_out_again(segments)
            again = (op.id for segment in segments for op in segment if op.id not in left_out)
            time |= {op_id: 2 * time[op_id] for op_id in again}
        return time

    def _balanced_batches(self) -> tuple[int, ...]:
        """Return replica batches whose slowest stages end together, as closely as micro-batches allow."""
        plan, size = self.plan, max(self.micro_batches)
        stage_ps = np.zeros((self.num_gpu_models, plan.pp))
        for gpu in range(self.num_gpu_models):
            for op_id, ps in self._pass_times(size, gpu).items():
                for stage in self._ranks_of_operators()[op_id]:
                    stage_ps[gpu, stage] += ps / size
        ranks = np.arange(plan.num_ranks, dtype=np.int64)
        gpu_of = np.zeros(len(ranks), np.int64) if self.mixed is None else self.mixed.of_rank
        sample_ps = np.zeros(plan.dp)
        np.maximum.at(sample_ps, replica_of(plan), stage_ps[gpu_of, RankGrid(plan.axes).coordinates(ranks, "pp")])
        return balanced_batches(self.batch * plan.dp, plan.micro_batch or 1, sample_ps.tolist())

    def _chunks(self) -> list[Chunk]:
        operators = operators_by_chunk(self.workload, self.stages)
        segments = [self._recomputed(forward) for forward, _ in operators]
        whole = [segment for of_chunk in segments for segment in of_chunk]
        left_out = self._left_out_again(whole)
        together = [[op for op in segment if op.id not in left_out] for segment in whole]
        self.runs_again = {op.id for segment in together for op in segment}
        check_recompute(self.workload, self.plan, segments)
        self.notes = recompute_notes(self.plan, together)
        splits = self.schedule.splits_backward
        return [
            Chunk(i, self.stages, operators[i], segments[i], splits, left_out) for i in range(self.pipeline.num_chunks)
        ]

    def _left_out_again(self, segments: Sequence[Sequence[Operator]]) -> frozenset[int]:
        """Return operators of the segments that this software does not recompute."""
        software = self.software
        kept = kept_operators(self.workload, self.plan, segments, self.memory_style)
        stops = software is not None and software.operators.checkpoint == "early-stop" and self.plan.recompute == "full"
        return kept | left_out_again(self.workload, segments) if stops else kept

    def _recomputed(self, forward: Sequence[Operator]) -> list[list[Operator]]:
        return recomputed(self.workload, self.plan, forward, self.memory_style.selective)

    def earlier_targets(self, crossing: Crossing) -> tuple[int, ...]:
        """Return earlier stages that receive the same tensor."""
        return self._earlier.get(crossing, ())

    def _earlier_targets(self) -> dict[Crossing, tuple[int, ...]]:
        targets: dict[tuple[int, int], list[int]] = {}
        found: dict[Crossing, tuple[int, ...]] = {}
        for crossing in self.stages.crossings:
            before = targets.setdefault((crossing.producer, crossing.tensor), [])
            if before:
                found[crossing] = tuple(before)
            before.append(crossing.target)
        return found

    def _holders(self) -> list[list[int]]:
        """Return the pipeline ranks that hold each chunk."""
        holders: list[list[int]] = [[] for _ in range(self.pipeline.num_chunks)]
        for rank in range(self.plan.pp):
            for chunk in self.schedule.chunks_of(rank, self.pipeline):
                holders[chunk].append(rank)
        return holders

    def _ranks_of_operators(self) -> dict[int, tuple[int, ...]]:
        """Return forward or backward operator id -> the pipeline ranks that run it."""
        holders = self._holders()
        return {op_id: tuple(holders[chunk]) for op_id, chunk in self.stages.stage_of.items()}

    def launch_of(self, op: Operator, stage: int) -> tuple[int, float]:
        """Return the launching thread's time for an operator on one rank of ``stage``, in ps, and its launches."""
        ps, kernels, by_weight = self._launches[op.id]
        if by_weight:
            # Launches scale with the number of trained weights on one rank of ``stage``
            total = sum(p.gradient_operator is not None for p in self.workload.parameters)
            own = sum(w.gradient_operator is not None for w in self.weights[stage])
            share = own / total if total else 1.0
            return round(ps * share), kernels * share
        return ps, kernels

    def gradient_bytes(self, weight: int) -> int:
        """Return the bytes of a weight's gradient on one rank, in the dtype of its accumulation and reduction."""
        size, whole = self.local_bytes[weight], self.workload.tensors[weight].size_bytes
        gradient = self._gradient_of.get(weight)
        made = whole if gradient is None else self.workload.tensors[gradient].size_bytes
        return size if made == whole or not whole else -(-size * made // whole)

    def gradient_dtype(self, weight: int) -> str:
        """Return the dtype of a weight's gradient, or the weight's dtype if the workload names no gradient."""
        return self.workload.tensors[self._gradient_of.get(weight, weight)].dtype

    def split_of(self, op: Operator) -> TensorSplit | None:
        """Return the tensor split of an operator; a backward operator uses its forward operator's split."""
        owner = op.forward_id if op.phase == BACKWARD else op.id
        return self.splits.get(owner) if owner is not None else None

    def duration(
        self, op: Operator, batch: int, share: Fraction = WHOLE, *, count: bool = True, part: str = BOTH
    ) -> int:
        """Return the time of an operator at ``batch`` samples on one rank of the tp group, in picoseconds.

        ``part``: one of the two products of a backward operator that runs in halves. trine assumes half of the time
        for each product; the gradient of activations is rounded up.
        """
        # A fraction takes longer to hash than the other parts of the key, and nearly every operator runs whole.
        key = (op.id, batch, part) if share is WHOLE else (op.id, batch, part, share)
        known = self._durations.get(key)
        if known is None:
            known = self._durations[key] = self._duration(op, batch, share, part)
        ps, evidence = known
        if count:
            self.evidence_ps[evidence] = self.evidence_ps.get(evidence, 0) + ps
        return ps

    def slowest(self, op: Operator, batch: int, part: str = BOTH) -> int:
        """Return the time on the slowest GPU model: passes that run together alternate in the same way on each."""
        if self.mixed is None:
            return self.duration(op, batch, count=False, part=part)
        return max(self._duration(op, batch, WHOLE, part, model)[0] for model in self.mixed.models)

    def _duration(
        self, op: Operator, batch: int, share: Fraction, part: str, compute: ComputeModel | None = None
    ) -> tuple[int, str]:
        model = self.compute if compute is None else compute
        answer = model.duration(op, self.token_partition.split(op, batch, share, self.split_of(op)))
        ps = answer.ps * self.token_partition.repeats(op)
        if self.gpu_factor != 1:
            ps = round(ps * self.gpu_factor)
        if ps > MAX_PS:
            raise PlanError(f"operator {op.layer or op.name!r} takes {ps / PS_PER_S:.3g} s, more than a run may last")
        if part == BOTH:
            return ps, answer.evidence
        return (ps + (part == INPUT_PART)) // 2, "assumed"

    def copy_ps(self, tensor_id: int, batch: int) -> int:
        """Return the time of a copy of a tensor on the tokens of one rank, with all features, in picoseconds."""
        copied = Operator(
            id=-1, name="aten::cat", phase=FORWARD, inputs=(tensor_id,), outputs=(tensor_id,), gpu_time_ps=0
        )
        split = Split(batch=batch, tokens=self.token_partition.context)
        return round(self.compute.duration(copied, split).ps * self.gpu_factor)

    def scaled_bytes(self, tensor_id: int, batch: int) -> int:
        """Return a tensor's bytes on the tokens of one rank at ``batch`` samples, with all features, rounded up."""
        size = self._bytes.get((tensor_id, batch))
        if size is None:
            tensor = self.workload.tensors[tensor_id]
            scale = Fraction(batch, self.workload.batch) ** len(tensor.batch_dims) * self.token_partition.of_tensor(
                tensor
            )
            whole = self.tensor.padded_bytes.get(tensor_id, tensor.size_bytes)
            size = self._bytes[tensor_id, batch] = -(-whole * scale.numerator // scale.denominator)
            if size > MAX_TENSOR_BYTES:
                raise PlanError(f"a tensor of {size / 2**50:.3g} PiB at a batch of {batch} is more than any GPU holds")
        return size

    def gathered_bytes(self, op: Operator, tensor_id: int, batch: int) -> int:
        """Return the bytes of an input or result of ``op`` on the tokens of its whole tensor-parallel group."""
        size = self.scaled_bytes(tensor_id, batch)
        part = self.token_partition.expert_tokens if is_expert(op) else WHOLE
        return size if part == WHOLE else -(-size * part.numerator // part.denominator)

    def rank_bytes(self, tensor_id: int, batch: int) -> int:
        """Return the bytes of a tensor on one rank of the tp group: its part if features or tokens are divided."""
        size, tensor = self.scaled_bytes(tensor_id, batch), self.workload.tensors[tensor_id]
        part = self.divided.get(tensor.storage, WHOLE)
        if part == WHOLE and self.plan.sequence_parallel and self.token_partition.has_tokens(tensor):
            part = Fraction(1, self.plan.tp)
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

    def output_share(self, op: Operator) -> Fraction:
        """Return the part of an operator's output that one rank of the tp group holds.

        Divided forward outputs: outputs that stay split, and outputs of operators on divided tensors. Divided backward
        outputs: gradients of a divided input, as in a row split. Sequence parallelism divides everything.
        """
        split = self.split_of(op)
        if split is not None and split.groups is not None and (op.phase == FORWARD or split.mode == "shared"):
            return rank_part(self.workload.tensors[op.outputs[0]], split.groups, self.plan.tp)
        if self.plan.sequence_parallel:
            return Fraction(1, self.plan.tp)
        if split is None:
            return Fraction(1)
        divided = split.mode == "shared" or (
            split.mode == "row" if op.phase == BACKWARD else split.mode == "column" and not split.forward
        )
        return Fraction(1, self.plan.tp) if divided else Fraction(1)

    @property
    def num_gpu_models(self) -> int:
        return 1 if self.mixed is None else len(self.mixed.models)

    def on_gpu(self, number: int) -> JobContext:
        """Return this context for ranks on one of the GPU models, by its index in ``mixed``."""
        if self.mixed is None or self.mixed.models[number] is self.compute:
            return self
        other = copy.copy(self)
        other.compute = self.mixed.models[number]
        other._durations = {}
        return other

    def with_batch(self, batch: int) -> JobContext:
        """Return this context for replicas of ``batch`` samples."""
        if batch == self.batch:
            return self
        other = copy.copy(self)
        other._set_batch(batch)
        return other

    def _set_batch(self, batch: int) -> None:
        self.batch = batch
        self.micro_batches = micro_batches(batch, self.plan.micro_batch)
        self.pipeline = self.pipeline._replace(num_microbatches=len(self.micro_batches))
        self.schedule.check(self.pipeline)

    def named(self, kind: str) -> JobContext:
        """Return this context with a name for its kind of ranks."""
        if not kind:
            return self
        other = copy.copy(self)
        other.kind = kind
        return other

    def replica_key(self, place: Place) -> tuple[int | str, ...]:
        """Return the key of a reduction over replicas, counted from the last micro-batch if their counts differ."""
        if not self.replica_batches:
            return place.key
        return place._replace(microbatch=place.microbatch - len(self.micro_batches)).key

    def with_load(self, load: Fraction) -> JobContext:
        """Return this context for a rank whose experts get ``load`` times an even share of the tokens."""
        if load == self.token_partition.load:
            return self
        other = copy.copy(self)
        other.token_partition = copy.copy(self.token_partition)
        other.token_partition.load = load
        other._durations, other._bytes = {}, {}
        return other

    def input_bytes(self, operators: Iterable[Operator], batch: int) -> int:
        """Return the bytes of input data that ``operators`` read: the largest view of each storage, at ``batch``."""
        sizes: dict[int, int] = {}
        for op in operators:
            for tensor_id in op.inputs:
                tensor = self.workload.tensors[tensor_id]
                if tensor.role == "input" and tensor.storage not in self.made_storages:
                    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), self.scaled_bytes(tensor_id, batch))
        return sum(sizes.values())

    def buffer_bytes(self, operators: Iterable[Operator]) -> int:
        """Return the bytes of the buffers (running statistics) that ``operators`` read."""
        tensors = self.workload.tensors
        sizes = {
            tensors[t].storage: tensors[t].size_bytes
            for op in operators
            for t in op.inputs
            if tensors[t].role == "buffer"
        }
        return sum(sizes.values())

    def optimizer_share(self, stage: int) -> Fraction:
        """Return the share of the recorded optimizer step on one rank of ``stage``, by the bytes of its weights."""
        if not self.total_trained_bytes:
            return Fraction(1, self.plan.pp * self.plan.tp)
        own = trained_bytes(self.weights[stage], self.local_bytes)
        return min(Fraction(own, self.total_trained_bytes), Fraction(1))

    def label(self, op: Operator, stage: int, microbatch: int, step: int, rerun: bool = False) -> Label:
        """Return the label of an operator. ``rerun``: it is recomputed. The optimizer belongs to no micro-batch."""
        microbatch = -1 if op.phase == OPTIMIZER else microbatch
        phase = Phase.RECOMPUTE if rerun else PHASE_NUMBER[op.phase]
        return Label(phase, self.operator_index[op.id], self.layer_index[op.layer], stage, microbatch, step)

    def algorithm(self, collective: str) -> str | None:
        """Return the plan's algorithm for a collective, or None for the default."""
        return dict(self.plan.algorithm).get(collective)
