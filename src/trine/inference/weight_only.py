"""Times of GEMMs that read weights in fewer bits than they multiply in (presets/serving/weight_only.yaml).

The weights are read in their size, and widened to 16 bits before they are multiplied. Kernels overlap both only partly:
the time is the root of the sum of their squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np

from trine.common.arrays import Float64
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.inference.precision import SERVING

Factor = Annotated[float, Field(gt=0, le=10)]
_ANY_ENGINE, _OTHER_GENERATION = "all", "other"


class WeightOnlyRates(Spec):
    """Rates relative to 16-bit GEMMs; ``presets/serving/weight_only.yaml`` describes each field."""

    reading: dict[int, Factor]
    start_us: Annotated[float, Field(ge=0, le=100)]
    multiplying: dict[str, dict[str, Factor]]
    sources: dict[str, str]

    def reading_factor(self, bits: float) -> float:
        """Return the time of reading over that of a 16-bit GEMM that moves the same bytes."""
        known = sorted(self.reading)
        return float(np.interp(bits, known, [self.reading[each] for each in known]))

    def multiplying_share(self, generation: str, engine: str) -> float:
        """Return FLOP/s relative to the best of the 16-bit GEMM of the same shape."""
        shares = self.multiplying.get(generation, self.multiplying[_OTHER_GENERATION])
        return shares.get(engine, shares[_ANY_ENGINE])


@cache
def weight_only_rates() -> WeightOnlyRates:
    """Return the rates, with their sources."""
    return read_spec(SERVING / "weight_only.yaml", WeightOnlyRates)


@dataclass(frozen=True, slots=True)
class WeightOnlyProduct:
    """A GEMM at several numbers of tokens; all arrays have their shape.

    same_bytes_us: of a 16-bit GEMM that moves the bytes of the narrow weights. half_us: of the 16-bit GEMM of the same
    shape. flops: of each. bits: of a weight.
    """

    same_bytes_us: Float64
    half_us: Float64
    flops: Float64
    bits: float

    def us(self, generation: str, engine: str) -> Float64:
        """Return microseconds by the kernel of an engine on a generation of GPUs."""
        rates = weight_only_rates()
        reading_us = rates.reading_factor(self.bits) * self.same_bytes_us + rates.start_us
        best_flops_per_us = float(np.max(self.flops / self.half_us)) * rates.multiplying_share(generation, engine)
        return np.hypot(reading_us, self.flops / best_flops_per_us)
