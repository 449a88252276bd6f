"""Comparison of two logs of one test: which run is faster at each size, and whether by more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from trine.check.compare import measured_times
from trine.check.nccl_tests import NcclLog
from trine.check.verdict import MIN_OCTAVES, octaves, runs_of
from trine.collectives.sizes import format_size
from trine.errors import InputError
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row, Table
from trine.results.text import columns, wrapped_at

SIZE = Columns(
    Column(key="size_bytes", unit="bytes", meaning="Size."),
    Column(key="first_us", unit="us", meaning="Median time of the first log."),
    Column(key="second_us", unit="us", meaning="Median time of the second log."),
    Column(key="first_busbw_GBps", unit="GB/s", meaning="Median bus bandwidth of the first log."),
    Column(key="second_busbw_GBps", unit="GB/s", meaning="Median bus bandwidth of the second log."),
    Column(key="ratio", unit="number", meaning="Second / first time."),
    Column(key="noise", unit="number", meaning="Standard deviation of the ratio's logarithm."),
    Column(key="state", unit="text", meaning="`same`, `slower` or `faster`."),
)  # fmt: skip

SAME, SLOWER, FASTER, MIXED = "same", "slower", "faster", "mixed"
#: Standard deviation of one measurement from run to run, as a fraction (assumed: 2 to 3 %).
REPEAT = 0.025
#: A size differs if its ratio lies this many standard deviations from 1.
MIN_SIGMAS = 2.5
#: Small sizes scatter more than large ones, so that each side of this size has its own noise.
SMALL_BYTES = 1 << 20
#: Sizes needed to see noise as the scatter of ratios, and further measurements of a size to see it as their spread.
MIN_SIZES, MIN_REPEATS = 5, 6
#: Sizes on one screen.
MAX_ROWS = 14
_COLUMNS = ("size (B)", "A (us)", "B (us)", "B / A", "noise", "A (GB/s)", "B (GB/s)", "B is")
#: Median absolute deviation of a normal distribution's, and the variance of a point against the mean of its neighbours.
_MAD, _NEIGHBOURS = 1.4826, 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """One size. noise: standard deviation of the ratio's logarithm. state: of the second run."""

    size_bytes: int
    first_ps: int
    second_ps: int
    first_busbw_bytes_per_s: float
    second_busbw_bytes_per_s: float
    noise: float
    state: str

    @property
    def ratio(self) -> float:
        """Time of the second run / time of the first run."""
        return self.second_ps / self.first_ps


@dataclass(frozen=True, kw_only=True, repr=False)
class RunComparison(Report):
    """The result of :func:`compare_logs`.

    state: of the second run over the curve: SAME, SLOWER, FASTER or MIXED. ranges: (state, first size, last size) of
    each range at least MIN_OCTAVES wide that differs. isolated: other sizes that differ, counted as noise.
    """

    SCHEMA: ClassVar[str] = "check-runs"

    first: NcclLog
    second: NcclLog
    result: str
    rows: tuple[RunRow, ...]
    state: str
    ranges: tuple[tuple[str, int, int], ...]
    isolated: tuple[int, ...]
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Differences between the logs, and sizes left out."""
        return self.remarks

    @property
    def verdict(self) -> str:
        """One sentence: the faster run, its sizes, the factor and the noise."""
        low, high = (100 * edge(row.noise for row in self.rows) for edge in (min, max))
        noise = f"noise {low:.1f} %" if high - low < 0.05 else f"noise {low:.1f} to {high:.1f} %"
        if self.state == SAME:
            middle = median(row.ratio for row in self.rows)
            return f"no difference beyond noise: the median ratio is {middle:.3f} ({noise})"
        parts = []
        for state, start, end in self.ranges:
            ratios = [row.ratio for row in self.rows if start <= row.size_bytes <= end]
            factor = median(ratios) if state == SLOWER else 1 / median(ratios)
            parts.append(f"{state} from {format_size(start)} to {format_size(end)}, {factor:.2f} times in the median")
        return f"{self.second.path} is {'; '.join(parts)} ({noise})"

    @property
    def _question(self) -> str:
        return f"{self.first.op} of {self.first.num_ranks or 'unknown'} ranks ({self.result})"

    @property
    def headline(self) -> str:
        """The collective and the verdict in one line."""
        return f"{self._question}: {self.verdict}"

    def summary(self) -> str:
        """Return :meth:`details` with at most MAX_ROWS sizes, evenly spaced."""
        step = max(1, (len(self.rows) - 1) / (MAX_ROWS - 1))
        return self._text([self.rows[round(i * step)] for i in range(min(MAX_ROWS, len(self.rows)))])

    def details(self) -> str:
        """Return the verdict, one row per size, and notes."""
        return self._text(self.rows)

    def _text(self, rows: Sequence[RunRow]) -> str:
        table: list[tuple[str, ...]] = [_COLUMNS]
        for row in rows:
            times = (f"{ps / 1e6:.2f}" for ps in (row.first_ps, row.second_ps))
            rates = (f"{rate / 1e9:.2f}" for rate in (row.first_busbw_bytes_per_s, row.second_busbw_bytes_per_s))
            state = "" if row.state == SAME else row.state
            table.append((str(row.size_bytes), *times, f"{row.ratio:.3f}", f"{row.noise:.1%}", *rates, state))
        isolated = ", ".join(map(format_size, self.isolated))
        remarks = [f"{len(rows)} of {len(self.rows)} sizes shown"] if len(rows) < len(self.rows) else []
        remarks += [*self.remarks, *([f"{isolated}: differs alone, counted as noise"] if isolated else [])]
        head = f"{self._question}: A {self.first.path}, B {self.second.path}"
        following = "--details; --json FILE; trine check LOG --cluster NAME; trine help check"
        lines = [*wrapped_at("", head, 0), *wrapped_at("", self.verdict, 0), "", *columns(table, spare=(5, 6, 4)), ""]
        notes = [line for note in remarks for line in wrapped_at("note", note, 7)]
        return "\n".join([*lines, *notes, *wrapped_at("next", following, 7)])

    def document(self) -> Row:
        """Return plain data, as documented in docs/reference/json-keys.csv."""
        return {
            "first": self.first.path, "second": self.second.path, **to_row(self.first, "op", "num_ranks"),
            **to_row(self, "result", "state", "verdict"),
            "ranges": [dict(zip(("state", "from_bytes", "to_bytes"), each, strict=True)) for each in self.ranges],
            "isolated_bytes": list(self.isolated), **self.tables(), "notes": list(self.remarks),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``rows``: both runs by size."""
        return {"rows": SIZE.rows(self.rows)}


def compare_logs(first: NcclLog, second: NcclLog, *, in_place: bool = False) -> RunComparison:
    """Compare two runs of one test, size by size.

    in_place: compare the in-place results. Raises InputError for other collectives, numbers of ranks or data types, and
    for logs without a common size.
    """
    _check_same_test(first, second)
    curves = [measured_times(log, in_place) for log in (first, second)]
    times = [dict(curve) for curve, _ in curves]
    sizes = sorted(times[0].keys() & times[1].keys())
    if not sizes:
        raise InputError(f"has no size of {first.path}", file=second.path)
    pairs = []
    for size in sizes:
        pairs.append([[ps for ps, _ in found[size]] for found in times])
    logs = [math.log(median(b) / median(a)) for a, b in pairs]
    noise = _noise(sizes, logs, pairs)
    compared = []
    for size, (a, b), ratio, sigma in zip(sizes, pairs, logs, noise, strict=True):
        first_rate = median(rate for _, rate in times[0][size])
        second_rate = median(rate for _, rate in times[1][size])
        compared.append(
            RunRow(
                size_bytes=size,
                first_ps=round(median(a)),
                second_ps=round(median(b)),
                first_busbw_bytes_per_s=first_rate,
                second_busbw_bytes_per_s=second_rate,
                noise=sigma,
                state=SAME if abs(ratio) <= MIN_SIGMAS * sigma else SLOWER if ratio > 0 else FASTER,
            )
        )
    rows = tuple(compared)
    ranges = _ranges(rows)
    states = {state for state, _, _ in ranges}
    left_out = len(times[0].keys() ^ times[1].keys())
    remarks = [f"{left_out} sizes are in one log only: left out"] if left_out else []
    remarks += [note for _, notes in curves for note in notes]
    for name, log in (("A", first), ("B", second)):
        if log.unsound is not None:
            remarks.append(f"{name}: {log.unsound}")
        if log.incomplete is not None:
            remarks.append(f"{name} is incomplete: {log.incomplete}")
    result = "in-place" if in_place else "out-of-place"
    sizes_alone = []
    for row in rows:
        if row.state != SAME and not any(start <= row.size_bytes <= end for _, start, end in ranges):
            sizes_alone.append(row.size_bytes)
    isolated = tuple(sizes_alone)
    overall = SAME if not states else states.pop() if len(states) == 1 else MIXED
    return RunComparison(
        first=first, second=second, result=result, rows=rows, state=overall, ranges=ranges, isolated=isolated,
        remarks=tuple(dict.fromkeys((*_differences(first, second), *remarks))),
    )  # fmt: skip


def _check_same_test(first: NcclLog, second: NcclLog) -> None:
    of_first, of_second = ((log.op, log.num_ranks, log.rows[0].dtype) for log in (first, second))
    names = ("collective", "number of ranks", "data type")
    for name, a, b in zip(names, of_first, of_second, strict=True):
        if a != b and a is not None and b is not None:
            raise InputError(f"is another test than {first.path}: {name} {b}, not {a}", file=second.path)


def _differences(first: NcclLog, second: NcclLog) -> list[str]:
    """Return a sentence for each fact that differs between the logs."""
    facts = (
        "library", "version", "launch", "network", "num_hosts", "gpu_names", "hosts", "environment", "aggregated",
    )  # fmt: skip
    found = ((name, getattr(first, name), getattr(second, name)) for name in facts)
    return [f"{name.replace('_', ' ')} differs: A {a or 'not stated'}, B {b or 'not stated'}"
            for name, a, b in found if a != b]  # fmt: skip


def _noise(sizes: Sequence[int], ratios: Sequence[float], pairs: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """Return the standard deviation of each size's log ratio.

    Repeated measurements give it directly. Otherwise trine takes the scatter of the ratios against both neighbours, for
    small and large sizes apart, and at least the noise of two single measurements.
    """
    squares = [(math.log(ps / median(times))) ** 2 for pair in pairs for times in pair for ps in times]
    degrees = sum(len(times) - 1 for pair in pairs for times in pair)
    if degrees >= MIN_REPEATS:
        one = max(math.sqrt(sum(squares) / degrees), REPEAT / 5)
        return [one * math.sqrt(1 / len(a) + 1 / len(b)) for a, b in pairs]
    floor = math.sqrt(2) * REPEAT
    found: list[float] = []
    for is_small in (True, False):
        part = [ratio for size, ratio in zip(sizes, ratios, strict=True) if (size < SMALL_BYTES) == is_small]
        found += [max(floor, scatter(part))] * len(part)
    return found


def scatter(ratios: Sequence[float]) -> float:
    """Return the standard deviation of ratios around a smooth curve; 0 for fewer than MIN_SIZES."""
    if len(ratios) < MIN_SIZES:
        return 0.0
    offs = [abs(b - (a + c) / 2) for a, b, c in zip(ratios, ratios[1:], ratios[2:], strict=False)]
    return _MAD * median(offs) / math.sqrt(_NEIGHBOURS)


def _ranges(rows: Sequence[RunRow]) -> tuple[tuple[str, int, int], ...]:
    """Return the wide ranges of sizes that differ in one direction, in order."""
    sizes = [row.size_bytes for row in rows]
    found = []
    for state in (SLOWER, FASTER):
        runs = runs_of(len(rows), lambda i, state=state: rows[i].state == state)  # type: ignore[misc]
        found += [(state, sizes[run[0]], sizes[run[-1]]) for run in runs if octaves(sizes, run) >= MIN_OCTAVES]
    return tuple(sorted(found, key=lambda each: each[1]))
