"""The answer of a replay: the waiting time on the one simulated GPU, and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from trine.common._version import __version__
from trine.common.evidence import Evidence, count_kinds
from trine.common.units import PS_PER_S, format_time
from trine.gpu.model.derived import flag_read_ps
from trine.gpu.peers import IDEAL, Arrivals
from trine.gpu.program import ACQUIRE
from trine.gpu.records import SEMAPHORE
from trine.gpu.replay.case import ReplayCase
from trine.gpu.replay.options import WAIT, EidolonOptions
from trine.gpu.replay.plot import draw_waiting, with_writes
from trine.gpu.replay.traffic import PeerTraffic
from trine.gpu.results import document as gpu_document
from trine.gpu.results.load_store_columns import KIND, LINK
from trine.gpu.results.result import GpuResult
from trine.gpu.results.run import percentages, state_times
from trine.gpu.results.summary import state_listing, use_vendor_terms
from trine.gpu.run import GpuRun
from trine.results.columns import to_row
from trine.results.report import Report, Row, Table, Timeline, evidence_rows, seconds
from trine.results.screen import Screen
from trine.results.text import wrapped

_PEERS = "peers' other work, and their waiting for the target"
_LABEL = 26
_IDEAL = "links and ports between the peers and the target's memory (--fabric modelled)"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EidolonResult(Report):
    """Result of a replay. inside: the simulated GPU at the load-store level. end_ps: end of its last kernel.

    wall_s: total wall time, engine_s: the simulation's part; both include a prefix shared with other runs, if any.
    """

    SCHEMA: ClassVar[str] = "eidolon"

    options: EidolonOptions
    work: ReplayCase
    incoming: PeerTraffic
    inside: GpuResult
    end_ps: int
    wall_s: float
    engine_s: float

    @staticmethod
    def of(
        options: EidolonOptions, work: ReplayCase, incoming: PeerTraffic, run: GpuRun, *, wall_s: float, engine_s: float
    ) -> EidolonResult:
        """Wrap a run."""
        inside = GpuResult(
            program=work.program, model=work.model, cluster=work.cluster, group=work.group, records=run.gpu,
            finished=run.finished, wall_s=engine_s, notes=(*work.warnings, *incoming.warnings),
        )  # fmt: skip
        return EidolonResult(
            options=options, work=work, incoming=incoming, inside=inside, end_ps=run.end_ps, wall_s=wall_s,
            engine_s=engine_s,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        return self.inside.finished

    @property
    def time_s(self) -> float:
        """Time from the start to the end of the last kernel."""
        return self.end_ps / PS_PER_S

    # Reads and writes

    @property
    def flag_reads(self) -> int:
        """Number of acquires and flagged loads; each repetition counts."""
        return self.inside.gpus[0].flag_reads

    @property
    def non_flag_reads(self) -> int:
        """Number of all other loads, in lines."""
        return self.inside.gpus[0].non_flag_reads

    @property
    def writes_delivered(self) -> int:
        """Number of peers' writes, data and flags, up to the end of the last kernel."""
        return int(np.count_nonzero(self.incoming.time_ps <= self.end_ps))

    @property
    def writes_late(self) -> int:
        """Number of peers' writes that arrive after the end of the last kernel."""
        return len(self.incoming.time_ps) - self.writes_delivered

    # Waiting

    @cached_property
    def waiting_wavefronts(self) -> int:
        """Number of wavefronts that acquire: the first of each workgroup with an acquire."""
        return len(self.work.waiting_workgroups)

    @cached_property
    def wait_total_ps(self) -> int:
        """Time at acquires and flagged loads, summed over all wavefronts."""
        return int(self.inside.records.state_ps[:, :, SEMAPHORE].sum())

    @property
    def wait_ps(self) -> int | None:
        """Mean wait of the waiting wavefronts; None if no wavefront acquires."""
        return self.wait_total_ps // self.waiting_wavefronts if self.waiting_wavefronts else None

    @cached_property
    def waits_from_ps(self) -> int | None:
        """Time at which the last workgroup began to wait; None if one never did."""
        start = self.acquires_ps[:, 0]
        return int(start.max()) if len(start) and (start >= 0).all() else None

    @cached_property
    def acquires_ps(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """int64[waiting wavefronts, 2]: start of the first acquire, end of the last; -1: never."""
        operations, program, records = self.inside.shown, self.work.program, self.inside.records
        rows = np.flatnonzero(program.op_kind[operations.op] == ACQUIRE)
        if not len(rows):
            return np.zeros((0, 2), np.int64)
        is_first = np.append(True, np.diff(operations.op_row[rows]) != 0)
        is_last = np.append(is_first[1:], True)
        return np.stack([records.op_start_ps[rows[is_first]], records.op_end_ps[rows[is_last]]], axis=1)

    @cached_property
    def waits_ended_ps(self) -> dict[int, int]:
        """Rank -> time at acquires that it ended, over all wavefronts: its write was the last before the acquire ended.

        The target's own rank if no peer had written to that semaphore before.
        """
        program, outside, rows = self.work.program, self.incoming.outside, self.inside.shown
        records, flags = self.inside.records, np.flatnonzero(outside.semaphore >= 0)
        peer = outside.rank if isinstance(outside, Arrivals) else outside.peer
        order = flags[np.lexsort((outside.time_ps[flags], outside.semaphore[flags]))]
        waits = np.flatnonzero((program.op_kind[rows.op] == ACQUIRE) & (records.op_end_ps >= 0))
        semaphores = program.operand_semaphore[program.operand_ptr[rows.op[waits]]]
        waits_by_rank: dict[int, int] = {}
        for semaphore in np.unique(semaphores).tolist():
            ops = waits[semaphores == semaphore]
            low, high = np.searchsorted(outside.semaphore[order], (semaphore, semaphore + 1))
            latest = low + np.searchsorted(outside.time_ps[order[low:high]], records.op_end_ps[ops], "right") - 1
            ranks = np.where(latest >= low, peer[order[np.maximum(latest, 0)]] if len(order) else -1, self.work.target)
            for rank, ps in zip(ranks.tolist(), (records.op_end_ps - records.op_start_ps)[ops].tolist(), strict=True):
                waits_by_rank[rank] = waits_by_rank.get(rank, 0) + ps
        return dict(sorted(waits_by_rank.items()))

    @cached_property
    def polling_interval_ps(self) -> int | None:
        """Uncontended time between two reads of a spinning wavefront; None if the memory answers instead."""
        model = self.work.model
        if model.poll_ps is None:
            return None
        return model.poll_ps + model.poll_turn_ps + flag_read_ps(model, uncached=self._flags_are_uncached)

    @property
    def spin_reads_per_s(self) -> float | None:
        """Flag-read rate of all waiting wavefronts while they spin: the slope of flag reads over wake-up time."""
        interval = self.polling_interval_ps
        return None if not interval else self.waiting_wavefronts * PS_PER_S / interval

    @property
    def _flags_are_uncached(self) -> bool:
        program = self.work.program
        spans = [(b.base, b.base + b.size_bytes) for b in program.buffers if b.uncached]
        operands = program.operand_ptr[:-1][program.op_kind == ACQUIRE]
        address = program.operand_address[operands]
        are_inside = all(any(low <= one < high for low, high in spans) for one in np.unique(address).tolist())
        return bool(are_inside)

    # How it is known

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Sources of the model's and the cluster's numbers and of the peers' writes."""
        detail = self.incoming.origin
        if self.incoming.fabric == IDEAL:
            detail += "; fabric not simulated (--fabric modelled)"
        return (Evidence("writes of peers", self.incoming.evidence, detail), *self.inside.evidence)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Effects that the replay omits, and those that the load-store level omits; only the latter without peers."""
        ideal = (_IDEAL,) if self.incoming.fabric == IDEAL else ()
        peers = (_PEERS,) if self.inside.num_replayed else ()
        return (*peers, *ideal, *self.inside.not_modelled)

    @property
    def warnings(self) -> tuple[str, ...]:
        late = self.writes_late
        notes = (f"{late:,} writes of peers come after the last kernel has ended",) if late and self.finished else ()
        expected = self.work.non_flag_reads
        mismatch: tuple[str, ...] = ()
        if expected is not None and self.finished and self.non_flag_reads != expected:
            mismatch = (
                f"{self.non_flag_reads:,} reads of data, and the data flow asks for {expected:,}: please report this",
            )
        return (*self.work.warnings, *self.incoming.warnings, *notes, *mismatch)

    # Views

    @property
    def headline(self) -> str:
        """Program, time and reads."""
        return (
            f"{self.work.program.name}: {format_time(self.end_ps)}, {self.flag_reads:,} flag reads, "
            f"{self.inside.left_out}" + ("" if self.finished else ", stopped")
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.warnings, *(f"not modelled: {text}" for text in self.not_modelled))

    def summary(self) -> str:
        """Return the answer on one screen."""
        return _screen(self).translated(partial(use_vendor_terms, gpu=self.work.model.name)).text()

    def details(self) -> str:
        """Return everything as text."""
        lines = (line.rstrip() for line in (*_head(self), *self.body()))
        return use_vendor_terms("\n".join(lines), self.work.model.name)

    def body(self) -> list[str]:
        """Return the summary's lines after the time: reads, waits, wavefront states, evidence."""
        blocks = (_reads(self), _waits(self), _wavefronts(self), _basis(self))
        return [line for block in blocks for line in block]

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/eidolon-json.md)."""
        inside, records = self.inside, self.inside.records
        return {
            "kernel": self.work.program.name,
            "finished": self.finished,
            **self.numbers(),
            "options": _options(self),
            "gpu_model": self.work.model.name,
            "cluster": self.work.cluster.name,
            "inside": {
                "gpu": gpu_document.gpu_rows(inside)[0],
                "bottleneck": to_row(inside.bottleneck),
                "resource_kinds": KIND.rows(inside.kinds),
                "links": LINK.rows(inside.links),
            },
            "evidence": evidence_rows(self.evidence),
            "not_modelled": list(self.not_modelled),
            "warnings": list(self.warnings),
            "simulator": {
                "name": "trine",
                "version": __version__,
                "engine": records.engine,
                "wall_s": self.wall_s,
                "events": records.num_events,
                "events_per_s": records.num_events / self.engine_s if self.engine_s else None,
            },
        }

    def numbers(self) -> Row:
        """Return time, reads, writes and waits by JSON key."""
        return {
            **to_row(self, "time_s", "flag_reads", "non_flag_reads"),
            "non_flag_reads_expected": self.work.non_flag_reads,
            **to_row(
                self, "writes_delivered", "writes_late", "wait_s", "wait_total_s", "waiting_wavefronts", "waits_from_s"
            ),
            **to_row(self.inside.gpus[0], "wakeups", "spurious_wakeups", "monitor_full"),
            **to_row(self, "polling_interval_s", "spin_reads_per_s"),
        }

    def tables(self) -> dict[str, Table]:
        """Return the tables of the simulated GPU."""
        return self.inside.tables()

    def timeline(self) -> Timeline | None:
        """Return the timeline of the target's workgroups and of the peers' writes."""
        timeline = self.inside.timeline()
        return None if timeline is None else with_writes(
            timeline, self.incoming.outside, self.work.model.line_bytes, self.inside.time_ps
        )  # fmt: skip

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``waiting``: waiting wavefronts and arriving writes over time; ``noc``: load of the target's NoC."""
        return {"waiting": self._draw_waiting, **self.inside.pictures()}

    def _draw_waiting(self) -> Any:
        title = f"{self.work.program.name}, {self.inside.left_out}, {self.work.way}"
        title = f"{title}: {format_time(self.end_ps)}, {self.flag_reads:,} flag reads"
        return draw_waiting(title, self.acquires_ps, self.incoming.time_ps, self.inside.time_ps)


def _screen(result: EidolonResult) -> Screen:
    """Return the question, time, reads and waits, wavefront states, and their basis."""
    writes, *machine = result.evidence
    stopped = "" if result.finished else "PARTIAL: stopped; counts are up to then"
    reads = (
        ("flag reads", f"{result.flag_reads:,}", f"{result.non_flag_reads:,} other reads"),
        ("peer writes", f"{result.writes_delivered:,}", f"{result.incoming.num_flags:,} of them set flags"),
    )
    wait = [] if result.wait_ps is None else [
        ("wait", format_time(result.wait_ps), f"mean of {result.waiting_wavefronts:,} wavefronts; {_way_words(result)}")
    ]  # fmt: skip
    return Screen(
        question=f"{result.work.program.name} on {result.work.model.name}: rank {result.work.target}, "
        f"{result.inside.left_out}; {'; '.join(result.work.program.notes)}".removesuffix("; "),
        numbers=[("time", format_time(result.end_ps), stopped), *reads, *wait],
        listings=(state_listing(result.inside),),
        warnings=result.warnings,
        closing=(
            ("bottleneck", result.inside.bottleneck.sentence),
            ("rests on", f"{writes.detail} ({writes.kind}); numbers of GPU and cluster: {count_kinds(machine)}"),
            ("next", "--details (polling, counters, evidence, effects left out); --plot FILE; trine help eidolons"),
        ),
    )


def _head(result: EidolonResult) -> list[str]:
    work = result.work
    lines = [
        f"{work.program.name}: rank {work.target} of {work.model.name}, {result.inside.left_out}",
        *(f"  {note}" for note in work.program.notes),
    ]
    if not result.finished:
        lines.append("PARTIAL: stopped; counts are up to then")
    return [*lines, _row("time", format_time(result.end_ps))]


def _reads(result: EidolonResult) -> list[str]:
    expected = result.work.non_flag_reads
    as_flow = "" if expected is None else f"lines; the data flow needs {expected:,}"
    late = f" ({result.writes_late:,} more came later)" if result.writes_late else ""
    return [
        _row("flag reads", f"{result.flag_reads:,}"),
        _row("non-flag reads", f"{result.non_flag_reads:,}", as_flow),
        _row("writes delivered", f"{result.writes_delivered:,}", f"{result.incoming.num_flags:,} of flags{late}"),
    ]


def _waits(result: EidolonResult) -> list[str]:
    if result.wait_ps is None:
        return [_row("waiting", "none", "no wavefront acquires")]
    gpu, waits = result.inside.gpus[0], result.waits_from_ps
    last_wait = "" if waits is None else f"; the last starts waiting at {format_time(waits)}"
    lines = [
        _row("waiting wavefronts", f"{result.waiting_wavefronts:,}", f"{_way_words(result)}{last_wait}"),
        _row("wait of each", format_time(result.wait_ps), f"mean; {format_time(result.wait_total_ps)} of all"),
    ]
    asleep = " and none sleeps" if result.work.model.monitor is not None else ""
    interval, rate = result.polling_interval_ps, result.spin_reads_per_s
    if interval is not None and rate is not None:
        lines.append(
            _row(
                "polling interval",
                format_time(interval),
                f"uncontended; {rate / 1e6:.4g} flag reads per us while all wait{asleep}",
            )
        )
    if result.work.model.monitor is not None:
        full = f"{gpu.monitor_full:,} acquires found the monitor full"
        lines.append(_row("wake-ups", f"{gpu.wakeups:,}", f"{gpu.spurious_wakeups:,} found too little; {full}"))
    return lines


def _way_words(result: EidolonResult) -> str:
    """Return the way wavefronts wait, with its numbers."""
    model = result.work.model
    if model.monitor is not None:
        room = f"capacity {model.monitor.capacity:,}"
        return f"mwait, {room}, wake-up {format_time(model.monitor.wakeup_ps)}"
    if model.poll_ps is None:
        return "the memory answers"
    return f"{result.work.way}, {format_time(model.poll_ps + model.poll_turn_ps)} between an answer and the next read"


def _wavefronts(result: EidolonResult) -> list[str]:
    times = state_times(result.inside)
    shares = zip(times, percentages(list(times.values())), strict=True)
    return [
        _row("wavefronts", ", ".join(f"{name} {share}" for name, share in shares)),
        *wrapped("bottleneck", result.inside.bottleneck.sentence),
    ]


def _basis(result: EidolonResult) -> list[str]:
    writes, *machine = result.evidence
    events = result.inside.records.num_events
    rate = f"{events / result.engine_s / 1e6:.2g} M events/s" if result.engine_s else ""
    wall = format_time(result.wall_s * 1e12)
    return [
        *wrapped("evidence", f"{writes.detail} ({writes.kind}); numbers of GPU and cluster: {count_kinds(machine)}"),
        *wrapped("not modelled", "; ".join(result.not_modelled)),
        *(line for text in result.warnings for line in wrapped("warning", text)),
        f"simulated {result.inside.simulated_gpus}, {events:,} events in {wall} ({rate}) by trine {__version__}",
    ]


def _options(result: EidolonResult) -> Row:
    """Return the request with its defaults filled in."""
    options, work, model = result.options, result.work, result.work.model
    built = None if work.built is None else work.built.options
    sizes = {} if built is None else to_row(built, "rows", "cols", "inner", "dtype_bytes")
    has_delay = options.source in ("wakeup", "distribution")
    monitor = model.monitor
    fused = options.fused if built is not None else None
    wakeup_s = seconds(options.delay.first_ps) if options.source == "wakeup" else None
    wakeup_from = (options.wakeup_from or WAIT) if has_delay else None
    poll_s = None if model.poll_ps is None else seconds(model.poll_ps + model.poll_turn_ps)
    monitor_row = None if monitor is None else {"capacity": monitor.capacity, "wakeup_s": seconds(monitor.wakeup_ps)}
    return {
        "peers": work.peers,
        "target": work.target,
        "fused": fused,
        **sizes,
        "writes_from": options.source,
        "writes_from_words": result.incoming.origin,
        "wakeup_s": wakeup_s,
        "wakeup_from": wakeup_from,
        "fabric": result.incoming.fabric,
        "sync": work.way,
        "poll_s": poll_s,
        "monitor": monitor_row,
        "issue_seed": model.issue_seed,
        "writes_begin_at_memory": result.incoming.fabric == IDEAL,
    }


def _row(label: str, value: str, comment: str = "") -> str:
    return f"{label:{_LABEL}}{value:>14}  {comment}" if len(value) <= 14 else f"{label:{_LABEL}}{value}  {comment}"
