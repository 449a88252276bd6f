"""The clock of a step from its power balance, at the GPU's default limit and under a power cap alike.

A GPU above its power limit lowers its clock, and with it its voltage. Operators limited by compute follow the clock;
operators limited by memory keep their time. The controller averages over many kernels, so one clock serves the whole
step. GEMMs have a ceiling besides: dense tensor cores run below the maximum clock even far below the power limit, which
GEMMs of zeros show. Times of the tables belong to a known clock (``table_mhz``), so :mod:`trine.compute.clock` scales
them to the clock of the step. Parameters and sources: ``presets/power_curves.yaml``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from trine.cluster.presets import GpuSpec
from trine.common.kept import keep
from trine.common.precision import PRECISIONS
from trine.common.units import PS_PER_S
from trine.compute.cost import Sizing, Work
from trine.compute.kinds import family_of, is_backward, is_compute_bound, kind_of
from trine.compute.models import ComputeModel
from trine.compute.power_curve import PowerCurve
from trine.compute.resize import Split
from trine.compute.roofline import TABLES, alike_in, has_tf32_products, peak, precision_of
from trine.compute.tables.times import GAP_US, number_of
from trine.graph.workload import Operator, Workload

#: Part of a memory-bound operator's dynamic power that follows the clock: SMs and L2; the rest is in the HBM (assumed).
CLOCKED = 0.5
#: Precisions of the tensor cores whose GEMMs have a ceiling of their clock.
_TENSOR_CORES = frozenset(precision.name for precision in PRECISIONS if precision.on_tensor_cores)
#: Bisections of the clock, to less than 0.01 MHz.
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The busy time of a step at the maximum clock by bound, in seconds, and its dynamic energy, in J.

    gemm_s, gemm_j: GEMMs of the tensor cores, whose clock has a ceiling. compute_s: other operators limited by compute.
    clocked_j: energy of all operators but those GEMMs that scales with V^2; steady_j: energy of the memory, whatever
    the clock. gap_s: time between kernels, which needs no dynamic energy.
    """

    compute_s: float
    memory_s: float
    clocked_j: float
    steady_j: float
    gemm_s: float = 0.0
    gemm_j: float = 0.0
    gap_s: float = 0.0

    def time_s(self, curve: PowerCurve, clock: float) -> float:
        """Return the busy time at a clock, as a fraction of the maximum."""
        return self.compute_s / clock + self.gemm_s / min(clock, curve.ceiling) + self.memory_s

    def power_w(self, curve: PowerCurve, clock: float) -> float:
        """Return the mean power at a clock, as a fraction of the maximum."""
        gemm_j = self.gemm_j * curve.squared_voltage(min(clock, curve.ceiling))
        joules = gemm_j + self.clocked_j * curve.squared_voltage(clock) + self.steady_j
        return curve.static_w + joules / (self.time_s(curve, clock) + self.gap_s)

    def mean_clock(self, curve: PowerCurve, clock: float) -> float:
        """Return the clock averaged over the busy time, as NVML reports it: GEMMs run at most at their ceiling."""
        gemm_s = self.gemm_s / min(clock, curve.ceiling)
        total_s = self.time_s(curve, clock) + self.gap_s
        return (gemm_s * min(clock, curve.ceiling) + (total_s - gemm_s) * clock) / total_s

    def clock_at(self, curve: PowerCurve, limit_w: float) -> float:
        """Return the highest clock with at most ``limit_w``, as a fraction of the maximum; at least the lowest."""
        low, high = curve.lowest, 1.0
        if self.power_w(curve, high) <= limit_w:
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.power_w(curve, middle) <= limit_w else (low, middle)
        return low

    def scaled(self, factor: float) -> StepLoad:
        """Return the load with its dynamic energy multiplied by ``factor``."""
        parts = {name: getattr(self, name) * factor for name in ("clocked_j", "steady_j", "gemm_j")}
        return replace(self, **parts)


class Bounds:
    """Which of a workload's operators the GPU's compute limits: their FLOPs take longer than their bytes."""

    def __init__(self, workload: Workload, gpu: GpuSpec) -> None:
        self._workload, self._gpu, self._sizing = workload, gpu, Sizing(workload)
        self._has_tf32 = has_tf32_products(workload, gpu)
        self._alike = alike_in(workload)

    def first_alike(self, operator: Operator) -> int:
        """Return the id of the first operator with the same work and arithmetic under any split."""
        return self._alike.first(operator)

    def work(self, operator: Operator, split: Split) -> Work:
        """Return the FLOPs and bytes of an operator."""
        return self._sizing.work(operator, split)

    def is_gemm(self, operator: Operator) -> bool:
        """Return whether the operator is a matrix product on the tensor cores."""
        return family_of(kind_of(operator)) in ("linear", "matmul") and self.precision(operator) in _TENSOR_CORES

    def precision(self, operator: Operator) -> str:
        """Return the precision of an operator's arithmetic."""
        return precision_of(operator, self._workload.tensors, self._has_tf32)

    def is_compute(self, operator: Operator, split: Split) -> bool:
        """Return whether compute limits the operator."""
        if not is_compute_bound(kind_of(operator)):
            return False
        work = self.work(operator, split)
        return work.flops / peak(self._gpu, self.precision(operator)) > work.bytes / self._gpu.memory_bytes_per_s


def load_of(
    workload: Workload, model: ComputeModel, bounds: Bounds, curve: PowerCurve, batch: int, micro_batches: int = 1
) -> StepLoad:
    """Return the load of one micro-batch of ``batch`` samples on one GPU, with its part of the optimizer.

    Times of the model count as times at the maximum clock, except GEMMs from tables, which belong to a known clock.
    """
    split, is_table = Split(batch), model.name == TABLES and curve.tensor is not None
    compute_s = memory_s = gemm_s = gemm_j = compute_j = gaps_s = 0.0
    for operator, count in _with_counts(workload, is_table):
        seconds = count * model.duration(operator, split).ps / PS_PER_S
        if operator.phase == "optimizer":
            memory_s += seconds / micro_batches
            continue
        gap_s = min(count * launches_of(operator) * GAP_US * 1e-6, seconds / 2) if is_table else 0.0
        gaps_s += gap_s
        seconds -= gap_s
        if not bounds.is_compute(operator, split):
            memory_s += seconds
            continue
        flops = count * bounds.work(operator, split).flops
        if operator.attributes.get("causal") is True:
            flops //= 2  # work counts all scores
        joules = flops * 1e-12 * pj_per_flop(curve, operator, bounds.precision(operator))
        if bounds.is_gemm(operator):
            gemm_s += seconds * (curve.table_clock(bounds.precision(operator)) if is_table else 1.0)
            gemm_j += joules
        else:
            compute_s += seconds
            compute_j += joules
    memory_j = curve.memory_w * memory_s
    return StepLoad(
        compute_s,
        memory_s,
        compute_j + CLOCKED * memory_j,
        (1 - CLOCKED) * memory_j,
        gemm_s=gemm_s,
        gemm_j=gemm_j,
        gap_s=gaps_s,
    )


@keep
def _with_counts(workload: Workload, is_table: bool) -> list[tuple[Operator, int]]:
    """Return operators and their number. Operators that are alike, as in repeated layers, have equal table times."""
    if not is_table:
        return [(operator, 1) for operator in workload.operators]
    alike = alike_in(workload)
    firsts: dict[int, Operator] = {}
    counts: Counter[int] = Counter()
    for operator in workload.operators:
        key = alike.first(operator)
        firsts.setdefault(key, operator)
        counts[key] += 1
    return [(operator, counts[key]) for key, operator in firsts.items()]


def launches_of(operator: Operator) -> float:
    """Return the number of kernels of an operator."""
    recorded = len(operator.kernel_times_ps)
    return recorded or max(1.0, number_of(operator.attributes.get("kernels")))


def pj_per_flop(curve: PowerCurve, operator: Operator, precision: str) -> float:
    """Return the energy of a FLOP of an operator at the maximum clock, in pJ."""
    kind = kind_of(operator)
    if curve.attention_pj and family_of(kind) == "attention":
        kernel = str(operator.attributes.get("attention_kernel", "cudnn"))
        name = "cudnn" if kernel in ("cudnn", "flash-3") else "flash-2"
        return curve.attention_pj[name][is_backward(kind)]
    return curve.pj_per_flop.get(precision, max(curve.pj_per_flop.values()))  # the most, for unmeasured precisions
