"""A validation as text for the terminal, as pictures (extra ``plot``), and as a page of the documentation."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from trine.check.hypotheses import Expected
from trine.check.verdict import HEALTHY, check_curve
from trine.collectives.picture import size_axis
from trine.collectives.sizes import format_size
from trine.results.picture import save, subplots
from trine.results.report import Row
from trine.results.text import columns
from validation.collectives import (
    MIB,
    NOT_COUNTED,
    TARGETS,
    CollectiveValidation,
    Compared,
    Statistics,
    statistics,
)
from validation.harness import grouped, markdown, page_text, write_with_pictures
from validation.measured import COUNTED, Series


def summary_text(validation: CollectiveValidation, machines: int | None = None) -> str:
    """Totals against the targets, then machine, collective and size band, the worst first.

    ``machines``: how many of the latter.
    """
    lines = [validation.headline, "", f"{'':29} {'sizes':11} {_COLUMNS}  missed targets", *_totals_lines(validation)]
    left_out = validation.left_out
    if left_out is not None and left_out.compared:
        lines += ["", "each family of machines predicted by parameters fitted without it:", *_totals_lines(left_out)]
    lines += [line for note in validation.notes for line in ("", f"note: {note}")]
    groups = validation.groups()
    rows: list[tuple[str, ...]] = [("machine", "collective", "sizes", *_HEAD, "worst")]
    rows += [
        (machine, op, band, *_cells(stats), f"{stats.at.error:+.0%} at {place(stats.at)}")
        for machine, op, band, stats in groups[:machines]
    ]
    lines += ["", *columns(rows, spare=(8, 6, 3, 5))]
    if machines is not None and len(groups) > machines:
        lines.append(f"... and {len(groups) - machines} better ones: --all shows them")
    lines += ["", *(f"not predicted: {name} ({count} series): {why}" for (name, why), count in skipped(validation))]
    return "\n".join(lines).rstrip()


def _totals_lines(validation: CollectiveValidation) -> list[str]:
    return [
        f"{name:29} {band:11} {_numbers(s)}  {_missed(name, s, band)}".rstrip() for name, band, s in validation.totals()
    ]


def _missed(name: str, stats: Statistics, band: str) -> str:
    """Return which targets are missed; nothing for points that do not count."""
    if name == NOT_COUNTED:
        return ""
    return ", ".join(word.split()[0] for word in stats.missed(band)) or "none"


_HEAD = ("points", "median", "p90", "bias", "inside", "width")
_COLUMNS = f"{' '.join(f'{name:>6}' for name in _HEAD[:-1])} {_HEAD[-1]:>5}"


def _cells(s: Statistics) -> tuple[str, ...]:
    return f"{s.count}", f"{s.median:.1%}", f"{s.p90:.1%}", f"{s.bias:+.1%}", f"{s.inside:.0%}", f"{s.width:.2f}"


def _numbers(stats: Statistics) -> str:
    *cells, width = _cells(stats)
    return f"{' '.join(f'{cell:>6}' for cell in cells)} {width:>5}"


def place(pair: Compared) -> str:
    """Size and GPUs of a point."""
    return f"{format_size(pair.point.size_bytes)}, {pair.series.num_gpus} GPUs"


def skipped(validation: CollectiveValidation) -> list[tuple[tuple[str, str], int]]:
    """Return ((machine, reason), number of series) of the series without a prediction."""
    return sorted(Counter((series.machine.name, why) for series, why in validation.skipped).items())


def verdicts(validation: CollectiveValidation) -> list[tuple[str, int, int]]:
    """(quality, series that :func:`trine.check.verdict.check_curve` does not call healthy, all), by quality.

    Without the causes that are named after a part or an option: predicting those for every series takes minutes.
    """

    def quality_of(pair: Compared) -> str:
        return "counted" if pair.point.quality in COUNTED else pair.point.quality

    points_by_series = grouped(validation.compared, lambda pair: (pair.series.number, quality_of(pair)))
    answers: dict[str, list[bool]] = {}
    for (_, quality), points in points_by_series.items():
        sizes = tuple(x.point.size_bytes for x in points)
        usual = tuple(x.predicted for x in points)
        expected = Expected(sizes=sizes, usual=usual, causes=())
        state = check_curve(expected, [x.point.time_ps for x in points]).state
        answers.setdefault(quality, []).append(state != HEALTHY)
    return [(quality, sum(answers[quality]), len(answers[quality])) for quality in sorted(answers)]


PAGE = "collective-accuracy.md"
ERRORS_PICTURE, CURVES_PICTURE = "collective-accuracy-errors.png", "collective-accuracy-curves.png"
GROUPS_TABLE, SERIES_TABLE = "collective-accuracy-groups.csv", "collective-accuracy-series.csv"
NUM_WORST = 8


def write_report(validation: CollectiveValidation, folder: str | Path) -> list[Path]:
    """Write the page, its tables and pictures into ``folder``; needs the extra ``plot``. Return the paths."""
    pictures = {
        ERRORS_PICTURE: lambda path: plot_errors(validation, path),
        CURVES_PICTURE: lambda path: plot_curves(validation, path),
    }
    tables = {GROUPS_TABLE: validation.tables()["groups"], SERIES_TABLE: _series_rows(validation)}
    return write_with_pictures(folder, PAGE, page(validation), pictures, tables)


def page(validation: CollectiveValidation) -> str:
    """Return the page in Markdown."""
    targets = (
        f"{band}: median {m:.0%}, p90 {p:.0%}, inside {s:.0%}, median width of the range (high / low) {w}"
        for band, (m, p, s, w) in TARGETS.items()
    )
    missed = []
    for name, band, stats in validation.totals():
        if name in _COUNTED_GROUPS and (wrong := stats.missed(band)):
            missed.append(f"{name} {band} ({', '.join(wrong)})")
    reasons = Counter(why.partition(":")[0] for _, why in validation.skipped)
    qualities = Counter(x.point.quality for x in validation.compared if x.point.quality not in COUNTED)
    target_lines = "\n".join(f"- Target {target}." for target in targets)
    note_lines = "".join(f"Note: {note}.\n\n" for note in validation.notes)
    not_counted = ", ".join(f"{count} {name}" for name, count in qualities.most_common())
    skipped = ", ".join(f"{why} ({count})" for why, count in reasons.items())
    verdict_words = ", ".join(f"{wrong} of {total} {name} series" for name, wrong, total in verdicts(validation))
    return page_text(
        PAGE, headline=validation.headline, totals=_totals_table(validation), targets=target_lines, notes=note_lines,
        worst=_worst_table(validation), missed="; ".join(missed) or "none", not_counted=not_counted or "none",
        skipped=skipped or "none", verdicts=verdict_words,
    )  # fmt: skip


_COUNTED_GROUPS = ("all machines", "machines used for fitting", "held-out machines", "one node", "several nodes")


def _totals_table(validation: CollectiveValidation) -> str:
    """Return the errors of each group of machines, a row each, with both size bands side by side."""
    groups = validation.totals()
    for name, band, stats in validation.left_out.totals() if validation.left_out is not None else ():
        if name in ("all machines", "several nodes"):
            groups.append((f"family left out: {name}", band, stats))
    rows = []
    for name, members in grouped(groups, lambda group: group[0]).items():
        bands = {}
        for _, band, s in members:
            bands[band] = (*_cells(s)[:3], _cells(s)[4], "yes" if s.meets(band) else "no")
        rows.append((name, *(cell for band in TARGETS for cell in bands.get(band, ("",) * 5))))
    head = [cell for band in TARGETS for cell in (f"{band}: points", "median", "p90", "inside", "targets met")]
    return markdown(("machines", *head), rows)


def _worst_table(validation: CollectiveValidation) -> str:
    rows = [
        (machine, op, band, stats.count, f"{stats.median:.1%}", f"{stats.at.error:+.0%} at {place(stats.at)}")
        for machine, op, band, stats in validation.groups()[:NUM_WORST]
    ]
    return markdown(("machine", "collective", "sizes", "points", "median", "worst point"), rows)


def _series_rows(validation: CollectiveValidation) -> list[Row]:
    """Return a row for each series, the largest error first, then the series without a prediction."""
    points_by_series = grouped(validation.compared, lambda each: each.series.number)
    ranked = sorted(points_by_series.values(), key=lambda points: -max(abs(x.error) for x in points))
    pairs = [*((points[0].series, points, "") for points in ranked), *((s, [], why) for s, why in validation.skipped)]
    rows: list[Row] = []
    for series, points, why in pairs:
        machine, stats = series.machine, statistics(points)
        worst = stats and stats.at
        num_counted = sum(x.point.quality in COUNTED for x in points)
        rows.append({
            "series": series.name, "machine": machine.name, "family": machine.family, "split": machine.split,
            "cluster": machine.cluster, "launch": machine.launch, "points": len(points),
            "counted_points": num_counted, "median_error": stats and stats.median,
            "worst_error": worst and worst.error,
            "worst_size_bytes": worst and worst.point.size_bytes, "measured_us": worst and worst.point.time_ps / 1e6,
            "predicted_us": worst and worst.predicted.time_ps / 1e6,
            "predicted_choice": worst and f"{worst.predicted.algorithm}/{worst.predicted.protocol}",
            "observed_choice": series.observed,
            "not_counted": "; ".join({x.point.reason: "" for x in points if x.point.quality not in COUNTED}),
            "not_predicted": why, "source": series.source,
        })  # fmt: skip
    return rows


#: Machines, collectives and GPUs of the drawn curves, if they are compared.
CURVES = (
    ("aic-a100", "all_reduce", 8), ("aic-h100", "all_reduce", 8), ("aic-b200", "all_reduce", 8),
    ("aic-h100", "all_to_all", 8), ("aic-rtx-pro-6000", "all_reduce", 8), ("vtrain-v100", "all_reduce", 8),
    ("mi300x-8-aac8", "all_reduce", 8), ("mi355x-8", "all_reduce", 8), ("h100-2x8", "all_reduce", 16),
)  # fmt: skip


def plot_errors(validation: CollectiveValidation, path: Path) -> None:
    """Draw predicted / measured time against size, one dot per point."""
    figure, axis = subplots(figsize=(10, 4.6))
    not_counted = [x for x in validation.compared if x.point.quality not in COUNTED]
    one_node = [x for x in validation.counted if x.series.num_nodes <= 1]
    several_nodes = [x for x in validation.counted if x.series.num_nodes > 1]
    kinds = (
        ("not counted", "#BBBBBB", not_counted),
        ("one node", "#0072B2", one_node),
        ("several nodes", "#D55E00", several_nodes),
    )
    for name, colour, points in kinds:
        sizes = [x.point.size_bytes for x in points]
        ratios = [1 + x.error for x in points]
        axis.scatter(sizes, ratios, s=6, color=colour, lw=0, alpha=0.6, label=f"{name} ({len(points)})")
    for low, high, first, last in ((0.75, 1.25, 1, MIB), (0.88, 1.12, MIB, 1 << 35)):
        axis.fill_between([first, last], low, high, color="#009E73", alpha=0.12, lw=0)
    axis.axhline(1, color="black", lw=0.8)
    size_axis(axis, [2**power for power in range(3, 36, 3)])
    axis.set_yscale("log", base=2)
    axis.set_ylim(1 / 8, 8)
    ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ylabel("predicted / measured time")
    axis.set_title("Green: the targets for the median error (25 % below 1 MiB, 12 % from there)", fontsize=10)
    axis.legend(frameon=False, fontsize=9)
    save(figure, path)


def plot_curves(validation: CollectiveValidation, path: Path) -> None:
    """Draw bus bandwidth against size for some series: measured dots, predicted line and range."""
    curves = []
    for name in CURVES:
        if (pair := series_named(validation, *name)) is not None:
            curves.append(pair)
    figure, axes = subplots(-(-max(1, len(curves)) // 3), 3, figsize=(11, 3.1 * -(-max(1, len(curves)) // 3)),
                             squeeze=False)  # fmt: skip
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    for axis, (series, points) in zip(axes.flat, curves, strict=False):
        _curve(axis, points)
        axis.set_title(series.name, fontsize=9)
    axes.flat[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _curve(axis: Any, points: list[Compared]) -> None:
    sizes = [x.point.size_bytes for x in points]
    bus_bytes = [x.predicted.sent_bytes * x.predicted.bus_factor * 1e3 for x in points]
    highs = [x.predicted.high_ps for x in points]
    lows = [x.predicted.low_ps for x in points]
    predicted_ps = [x.predicted.time_ps for x in points]
    measured_ps = [x.point.time_ps for x in points]
    times = (highs, lows, predicted_ps, measured_ps)
    low, high, predicted, measured = ([m / t for m, t in zip(bus_bytes, series, strict=True)] for series in times)
    axis.fill_between(sizes, low, high, color="#56B4E9", alpha=0.3, lw=0, label="band")
    axis.plot(sizes, predicted, color="black", lw=1, label="predicted")
    colours = []
    for x in points:
        colours.append("#009E73" if x.point.quality in COUNTED else "#BBBBBB")
    axis.scatter(sizes, measured, s=10, zorder=3, label="measured", color=colours)
    first, last = math.ceil(math.log2(sizes[0])), math.floor(math.log2(sizes[-1]))
    size_axis(axis, [2**power for power in range(first, last + 1, max(1, (last - first) // 4))])
    axis.set_xlabel("")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.set_ylabel("busbw (GB/s)", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)


def series_named(
    validation: CollectiveValidation, machine: str, op: str, gpus: int
) -> tuple[Series, list[Compared]] | None:
    """Return the newest run and its points in ascending size, or None."""
    key = machine, op, gpus
    points = (x for x in validation.compared if (x.series.machine.name, x.series.op, x.series.num_gpus) == key)
    points_by_run = grouped(points, lambda each: each.series.number)
    if not points_by_run:
        return None
    newest = points_by_run[max(points_by_run)]
    return newest[0].series, sorted(newest, key=lambda each: each.point.size_bytes)
