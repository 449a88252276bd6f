"""Two levels side by side as text and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from trine._version import __version__
from trine.collectives.loadstore.idealised import CUS, INSIDE, LATENCY, LAUNCH, LINKS, REQUESTS
from trine.collectives.sizes import format_size
from trine.units import format_time

if TYPE_CHECKING:
    from trine.collectives.loadstore.compare import ComparedRow, FidelityAnswer, LevelPart
    from trine.collectives.options import CollectiveTime

_WIDTH, _NAME = 100, 15
WORDS = {
    LAUNCH: "launch",
    LATENCY: "latency and synchronisation",
    LINKS: "bytes over links",
    "overlap": "latency and bytes on each other",
    REQUESTS: "limits on requests",
    CUS: "CUs: issue, additions",
    INSIDE: "inside: NoC, memory",
}


def answer_table(answer: FidelityAnswer) -> str:
    """Both times of each size; then their parts."""
    known = answer.answer
    how = f"links shared {known.network}" if known.network else f"{known.library} {known.version}"
    lines = [
        f"# {answer.op} of {len(answer.group)} ranks on {answer.cluster.name}",
        f"# operator: {how}, launch {known.launch}; load-store: GPU {answer.model.name}",
        f"# {'size':>6} {'operator':>11} {'':22} {'load-store':>11} {'':22} {'ratio':>6}",
        f"# {'':>6} {'(us)':>11} {'':22} {'(us)':>11}",
    ]
    lines += [_line(row) for row in answer.rows]
    for row in answer.rows:
        lines += ["", *_parts(row)]
    for note in answer.notes:
        lines += textwrap.wrap(f"operator: {note}", _WIDTH, initial_indent="# ", subsequent_indent="#   ")
    return "\n".join(lines)


def _line(row: ComparedRow) -> str:
    ratio = "PARTIAL" if row.ratio is None else f"{row.ratio:.2f}"
    return (
        f"  {format_size(row.size_bytes):>6} {row.operator.time_ps / 1e6:>11.2f} {_what(row.operator):22} "
        f"{row.loadstore.time_ps / 1e6:>11.2f} {_what(row.loadstore):22} {ratio:>6}"
    )


def _what(time: CollectiveTime) -> str:
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
    both = f"{format_time(row.operator.time_ps):>11} {format_time(row.loadstore.time_ps):>11}"
    lines.append(f"  {'all':30} {both} {_signed(total):>11}")
    largest = max(row.parts, key=lambda part: abs(part.difference_ps))
    words = WORDS[largest.name]
    lines += textwrap.wrap(
        f"most of the difference: {words}. {_why(largest)}", _WIDTH, initial_indent="  ", subsequent_indent="    "
    )
    return lines


def _part(part: LevelPart) -> str:
    times = [
        "-" if ps is None else format_time(ps) if ps >= 0 else _signed(ps)
        for ps in (part.operator_ps, part.loadstore_ps)
    ]
    return f"  {WORDS[part.name]:30} {times[0]:>11} {times[1]:>11} {_signed(part.difference_ps):>11}"


def _why(part: LevelPart) -> str:
    whys = (
        ("operator", part.operator_why or "does not know it"),
        ("load-store", part.loadstore_why or "does not know it"),
    )
    return "; ".join(f"{level}: {why}" for level, why in whys)


def _signed(ps: int) -> str:
    return f"{'+' if ps > 0 else '-' if ps < 0 else ''}{format_time(abs(ps))}"


def answer_json(answer: FidelityAnswer) -> dict[str, Any]:
    """Stable keys, documented in docs/reference/loadstore-json.md."""
    return {
        "trine_version": __version__,
        "fidelity": "both",
        "op": answer.op,
        "cluster": answer.cluster.name,
        "gpu_model": answer.model.name,
        "num_ranks": len(answer.group),
        "network": answer.answer.network,
        "library": answer.answer.library,
        "finished": answer.finished,
        "rows": [_row_json(row) for row in answer.rows],
        "notes": list(answer.notes),
    }


def _row_json(row: ComparedRow) -> dict[str, Any]:
    return {
        "size_bytes": row.size_bytes,
        "operator": _time_json(row.operator),
        "loadstore": _time_json(row.loadstore),
        "ratio": row.ratio,
        "finished": row.finished,
        "parts": [_part_json(part) for part in row.parts],
    }


def _time_json(time: CollectiveTime) -> dict[str, Any]:
    return {
        "time_us": time.time_ps / 1e6,
        "algorithm": time.algorithm,
        "protocol": time.protocol,
        "evidence": time.evidence,
    }


def _part_json(part: LevelPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "operator_us": None if part.operator_ps is None else part.operator_ps / 1e6,
        "loadstore_us": None if part.loadstore_ps is None else part.loadstore_ps / 1e6,
        "operator_why": part.operator_why,
        "loadstore_why": part.loadstore_why,
    }
