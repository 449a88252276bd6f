"""The search of a serving plan: closed forms bound each point, and the scheduler is followed where they cannot decide.

On 1,309 points of three models and three engines, closed forms err by -0.5 to +50 % in tokens/s (1 % in the median), by
-12 to +12 % in TPOT, and overestimate TTFT by at most 12 %. So a point is simulated unless its estimate, made better
by these errors, is no better than points that were simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trine.inference.job import ServingLayout
from trine.inference.serving_points import ServedCopy, ServingPoint

#: Errors of the closed forms: a rate may be higher, and a latency lower, by these factors.
RATE_MARGIN, LATENCY_MARGIN = 1.01, 1.15
#: Points of the Pareto front are simulated if the estimated TPOT is within this factor of the front's.
FRONT_MARGIN = 1.05
#: Rates that differ by less than this share are equal, as far as trine can tell: as for layouts of training.
TIE = 0.02
#: Numbers that order points, the most important first.
Cost = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """Limits in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def hold(self, ttft_s: float, tpot_s: float) -> bool:
        """Return whether both times are within their limits."""
        is_prompt = self.ttft_s is None or ttft_s <= self.ttft_s
        return is_prompt and (self.tpot_s is None or tpot_s <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A point before its simulation: requests of a lane, and tokens/s per GPU and TPOT of the closed form."""

    copy: ServedCopy
    requests: int
    per_gpu: float
    tpot_s: float


class PointSearch:
    """The points of all copies that may meet the limits (one request in each lane always), and the simulated ones."""

    def __init__(self, copies: Sequence[ServedCopy], limits: LatencyLimits) -> None:
        self.copies, self.limits = copies, limits
        self.num_points = 0
        self._simulated: dict[tuple[int, int], ServingPoint] = {}
        self._estimates: list[_Estimate] = []
        for copy in copies:
            self._add_points(copy)
        self._estimates.sort(key=lambda each: -each.per_gpu)

    @property
    def num_simulated(self) -> int:
        """Points whose scheduler was followed."""
        return len(self._simulated)

    @property
    def meeting(self) -> list[ServingPoint]:
        """The simulated points within the limits."""
        return [each for each in self._simulated.values() if self.limits.hold(each.ttft_s, each.tpot_s)]

    def _add_points(self, copy: ServedCopy) -> None:
        for requests in copy.loads():
            self.num_points += 1
            times = copy.estimate(requests)
            ttft_s, tpot_s = times.ttft_us * 1e-6, times.tpot_us * 1e-6
            if requests == 1 or self.limits.hold(ttft_s / LATENCY_MARGIN, tpot_s / LATENCY_MARGIN):
                rate = copy.rate_per_gpu(requests, times.end_to_end_us * 1e-6)
                self._estimates.append(_Estimate(copy, requests, rate, tpot_s))

    def simulate(self, copy: ServedCopy, requests: int) -> ServingPoint:
        """Return a point, which is simulated once."""
        key = id(copy), requests
        if key not in self._simulated:
            self._simulated[key] = copy.simulate(requests)
        return self._simulated[key]

    def best(self, count: int, cost: Callable[[ServedCopy, float], Cost]) -> list[ServingPoint]:
        """Return the points of least cost within the limits: one of each layout, ``count`` in all.

        cost: of a copy and its tokens/s per GPU, in numbers that are lower for higher rates.
        """
        found: dict[ServingLayout, tuple[Cost, ServingPoint]] = {}
        order = [(cost(each.copy, each.per_gpu * RATE_MARGIN), number) for number, each in enumerate(self._estimates)]
        for bound, number in sorted(order):
            if len(found) >= count and bound >= sorted(value for value, _ in found.values())[count - 1]:
                break
            estimate = self._estimates[number]
            point = self.simulate(estimate.copy, estimate.requests)
            if not self.limits.hold(point.ttft_s, point.tpot_s):
                continue
            value = cost(estimate.copy, point.per_gpu)
            layout = point.answer.job.layout
            if layout not in found or value < found[layout][0]:
                found[layout] = value, point
        ranked = sorted(found.values(), key=lambda pair: pair[0])
        return [point for _, point in ranked[:count]]

    def front(self) -> list[ServingPoint]:
        """Return the points within the limits that no simulated one beats in both rates, most tokens/s per GPU first.

        Estimates go from high rates to low ones; each must promise a lower TPOT than all points with as high a rate.
        """
        lowest_s = float("inf")
        for estimate in self._estimates:
            if estimate.tpot_s / FRONT_MARGIN >= lowest_s:
                continue
            point = self.simulate(estimate.copy, estimate.requests)
            if self.limits.hold(point.ttft_s, point.tpot_s):
                lowest_s = min(lowest_s, point.tpot_s)
        return pareto(self.meeting)


def pareto(points: Iterable[ServingPoint]) -> list[ServingPoint]:
    """Return the points that no other beats in both tokens/s per user and per GPU, most tokens/s per GPU first."""
    front: list[ServingPoint] = []
    for point in sorted(points, key=lambda each: (-each.per_gpu, -each.per_user)):
        if not front or point.per_user > front[-1].per_user:
            front.append(point)
    return front


def tied(points: Sequence[ServingPoint]) -> int:
    """Return how many of the points, the best first, are as good as the first as far as trine can tell."""
    return sum(1 for each in points if each.per_gpu >= points[0].per_gpu * (1 - TIE))
