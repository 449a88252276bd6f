"""Statistics of predicted serving runs: coverage, errors of each quantity, votes of stacks, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trine.results.report import Row
from validation.harness import Errors, grouped
from validation.serving_quantities import (
    QUANTITIES,
    TPOT,
    ComparedRun,
    ComparedValue,
    Quantity,
    ServingErrors,
    compared_values,
)
from validation.serving_ranking import RankedGroup, ranked_groups
from validation.serving_rows import AGGREGATED, DISAGGREGATED

GROUPS = ("engine", "model", "gpu", "precision", "stack")
#: Rows of a stack that give its factor, and the least number of rows of a stack with a factor.
CALIBRATION_ROWS, MIN_CALIBRATED = 3, 6
#: Quantities whose errors other tools publish.
PUBLISHED = ("tpot", "ttft", "end_to_end")
#: Files of InferenceX, whose points AISimulate and aiconfigurator publish errors of.
INFERENCEX = "2026-"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Numbers of rows of a kind outside the exclusions, and of rows with a prediction."""

    kind: str
    rows: int
    answered: int

    @property
    def share(self) -> float:
        """Share of rows with a prediction; 1 without rows."""
        return self.answered / self.rows if self.rows else 1.0

    def row(self) -> Row:
        """Return the coverage as plain data."""
        return {"kind": self.kind, "num_rows": self.rows, "num_answered": self.answered, "share": self.share}


@dataclass(frozen=True, slots=True)
class ServingStatistics:
    """Statistics of published serving runs that are not excluded."""

    runs: tuple[ComparedRun, ...]

    @property
    def answered(self) -> tuple[ComparedRun, ...]:
        """Rows with a prediction."""
        return tuple(run for run in self.runs if not run.prediction.why_not)

    def coverage(self) -> list[Coverage]:
        """Return the coverage by kind of row, of rows that state their workers, and of all rows."""
        kinds = [_coverage(kind, runs) for kind, runs in grouped(self.runs, _coverage_kind).items()]
        return [*kinds, self.stated_coverage(), _coverage("all", self.runs)]

    def stated_coverage(self) -> Coverage:
        """Return the coverage of the rows that state their workers: disaggregated runs without them fit no job."""
        return _coverage("all with stated workers", [run for run in self.runs if _coverage_kind(run) != _UNSTATED])

    def errors(self) -> list[tuple[Quantity, ServingErrors]]:
        """Return the errors of each quantity that has values."""
        values = ((quantity, compared_values(quantity, self.answered)) for quantity in QUANTITIES)
        return [(quantity, ServingErrors.of_values(of_quantity)) for quantity, of_quantity in values if of_quantity]

    def grouped(self, quantity: Quantity, by: str) -> list[tuple[str, ServingErrors]]:
        """Return errors of a quantity by one of :data:`GROUPS`, the largest median first."""
        groups = grouped(compared_values(quantity, self.answered), lambda value: value.row.group(by))
        errors = [(name, ServingErrors.of_values(values)) for name, values in groups.items()]
        return sorted(errors, key=lambda group: -group[1].median)

    def median_by_stack(self, quantity: Quantity) -> float | None:
        """Return the mean, over stacks, of the median error; None without values."""
        medians = [errors.median for _, errors in self.grouped(quantity, "stack")]
        return float(np.mean(medians)) if medians else None

    def inside_by_stack(self, quantity: Quantity) -> float | None:
        """Return the mean, over stacks, of the share inside the likely range; None for values without a range."""
        shares = [errors.inside for _, errors in self.grouped(quantity, "stack") if errors.inside is not None]
        return float(np.mean(shares)) if shares else None

    def calibrated(self) -> Errors | None:
        """Return TPOT errors with one factor a stack, from three of its rows, on the other rows; None without any."""
        stacks = grouped(compared_values(TPOT, self.answered), lambda value: value.row.stack).values()
        return Errors.of_some([error for values in stacks for error in calibrated_errors(values)])

    def inferencex(self) -> list[Row]:
        """Return the mean errors of the aggregated InferenceX rows, with the keys of :func:`published_errors`."""
        runs = [run for run in self.answered if run.row.kind == AGGREGATED and run.row.file.startswith(INFERENCEX)]
        if not runs:
            return []
        errors: Row = {}
        for quantity in QUANTITIES:
            if quantity.key in PUBLISHED:
                values = compared_values(quantity, runs)
                errors[quantity.key] = ServingErrors.of_values(values).mean if values else None
        of, source = "InferenceX points that remain", "trine"
        return [{"tool": "this report", "statistic": "mean", "rows": len(runs), **errors, "of": of, "source": source}]

    def ranking(self) -> list[RankedGroup]:
        """Return the ranked groups of configurations, the lowest rank correlation first."""
        return ranked_groups(self.answered)


_UNSTATED = "disaggregated, no workers"


def _coverage_kind(run: ComparedRun) -> str:
    row = run.row
    if row.kind != DISAGGREGATED:
        return row.kind
    return _UNSTATED if row.decode_workers is None else "decode workers"


def _coverage(kind: str, runs: Sequence[ComparedRun]) -> Coverage:
    return Coverage(kind, len(runs), sum(not run.prediction.why_not for run in runs))


def calibrated_errors(values: Sequence[ComparedValue]) -> list[float]:
    """Return errors of a stack's rows with one factor from :data:`CALIBRATION_ROWS` of them, which do not count.

    The factor is the median of measured / predicted. The rows have the lowest, middle and highest concurrency, so that
    configuration alone chooses them. Empty for a stack with fewer than :data:`MIN_CALIBRATED` rows.
    """
    if len(values) < MIN_CALIBRATED:
        return []
    ordered = sorted(values, key=lambda value: (value.row.concurrency or 0, value.row.name))
    chosen = [0, len(ordered) // 2, len(ordered) - 1]
    factor = float(np.median([1 / ordered[index].ratio for index in chosen]))
    return [value.ratio * factor - 1 for index, value in enumerate(ordered) if index not in chosen]
