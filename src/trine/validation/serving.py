"""How far predicted latency and throughput of inference engines are from published runs (``trine validate serving``).

Blind: nothing is fitted on a row. Rows of :mod:`trine.validation.serving_exclusions` judge nothing. Calibrated: three
rows of a stack (model, GPU, engine, precision) give one factor for its other rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np

from trine.results.report import Row, Table
from trine.validation.harness import Errors, ReplayProgress, UnreadRow, Validation, grouped, read_stored
from trine.validation.serving_exclusions import Exclusion, excluded_rows, exclusion_counts
from trine.validation.serving_quantities import (
    QUANTITIES,
    TPOT,
    ComparedRun,
    ComparedValue,
    Quantity,
    ServingErrors,
    ServingPrediction,
    compared_values,
    predict,
)
from trine.validation.serving_ranking import RankedGroup, ranked_groups
from trine.validation.serving_rows import (
    AGGREGATED,
    DISAGGREGATED,
    ServingRow,
    load_rows,
    published_errors,
)
from trine.validation.serving_text import GROUPS, paragraphs

#: Rows of a stack that give its factor, and the least number of rows of a stack with a factor.
CALIBRATION_ROWS, LEAST_CALIBRATED = 3, 6
#: Rows of each stack and kind in a sample.
SAMPLE_ROWS = 2
#: Columns of a run in the JSON.
FACTS = (
    "source", "kind", "stack", "isl", "osl", "concurrency", "batch", "tp", "pp", "attention_dp", "ep",
)  # fmt: skip
#: Quantities whose errors other tools publish.
PUBLISHED = ("tpot", "ttft", "end_to_end")
#: Files of InferenceX, whose points AISimulate and aiconfigurator publish errors of.
INFERENCEX = "2026-"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Rows of a kind that are not excluded, and those with a prediction."""

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


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingValidation(Validation):
    """Published serving runs that are not excluded, with their predictions. excluded: name of a row -> its rule."""

    SCHEMA: ClassVar[str] = "validate-serving"

    runs: tuple[ComparedRun, ...]
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)

    @property
    def answered(self) -> tuple[ComparedRun, ...]:
        """Rows with a prediction."""
        return tuple(run for run in self.runs if not run.prediction.why_not)

    @property
    def unpredicted(self) -> tuple[UnreadRow, ...]:
        """Rows without a prediction, each with its reason."""
        return tuple(
            UnreadRow(source=run.row.source, name=run.row.name, why=run.prediction.why_not)
            for run in self.runs
            if run.prediction.why_not
        )

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

    def voted(self, quantity: Quantity) -> tuple[float, float] | None:
        """Return the mean, over stacks, of the median error and of the share inside the likely range; None if empty."""
        stacks = [errors for _, errors in self.grouped(quantity, "stack")]
        if not stacks:
            return None
        return float(np.mean([e.median for e in stacks])), float(np.mean([e.inside for e in stacks]))

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
        of, source = "InferenceX points that remain", "this report"
        return [{"tool": "trine", "statistic": "mean", "rows": len(runs), **errors, "of": of, "source": source}]

    def ranking(self) -> list[RankedGroup]:
        """Return the ranked groups of configurations, the lowest rank correlation first."""
        return ranked_groups(self.answered)

    @property
    def headline(self) -> str:
        """Coverage, and the errors of TPOT and end-to-end latency."""
        covered = self.stated_coverage()
        parts = [f"{'sample: ' if self.is_sample else ''}{covered.answered} of {covered.rows} published runs answered"]
        for quantity, errors in self.errors()[:2]:
            parts.append(f"{quantity.title} off by {errors.median:.1%} (median), nine of ten within {errors.p90:.1%}")
        return "; ".join(parts)

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by quantity, ranking, published errors, coverage, groups, exclusions, worst rows."""
        return paragraphs(self)

    def document(self) -> Row:
        """Return ``quantities``, ``groups``, ``ranking``, ``coverage``, ``exclusions``, ``published`` and ``rows``.

        Times in seconds, errors as fractions. ``stored``: origin of a stored report.
        """
        fitted, reasons = self.calibrated(), Counter(row.why for row in self.unpredicted).most_common()
        return {
            **self.replayed(), "finished": self.finished,
            "coverage": [each.row() for each in self.coverage()],
            "not_answered": [{"why": why, "num_rows": count} for why, count in reasons],
            "exclusions": [
                {"trap": rule.trap, "reason": rule.reason, "num_rows": count}
                for rule, count in exclusion_counts(self.excluded)
            ],
            "calibrated": None if fitted is None else fitted.row(),
            "published": [*self.inferencex(), *published_errors()], **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``quantities``, ``groups``, ``ranking`` and ``rows`` of :meth:`document`."""
        quantities: list[Row] = []
        groups: list[Row] = []
        for quantity, errors in self.errors():
            voted, met = self.voted(quantity), quantity.target.met(errors)
            by_stack = {} if voted is None else {"median_error_by_stack": voted[0], "share_inside_by_stack": voted[1]}
            limits = {"median_error_max": quantity.target.median, "p90_error_max": quantity.target.p90}
            quantities.append({"quantity": quantity.key, **errors.row(), **by_stack, **limits, "meets_target": met})
            for by in GROUPS:
                groups += [
                    {"quantity": quantity.key, "by": by, "group": name, **e.row()}
                    for name, e in self.grouped(quantity, by)
                ]
        ranking = [group.row() for group in self.ranking()]
        return {"quantities": quantities, "groups": groups, "ranking": ranking, "rows": self._rows()}

    def _rows(self) -> list[Row]:
        """Return a row for each compared value, and one for each run without a prediction."""
        rows: list[Row] = []
        for run in self.runs:
            facts: Row = {name: getattr(run.row, name) for name in FACTS}
            facts |= {"row": run.row.name, "queues": run.prediction.queues, "why_not": run.prediction.why_not or None}
            if run.prediction.why_not:
                rows.append(facts)
            for quantity in QUANTITIES:
                if not quantity.lowest_only and (value := run.value(quantity)):
                    rows.append({**facts, "quantity": quantity.key, **value.plain()})
        return rows


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
    configuration alone chooses them. Empty for a stack with fewer than :data:`LEAST_CALIBRATED` rows.
    """
    if len(values) < LEAST_CALIBRATED:
        return []
    ordered = sorted(values, key=lambda value: (value.row.concurrency or 0, value.row.name))
    chosen = [0, len(ordered) // 2, len(ordered) - 1]
    factor = float(np.median([1 / ordered[index].ratio for index in chosen]))
    return [value.ratio * factor - 1 for index, value in enumerate(ordered) if index not in chosen]


@cache
def judged_rows() -> tuple[tuple[ServingRow, ...], Mapping[str, Exclusion]]:
    """Return the bundled rows that are not excluded, and the rule of each excluded row by name."""
    excluded = excluded_rows(load_rows())
    return tuple(row for row in load_rows() if row.name not in excluded), excluded


def sampled_rows(rows: Iterable[ServingRow]) -> list[ServingRow]:
    """Return :data:`SAMPLE_ROWS` rows of each kind and stack: the first by the hash of their names."""
    shuffled = sorted(rows, key=lambda row: hashlib.sha256(row.name.encode()).digest())
    stacks = grouped(shuffled, lambda row: (row.kind, row.stack)).values()
    return [row for members in stacks for row in members[:SAMPLE_ROWS]]


def validate_serving(*, sample: bool = False, progress: Callable[[int, int], None] | None = None) -> ServingValidation:
    """Predict the published runs that are not excluded, one after the other; ``sample``: a few of each stack.

    progress: called with the work done and all work, in milliseconds of CPU time.
    """
    rows, excluded = judged_rows()
    chosen = sampled_rows(rows) if sample else rows
    count_row = ReplayProgress("serving", (row.name for row in chosen), progress)
    runs = []
    for row in chosen:
        runs.append(ComparedRun(row=row, prediction=predict(row)))
        count_row(row.name)
    return ServingValidation(runs=tuple(runs), excluded=excluded, is_sample=sample)


def load_stored_serving() -> ServingValidation:
    """Return the stored report of all rows, without a prediction."""
    origin, content = read_stored("serving")
    rows, excluded = judged_rows()
    row_of = {row.name: row for row in rows}
    runs = tuple(
        ComparedRun(row=row_of[record["row"]], prediction=ServingPrediction.read(record))
        for record in content["rows"]
        if record["row"] in row_of
    )
    return ServingValidation(runs=runs, excluded=excluded, stored=origin)
