"""The computation of one GPU in one step: operators on tensors, in execution order.

Frozen data without logic. Readers in :mod:`trine.workload` create it, :mod:`trine.parallel` spreads it over ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trine.common import shown
from trine.common.shown import OneLine, titled
from trine.common.units import format_time

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = (FORWARD, BACKWARD, OPTIMIZER)

#: ``Workload.format`` of a workload synthesised from a model's shapes: its times are predictions.
SYNTHESISED = "synthesised"
#: Assumption of a workload with experts, which a plan's ``expert_imbalance`` replaces.
EVEN_EXPERTS = "every expert gets the same number of tokens; no token is dropped"

#: Entry of ``Workload.missing`` for a profile without GPU kernels.
GPU_KERNELS = "GPU kernels"
#: Key of ``Workload.metadata``: picoseconds of the traced step, with the profiler on.
TRACED_STEP = "traced_step_ps"

#: Key of ``Workload.metadata``: picoseconds between two kernels of one stream whose launches delay neither.
KERNEL_GAP = "kernel_gap_ps"

#: Key of ``Workload.metadata``: median picoseconds of a kernel launch call, with the profiler on.
LAUNCH_CALL = "launch_call_ps"

#: Key of ``Workload.metadata``: the machine of a trace without GPU kernels, unless it is a CPU.
RECORDED_ON = "recorded_on"

#: Key of ``Workload.metadata``: the part of a model that the trace holds, in words, unless it is the whole model.
SHARD = "shard"

#: Roles of tensors: ``input`` (data and targets of the step), ``weight`` (trained), ``buffer`` (persistent but not
#: trained: running mean), ``table`` (embedding rows of this rank alone, which take part in no collective),
#: ``gradient`` (of a weight), ``optimizer_state``, ``activation`` (intermediate result).
ROLES = ("input", "weight", "buffer", "gradient", "optimizer_state", "activation", "table")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor(OneLine):
    """One tensor as an operator sees it.

    ``batch_dims`` are the dimensions whose size is proportional to the batch; empty for weights, weight gradients,
    optimizer state, and statistics. Tensors with the same ``storage`` share memory.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    storage: int
    role: str
    batch_dims: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator(OneLine):
    """One operator that ran on the GPU.

    ``gpu_time_ps`` is the recorded busy time of its kernels. ``launch_start_ps`` and ``launch_duration_ps`` are the CPU
    side: the start of the launch in the launching thread, from the start of the step, and its duration, on a clock that
    stops while the thread waits for the GPU; None if the trace has no CPU side. ``forward_id`` of a backward operator
    is the operator whose gradient it computes. ``attributes`` holds facts missing from the shapes (stride, padding,
    dilation, groups, transposed, num_heads, causal, ...). ``kernel_times_ps`` are the recorded times of its kernels in
    order, if the trace has them.
    """

    id: int
    name: str
    phase: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    gpu_time_ps: int
    launch_start_ps: int | None = None
    launch_duration_ps: int | None = None
    forward_id: int | None = None
    layer: str = ""
    kernel_times_ps: tuple[int, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A trained weight, and the source of its gradient.

    ``gradient`` is the id of the gradient tensor, if the trace has one. ``gradient_operator`` is the id of the last
    backward operator that adds to the gradient (None in an inference step, or if the weight gets no gradient).
    """

    weight: int
    size_bytes: int
    gradient: int | None
    gradient_operator: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCollective(OneLine):
    """All collectives of one operation in the trace of a distributed job; they are not operators.

    ``size_bytes`` is the sum of their message sizes, or None if the trace does not record it. ``time_ps`` is the time
    of their kernels, or of their calls if no kernel was recorded.
    """

    operation: str
    count: int
    size_bytes: int | None
    time_ps: int


class Recipe(Protocol):
    """The recipe of a synthesised workload: ``software`` is its profile, ``is_said`` whether the user chose it."""

    @property
    def software(self) -> Any: ...

    @property
    def is_said(self) -> bool: ...

    @property
    def operators(self) -> tuple[Operator, ...]: ...

    def packed(self, documents: str) -> Workload:
        """Write the workload with packed documents."""
        ...

    def cast(self, precision: str) -> Workload:
        """Write the workload with the casts of a recipe."""
        ...

    def tuned(self, trainable: str) -> Workload:
        """Write the workload with adapters beside frozen weights."""
        ...

    def again(self, workload: Workload, software: Any) -> Workload:
        """Write ``workload`` for another profile; return it unchanged if it was modified since it was written."""
        ...

    def on(self, workload: Workload, gpu: str) -> Workload | None:
        """Return ``workload`` with its times on another GPU; None if it was modified since it was written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Workload(OneLine):
    """One step of a job on one GPU, as recorded.

    ``operators`` are in execution order on the GPU; ``parameters`` in the model's registration order. ``assumptions``
    are sentences about gaps in the trace and the values that fill them; ``missing`` names the gaps.
    ``unprofiled_step_ps`` is the step time measured without the profiler, if the trace has it. ``recipe``: how a
    workload was synthesised. ``collectives`` are those the recorded job ran; a layout replaces them by new ones.
    """

    name: str
    source: str
    format: str
    gpu: str | None
    batch: int
    operators: tuple[Operator, ...]
    tensors: Mapping[int, Tensor]
    parameters: tuple[Parameter, ...]
    missing: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    unprofiled_step_ps: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    recipe: Recipe | None = field(default=None, compare=False, repr=False)
    collectives: tuple[RecordedCollective, ...] = ()

    def __repr__(self) -> str:
        return titled(self, self._headline)

    def _repr_html_(self) -> str:
        operators = [
            {"id": op.id, "name": op.name, "phase": op.phase, "time": format_time(op.gpu_time_ps)}
            for op in self.operators[: shown.MAX_ROWS + 1]
        ]
        facts = {"source": self.source, "format": self.format, "GPU": self.gpu or "not known", "batch": self.batch}
        times = {f"{phase} operators": self._of_phase(phase) for phase in PHASES}
        return shown.page(
            self._headline,
            shown.facts({**facts, **times}),
            shown.table("operators", operators),
            shown.folded("assumptions", self.assumptions),
        )

    @property
    def _headline(self) -> str:
        return (
            f"{self.name}, batch {self.batch}: {len(self.operators):,} operators, {len(self.parameters):,} parameters"
        )

    def _of_phase(self, phase: str) -> str:
        times = [op.gpu_time_ps for op in self.operators if op.phase == phase]
        return f"{len(times):,} in {format_time(sum(times))}" if times else "none"

    @property
    def has_gpu_times(self) -> bool:
        """Whether operator times come from a GPU; a step on a CPU, or on meta tensors, has CPU times."""
        return GPU_KERNELS not in self.missing

    @property
    def recorded_on(self) -> str:
        """The machine of the operator times, in words."""
        if self.has_gpu_times:
            return self.gpu or "a GPU that the trace does not name"
        return self.metadata.get(RECORDED_ON, "a CPU")

    @property
    def is_training(self) -> bool:
        """Whether the step has a backward phase."""
        return any(op.phase == BACKWARD for op in self.operators)
