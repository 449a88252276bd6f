"""The verdict on measured times: healthy, slow, cannot decide, or the model does not fit.

- Slow: a fault is 50 times more likely than a sound machine (200 times if only sizes in the middle are slow), or a
  large size is far above its band.
- Model does not fit: a range of sizes lies beyond its band, too fast or too slow, and no fault is more likely.
- Cannot decide: sizes lie above the band, but too few are measured, or a fault and a misfit are about as likely.
- Healthy: nothing of this. A size above its band between sizes inside their bands is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import NamedTuple

from trine.check.hypotheses import Expected, Hypothesis
from trine.check.likelihood import NOISE, Noise, Weighed, Weights, groups_of, probability_of, weigh

HEALTHY, SLOW_RUN, UNDECIDED, MISFIT, INCOMPLETE = (
    "healthy", "slow", "cannot decide", "model does not fit", "incomplete"
)  # fmt: skip
#: Minimum log odds of a cause, known or unknown, against a healthy machine for a slow run.
MIN_LOG_ODDS = math.log(50)
#: The same if the smallest and the largest sizes are as predicted. A slow link shows at the largest calls and a delay
#: at the smallest, while a prediction that errs about the library's choice is wrong in the middle alone.
MIN_MIDDLE_LOG_ODDS = math.log(200)
#: Log odds from which on a fault is too likely to blame the model for a range above the band.
MAX_MISFIT_LOG_ODDS = math.log(3)
#: A size above the band's upper end times MARGIN lies clearly outside.
MARGIN = 1.15
#: The same where most sizes of a log lie above the band.
MAX_MARGIN = 1.05
#: A range of sizes is at least this wide, with each size extending half-way to its neighbours.
MIN_OCTAVES = 1.5
#: A prediction does not fit a machine if most sizes lie outside their band, or if a range of sizes is faster than the
#: band's lower end, since a machine cannot exceed its hardware: MIN_OCTAVES by FAST_BY everywhere, or FAST_OCTAVES by
#: FASTEST_BY somewhere.
FAST_BY = 1.5
FAST_OCTAVES, FASTEST_BY = 3.0, 1.25
#: With fewer sizes, only a large one decides.
MIN_SIZES = 4
DECIDES_BYTES = 256 << 20
#: Two neighbouring sizes from LARGE_BYTES on are a fault at this multiple of the prediction.
LARGE_BYTES = 16 << 20
FAR_SLOWER = 2.5
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Verdict on a curve: the fields of :class:`CheckResult` with the same names."""

    state: str = HEALTHY
    reason: str = ""
    suspicious_from: int | None = None
    suspicious_to: int | None = None
    noise: tuple[int, ...] = ()
    log_odds: float = 0.0
    cause: Hypothesis | None = None
    stated: str = ""
    unexplained_from: int | None = None
    alike: tuple[str, ...] = ()
    causes: tuple[Weighed, ...] = ()


def check_curve(
    expected: Expected, measured_ps: Sequence[int], noise: Noise = NOISE, *, stated: Mapping[str, str] = _NOTHING,
    excluded: Collection[str] = (),
) -> Verdict:  # fmt: skip
    """Return the verdict on measured times of the sizes of ``expected``, with a cause if they are too slow.

    stated: kinds of causes that the log states, with the log's text; the best fitting one becomes the cause.
    excluded: kinds of causes that the log rules out.
    """
    weights = weigh(expected, measured_ps, noise, excluded)
    sizes = expected.sizes
    above = [time / usual.high_ps for time, usual in zip(measured_ps, expected.usual, strict=True)]
    runs = runs_of(len(sizes), lambda i: above[i] > 1)
    is_few = len(sizes) < MIN_SIZES
    slow = _slow_runs(expected, measured_ps, runs, weights.log_odds)
    isolated = [run for run in runs if len(run) == 1 and len(sizes) > 1 and not is_few and run not in slow]
    noise_sizes = tuple(sizes[run[0]] for run in isolated if above[run[0]] > MARGIN)
    if (misfit := _too_fast(expected, measured_ps, bool(slow), noise_sizes)) is not None:
        return Verdict(state=MISFIT, reason=misfit, noise=noise_sizes, log_odds=weights.log_odds)
    if slow:
        named = _named_cause(expected, measured_ps, weights, stated)
        first, last = sizes[slow[0][0]], sizes[slow[-1][-1]]
        return replace(
            named, state=SLOW_RUN, suspicious_from=first, suspicious_to=last, noise=noise_sizes,
            log_odds=weights.log_odds,
        )  # fmt: skip
    state, reason, is_compared = HEALTHY, "", False
    if is_few and runs:
        slowest = max(above[i] for run in runs for i in run)
        count = of_sizes(sum(map(len, runs)), len(sizes))
        reason = (
            f"{count} above the band, up to {slowest:.2g} times its upper end; {len(sizes)} are too few to tell why"
        )
        state, is_compared = UNDECIDED, True
    elif wide := _ranges_above(sizes, runs, above):
        state, reason, is_compared = _range_above(expected, measured_ps, wide, weights.log_odds)
    causes = weights.causes if is_compared else ()
    if causes:
        reason += f"; possible causes: {'; '.join(group[0].cause.name for group in groups_of(causes)[:2])}"
    return Verdict(state=state, reason=reason, noise=noise_sizes, log_odds=weights.log_odds, causes=causes)


def _slow_runs(
    expected: Expected, measured_ps: Sequence[int], runs: list[list[int]], log_odds: float
) -> list[list[int]]:
    """Return the runs of sizes above the band that a fault explains."""
    sizes = expected.sizes
    if len(sizes) < MIN_SIZES:
        decisive = []
        for run in runs:
            if any(sizes[i] >= DECIDES_BYTES for i in run):
                decisive.append(run)
        return decisive
    wide = [run for run in runs if octaves(sizes, run) >= MIN_OCTAVES]
    in_middle = bool(runs) and runs[0][0] > 0 and runs[-1][-1] < len(sizes) - 1
    if log_odds >= (MIN_MIDDLE_LOG_ODDS if in_middle else MIN_LOG_ODDS):
        return wide or runs

    def is_far(i: int) -> bool:
        return sizes[i] >= LARGE_BYTES and measured_ps[i] > FAR_SLOWER * expected.usual[i].time_ps

    far_runs = []
    for run in runs:
        if any(is_far(a) and is_far(b) for a, b in pairwise(run)):
            far_runs.append(run)
    return far_runs


def _ranges_above(sizes: Sequence[int], runs: list[list[int]], above: Sequence[float]) -> list[list[int]]:
    """Return the runs of neighbouring sizes that lie above the band: clearly, over a wide range, or most sizes."""
    several = [run for run in runs if len(run) > 1]
    wide = []
    for run in several:
        if octaves(sizes, run) >= MIN_OCTAVES and max(above[i] for i in run) > MARGIN:
            wide.append(run)
    far = []
    for run in several:
        if max(above[i] for i in run) > MAX_MARGIN:
            far.append(run)
    return wide or (far if 2 * sum(map(len, far)) > len(sizes) else [])


class _RangeVerdict(NamedTuple):
    """Judgement of sizes above the band; ``is_compared``: whether the verdict lists possible causes."""

    state: str
    reason: str
    is_compared: bool


def _range_above(
    expected: Expected, measured_ps: Sequence[int], ranges: list[list[int]], log_odds: float
) -> _RangeVerdict:
    """Judge ranges above the band without a likely fault."""
    places = [i for run in ranges for i in run]
    ratio = max(measured_ps[i] / expected.usual[i].time_ps for i in places)
    count = of_sizes(len(places), len(expected.sizes))
    text = f"{count} above the band in a row, up to {ratio:.2g} times slower than predicted"
    if log_odds > MAX_MISFIT_LOG_ODDS:
        reason = f"{text}; a fault and a wrong prediction are about as likely"
        return _RangeVerdict(UNDECIDED, reason, is_compared=True)
    reason = f"{text}, but no fault is more likely than a wrong prediction"
    return _RangeVerdict(MISFIT, reason, is_compared=False)


def _named_cause(
    expected: Expected, measured_ps: Sequence[int], weights: Weights, stated: Mapping[str, str]
) -> Verdict:
    """Return the causes of a slow run, and the named one: stated by the log, or more probable than an unknown one."""
    if not weights.causes:
        return Verdict()
    causes = weights.causes
    best = groups_of(causes)[0]
    cause = best[0].cause if probability_of(best) >= weights.unknown else None
    stated_causes = [each for each in causes if each.cause.kind in stated]
    cited = min(stated_causes, key=lambda each: each.left, default=None)
    if cited is not None:
        cause = cited.cause
        causes = (replace(cited, probability=1.0), *(replace(c, probability=0.0) for c in causes if c is not cited))
    elif cause is None:
        causes = _by_error(causes)
    alike = () if cause is None else weights.alike(cause)
    stated_text = "" if cited is None else stated[cited.cause.kind]
    unexplained_from = None if cause is None else _unexplained(expected, measured_ps, cause)
    return Verdict(cause=cause, alike=alike, causes=causes, stated=stated_text, unexplained_from=unexplained_from)


def _by_error(causes: Sequence[Weighed]) -> tuple[Weighed, ...]:
    return tuple(sorted(causes, key=lambda each: each.left))


def _too_fast(expected: Expected, measured_ps: Sequence[int], is_slow: bool, noise: Collection[int]) -> str | None:
    """Return how a machine is faster than its prediction, or None."""
    sizes, usual = expected.sizes, expected.usual
    fast = [i for i, time in enumerate(measured_ps) if time < usual[i].low_ps]
    slow = [i for i, time in enumerate(measured_ps) if time > usual[i].high_ps and sizes[i] not in noise]
    quick = runs_of(len(sizes), lambda i: usual[i].low_ps > FAST_BY * measured_ps[i])
    is_wide = any(octaves(sizes, run) >= MIN_OCTAVES for run in quick) or any(
        octaves(sizes, run) >= FAST_OCTAVES and max(usual[i].low_ps / measured_ps[i] for i in run) > FASTEST_BY
        for run in runs_of(len(sizes), lambda i: measured_ps[i] < usual[i].low_ps)
    )
    is_mixed = not is_slow and 2 * (len(fast) + len(slow)) > len(sizes)
    is_far = any(usual[i].low_ps > MARGIN * measured_ps[i] for i in fast)
    if not is_far or not (is_wide or is_mixed or 2 * len(fast) > len(sizes)):
        return None
    worst = max(usual[i].time_ps / measured_ps[i] for i in fast)
    text = f"{of_sizes(len(fast), len(sizes))} below the band, up to {worst:.2g} times faster than predicted"
    if slow:
        text += f", and {len(slow)} above it"
    guess = "may be too low" if len(fast) > len(slow) else "may come from another machine"
    return f"{text}: the cluster's numbers {guess}"


def _unexplained(expected: Expected, measured_ps: Sequence[int], cause: Hypothesis) -> int | None:
    """Return the first size of a wide range slower than the cause explains, or None without such a range."""
    high = [usual.high_ps / usual.time_ps for usual in expected.usual]
    runs = runs_of(len(high), lambda i: measured_ps[i] > high[i] * cause.times_ps[i])
    return next((expected.sizes[run[0]] for run in runs if octaves(expected.sizes, run) >= MIN_OCTAVES), None)


def runs_of(count: int, is_in: Callable[[int], bool]) -> list[list[int]]:
    """Return the contiguous runs of indices that satisfy a predicate."""
    return [list(run) for holds, run in groupby(range(count), key=is_in) if holds]


def octaves(sizes: Sequence[int], run: Sequence[int]) -> float:
    """Return the width of a run of sizes in octaves, extended half-way to both neighbouring sizes."""
    widths = [math.log2(size) for size in sizes]
    first, last = run[0], run[-1]
    before = widths[first] - widths[first - 1] if first else 0.0
    after = widths[last + 1] - widths[last] if last + 1 < len(sizes) else 0.0
    return widths[last] - widths[first] + (before + after) / 2


def of_sizes(count: int, total: int) -> str:
    """Return ``3 of 8 sizes lie``."""
    noun = "size" if total == 1 else "sizes"
    verb = "lies" if count == 1 else "lie"
    return f"{count} of {total} {noun} {verb}"
