"""How often `trine check` is right: 300 faults put on measured curves, and the same curves as they are.

Curves: the counted series of presets/measured of five sizes or more, one for each machine, collective, number of GPUs
and setting. A fault is put on one by multiplying its measured times with predicted(fault) / predicted(usual), so that
what the prediction misses on this machine stays in it. Two rounds:

- `shipped`: as a user meets it. Most of these machines had a part in the library's parameters, so the prediction misses
  them by less than a machine that nobody has measured.
- `left out`: the measured times also carry what parameters fitted without the machine's family missed
  (left_out.csv), and the noise model is fitted without that family: a machine never seen. Held-out machines had no part
  in any fit; they are the same in both.

Faults: each kind that `check` can name, in turns, without repeating one, as long as a kind has any that slows two sizes
or more by a quarter (a fault that costs less is within the band). Delays are 10 to 300 us, shares of
the speed 20 to 60 %. Each curve is judged with all its sizes and with every second one. `right`: called suspicious, and
the first cause is the fault, or one that the answer says it cannot tell from it. Fitted causes count by kind and a
number within a quarter.

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

from trine.check.compare import check_curve
from trine.check.hypotheses import KINDS, Expected, Hypothesis, at_share, expect, late
from trine.check.likelihood import NOISE, Noise
from trine.collectives.options import CollectiveTime
from trine.validation.collectives import left_out, select, validate_collectives
from trine.validation.measured import FIT, Series, load_measurements

MIN_SIZES = 5
MIN_SLOWDOWN, MIN_SLOWED = 1.25, 2
DELAYS_PS = tuple(us * 1_000_000 for us in (10, 20, 40, 100, 300))
SPEEDS = (0.2, 0.3, 0.4, 0.5, 0.6)
#: How far a fitted number may be off and still count.
FITTED_WITHIN = math.log(1.25)
HEALTHY, UNKNOWN = "healthy", "unknown"


@dataclass(frozen=True)
class Measured:
    """A curve. times_ps: measured; unseen_ps: with what a prediction without its family missed."""

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
    """What was said of faults (kind -> what -> number) and how often that was right."""

    said: dict[str, Counter[str]]
    right: Counter[str]
    merged: int = 0

    def share(self) -> float:
        return sum(self.right.values()) / max(1, sum(sum(row.values()) for row in self.said.values()))


def curves(min_sizes: int = MIN_SIZES, machines: Sequence[str] | None = None) -> list[Measured]:
    """One measured curve for each machine (all, or those named), collective, number of GPUs and setting."""
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
    """What `check` expects of the curve's machine."""
    cluster = curve.series.load_cluster()
    assert cluster is not None
    return expect(curve.series.op, curve.sizes, cluster, curve.series.options)


def draw(expected: Sequence[Expected], count: int, seed: int) -> list[Case]:
    """Faults, the kinds in turns, none twice."""
    chance = random.Random(seed)
    pools: dict[str, list[Case]] = {kind: [] for kind in KINDS}
    for number, each in enumerate(expected):
        usual = [time.time_ps for time in each.usual]
        faults = [*each.causes, *(late(d, usual) for d in DELAYS_PS), *(at_share(s, usual) for s in SPEEDS)]
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
    """Measured times as they would be with the fault."""
    return [
        round(time * with_it / usual.time_ps)
        for time, with_it, usual in zip(times_ps, fault.times_ps, expected.usual, strict=True)
    ]


def same(said: Hypothesis, fault: Hypothesis) -> bool:
    """Whether a named cause is the fault."""
    if not fault.fitted:
        return said.name == fault.name
    if said.kind != fault.kind:
        return False
    changed = np.log(np.asarray(said.times_ps, float) / np.asarray(fault.times_ps, float))
    return float(np.abs(np.median(changed))) <= FITTED_WITHIN


def judge_faults(
    found: Sequence[Measured], expected: Sequence[Expected], cases: Sequence[Case], unseen: bool, step: int,
    noises: dict[str, Noise],
) -> Tally:  # fmt: skip
    """What `check` says of every case."""
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
    return tally


def judge_healthy(
    found: Sequence[Measured], expected: Sequence[Expected], unseen: bool, step: int, noises: dict[str, Noise]
) -> list[str]:
    """Names of the curves that are called suspicious as they are."""
    wrong = []
    for curve, usual in zip(found, expected, strict=True):
        times = curve.unseen_ps if unseen else curve.times_ps
        places = range(0, len(times), step)
        said = check_curve(usual.at(places), [times[i] for i in places], noises.get(curve.family, NOISE))
        if said.suspicious_from is not None:
            wrong.append(curve.series.name)
    return wrong


def lines(tally: Tally) -> Iterator[str]:
    """The confusion as a Markdown table."""
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
