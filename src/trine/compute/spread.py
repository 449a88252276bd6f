"""GPUs of one kind differ in speed, and a step waits for the slowest of its GPUs.

Tables hold what one GPU took: an average one. Ranks that wait for each other in every layer, stage or step are as fast
as the slowest of them, so that operators of ``n`` GPUs take longer by the expected largest of ``n`` normal numbers
(:func:`slowest_of`). All ranks take the same longer time, so ranks that behave alike go on doing so.
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

#: Standard deviation of the speed of GPUs of one kind, as a part of one. Sinha et al., Not All GPUs Are Created Equal
#: (SC 2022, arXiv 2208.11035): 8 % of variation on average within each of five systems with GPUs of one kind, taken as
#: the range between the whiskers of a box plot, 5.4 standard deviations of a normal distribution.
GPU_SPREAD = 0.0148
SPREAD_SOURCE = "standard deviation 1.48 % of GPUs of one model: Sinha et al., SC 2022, arXiv 2208.11035"
#: A normal distribution with a larger one would have GPUs of no speed at all.
MOST_SPREAD = 0.25


def checked_spread(spread: float) -> float:
    """Raise InputError for what is no standard deviation from 0 to MOST_SPREAD."""
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread <= MOST_SPREAD:
        raise InputError(f"is from 0 to {MOST_SPREAD:.0%} of the average speed, got {spread!r}", field="gpu_spread")
    return float(spread)


@cache
def slowest_of(gpus: int, spread: float) -> float:
    """By how much the slowest of ``gpus`` is expected to be slower than their average, as a part of one: ``spread``
    times the expected largest of so many standard normal numbers (to a millionth)."""
    x = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    width = x[1] - x[0]
    below = (np.cumsum(density) - density / 2) * width
    return round(spread * float(gpus * np.sum(x * density * below ** (gpus - 1)) * width), 6)


class WrappedModel:
    """A compute model that answers as ``model`` does; subclasses change its times."""

    def __init__(self, model: ComputeModel) -> None:
        self._model = model
        self.name = model.name

    @property
    def notes(self) -> tuple[str, ...]:
        return self._model.notes

    def fit_report(self) -> FitReport | None:
        return self._model.fit_report()


class OnSlowestGpu(WrappedModel):
    """A compute model whose operators take as long as on the slowest of several GPUs: ``longer`` times more."""

    def __init__(self, model: ComputeModel, longer: float) -> None:
        super().__init__(model)
        self._factor = 1.0 + longer

    def duration(self, operator: Operator, split: Split) -> Duration:
        """As the model says, longer; what is exact on one GPU rests on the same."""
        found = self._model.duration(operator, split)
        return Duration(round(found.ps * self._factor), found.evidence)
