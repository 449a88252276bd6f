"""A calibrated stack: factors that measured points of a model, GPU, engine and precision put on trine's times.

The factor of a stack is a normal variable in its logarithm. Before any measurement it is 1, with the spread between
published stacks; each point is the factor with the spread within a stack. The estimate is the posterior mean: few
points that scatter move it little, and many agreeing ones set it. Its likely range holds 80 % of further measurements:
the spread within the stack and the uncertainty of the factor, which falls with each point
(presets/serving/calibration.yaml). A measured factor beyond the published spread replaces that spread, so that the
estimate follows the points. On GPUs without measured kernels both spreads are wider, like the blind range.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Annotated, Any

from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.errors import InputError
from trine.inference.precision import SERVING
from trine.inference.ranges import Estimate

#: Quantile of the normal distribution at the ends of an 80 % interval.
_Z80 = 1.2816
#: Weight of the published scatter, in rows, when it is pooled with the scatter of the points.
_PRIOR_ROWS = 4
#: Largest number of points of a stack.
MAX_POINTS = 1_000


class StackSpread(Spec):
    """Standard deviations of log(measured / predicted) between stacks, and within one."""

    between: Annotated[float, Field(gt=0, le=3)]
    within: Annotated[float, Field(gt=0, le=3)]

    def widened(self, power: float) -> StackSpread:
        """Return the spreads of factors raised to ``power``."""
        return StackSpread(between=self.between * power, within=self.within * power)


class StackSpreads(Spec):
    """The spreads of both latencies, with their source."""

    tpot: StackSpread
    ttft: StackSpread
    source: str


@cache
def spreads() -> StackSpreads:
    """Return the spreads of published stacks."""
    return read_spec(SERVING / "calibration.yaml", StackSpreads)


class StackScale(Spec):
    """The factor on a time, the likely range of a corrected time as factors on it, and the points behind both."""

    factor: Annotated[float, Field(gt=0, le=1e6)]
    low: Annotated[float, Field(gt=0, le=1)]
    high: Annotated[float, Field(ge=1, le=1e6)]
    points: Annotated[int, Field(ge=1, le=MAX_POINTS)]

    def scaled(self, seconds: float) -> Estimate:
        """Return the corrected estimate of a predicted time."""
        value = seconds * self.factor
        return Estimate(value, value * self.low, value * self.high)


class Stack(Spec):
    """Corrections of one stack, which ``trine calibrate --serving`` writes.

    tpot: of decode and prefill steps, and so of TPOT, end-to-end latency and throughput. ttft: of the time to first
    token, None if no point measured it.
    """

    model: str
    gpu: str
    engine: str
    precision: str
    points: Annotated[int, Field(ge=1, le=MAX_POINTS)]
    tpot: StackScale | None = None
    ttft: StackScale | None = None
    source: str = ""

    def check(self, names: dict[str, Any]) -> None:
        """Raise InputError unless model, gpu, engine and precision are equal to the stack's."""
        for field in ("model", "gpu", "engine", "precision"):
            own = getattr(self, field)
            if own != names[field]:
                message = f"was calibrated for {field} {own}, and the question has {names[field]}"
                raise InputError(message, field="stack")


def read_stack(stack: Stack | str | os.PathLike[str]) -> Stack:
    """Return a stack, or read it from a file. Raises SpecError for a file with other content."""
    return stack if isinstance(stack, Stack) else read_spec(stack, Stack)


def fit_scale(ratios: Sequence[float], spread: StackSpread) -> StackScale:
    """Return the factor and range from measured / predicted times of at least one point.

    With m the median of the logarithms of n ratios, s the spread within the stack (published and own rows pooled) and b
    the larger of the spread between stacks and the magnitude of m: log factor = m w, w = n b^2 / (n b^2 + s^2); the
    range is z (s^2 + b^2 s^2 / (n b^2 + s^2))^1/2 to both sides, z = 1.28.
    """
    logs = [math.log(ratio) for ratio in ratios]
    middle, count = median(logs), len(logs)
    scatter = sum((value - middle) ** 2 for value in logs)
    within = (_PRIOR_ROWS * spread.within**2 + scatter) / (_PRIOR_ROWS + count - 1)
    between = max(spread.between, abs(middle)) ** 2
    uncertainty = between * within / (count * between + within)
    factor = math.exp(middle * count * between / (count * between + within))
    width = _Z80 * math.sqrt(within + uncertainty)
    low, high = math.exp(-width), math.exp(width)
    return StackScale(factor=_rounded(factor), low=_rounded(low), high=_rounded(high), points=count)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
