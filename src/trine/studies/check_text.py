"""A check as text and as JSON."""

from __future__ import annotations

from typing import Any

from trine.collectives.sizes import format_size
from trine.studies.check import FAST, SLOW, Check, CheckedRow
from trine.units import format_time

_MARK = {SLOW: "slow", FAST: "fast"}
MAX_CAUSES = 5


def verdict(check: Check) -> str:
    """One line: healthy, or suspicious from a size on with the likely cause."""
    if check.healthy:
        fast = [row for row in check.rows if row.state == FAST]
        text = "healthy: no range of sizes is slower than it should be"
        if 2 * len(fast) > len(check.rows):
            text += "; faster than predicted at most sizes, so the cluster's numbers may be too low"
        return text
    if check.suspicious_from is None:
        return "suspicious: the test found wrong results, so its times say little (see the note)"
    assert check.suspicious_to is not None
    last = check.rows[-1].size_bytes
    until = "" if check.suspicious_to == last else f" to {format_size(check.suspicious_to)}"
    slowest = max((row.ratio for row in check.rows if row.state == SLOW), default=1.0)
    text = (
        f"suspicious from {format_size(check.suspicious_from)}{until}: up to {slowest:.2g} times slower than predicted"
    )
    if check.cause is None:
        return f"{text}; no cause that trine knows explains it"
    return f"{text}; likely cause: {check.cause.name} ({check.cause.advice})"


def check_table(check: Check) -> str:
    """Measured and predicted side by side, then the verdict."""
    log, first = check.log, check.rows[0].predicted
    lines = [
        f"# {log.op} of {first.num_ranks} ranks, {log.path} ({check.result}) against {check.cluster.name}; "
        f"launch {check.options.launch}",
        f"# {'size':>12} {'measured':>11} {'predicted':>11} {'low':>11} {'high':>11} {'ratio':>6} {'busbw':>8} "
        f"{'pred.':>8}  {'algorithm':16} {'protocol':8}",
        f"# {'(B)':>12} {'(us)':>11} {'(us)':>11} {'(us)':>11} {'(us)':>11} {'':>6} {'(GB/s)':>8} {'(GB/s)':>8}",
    ]
    lines += [_row(row) for row in check.rows]
    lines += [f"# note: {note}" for note in check.notes]
    if check.noise:
        sizes = ", ".join(format_size(size) for size in check.noise)
        lines.append(f"# note: slow at {sizes} alone, taken as noise")
    lines.append(f"# {verdict(check)}")
    if check.cause is not None:
        lines.append(f"# what was compared, by how far it leaves the measurement (root mean square of the ratio's "
                     f"logarithm): {_causes(check)}")  # fmt: skip
    return "\n".join(lines)


def _row(row: CheckedRow) -> str:
    predicted = row.predicted
    times = (row.measured_ps, predicted.time_ps, predicted.low_ps, predicted.high_ps)
    rates = (row.busbw_bytes_per_s, predicted.busbw_bytes_per_s)
    text = f"  {row.size_bytes:>12} {' '.join(f'{time / 1e6:>11.2f}' for time in times)} {row.ratio:>6.2f} "
    text += " ".join(f"{rate / 1e9:>8.2f}" for rate in rates)
    return f"{text}  {predicted.algorithm:16} {predicted.protocol:8} {_MARK.get(row.state, '')}".rstrip()


def _causes(check: Check) -> str:
    return "; ".join(f"{name} {residual:.2f}" for name, residual in check.residuals[:MAX_CAUSES])


def check_json(check: Check) -> dict[str, Any]:
    """Keys as in docs/guides/check.md."""
    from trine import __version__

    log = check.log
    return {
        "trine_version": __version__,
        "log": log.path,
        "op": log.op,
        "op_from": log.op_from,
        "result": check.result,
        "cluster": check.cluster.name,
        "num_ranks": check.rows[0].predicted.num_ranks,
        "launch": check.options.launch,
        "library": log.library,
        "library_version": log.version,
        "gpu_names": list(log.gpu_names),
        "hosts": list(log.hosts),
        "rows": [_row_json(row) for row in check.rows],
        "healthy": check.healthy,
        "verdict": verdict(check),
        "suspicious_from_bytes": check.suspicious_from,
        "suspicious_to_bytes": check.suspicious_to,
        "likely_cause": None
        if check.cause is None
        else {"name": check.cause.name, "advice": check.cause.advice, "fitted": check.cause.fitted},
        "causes_compared": [{"name": name, "residual": residual} for name, residual in check.residuals],
        "noise_bytes": list(check.noise),
        "notes": list(check.notes),
    }


def _row_json(row: CheckedRow) -> dict[str, Any]:
    predicted = row.predicted
    return {
        "size_bytes": row.size_bytes,
        "measured_us": row.measured_ps / 1e6,
        "measured_busbw_GBps": row.busbw_bytes_per_s / 1e9,
        "time_us": predicted.time_ps / 1e6,
        "low_us": predicted.low_ps / 1e6,
        "high_us": predicted.high_ps / 1e6,
        "busbw_GBps": predicted.busbw_bytes_per_s / 1e9,
        "ratio": row.ratio,
        "algorithm": predicted.algorithm,
        "protocol": predicted.protocol,
        "state": row.state,
    }


def summary(check: Check) -> str:
    """A title: what was run where."""
    first, last = check.rows[0], check.rows[-1]
    span = f"{format_time(first.measured_ps)} to {format_time(last.measured_ps)}"
    return f"{check.log.op} of {first.predicted.num_ranks} ranks on {check.cluster.name} ({check.result}), {span}"
