"""Count the verdicts of `trine check` on generated logs of nccl-tests: sound, faulty, truncated, of another machine.

Each log comes from a machine that trine does not know exactly: the bandwidth and the latency of each class of links
differ from the preset by 10 % (lognormal, independent). The fault, if any, is put on that machine, trine predicts its
times, and each size gets noise drawn from the published repeats of that range of sizes (presets/measured/points.csv,
largest / smallest of the repeats). The log goes through the reader, so that guesses and notes count.

| log | what the generator does | right verdict |
|---|---|---|
| healthy | nothing | healthy |
| slow NIC | one NIC's link at a half, a quarter or an eighth of its rate, both ways | slow, cause named |
| slow link | one link inside a node (NVLink, XGMI, PCIe), likewise | slow, cause named |
| half the NICs | every link between nodes at half of its rate | slow, cause named |
| wrong cluster | the log of another machine, without its GPU names | model does not fit, slow or cannot decide |
| truncated | a healthy log without its last rows | incomplete |
| one size | a healthy log or a slow NIC or link at one size | healthy; or slow from 256 MiB on, else cannot decide |

A fault counts if it makes three or more sizes 1.3 times slower. `cause right`: among the first two causes, or equal to
one of them at every size. The last line also has the share by the strict rule: among the first two names.

    python benchmarks/check_generated.py [--logs 200] [--seed 36]

Deterministic; about four minutes of CPU time for 200 logs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from trine.check import compare, hypotheses
from trine.check.hypotheses import Expected
from trine.check.likelihood import groups_of
from trine.check.nccl_tests import read_log
from trine.check.result import CheckResult
from trine.cluster import Cluster, load_cluster
from trine.cluster.parts import HOST_LINK, SCALE_OUT, SCALE_UP
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from validation.measured import load_measurements

#: Preset and number of nodes.
MACHINES = (
    ("dgx-h100", 1), ("dgx-a100", 1), ("hgx-b200", 1), ("mi300x-node", 1), ("rtx4090-pcie", 1), ("dgx1-v100", 1),
    ("dgx-h100", 2), ("dgx-h100", 4), ("dgx-a100", 2), ("dgx-a100", 4), ("hgx-h200", 2), ("gh200-node", 2),
)  # fmt: skip
OPS = ("all_reduce", "all_reduce", "all_gather", "reduce_scatter")
#: Exponents of the sizes: first, last, step.
SIZES = ((3, 33, 1), (20, 33, 1), (10, 30, 1), (3, 27, 2), (22, 30, 2))
#: Standard deviation of the logarithm of bandwidths and latencies.
PERTURBED = 0.1
SLOW_PARTS = (0.5, 0.25, 0.125)
MIN_SLOWDOWN, MIN_SLOWED = 1.3, 3
HEALTHY, SLOW_NIC, SLOW_LINK, HALF_NICS = "healthy", "slow NIC", "slow link", "half the NICs"
WRONG, TRUNCATED, ONE_SIZE = "wrong cluster", "truncated", "one size"
KINDS = (HEALTHY, SLOW_NIC, SLOW_LINK, HALF_NICS, WRONG, TRUNCATED, ONE_SIZE)
FAULTS = (SLOW_NIC, SLOW_LINK, HALF_NICS)
#: Beginnings of the names of causes that are right for a fault.
RIGHT = {SLOW_NIC: ("one NIC",), SLOW_LINK: ("one link",), HALF_NICS: ("2 of 4", "4 of 8", "1 of 2")}
#: Ends of the ranges of sizes that have their own noise.
NOISE_RANGES = (1 << 16, 1 << 22, 1 << 26, 1 << 62)
STATES = ("healthy", "slow", "cannot decide", "model does not fit", "incomplete")


@dataclass(frozen=True)
class Case:
    """One log and the machine it is checked against. slowed: sizes that the fault makes MIN_SLOWDOWN slower."""

    kind: str
    machine: tuple[str, int]
    op: str
    sizes: tuple[int, ...]
    slowed: int
    text: str


@cache
def spreads() -> tuple[tuple[float, ...], ...]:
    """Return largest / smallest of published repeats, by range of sizes."""
    found: list[list[float]] = [[] for _ in NOISE_RANGES]
    for series in load_measurements():
        for point in series.points:
            if point.spread > 1:
                found[noise_range(point.size_bytes)].append(point.spread)
    return tuple(tuple(sorted(each)) for each in found)


def noise_range(size: int) -> int:
    return next(i for i, end in enumerate(NOISE_RANGES) if size < end)


def perturbed(cluster: Cluster, chance: random.Random) -> Cluster:
    """Return a machine whose classes of links differ in bandwidth and latency."""
    factors = {
        each: (chance.lognormvariate(0, PERTURBED), chance.lognormvariate(0, PERTURBED))
        for each in (SCALE_UP, SCALE_OUT, HOST_LINK)
    }

    def changed(link):
        rate, latency = factors.get(link.link_class, (1.0, 1.0))
        return replace(
            link, bytes_per_s=max(1, round(link.bytes_per_s * rate)), latency_ps=round(link.latency_ps * latency)
        )

    return replace(cluster, links=tuple(map(changed, cluster.links)), cut_from=None, degraded_from=())


def faulty(cluster: Cluster, kind: str, chance: random.Random) -> Cluster | None:
    """Return the machine with a fault; None if it has no such part."""
    classes = {link.link_class for link in cluster.links}
    link_class = SCALE_OUT if kind != SLOW_LINK else SCALE_UP if SCALE_UP in classes else HOST_LINK
    links = [link for link in cluster.links if link.link_class == link_class]
    if not links:
        return None
    part = chance.choice(SLOW_PARTS)
    victim = chance.choice(links)

    def slowed(link):
        if link.link_class != link_class:
            return link
        if kind == HALF_NICS:
            return replace(link, bytes_per_s=link.bytes_per_s // 2)
        is_it = {link.source, link.target} == {victim.source, victim.target}
        return replace(link, bytes_per_s=max(1, round(link.bytes_per_s * part))) if is_it else link

    return replace(cluster, links=tuple(map(slowed, cluster.links)))


def draw(kind: str, chance: random.Random) -> Case:
    """Draw a log of a kind."""
    while True:
        machine, op = chance.choice(MACHINES), chance.choice(OPS)
        first, last, step = chance.choice(SIZES)
        sizes = [1 << i for i in range(first, last + 1, step)]
        if op != "all_reduce":
            sizes = [size for size in sizes if size >= 4096]
        if kind == ONE_SIZE:
            sizes = [chance.choice(sizes)]
        name, nodes = machine
        sound = perturbed(load_cluster(name, nodes=nodes), chance)
        fault = (
            kind if kind in FAULTS else chance.choice((HEALTHY, SLOW_NIC, SLOW_LINK)) if kind == ONE_SIZE else HEALTHY
        )
        measured = sound if fault == HEALTHY else faulty(sound, fault, chance)
        if measured is None:
            continue
        usual, times = (predicted(each, op, sizes) for each in (sound, measured))
        slowed = sum(a >= MIN_SLOWDOWN * b for a, b in zip(times, usual, strict=True))
        if kind in FAULTS and slowed < MIN_SLOWED:
            continue
        if kind == WRONG:
            others = [each for each in MACHINES if each[0] != name and ranks_of(each) == ranks_of(machine)]
            if not others:
                continue
            machine = chance.choice(others)
        noisy = [
            time * chance.choice(spreads()[noise_range(size)]) ** chance.uniform(-0.5, 0.5)
            for size, time in zip(sizes, times, strict=True)
        ]
        kept = len(sizes) if kind != TRUNCATED else chance.randrange(2, len(sizes) - 1)
        text = log_text(op, ranks_of(machine), machine[1], sizes, noisy, kept)
        return Case(kind, machine, op, tuple(sizes[:kept]), slowed, text)


@cache
def ranks_of(machine: tuple[str, int]) -> int:
    return len(load_cluster(machine[0], nodes=machine[1]).gpus)


def predicted(cluster: Cluster, op: str, sizes: Sequence[int]) -> list[int]:
    library = Collectives(cluster, None, CollectiveOptions())
    return [library.predict(op, size).time_ps for size in sizes]


def log_text(op: str, ranks: int, nodes: int, sizes: Sequence[int], times_ps: Sequence[float], kept: int) -> str:
    """Return a log in the form of nccl-tests, with the first ``kept`` rows."""
    factor = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    redop = "none" if op == "all_gather" else "sum"
    lines = [
        f"# Collective test starting: {op}_perf",
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step_of(sizes)}(factor) warmup iters: 5",
        *(f"#  Rank {rank:2} Group  0 Pid {100 + rank} on  host{rank * nodes // ranks} device {rank} [0x00] Device"
          for rank in range(ranks)),
        "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong",
    ]  # fmt: skip
    for size, time in zip(sizes[:kept], times_ps, strict=False):
        us, rate = time / 1e6, size / time * 1e3
        cells = f"{us:9.2f} {rate:7.2f} {rate * factor:7.2f} 0"
        count = size // 4 if op == "all_reduce" else size // 4 // ranks
        lines.append(f"{size:12} {count:12} float {redop:>6} -1 {cells} {cells}")
    if kept == len(sizes):
        lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0"]
    return "\n".join(lines) + "\n"


def step_of(sizes: Sequence[int]) -> int:
    return sizes[1] // sizes[0] if len(sizes) > 1 else 2


#: Every size of SIZES: what `check` expects of a machine is computed once for all of them.
ALL_SIZES = tuple(1 << i for i in range(3, 34))


@cache
def expected_of(machine: tuple[str, int], op: str, options: CollectiveOptions) -> Expected:
    return hypotheses.expect(op, ALL_SIZES, load_cluster(machine[0], nodes=machine[1]), options)


def judge(case: Case, folder: Path) -> CheckResult:
    """Return the answer of `trine check` on a log."""
    path = folder / "all.log"
    path.write_text(case.text)

    def remembered(op: str, sizes: Sequence[int], _: Cluster, options: CollectiveOptions) -> Expected:
        return expected_of(case.machine, op, options).at([ALL_SIZES.index(size) for size in sizes])

    with patch.object(compare, "expect", remembered):
        return compare.check_log(read_log(path), load_cluster(case.machine[0], nodes=case.machine[1]))


def names_the_fault(answer: CheckResult, kind: str) -> bool:
    """Return whether the fault is one of the first two causes, or equals one of them at every measured size."""
    names = [each.cause.name for group in groups_of(answer.causes)[:2] for each in group]
    return answer.state == "slow" and any(name.startswith(RIGHT[kind]) for name in names)


def names_the_fault_first(answer: CheckResult, kind: str) -> bool:
    """Return whether the fault is one of the first two names of the answer: the strict rule."""
    names = [each.cause.name for each in answer.causes[:2]]
    return answer.state == "slow" and any(name.startswith(RIGHT[kind]) for name in names)


@dataclass
class Tally:
    """Verdicts by kind of log, right causes, and `cannot decide` on logs of five sizes or more.

    cause_right, named_first: faults found, by :func:`names_the_fault` and by :func:`names_the_fault_first`.
    """

    said: dict[str, Counter[str]]
    cause_right: Counter[str]
    named_first: int = 0
    long_logs: int = 0
    long_undecided: int = 0

    @property
    def false_alarms(self) -> float:
        row = self.said[HEALTHY]
        return (row["slow"] + row["model does not fit"]) / max(1, sum(row.values()))

    @property
    def found(self) -> float:
        return sum(self.cause_right.values()) / max(1, self._num_faults)

    @property
    def found_first(self) -> float:
        return self.named_first / max(1, self._num_faults)

    @property
    def _num_faults(self) -> int:
        return sum(sum(self.said[kind].values()) for kind in FAULTS)

    @property
    def undecided(self) -> float:
        return self.long_undecided / max(1, self.long_logs)


def run(logs: int, seed: int, folder: Path, kinds: Sequence[str] = KINDS, wrong: list | None = None) -> Tally:  # type: ignore[type-arg]
    """Draw and judge logs; the kinds take turns, and every third one is healthy."""
    chance = random.Random(seed)
    tally = Tally(defaultdict(Counter), Counter())
    others = [kind for kind in kinds if kind != HEALTHY]
    for number in range(logs):
        kind = HEALTHY if number % 3 == 0 else others[number * 2 // 3 % len(others)]
        case = draw(kind, chance)
        answer = judge(case, folder)
        tally.said[kind][answer.state] += 1
        if len(case.sizes) >= 5:
            tally.long_logs += 1
            tally.long_undecided += answer.state == "cannot decide"
        right = kind in FAULTS and names_the_fault(answer, kind)
        tally.cause_right[kind] += right
        tally.named_first += kind in FAULTS and names_the_fault_first(answer, kind)
        if wrong is not None:
            wrong.append((case, answer, right))
    return tally


def lines(tally: Tally) -> Iterator[str]:
    """Yield the confusion table in Markdown."""
    yield "| log | drawn | cause right | " + " | ".join(STATES) + " |"
    yield "|---|--:|--:|" + "--:|" * len(STATES)
    for kind in KINDS:
        row = tally.said[kind]
        right = str(tally.cause_right[kind]) if kind in FAULTS else ""
        yield f"| {kind} | {sum(row.values())} | {right} | " + " | ".join(str(row[s] or "") for s in STATES) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=36)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = run(arguments.logs, arguments.seed, Path(folder))
    print("\n".join(lines(tally)))
    print(
        f"\nfalse alarms {tally.false_alarms:.1%} of healthy logs; "
        f"faults found with the right cause {tally.found:.1%}, among the first two names {tally.found_first:.1%}; "
        f"cannot decide {tally.undecided:.1%} of logs with five sizes or more"
    )


if __name__ == "__main__":
    main()
