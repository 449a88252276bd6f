"""Many replays: grids over sizes, peers, wake-up times and ways to wait; how flag reads grow, and when mwait pays."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trine.eidolon.options import EidolonOptions, time_ps
from trine.eidolon.result import EidolonResult
from trine.eidolon.run import Prepared
from trine.errors import InputError
from trine.results.document import Row
from trine.units import PS_PER_S, format_time

MAX_RUNS = 10_000
#: What may vary, the key of a row for it, how it is called on an axis, and the factor to there.
_AXES = {
    "wakeup": ("wakeup_s", "wake-up time, us", 1e6),
    "rows": ("rows", "rows", 1),
    "cols": ("cols", "columns", 1),
    "peers": ("peers", "replayed peers", 1),
}

#: Called with (work done, work in all, simulated ps of the last run).
OnRun = Callable[[int, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Values of each option that varies; empty: as the options say. Wake-up times as text with a unit or ps.

    Raises
    ------
    InputError: a value twice, or more than MAX_RUNS runs.
    """

    rows: Sequence[int] = ()
    cols: Sequence[int] = ()
    peers: Sequence[int] = ()
    wakeup: Sequence[str | int] = ()
    sync: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("rows", "cols", "peers", "wakeup", "sync"):
            values = [time_ps(name, v) if name == "wakeup" else v for v in getattr(self, name)]
            if len(set(values)) < len(values):
                raise InputError(f"--{name} has a value twice")
        if self.num_runs > MAX_RUNS:
            raise InputError(f"{self.num_runs} runs are more than {MAX_RUNS}")

    @property
    def num_runs(self) -> int:
        runs = 1
        for values in (self.rows, self.cols, self.peers, self.wakeup, self.sync):
            runs *= max(1, len(values))
        return runs

    def workloads(self, base: EidolonOptions) -> Iterator[EidolonOptions]:
        """The options of each, but for wake-up times."""
        names = [name for name in ("rows", "cols", "peers", "sync") if getattr(self, name)]
        for values in product(*(getattr(self, name) for name in names)):
            yield replace(base, **dict(zip(names, values, strict=True)))


class Fit(NamedTuple):
    """Flag reads against wake-up time, of one workload that spins (and the same with mwait).

    slope_per_s, r2: of a straight line through them; None of fewer than three. expected_per_s: waiting wavefronts /
    polling interval. break_even_s: from which wake-up time on mwait reads less; straight between neighbours of the
    grid; None where it is in none. saved_at_most: share of flag reads that mwait saves at the longest wake-up time.
    """

    name: str
    slope_per_s: float | None
    r2: float | None
    expected_per_s: float | None
    break_even_s: float | None
    saved_at_most: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sweep:
    """rows: one a run, with the keys of docs/reference/eidolon-json.md. varied: options with several values."""

    rows: tuple[Row, ...]
    varied: tuple[str, ...]
    wall_s: float

    @property
    def axis(self) -> tuple[str, str, float]:
        """Key, name and scale of what is drawn to the right."""
        return next((_AXES[name] for name in _AXES if name in self.varied), _AXES["wakeup"])

    def curves(self, axis: str) -> dict[str, list[Row]]:
        """Rows that differ in ``axis`` alone, in its order, by a name of the others."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            keys = [key for name, (key, _, _) in _AXES.items() if name in self.varied and key != axis]
            words = [f"{row[key]} {_words(key)}" for key in keys]
            found.setdefault(", ".join([*words, str(row["sync"])]), []).append(row)
        return {name: sorted(rows, key=lambda row: _number(row[axis])) for name, rows in found.items()}

    def fits(self) -> tuple[Fit, ...]:
        """One for each workload whose wake-up time varies and that spins."""
        if "wakeup" not in self.varied:
            return ()
        curves = self.curves("wakeup_s")
        return tuple(
            _fit(name.removesuffix("spin").rstrip(", "), rows, curves.get(f"{name.removesuffix('spin')}mwait"))
            for name, rows in curves.items()
            if name.endswith("spin")
        )

    def text(self, *, volatile: bool = True) -> str:
        """A table; ``volatile``: with how long trine took, which differs from run to run."""
        lines = [_line(_COLUMNS, volatile)]
        lines += [_line(_cells(row), volatile) for row in self.rows]
        lines += [line for fit in self.fits() for line in _fit_lines(fit)]
        if volatile:
            lines.append(f"{len(self.rows):,} runs in {format_time(self.wall_s * PS_PER_S)}")
        return "\n".join(lines)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one line a run. Raises InputError where the file cannot be written."""
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        try:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", file=os.fspath(path)) from None

    def document(self) -> Row:
        """Plain data (docs/reference/eidolon-json.md)."""
        from trine import __version__

        return {
            "runs": list(self.rows),
            "fits": [fit._asdict() for fit in self.fits()],
            "simulator": {"name": "trine", "version": __version__, "wall_s": self.wall_s},
        }

    def plot(self, path: str | Path) -> None:
        """Draw it (PNG, SVG or PDF). Raises InputError, MissingExtraError without matplotlib."""
        from trine.eidolon.plot import plot_sweep

        plot_sweep(self, path)


def sweep(
    base: EidolonOptions, grid: Grid, *, progress: OnRun | None = None, on_compile: Callable[[], None] | None = None
) -> Sweep:
    """Run all of ``grid``, each with the other options of ``base``; on one core.

    Raises
    ------
    InputError: as :func:`trine.eidolon.run.run_eidolon`; wake-up times where something else says when flags land.
    """
    if grid.wakeup and base.source != "wakeup":
        raise InputError(f"--wakeup and --{base.source} both say when flags land: give one")
    began = time.perf_counter()
    workloads = list(grid.workloads(base))
    wakeups: Sequence[str | int | None] = grid.wakeup or (None,)
    total, done = sum(_weight(each) for each in workloads) * len(wakeups), 0
    rows = []
    for options in workloads:
        prepared = Prepared(options)
        for wakeup in wakeups:
            result = prepared.run(wakeup=wakeup, on_compile=on_compile)
            rows.append(_row(result))
            done += _weight(options)
            if progress is not None:
                progress(done, total, result.end_ps)
    varied = tuple(name for name in ("wakeup", "rows", "cols", "peers", "sync") if len(getattr(grid, name)) > 1)
    return Sweep(rows=tuple(rows), varied=varied, wall_s=time.perf_counter() - began)


def _weight(options: EidolonOptions) -> int:
    """About how much work a run is: elements of the matrix, and of its peers' partial results."""
    rows = options.rows or 1024
    return rows * ((options.cols or 1024) * (options.inner or 1) + 4 * (options.peers or 3))


def _row(result: EidolonResult) -> Row:
    document: dict[str, Any] = result.document()
    asked = document["options"]
    keys = (
        "time_s", "flag_reads", "non_flag_reads", "non_flag_reads_expected", "writes_delivered", "wait_s",
        "wait_total_s", "waiting_wavefronts", "wakeups", "spurious_wakeups", "monitor_full", "polling_interval_s",
        "spin_reads_per_s",
    )  # fmt: skip
    return {
        "kernel": document["kernel"],
        **{name: asked.get(name) for name in ("rows", "cols", "inner", "peers", "sync", "wakeup_s")},
        **{key: document[key] for key in keys},
        "events": document["simulator"]["events"],
        "wall_s": document["simulator"]["wall_s"],
    }


def _fit(name: str, spin: list[Row], mwait: list[Row] | None) -> Fit:
    x = np.array([_number(row["wakeup_s"]) for row in spin])
    reads = np.array([_number(row["flag_reads"]) for row in spin])
    slope, r2 = _line_through(x, reads)
    even = saved = None
    if mwait is not None and len(mwait) == len(spin):
        more = reads - np.array([_number(row["flag_reads"]) for row in mwait])
        even = _crossing(x, more)
        saved = float(more[-1] / reads[-1]) if reads[-1] else None
    rate = spin[0]["spin_reads_per_s"]
    return Fit(name, slope, r2, None if rate is None else _number(rate), even, saved)


def _line_through(x: Any, y: Any) -> tuple[float | None, float | None]:
    """Slope and r^2 of least squares."""
    if len(x) < 3:
        return None, None
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    return float(slope), 1.0 - float(((y - start - slope * x) ** 2).sum()) / spread if spread else None


def _crossing(x: Any, more: Any) -> float | None:
    """Where ``more`` becomes positive for good."""
    below = np.flatnonzero(more <= 0)
    if not len(below):
        return None
    i = int(below[-1])
    if i + 1 == len(x):
        return None
    return float(x[i] + (x[i + 1] - x[i]) * -more[i] / (more[i + 1] - more[i]))


def _fit_lines(fit: Fit) -> Iterator[str]:
    name = f" ({fit.name})" if fit.name else ""
    if fit.slope_per_s is not None and fit.expected_per_s is not None and fit.r2 is not None:
        yield (
            f"spin{name}: {fit.slope_per_s / 1e6:.4g} flag reads a us, r^2 {fit.r2:.4f}; waiting wavefronts / polling "
            f"interval {fit.expected_per_s / 1e6:.4g}"
        )
    if fit.break_even_s is not None:
        yield f"mwait{name} reads less from a wake-up time of {format_time(fit.break_even_s * PS_PER_S)} on"
    if fit.saved_at_most is not None:
        yield f"mwait{name} saves {100 * fit.saved_at_most:.1f} % of the flag reads at the longest wake-up time"


_COLUMNS = (
    "rows", "cols", "peers", "sync", "wake-up", "time", "flag reads", "non-flag reads", "wait of each", "events",
    "trine took",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    def when(key: str) -> str:
        return "-" if row[key] is None else format_time(_number(row[key]) * PS_PER_S)

    def count(key: str) -> str:
        return "-" if row[key] is None else f"{row[key]:,}"

    return (
        *("-" if row[key] is None else str(row[key]) for key in ("rows", "cols", "peers", "sync")),
        when("wakeup_s"), when("time_s"), count("flag_reads"), count("non_flag_reads"), when("wait_s"),
        count("events"), when("wall_s"),
    )  # fmt: skip


def _line(cells: Sequence[str], volatile: bool) -> str:
    widths = (6, 6, 6, 6, 9, 10, 11, 15, 13, 11, 11)
    shown = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    return " ".join(shown if volatile else shown[:-1])


def _words(key: str) -> str:
    return "us wake-up" if key == "wakeup_s" else key


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]
