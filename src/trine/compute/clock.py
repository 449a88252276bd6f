"""Operator times at the clock of the step: one rule for the GPU's default limit and for a power cap.

A GEMM of the tables takes the table's time x (clock of the table / clock of the step), an attention kernel its time at
the maximum clock / clock. Recorded times already contain the clock of their own step; so do the tables of GPUs whose
benchmark clocks are unknown. There, a cap lengthens operators by the ratio of the clocks at the limit and at the cap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from trine.cluster.presets import GpuSpec
from trine.common.units import format_power
from trine.compute.models import ComputeModel
from trine.compute.power import Bounds, StepLoad, load_of
from trine.compute.power_curve import PowerCurve, curve_of
from trine.compute.resize import Split
from trine.compute.roofline import TABLES, Duration
from trine.compute.spread import WrappedModel
from trine.errors import InputError
from trine.graph.workload import Operator, Workload

#: Relative error of a step's dynamic power: tests/crosscheck/test_power_cap.py compares measured steps.
POWER_ERROR = 0.20
#: Error of the slope: the range over the points of one GPU and over the GPUs.
SLOPE_ERROR = 0.12
#: Part of the limit that a GPU draws while it only communicates: as in presets/power.yaml.
COMMUNICATING = 0.5
#: Bisections of the clock that recorded times contain.
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class StepClock:
    """The clock of a step under a power limit.

    load: at the maximum clock. clock: fraction of the maximum. is_table: GEMMs have the tables' times; False for
    times that contain the clock of their own step, ``base``.
    """

    limit_w: int
    curve: PowerCurve
    load: StepLoad
    clock: float
    is_table: bool
    base: float

    @property
    def gemm_clock(self) -> float:
        """The clock of GEMMs, as a fraction of the maximum."""
        return min(self.clock, self.curve.ceiling)

    def slowdown_of_gemms(self, precision: str = "bfloat16") -> float:
        """Return the time of a GEMM at this clock over the model's time."""
        model_clock = self.curve.table_clock(precision) if self.is_table else min(self.base, self.curve.ceiling)
        return model_clock / self.gemm_clock

    @property
    def slowdown_of_others(self) -> float:
        """The time of other compute-bound operators, such as attention, at this clock over the model's time."""
        return (1.0 if self.is_table else self.base) / self.clock

    def under(self, limit_w: int) -> StepClock:
        """Return the clock of the same step under another limit."""
        return replace(self, limit_w=limit_w, clock=self.load.clock_at(self.curve, limit_w))

    def range_mhz(self) -> tuple[float, float]:
        """Return the likely range of the clock of GEMMs, in MHz: errors of the power and of the slope."""
        clocks = [
            min(load.clock_at(curve, self.limit_w), curve.ceiling) * curve.max_mhz
            for load, curve in _variants(self.load, self.curve)
        ]
        return min(clocks), max(clocks)

    @property
    def detail(self) -> str:
        """Evidence in words: clocks of the step and of the tables, power, range and source."""
        low, high = self.range_mhz()
        curve, power = self.curve, min(self.load.power_w(self.curve, self.clock), float(self.limit_w))
        gemm_mhz = self.gemm_clock * curve.max_mhz
        reason = f"a busy GPU draws {format_power(round(power))} of {format_power(self.limit_w)}"
        return (
            f"GEMMs run at {gemm_mhz:,.0f} MHz (likely {low:,.0f} to {high:,.0f}), by the power balance of the step: "
            f"{reason}; they take {self.slowdown_of_gemms():.2f} x the time in the tables, measured at "
            f"{curve.table_clock('bfloat16') * curve.max_mhz:,.0f} MHz ({curve.source})"
        )


def step_clock(
    workload: Workload,
    model: ComputeModel,
    gpu: GpuSpec,
    batch: int | None = None,
    limit_w: int | None = None,
    micro_batches: int = 1,
    bounds: Bounds | None = None,
) -> StepClock:
    """Return the clock of a GPU that runs the workload with the times of ``model``.

    batch: of a micro-batch, by default the workload's. limit_w: by default the GPU's. micro_batches: of a step. bounds:
    of this workload on this GPU, if the caller keeps them for other steps. Raises InputError for a GPU without a
    published curve.
    """
    curve = curve_of(gpu)
    load = load_of(workload, model, bounds or Bounds(workload, gpu), curve, batch or workload.batch, micro_batches)
    default_w = gpu.power_w or limit_w or 0
    is_table = model.name == TABLES and curve.tensor is not None
    base = 1.0 if is_table else _recorded_clock(load, curve, default_w)
    if not is_table:
        load = replace(load, compute_s=load.compute_s * base, gemm_s=load.gemm_s * min(base, curve.ceiling))
    limit = min(limit_w or default_w, default_w)
    clock = load.clock_at(curve, limit) if is_table or limit < default_w else base
    return StepClock(limit, curve, load, clock, is_table, base)


def _recorded_clock(load: StepLoad, curve: PowerCurve, limit_w: int) -> float:
    """Return the highest clock at which a step of recorded times draws at most ``limit_w``; at least the lowest."""

    def power_w(clock: float) -> float:
        at_max = replace(load, compute_s=load.compute_s * clock, gemm_s=load.gemm_s * min(clock, curve.ceiling))
        return at_max.power_w(curve, clock)

    low, high = curve.lowest, 1.0
    if power_w(high) <= limit_w:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if power_w(middle) <= limit_w else (low, middle)
    return low


def _variants(load: StepLoad, curve: PowerCurve) -> list[tuple[StepLoad, PowerCurve]]:
    """Return the load and the curve within their errors."""
    slopes = [min(max(curve.slope + error, 0.01), 0.99) for error in (-SLOPE_ERROR, 0.0, SLOPE_ERROR)]
    curves = [curve.model_copy(update={"slope": slope}) for slope in slopes]
    loads = [load.scaled(factor) for factor in (1 - POWER_ERROR, 1.0, 1 + POWER_ERROR)]
    return [(each, bent) for each in loads for bent in curves]


class ClockedTimes(WrappedModel):
    """A compute model with compute-bound operators at the clock of the step."""

    def __init__(self, model: ComputeModel, bounds: Bounds, clock: StepClock) -> None:
        super().__init__(model)
        self._bounds, self._clock = bounds, clock
        self._factors: dict[tuple[int, Split], float] = {}

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the model's time at the clock of the step, with the same evidence."""
        found = self._model.duration(operator, split)
        key = self._bounds.first_alike(operator), split
        factor = self._factors.get(key)
        if factor is None:
            factor = self._factors[key] = self._factor(operator, split)
        return found if factor == 1.0 else replace(found, ps=round(found.ps * factor))

    def _factor(self, operator: Operator, split: Split) -> float:
        if not self._bounds.is_compute(operator, split):
            return 1.0
        if self._bounds.is_gemm(operator):
            return self._clock.slowdown_of_gemms(self._bounds.precision(operator))
        return self._clock.slowdown_of_others


class StatePower(NamedTuple):
    """Power of a GPU in watts: while it computes, while it only communicates, and idle."""

    computing: float
    communicating: float
    idle: float


@dataclass(frozen=True, slots=True)
class PowerCap:
    """The effect of a power cap. at_cap, at_limit: the clock of the step at the cap and at the default limit.

    power_w: mean power of a busy GPU at the cap; slowdown: of compute-bound operators, GEMMs and others together;
    range: its likely range.
    """

    cap_w: int
    limit_w: int
    at_cap: StepClock
    at_limit: StepClock
    range: tuple[float, float]

    @property
    def curve(self) -> PowerCurve:
        return self.at_cap.curve

    @property
    def load(self) -> StepLoad:
        return self.at_cap.load

    @property
    def clock(self) -> float:
        return self.at_cap.clock

    @property
    def slowdown(self) -> float:
        return _slowdown(self.load, self.curve, self.clock, self.at_limit.clock)

    @property
    def compute_share(self) -> float:
        """Fraction of the busy time in compute-bound operators, at the cap."""
        return 1 - self.load.memory_s / self.load.time_s(self.curve, self.clock)

    @property
    def power_w(self) -> float:
        return min(self.load.power_w(self.curve, self.clock), float(self.cap_w))

    @property
    def states_w(self) -> StatePower:
        """Power under the cap; a GPU that only communicates draws half its limit (assumed)."""
        communicating_w = min(COMMUNICATING * self.limit_w, float(self.cap_w))
        return StatePower(self.power_w, communicating_w, float(self.curve.static_w))

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
        clocks = (
            f"{self.clock * self.curve.max_mhz:,.0f} MHz instead of {self.at_limit.clock * self.curve.max_mhz:,.0f}"
        )
        return (
            f"cap of {format_power(self.cap_w)}: {clocks}; compute-bound operators take {self.slowdown - 1:.1%} more "
            f"time (likely {low - 1:.1%} to {high - 1:.1%}), memory-bound ones the same; a busy GPU draws "
            f"{format_power(self.power_w)} ({self.curve.source})"
        )


def _slowdown(load: StepLoad, curve: PowerCurve, clock: float, base: float) -> float:
    """Return the time of all compute-bound operators at ``clock`` over their time at ``base``; 1 without any."""
    times = [load.time_s(curve, each) - load.memory_s for each in (clock, base)]
    return times[0] / times[1] if times[1] > 0 else 1.0


def power_cap(
    cap_w: int, workload: Workload, model: ComputeModel, gpu: GpuSpec | None, batch: int | None = None,
    micro_batches: int = 1,
) -> PowerCap:  # fmt: skip
    """Return the effect of a cap of ``cap_w`` on ``workload``; a cap from the default limit on changes nothing.

    batch: of a micro-batch, by default the workload's. micro_batches: of a step.

    Raises InputError for a GPU without a published curve, and for a cap that needs a clock below the measured ones.
    """
    curve = curve_of(gpu)
    assert gpu is not None
    limit_w = gpu.power_w or cap_w
    at_limit = step_clock(workload, model, gpu, batch, limit_w, micro_batches)
    load = at_limit.load
    least = load.power_w(curve, curve.lowest)
    if cap_w < min(least, limit_w):
        raise InputError(
            f"{format_power(cap_w)} is below the published range of the {gpu.name}: this step draws "
            f"{format_power(least)} at {curve.lowest_mhz:,} MHz, the lowest measured clock, and "
            f"{format_power(min(load.power_w(curve, 1.0), limit_w))} at its limit of {format_power(limit_w)}",
            field="power_cap",
        )
    cap = min(cap_w, limit_w)
    return PowerCap(cap_w, limit_w, at_limit.under(cap), at_limit, _range(load, curve, cap, limit_w))


def _range(load: StepLoad, curve: PowerCurve, cap_w: int, limit_w: int) -> tuple[float, float]:
    """Return the likely range of the slowdown of compute-bound operators: errors of the power and of the slope."""
    if cap_w == limit_w:
        return 1.0, 1.0
    ratios = [
        _slowdown(each, bent, each.clock_at(bent, cap_w), each.clock_at(bent, limit_w))
        for each, bent in _variants(load, curve)
    ]
    return min(ratios), max(ratios)
