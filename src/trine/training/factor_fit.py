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
_FARTHEST = math.log(8)
_STEPS, _SETTLED = 6, 2e-3

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
    asked = _Asked(predict, measured_s, names)
    every = list(range(len(measured_s)))
    start = np.zeros(len(names))
    _check_felt(asked.slopes(start, every), names)
    best = _minimum(asked, every)
    found = dict(zip(names, np.exp(best).tolist(), strict=True))
    return FactorFit(
        factors=found,
        before=tuple(asked.errors(start, every).tolist()),
        after=tuple(asked.errors(best, every).tolist()),
        left_out=_left_out(asked, list(groups if groups is not None else every)),
    )


class _Asked:
    """Cache of the predictions."""

    def __init__(self, predict: Predict, measured_s: Sequence[float], names: Sequence[str]) -> None:
        self._predict, self._measured_s, self.names = predict, measured_s, tuple(names)
        self._known: dict[tuple[tuple[float, ...], int], float] = {}

    def error(self, logs: Float64, step: int) -> float:
        """Return log(predicted / measured) of a step."""
        key = tuple(round(float(value), 9) for value in logs), step
        if key not in self._known:
            factors = {name: math.exp(value) for name, value in zip(self.names, key[0], strict=True)}
            self._known[key] = math.log(self._predict(factors, step) / self._measured_s[step])
        return self._known[key]

    def errors(self, logs: Float64, steps: Sequence[int]) -> Float64:
        """Return float64[steps]: :meth:`error` of each."""
        return np.array([self.error(logs, step) for step in steps])

    def slopes(self, logs: Float64, steps: Sequence[int]) -> Float64:
        """Return float64[steps, factors]: d log time / d log factor of each step, by a forward difference."""
        here = self.errors(logs, steps)
        nudged = (logs + _NUDGE * (np.arange(len(logs)) == number) for number in range(len(logs)))
        return np.stack([(self.errors(each, steps) - here) / _NUDGE for each in nudged], axis=1)


def _check_felt(slopes: Float64, names: Sequence[str]) -> None:
    for name, most in zip(names, np.abs(slopes).max(axis=0), strict=True):
        if most < FELT:
            raise InputError(f"no measured step depends on the factor {name!r}: leave it out", field="factors")
    scaled = slopes / np.linalg.norm(slopes, axis=0)
    if np.linalg.svd(scaled, compute_uv=False)[-1] < 0.05:
        raise InputError(
            f"these steps cannot tell {' and '.join(names)} apart: all of them follow the factors alike; fit fewer, or "
            "measure steps of other sizes or GPU counts",
            field="factors",
        )


def _minimum(asked: _Asked, steps: Sequence[int]) -> Float64:
    """Run Gauss-Newton; halve a move that increases the cost."""
    here = np.zeros(len(asked.names))
    cost = _cost(asked, here, steps)
    for _ in range(_STEPS):
        slopes, errors = asked.slopes(here, steps), asked.errors(here, steps)
        move = np.linalg.lstsq(slopes, -errors, rcond=1e-3)[0]
        if np.abs(move).max() < _SETTLED:
            return here
        for _ in range(4):
            there = np.clip(here + move, -_FARTHEST, _FARTHEST)
            new = _cost(asked, there, steps)
            if new <= cost:
                break
            move = move / 2
        if new > cost:
            return here
        here, cost = there, new
    return here


def _cost(asked: _Asked, logs: Float64, steps: Sequence[int]) -> float:
    return float(np.mean(asked.errors(logs, steps) ** 2))


def _left_out(asked: _Asked, groups: Sequence[object]) -> tuple[float, ...]:
    """Return the errors of each group with factors fitted on the others; empty if a fit has too few steps."""
    found: dict[int, float] = {}
    for members, others in folds(groups):
        if len(others) < len(asked.names):
            return ()
        best = _minimum(asked, others)
        found |= {step: asked.error(best, step) for step in members}
    return tuple(found[step] for step in sorted(found))


def folds(groups: Sequence[object]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the members of each group and the members of all others; groups in order of appearance."""
    for group in dict.fromkeys(groups):
        yield [n for n, own in enumerate(groups) if own == group], [n for n, own in enumerate(groups) if own != group]
