"""Fit of at most three factors of a software profile to measured steps.

The factors come from :data:`trine.software.profile.FACTORS`. The fit minimises the mean square of
log(predicted / measured) by Gauss-Newton with finite differences (each factor times 1.05), starting at the profile's
values. It rejects a factor that affects no step, and factors that the steps cannot separate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Float64
from trine.errors import InputError

#: More factors would fit the noise of a few steps.
MAX_FACTORS = 3
#: Least sensitivity of a factor: 0.02 means that a change by 1 % moves some step by 0.02 %.
FELT = 0.02
_NUDGE = math.log(1.05)
#: Factors stay within 1/8 and 8 times their start; beyond that, the profile describes other software.
_MAX_LOG = math.log(8)
_MAX_MOVES, _MIN_MOVE = 6, 2e-3

#: (factors, number of the step) -> its predicted seconds.
Predict = Callable[[Mapping[str, float], int], float]


@dataclass(frozen=True, slots=True)
class FactorFit:
    """Fitted factors and their errors.

    factors: name -> value. before, after: log(predicted / measured) of each step without and with them. left_out: the
    same for each group of steps, with factors fitted on the others; empty if too few steps remain for a fit.
    """

    factors: Mapping[str, float]
    before: tuple[float, ...]
    after: tuple[float, ...]
    left_out: tuple[float, ...]

    @property
    def left_out_error(self) -> float | None:
        """Mean of |predicted / measured - 1| over left-out steps, or None without any."""
        return mean_error(self.left_out) if self.left_out else None


def mean_error(logs: Sequence[float]) -> float:
    """Return the mean of |ratio - 1| over the logarithms of ratios."""
    return float(np.mean(np.abs(np.expm1(np.asarray(logs, float)))))


def fit_factors(
    predict: Predict, measured_s: Sequence[float], names: Sequence[str], groups: Sequence[object] | None = None
) -> FactorFit:
    """Fit ``names`` on steps of ``measured_s`` seconds.

    groups: the error test leaves out the steps of one group together (None: one by one).

    Raises InputError for more than three factors, more factors than steps, a factor that affects no step, and factors
    that these steps cannot separate.
    """
    if len(set(names)) != len(names) or not 1 <= len(names) <= MAX_FACTORS:
        raise InputError(f"between 1 and {MAX_FACTORS} different factors are fitted, got {', '.join(names) or 'none'}")
    if len(names) > len(measured_s):
        raise InputError(f"{len(names)} factors need {len(names)} measured steps, got {len(measured_s)}")
    predictions = _Predictions(predict, measured_s, names)
    all_steps = list(range(len(measured_s)))
    start = np.zeros(len(names))
    _check_separable(predictions.slopes(start, all_steps), names)
    best = _minimum(predictions, all_steps)
    factors = dict(zip(names, np.exp(best).tolist(), strict=True))
    return FactorFit(
        factors=factors,
        before=tuple(predictions.errors(start, all_steps).tolist()),
        after=tuple(predictions.errors(best, all_steps).tolist()),
        left_out=_held_out_errors(predictions, list(groups if groups is not None else all_steps)),
    )


class _Predictions:
    """Cache of predicted step times and their errors."""

    def __init__(self, predict: Predict, measured_s: Sequence[float], names: Sequence[str]) -> None:
        self._predict, self._measured_s, self.names = predict, measured_s, tuple(names)
        self._cache: dict[tuple[tuple[float, ...], int], float] = {}

    def error(self, logs: Float64, step: int) -> float:
        """Return log(predicted / measured) of a step."""
        key = tuple(round(float(value), 9) for value in logs), step
        if key not in self._cache:
            factors = {name: math.exp(value) for name, value in zip(self.names, key[0], strict=True)}
            self._cache[key] = math.log(self._predict(factors, step) / self._measured_s[step])
        return self._cache[key]

    def errors(self, logs: Float64, steps: Sequence[int]) -> Float64:
        """Return float64[steps]: :meth:`error` of each."""
        return np.array([self.error(logs, step) for step in steps])

    def slopes(self, logs: Float64, steps: Sequence[int]) -> Float64:
        """Return float64[steps, factors]: d log time / d log factor of each step, by a forward difference."""
        base = self.errors(logs, steps)
        nudged = (logs + _NUDGE * (np.arange(len(logs)) == number) for number in range(len(logs)))
        return np.stack([(self.errors(point, steps) - base) / _NUDGE for point in nudged], axis=1)


def _check_separable(slopes: Float64, names: Sequence[str]) -> None:
    for name, slope in zip(names, np.abs(slopes).max(axis=0), strict=True):
        if slope < FELT:
            raise InputError(f"no measured step depends on the factor {name!r}: leave it out", field="factors")
    scaled = slopes / np.linalg.norm(slopes, axis=0)
    if np.linalg.svd(scaled, compute_uv=False)[-1] < 0.05:
        raise InputError(
            f"these steps cannot tell {' and '.join(names)} apart: all of them follow the factors alike; fit fewer, or "
            "measure steps of other sizes or GPU counts",
            field="factors",
        )


def _minimum(predictions: _Predictions, steps: Sequence[int]) -> Float64:
    """Run Gauss-Newton; halve a move that increases the cost."""
    point = np.zeros(len(predictions.names))
    cost = _cost(predictions, point, steps)
    for _ in range(_MAX_MOVES):
        slopes, errors = predictions.slopes(point, steps), predictions.errors(point, steps)
        move = np.linalg.lstsq(slopes, -errors, rcond=1e-3)[0]
        if np.abs(move).max() < _MIN_MOVE:
            return point
        for _ in range(4):
            trial = np.clip(point + move, -_MAX_LOG, _MAX_LOG)
            new = _cost(predictions, trial, steps)
            if new <= cost:
                break
            move = move / 2
        if new > cost:
            return point
        point, cost = trial, new
    return point


def _cost(predictions: _Predictions, logs: Float64, steps: Sequence[int]) -> float:
    return float(np.mean(predictions.errors(logs, steps) ** 2))


def _held_out_errors(predictions: _Predictions, groups: Sequence[object]) -> tuple[float, ...]:
    """Return the errors of each group with factors fitted on the others; empty if a fit has too few steps."""
    errors: dict[int, float] = {}
    for members, remainder in folds(groups):
        if len(remainder) < len(predictions.names):
            return ()
        best = _minimum(predictions, remainder)
        errors |= {step: predictions.error(best, step) for step in members}
    return tuple(errors[step] for step in sorted(errors))


def folds(groups: Sequence[object]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the members of each group and the members of all others; groups in order of appearance."""
    for group in dict.fromkeys(groups):
        inside = [n for n, key in enumerate(groups) if key == group]
        outside = [n for n, key in enumerate(groups) if key != group]
        yield inside, outside
