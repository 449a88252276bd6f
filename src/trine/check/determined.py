"""Which factors of a fit the measurements determine, by the standard error of each.

Latency does not change large messages, and bandwidth does not change small ones. A fit would move such a factor to
follow noise. The standard errors follow from the sensitivities of the residuals (linear least squares around the fit).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

#: A factor with a larger standard error of its logarithm is undetermined: 95 % of fits would lie within 1.6 times.
MAX_ERROR = math.log(1.25)
#: Standard deviation of one measurement: at least nccl-tests' own 2 or 3 %; above the second value the errors are the
#: model's, which more measurements would not reduce. And the step of the sensitivities.
_MIN_NOISE, _MAX_NOISE, _STEP = 0.025, 0.1, 0.1


def undetermined_factors(
    residuals: Callable[[Sequence[float]], list[float]], factors: Sequence[float], limits: Sequence[float]
) -> tuple[int, ...]:
    """Return the positions of the factors that the measurements do not determine.

    residuals: log(measured / predicted) by the logarithms of all factors. factors: the fit. limits: the largest value
    of each factor.
    """
    base = np.array(residuals(factors))
    noise = min(max(_MIN_NOISE, float(np.sqrt((base**2).mean()))), _MAX_NOISE)
    columns = []
    for i, limit in enumerate(limits):
        step = _STEP if factors[i] + _STEP <= limit else -_STEP
        changed = [*factors[:i], factors[i] + step, *factors[i + 1 :]]
        columns.append((np.array(residuals(changed)) - base) / step)
    sensitivities = np.array(columns)
    information = sensitivities @ sensitivities.T / noise**2
    left: list[int] = []
    while len(left) < len(factors):
        free = [i for i in range(len(factors)) if i not in left]
        # A tiny diagonal keeps the inverse finite where a factor has no effect at all.
        errors = np.sqrt(np.diag(np.linalg.inv(information[np.ix_(free, free)] + 1e-9 * np.eye(len(free)))))
        worst = int(errors.argmax())
        if errors[worst] <= MAX_ERROR:
            break
        left.append(free[worst])
    return tuple(sorted(left))
