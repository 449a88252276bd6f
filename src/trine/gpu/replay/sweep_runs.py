"""The runs of a sweep as points of an experiment: each point's options, its row, and the fit of each group.

Runs share one process: the compiled loop releases the GIL, and all wake-up times of a workload begin from one state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, get_ident
from typing import Any, NamedTuple

from trine.common.observer import Control, current_observer, ignore, observing
from trine.common.units import PS_PER_S, format_time
from trine.experiments.spec import ExperimentSpec, Settings
from trine.gpu.model.options import MWAIT, SPIN
from trine.gpu.replay.options import EidolonOptions, time_ps
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.sweep_fits import Fit, fit
from trine.gpu.replay.traffic import counts_from_wait
from trine.results.report import Row

#: Called with (work done, total work, simulated ps of the last run).
OnRun = Callable[[int, int, int], None]
#: Wait methods that each option applies to; in a grid, the other methods run without the option.
WAYS_OF_OPTION = {
    "poll": ("spin", "mwait"), "sleep": ("sleep",), "monitor_capacity": ("mwait",), "monitor_wakeup": ("mwait",),
}  # fmt: skip


class EarlierRunFailedError(Exception):
    """A point that is not run, because a point before it has failed."""


class RunPlace(NamedTuple):
    """Where a point lies: its workload, and the group of workloads that differ only in the way they wait."""

    workload: int
    group: int


@dataclass(slots=True, eq=False)
class _Workload:
    """A workload that is prepared once, for its first point."""

    lock: Lock = field(default_factory=Lock)
    prepared: Prepared | None = None


@dataclass(slots=True, eq=False)
class SweepRuns:
    """Answers of a sweep's points; :meth:`answer` is called from several threads.

    spec: the experiment, whose fields are options of ``base``; a wake-up time varies fastest. rows: by point. fits: by
    group, once all of its rows are there. errors: of failed points. stop: set to end all runs early. done: work done;
    last_ps: simulated time of the last run.
    """

    base: EidolonOptions
    spec: ExperimentSpec
    stop: Event = field(default_factory=Event)
    rows: dict[int, Row] = field(default_factory=dict)
    fits: dict[int, Fit] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    done: int = 0
    last_ps: int = 0
    _point_of: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _workloads: dict[int, _Workload] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _control: Control | None = None

    def __post_init__(self) -> None:
        self._control = current_observer().control  # threads that answer points have no observer
        for point in range(self.spec.size):
            self._point_of[tuple(self.spec.fields_of(point).values())] = point

    @property
    def wakeups(self) -> Sequence[Any]:
        """The wake-up times that vary; empty if none do."""
        return self.spec.grid.get("wakeup", ())

    @property
    def total(self) -> int:
        """Total work."""
        return sum(self._weight(point) for point in range(self.spec.size))

    def options_of(self, point: int) -> EidolonOptions:
        """Return the options of a point's workload, without its wake-up time. Raises InputError as the options do."""
        fields = self.spec.fields_of(point)
        fields.pop("wakeup", None)
        options = replace(self.base, **fields)
        idle: dict[str, Any] = {}
        for name, ways in WAYS_OF_OPTION.items():
            if options.sync is not None and options.sync not in ways:
                idle[name] = None
        return replace(options, **idle)

    def place_of(self, point: int) -> RunPlace:
        """Return a point's workload and group."""
        workload = point // max(1, len(self.wakeups))
        return RunPlace(workload, workload // max(1, len(self.spec.grid.get("sync", ()))))

    def take(self, rows: Mapping[int, Row]) -> None:
        """Take the rows of an earlier sweep."""
        for point, row in rows.items():
            self.rows[point] = row
            self.done += self._weight(point)

    def answer(self, _command: str, settings: Settings) -> Row:
        """Return the row of a point: the question of the experiment.

        Raises the error of a wrong run, and KeyboardInterrupt after :attr:`stop`.
        """
        point = self._point_of[tuple(settings[name] for name in self.spec.vary)]
        if self.errors and point > min(self.errors):
            raise EarlierRunFailedError
        try:
            row = self._row(point)
        except Exception as error:
            self.errors[point] = error
            raise
        group = self.place_of(point).group
        with self._lock:
            self.rows[point] = row
            self.done += self._weight(point)
            self.last_ps = round(float(str(row["time_s"])) * PS_PER_S)
            is_whole = self._is_whole(group)
        if is_whole:
            self.fit_group(group)
        return row

    def fit_missing(self) -> None:
        """Fit the groups whose rows all come from an earlier sweep."""
        for group in range(self._num_groups):
            if group not in self.fits and self._is_whole(group):
                self.fit_group(group)

    def fit_group(self, group: int) -> None:
        """Fit the growth of a spinning workload's flag reads with the wake-up time, if wake-up times vary."""
        by_way = {}
        for workload in self._workloads_of(group):
            points = self._points_of(workload)
            prepared = self._prepared(points[0])
            by_way[prepared.work.way] = (prepared, [self.rows[point] for point in points])
        if SPIN in by_way and len(self.wakeups) > 1:
            self.fits[group] = self._fit(group, by_way)
        for workload in self._workloads_of(group):
            self._workloads.pop(workload, None)

    def _fit(self, group: int, by_way: Mapping[str, tuple[Prepared, list[Row]]]) -> Fit:
        spin, spin_rows = by_way[SPIN]
        mwait_reads: Any = None
        both_reads = None
        if MWAIT in by_way:
            mwait, mwait_rows = by_way[MWAIT]
            mwait_reads = [row["flag_reads"] for row in mwait_rows]
            both_reads = (self._reads(spin), self._reads(mwait))
        times = [time_ps("wakeup", wakeup) for wakeup in self.wakeups]
        spin_reads: Any = [row["flag_reads"] for row in spin_rows]
        expected: Any = spin_rows[0]["spin_reads_per_s"]
        return fit(self._name_of(group), times, spin_reads, expected, mwait_reads, both_reads)

    def _row(self, point: int) -> Row:
        self._tell(self._words(point))
        prepared = self._prepared(point)
        row = row_of(self._result(prepared, self.spec.fields_of(point).get("wakeup")))
        self._tell("")
        return row

    def _words(self, point: int) -> str:
        """Return the number of a run and its options, for the live page; the wake-up time with its unit."""
        values = []
        for name, value in self.spec.fields_of(point).items():
            is_time = name == "wakeup" and isinstance(value, int)
            values.append(f"{name} {format_time(value) if is_time else value}")
        return f"run {point + 1} of {self.spec.size}: {', '.join(values)}"

    def _tell(self, what: str) -> None:
        """Tell the live page what this thread does."""
        if self._control is not None:
            self._control.work(get_ident(), what)

    def _prepared(self, point: int) -> Prepared:
        """Return the point's workload, prepared by the first thread that needs it."""
        with self._lock:
            workload = self._workloads.setdefault(self.place_of(point).workload, _Workload())
        with workload.lock:
            if workload.prepared is None:
                workload.prepared = Prepared(self.options_of(point))
                self._wait(workload.prepared)
            return workload.prepared

    def _wait(self, prepared: Prepared) -> None:
        """Run a workload until it waits, before threads share it."""
        if counts_from_wait(prepared.options):
            with self._unseen():
                prepared.waiting()

    def _result(self, prepared: Prepared, wakeup: str | int | None) -> EidolonResult:
        with self._unseen():
            result = prepared.run(wakeup=wakeup)
        if not result.finished:
            raise KeyboardInterrupt
        return result

    def _unseen(self) -> Any:
        """Return a context of runs that end after :attr:`stop`; the sweep has announced the compilation."""
        return observing(progress=self._check_stop, on_compile=ignore)

    def _check_stop(self, *_: int) -> None:
        """End this thread's run after Ctrl-C, which reaches only the main thread. Called a few times per second."""
        if self.stop.is_set():
            raise KeyboardInterrupt

    def _reads(self, prepared: Prepared) -> Callable[[int], int]:
        return lambda wakeup_ps: self._result(prepared, wakeup_ps).flag_reads

    def _weight(self, point: int) -> int:
        """Return the approximate work of a run: elements of the matrix and of its peers' partial results."""
        fields = self.spec.fields_of(point)
        rows = fields.get("rows", self.base.rows) or 1024
        cols = fields.get("cols", self.base.cols) or 1024
        peers = fields.get("peers", self.base.peers) or 3
        return rows * (cols * (self.base.inner or 1) + 4 * peers)

    @property
    def _num_groups(self) -> int:
        return self.place_of(self.spec.size - 1).group + 1

    def _workloads_of(self, group: int) -> range:
        ways = max(1, len(self.spec.grid.get("sync", ())))
        return range(group * ways, (group + 1) * ways)

    def _points_of(self, workload: int) -> range:
        count = max(1, len(self.wakeups))
        return range(workload * count, (workload + 1) * count)

    def _is_whole(self, group: int) -> bool:
        """Return whether a group has all of its rows."""
        for workload in self._workloads_of(group):
            for point in self._points_of(workload):
                if point not in self.rows:
                    return False
        return True

    def _name_of(self, group: int) -> str:
        """Return a group's name within the grid, from its varied options."""
        fields = self.spec.fields_of(self._points_of(self._workloads_of(group)[0])[0])
        texts = []
        for name, values in self.spec.grid.items():
            if name not in ("wakeup", "sync") and len(values) > 1:
                texts.append(value_text(name, fields[name]))
        return ", ".join(texts)


def row_of(result: EidolonResult) -> Row:
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


def value_text(key: str, value: object) -> str:
    """Return the value of a varied option, or of a column, as words."""
    if key == "issue_seed":
        return f"issue seed {value}"
    return f"{value} {'us wake-up' if key == 'wakeup_s' else key}"
