"""Operator times under a power cap: the clock at which a step's mean power equals the cap.

A GPU above its power limit lowers its clock, and with it its voltage. Operators limited by compute follow the clock;
operators limited by memory keep their time. The controller averages over many kernels, so one clock serves the whole
step. The same rule gives the clock at the default limit, so trine lengthens times by the ratio of both clocks.
Parameters, their ranges and sources: ``presets/power_curves.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from trine.cluster.presets import GpuSpec
from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S, format_power
from trine.compute.cost import Sizing, Work
from trine.compute.kinds import is_compute_bound, kind_of
from trine.compute.models import ComputeModel
from trine.compute.resize import Split
from trine.compute.roofline import Duration, has_tf32_products, peak, precision_of
from trine.compute.spread import WrappedModel
from trine.errors import InputError
from trine.graph.workload import Operator, Workload

_FILE = PRESETS / "power_curves.yaml"
#: Part of a memory-bound operator's dynamic power that follows the clock: SMs and L2; the rest is in the HBM (assumed).
CLOCKED = 0.5
#: Relative error of a step's dynamic power: tests/crosscheck/test_power.py compares 16 measured steps.
POWER_ERROR = 0.20
#: Error of the slope: the range over the points of one GPU and over the GPUs.
SLOPE_ERROR = 0.12
#: Part of the limit that a GPU draws while it only communicates: as in presets/power.yaml.
COMMUNICATING = 0.5
#: Bisections of the clock, to less than 0.01 MHz.
_HALVINGS = 20


class PowerCurve(Spec):
    """Power against clock of one GPU model; see the preset file. Clocks in MHz, powers in W, energies in pJ."""

    max_mhz: int = Field(gt=0)
    lowest_mhz: int = Field(gt=0)
    static_w: int = Field(gt=0)
    slope: float = Field(gt=0, lt=1)
    knee: float = Field(ge=0, lt=1)
    memory_w: int = Field(gt=0)
    pj_per_flop: dict[str, float]
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    source: str

    @property
    def lowest(self) -> float:
        """The lowest measured clock, as a fraction of the maximum."""
        return self.lowest_mhz / self.max_mhz

    def squared_voltage(self, clock: float) -> float:
        """Return V^2 relative to the maximum clock's, at a clock given as a fraction of the maximum."""
        return float((1 - self.slope * (1 - max(clock, self.knee))) ** 2)


class PowerCurves(Spec):
    """The curves by GPU model."""

    curves: dict[str, PowerCurve]


@cache
def power_curves() -> dict[str, PowerCurve]:
    """Return the curves of ``presets/power_curves.yaml`` by GPU model."""
    return read_spec(_FILE, PowerCurves).curves


def curve_of(gpu: GpuSpec | None) -> PowerCurve:
    """Return the curve of a GPU model; raise InputError if no measurement of it is public."""
    name, curves = "an unknown GPU" if gpu is None else gpu.name, power_curves()
    if name not in curves:
        raise InputError(f"no published power curve of {name}: trine has {', '.join(sorted(curves))}",
                         field="power_cap")  # fmt: skip
    return curves[name]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The busy time of a step at the maximum clock by bound, in seconds, and its dynamic energy, in J.

    clocked_j: energy that scales with V^2; steady_j: energy of the memory, whatever the clock.
    """

    compute_s: float
    memory_s: float
    clocked_j: float
    steady_j: float

    def power_w(self, curve: PowerCurve, clock: float) -> float:
        """Return the mean power at a clock, as a fraction of the maximum."""
        time_s = self.compute_s / clock + self.memory_s
        return curve.static_w + (self.clocked_j * curve.squared_voltage(clock) + self.steady_j) / time_s

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
        return replace(self, clocked_j=self.clocked_j * factor, steady_j=self.steady_j * factor)


@dataclass(frozen=True, slots=True)
class PowerCap:
    """The effect of a power cap. clock, base_clock: at the cap and at the default limit, as fractions of the maximum.

    power_w: mean power of a busy GPU at the cap; slowdown: of compute-bound operators; range: its likely range.
    """

    cap_w: int
    limit_w: int
    curve: PowerCurve
    load: StepLoad
    clock: float
    base_clock: float
    range: tuple[float, float]

    @property
    def slowdown(self) -> float:
        return self.base_clock / self.clock

    @property
    def compute_share(self) -> float:
        """Fraction of the busy time in compute-bound operators, at the cap."""
        compute_s = self.load.compute_s / self.clock
        return compute_s / (compute_s + self.load.memory_s)

    @property
    def power_w(self) -> float:
        return min(self.load.power_w(self.curve, self.clock), float(self.cap_w))

    @property
    def states_w(self) -> tuple[float, float, float]:
        """Power of a GPU that computes, only communicates (assumed: half the limit), and is idle at its clock."""
        return self.power_w, min(COMMUNICATING * self.limit_w, float(self.cap_w)), float(self.curve.static_w)

    @property
    def note(self) -> str:
        """A sentence for a cap without effect; empty if the cap lengthens the step."""
        if self.slowdown > 1:
            return ""
        is_below = self.cap_w < self.limit_w
        power = self.power_w if is_below else self.limit_w
        reason = f"{'a busy GPU draws' if is_below else 'the default limit is'} {format_power(power)}"
        return f"the power cap of {format_power(self.cap_w)} changes no time: {reason}"

    @property
    def detail(self) -> str:
        """Evidence in words: clocks, effect, range and source."""
        low, high = self.range
        clocks = f"{self.clock * self.curve.max_mhz:,.0f} MHz instead of {self.base_clock * self.curve.max_mhz:,.0f}"
        return (
            f"cap of {format_power(self.cap_w)}: {clocks}; compute-bound operators take {self.slowdown - 1:.1%} more "
            f"time (likely {low - 1:.1%} to {high - 1:.1%}), memory-bound ones the same; a busy GPU draws "
            f"{format_power(self.power_w)} ({self.curve.source})"
        )


class CappedTimes(WrappedModel):
    """A compute model with operator times under a power cap."""

    def __init__(self, model: ComputeModel, bounds: Bounds, slowdown: float) -> None:
        super().__init__(model)
        self._bounds, self._slowdown = bounds, slowdown

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the model's time, lengthened if the operator is compute-bound, with the same evidence."""
        found = self._model.duration(operator, split)
        is_longer = self._bounds.is_compute(operator, split)
        return replace(found, ps=round(found.ps * self._slowdown)) if is_longer else found


class Bounds:
    """Which of a workload's operators the GPU's compute limits: their FLOPs take longer than their bytes."""

    def __init__(self, workload: Workload, gpu: GpuSpec) -> None:
        self._workload, self._gpu, self._sizing = workload, gpu, Sizing(workload)
        self._has_tf32 = has_tf32_products(workload, gpu)

    def work(self, operator: Operator, split: Split) -> Work:
        """Return the FLOPs and bytes of an operator."""
        return self._sizing.work(operator, split)

    def precision(self, operator: Operator) -> str:
        """Return the precision of an operator's arithmetic."""
        return precision_of(operator, self._workload.tensors, self._has_tf32)

    def is_compute(self, operator: Operator, split: Split) -> bool:
        """Return whether compute limits the operator."""
        if not is_compute_bound(kind_of(operator)):
            return False
        work = self.work(operator, split)
        return work.flops / peak(self._gpu, self.precision(operator)) > work.bytes / self._gpu.memory_bytes_per_s


def load_of(workload: Workload, model: ComputeModel, bounds: Bounds, curve: PowerCurve, batch: int) -> StepLoad:
    """Return the load of one GPU that runs the whole workload at this batch."""
    split, pj_per_flop = Split(batch), curve.pj_per_flop
    most = max(pj_per_flop.values())  # of a precision without a measurement
    compute_s = memory_s = joules = 0.0
    for operator in workload.operators:
        seconds = model.duration(operator, split).ps / PS_PER_S
        if bounds.is_compute(operator, split):
            compute_s += seconds
            joules += bounds.work(operator, split).flops * (1e-12 * pj_per_flop.get(bounds.precision(operator), most))
        else:
            memory_s += seconds
    memory_j = curve.memory_w * memory_s
    return StepLoad(compute_s, memory_s, joules + CLOCKED * memory_j, (1 - CLOCKED) * memory_j)


def power_cap(
    cap_w: int, workload: Workload, model: ComputeModel, gpu: GpuSpec | None, batch: int | None = None
) -> PowerCap:
    """Return the effect of a cap of ``cap_w`` on ``workload``; a cap from the default limit on changes nothing.

    batch: of a micro-batch, by default the workload's.

    Raises InputError for a GPU without a published curve, and for a cap that needs a clock below the measured ones.
    """
    curve = curve_of(gpu)
    assert gpu is not None
    limit_w = gpu.power_w or cap_w
    load = load_of(workload, model, Bounds(workload, gpu), curve, batch or workload.batch)
    least = load.power_w(curve, curve.lowest)
    if cap_w < least:
        raise InputError(
            f"{format_power(cap_w)} is below the published range of the {gpu.name}: this step draws "
            f"{format_power(least)} at {curve.lowest_mhz:,} MHz, the lowest measured clock, and "
            f"{format_power(min(load.power_w(curve, 1.0), limit_w))} at its limit of {format_power(limit_w)}",
            field="power_cap",
        )
    cap = min(cap_w, limit_w)
    clock, base = load.clock_at(curve, cap), load.clock_at(curve, limit_w)
    return PowerCap(cap_w, limit_w, curve, load, clock, base, _range(load, curve, cap, limit_w))


def _range(load: StepLoad, curve: PowerCurve, cap_w: int, limit_w: int) -> tuple[float, float]:
    """Return the likely range of the slowdown of compute-bound operators: errors of the power and of the slope."""
    if cap_w == limit_w:
        return 1.0, 1.0
    curves = [curve.model_copy(update={"slope": curve.slope + error}) for error in (-SLOPE_ERROR, 0.0, SLOPE_ERROR)]
    loads = [load.scaled(factor) for factor in (1 - POWER_ERROR, 1.0, 1 + POWER_ERROR)]
    ratios = [each.clock_at(bent, limit_w) / each.clock_at(bent, cap_w) for each in loads for bent in curves]
    return min(ratios), max(ratios)
