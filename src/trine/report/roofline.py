"""The roofline of a step's operators: achieved rate over FLOPs per byte, below the roofs of the GPU."""

from __future__ import annotations

import math

from trine.report.blocks import ChartAxis, ChartLine, ChartPoint, Choice, Head, Points, Table
from trine.results.operator_work import OperatorUse, OperatorWork

#: Operators of the chart; all but the smallest of a large model.
MAX_POINTS = 200
#: Operators whose names stand beside their points.
_NAMED = 3
_COLOURS = {"forward": "forward", "backward": "backward", "recompute": "recompute", "optimizer": "optimizer"}
_TITLE = "Operators against the roofs of the GPU"
#: Operators with fewer FLOPs per byte count as moving bytes alone; the chart would be mostly empty with them.
_LEAST_INTENSITY = 0.01
#: A peak is drawn if an operator in its precision has at least this share of the FLOPs per byte that reach it.
_NEAR_PEAK = 0.2
#: The chart ends at this multiple of its outermost points.
_MARGIN = 3.0


def roofline(work: OperatorWork | None) -> Choice | None:
    """Return the roofline as a chart and as a table; None without an operator that computes."""
    if work is None:
        return None
    drawn = [use for use in work.operators if computes(use)]
    if not drawn:
        return None
    chart = _chart(work, drawn[:MAX_POINTS], len(drawn))
    return Choice(title=_TITLE, options=(("Chart", chart), ("Table", _table(work))))


def computes(use: OperatorUse) -> bool:
    """Return whether an operator has a place in the chart."""
    return use.size_bytes > 0 and use.flops >= _LEAST_INTENSITY * use.size_bytes


def _chart(work: OperatorWork, drawn: list[OperatorUse], total: int) -> Points:
    longest = max(use.time_ps for use in drawn)
    points = []
    for place, use in enumerate(drawn):
        points.append(
            ChartPoint(
                x=use.intensity, y=use.flop_per_s, name=_name(use), colour=_COLOURS.get(use.phase, "other"),
                label=_short_name(use) if place < _NAMED else "", detail=_detail(work, use),
                size=max(0.02, use.time_ps / longest),
            )
        )  # fmt: skip
    phases = dict.fromkeys(use.phase for use in drawn)
    return Points(
        title="",
        x_axis=ChartAxis(title="arithmetic intensity", unit="flop/byte", log=True),
        y_axis=ChartAxis(title="achieved", unit="flop/s", log=True),
        points=tuple(points),
        lines=_roofs(work, drawn),
        legend=tuple((phase, _COLOURS.get(phase, "other")) for phase in phases),
        note=_note(work, drawn, total),
    )


def _roofs(work: OperatorWork, drawn: list[OperatorUse]) -> tuple[ChartLine, ...]:
    """Return the roofs: the bandwidth of memory up to the highest peak, and the peak of each precision."""
    least = min(use.intensity for use in drawn) / _MARGIN
    most = max(use.intensity for use in drawn) * _MARGIN
    bandwidth = work.memory_bytes_per_s
    used = set()
    for use in drawn:
        peak = work.peaks.get(use.precision)
        if peak is not None and use.intensity * bandwidth >= _NEAR_PEAK * peak:
            used.add(use.precision)
    if not used:
        return (ChartLine(name="memory", points=((least, least * bandwidth), (most, most * bandwidth))),)
    highest = max(work.peaks[precision] for precision in used)
    ridge = highest / bandwidth
    lines = [ChartLine(name="", points=((least, least * bandwidth), (ridge, highest)))]
    for precision in sorted(used, key=lambda name: work.peaks[name]):
        rate = work.peaks[precision]
        end = max(most, _MARGIN * ridge)
        lines.append(
            ChartLine(name=f"peak in {precision}", points=((rate / bandwidth, rate), (end, rate)), dashed=True)
        )
    return tuple(lines)


def _note(work: OperatorWork, drawn: list[OperatorUse], total: int) -> str:
    words = [
        f"Arithmetic intensity is FLOPs per byte of memory traffic. The slope is the bandwidth of the {work.gpu}'s "
        "memory. Larger points take more of the step. FLOPs and bytes follow from shapes: each tensor moves once, so "
        "that operators whose data stay in the cache may lie above it."
    ]
    silent = sum(use.time_ps for use in work.operators if not computes(use))
    if work.time_ps and silent > 0.005 * work.time_ps:
        words.append(f"{100 * silent / work.time_ps:.0f} % of the time is of operators that only move data.")
    if total > len(drawn):
        words.append(f"The longest {len(drawn)} of {total} operators are drawn.")
    return " ".join(words)


def _name(use: OperatorUse) -> str:
    place = f" of {use.layer}" if use.layer else ""
    return f"{use.name}{place}, {use.phase}"


def _short_name(use: OperatorUse) -> str:
    """Return the module's name without its leading numbers, or the operator's name."""
    name = use.layer.rpartition("*.")[2] or use.name.rpartition("::")[2]
    return f"{name}, {use.phase}"


def _detail(work: OperatorWork, use: OperatorUse) -> str:
    share = 100 * use.time_ps / work.time_ps
    roof = work.roof(use)
    words = f"{share:.1f} % of the operators' time, {use.count:,} runs in {use.precision}"
    if math.isfinite(roof):
        words += f", {100 * use.flop_per_s / roof:.0f} % of its roof ({limit_of(work, use)})"
    return words


def limit_of(work: OperatorWork, use: OperatorUse) -> str:
    """Return which roof limits an operator: ``memory``, or the peak of its precision."""
    peak = work.peaks.get(use.precision, math.inf)
    return "memory" if use.intensity * work.memory_bytes_per_s < peak else f"{use.precision} peak"


def _table(work: OperatorWork) -> Table:
    columns = (
        Head(name="operator"), Head(name="phase"), Head(name="module"), Head(name="time", unit="s"),
        Head(name="share", unit="share"), Head(name="computes", unit="flop/s"), Head(name="moves", unit="bytes/s"),
        Head(name="of its roof", unit="share"), Head(name="roof"),
    )  # fmt: skip
    found = []
    for use in work.operators[:MAX_POINTS]:
        share = use.time_ps / work.time_ps
        roof_share = of_roof(work, use)
        found.append(
            (use.name, use.phase, use.layer, use.time_ps / 1e12, share, use.flop_per_s, use.bytes_per_s, roof_share,
             limit_of(work, use) if roof_share is not None else "")
        )  # fmt: skip
    note = "Times are of all stages of one replica, on a GPU without other work."
    return Table(title="", columns=columns, rows=tuple(found), note=note)


def of_roof(work: OperatorWork, use: OperatorUse) -> float | None:
    """Return the time that the roofs allow, as a share of the operator's time; None without bytes or a peak."""
    least_s = use.size_bytes / work.memory_bytes_per_s
    if use.flops:
        peak = work.peaks.get(use.precision)
        if peak is None:
            return None
        least_s = max(least_s, use.flops / peak)
    return least_s * 1e12 / use.time_ps if least_s else None
