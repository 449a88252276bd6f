"""Fits what eight processes of one machine lose to each other on its CPUs: the numbers of presets/scaling.yaml.

    python benchmarks/fit_host.py

Prints the three numbers, and the error of each machine's and model's rows with numbers fitted on all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from trine.training.factor_fit import folds
from validation.scaling import (
    HostFile,
    Pair,
    ScalingFile,
    load_pairs,
    scaling_numbers,
    without_collectives,
)


def host_rows() -> list[Pair]:
    """Return the rows that the host time is fitted on."""
    return [pair for pair in load_pairs() if pair.is_fitted_on]


def fit_host(pairs: Sequence[Pair], numbers: ScalingFile | None = None) -> HostFile:
    """Fit the host time's three numbers to ``pairs``: least mean absolute error, by a shrinking grid search."""
    numbers = numbers or scaling_numbers()
    best: tuple[float, ...] = (math.log(10.0), math.log(0.5), math.log(2.0))
    step = 0.8
    while step > 0.005:
        around = product(*((log - step, log, log + step) for log in best))
        nearer = min(around, key=lambda logs: (_error(pairs, _host(numbers.host, logs)), logs != best))
        best, step = nearer, step if nearer != best else step / 2
    return _host(numbers.host, best)


def _host(known: HostFile, logs: tuple[float, ...]) -> HostFile:
    """Numbers from the logarithms of the time on the first machine and of the factors of the second and of amp."""
    first, second = known.machines
    ms, machine, amp = (math.exp(log) for log in logs)
    return known.model_copy(update={"step_ms": ms, "machines": {first: 1.0, second: machine}, "amp": amp})


def _error(pairs: Sequence[Pair], host: HostFile) -> float:
    return sum(abs(without_collectives(pair, host).error) for pair in pairs)


def left_out_error(pairs: Sequence[Pair], numbers: ScalingFile | None = None) -> float:
    """Mean absolute error of each machine's and model's rows with numbers fitted on all others."""
    numbers = numbers or scaling_numbers()
    errors: list[float] = []
    for mine, others in folds([(pair.machine, pair.variant) for pair in pairs]):
        host = fit_host([pairs[place] for place in others], numbers)
        errors += [abs(without_collectives(pairs[place], host).error) for place in mine]
    return float(np.mean(errors))


def main() -> None:
    """Fit and print."""
    pairs = host_rows()
    host = fit_host(pairs)
    print(f"step_ms: {host.step_ms:.4g}, machines: {host.machines}, amp: {host.amp:.3g}, rows: {len(pairs)}")
    print(f"left_out_error: {left_out_error(pairs):.3f}")


if __name__ == "__main__":
    main()
