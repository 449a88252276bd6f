"""An answer about a collective as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trine._version import __version__
from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import format_size
from trine.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from trine.collectives.ask import CollectiveAnswer

#: Sizes that are explained in words; the JSON explains all.
MAX_EXPLAINED = 6
MAX_TEXT_TIERS = 6


def answer_json(answer: CollectiveAnswer) -> dict[str, Any]:
    """Stable keys, documented in docs/reference/collective-json.md."""
    from trine.collectives.ask import MAX_LINKS

    data: dict[str, Any] = {
        "trine_version": __version__,
        "op": answer.op,
        "cluster": answer.cluster.name,
        "num_ranks": len(answer.group),
        "num_nodes": answer.num_nodes,
        "library": answer.library,
        "library_version": answer.version,
        "launch": answer.launch,
        "network": answer.network,
        "rows": [row_json(row) for row in answer.rows],
        "links": _links_json(answer)[:MAX_LINKS],
        "links_left_out": max(0, len(answer.load) - MAX_LINKS),
        "tiers": [
            {
                "tier": load.tier,
                "links": load.count,
                "busiest": load.link,
                "bytes": load.size_bytes,
                "busy_us": load.size_bytes * 1e6 / load.bytes_per_s,
            }
            for load in answer.tiers
        ],
        "routing": answer.cluster.routing,
        "routing_reason": answer.cluster.routing_why,
        "notes": list(answer.notes),
        "cluster_evidence": answer.cluster.evidence,
    }
    if answer.alternatives:
        data["explain"] = [
            {
                "size_bytes": row.size_bytes,
                "parts": [{"name": part.name, "time_us": part.time_ps / 1e6, "why": part.why} for part in row.parts],
                "fastest": _pair_json(others[0]),
                "alternatives": [_pair_json(other) for other in others],
            }
            for row, others in zip(answer.rows, answer.alternatives, strict=True)
        ]
        data["crossovers"] = [
            {"from_bytes": first, "algorithm": algorithm, "protocol": protocol}
            for first, algorithm, protocol in answer.crossovers
        ]
    return data


def row_json(row: CollectiveTime) -> dict[str, Any]:
    """One row: times in us, bandwidths in GB/s (decimal), as nccl-tests prints them."""
    return {
        "size_bytes": row.size_bytes,
        "sent_bytes": row.sent_bytes,
        "time_us": row.time_ps / 1e6,
        "algbw_GBps": row.algbw_bytes_per_s / 1e9,
        "busbw_GBps": row.busbw_bytes_per_s / 1e9,
        "algorithm": row.algorithm,
        "protocol": row.protocol,
        "channels": row.channels,
        "low_us": row.low_ps / 1e6,
        "high_us": row.high_ps / 1e6,
        "evidence": row.evidence,
        "limit": row.limit,
    }


def _pair_json(row: CollectiveTime) -> dict[str, Any]:
    return {"algorithm": row.algorithm, "protocol": row.protocol, "time_us": row.time_ps / 1e6}


def _links_json(answer: CollectiveAnswer) -> list[dict[str, Any]]:
    """Bytes and busy time of each link at the last size."""
    by_name = {link.name: link for link in answer.cluster.links}
    return [
        {"name": name, "bytes": count, "busy_us": count * 1e6 / by_name[name].bytes_per_s}
        for name, count in answer.load.items()
    ]


def answer_table(answer: CollectiveAnswer) -> str:
    """Columns of nccl-tests, then the choice, the band and the evidence."""
    how = f"links shared {answer.network}, step by step" if answer.network else f"{answer.library} {answer.version}"
    lines = [
        f"# {answer.op} of {len(answer.group)} ranks on {answer.num_nodes} node{'s' if answer.num_nodes > 1 else ''}, "
        f"{answer.cluster.name}; {how}; launch {answer.launch}",
        f"# {'size':>12} {'time':>11} {'algbw':>8} {'busbw':>8}  {'algorithm':16} {'protocol':8} {'chan':>4} "
        f"{'low':>11} {'high':>11}  evidence",
        f"# {'(B)':>12} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}  {'':16} {'':8} {'':>4} {'(us)':>11} {'(us)':>11}",
    ]
    for row in answer.rows:
        lines.append(
            f"  {row.size_bytes:>12} {_us(row.time_ps):>11} {row.algbw_bytes_per_s / 1e9:>8.2f} "
            f"{row.busbw_bytes_per_s / 1e9:>8.2f}  {row.algorithm:16} {row.protocol:8} {row.channels or '-':>4} "
            f"{_us(row.low_ps):>11} {_us(row.high_ps):>11}  {row.evidence}"
        )
    lines += [f"# {note}" for note in answer.notes]
    if answer.cluster.has_fabric:
        lines.append(f"# routing {answer.cluster.routing}: {answer.cluster.routing_why}")
    if answer.tiers:
        lines.append(f"# busiest link of each tier at {format_size(answer.rows[-1].size_bytes)}: {_busiest(answer)}")
    return "\n".join(lines)


def _us(ps: int) -> str:
    us = ps / 1e6
    return f"{us:.2f}" if us < 1000 else f"{us:.1f}" if us < 100_000 else f"{us:.0f}"


def _busiest(answer: CollectiveAnswer) -> str:
    shown = [
        f"{load.link} {format_bytes(load.size_bytes)} ({load.tier}, {load.count} link{'s' if load.count > 1 else ''})"
        for load in answer.tiers[:MAX_TEXT_TIERS]
    ]
    more = len(answer.tiers) - len(shown)
    return ", ".join(shown) + (f" and {more} more tiers" if more > 0 else "")


def answer_explained(answer: CollectiveAnswer) -> str:
    """Parts, alternatives and crossovers in words; at most MAX_EXPLAINED sizes, spread evenly."""
    lines: list[str] = []
    chosen = _spread(len(answer.rows), MAX_EXPLAINED)
    for index in chosen:
        lines += _explain_row(answer.rows[index], answer.alternatives[index] if answer.alternatives else ())
    if len(chosen) < len(answer.rows):
        lines.append(f"({len(answer.rows) - len(chosen)} other sizes are explained in the JSON)")
    if answer.crossovers:
        lines.append(f"{answer.library} would choose:")
        for first, algorithm, protocol in answer.crossovers:
            lines.append(f"  from {format_bytes(first):>10}  {algorithm} with {protocol}")
    return "\n".join(lines)


def _spread(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _explain_row(row: CollectiveTime, others: Sequence[CollectiveTime]) -> list[str]:
    lines = [
        f"{format_size(row.size_bytes)}: {format_time(row.time_ps)} with {row.algorithm}/{row.protocol}"
        + (f", {format_bandwidth(row.busbw_bytes_per_s)} on the bus" if row.busbw_bytes_per_s else "")
    ]
    for part in row.parts:
        share = 100 * part.time_ps / row.time_ps if row.time_ps else 0
        lines.append(f"  {part.name:10} {format_time(part.time_ps):>10} {share:5.1f} %  {part.why}")
    if others:
        shown = ", ".join(f"{o.algorithm}/{o.protocol} {format_time(o.time_ps)}" for o in others)
        lines.append(f"  would take: {shown}")
        best = others[0]
        if (best.algorithm, best.protocol) != (row.algorithm, row.protocol) and best.time_ps < row.time_ps:
            saved = 100 * (1 - best.time_ps / row.time_ps)
            lines.append(f"  fastest: {best.algorithm}/{best.protocol}, {saved:.0f} % less than the choice")
    return lines
