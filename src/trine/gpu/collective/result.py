"""Results of a collective at load-store level, and at both levels side by side: tables, JSON and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from trine.cluster.cluster import Cluster
from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import format_size
from trine.common._version import __version__
from trine.common.evidence import Evidence
from trine.common.units import format_bytes, format_time
from trine.gpu.collective.runs import LoadStoreRow
from trine.gpu.collective.time_split import CUS, INSIDE, LATENCY, LAUNCH, LINKS, REQUESTS
from trine.gpu.model import GpuModel
from trine.gpu.results.result import GpuResult
from trine.results import text
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row, Table, Timeline

if TYPE_CHECKING:
    from trine.collectives.result import CollectiveResult

PART = Columns(
    Column(
        key="name", unit="text",
        meaning="`launch`, `latency`, `links`, `overlap`, `requests`, `CUs` or `inside` "
                "([meaning](../guides/levels.md#compare-the-two)).",
    ),
    Column(key="operator_us", unit="us", meaning="Time at the operator level.", null_if="the level lacks this part"),
    Column(
        key="loadstore_us", unit="us", null_if="the level lacks this part",
        meaning="Time at the load-store level.",
    ),
    Column(key="operator_why", unit="text", meaning="Explanation of the operator level's time."),
    Column(key="loadstore_why", unit="text", meaning="Explanation of the load-store level's time."),
)  # fmt: skip

LEVEL = Columns(
    Column(key="time_us", unit="us", meaning="Time."),
    Column(key="algorithm", unit="text", meaning="Algorithm."),
    Column(key="protocol", unit="text", meaning="Protocol."),
    Column(key="evidence", unit="text", meaning="Evidence."),
)  # fmt: skip

#: Minimum width of a program's name, and maximum width of an algorithm's.
_PROGRAM, _NAME = 18, 15
WORDS = {
    LAUNCH: "launch",
    LATENCY: "latency and synchronisation",
    LINKS: "bytes over links",
    "overlap": "latency and bytes on each other",
    REQUESTS: "limits on requests",
    CUS: "CUs: issue, additions",
    INSIDE: "inside: NoC, memory",
}


#: Part of the operator level's formula only: steps and bytes that delay each other, and times that never fall.
OVERLAP = "overlap"
#: All parts, in display order.
PARTS = (LAUNCH, LATENCY, LINKS, OVERLAP, REQUESTS, CUS, INSIDE)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _GroupReport(Report):
    """A report on one collective on one group, for several sizes. ``stopped``: by Ctrl-C, in or after the last row."""

    op: str
    cluster: Cluster
    group: tuple[int, ...]
    model: GpuModel
    notes: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def finished(self) -> bool:
        """True if all sizes ran to completion."""
        return not self.stopped


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadStoreCollectiveResult(_GroupReport):
    """Times of one collective on one group, one row per size."""

    SCHEMA: ClassVar[str] = "loadstore-collective"

    rows: tuple[LoadStoreRow, ...]

    @property
    def result(self) -> GpuResult:
        """The complete result for the last size."""
        result = self.rows[-1].result
        assert result is not None
        return result

    @property
    def times_ps(self) -> tuple[int, ...]:
        """The time of each row."""
        return tuple(row.time.time_ps for row in self.rows)

    @property
    def headline(self) -> str:
        """The collective, its cluster, and the time of its last size."""
        last = self.rows[-1].time
        return (
            f"{self.op} of {len(self.group):,} {self.model.name} on {self.cluster.name}, load by load: "
            f"{format_bytes(last.size_bytes)} in {format_time(last.time_ps)} ({last.algorithm})"
            + ("" if self.finished else ", stopped")
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self.result.evidence

    def summary(self) -> str:
        """Return one line per size; for a single size also the bottleneck."""
        decides = text.wrapped("bottleneck", self.result.bottleneck.sentence) if len(self.rows) == 1 else []
        lines = [self._table(self.notes), *decides, "next: --details; --perfetto FILE; trine help inside-the-gpu"]
        from trine.gpu.results.summary import use_vendor_terms

        return use_vendor_terms("\n".join(lines), self.model.name)

    def details(self) -> str:
        """Return a single size in full, or several sizes as a table."""
        from trine.gpu.results.summary import use_vendor_terms

        table = use_vendor_terms(self.table(), self.model.name)
        return table if len(self.rows) > 1 else f"{table}\n\n{self.result.details()}"

    def document(self) -> Row:
        """Return the result's keys (docs/reference/loadstore-json.md)."""
        rows = [row_json(row) for row in self.rows]
        single_run = self.result.document() if len(self.rows) == 1 else None
        return {
            "trine_version": __version__,
            "fidelity": "loadstore",
            "op": self.op,
            "cluster": self.cluster.name,
            "gpu_model": self.model.name,
            "num_ranks": len(self.group),
            "finished": self.finished,
            "rows": rows,
            "notes": list(self.notes),
            "run": single_run,
        }

    def tables(self) -> dict[str, Table]:
        """Return ``rows``, one per size, and the tables of the last size."""
        return {"rows": [row_json(row) for row in self.rows], **self.result.tables()}

    def timeline(self) -> Timeline | None:
        """Return the timeline of the workgroups at the last size."""
        return self.result.timeline()

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``sizes`` (time and bus bandwidth) and ``noc`` (utilisation of a GPU's NoC at the last size)."""
        title = f"{self.op} of {len(self.group)} ranks, {self.cluster.name}"
        from trine.collectives.picture import draw_sizes

        return {"sizes": partial(draw_sizes, [row.time for row in self.rows], title), **self.result.pictures()}

    def table(self) -> str:
        """Return one line per size: time, bandwidths, program, bottleneck."""
        return self._table(_notes(self))

    def _table(self, notes: Sequence[str]) -> str:
        model, unroll = self.model, self.model.unroll
        width = max(_PROGRAM, *(len(row.time.algorithm) for row in self.rows))
        lines = [
            f"# {self.op} of {len(self.group)} ranks on {self.cluster.name}; load by load, store by store",
            f"# GPU {model.name}: unroll {unroll}, {model.max_outstanding} requests a CU, "
            f"ports {model.ports.arbitration}",
            f"# {'size':>12} {'time':>11} {'algbw':>8} {'busbw':>8}  {'program':{width}} {'protocol':8} "
            f"{'groups':>6}  decides",
            f"# {'(B)':>12} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}",
        ]
        lines += [_row(row, width) for row in self.rows]
        for note in (*_choices(self), *notes):
            lines += textwrap.wrap(note, text.width(), initial_indent="# ", subsequent_indent="#   ")
        return "\n".join(lines)


def _row(row: LoadStoreRow, width: int) -> str:
    time = row.time
    bandwidths = (time.algbw_bytes_per_s, time.busbw_bytes_per_s)
    rates = []
    for rate in bandwidths:
        rates.append(f"{rate / 1e9:8.2f}" if row.finished else f"{'-':>8}")
    ending = _decides(row) if row.finished else "PARTIAL: stopped then"
    return (
        f"  {time.size_bytes:>12} {time.time_ps / 1e6:>11.2f} {rates[0]} {rates[1]}  {time.algorithm:{width}} "
        f"{time.protocol:8} {time.channels:>6}  {ending}"
    )


def _decides(row: LoadStoreRow) -> str:
    bottleneck = row.bottleneck
    return f"{bottleneck.name or bottleneck.what} {100 * bottleneck.share:.0f} %"


def _notes(answer: LoadStoreCollectiveResult) -> list[str]:
    """Return the notes; for a single size, only those that its full result does not repeat."""
    if len(answer.rows) > 1:
        return list(answer.notes)
    result_notes = (*answer.result.program.notes, *answer.result.notes)
    return [note for note in answer.notes if note not in result_notes]


def _choices(answer: LoadStoreCollectiveResult) -> list[str]:
    """Return a line with the times of all simulated algorithms, for the last size with a choice."""
    for row in reversed(answer.rows):
        times = [f"{name} {format_time(ps)}" for name, ps in row.tried if ps is not None]
        if len(times) > 1:
            return [f"the fastest simulated one; at {row.time.size_bytes} B: {', '.join(times)}"]
    return []


def row_json(row: LoadStoreRow) -> Row:
    """Return one row: times in us, bandwidths in GB/s (decimal), as in ``trine collective``."""
    rates = to_row(row.time, "algbw_GBps", "busbw_GBps")
    bus_rates = rates if row.finished else dict.fromkeys(rates)
    tried = []
    for name, ps in row.tried:
        tried.append({"algorithm": name, "time_us": None if ps is None else ps / 1e6})
    return {
        **to_row(row.time, "size_bytes", "time_us"),
        **bus_rates,
        **to_row(row.time, "algorithm", "protocol"),
        "workgroups": row.time.channels,
        "evidence": row.time.evidence,
        "finished": row.finished,
        "bottleneck": to_row(row.bottleneck),
        "tried": tried,
        "gpus_simulated": row.simulated,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelPart:
    """One part of the time at both levels, ps; None: the level lacks this part. why: an explanation for each level."""

    name: str
    operator_ps: int | None
    loadstore_ps: int | None
    operator_why: str = ""
    loadstore_why: str = ""

    @property
    def difference_ps(self) -> int:
        """Load-store time minus operator time."""
        return (self.loadstore_ps or 0) - (self.operator_ps or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One size. The parts of each level sum to its time; empty if Ctrl-C came before they were known.

    finished: False if the load-store run itself was stopped; its time is then the time of the stop.
    """

    operator: CollectiveTime
    loadstore: CollectiveTime
    parts: tuple[LevelPart, ...]
    finished: bool

    @property
    def size_bytes(self) -> int:
        return self.operator.size_bytes

    @property
    def ratio(self) -> float | None:
        """Load-store / operator."""
        return self.loadstore.time_ps / self.operator.time_ps if self.finished and self.operator.time_ps else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FidelityResult(_GroupReport):
    """The results of both levels, one row per size. ``answer``: the operator level's complete result."""

    SCHEMA: ClassVar[str] = "fidelity"

    rows: tuple[ComparedRow, ...]
    answer: CollectiveResult

    @property
    def headline(self) -> str:
        """The collective, its cluster, and both times of the last size."""
        last = self.rows[-1]
        return (
            f"{self.op} of {len(self.group):,} ranks on {self.cluster.name}, {format_bytes(last.size_bytes)}: operator "
            f"level {format_time(last.operator.time_ps)}, load-store level {format_time(last.loadstore.time_ps)}"
            + ("" if self.finished else ", stopped")
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self.answer.evidence

    def details(self) -> str:
        """Return both times of each size, and their parts."""
        from trine.gpu.results.summary import use_vendor_terms

        return use_vendor_terms(self.table(), self.model.name)

    def document(self) -> Row:
        """Return the result's keys (docs/reference/loadstore-json.md)."""
        return {
            "trine_version": __version__,
            "fidelity": "both",
            "op": self.op,
            "cluster": self.cluster.name,
            "gpu_model": self.model.name,
            "num_ranks": len(self.group),
            "network": self.answer.network,
            "library": self.answer.library,
            "finished": self.finished,
            "rows": self._rows(),
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        """Return ``rows``, one per size, and ``parts``, one per size and part of the time."""
        sizes = []
        for one in self._rows():
            sizes.append({key: value for key, value in one.items() if key != "parts"})
        parts = [{"size_bytes": one.size_bytes, **PART.row(part)} for one in self.rows for part in one.parts]
        return {"rows": sizes, "parts": parts}

    def _rows(self) -> list[Row]:
        return [
            {
                "size_bytes": one.size_bytes,
                "operator": LEVEL.row(one.operator),
                "loadstore": LEVEL.row(one.loadstore),
                **to_row(one, "ratio", "finished"),
                "parts": PART.rows(one.parts),
            }
            for one in self.rows
        ]

    def table(self) -> str:
        """Return both times of each size, and their parts, as text."""
        answer = self.answer
        method = f"links shared {answer.network}" if answer.network else f"{answer.library} {answer.version}"
        lines = [
            f"# {self.op} of {len(self.group)} ranks on {self.cluster.name}",
            f"# operator: {method}, launch {answer.launch}; load-store: GPU {self.model.name}",
            f"# {'size':>6} {'operator':>11} {'':22} {'load-store':>11} {'':22} {'ratio':>6}",
            f"# {'':>6} {'(us)':>11} {'':22} {'(us)':>11}",
        ]
        lines += [_level_line(row) for row in self.rows]
        for row in self.rows:
            lines += ["", *_parts(row)]
        for note in self.notes:
            words = note if note.startswith(("operator: ", "load-store: ")) else f"operator: {note}"
            lines += textwrap.wrap(words, text.width(), initial_indent="# ", subsequent_indent="#   ")
        return "\n".join(lines)


def _level_line(row: ComparedRow) -> str:
    ratio = "PARTIAL" if row.ratio is None else f"{row.ratio:.2f}"
    return (
        f"  {format_size(row.size_bytes):>6} {row.operator.time_ps / 1e6:>11.2f} {_algorithm_text(row.operator):22} "
        f"{row.loadstore.time_ps / 1e6:>11.2f} {_algorithm_text(row.loadstore):22} {ratio:>6}"
    )


def _algorithm_text(time: CollectiveTime) -> str:
    name = time.algorithm if len(time.algorithm) <= _NAME else f"{time.algorithm[: _NAME - 3]}..."
    return f"{name}/{time.protocol}"


def _parts(row: ComparedRow) -> list[str]:
    size = format_size(row.size_bytes)
    if not row.finished:
        return [f"{size}: PARTIAL: the load-store run was stopped at {format_time(row.loadstore.time_ps)}"]
    if not row.parts:
        return [f"{size}: PARTIAL: stopped before the parts of the times were known"]
    lines = [f"{size:32} {'operator':>11} {'load-store':>11} {'difference':>11}"]
    for part in row.parts:
        if part.operator_ps or part.loadstore_ps:
            lines.append(_part(part))
    total = row.loadstore.time_ps - row.operator.time_ps
    times = f"{format_time(row.operator.time_ps):>11} {format_time(row.loadstore.time_ps):>11}"
    lines.append(f"  {'all':30} {times} {_signed(total):>11}")
    largest = max(row.parts, key=lambda part: abs(part.difference_ps))
    title = WORDS[largest.name]
    lines += textwrap.wrap(
        f"most of the difference: {title}. {_why(largest)}", text.width(), initial_indent="  ", subsequent_indent="    "
    )
    return lines


def _part(part: LevelPart) -> str:
    times = []
    for ps in (part.operator_ps, part.loadstore_ps):
        times.append("-" if ps is None else format_time(ps) if ps >= 0 else _signed(ps))
    return f"  {WORDS[part.name]:30} {times[0]:>11} {times[1]:>11} {_signed(part.difference_ps):>11}"


def _why(part: LevelPart) -> str:
    whys = (
        ("operator", part.operator_why or "does not know it"),
        ("load-store", part.loadstore_why or "does not know it"),
    )
    return "; ".join(f"{level}: {why}" for level, why in whys)


def _signed(ps: int) -> str:
    if ps > 0:
        sign = "+"
    elif ps < 0:
        sign = "-"
    else:
        sign = ""
    return f"{sign}{format_time(abs(ps))}"
