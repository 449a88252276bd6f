"""The result of a check: measured against predicted times as table, JSON and picture, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from trine.check.hypotheses import Hypothesis
from trine.check.likelihood import Weighed, groups_of, probability_of
from trine.check.nccl_tests import NcclLog
from trine.check.verdict import HEALTHY, of_sizes
from trine.cluster.cluster import Cluster
from trine.collectives.options import CollectiveOptions, CollectiveTime
from trine.collectives.picture import size_axis
from trine.collectives.sizes import format_size
from trine.common._version import __version__
from trine.common.units import format_time
from trine.errors import InputError
from trine.results.axes import heading, tidy
from trine.results.columns import to_row
from trine.results.picture import log_scale, subplots
from trine.results.report import Report, Row, Table
from trine.results.text import columns, wrapped_at

INSIDE, SLOW, FAST = "inside", "slow", "fast"
_MARK = {SLOW: "slow", FAST: "fast"}
MAX_CAUSES = 5
_UNKNOWN = "no known cause"
_COLOURS = {INSIDE: "#009E73", SLOW: "#D55E00", FAST: "#0072B2"}
_NAMES = {INSIDE: "measured", SLOW: "measured, slow", FAST: "measured, fast"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRow:
    """One size. ``state``: inside the band, slow or fast. Bandwidth in bytes/s, as measured."""

    size_bytes: int
    measured_ps: int
    busbw_bytes_per_s: float
    predicted: CollectiveTime
    state: str

    @property
    def ratio(self) -> float:
        """Measured / predicted time."""
        return self.measured_ps / self.predicted.time_ps


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult(Report):
    """The result of :func:`trine.check.compare.check_log`.

    ``state``: one of the five verdicts of :mod:`trine.check.verdict`, or incomplete. ``reason``: why it is not healthy,
    except for a slow run. ``suspicious_from``, ``suspicious_to``: first and last size of a slow range. ``log_odds``:
    natural logarithm of the odds of a cause, known or not, against a sound machine. ``cause``: the most probable cause,
    None if an unknown cause is more probable. ``alike``: names of causes with the same cost at every measured size,
    which this log cannot tell from ``cause``. ``causes``: all, the most probable first (without a ``cause``, the
    nearest first); empty for a healthy run. ``noise``: isolated slow sizes. ``stated``: the log's own words for the
    cause, if it states one. ``unexplained_from``: first size of a range that is slower than the cause explains.
    ``hints``: evidence in the log that no cause covers.
    """

    SCHEMA: ClassVar[str] = "check"

    log: NcclLog
    cluster: Cluster
    options: CollectiveOptions
    result: str
    rows: tuple[CheckedRow, ...]
    state: str = HEALTHY
    reason: str = ""
    suspicious_from: int | None = None
    suspicious_to: int | None = None
    log_odds: float = 0.0
    cause: Hypothesis | None = None
    stated: str = ""
    unexplained_from: int | None = None
    alike: tuple[str, ...] = ()
    causes: tuple[Weighed, ...] = ()
    noise: tuple[int, ...] = ()
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the prediction fits, the log is complete and right, and no range of sizes is slow."""
        return self.state == HEALTHY

    @property
    def headline(self) -> str:
        """The collective, the machine and the state in one line."""
        state = self.state if self.suspicious_from is None else f"slow from {format_size(self.suspicious_from)}"
        return f"{_title(self)}: {state}"

    def verdict(self) -> str:
        """Return one line: the verdict, with its reason, or the slow sizes and the likely cause."""
        return _verdict(self)

    def table(self) -> str:
        """Return measured against predicted times by size, and the verdict."""
        log, first = self.log, self.rows[0].predicted
        lines = [
            f"# {log.op} of {first.num_ranks} ranks, {log.path} ({self.result}) against {self.cluster.name}; "
            f"launch {self.options.launch}",
            f"# {'size':>12} {'measured':>11} {'predicted':>11} {'low':>11} {'high':>11} {'ratio':>6} {'busbw':>8} "
            f"{'pred.':>8}  {'algorithm':16} {'protocol':8}",
            f"# {'(B)':>12} {'(us)':>11} {'(us)':>11} {'(us)':>11} {'(us)':>11} {'':>6} {'(GB/s)':>8} {'(GB/s)':>8}",
        ]
        lines += [_row(row) for row in self.rows]
        lines += [f"# note: {note}" for note in self.notes]
        if self.noise:
            sizes = ", ".join(format_size(size) for size in self.noise)
            lines.append(f"# note: slow at {sizes} alone, taken as noise")
        lines.append(f"# {_verdict(self)}")
        if self.causes:
            meaning = "with their probability and the remaining error (RMS of the ratio's logarithm)"
            lines.append(f"# causes compared, {meaning}: {_causes(self)}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return the verdict, one row per size, the compared causes, and notes."""
        log, first = self.log, self.rows[0].predicted
        question = f"{log.op} of {first.num_ranks} ranks, {log.path} ({self.result}) against {self.cluster.name}"
        rows: list[tuple[str, ...]] = [
            ("size (B)", "measured (us)", "predicted", "low", "high", "ratio", "busbw (GB/s)", "predicted", "")
        ]
        for row in self.rows:
            model = row.predicted
            times = (f"{ps / 1e6:.2f}" for ps in (row.measured_ps, model.time_ps, model.low_ps, model.high_ps))
            rates = (f"{rate / 1e9:.2f}" for rate in (row.busbw_bytes_per_s, model.busbw_bytes_per_s))
            rows.append((str(row.size_bytes), *times, f"{row.ratio:.2f}", *rates, _MARK.get(row.state, "")))
        causes = _table_of_causes(self)
        notes = [*self.notes]
        if self.noise:
            notes.append(f"slow at {', '.join(map(format_size, self.noise))} alone, counted as noise")
        has_causes = bool(self.causes)
        return "\n".join(
            [
                *wrapped_at("", f"{question}; launch {self.options.launch}", 0),
                *wrapped_at("", _verdict(self), 0),
                "",
                *columns(rows, spare=(7, 3, 4)),
                *(["", *columns(causes)] if has_causes else []),
                "",
                *(line for note in notes for line in wrapped_at("note", note, 7)),
                *wrapped_at("next", "--details; --plot FILE; trine help check", 7),
            ]
        )

    def details(self) -> str:
        """Return the table with all columns, notes, verdict and causes."""
        return self.table()

    def document(self) -> Row:
        """Return plain data, as documented in docs/guides/check.md."""
        log = self.log
        rows = [_row_json(row) for row in self.rows]
        if self.cause is None:
            likely_cause = None
        else:
            likely_cause = {
                **to_row(self.cause, "name", "kind", "advice", "fitted"),
                "stated": self.stated or None,
                "alike": list(self.alike),
            }
        compared = [
            {**to_row(weighed.cause, "name", "kind"), "probability": weighed.probability, "residual": weighed.left}
            for weighed in self.causes
        ]
        return {
            "trine_version": __version__,
            "log": log.path,
            **to_row(log, "op", "op_from"),
            "result": self.result,
            "cluster": self.cluster.name,
            "num_ranks": self.rows[0].predicted.num_ranks,
            "launch": self.options.launch,
            "library": log.library,
            "library_version": log.version,
            "gpu_names": list(log.gpu_names),
            "hosts": list(log.hosts),
            "rows": rows,
            **to_row(self, "healthy", "state"),
            "reason": self.reason or None,
            "verdict": _verdict(self),
            "suspicious_from_bytes": self.suspicious_from,
            "suspicious_to_bytes": self.suspicious_to,
            "likely_cause": likely_cause,
            "causes_compared": compared,
            "log10_odds": self.log_odds / math.log(10),
            "noise_bytes": list(self.noise),
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        """Return ``rows``: measured and predicted times, one row per size."""
        return {"rows": [_row_json(row) for row in self.rows]}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``sizes``: measured points on the predicted band."""
        return {"sizes": partial(_draw, self)}


def _verdict(check: CheckResult) -> str:
    """Return one line: the verdict, with its reason, or the slow sizes and the likely cause."""
    if check.healthy:
        return _healthy(check)
    if check.suspicious_from is None:
        return f"{check.state}: {check.reason}"
    assert check.suspicious_to is not None
    last = check.rows[-1].size_bytes
    until = "" if check.suspicious_to == last else f" to {format_size(check.suspicious_to)}"
    range_rows = [row for row in check.rows if check.suspicious_from <= row.size_bytes <= check.suspicious_to]
    slow = [row.ratio for row in range_rows if row.state == SLOW]
    count = of_sizes(len(slow), len(range_rows))
    text = f"slow from {format_size(check.suspicious_from)}{until}: {count} above the band, "
    text += f"up to {max(slow):.2g} times slower than predicted"
    if check.cause is None:
        nearest = f" (nearest: {check.causes[0].cause.name})" if check.causes else ""
        hints = f"; {'; '.join(check.hints)}" if check.hints else ""
        return f"{text}; no known cause explains it{nearest}{hints}"
    remarks = f"; as likely: {'; '.join(check.alike)}" if check.alike else ""
    if check.unexplained_from is not None:
        remarks += f"; from {format_size(check.unexplained_from)} the run is slower than this cause explains"
    if check.hints:
        remarks += f"; {'; '.join(check.hints)}"
    if check.stated:
        return f"{text}; cause: {check.cause.name}, {check.stated} ({check.cause.advice}){remarks}"
    share = probability_of(groups_of(check.causes)[0])
    likelihood = "likely cause" if share >= 0.5 else f"no clear cause, most probable ({share:.0%})"
    return f"{text}; {likelihood}: {check.cause.name} ({check.cause.advice}){remarks}"


def _healthy(check: CheckResult) -> str:
    """Return the verdict without a fault, with the sizes that the table marks."""
    slow = [row for row in check.rows if row.state == SLOW and row.size_bytes not in check.noise]
    fast = [row for row in check.rows if row.state == FAST]
    text = "healthy: no fault found"
    if slow:
        worst = max(slow, key=lambda row: row.ratio)
        text += f"; {len(slow)} of {len(check.rows)} sizes slow (worst {worst.ratio:.2g}x at "
        text += f"{format_size(worst.size_bytes)}), within what healthy machines show"
    if fast:
        best = min(fast, key=lambda row: row.ratio)
        text += f"; {len(fast)} faster than predicted (worst {1 / best.ratio:.2g}x at {format_size(best.size_bytes)})"
    return text


def _row(row: CheckedRow) -> str:
    predicted = row.predicted
    times = (row.measured_ps, predicted.time_ps, predicted.low_ps, predicted.high_ps)
    rates = (row.busbw_bytes_per_s, predicted.busbw_bytes_per_s)
    text = f"  {row.size_bytes:>12} {' '.join(f'{time / 1e6:>11.2f}' for time in times)} {row.ratio:>6.2f} "
    text += " ".join(f"{rate / 1e9:>8.2f}" for rate in rates)
    return f"{text}  {predicted.algorithm:16} {predicted.protocol:8} {_MARK.get(row.state, '')}".rstrip()


def _table_of_causes(check: CheckResult) -> list[tuple[str, ...]]:
    """Return rows of causes; those that the sizes cannot tell apart share a probability, behind "or"."""
    lines: list[tuple[str, ...]] = [("cause", "probability", "error left")]
    for group in groups_of(check.causes[:MAX_CAUSES]):
        first = group[0]
        lines.append((first.cause.name, f"{probability_of(group):.0%}", f"x {math.exp(first.left):.2f}"))
        lines += [(f"or {each.cause.name}", "", "") for each in group[1:]]
    return [*lines, (_UNKNOWN, f"{_unknown(check):.0%}", "")]


def _causes(check: CheckResult) -> str:
    causes = [f"{each.cause.name} {each.probability:.0%} ({each.left:.2f})" for each in check.causes[:MAX_CAUSES]]
    return "; ".join([*causes, f"{_UNKNOWN} {_unknown(check):.0%}"])


def _unknown(check: CheckResult) -> float:
    """Return the probability of a cause outside the compared ones."""
    return max(0.0, 1 - sum(each.probability for each in check.causes))


def _row_json(row: CheckedRow) -> Row:
    predicted = row.predicted
    return {
        **to_row(row, "size_bytes", "measured_us"),
        "measured_busbw_GBps": row.busbw_bytes_per_s / 1e9,
        **to_row(predicted, "time_us", "low_us", "high_us", "busbw_GBps"),
        "ratio": row.ratio,
        **to_row(predicted, "algorithm", "protocol"),
        "state": row.state,
    }


def _title(check: CheckResult) -> str:
    """Return a title: the collective, the machine and the range of times."""
    first, last = check.rows[0], check.rows[-1]
    span = f"{format_time(first.measured_ps)} to {format_time(last.measured_ps)}"
    return f"{check.log.op} of {first.predicted.num_ranks} ranks on {check.cluster.name} ({check.result}), {span}"


def _draw(check: CheckResult) -> Any:
    """Draw time and bus bandwidth over the size, both axes logarithmic."""
    if len(check.rows) < 2:
        raise InputError("a picture needs at least two sizes", field="plot")
    figure, (times, rates) = subplots(1, 2, figsize=(11, 4.6))
    sizes = [row.size_bytes for row in check.rows]
    predicted = [row.predicted for row in check.rows]
    traffic = [p.sent_bytes * p.bus_factor * 1e3 for p in predicted]  # over picoseconds: GB/s
    lows = [p.low_ps / 1e6 for p in predicted]
    highs = [p.high_ps / 1e6 for p in predicted]
    times.fill_between(sizes, lows, highs,
                       color="#56B4E9", alpha=0.3, lw=0, label="band (80 % expected inside)")  # fmt: skip
    slowest = [m / p.high_ps for m, p in zip(traffic, predicted, strict=True)]
    fastest = [m / p.low_ps for m, p in zip(traffic, predicted, strict=True)]
    rates.fill_between(sizes, slowest,
                       fastest,
                       color="#56B4E9", alpha=0.3, lw=0)  # fmt: skip
    times.plot(sizes, [p.time_ps / 1e6 for p in predicted], color="black", lw=1, label="predicted")
    rates.plot(sizes, [m / p.time_ps for m, p in zip(traffic, predicted, strict=True)], color="black", lw=1)
    if check.cause is not None:
        label = f"if {check.cause.name}"
        times.plot(sizes, [t / 1e6 for t in check.cause.times_ps], color="#CC79A7", lw=1.2, ls="--", label=label)
        rates.plot(sizes, [m / t for m, t in zip(traffic, check.cause.times_ps, strict=True)], color="#CC79A7", lw=1.2,
                   ls="--")  # fmt: skip
    for state, colour in _COLOURS.items():
        rows = [row for row in check.rows if row.state == state]
        x = [row.size_bytes for row in rows]
        if rows:
            style = {"s": 22, "color": colour, "zorder": 3, "label": _NAMES[state]}
            times.scatter(x, [row.measured_ps / 1e6 for row in rows], **style)
            rates.scatter(x, [row.size_bytes * row.predicted.bus_factor * 1e3 / row.measured_ps for row in rows],
                          **style)  # fmt: skip
    for axis, name in ((times, "time (µs)"), (rates, "bus bandwidth (GB/s)")):
        if check.suspicious_from is not None and check.suspicious_to is not None:
            axis.axvspan(check.suspicious_from, check.suspicious_to, color="#D55E00", alpha=0.07, lw=0)
        axis.set_ylabel(name)
        size_axis(axis, sizes)
        log_scale(axis)
        tidy(axis, "both")
    times.legend(frameon=False, fontsize=8)
    heading(figure, check.headline)
    return figure
