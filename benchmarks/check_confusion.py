"""Measure how often `trine check` is right, on 300 faults put on measured curves and on the unchanged curves.

Curves: the counted series of presets/measured with five sizes or more, one per machine, collective, number of GPUs
and setting. A fault multiplies the measured times by predicted(fault) / predicted(usual), which keeps the prediction
error on that machine. Two rounds:

- `shipped`: the library's parameters. They were fitted to most of these machines, so the prediction error is smaller
  than on a new machine.
- `left out`: a machine never seen before. The measured times also carry the error of parameters fitted without the
  machine's family (left_out.csv), and the noise model is fitted without that family. Held-out machines took part in
  no fit; both rounds are the same for them.

Faults: the kinds that `check` can name take turns, and no fault repeats. A fault must slow two sizes or more by 25 %
(smaller ones are within the band). Delays are 10 to 300 us, speeds 20 to 60 %. Each curve is checked with all its
sizes and with every second one. `right`: the curve is called suspicious, and the first cause is the fault or one that
the answer lists as indistinguishable from it. A fitted cause counts if its kind is right and its number is within 25 %.

    python benchmarks/check_confusion.py [--faults 300] [--seed 12]

Deterministic; about two minutes of CPU time.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trine.check.hypotheses import KINDS, Expected, Hypothesis, at_share, expect, late
from trine.check.likelihood import NOISE, Noise
from trine.check.verdict import check_curve
from trine.collectives.options import CollectiveTime
from validation.collectives import left_out, select, validate_collectives
from validation.measured import FIT, Series, load_measurements

MIN_SIZES = 5
MIN_SLOWDOWN, MIN_SLOWED = 1.25, 2
DELAYS_PS = tuple(us * 1_000_000 for us in (10, 20, 40, 100, 300))
SPEEDS = (0.2, 0.3, 0.4, 0.5, 0.6)
#: Largest error (log) of a fitted number that still counts as right.
FITTED_WITHIN = math.log(1.25)
HEALTHY, UNKNOWN = "healthy", "unknown"


@dataclass(frozen=True)
class Measured:
    """A curve. times_ps: measured; unseen_ps: with the error of a prediction fitted without its family."""

    series: Series
    sizes: tuple[int, ...]
    times_ps: tuple[int, ...]
    unseen_ps: tuple[int, ...]
    predicted: tuple[CollectiveTime, ...]

    @property
    def family(self) -> str:
        return self.series.machine.family


@dataclass(frozen=True)
class Case:
    """A fault on a curve."""

    curve: int
    fault: Hypothesis


@dataclass
class Tally:
    """Verdicts on faults (fault kind -> verdict -> count), and the number of right ones per kind.

    near: number of faults that are among the first two causes.
    """

    said: dict[str, Counter[str]]
    right: Counter[str]
    merged: int = 0
    near: int = 0

    def share_near(self) -> float:
        """Return the share of faults that are among the first two causes."""
        return self.near / max(1, sum(sum(row.values()) for row in self.said.values()))

    def share(self) -> float:
        return sum(self.right.values()) / max(1, sum(sum(row.values()) for row in self.said.values()))


def curves(min_sizes: int = MIN_SIZES, machines: Sequence[str] | None = None) -> list[Measured]:
    """Return one measured curve per machine (all, or the named ones), collective, number of GPUs and setting."""
    found = validate_collectives(None if machines is None else select(load_measurements(), machines))
    without, stale = left_out(found)
    assert without is not None
    assert not stale
    other = {(x.series.number, x.point.size_bytes): x.predicted.time_ps for x in without.compared}
    rows = defaultdict(list)
    for each in found.counted:
        rows[each.series.number].append(each)
    out, seen = [], set()
    for number, points in sorted(rows.items()):
        series = points[0].series
        unseen = [other.get((number, x.point.size_bytes)) for x in points]
        if len(points) < min_sizes or series.weight_key in seen or (series.machine.split == FIT and None in unseen):
            continue
        seen.add(series.weight_key)
        out.append(
            Measured(
                series,
                tuple(x.point.size_bytes for x in points),
                tuple(x.point.time_ps for x in points),
                tuple(
                    round(x.point.time_ps * x.predicted.time_ps / (guess or x.predicted.time_ps))
                    for x, guess in zip(points, unseen, strict=True)
                ),
                tuple(x.predicted for x in points),
            )
        )
    return out


def expected_of(curve: Measured) -> Expected:
    """Return the times that `check` expects on the curve's machine."""
    cluster = curve.series.load_cluster()
    assert cluster is not None
    return expect(curve.series.op, curve.sizes, cluster, curve.series.options)


def draw(expected: Sequence[Expected], count: int, seed: int) -> list[Case]:
    """Draw ``count`` distinct faults; the kinds take turns."""
    chance = random.Random(seed)
    pools: dict[str, list[Case]] = {kind: [] for kind in KINDS}
    for number, each in enumerate(expected):
        usual = [time.time_ps for time in each.usual]
        plain = (cause for cause in each.causes if ", with " not in cause.name)
        faults = [*plain, *(late(d, usual) for d in DELAYS_PS), *(at_share(s, usual) for s in SPEEDS)]
        for fault in faults:
            slowed = sum(time >= MIN_SLOWDOWN * base for time, base in zip(fault.times_ps, usual, strict=True))
            if slowed >= MIN_SLOWED:
                pools[fault.kind].append(Case(number, fault))
    for kind in KINDS:
        chance.shuffle(pools[kind])
    drawn: list[Case] = []
    while len(drawn) < count and any(pools.values()):
        for kind in KINDS:
            if pools[kind] and len(drawn) < count:
                drawn.append(pools[kind].pop())
    return drawn


def put_on(times_ps: Sequence[int], fault: Hypothesis, expected: Expected) -> list[int]:
    """Return the measured times with the fault applied."""
    return [
        round(time * with_it / usual.time_ps)
        for time, with_it, usual in zip(times_ps, fault.times_ps, expected.usual, strict=True)
    ]


def same(said: Hypothesis, fault: Hypothesis) -> bool:
    """Return True if a named cause is the fault."""
    if not fault.fitted:
        return said.group == fault.group
    if said.kind != fault.kind:
        return False
    changed = np.log(np.asarray(said.times_ps, float) / np.asarray(fault.times_ps, float))
    return float(np.abs(np.median(changed))) <= FITTED_WITHIN


def judge_faults(
    found: Sequence[Measured], expected: Sequence[Expected], cases: Sequence[Case], unseen: bool, step: int,
    noises: dict[str, Noise],
) -> Tally:  # fmt: skip
    """Return the tally of `check`'s verdicts on all cases."""
    tally = Tally(defaultdict(Counter), Counter())
    for case in cases:
        curve, usual = found[case.curve], expected[case.curve]
        times = put_on(curve.unseen_ps if unseen else curve.times_ps, case.fault, usual)
        places = range(0, len(times), step)
        said = check_curve(usual.at(places), [times[i] for i in places], noises.get(curve.family, NOISE))
        fault = replace(case.fault, times_ps=tuple(case.fault.times_ps[i] for i in places))
        if said.suspicious_from is None:
            tally.said[fault.kind][HEALTHY] += 1
        elif said.cause is None:
            tally.said[fault.kind][UNKNOWN] += 1
        else:
            tally.said[fault.kind][said.cause.kind] += 1
            exact = same(said.cause, fault)
            merged = not exact and fault.name in said.alike
            tally.right[fault.kind] += exact or merged
            tally.merged += merged
            tally.near += exact or merged or any(same(each.cause, fault) for each in said.causes[:2])
    return tally


def judge_healthy(
    found: Sequence[Measured], expected: Sequence[Expected], unseen: bool, step: int, noises: dict[str, Noise]
) -> list[str]:
    """Return the names of unchanged curves that `check` calls suspicious."""
    wrong = []
    for curve, usual in zip(found, expected, strict=True):
        times = curve.unseen_ps if unseen else curve.times_ps
        places = range(0, len(times), step)
        said = check_curve(usual.at(places), [times[i] for i in places], noises.get(curve.family, NOISE))
        if said.suspicious_from is not None:
            wrong.append(curve.series.name)
    return wrong


def lines(tally: Tally) -> Iterator[str]:
    """Yield the confusion matrix as lines of a Markdown table."""
    kinds = [kind for kind in KINDS if kind in tally.said]
    columns = [*KINDS, UNKNOWN, HEALTHY]
    yield "| fault | put | right | " + " | ".join(columns) + " |"
    yield "|---|--:|--:|" + "--:|" * len(columns)
    for kind in kinds:
        row = tally.said[kind]
        cells = " | ".join(str(row[column]) if row[column] else "" for column in columns)
        yield f"| {kind} | {sum(row.values())} | {tally.right[kind]} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=12)
    arguments = parser.parse_args()
    found = curves()
    expected = [expected_of(curve) for curve in found]
    cases = draw(expected, arguments.faults, arguments.seed)
    print(f"{len(found)} curves, {len(cases)} faults, seed {arguments.seed}")
    from fit_check_noise import without_each_family

    for unseen in (False, True):
        noises = without_each_family() if unseen else {}
        for step in (1, 2):
            title = f"{'left out' if unseen else 'shipped'}, {'every size' if step == 1 else 'every second size'}"
            tally = judge_faults(found, expected, cases, unseen, step, noises)
            wrong = judge_healthy(found, expected, unseen, step, noises)
            print(f"\n## {title}\n")
            print("\n".join(lines(tally)))
            print(
                f"\nright cause first: {tally.share():.1%} ({tally.merged} of them by a cause that costs the same); "
                f"healthy curves called healthy: {1 - len(wrong) / len(found):.1%}"
            )
            if wrong:
                print("called suspicious as they are: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
