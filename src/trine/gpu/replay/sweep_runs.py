"""Run the cases of a sweep on several cores, in threads, since the compiled loop releases the GIL.

A journal stores finished runs, one per line. It survives a kill, and the next sweep skips the runs in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event, Lock, get_ident
from typing import Any, NamedTuple

import numpy as np

from trine.common._version import __version__
from trine.common.inputs import read_at_most
from trine.common.observer import Control, current_observer, ignore, observing
from trine.common.units import PS_PER_S, format_time
from trine.errors import InputError, SpecError
from trine.gpu.collective.durations import hash_of_sources
from trine.gpu.model.options import MWAIT, SPIN
from trine.gpu.replay.arrivals import provenance_of
from trine.gpu.replay.case import ReplayCase
from trine.gpu.replay.options import EidolonOptions, time_ps
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.run import Prepared
from trine.results.report import Row

# Flag reads of spinning wavefronts against wake-up time, and the wake-up time beyond which mwait reads less.

#: Halvings of the interval that contains the break-even time.
_HALVINGS = 8

#: Flag reads by wake-up time (ps).
Reads = Callable[[int], int]


class Fit(NamedTuple):
    """Flag reads against wake-up time, for one spinning workload (and the same with mwait).

    slope_per_s, r2: of a straight-line fit; None for fewer than three points. expected_per_s: waiting wavefronts /
    polling interval. break_even_s: wake-up time beyond which mwait reads less, to 1/256 of the grid step; None if it
    is outside the grid. saved: fraction of the flag reads that mwait saves at ten times that wake-up time.
    """

    name: str
    slope_per_s: float | None
    r2: float | None
    expected_per_s: float | None
    break_even_s: float | None
    saved: float | None

    def lines(self) -> Iterator[str]:
        """Yield the fit as sentences."""
        name = f" ({self.name})" if self.name else ""
        if self.slope_per_s is not None and self.expected_per_s is not None and self.r2 is not None:
            yield (
                f"spin{name}: {self.slope_per_s / 1e6:.4g} flag reads per us of wake-up time, r^2 {self.r2:.4f}; "
                f"wavefronts / polling interval: {self.expected_per_s / 1e6:.4g}"
            )
        if self.break_even_s is not None and self.saved is not None:
            yield (
                f"mwait{name} reads less from a wake-up time of {format_time(self.break_even_s * PS_PER_S)} on; at "
                f"ten times that {100 * self.saved:.1f} % less"
            )


class Spread(NamedTuple):
    """Times of runs that differ only in the seed of their issue order. times: number of distinct times."""

    name: str
    seeds: int
    times: int
    least_s: float
    most_s: float

    def line(self) -> str:
        """Return the spread as one line."""
        low, high = (format_time(each * PS_PER_S) for each in (self.least_s, self.most_s))
        share = 100 * (self.most_s / self.least_s - 1) if self.least_s else 0.0
        return f"{self.name}: {self.seeds} issue orders, {self.times} times, from {low} to {high} (+{share:.2f} %)"


def spreads_of(rows: Sequence[Row], varied: Sequence[str]) -> tuple[Spread, ...]:
    """Group rows that differ only in their seed; ``varied``: the other options that vary."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        parts = [f"{row[name]} {name}" for name in ("rows", "cols", "peers") if name in varied]
        if "wakeup" in varied:
            parts.append(f"wake-up {format_time(float(str(row['wakeup_s'])) * PS_PER_S)}")
        by_name.setdefault(", ".join([*parts, str(row["sync"])]), []).append(float(str(row["time_s"])))
    return tuple(Spread(name, len(times), len(set(times)), min(times), max(times)) for name, times in by_name.items())


def fit(
    name: str,
    wakeups_ps: Sequence[int],
    spin: Sequence[int],
    expected_per_s: float | None,
    mwait: Sequence[int] | None,
    reads: tuple[Reads, Reads] | None,
) -> Fit:
    """Fit flag reads to wake-up times; ``mwait``: reads with mwait, ``reads``: of spin and mwait, at other times."""
    order = np.argsort(wakeups_ps)
    x = np.asarray(wakeups_ps, np.int64)[order]
    slope, r2 = _line_through(x / PS_PER_S, np.asarray(spin, float)[order])
    break_even = saved = None
    if mwait is not None and reads is not None:
        even_ps = _break_even(x, (np.asarray(spin) - np.asarray(mwait))[order], reads)
        if even_ps is not None:
            break_even, saved = even_ps / PS_PER_S, 1 - reads[1](10 * even_ps) / reads[0](10 * even_ps)
    return Fit(name, slope, r2, expected_per_s, break_even, saved)


def _line_through(x: Any, y: Any) -> tuple[float | None, float | None]:
    """Return slope and r^2 of a least-squares fit, bit-identical on every CPU, unlike vector sums."""
    if len(x) < 3:
        return None, None
    points = x.tolist(), y.tolist()
    slope = statistics.linear_regression(*points).slope
    return slope, statistics.correlation(*points) ** 2 if len(set(points[1])) > 1 else None


def _break_even(x: Any, difference: Any, reads: tuple[Reads, Reads]) -> int | None:
    """Return the wake-up time (ps) beyond which spin reads more than mwait, by bisection between two grid points."""
    below = np.flatnonzero(difference <= 0)
    if not len(below) or int(below[-1]) + 1 == len(x):
        return None
    low, high = int(x[below[-1]]), int(x[below[-1] + 1])
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if reads[0](middle) > reads[1](middle):
            high = middle
        else:
            low = middle
    return high


#: Sources that affect runs; a change in them invalidates stored runs.
_SOURCES = ("gpu", "engine", "graph", "common", "cluster")
#: Largest part of a journal that is read.
MAX_BYTES = 64 * 2**20
#: Suffix of the journal's name, after the name of the output file.
ENDING = ".runs.jsonl"
_DIGITS = 32
#: Options that a key encodes separately.
_ELSEWHERE = ("kernel", "wakeup", "straggler")


class Journal:
    """The journal file ``path``, created with the first run; ``notes``: errors, as sentences.

    A line is ``{"key", "sum", "row"}``: hashes of the inputs of the run and of the row, and the row as in ``runs``
    of docs/reference/eidolon-json.md. Incomplete lines are skipped; new lines are appended after them.

    Raises SpecError if the file exists but cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self.num_taken = 0
        self._lock = Lock()
        self._rows = _read(self.path)

    def row(self, key: str) -> Row | None:
        """Return the stored row of a run, or None."""
        with self._lock:
            row = self._rows.get(key)
            self.num_taken += row is not None
        return row

    def add(self, key: str, row: Row) -> None:
        """Store a run in a single write, so that a kill leaves all of it or nothing. Errors become a note."""
        text = json.dumps(row, separators=(",", ":"))
        line = json.dumps({"key": key, "sum": _sum(text), "row": row}, separators=(",", ":")) + "\n"
        with self._lock:
            self._rows[key] = row
            try:
                self._append(line.encode())
            except OSError as error:
                if not self.notes:
                    self.notes.append(f"runs are not kept: cannot write {self.path} ({error.strerror or error})")

    def remove(self) -> None:
        """Delete the journal, once the sweep's output is written."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # trine chose the name
        handle = os.open(self.path, flags, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # cut short by a kill
                line = b"\n" + line
            if os.write(handle, line) < len(line):
                raise OSError(28, "No space left on device")
        finally:
            os.close(handle)


def workload_key(options: EidolonOptions, work: ReplayCase) -> str:
    """Return a hash of all inputs of a workload's runs except wake-up times, and of its fields in the rows."""
    kernel = options.kernel
    ranks = (work.target,) if options.is_fused_name else range(work.program.num_ranks)  # fused: all ranks are alike
    values = {each.name: str(getattr(options, each.name)) for each in fields(options) if each.name not in _ELSEWHERE}
    origin = [provenance_of(work.program, rank, work.model, work.cluster) for rank in ranks]
    kernel_name = os.fspath(kernel) if isinstance(kernel, str | os.PathLike) else work.program.name
    stragglers = sorted((rank, str(late)) for rank, late in options.straggler.items())
    parts = {
        "trine": __version__,
        "sources": hash_of_sources(_SOURCES),
        "origin": origin,
        "kernel": kernel_name,
        "stragglers": stragglers,
        "options": values,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def run_key(workload: str, options: EidolonOptions, wakeup: str | int | None) -> str:
    """Return the key of a run from its workload's key and its wake-up time."""
    return f"{workload}-{time_ps('wakeup', options.wakeup_time if wakeup is None else wakeup)}"


def check_journal(options: EidolonOptions) -> None:
    """Raise InputError for options that a key cannot distinguish."""
    if options.source not in ("wakeup", "distribution", "symmetric"):
        raise InputError(f"a journal keeps no runs with {options.source}, which it could not tell from others")


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    if not path.is_file():
        raise SpecError("cannot be read: it is not a regular file", file=path)
    try:
        with path.open("rb") as file:
            lines = read_at_most(file, MAX_BYTES).split(b"\n")
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", file=path) from None
    return dict(filter(None, map(_run, lines)))


def _run(line: bytes) -> tuple[str, Row] | None:
    """Return the key and row of a line, or None if :meth:`Journal.add` did not write it."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"key", "sum", "row"} or not isinstance(data["key"], str):
        return None
    row = data["row"]
    is_whole = isinstance(row, dict) and _sum(json.dumps(row, separators=(",", ":"))) == data["sum"]
    return (data["key"], row) if is_whole else None


#: A wake-up time; None: the options' value.
Wakeup = str | int | None
#: Called with (work done, total work, simulated ps of the last run).
OnRun = Callable[[int, int, int], None]


@dataclass(slots=True, eq=False)
class Runs:
    """Runs of workloads by wake-up times. rows: for each workload, its finished runs.

    ways: number of consecutive workloads that differ only in how they wait; each such group gets a fit, named by
    ``fit_names``. journal: storage of finished runs.
    """

    workloads: Sequence[EidolonOptions]
    wakeups: Sequence[Wakeup]
    ways: int
    fit_names: Sequence[str]
    progress: OnRun | None = None
    journal: Journal | None = None
    rows: list[list[dict[str, Any]]] = field(init=False)
    fits: dict[int, Fit] = field(default_factory=dict)
    done: int = 0
    _groups: dict[int, dict[int, Prepared]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _stop: Event = field(default_factory=Event)
    _control: Control | None = None

    def __post_init__(self) -> None:
        self.rows = [[] for _ in self.workloads]

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def total(self) -> int:
        """Total work."""
        return sum(weight(each) for each in self.workloads) * len(self.wakeups)

    def run(self, jobs: int) -> None:
        """Run all workloads, ``jobs`` at a time, until Ctrl-C. Raises the error of the first failed workload."""
        numbers = range(len(self.workloads))
        self._control = current_observer().control
        if min(jobs, len(numbers)) == 1:
            for number in numbers:
                self._run(number)
            return
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in [pool.submit(self._run, number) for number in numbers]:
                    future.result()
            except BaseException as error:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def _run(self, number: int) -> None:
        try:
            if not self.stopped:
                self._run_way(number)
        except KeyboardInterrupt:
            self._stop.set()

    def _run_way(self, number: int) -> None:
        options = self.workloads[number]
        prepared = Prepared(options)
        key = "" if self.journal is None else workload_key(options, prepared.work)
        for wakeup in self.wakeups:
            self._tell(f"workload {number + 1} of {len(self.workloads)}")
            row = self._row(prepared, wakeup, key)
            self._tell("")
            self.rows[number].append(row)
            with self._lock:
                self.done += weight(options)
                if self.progress is not None:
                    self.progress(self.done, self.total, round(float(row["time_s"]) * PS_PER_S))
        with self._lock:
            group = self._groups.setdefault(number // self.ways, {})
            group[number] = prepared
            is_whole = len(group) == self.ways
        if is_whole:
            self._fit(number // self.ways, self._groups.pop(number // self.ways))

    def _tell(self, what: str) -> None:
        """Tell the live page what this thread does."""
        if self._control is not None:
            self._control.work(get_ident(), what)

    def _row(self, prepared: Prepared, wakeup: Wakeup, workload: str) -> dict[str, Any]:
        """Return a run's row from the journal, or run it now."""
        if self.journal is None:
            return row_of(self._result(prepared, wakeup))
        key = run_key(workload, prepared.options, wakeup)
        row = self.journal.row(key)
        if row is None:
            row = row_of(self._result(prepared, wakeup))
            self.journal.add(key, row)
        return row

    def _result(self, prepared: Prepared, wakeup: Wakeup) -> EidolonResult:
        with observing(progress=self._check_stop, on_compile=ignore):  # sweep has announced the compilation
            result = prepared.run(wakeup=wakeup)
        if not result.finished:
            raise KeyboardInterrupt
        return result

    def _check_stop(self, *_: int) -> None:
        """Stop this thread after Ctrl-C, which reaches only the main thread. Called a few times per second."""
        if self.stopped:
            raise KeyboardInterrupt

    def _fit(self, number: int, group: Mapping[int, Prepared]) -> None:
        """Fit the growth of a spinning workload's flag reads with the wake-up time, if wake-up times vary."""
        ways = {prepared.work.way: workload for workload, prepared in group.items()}
        spin, mwait = ways.get(SPIN), ways.get(MWAIT)
        if spin is None or len(self.wakeups) < 2:
            return
        times = [time_ps("wakeup", wakeup) for wakeup in self.wakeups if wakeup is not None]
        reads = [row["flag_reads"] for row in self.rows[spin]]
        if mwait is None:
            mwait_reads = None
        else:
            mwait_reads = [row["flag_reads"] for row in self.rows[mwait]]
        both_reads = None if mwait is None else (self._reads(group[spin]), self._reads(group[mwait]))
        self.fits[number] = fit(
            self.fit_names[number],
            times,
            reads,
            self.rows[spin][0]["spin_reads_per_s"],
            mwait_reads,
            both_reads,
        )

    def _reads(self, prepared: Prepared) -> Callable[[int], int]:
        return lambda wakeup_ps: self._result(prepared, wakeup_ps).flag_reads


def weight(options: EidolonOptions) -> int:
    """Return the approximate work of a run: elements of the matrix and of its peers' partial results."""
    rows = options.rows or 1024
    return rows * ((options.cols or 1024) * (options.inner or 1) + 4 * (options.peers or 3))


def row_of(result: EidolonResult) -> dict[str, Any]:
    """Return a run as a row (docs/reference/eidolon-json.md)."""
    document: dict[str, Any] = result.document()
    options, numbers = document["options"], result.numbers()
    varied = {name: options.get(name) for name in ("rows", "cols", "inner", "peers", "issue_seed", "sync", "wakeup_s")}
    shown = {key: value for key, value in numbers.items() if key not in ("writes_late", "waits_from_s")}
    return {
        "kernel": document["kernel"],
        **varied,
        **shown,
        "events": document["simulator"]["events"],
        "wall_s": document["simulator"]["wall_s"],
    }
