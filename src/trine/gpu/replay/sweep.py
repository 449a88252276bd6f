"""Sweeps of replays over sizes, peers, wake-up times and wait methods: growth of flag reads, break-even of mwait."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trine.common._version import __version__
from trine.common.observer import OnCompile, observing
from trine.common.processes import SerialExecutor, StoppableThreads
from trine.common.units import PS_PER_S, format_time
from trine.errors import InputError, nearest
from trine.experiments.executors import Workers
from trine.experiments.journal import read_lines
from trine.experiments.places import make_folder
from trine.experiments.run import run_points
from trine.experiments.spec import ExperimentSpec, Shard, canonical
from trine.experiments.sweeps import prepare_folder
from trine.gpu.collective.durations import hash_of_sources
from trine.gpu.replay.arrivals import provenance_of
from trine.gpu.replay.options import EidolonOptions, time_ps
from trine.gpu.replay.plot import draw_grid
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.sweep_fits import Fit, Spread, spreads_of
from trine.gpu.replay.sweep_runs import WAYS_OF_OPTION, OnRun, SweepRuns, value_text
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
    "wakeup": _Axis("wakeup_s", "wake-up time (µs)", 1e6),
    "rows": _Axis("rows", "rows", 1),
    "cols": _Axis("cols", "columns", 1),
    "peers": _Axis("peers", "replayed peers", 1),
    "issue_seed": _Axis("issue_seed", "seed of the issue order", 1),
}

#: Options with several values. Wake-up times of a workload vary fastest, then its wait methods.
_VARY = ("rows", "cols", "peers", "issue_seed", "sync", "wakeup")
#: Name of the function that answers a point, in an experiment's specification.
_QUESTION = "trine.gpu.replay.sweep:sweep"
#: Sources that affect runs; a change in them makes another experiment.
_SOURCES = ("gpu", "engine", "graph", "common", "cluster")
#: Options that the specification encodes separately.
_ELSEWHERE = ("kernel", "wakeup", "straggler")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sweep(Report):
    """Result of a sweep. rows: one per run (docs/reference/eidolon-json.md). varied: options with several values.

    fits: one per spinning workload if wake-up times vary. finished: False if the sweep was stopped. folder: the
    experiment with the runs; None if nothing keeps it. num_reused: runs of an earlier sweep in it.
    """

    SCHEMA: ClassVar[str] = "eidolon-sweep"

    rows: tuple[Row, ...]
    varied: tuple[str, ...]
    fits: tuple[Fit, ...]
    wall_s: float
    finished: bool = True
    folder: Path | None = None
    num_reused: int = 0

    @property
    def axis(self) -> _Axis:
        """The horizontal axis: the first option that varies."""
        return next((axis for name, axis in _AXES.items() if name in self.varied), _AXES["wakeup"])

    def curves(self, axis: str) -> dict[str, list[Row]]:
        """Return the rows grouped by the other varied options, each group sorted by ``axis``."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            keys = [other.key for name, other in _AXES.items() if name in self.varied and other.key != axis]
            parts = [value_text(key, row[key]) for key in keys]
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
    vary: Mapping[str, Sequence[Any]],
    *,
    jobs: int | None = None,
    progress: OnRun | None = None,
    on_compile: OnCompile | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Run all combinations of ``vary`` with the other options of ``base``, ``jobs`` at a time [number of cores].

    The runs are the points of an experiment (:mod:`trine.experiments`).

    Parameters
    ----------
    vary: values by option: rows, cols, peers, issue_seed, sync, wakeup (text with a unit, or ps).
    directory: folder for the finished runs, so that they survive if the process is killed. Each sweep has a folder in
        it, named by its inputs; runs already there are not repeated. By default a temporary folder.

    Raises
    ------
    InputError: as :func:`trine.gpu.replay.run.run_eidolon`; an unknown option or a duplicate value; more than MAX_RUNS
        runs; wake-up times if another option sets the flags' times; a source of writes that no folder can name.
    StorageError: the disk refuses a write.
    """
    if jobs is not None and (isinstance(jobs, bool) or jobs < 1):
        raise InputError(f"--jobs counts from 1, got {jobs}")
    values = _checked(base, vary)
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="trine-sweep-") as folder:
            return _sweep(base, ExperimentSpec(command="eidolon run", vary=values, question=_QUESTION), Path(folder),
                          jobs, progress, on_compile, is_kept=False)  # fmt: skip
    spec = ExperimentSpec(command="eidolon run", settings=_identity(base, values), vary=values, question=_QUESTION)
    parent = Path(directory)
    folder_of_spec = make_folder(parent.parent, parent.name, spec.id)
    return _sweep(base, spec, folder_of_spec, jobs, progress, on_compile, is_kept=True)


def num_runs(vary: Mapping[str, Sequence[Any]]) -> int:
    """Return the number of combinations."""
    count = 1
    for values in vary.values():
        count *= max(1, len(values))
    return count


def _checked(base: EidolonOptions, vary: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the options that vary in the order of the rows, with wake-up times in ps. Raises as :func:`sweep`."""
    for name in vary:
        if name not in _VARY:
            raise InputError(f"a sweep cannot vary {name!r:.80}{nearest(name, _VARY)}")
    checked = {}
    for name in _VARY:
        values = tuple(vary.get(name, ()))
        if name == "wakeup":
            values = tuple(time_ps(name, value) for value in values)
        if len(set(values)) < len(values):
            raise InputError(f"--{name.replace('_', '-')} has a value twice")
        if values:
            checked[name] = values
    if num_runs(checked) > MAX_RUNS:
        raise InputError(f"{num_runs(checked)} runs are more than {MAX_RUNS}")
    if "wakeup" in checked and base.source != "wakeup":
        raise InputError(f"--wakeup and --{base.source} both set the flags' times: give one")
    ways_given = checked.get("sync", ())
    for name, ways in WAYS_OF_OPTION.items():
        if ways_given and getattr(base, name) is not None and not set(ways) & set(ways_given):
            raise InputError(f"--{name.replace('_', '-')} cannot matter without --sync {' or '.join(ways)}")
    return checked


def _identity(base: EidolonOptions, vary: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return what distinguishes the sweep's runs, beside the options that vary, as settings of an experiment.

    The first workload shows the content of all files, since the others differ from it in these options only.

    Raises InputError for a source of writes that cannot be distinguished, and as the first run does.
    """
    if base.source not in ("wakeup", "distribution", "symmetric"):
        raise InputError(f"no folder keeps runs with {base.source}, which it could not tell from others")
    first = SweepRuns(base, ExperimentSpec(command="eidolon run", vary=vary, question=_QUESTION)).options_of(0)
    work = Prepared(first).work
    ranks = (work.target,) if base.is_fused_name else range(work.program.num_ranks)  # fused: all ranks are alike
    options = {}
    for each in fields(base):
        if each.name not in _ELSEWHERE:
            options[each.name] = str(getattr(base, each.name))
    parts = {
        "trine": __version__,
        "sources": hash_of_sources(_SOURCES),
        "origin": [provenance_of(work.program, rank, work.model, work.cluster) for rank in ranks],
        "stragglers": sorted((rank, str(late)) for rank, late in base.straggler.items()),
        "wakeup_ps": time_ps("wakeup", base.wakeup_time),
        "options": options,
    }
    kernel = os.fspath(base.kernel) if isinstance(base.kernel, str | os.PathLike) else work.program.name
    return {"kernel": kernel, "inputs": hashlib.sha256(canonical(parts).encode()).hexdigest()}


def _sweep(
    base: EidolonOptions,
    spec: ExperimentSpec,
    folder: Path,
    jobs: int | None,
    progress: OnRun | None,
    on_compile: OnCompile | None,
    *,
    is_kept: bool,
) -> Sweep:
    """Answer the points of ``spec`` that ``folder`` lacks, and return all rows. Raises the error of the first point."""
    began = time.perf_counter()
    prepare_folder(folder, spec)
    runs = SweepRuns(base, spec)
    runs.take(_rows_in(folder, spec))
    num_reused, total = len(runs.rows), runs.total

    def report(*_: int) -> None:
        if progress is not None and runs.rows:
            progress(runs.done, total, runs.last_ps)

    is_finished = True
    with observing(on_compile=on_compile):
        announce_loop()
        try:
            run_points(folder.resolve(), spec, _workers(jobs, runs), Shard(), report, runs.answer)
            runs.fit_missing()
        except KeyboardInterrupt:
            is_finished = False
    if runs.errors:
        shutil.rmtree(folder, ignore_errors=True)  # the same sweep would fail again
        raise runs.errors[min(runs.errors)]
    rows = _rows_in(folder, spec)
    varied = []
    for name in ("wakeup", *_VARY[:-1]):
        if len(spec.grid.get(name, ())) > 1:
            varied.append(name)
    return Sweep(
        rows=tuple(rows[point] for point in sorted(rows)),
        varied=tuple(varied),
        fits=tuple(runs.fits[group] for group in sorted(runs.fits)),
        wall_s=time.perf_counter() - began,
        finished=is_finished,
        folder=folder if is_kept else None,
        num_reused=num_reused,
    )


def _workers(jobs: int | None, runs: SweepRuns) -> Workers:
    """Return ``jobs`` threads, since the options of a run may be objects that no file can hold."""
    count = min(jobs or os.cpu_count() or 1, runs.spec.size)

    def make() -> Executor:
        return SerialExecutor() if count == 1 else StoppableThreads(count, runs.stop)

    return Workers(make)


def _rows_in(folder: Path, spec: ExperimentSpec) -> dict[int, Row]:
    """Return the finished runs of an experiment's folder by point."""
    rows = {}
    for line in read_lines(folder, spec):
        entry = line.entry()
        if entry["status"] == "done":
            rows[line.point] = entry["result"]
    return rows


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


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]
