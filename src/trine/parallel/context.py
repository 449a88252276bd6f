"""What all programs of one job share: sizes, splits, stages, and how long each operator takes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from trine.compute import Split
from trine.errors import PlanError
from trine.model.program import PHASE_BACKWARD, PHASE_FORWARD, PHASE_OPTIMIZER, Label
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.ownership import OwnedWeight, owned_weights, trained_bytes
from trine.parallel.plan import Plan, micro_batches
from trine.parallel.stages import Stages, cut_into_stages
from trine.parallel.tensor import TensorSplit, local_parameter_bytes, split_operators

if TYPE_CHECKING:
    from trine.compute import ComputeModel, LaunchCosts

PHASE_NUMBER = {FORWARD: PHASE_FORWARD, BACKWARD: PHASE_BACKWARD, OPTIMIZER: PHASE_OPTIMIZER}


class JobContext:
    """A workload under a plan.

    batch: samples of one replica. micro_batches: their sizes. splits: how operators are split over tp ranks.
    divided: storages of which a tp rank holds its part only. stages, weights: the pipeline, and the weights of each
    stage. local_bytes: bytes of each weight on one tp rank. evidence_ps: operator time by evidence, over all programs.
    """

    def __init__(self, workload: Workload, plan: Plan, compute: ComputeModel, launch: LaunchCosts | None) -> None:
        self.workload = workload
        self.plan = plan
        self.compute = compute
        self.batch = plan.batch if plan.batch is not None else workload.batch
        if self.batch != workload.batch and not any(t.batch_dims for t in workload.tensors.values()):
            raise PlanError(
                f"nothing in the trace scales with the batch, so it runs at its own batch of {workload.batch} only"
            )
        self.micro_batches = micro_batches(self.batch, plan.micro_batch)
        self.operators = {op.id: op for op in workload.operators}
        self.operator_index = {op.id: i for i, op in enumerate(workload.operators)}
        self.layer_names = tuple(dict.fromkeys(op.layer for op in workload.operators))
        self.layer_index = {name: i for i, name in enumerate(self.layer_names)}
        self.launch_ps = dict(zip(self.operators, launch.cost_ps, strict=True)) if launch is not None else {}
        self.splits: dict[int, TensorSplit] = {}
        self.divided: frozenset[int] = frozenset()
        if plan.tp > 1:
            self.splits, self.divided = split_operators(workload, plan.tp_style)
            if not self.splits:
                raise PlanError("tensor parallelism finds no linear, convolution or embedding with a weight to split")
        self.local_bytes = local_parameter_bytes(workload, self.splits, plan.tp)
        self.evidence_ps: dict[str, int] = {}
        self.stages = self._cut()
        self.weights: list[list[OwnedWeight]] = owned_weights(workload, plan.pp, self.stages.stage_of)
        self.total_trained_bytes = sum(p.size_bytes for p in workload.parameters if p.gradient_operator is not None)
        if plan.dp > 1 and workload.is_training and not self.total_trained_bytes:
            raise PlanError(
                "the trace names no weights with gradients, so data-parallel replicas have nothing to reduce: record "
                "it with tensor shapes and an optimizer step"
            )

    def _cut(self) -> Stages:
        time: dict[int, int] = {}
        if self.plan.pp > 1 and not self.plan.cuts:
            largest = max(self.micro_batches)
            time = {
                op.id: self.duration(op, largest, count=False)
                for op in self.workload.operators
                if op.phase != OPTIMIZER
            }
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
        """Bytes of a whole tensor when the step runs at ``batch`` samples, rounded up."""
        tensor = self.workload.tensors[tensor_id]
        scale = Fraction(batch, self.workload.batch) ** len(tensor.batch_dims)
        return -(-tensor.size_bytes * scale.numerator // scale.denominator)

    def rank_bytes(self, tensor_id: int, batch: int) -> int:
        """Bytes of a tensor that one rank of the tp group holds: its part, where the tensor is divided."""
        size = self.scaled_bytes(tensor_id, batch)
        return -(-size // self.plan.tp) if self.workload.tensors[tensor_id].storage in self.divided else size

    def input_bytes(self, operators: Iterable[Operator], batch: int) -> int:
        """Bytes of the data that ``operators`` are given from outside: largest view of each storage, at ``batch``."""
        made = {self.workload.tensors[t].storage for op in self.workload.operators for t in op.outputs}
        sizes: dict[int, int] = {}
        for op in operators:
            for tensor_id in op.inputs:
                tensor = self.workload.tensors[tensor_id]
                if tensor.role == "input" and tensor.storage not in made:
                    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), self.scaled_bytes(tensor_id, batch))
        return sum(sizes.values())

    def buffer_bytes(self, operators: Iterable[Operator]) -> int:
        """Bytes of the buffers (running statistics) that ``operators`` read."""
        tensors = self.workload.tensors
        sizes = {
            tensors[t].storage: tensors[t].size_bytes
            for op in operators
            for t in op.inputs
            if tensors[t].role == "buffer"
        }
        return sum(sizes.values())

    def optimizer_share(self, stage: int) -> Fraction:
        """The part of the recorded optimizer step that one rank of ``stage`` does: that of its weights' bytes."""
        if not self.total_trained_bytes:
            return Fraction(1, self.plan.pp * self.plan.tp)
        own = trained_bytes(self.weights[stage], self.local_bytes)
        return min(Fraction(own, self.total_trained_bytes), Fraction(1))

    def label(self, op: Operator, stage: int, microbatch: int, step: int) -> Label:
        """The label of an operator; the optimizer belongs to no micro-batch."""
        microbatch = -1 if op.phase == OPTIMIZER else microbatch
        phase = PHASE_NUMBER[op.phase]
        return Label(phase, self.operator_index[op.id], self.layer_index[op.layer], stage, microbatch, step)

    def algorithm(self, collective: str) -> str | None:
        """The algorithm that the plan names for a collective; None for the default."""
        return dict(self.plan.algorithms).get(collective)
