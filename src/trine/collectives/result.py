"""Answer about a collective: one row for each size, as table, JSON and picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from trine.cluster.cluster import Cluster
from trine.cluster.uplinks import TierLoad
from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import format_size
from trine.common._version import __version__
from trine.common.evidence import Evidence
from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row, Table
from trine.results.text import columns, wrapped_at

PART = Columns(
    Column(
        key="name", unit="text",
        meaning="`launch`, `set-up`, `latency`, `bandwidth`, `ramp` or `level`; `all_reduce` alone if it is the "
                "bound; with `--network`, `launch` and `messages`.",
    ),
    Column(key="time_us", unit="us", meaning="Time."),
    Column(key="why", unit="text", meaning="Explanation of the time."),
)  # fmt: skip
#: Maximum number of links in an answer's JSON, the busiest first; ``links_left_out`` counts the others.
MAX_LINKS = 64
#: Maximum number of sizes in the text explanation; the JSON explains all.
MAX_EXPLAINED = 6
MAX_TEXT_TIERS = 6
#: Keys of a row: times in us, bandwidths in GB/s (decimal), as nccl-tests prints them; and of an alternative.
_CHOICE = "The library's choice, or the request; a plan's file name."
_RANGE = "Likely range: 80 % of measurements. Bare links: both equal `time_us`."
ROW = Columns(
    Column(key="size_bytes", unit="bytes", meaning="Requested size."),
    Column(
        key="sent_bytes", unit="bytes",
        meaning="Size rounded down to whole elements per rank, as in nccl-tests; bandwidths use this.",
    ),
    Column(key="time_us", unit="us", meaning="Time."),
    Column(key="algbw_GBps", unit="GB/s", meaning="Bandwidths of nccl-tests."),
    Column(key="busbw_GBps", unit="GB/s", meaning="Bandwidths of nccl-tests."),
    Column(key="algorithm", unit="text", meaning=_CHOICE),
    Column(key="protocol", unit="text", meaning=_CHOICE),
    Column(key="channels", unit="integer", meaning="Channels; 0 if not applicable."),
    Column(key="low_us", unit="us", meaning=_RANGE),
    Column(key="high_us", unit="us", meaning=_RANGE),
    Column(
        key="evidence", unit="text",
        meaning="`measured`, `interpolated`, `modelled` or `assumed` ([meaning](../background/collectives.md)).",
    ),
    Column(key="limit", unit="text", meaning="Limiting link, or empty."),
)  # fmt: skip
PAIR = Columns(
    Column(key="algorithm", unit="text", meaning="Name."),
    Column(key="protocol", unit="text", meaning="Name."),
    Column(key="time_us", unit="us", meaning="Its own time."),
)


@dataclass(frozen=True, kw_only=True, repr=False)
class CollectiveResult(Report):
    """Times of one collective on one group, one row for each size.

    ``network``: None for the library model, else the sharing model of the step-by-step simulation. ``alternatives``:
    per row, the library's other candidates, the fastest first. ``crossovers``: (from this many bytes on, algorithm,
    protocol). ``load``: bytes over each link at the last size, the busiest first; ``tiers``: the busiest link of each
    tier. ``notes``: assumptions and effects that are not modelled.
    """

    SCHEMA: ClassVar[str] = "collective"

    op: str
    cluster: Cluster
    group: tuple[int, ...]
    library: str
    version: str
    launch: str
    network: str | None
    rows: tuple[CollectiveTime, ...]
    alternatives: tuple[tuple[CollectiveTime, ...], ...] = ()
    crossovers: tuple[tuple[int, str, str], ...] = ()
    load: Mapping[str, int] = field(default_factory=dict)
    tiers: tuple[TierLoad, ...] = ()
    notes: tuple[str, ...] = ()
    num_domains: int = 1
    num_nodes: int = 1

    @property
    def times_ps(self) -> tuple[int, ...]:
        """The time of each row."""
        return tuple(row.time_ps for row in self.rows)

    @property
    def headline(self) -> str:
        """The collective, its group, and the time of its last size."""
        last = self.rows[-1]
        return (
            f"{self.op} of {len(self.group):,} ranks on {self.cluster.name}: {len(self.rows)} "
            f"size{'s' if len(self.rows) > 1 else ''}, {format_bytes(last.size_bytes)} in {format_time(last.time_ps)} "
            f"({last.algorithm}/{last.protocol}, {last.evidence})"
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence behind the times of the rows and the numbers of the cluster."""
        count = len(self.rows)
        kinds = [row.evidence for row in self.rows]
        times = (Evidence(f"{kinds.count(kind)} of {count} times", kind) for kind in dict.fromkeys(kinds))
        return (*times, Evidence(f"cluster {self.cluster.name}", self.cluster.evidence))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.cluster.sources.values())

    def summary(self) -> str:
        """Return one row per size: time with its likely range, bandwidth, choice and evidence; then notes."""
        nodes = f"{self.num_nodes} node{'s' if self.num_nodes > 1 else ''}"
        rows: list[tuple[str, ...]] = [
            ("size (B)", "time (us)", "low", "high", "algbw", "busbw (GB/s)", "choice", "chan", "evidence")
        ]
        for row in self.rows:
            rates = (f"{rate / 1e9:.2f}" for rate in (row.algbw_bytes_per_s, row.busbw_bytes_per_s))
            times = (_us(ps) for ps in (row.time_ps, row.low_ps, row.high_ps))
            choice = f"{row.algorithm}/{row.protocol}"
            rows.append((str(row.size_bytes), *times, *rates, choice, str(row.channels or "-"), row.evidence))
        lines = [
            *wrapped_at("", f"{self.op} of {len(self.group)} ranks on {nodes}, {self.cluster.name}; {self._mode()}", 0),
            "",
            *columns(rows, spare=(7, 4, 8, 6)),
            "",
            *(line for note in self.notes for line in wrapped_at("note", note, 7)),
        ]
        if self.tiers:
            top = max(self.tiers, key=lambda load: load.size_bytes / load.bytes_per_s)
            size = format_size(self.rows[-1].size_bytes)
            busiest = f"{top.link} carries {format_bytes(top.size_bytes)} of {size} ({top.tier})"
            lines += wrapped_at("link", f"{busiest}; {top.count:,} links in this tier", 7)
        return "\n".join([*lines, *wrapped_at("next", "--explain; --details; --plot FILE; trine help collectives", 7)])

    def _mode(self) -> str:
        mode = f"links shared {self.network}, step by step" if self.network else f"{self.library} {self.version}"
        return f"{mode}; launch {self.launch}"

    def details(self) -> str:
        """Return the table that nccl-tests prints, with the choice, the band and the evidence."""
        return self.table()

    def document(self) -> Row:
        """Return the answer's keys, as docs/reference/collective-json.md documents them."""
        data: Row = {
            "trine_version": __version__,
            "op": self.op,
            "cluster": self.cluster.name,
            "num_ranks": len(self.group),
            **to_row(self, "num_nodes", "library"),
            "library_version": self.version,
            **to_row(self, "launch", "network"),
            "rows": ROW.rows(self.rows),
            "links": _link_rows(self)[:MAX_LINKS],
            "links_left_out": max(0, len(self.load) - MAX_LINKS),
            "tiers": _tier_rows(self),
            "routing": self.cluster.routing,
            "routing_reason": self.cluster.routing_why,
            "notes": list(self.notes),
            "cluster_evidence": self.cluster.evidence,
        }
        if self.alternatives:
            data["explain"] = [
                {
                    "size_bytes": row.size_bytes,
                    "parts": PART.rows(row.parts),
                    "fastest": PAIR.row(candidates[0]),
                    "alternatives": PAIR.rows(candidates),
                }
                for row, candidates in zip(self.rows, self.alternatives, strict=True)
            ]
            data["crossovers"] = [
                {"from_bytes": first, "algorithm": algorithm, "protocol": protocol}
                for first, algorithm, protocol in self.crossovers
            ]
        return data

    def tables(self) -> dict[str, Table]:
        """Return ``rows`` (one per size), ``links`` and ``tiers`` at the last size."""
        return {"rows": ROW.rows(self.rows), "links": _link_rows(self), "tiers": _tier_rows(self)}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``sizes``: time and bus bandwidth over the size, with the band."""
        title = f"{self.op} of {len(self.group)} ranks, {self.cluster.name}"
        from trine.collectives.picture import draw_sizes

        return {"sizes": partial(draw_sizes, self.rows, title)}

    def table(self) -> str:
        """Return the table that nccl-tests prints, with the choice, the band and the evidence."""
        lines = [
            f"# {self.op} of {len(self.group)} ranks on {self.num_nodes} node{'s' if self.num_nodes > 1 else ''}, "
            f"{self.cluster.name}; {self._mode()}",
            f"# {'size':>12} {'time':>11} {'algbw':>8} {'busbw':>8}  {'algorithm':16} {'protocol':8} {'chan':>4} "
            f"{'low':>11} {'high':>11}  evidence",
            f"# {'(B)':>12} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}  {'':16} {'':8} {'':>4} {'(us)':>11} {'(us)':>11}",
        ]
        for row in self.rows:
            lines.append(
                f"  {row.size_bytes:>12} {_us(row.time_ps):>11} {row.algbw_bytes_per_s / 1e9:>8.2f} "
                f"{row.busbw_bytes_per_s / 1e9:>8.2f}  {row.algorithm:16} {row.protocol:8} {row.channels or '-':>4} "
                f"{_us(row.low_ps):>11} {_us(row.high_ps):>11}  {row.evidence}"
            )
        lines += [f"# {note}" for note in self.notes]
        if self.cluster.has_fabric:
            lines.append(f"# routing {self.cluster.routing}: {self.cluster.routing_why}")
        if self.tiers:
            lines.append(f"# busiest link of each tier at {format_size(self.rows[-1].size_bytes)}: {_busiest(self)}")
        return "\n".join(lines)

    def explain(self) -> str:
        """Explain each time by its parts, the alternatives, and the sizes at which the choice changes."""
        lines: list[str] = []
        indices = _spread_indices(len(self.rows), MAX_EXPLAINED)
        for index in indices:
            lines += _explain_row(self.rows[index], self.alternatives[index] if self.alternatives else ())
        if len(indices) < len(self.rows):
            lines.append(f"({len(self.rows) - len(indices)} other sizes are explained in the JSON)")
        if self.crossovers:
            lines.append(f"{self.library} would choose:")
            for first, algorithm, protocol in self.crossovers:
                lines.append(f"  from {format_bytes(first):>10}  {algorithm} with {protocol}")
        return "\n".join(lines)


def _link_rows(result: CollectiveResult) -> list[Row]:
    """Return bytes and busy time of each link at the last size."""
    by_name = {link.name: link for link in result.cluster.links}
    return [
        {"name": name, "bytes": count, "busy_us": count * 1e6 / by_name[name].bytes_per_s}
        for name, count in result.load.items()
    ]


def _tier_rows(result: CollectiveResult) -> list[Row]:
    """Return the busiest link of each tier at the last size."""
    return [
        {
            "tier": load.tier, "links": load.count, "busiest": load.link, "bytes": load.size_bytes,
            "busy_us": load.size_bytes * 1e6 / load.bytes_per_s,
        }
        for load in result.tiers
    ]  # fmt: skip


def _us(ps: int) -> str:
    us = ps / 1e6
    if us < 1000:
        return f"{us:.2f}"
    if us < 100_000:
        return f"{us:.1f}"
    return f"{us:.0f}"


def _busiest(result: CollectiveResult) -> str:
    entries = []
    for load in result.tiers[:MAX_TEXT_TIERS]:
        plural = "s" if load.count > 1 else ""
        entries.append(f"{load.link} {format_bytes(load.size_bytes)} ({load.tier}, {load.count} link{plural})")
    remainder = len(result.tiers) - len(entries)
    return ", ".join(entries) + (f" and {remainder} more tiers" if remainder > 0 else "")


def _spread_indices(count: int, limit: int) -> list[int]:
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})


def _explain_row(row: CollectiveTime, candidates: Sequence[CollectiveTime]) -> list[str]:
    lines = [
        f"{format_size(row.size_bytes)}: {format_time(row.time_ps)} with {row.algorithm}/{row.protocol}"
        + (f", {format_bandwidth(row.busbw_bytes_per_s)} on the bus" if row.busbw_bytes_per_s else "")
    ]
    for part in row.parts:
        share = 100 * part.time_ps / row.time_ps if row.time_ps else 0
        lines.append(f"  {part.name:10} {format_time(part.time_ps):>10} {share:5.1f} %  {part.why}")
    if candidates:
        text = ", ".join(f"{o.algorithm}/{o.protocol} {format_time(o.time_ps)}" for o in candidates)
        lines.append(f"  would take: {text}")
        best = candidates[0]
        if (best.algorithm, best.protocol) != (row.algorithm, row.protocol) and best.time_ps < row.time_ps:
            saving = 100 * (1 - best.time_ps / row.time_ps)
            lines.append(f"  fastest: {best.algorithm}/{best.protocol}, {saving:.0f} % less than the choice")
    return lines
