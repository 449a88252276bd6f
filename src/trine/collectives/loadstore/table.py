"""An answer of the load-store level as text and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trine._version import __version__
from trine.units import format_time

if TYPE_CHECKING:
    from trine.collectives.loadstore.ask import LoadStoreAnswer
    from trine.collectives.loadstore.runs import LoadStoreRow

_WIDTH = 100
#: Columns of a program's name at least.
_PROGRAM = 18


def answer_table(answer: LoadStoreAnswer) -> str:
    """Columns of nccl-tests, then what ran and what decides."""
    model, unroll = answer.model, answer.model.unroll
    width = max(_PROGRAM, *(len(row.time.algorithm) for row in answer.rows))
    lines = [
        f"# {answer.op} of {len(answer.group)} ranks on {answer.cluster.name}; load by load, store by store",
        f"# GPU {model.name}: unroll {unroll}, {model.max_outstanding} requests a CU, ports {model.ports.arbitration}",
        f"# {'size':>12} {'time':>11} {'algbw':>8} {'busbw':>8}  {'program':{width}} {'protocol':8} "
        f"{'groups':>6}  decides",
        f"# {'(B)':>12} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}",
    ]
    lines += [_row(row, width) for row in answer.rows]
    for note in (*_choices(answer), *_notes(answer)):
        lines += textwrap.wrap(note, _WIDTH, initial_indent="# ", subsequent_indent="#   ")
    return "\n".join(lines)


def _row(row: LoadStoreRow, width: int) -> str:
    time = row.time
    bandwidths = (time.algbw_bytes_per_s, time.busbw_bytes_per_s)
    rates = [f"{rate / 1e9:8.2f}" if row.finished else f"{'-':>8}" for rate in bandwidths]
    what = _decides(row) if row.finished else "PARTIAL: stopped then"
    return (
        f"  {time.size_bytes:>12} {time.time_ps / 1e6:>11.2f} {rates[0]} {rates[1]}  {time.algorithm:{width}} "
        f"{time.protocol:8} {time.channels:>6}  {what}"
    )


def _decides(row: LoadStoreRow) -> str:
    found = row.bottleneck
    return f"{found.name or found.what} {100 * found.share:.0f} %"


def _notes(answer: LoadStoreAnswer) -> list[str]:
    """Of one size only what its full answer does not say."""
    if len(answer.rows) > 1:
        return list(answer.notes)
    said = (*answer.result.program.notes, *answer.result.notes)
    return [note for note in answer.notes if note not in said]


def _choices(answer: LoadStoreAnswer) -> list[str]:
    """What else was tried, at the last size at which there was a choice."""
    for row in reversed(answer.rows):
        times = [f"{name} {format_time(ps)}" for name, ps in row.tried if ps is not None]
        if len(times) > 1:
            return [f"the faster of all that were run is taken; at {row.time.size_bytes} B: {', '.join(times)}"]
    return []


def answer_json(answer: LoadStoreAnswer) -> dict[str, Any]:
    """Stable keys, documented in docs/reference/loadstore-json.md."""
    return {
        "trine_version": __version__,
        "fidelity": "loadstore",
        "op": answer.op,
        "cluster": answer.cluster.name,
        "gpu_model": answer.model.name,
        "num_ranks": len(answer.group),
        "finished": answer.finished,
        "rows": [row_json(row) for row in answer.rows],
        "notes": list(answer.notes),
        "run": answer.result.document() if len(answer.rows) == 1 else None,
    }


def row_json(row: LoadStoreRow) -> dict[str, Any]:
    """One row: times in us, bandwidths in GB/s (decimal), as ``trine collective`` has them."""
    algbw, busbw = row.time.algbw_bytes_per_s, row.time.busbw_bytes_per_s
    return {
        "size_bytes": row.time.size_bytes,
        "time_us": row.time.time_ps / 1e6,
        "algbw_GBps": algbw / 1e9 if row.finished else None,
        "busbw_GBps": busbw / 1e9 if row.finished else None,
        "algorithm": row.time.algorithm,
        "protocol": row.time.protocol,
        "workgroups": row.time.channels,
        "evidence": row.time.evidence,
        "finished": row.finished,
        "bottleneck": asdict(row.bottleneck),
        "tried": [{"algorithm": name, "time_us": None if ps is None else ps / 1e6} for name, ps in row.tried],
        "gpus_simulated": row.simulated,
    }
