"""A check as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from trine._version import __version__
from trine.collectives.sizes import format_size
from trine.studies.check import FAST, SLOW, Check, CheckedRow
from trine.units import format_time

_MARK = {SLOW: "slow", FAST: "fast"}
MAX_CAUSES = 5


def verdict(check: Check) -> str:
    """One line: healthy, or suspicious from a size on with the likely cause."""
    if check.healthy:
        return _healthy(check)
    if check.suspicious_from is None:
        return "suspicious: the test found wrong results, so its times say little (see the note)"
    assert check.suspicious_to is not None
    last = check.rows[-1].size_bytes
    until = "" if check.suspicious_to == last else f" to {format_size(check.suspicious_to)}"
    within = [row for row in check.rows if check.suspicious_from <= row.size_bytes <= check.suspicious_to]
    slow = [row.ratio for row in within if row.state == SLOW]
    text = (
        f"suspicious from {format_size(check.suspicious_from)}{until}: {_of(len(slow), len(within))} above the band, "
    )
    text += f"up to {max(slow):.2g} times slower than predicted"
    if check.cause is None:
        near = f" (the nearest: {check.causes[0].cause.name})" if check.causes else ""
        return f"{text}; no cause that trine knows explains it{near}"
    others = f"; not to be told apart from it: {'; '.join(check.alike)}" if check.alike else ""
    share = check.causes[0].probability
    how = "likely cause" if share >= 0.5 else f"no cause stands out, the most probable one ({share:.0%})"
    return f"{text}; {how}: {check.cause.name} ({check.cause.advice}){others}"


def _healthy(check: Check) -> str:
    """What is not suspicious, without hiding what the table marks."""
    slow = [row for row in check.rows if row.state == SLOW and row.size_bytes not in check.noise]
    text = "healthy: no size is slower than its band"
    if slow:
        worst = max(row.ratio for row in slow)
        text = (
            f"healthy: {_of(len(slow), len(check.rows))} above the band, up to {worst:.2g} times slower than "
            "predicted, as happens to sound machines too"
        )
    elif check.noise:
        text = "healthy: no size but those named above is slower than its band"
    if 2 * sum(row.state == FAST for row in check.rows) > len(check.rows):
        text += "; faster than predicted at most sizes, so the cluster's numbers may be too low"
    return text


def _of(count: int, whole: int) -> str:
    return f"{count} of {whole} {'size' if whole == 1 else 'sizes'} {'lies' if count == 1 else 'lie'}"


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
    if check.causes:
        lines.append(
            "# what was compared, by its probability if one of them is the cause, and how far it leaves the "
            f"measurement (root mean square of the ratio's logarithm): {_causes(check)}"
        )
    return "\n".join(lines)


def _row(row: CheckedRow) -> str:
    predicted = row.predicted
    times = (row.measured_ps, predicted.time_ps, predicted.low_ps, predicted.high_ps)
    rates = (row.busbw_bytes_per_s, predicted.busbw_bytes_per_s)
    text = f"  {row.size_bytes:>12} {' '.join(f'{time / 1e6:>11.2f}' for time in times)} {row.ratio:>6.2f} "
    text += " ".join(f"{rate / 1e9:>8.2f}" for rate in rates)
    return f"{text}  {predicted.algorithm:16} {predicted.protocol:8} {_MARK.get(row.state, '')}".rstrip()


def _causes(check: Check) -> str:
    shown = [f"{each.cause.name} {each.probability:.0%} ({each.left:.2f})" for each in check.causes[:MAX_CAUSES]]
    unknown = 1 - sum(each.probability for each in check.causes)
    return "; ".join([*shown, f"none that trine knows {max(0.0, unknown):.0%}"])


def check_json(check: Check) -> dict[str, Any]:
    """Keys as in docs/guides/check.md."""
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
        else {
            "name": check.cause.name,
            "kind": check.cause.kind,
            "advice": check.cause.advice,
            "fitted": check.cause.fitted,
            "alike": list(check.alike),
        },
        "causes_compared": [
            {"name": each.cause.name, "kind": each.cause.kind, "probability": each.probability, "residual": each.left}
            for each in check.causes
        ],
        "log10_odds": check.log_odds / math.log(10),
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
