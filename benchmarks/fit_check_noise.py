"""Fit the noise model of prediction errors (`trine.check.likelihood.NOISE`) by maximum likelihood.

It is fitted to the residuals of each counted series of presets/measured (one per machine, collective, number of GPUs
and setting; any length). Predictions come from fits without the series' machine family: left_out.csv for the split
`fit`, the shipped parameters for held-out machines. A family of n series weighs as much as sqrt(n) series.

    python benchmarks/fit_check_noise.py

Prints the parameters in about 30 seconds. `repeat` is fixed: nccl-tests repeats to 2 or 3 %.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from check_confusion import Measured, curves

from trine.check.likelihood import NOISE, Noise, band_sigma, log_likelihood

#: Parameters between 0 and 1, fitted as log-odds; the others are fitted as logarithms.
PARTS = ("stray", "wide")
FITTED = ("drift", "octaves", "stray", "stray_by", "wide", "wide_by")
#: Steps are tried both ways, grow on success and are halved otherwise. The fit ends once all are at most LAST_STEP.
FIRST_STEP, LAST_STEP = 0.3, 0.02


class Problem:
    """Log-likelihood of curves over the parameters; curves with equal sizes are computed together."""

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
        """Return the weighted log-likelihood."""
        return sum(float(log_likelihood(left, sizes, noise) @ weight) for sizes, left, weight in self.groups)

    def fit(self, start: Noise) -> Noise:
        """Climb to the maximum, one parameter at a time."""
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
    """Return log(measured / predicted without the family), in standard deviations of the band."""
    usual = curve.predicted
    sigma = band_sigma([each.low_ps for each in usual], [each.high_ps for each in usual])
    return np.log(np.array(curve.unseen_ps, float) / np.array([each.time_ps for each in usual], float)) / sigma


def moved(noise: Noise, name: str, step: float) -> Noise:
    """Return ``noise`` with one parameter moved by ``step``."""
    value = getattr(noise, name)
    if name in PARTS:
        value = 1 / (1 + math.exp(-(math.log(value / (1 - value)) + step)))
    else:
        value *= math.exp(step)
    return Noise(**{**asdict(noise), name: value})


def without_each_family() -> dict[str, Noise]:
    """Fit the noise parameters without each family; return them by that family."""
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
