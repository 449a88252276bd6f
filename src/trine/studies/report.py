"""The answer of a validation as text for the terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trine._version import __version__
from trine.collectives.sizes import format_size
from trine.studies.check import check_curve
from trine.studies.hypotheses import Expected
from trine.studies.measured import COUNTED
from trine.studies.validate import TARGETS, Compared, Statistics, Validation


def summary_text(
    validation: Validation, machines: int | None = None, left_out: Validation | None = None, doubt: str = ""
) -> str:
    """Totals against the targets, then machine, collective and size band, the worst first.

    ``machines``: how many of the latter. ``left_out``, ``doubt``: of :func:`trine.studies.left_out.left_out`.
    """
    lines = [head(validation), "", f"{'':40} {'sizes':12} {_COLUMNS}", *_totals_lines(validation)]
    if left_out is not None and left_out.compared:
        lines += ["", "each family of machines predicted by parameters fitted without it:", *_totals_lines(left_out)]
    if doubt:
        lines += ["", f"note: {doubt}"]
    groups = validation.groups()
    lines += ["", f"{'machine':20} {'collective':14} {'sizes':15} {_COLUMNS}  worst"]
    lines += [
        f"{machine:20} {op:14} {band:15} {_numbers(stats)}  {stats.worst.error:+.0%} at {place(stats.worst)}"
        for machine, op, band, stats in groups[:machines]
    ]
    if machines is not None and len(groups) > machines:
        lines.append(f"... and {len(groups) - machines} better ones: --all shows them")
    lines += ["", *(f"not predicted: {name} ({count} series): {why}" for (name, why), count in skipped(validation))]
    return "\n".join(lines).rstrip()


def _totals_lines(validation: Validation) -> list[str]:
    return [f"{name:40} {band:12} {_numbers(s)}  {met(s, band)}" for name, band, s in validation.totals()]


_COLUMNS = f"{'points':>6} {'median':>6} {'p90':>6} {'bias':>6} {'inside':>6} {'width':>5}"


def head(validation: Validation) -> str:
    """How many points are behind the numbers."""
    points = validation.compared
    return (
        f"{len(points)} points of {len({x.series.number for x in points})} series predicted, "
        f"{len(validation.counted)} count; error = predicted / measured time - 1"
    )


def _numbers(s: Statistics) -> str:
    return f"{s.num_points:>6} {s.median:>6.1%} {s.p90:>6.1%} {s.bias:>+6.1%} {s.inside:>6.0%} {s.width:>5.2f}"


def met(stats: Statistics, band: str) -> str:
    """Whether the targets are met, and which are not."""
    return "meets the targets" if stats.meets(band) else f"misses: {', '.join(_missed(stats, band))}"


def _missed(stats: Statistics, band: str) -> list[str]:
    middle, tail, share, width = TARGETS[band]
    wrong = {
        f"median > {middle:.0%}": stats.median > middle,
        f"p90 > {tail:.0%}": stats.p90 > tail,
        f"inside < {share:.0%}": stats.inside < share,
        f"width > {width}": stats.width > width,
    }
    return [name for name, missed in wrong.items() if missed]


def place(each: Compared) -> str:
    """Size and GPUs of a point."""
    return f"{format_size(each.point.size_bytes)}, {each.series.num_gpus} GPUs"


def skipped(validation: Validation) -> list[tuple[tuple[str, str], int]]:
    """((machine, why), number of series) of what was not predicted."""
    return sorted(Counter((series.machine.name, why) for series, why in validation.skipped).items())


# -- JSON ------------------------------------------------------------------------------------------------------------


def report_json(validation: Validation, left_out: Validation | None = None, doubt: str = "") -> dict[str, Any]:
    """``totals``, ``left_out_totals``, ``groups`` (worst first), ``points``, ``skipped``; times in us, errors as parts
    of one."""
    return {
        "trine_version": __version__,
        "targets": {band: dict(zip(_TARGET_KEYS, values, strict=True)) for band, values in TARGETS.items()},
        "totals": _totals_json(validation),
        "left_out_totals": [] if left_out is None else _totals_json(left_out),
        "notes": [doubt] if doubt else [],
        "groups": [
            {"machine": machine, "op": op, "sizes": band, **_stats_json(stats)}
            for machine, op, band, stats in validation.groups()
        ],
        "points": [_point_json(each) for each in validation.compared],
        "skipped": [{"series": series.name, "why": why} for series, why in validation.skipped],
    }


_TARGET_KEYS = ("median_error_max", "p90_error_max", "share_inside_min", "median_width_max")


def _totals_json(validation: Validation) -> list[dict[str, Any]]:
    return [
        {"machines": name, "sizes": band, **_stats_json(stats), "meets_targets": stats.meets(band)}
        for name, band, stats in validation.totals()
    ]


def _stats_json(stats: Statistics) -> dict[str, Any]:
    return {
        "num_points": stats.num_points,
        "num_series": stats.num_series,
        "median_error": stats.median,
        "p90_error": stats.p90,
        "bias": stats.bias,
        "share_inside": stats.inside,
        "median_width": stats.width,
        "worst_series": stats.worst.series.name,
        "worst_size_bytes": stats.worst.point.size_bytes,
        "worst_error": stats.worst.error,
    }


def _point_json(each: Compared) -> dict[str, Any]:
    return {
        "series": each.series.name,
        "machine": each.series.machine.name,
        "op": each.series.op,
        "num_gpus": each.series.num_gpus,
        "size_bytes": each.point.size_bytes,
        "measured_us": each.point.time_ps / 1e6,
        "time_us": each.predicted.time_ps / 1e6,
        "low_us": each.predicted.low_ps / 1e6,
        "high_us": each.predicted.high_ps / 1e6,
        "algorithm": each.predicted.algorithm,
        "protocol": each.predicted.protocol,
        "quality": each.point.quality,
        "weight": each.weight,
    }


def verdicts(validation: Validation) -> list[tuple[str, int, int]]:
    """(quality, series that the rule of :func:`trine.studies.check.check_log` calls suspicious, all), by quality.

    Without the causes that are named after a part or an option: predicting those for every series takes minutes.
    """
    found: dict[tuple[int, str], list[Compared]] = {}
    for each in validation.compared:
        quality = "counted" if each.point.quality in COUNTED else each.point.quality
        found.setdefault((each.series.number, quality), []).append(each)
    answers: dict[str, list[bool]] = {}
    for (_, quality), points in found.items():
        expected = Expected(
            sizes=tuple(x.point.size_bytes for x in points), usual=tuple(x.predicted for x in points), causes=()
        )
        found_slow = check_curve(expected, [x.point.time_ps for x in points]).suspicious_from is not None
        answers.setdefault(quality, []).append(found_slow)
    return [(quality, sum(answers[quality]), len(answers[quality])) for quality in sorted(answers)]
