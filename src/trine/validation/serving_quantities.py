"""Predictions of published serving runs, and the quantities that are compared: measured, predicted, target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from trine.errors import TrineError
from trine.inference.answer import ServingAnswer
from trine.inference.ranges import Estimate
from trine.inference.serve import answer
from trine.results.report import Row
from trine.validation.harness import Errors, Target, grouped
from trine.validation.serving_rows import (
    AGGREGATED,
    DISAGGREGATED,
    FIRST_TOKEN,
    SATURATED,
    STATIC,
    ServingRow,
    job_of,
)

#: Significant digits of stored predictions.
DIGITS = 6
_ESTIMATES = ("ttft_s", "tpot_s", "end_to_end_s", "output_tokens_per_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPrediction:
    """The prediction of a row; None for a quantity that the job does not have.

    prefill_s: time of one prompt alone, without the server around it. queues: more requests than run at a time.
    cpu_s: CPU time of the prediction in seconds. why_not: the reason if the row has no prediction, else empty.
    """

    row: str
    ttft_s: Estimate | None = None
    tpot_s: Estimate | None = None
    end_to_end_s: Estimate | None = None
    output_tokens_per_s: Estimate | None = None
    prefill_s: Estimate | None = None
    queues: bool = False
    cpu_s: float = 0.0
    why_not: str = ""

    @staticmethod
    def of(row: ServingRow, served: ServingAnswer, cpu_s: float) -> ServingPrediction:
        """Return the compared part of an answer, with :data:`DIGITS` digits."""
        values: dict[str, Any] = {name: _rounded(getattr(served, name)) for name in _ESTIMATES}
        values["end_to_end_s"] = _rounded(_end_to_end(row, served))
        values["prefill_s"] = _rounded(Estimate(served.prefill_s, served.prefill_s, served.prefill_s))
        return ServingPrediction(row=row.name, queues=served.queues, cpu_s=round(cpu_s, 4), **values)

    @staticmethod
    def read(record: Mapping[str, Any]) -> ServingPrediction:
        """Return the prediction of a record. Raises KeyError for a missing key."""
        values = {field.name: record[field.name] for field in fields(ServingPrediction)}
        estimates = {name: Estimate(*values[name]) if values[name] else None for name in (*_ESTIMATES, "prefill_s")}
        return ServingPrediction(**{**values, **estimates})

    def record(self) -> Row:
        """Return the prediction as plain data; an estimate as a list of value, low and high."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(asdict(value).values()) if isinstance(value, Estimate) else value
            for name, value in values.items()
        }


def _end_to_end(row: ServingRow, served: ServingAnswer) -> Estimate:
    """Return the time of a request of the longest output, as :attr:`ServingRow.end_to_end_s` counts it.

    An answer for lengths that vary has the mean request's.
    """
    whole = served.end_to_end_s
    if served.ttft_s is None or served.tpot_s is None:
        return whole
    value = served.ttft_s.value + (row.osl - 1) * served.tpot_s.value
    return Estimate(value, value * whole.low / whole.value, value * whole.high / whole.value)


def _rounded(estimate: Estimate | None) -> Estimate | None:
    if estimate is None:
        return None
    return Estimate(*(float(f"{value:.{DIGITS}g}") for value in (estimate.value, estimate.low, estimate.high)))


def predict(row: ServingRow) -> ServingPrediction:
    """Predict one row; the result has a reason if that fails."""
    began = time.process_time()
    try:
        served = answer(job_of(row))
    except TrineError as error:
        return ServingPrediction(row=row.name, why_not=str(error), cpu_s=round(time.process_time() - began, 4))
    return ServingPrediction.of(row, served, time.process_time() - began)


# -- quantities --------------------------------------------------------------------------------------------------------


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
