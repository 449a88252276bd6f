"""Fits how predictions miss measured curves (`trine.check.likelihood.NOISE`), by maximum likelihood.

To what is left of each counted series of presets/measured (one of each machine, collective, number of GPUs and setting;
any length) by a prediction that its family of machines had no part in: left_out.csv for the split `fit`, the shipped
parameters for held-out machines. A family of n series weighs as sqrt(n) of them.

    python benchmarks/fit_check_noise.py

prints the parameters, about half a minute. `repeat` is given: nccl-tests repeats to 2 or 3 %.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from check_confusion import Measured, curves

from trine.check.likelihood import NOISE, Noise, band_sigma, log_likelihood

#: Parts of 1 are fitted as log-odds, the rest as logarithms.
PARTS = ("stray", "wide")
FITTED = ("drift", "octaves", "stray", "stray_by", "wide", "wide_by")
#: A step is tried both ways, grows with success, and is halved without; the fit ends when none is larger.
FIRST_STEP, LAST_STEP = 0.3, 0.02


class Problem:
    """The log-likelihood of curves over the parameters; curves of the same sizes are computed at once."""

    def __init__(self, found: Sequence[Measured]) -> None:
        of_family = Counter(curve.family for curve in found)
        groups = defaultdict(list)
        for curve in found:
            groups[curve.sizes].append(curve)
        self.groups = [
            (
                sizes,
                np.array([missed(curve) for curve in same]),
                np.array([of_family[curve.family] ** -0.5 for curve in same]),
            )
            for sizes, same in groups.items()
        ]

    def value(self, noise: Noise) -> float:
        """The weighted log-likelihood."""
        return sum(float(log_likelihood(left, sizes, noise) @ weight) for sizes, left, weight in self.groups)

    def fit(self, start: Noise) -> Noise:
        """Uphill, one parameter at a time."""
        noise, best, steps = start, self.value(start), dict.fromkeys(FITTED, FIRST_STEP)
        while max(steps.values()) > LAST_STEP:
            for name in FITTED:
                for step in (steps[name], -steps[name]):
                    trial = moved(noise, name, step)
                    value = self.value(trial)
                    if value > best + 1e-3:
                        noise, best, steps[name] = trial, value, 1.3 * steps[name]
                        break
                else:
                    steps[name] /= 2
        return noise


def missed(curve: Measured) -> np.ndarray:
    """log(measured / predicted without the family), in standard deviations of the band."""
    usual = curve.predicted
    sigma = band_sigma([each.low_ps for each in usual], [each.high_ps for each in usual])
    return np.log(np.array(curve.unseen_ps, float) / np.array([each.time_ps for each in usual], float)) / sigma


def moved(noise: Noise, name: str, step: float) -> Noise:
    """One parameter a step further."""
    value = getattr(noise, name)
    if name in PARTS:
        value = 1 / (1 + math.exp(-(math.log(value / (1 - value)) + step)))
    else:
        value *= math.exp(step)
    return Noise(**{**asdict(noise), name: value})


def without_each_family() -> dict[str, Noise]:
    """The parameters by the family that had no part in them."""
    found = curves(min_sizes=1)
    families = sorted({curve.family for curve in found})
    return {family: Problem([c for c in found if c.family != family]).fit(NOISE) for family in families}


def main() -> None:
    problem = Problem(curves(min_sizes=1))
    noise = problem.fit(NOISE)
    for name, value in asdict(noise).items():
        print(f"{name} = {value:.3g}")
    print(f"log-likelihood {problem.value(noise):.2f}, with the shipped parameters {problem.value(NOISE):.2f}")


if __name__ == "__main__":
    main()
