"""How far predicted latency and throughput of inference engines are from published runs (``trine validate serving``).

No time is fitted on these rows; the width of the likely range is (presets/serving/ranges.yaml). The rules of
:mod:`validation.serving_exclusions` leave rows out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from trine.results.report import Row, Table
from validation.harness import ReplayProgress, UnreadRow, Validation, grouped, read_stored
from validation.serving_exclusions import Exclusion, excluded_rows, exclusion_counts
from validation.serving_predictions import ServingPrediction, predict
from validation.serving_quantities import QUANTITIES, ComparedRun
from validation.serving_rows import ServingRow, load_rows, published_errors
from validation.serving_statistics import GROUPS, ServingStatistics
from validation.serving_text import paragraphs

#: Rows of each stack and kind in a sample.
SAMPLE_ROWS = 2
#: Columns of a run in the JSON.
FACTS = (
    "source", "kind", "stack", "isl", "osl", "concurrency", "batch", "tp", "pp", "attention_dp", "ep",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingValidation(Validation):
    """Published serving runs that are not excluded, with their predictions. excluded: name of a row -> its rule."""

    SCHEMA: ClassVar[str] = "validate-serving"

    runs: tuple[ComparedRun, ...]
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)

    @property
    def statistics(self) -> ServingStatistics:
        """Errors, coverage and ranking."""
        return ServingStatistics(self.runs)

    @property
    def unpredicted(self) -> tuple[UnreadRow, ...]:
        """Rows without a prediction, each with its reason."""
        return tuple(
            UnreadRow(source=run.row.source, name=run.row.name, why=run.prediction.why_not)
            for run in self.runs
            if run.prediction.why_not
        )

    @property
    def headline(self) -> str:
        """Coverage, and the errors of TPOT and end-to-end latency."""
        covered = self.statistics.stated_coverage()
        unstated = len(self.runs) - covered.rows
        parts = [f"{'sample: ' if self.is_sample else ''}{covered.answered} of {covered.rows} published runs answered"]
        if unstated:
            parts.append(f"{unstated} more do not state their workers")
        for quantity, errors in self.statistics.errors()[:2]:
            parts.append(f"{quantity.title} off by {errors.median:.1%} (median), nine of ten within {errors.p90:.1%}")
        return "; ".join(parts)

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by quantity, ranking, published errors, coverage, groups, exclusions, worst rows."""
        yield from paragraphs(self.statistics)
        yield self._exclusion_lines()
        reasons = self._reasons()
        yield ["not answered", *(f"  {count:4d}  {why}" for why, count in reasons)] if reasons else []

    def _exclusion_lines(self) -> list[str]:
        counts = exclusion_counts(self.excluded)
        lines = [f"  {count:4d}  rule {rule.trap}: {rule.reason}" for rule, count in counts]
        return [f"excluded rows: {len(self.excluded)}", *lines] if self.excluded else []

    def _reasons(self) -> list[tuple[str, int]]:
        """Return the reasons of missing predictions with their numbers of rows, the most frequent first."""
        return Counter(row.why for row in self.unpredicted).most_common()

    def document(self) -> Row:
        """Return ``quantities``, ``groups``, ``ranking``, ``coverage``, ``exclusions``, ``published`` and ``rows``.

        Times in seconds, errors as fractions. ``stored``: origin of a stored report.
        """
        statistics = self.statistics
        fitted = statistics.calibrated()
        return {
            **self.replayed(), "finished": self.finished,
            "coverage": [each.row() for each in statistics.coverage()],
            "not_answered": [{"why": why, "num_rows": count} for why, count in self._reasons()],
            "exclusions": [
                {"trap": rule.trap, "reason": rule.reason, "num_rows": count}
                for rule, count in exclusion_counts(self.excluded)
            ],
            "calibrated": None if fitted is None else fitted.row(),
            "published": [*statistics.inferencex(), *published_errors()], **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``quantities``, ``groups``, ``ranking`` and ``rows`` of :meth:`document`."""
        statistics = self.statistics
        quantities: list[Row] = []
        groups: list[Row] = []
        for quantity, errors in statistics.errors():
            by_stack = {
                "median_error_by_stack": statistics.median_by_stack(quantity),
                "share_inside_by_stack": statistics.inside_by_stack(quantity),
            }
            limits = {"median_error_max": quantity.target.median, "p90_error_max": quantity.target.p90}
            met = {"meets_target": quantity.target.met(errors)}
            quantities.append({"quantity": quantity.key, **errors.row(), **by_stack, **limits, **met})
            for by in GROUPS:
                groups += [
                    {"quantity": quantity.key, "by": by, "group": name, **e.row()}
                    for name, e in statistics.grouped(quantity, by)
                ]
        ranking = [group.row() for group in statistics.ranking()]
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
