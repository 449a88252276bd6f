"""Flag reads of spinning wavefronts against wake-up time, and the wake-up time beyond which mwait reads less.

Also the spread of times over seeds of the issue order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trine.common.units import PS_PER_S, format_time
from trine.results.report import Row

#: Halvings of the interval that contains the break-even time.
_HALVINGS = 8

#: Flag reads by wake-up time (ps).
Reads = Callable[[int], int]


class Fit(NamedTuple):
    """Flag reads against wake-up time, for one spinning workload (and the same with mwait).

    slope_per_s, r2: of a straight-line fit; None for fewer than three points. expected_per_s: waiting wavefronts /
    polling interval. break_even_s: wake-up time beyond which mwait reads less, to 1/256 of the grid step; None if it
    is outside the grid. saved: fraction of the flag reads that mwait saves at ten times that wake-up time.
    """

    name: str
    slope_per_s: float | None
    r2: float | None
    expected_per_s: float | None
    break_even_s: float | None
    saved: float | None

    def lines(self) -> Iterator[str]:
        """Yield the fit as sentences."""
        name = f" ({self.name})" if self.name else ""
        if self.slope_per_s is not None and self.expected_per_s is not None and self.r2 is not None:
            yield (
                f"spin{name}: {self.slope_per_s / 1e6:.4g} flag reads per us of wake-up time, r^2 {self.r2:.4f}; "
                f"wavefronts / polling interval: {self.expected_per_s / 1e6:.4g}"
            )
        if self.break_even_s is not None and self.saved is not None:
            yield (
                f"mwait{name} reads less from a wake-up time of {format_time(self.break_even_s * PS_PER_S)} on; at "
                f"ten times that {100 * self.saved:.1f} % less"
            )


class Spread(NamedTuple):
    """Times of runs that differ only in the seed of their issue order. times: number of distinct times."""

    name: str
    seeds: int
    times: int
    least_s: float
    most_s: float

    def line(self) -> str:
        """Return the spread as one line."""
        low, high = (format_time(each * PS_PER_S) for each in (self.least_s, self.most_s))
        share = 100 * (self.most_s / self.least_s - 1) if self.least_s else 0.0
        return f"{self.name}: {self.seeds} issue orders, {self.times} times, from {low} to {high} (+{share:.2f} %)"


def spreads_of(rows: Sequence[Row], varied: Sequence[str]) -> tuple[Spread, ...]:
    """Group rows that differ only in their seed; ``varied``: the other options that vary."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        parts = [f"{row[name]} {name}" for name in ("rows", "cols", "peers") if name in varied]
        if "wakeup" in varied:
            parts.append(f"wake-up {format_time(float(str(row['wakeup_s'])) * PS_PER_S)}")
        by_name.setdefault(", ".join([*parts, str(row["sync"])]), []).append(float(str(row["time_s"])))
    return tuple(Spread(name, len(times), len(set(times)), min(times), max(times)) for name, times in by_name.items())


def fit(
    name: str,
    wakeups_ps: Sequence[int],
    spin: Sequence[int],
    expected_per_s: float | None,
    mwait: Sequence[int] | None,
    reads: tuple[Reads, Reads] | None,
) -> Fit:
    """Fit flag reads to wake-up times; ``mwait``: reads with mwait, ``reads``: of spin and mwait, at other times."""
    order = np.argsort(wakeups_ps)
    x = np.asarray(wakeups_ps, np.int64)[order]
    slope, r2 = _line_through(x / PS_PER_S, np.asarray(spin, float)[order])
    break_even = saved = None
    if mwait is not None and reads is not None:
        even_ps = _break_even(x, (np.asarray(spin) - np.asarray(mwait))[order], reads)
        if even_ps is not None:
            break_even, saved = even_ps / PS_PER_S, 1 - reads[1](10 * even_ps) / reads[0](10 * even_ps)
    return Fit(name, slope, r2, expected_per_s, break_even, saved)


def _line_through(x: Any, y: Any) -> tuple[float | None, float | None]:
    """Return slope and r^2 of a least-squares fit, bit-identical on every CPU, unlike vector sums."""
    if len(x) < 3:
        return None, None
    points = x.tolist(), y.tolist()
    slope = statistics.linear_regression(*points).slope
    return slope, statistics.correlation(*points) ** 2 if len(set(points[1])) > 1 else None


def _break_even(x: Any, difference: Any, reads: tuple[Reads, Reads]) -> int | None:
    """Return the wake-up time (ps) beyond which spin reads more than mwait, by bisection between two grid points."""
    below = np.flatnonzero(difference <= 0)
    if not len(below) or int(below[-1]) + 1 == len(x):
        return None
    low, high = int(x[below[-1]]), int(x[below[-1] + 1])
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if reads[0](middle) > reads[1](middle):
            high = middle
        else:
            low = middle
    return high
