"""Likelihood of a measured curve given the expected times: one number for the whole curve.

A prediction misses a machine's curve in three ways: by about the same factor over many sizes, by a few per cent from
one measurement to the next, and occasionally by a jump at a single size. The model is a stationary process over the
binary logarithm of the size. Its values are log(measured / predicted) in standard deviations of the prediction's band.
The correlation fades over octaves, not over rows. More sizes in the same octaves therefore add little, and neither
the verdict nor the ranking of causes depends on how densely the sizes are spaced.

:func:`weigh` ranks the causes and decides whether the curve supports any. The prior gives each kind of cause the same
probability. Causes with an unknown number (the delay, the share, the range of sizes) are averaged over it, so that
flexibility alone does not make them win.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from trine.check.hypotheses import BANDWIDTH_KINDS, Expected, Hypothesis, at_share, late
from trine.common.arrays import Float64

#: Width of an 80 % band, from its lower to its upper edge, in standard deviations.
_BAND_SIGMAS = 2 * NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Distribution of prediction errors. Standard deviations are relative to the band's; probabilities are fractions.

    ``drift``: of the slow part, whose correlation falls to 1/e over ``octaves``. ``repeat``: of each measurement (0.1
    is 2 to 3 %; assumed, not fitted). A fraction ``stray`` of the sizes misses by ``stray_by`` more, independently. On
    a fraction ``wide`` of the machines, everything except ``repeat`` is ``wide_by`` times as large.
    """

    drift: float
    octaves: float
    repeat: float
    stray: float
    stray_by: float
    wide: float
    wide_by: float


#: Fitted by ``benchmarks/fit_check_noise.py`` to the residuals of each machine, predicted without its measurements.
NOISE = Noise(drift=0.576, octaves=18.3, repeat=0.1, stray=0.0541, stray_by=0.959, wide=0.289, wide_by=2.55)


def band_sigma(low_ps: Sequence[int], high_ps: Sequence[int]) -> Float64:
    """Return the standard deviation of log(measured / predicted) implied by an 80 % band, by size."""
    sigma: Float64 = np.log(np.asarray(high_ps, float) / np.asarray(low_ps, float)) / _BAND_SIGMAS
    return sigma


def log_likelihood(residuals: Float64, sizes: Sequence[int], noise: Noise = NOISE) -> Float64:
    """Return the natural logarithm of the likelihood of curves, (curves,); its differences count, for equal sizes.

    residuals: (curves, sizes) log(measured / time) in standard deviations of the band (:func:`band_sigma`).
    sizes: bytes, ascending.
    """
    octaves = np.log2(np.asarray(sizes, float))
    usual = _filtered(residuals, octaves, noise, 1.0)
    wide = _filtered(residuals, octaves, noise, noise.wide_by)
    mixture: Float64 = np.logaddexp(math.log1p(-noise.wide) + usual, math.log(noise.wide) + wide)
    return mixture


def _filtered(residuals: Float64, octaves: Float64, noise: Noise, factor: float) -> Float64:
    """Run a Kalman filter of the slow part along the sizes; its posterior decides how likely each size is a stray."""
    level = (factor * noise.drift) ** 2
    kinds = (
        (math.log1p(-noise.stray), noise.repeat**2),
        (math.log(noise.stray), noise.repeat**2 + (factor * noise.stray_by) ** 2),
    )
    mean, variance = np.zeros(len(residuals)), np.full(len(residuals), level)
    total = np.zeros(len(residuals))
    for i in range(residuals.shape[1]):
        if i:
            decay = math.exp(-(octaves[i] - octaves[i - 1]) / noise.octaves)
            mean, variance = mean * decay, variance * decay**2 + level * (1 - decay**2)
        off = residuals[:, i] - mean
        spread = [variance + extra for _, extra in kinds]
        weight = [
            log_share - 0.5 * (np.log(2 * math.pi * s) + off**2 / s)
            for (log_share, _), s in zip(kinds, spread, strict=True)
        ]
        mixture = np.logaddexp(*weight)
        total += mixture
        share = [np.exp(log_density - mixture) for log_density in weight]
        means = [mean + variance / s * off for s in spread]
        variances = [variance * (1 - variance / s) for s in spread]
        mean = share[0] * means[0] + share[1] * means[1]
        spreads = [v + (m - mean) ** 2 for v, m in zip(variances, means, strict=True)]
        variance = share[0] * spreads[0] + share[1] * spreads[1]
    return total


#: Two causes are indistinguishable if their times differ by no more than this at every measured size.
ALIKE = math.log(1.03)
#: A cause that slows a size by less than this factor does not explain why it is slow.
MIN_EFFECT = 1.05
#: Grid of the unknown numbers: delays of 2 us to 16 ms, shares of the speed of 1 / 1.1 to 1 / 32.
DELAYS_PS = tuple(round(2e6 * 2 ** (i / 4)) for i in range(53))
SHARES = tuple(2 ** (-i / 8) for i in range(1, 41))
#: Probability that a sound machine is faster than predicted, and the factors tried, up to four.
FASTER = 0.1
FASTER_BY = tuple(2 ** (i / 4) for i in range(1, 9))
#: An unknown cause slows all sizes between two edges, on a grid of this many octaves, by one of these factors. Or its
#: factor changes with the size: the logarithm has this mean and standard deviation, and correlates over these octaves.
EDGE_OCTAVES = 2
SLOWER_BY = (1.5, 2.0, 3.0, 4.5, 7.0, 12.0, 25.0)
CHANGING, CHANGING_OCTAVES = math.log(2.5), 4.0
#: Decimals of the results: logarithms and exponentials of vectors differ in the last bit between CPUs.
DIGITS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """A cause, and its probability given that there is a cause.

    ``left``: root mean square of log(measured / its times); the smallest of its group's variants.
    """

    cause: Hypothesis
    probability: float
    left: float


@dataclass(frozen=True, kw_only=True)
class Weights:
    """``log_odds``: natural logarithm of the likelihood ratio between any cause, known or not, and a sound machine.
    ``causes``: the known ones, the most probable group of indistinguishable ones first (:func:`groups_of`);
    ``unknown``: the probability of an unknown cause."""

    log_odds: float
    causes: tuple[Weighed, ...]
    unknown: float

    def alike(self, cause: Hypothesis) -> tuple[str, ...]:
        """Return the names of the other causes with the same times at every measured size."""
        causes = [each.cause for each in self.causes if each.cause.name != cause.name]
        return tuple(each.name for each in causes if is_alike(each, cause))


def is_alike(first: Hypothesis, second: Hypothesis) -> bool:
    """Return whether two causes have the same times at every measured size."""
    ratios = np.asarray(first.times_ps, float) / np.asarray(second.times_ps, float)
    return bool(np.abs(np.log(ratios)).max() <= ALIKE)


def groups_of(causes: Sequence[Weighed]) -> tuple[tuple[Weighed, ...], ...]:
    """Return groups of causes that the measured sizes cannot tell apart, in the order of their first members."""
    groups: list[list[Weighed]] = []
    for each in causes:
        group = next((group for group in groups if is_alike(group[0].cause, each.cause)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return tuple(map(tuple, groups))


def probability_of(group: Sequence[Weighed]) -> float:
    """Return the probability that one of several causes is the right one."""
    return math.fsum(each.probability for each in group)


def weigh(
    expected: Expected, measured_ps: Sequence[int], noise: Noise = NOISE, excluded: Collection[str] = ()
) -> Weights:
    """Compare a curve with a sound machine and with every cause that would slow it at any size.

    ``excluded``: kinds of causes that the log itself rules out.
    """
    usual = np.asarray([each.time_ps for each in expected.usual], float)
    lows = [each.low_ps for each in expected.usual]
    highs = [each.high_ps for each in expected.usual]
    sigma = band_sigma(lows, highs)
    residuals = np.log(np.asarray(measured_ps, float) / usual)

    def fits(slowdowns: Float64) -> Float64:
        """Return log-likelihoods of curves that are slower by exp(slowed), (curves, sizes)."""
        return log_likelihood((residuals - slowdowns) / sigma, expected.sizes, noise)

    factors = np.array([[factor] * len(usual) for factor in (1.0, *(1 / by for by in FASTER_BY))])
    sound = _mixed(fits(np.log(factors)), [1 - FASTER, *[FASTER / len(FASTER_BY)] * len(FASTER_BY)])
    scored = [*_named_causes(expected, usual, fits), *_fitted(expected, usual, measured_ps, fits)]
    scored = [pair for pair in scored if pair[0].kind not in excluded]
    scored = [pair for pair in scored if not _cannot_explain(pair[0], expected, measured_ps)]
    of_kind = Counter(cause.kind for cause, _ in scored)
    no_name = sound + _unknown(np.maximum(residuals, 0.0), sigma, expected.sizes, noise)
    scores = np.array([fit - math.log(of_kind[cause.kind]) for cause, fit in scored] + [no_name])
    total = _sum(scores)
    shares = [round(share, DIGITS) for share in np.exp(scores - total).tolist()]
    order = sorted(range(len(scored)), key=lambda i: -shares[i])
    errors = {cause.group: _error_left(measured_ps, cause) for cause, _ in scored}
    for cause in expected.causes:
        errors[cause.group] = min(errors.get(cause.group, math.inf), _error_left(measured_ps, cause))
    weighed = []
    for i in order:
        cause = scored[i][0]
        weighed.append(Weighed(cause=cause, probability=shares[i], left=errors[cause.group]))
    groups = sorted(groups_of(weighed), key=lambda group: -probability_of(group))
    return Weights(
        log_odds=round(total - math.log(len(of_kind) + 1) - sound, DIGITS),
        causes=tuple(itertools.chain.from_iterable(groups)), unknown=shares[-1],
    )  # fmt: skip


_Fits = Callable[[Float64], Float64]


def _named_causes(expected: Expected, usual: Float64, fits: _Fits) -> list[tuple[Hypothesis, float]]:
    """Return the predictable causes that slow any size: the best variant of each group, and the group's likelihood."""
    slowdowns = np.log(np.array([each.times_ps for each in expected.causes], float).reshape(-1, len(usual)) / usual)
    slowing = [i for i in range(len(slowdowns)) if slowdowns[i].max() > 1e-9]
    if not slowing:
        return []
    by_group: dict[str, list[tuple[float, Hypothesis]]] = {}
    for i, fit in zip(slowing, fits(slowdowns[slowing]), strict=True):
        by_group.setdefault(expected.causes[i].group, []).append((float(fit), expected.causes[i]))
    scored = []
    for variants in by_group.values():
        weights = np.array([cause.weight for _, cause in variants])
        fit = _mixed(np.array([fit for fit, _ in variants]), weights / weights.sum())
        scored.append((max(variants, key=lambda pair: pair[0] + math.log(pair[1].weight))[1], fit))
    return scored


def _cannot_explain(cause: Hypothesis, expected: Expected, measured_ps: Sequence[int]) -> bool:
    """Return whether a cause that changes bandwidth alone leaves neighbouring slow sizes as they are.

    A link's bandwidth does not slow calls of 8 bytes, so slow small calls contradict it.
    """
    if cause.kind not in BANDWIDTH_KINDS:
        return False
    left = [
        measured > usual.high_ps and time <= MIN_EFFECT * usual.time_ps
        for measured, usual, time in zip(measured_ps, expected.usual, cause.times_ps, strict=True)
    ]
    return any(a and b for a, b in itertools.pairwise(left))


def _fitted(
    expected: Expected, usual: Float64, measured_ps: Sequence[int], fits: _Fits
) -> list[tuple[Hypothesis, float]]:
    """Return the causes with an unknown number: averaged over it, named after the best fit.

    No call is delayed by more than the least difference between a measured time and its prediction's lower end.
    """
    times = [round(time) for time in usual]
    by_share = fits(np.repeat(-np.log(SHARES)[:, None], len(usual), axis=1))
    hypotheses = [(at_share(_best_value(SHARES, by_share), times), _mean(by_share))]
    longest = min(time - each.low_ps for time, each in zip(measured_ps, expected.usual, strict=True))
    possible = sum(delay <= longest for delay in DELAYS_PS)
    if possible:
        delays = DELAYS_PS[: possible + 2]  # with two that are too long, to interpolate up to the longest possible
        by_delay = fits(np.log1p(np.asarray(delays, float)[:, None] / usual))
        best = min(round(_best_value(delays, by_delay)), longest)
        hypotheses.insert(0, (late(best, times), _mean(by_delay[:possible])))
    return hypotheses


def _best_value(values: Sequence[float], fit: Float64) -> float:
    """Return the value with the best fit, interpolated by a parabola through three grid points (in logarithms)."""
    i = int(fit.argmax())
    if not 0 < i < len(values) - 1:
        return values[i]
    bend = fit[i - 1] - 2 * fit[i] + fit[i + 1]
    shift = 0.0 if bend >= 0 else 0.5 * (fit[i - 1] - fit[i + 1]) / bend
    return float(values[i] * (values[i + 1] / values[i]) ** shift)


def _unknown(slow: Float64, sigma: Float64, sizes: Sequence[int], noise: Noise) -> float:
    """Return the log likelihood ratio between an unknown cause of slowness and a sound machine.

    slow: log(measured / predicted), clipped at 0 because a faster machine is no evidence for a cause.
    """
    curves = np.concatenate([np.zeros((1, len(slow))), _boxes(sizes)])
    fit = log_likelihood((slow - curves) / sigma, sizes, noise)
    free = replace(noise, drift=CHANGING / float(np.median(sigma)), octaves=CHANGING_OCTAVES, wide_by=1.0)
    changing = log_likelihood(((slow - CHANGING) / sigma)[None], sizes, free)
    return _mean(np.array([_mean(fit[1:]), changing[0]])) - float(fit[0])


def _boxes(sizes: Sequence[int]) -> Float64:
    """Return curves that are slower between two sizes: (curves, sizes), logarithms of the factor."""
    octaves = np.log2(np.asarray(sizes, float))
    first = EDGE_OCTAVES * math.floor(octaves[0] / EDGE_OCTAVES)
    edges = np.arange(first, octaves[-1] + EDGE_OCTAVES + 1e-9, EDGE_OCTAVES)
    boxes = [(octaves >= low) & (octaves < high) for i, low in enumerate(edges) for high in edges[i + 1 :]]
    return np.array([np.where(box, math.log(factor), 0.0) for box in boxes if box.any() for factor in SLOWER_BY])


def _sum(logs: Float64) -> float:
    top = logs.max()
    return float(top + math.log(np.exp(logs - top).sum()))


def _mean(logs: Float64) -> float:
    return _sum(logs) - math.log(len(logs))


def _mixed(logs: Float64, shares: Sequence[float]) -> float:
    return _sum(logs + np.log(shares))


def _error_left(measured_ps: Sequence[int], cause: Hypothesis) -> float:
    ratios = np.log(np.asarray(measured_ps, float) / np.asarray(cause.times_ps, float))
    return round(float(np.sqrt((ratios**2).mean())), DIGITS)
