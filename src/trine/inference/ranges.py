"""Likely ranges of serving answers (presets/serving/ranges.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from trine.cluster.presets import GpuSpec
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.compute.tables.machine import is_foreign
from trine.inference.precision import SERVING, ServedPrecision

Factors = Annotated[list[float], Field(min_length=2, max_length=2)]


class ServingRanges(Spec):
    """Factors between which 80 % of measurements lie, of a predicted time."""

    tpot: Factors
    ttft: Factors
    assumed_power: Annotated[float, Field(ge=1, le=10)]
    weight_only_power: Annotated[float, Field(ge=1, le=10)]
    source: str


@cache
def serving_ranges() -> ServingRanges:
    """Return the ranges, with their source."""
    return read_spec(SERVING / "ranges.yaml", ServingRanges)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted value, and the interval that should hold 80 % of measured values."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def per(self, amount: float) -> Estimate:
        """Return ``amount`` divided by the estimate: a rate of a time, or a time of a rate."""
        return Estimate(amount / self.value, amount / self.high, amount / self.low)


def ranged(value: float, factors: list[float], power: float) -> Estimate:
    """Return an estimate of a time; power: to which the factors are raised (:func:`range_power`)."""
    return Estimate(value, value * factors[0] ** power, value * factors[1] ** power)


def range_power(gpu: GpuSpec, precision: ServedPrecision) -> float:
    """Return the power of the range's factors: 1 if kernels of the precision were measured on GPUs of the kind."""
    ranges = serving_ranges()
    if is_foreign(gpu.name):
        return ranges.assumed_power
    return ranges.weight_only_power if precision.is_weight_only else 1.0
