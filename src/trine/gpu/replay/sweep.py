"""Sweeps of replays over sizes, peers, wake-up times and wait methods: growth of flag reads, break-even of mwait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, ClassVar, NamedTuple

from trine.common._version import __version__
from trine.common.observer import OnCompile, observing
from trine.common.units import PS_PER_S, format_time
from trine.errors import InputError
from trine.gpu.replay.options import EidolonOptions, time_ps
from trine.gpu.replay.plot import draw_grid
from trine.gpu.replay.sweep_runs import Fit, Journal, OnRun, Runs, Spread, check_journal, spreads_of
from trine.gpu.run import announce_loop
from trine.results.report import Report, Row, Table
from trine.results.text import columns, first_screen, wrapped_at

MAX_RUNS = 10_000


class _Axis(NamedTuple):
    """Horizontal axis of the curves: key of a row, label, and factor from the row to the label's unit."""

    key: str
    label: str
    scale: float


#: Option that may vary -> (key in a row, axis label, factor to the axis unit).
_AXES = {
    "wakeup": _Axis("wakeup_s", "wake-up time, us", 1e6),
    "rows": _Axis("rows", "rows", 1),
    "cols": _Axis("cols", "columns", 1),
    "peers": _Axis("peers", "replayed peers", 1),
    "issue_seed": _Axis("issue_seed", "seed of the issue order", 1),
}

#: Options with several values. Wake-up times of a workload run one after the other, its wait methods in one group.
_VARY = ("rows", "cols", "peers", "issue_seed", "wakeup", "sync")
#: Wait methods that each option applies to; in a grid, the other methods run without the option.
_WAYS = {"poll": ("spin", "mwait"), "sleep": ("sleep",), "monitor_capacity": ("mwait",), "monitor_wakeup": ("mwait",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepGrid:
    """Values of each varied option; empty: the base option's value. Wake-up times are text with a unit, or ps.

    Raises
    ------
    InputError: a duplicate value, or more than MAX_RUNS runs.
    """

    rows: Sequence[int] = ()
    cols: Sequence[int] = ()
    peers: Sequence[int] = ()
    wakeup: Sequence[str | int] = ()
    issue_seed: Sequence[int] = ()
    sync: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in _VARY:
            values = []
            for v in getattr(self, name):
                values.append(time_ps(name, v) if name == "wakeup" else v)
            if len(set(values)) < len(values):
                raise InputError(f"--{name.replace('_', '-')} has a value twice")
        if self.num_runs > MAX_RUNS:
            raise InputError(f"{self.num_runs} runs are more than {MAX_RUNS}")

    @property
    def num_runs(self) -> int:
        return prod(max(1, len(getattr(self, name))) for name in _VARY)

    def workloads(self, base: EidolonOptions) -> Iterator[EidolonOptions]:
        """Yield the options of each workload, without wake-up times."""
        names = [name for name in _VARY if name != "wakeup" and getattr(self, name)]
        for values in product(*(getattr(self, name) for name in names)):
            options = replace(base, **dict(zip(names, values, strict=True)))
            idle: dict[str, Any] = {name: None for name, ways in _WAYS.items() if options.sync not in (None, *ways)}
            yield replace(options, **idle)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sweep(Report):
    """Result of a sweep. rows: one per run (docs/reference/eidolon-json.md). varied: options with several values.

    fits: one per spinning workload if wake-up times vary. finished: False if the sweep was stopped.
    """

    SCHEMA: ClassVar[str] = "eidolon-sweep"

    rows: tuple[Row, ...]
    varied: tuple[str, ...]
    fits: tuple[Fit, ...]
    wall_s: float
    finished: bool = True

    @property
    def axis(self) -> _Axis:
        """The horizontal axis: the first option that varies."""
        return next((axis for name, axis in _AXES.items() if name in self.varied), _AXES["wakeup"])

    def curves(self, axis: str) -> dict[str, list[Row]]:
        """Return the rows grouped by the other varied options, each group sorted by ``axis``."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            keys = [other.key for name, other in _AXES.items() if name in self.varied and other.key != axis]
            parts = [_value_text(key, row[key]) for key in keys]
            groups.setdefault(", ".join([*parts, str(row["sync"])]), []).append(row)
        curves = {}
        for name, rows in groups.items():
            curves[name] = sorted(rows, key=lambda row: _number(row[axis]))
        return curves

    def text(self, *, volatile: bool = True) -> str:
        """Return the table; ``volatile``: with trine's run times, which differ between runs."""
        seeds = "issue_seed" in self.varied
        lines = [_line(_COLUMNS, volatile, "seed" if seeds else "")]
        row_lines = []
        for row in self.rows:
            row_lines.append(_line(_cells(row), volatile, str(row["issue_seed"]) if seeds else ""))
        lines += row_lines
        lines += self._findings()
        if volatile:
            lines.append(f"{len(self.rows):,} runs in {format_time(self.wall_s * PS_PER_S)}")
        return "\n".join(lines)

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """Spread of the times of runs that differ only in the seed of the issue order; empty with one seed."""
        return spreads_of(self.rows, self.varied) if "issue_seed" in self.varied else ()

    @property
    def headline(self) -> str:
        """Number of runs, and the options that vary."""
        varied = f" over {', '.join(self.varied)}" if self.varied else ""
        return f"{len(self.rows):,} replays{varied}" + ("" if self.finished else ", stopped")

    def summary(self) -> str:
        """Return the findings of the sweep, then the rows that fit on one screen."""
        seeds = [("seed",), *((str(row["issue_seed"]),) for row in self.rows)]
        rows = [_COLUMNS[:-2], *(_cells(row)[:-2] for row in self.rows)]
        if "issue_seed" in self.varied:
            rows = [(*seed, *row) for seed, row in zip(seeds, rows, strict=True)]
        findings = [line for text in self._findings() for line in wrapped_at("", text, 0)]
        return first_screen("\n".join([self.headline, *findings, "", *columns(rows, spare=(7, 2, 1))]))

    def _findings(self) -> list[str]:
        fit_lines = [line for one in self.fits for line in one.lines()]
        spread_lines = [one.line() for one in self.spreads]
        return fit_lines + spread_lines

    def details(self) -> str:
        """Return the table with trine's run time."""
        return self.text()

    def tables(self) -> dict[str, Table]:
        """Return one table with one row per run."""
        return {"runs": list(self.rows)}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``curves``: flag reads and simulated time over the main varied option."""
        return {"curves": self._draw}

    def _draw(self) -> Any:
        if len(self.rows) < 2:
            raise InputError("one run is no curve: give several values")
        axis = self.axis
        return draw_grid(self.curves(axis.key), *axis, self.headline)

    def document(self) -> Row:
        """Return plain data (docs/reference/eidolon-json.md)."""
        fits = [one._asdict() for one in self.fits]
        spreads = [one._asdict() for one in self.spreads]
        return {
            "runs": list(self.rows),
            "finished": self.finished,
            "fits": fits,
            "spreads": spreads,
            "simulator": {"name": "trine", "version": __version__, "wall_s": self.wall_s},
        }


def sweep(
    base: EidolonOptions,
    grid: SweepGrid,
    *,
    jobs: int | None = None,
    progress: OnRun | None = None,
    on_compile: OnCompile | None = None,
    journal: str | os.PathLike[str] | Journal | None = None,
) -> Sweep:
    """Run all of ``grid`` with the other options of ``base``, ``jobs`` workloads at a time [number of cores].

    journal: a file that each finished run is appended to, so that runs survive if the process is killed. Runs already
    in the file are not repeated (:class:`trine.gpu.replay.sweep_runs.Journal`).

    Raises
    ------
    InputError: as :func:`trine.gpu.replay.run.run_eidolon`; wake-up times if another option sets the flags' times.
    """
    _check(base, grid)
    if jobs is not None and (isinstance(jobs, bool) or jobs < 1):
        raise InputError(f"--jobs counts from 1, got {jobs}")
    if journal is not None:
        check_journal(base)
        journal = journal if isinstance(journal, Journal) else Journal(journal)
    began = time.perf_counter()
    workloads, ways = list(grid.workloads(base)), max(1, len(grid.sync))
    runs = Runs(
        workloads=workloads, wakeups=grid.wakeup or (None,), ways=ways,
        fit_names=[_fit_name(grid, options) for options in workloads[::ways]], progress=progress, journal=journal,
    )  # fmt: skip
    with observing(on_compile=on_compile):
        announce_loop()
        runs.run(jobs or os.cpu_count() or 1)
    rows = tuple(row for rows in runs.rows for row in rows)
    varied = tuple(name for name in ("wakeup", *_VARY[:-2], "sync") if len(getattr(grid, name)) > 1)
    fits = tuple(runs.fits[number] for number in sorted(runs.fits))
    return Sweep(rows=rows, varied=varied, fits=fits, wall_s=time.perf_counter() - began, finished=not runs.stopped)


def _check(base: EidolonOptions, grid: SweepGrid) -> None:
    if grid.wakeup and base.source != "wakeup":
        raise InputError(f"--wakeup and --{base.source} both set the flags' times: give one")
    for name, ways in _WAYS.items():
        if grid.sync and getattr(base, name) is not None and not set(ways) & set(grid.sync):
            raise InputError(f"--{name.replace('_', '-')} cannot matter without --sync {' or '.join(ways)}")


def _fit_name(grid: SweepGrid, options: EidolonOptions) -> str:
    """Return a workload's name within the grid, from its varied options."""
    varied = [one for one in _VARY[:-2] if len(getattr(grid, one)) > 1]
    return ", ".join(_value_text(one, getattr(options, one)) for one in varied)


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


def _line(cells: Sequence[str], volatile: bool, seed: str) -> str:
    widths = (6, 6, 6, 6, 9, 10, 11, 15, 13, 11, 11)
    texts = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    seed_cell = [f"{seed:>6}"] if seed else []
    shown = texts if volatile else texts[:-1]
    return " ".join([*seed_cell, *shown])


def _value_text(key: str, value: object) -> str:
    if key == "issue_seed":
        return f"issue seed {value}"
    return f"{value} {'us wake-up' if key == 'wakeup_s' else key}"


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]
