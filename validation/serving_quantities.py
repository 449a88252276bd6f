"""Quantities of serving runs that are compared: measured, predicted, target; and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trine.inference.ranges import Estimate
from trine.results.report import Row
from validation.harness import Errors, Target, grouped
from validation.serving_predictions import ServingPrediction
from validation.serving_rows import (
    AGGREGATED,
    DISAGGREGATED,
    FIRST_TOKEN,
    SATURATED,
    STATIC,
    ServingRow,
)


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A measured value of a row and its estimate, in the same unit."""

    row: ServingRow
    measured: float
    predicted: Estimate

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.predicted.value / self.measured

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.ratio - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured value lies in the likely range."""
        return self.predicted.low <= self.measured <= self.predicted.high

    def plain(self) -> Row:
        """Return measured and predicted value, likely range and error as plain data."""
        predicted = self.predicted
        estimate = {"predicted": predicted.value, "low": predicted.low, "high": predicted.high}
        return {"measured": self.measured, **estimate, "error": self.error}


NO_TARGET = Target()


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A quantity that is compared.

    kinds: kinds of rows that have it. measured, predicted: return the value, or None for a row without it. target:
    limits of its errors over all rows. lowest_only: only the row with the fewest requests of each configuration counts.
    """

    key: str
    title: str
    kinds: tuple[str, ...]
    measured: Callable[[ServingRow], float | None]
    predicted: Callable[[ServingPrediction], Estimate | None]
    target: Target = NO_TARGET
    lowest_only: bool = False


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3


def _total_tokens_per_s(row: ServingRow) -> float | None:
    """Output tokens per second of all GPUs."""
    if row.tokens_per_s is None:
        return None
    return row.tokens_per_s * (row.layout.gpus if row.is_per_gpu else 1)


_TPOT, _STEADY = Target(median=0.12, p90=0.30), Target(median=0.12)
QUANTITIES = (
    Quantity(
        key="tpot", title="TPOT", kinds=(AGGREGATED,), target=_TPOT,
        measured=lambda row: _seconds(row.tpot_ms), predicted=lambda answer: answer.tpot_s,
    ),
    Quantity(
        key="end_to_end", title="end-to-end latency", kinds=(AGGREGATED,), target=_TPOT,
        measured=lambda row: row.end_to_end_s, predicted=lambda answer: answer.end_to_end_s,
    ),
    Quantity(
        key="ttft_lowest", title="TTFT, lowest concurrency", kinds=(AGGREGATED,), target=Target(median=0.30),
        lowest_only=True, measured=lambda row: _seconds(row.ttft_ms), predicted=lambda answer: answer.ttft_s,
    ),
    Quantity(
        key="ttft", title="TTFT, all concurrencies", kinds=(AGGREGATED,),
        measured=lambda row: _seconds(row.ttft_ms), predicted=lambda answer: answer.ttft_s,
    ),
    Quantity(
        key="static_tokens_per_s", title="tokens/s, static batch", kinds=(STATIC,), target=_STEADY,
        measured=_total_tokens_per_s, predicted=lambda answer: answer.output_tokens_per_s,
    ),
    Quantity(
        key="saturated_tokens_per_s", title="tokens/s, saturated", kinds=(SATURATED,), target=_STEADY,
        measured=_total_tokens_per_s, predicted=lambda answer: answer.output_tokens_per_s,
    ),
    Quantity(
        key="decode_tpot", title="TPOT, decode workers", kinds=(DISAGGREGATED,), target=Target(median=0.20),
        measured=lambda row: _seconds(row.tpot_ms), predicted=lambda answer: answer.tpot_s,
    ),
    Quantity(
        key="static_tpot", title="TPOT, static batch", kinds=(STATIC,),
        measured=lambda row: _seconds(row.tpot_ms), predicted=lambda answer: answer.tpot_s,
    ),
    Quantity(
        key="static_prompts", title="time of prompts, static", kinds=(STATIC,),
        measured=lambda row: _seconds(row.ttft_ms), predicted=lambda answer: answer.ttft_s,
    ),
    Quantity(
        key="first_token", title="time of one prompt", kinds=(FIRST_TOKEN,),
        measured=lambda row: _seconds(row.ttft_ms), predicted=lambda answer: answer.prefill_s,
    ),
)  # fmt: skip
TPOT = QUANTITIES[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """A row and its prediction."""

    row: ServingRow
    prediction: ServingPrediction

    def value(self, quantity: Quantity) -> ComparedValue | None:
        """Return measured and predicted value; None if either is missing."""
        if self.row.kind not in quantity.kinds:
            return None
        measured, predicted = quantity.measured(self.row), quantity.predicted(self.prediction)
        return None if measured is None or predicted is None else ComparedValue(self.row, measured, predicted)


def compared_values(quantity: Quantity, runs: Iterable[ComparedRun]) -> list[ComparedValue]:
    """Return the values of a quantity in the rows that have it."""
    chosen = [run for run in runs if run.row.kind in quantity.kinds]
    if quantity.lowest_only:
        by_configuration = grouped(chosen, lambda run: run.row.configuration).values()
        chosen = [min(equal, key=lambda run: run.row.concurrency or 0) for equal in by_configuration]
    return [value for run in chosen if (value := run.value(quantity)) is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingErrors(Errors):
    """Errors, with scale and shape apart.

    scale: median of predicted / measured. shape: median error that is left after each value is divided by the scale of
    its stack. inside: share of measured values in the likely range; None for values without a range.
    """

    scale: float
    shape: float
    inside: float | None

    @classmethod
    def of_values(cls, values: Sequence[ComparedValue]) -> ServingErrors:
        """Return the errors of at least one value."""
        stacks = grouped(values, lambda value: value.row.stack).values()
        scaled = [ratio / np.median(ratios) for ratios in map(_ratios, stacks) for ratio in ratios]
        shape = float(np.median(np.abs(np.array(scaled) - 1)))
        ranged = [value.is_inside for value in values if value.predicted.low < value.predicted.high]
        inside = float(np.mean(ranged)) if ranged else None
        ratios = np.array(_ratios(values))
        return cls.of(ratios - 1, scale=float(np.median(ratios)), shape=shape, inside=inside)

    def row(self) -> Row:
        """Return the errors as plain data."""
        return {**Errors.row(self), "scale": self.scale, "shape_error": self.shape, "share_inside": self.inside}


def _ratios(values: Iterable[ComparedValue]) -> list[float]:
    return [value.ratio for value in values]
