"""A published step beside its prediction, and statistics of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trine.results.report import Report, Row
from trine.studies.replay_rows import Predicted, predict
from trine.studies.training_rows import TrainingRow


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """A row and its prediction; ``calibrated_s``: with factors fitted on other rows of the source, None without."""

    row: TrainingRow
    answer: Predicted
    calibrated_s: float | None = None

    @property
    def measured_s(self) -> float:
        assert self.row.step_s is not None
        return self.row.step_s

    @property
    def error(self) -> float:
        """Predicted / measured - 1, nothing of the source used."""
        return self.answer.step_s / self.measured_s - 1

    @property
    def calibrated_error(self) -> float | None:
        return None if self.calibrated_s is None else self.calibrated_s / self.measured_s - 1

    def group(self, by: str) -> str:
        """What the row is counted under."""
        return {
            "source": self.row.source.key,
            "gpu": self.row.gpu,
            "software": self.row.source.software,
            "scale": self.row.scale,
        }[by]


def compared_faults(rows: Iterable[TrainingRow]) -> tuple[ComparedStep, ...]:
    """Return the rows that cannot be read, each with its fault as the reason why it has no prediction."""
    return tuple(ComparedStep(row=row, answer=predict(row)) for row in rows if row.fault)


@dataclass(frozen=True, kw_only=True, repr=False)
class StepValidation(Report):
    """Rows and their predictions; ``is_sample``: of some rows of each source only."""

    steps: tuple[ComparedStep, ...]
    is_sample: bool = False

    @property
    def compared(self) -> tuple[ComparedStep, ...]:
        """Rows that have an answer."""
        return tuple(step for step in self.steps if not step.answer.why_not)

    @property
    def counted(self) -> tuple[ComparedStep, ...]:
        """Those that count."""
        return tuple(step for step in self.compared if not step.row.apart)

    @property
    def failed(self) -> tuple[ComparedStep, ...]:
        """Rows that have none."""
        return tuple(step for step in self.steps if step.answer.why_not)


@dataclass(frozen=True, slots=True)
class Errors:
    """Statistics of signed errors. ``within``: part of them of at most 10 %."""

    count: int
    bias: float
    mean: float
    median: float
    p90: float
    within: float

    @staticmethod
    def of(errors: Sequence[float], weights: Sequence[float] | None = None) -> Errors:
        """Weighted statistics of at least one error."""
        found, weight = np.array(errors), np.ones(len(errors)) if weights is None else np.array(weights)
        size, weight = np.abs(found), weight / weight.sum()
        return Errors(
            count=len(found),
            bias=float(found @ weight),
            mean=float(size @ weight),
            median=quantile(size, weight, 0.5),
            p90=quantile(size, weight, 0.9),
            within=float(weight[size <= 0.1].sum()),
        )

    def row(self) -> Row:
        """As plain data."""
        return {
            "num_rows": self.count, "bias": self.bias, "mean_error": self.mean, "median_error": self.median,
            "p90_error": self.p90, "share_within_10_percent": self.within,
        }  # fmt: skip


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value that, with all below it, has at least ``share`` of the weights, which add up to 1."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(reached, share - 1e-9)))])


#: Heads of the columns that :func:`cells` fills.
HEAD = ("rows", "bias", "mean", "median", "p90", "<=10%")


def cells(errors: Errors) -> tuple[str, ...]:
    """A table's cells of some errors."""
    return (
        f"{errors.count}", f"{errors.bias:+.1%}", f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.p90:.1%}",
        f"{errors.within:.0%}",
    )  # fmt: skip
