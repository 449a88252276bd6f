"""Likely ranges of serving answers (presets/serving/ranges.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.inference.precision import SERVING

Factors = Annotated[list[float], Field(min_length=2, max_length=2)]


class ServingRanges(Spec):
    """Factors between which 80 % of measurements lie, of a predicted time."""

    tpot: Factors
    ttft: Factors
    assumed_power: Annotated[float, Field(ge=1, le=10)]
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


def ranged(value: float, factors: list[float], is_assumed: bool) -> Estimate:
    """Return an estimate of a time; is_assumed: no kernel of the GPU's kind was measured."""
    power = serving_ranges().assumed_power if is_assumed else 1.0
    return Estimate(value, value * factors[0] ** power, value * factors[1] ** power)
