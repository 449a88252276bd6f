"""Speed differences between GPUs of one model; a step waits for the slowest of its GPUs.

Tables hold the times of an average GPU. Ranks that wait for each other in every layer, stage or step are as fast as the
slowest of them, so operators on ``n`` GPUs slow down by the expected maximum of ``n`` normal numbers
(:func:`slowest_of`). The slowdown is the same for all ranks, so ranks that are alike stay alike.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trine.compute.roofline import Duration
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.compute.law import FitReport
    from trine.compute.models import ComputeModel
    from trine.compute.resize import Split
    from trine.graph.workload import Operator

#: Standard deviation of the speed of GPUs of one model, relative to their mean. Sinha et al., Not All GPUs Are Created
#: Equal (SC 2022, arXiv 2208.11035): 8 % of variation on average within each of five systems with GPUs of one model,
#: read as the whisker range of a box plot, 5.4 standard deviations of a normal distribution.
GPU_SPREAD = 0.0148
SPREAD_SOURCE = "standard deviation 1.48 % of GPUs of one model: Sinha et al., SC 2022, arXiv 2208.11035"
#: A normal distribution with a larger deviation would include GPUs of zero speed.
MAX_SPREAD = 0.25


def checked_spread(spread: float) -> float:
    """Raise InputError unless ``spread`` is a standard deviation from 0 to MAX_SPREAD."""
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread <= MAX_SPREAD:
        raise InputError(f"is from 0 to {MAX_SPREAD:.0%} of the average speed, got {spread!r}", field="gpu_spread")
    return float(spread)


@cache
def slowest_of(gpus: int, spread: float) -> float:
    """Return the slowest GPU's relative slowdown: ``spread`` x the expected maximum of ``gpus`` normals (to 1e-6)."""
    x = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    width = x[1] - x[0]
    below = (np.cumsum(density) - density / 2) * width
    return round(spread * float(gpus * np.sum(x * density * below ** (gpus - 1)) * width), 6)


class WrappedModel:
    """A compute model that forwards to ``model``; subclasses change its times."""

    def __init__(self, model: ComputeModel) -> None:
        self._model = model
        self.name = model.name

    @property
    def notes(self) -> tuple[str, ...]:
        return self._model.notes

    def fit_report(self) -> FitReport | None:
        return self._model.fit_report()


class OnSlowestGpu(WrappedModel):
    """A compute model with operator times of the slowest of several GPUs: larger by the fraction ``longer``."""

    def __init__(self, model: ComputeModel, slowdown: float) -> None:
        super().__init__(model)
        self._factor = 1.0 + slowdown

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the model's time, lengthened, with the same evidence."""
        duration = self._model.duration(operator, split)
        return Duration(round(duration.ps * self._factor), duration.evidence)
