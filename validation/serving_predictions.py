"""Predictions of published serving runs, and their stored form."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trine.errors import TrineError
from trine.inference.answer import ServingAnswer
from trine.inference.ranges import Estimate
from trine.inference.serve import answer
from trine.results.report import Row
from validation.serving_jobs import job_of
from validation.serving_rows import ServingRow

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
