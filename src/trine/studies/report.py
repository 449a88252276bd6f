"""A validation as text for the terminal, as pictures (extra ``plot``), and as a page of the documentation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trine.collectives.plot import size_axis
from trine.collectives.sizes import format_size
from trine.results.picture import save, subplots
from trine.studies.check import check_curve
from trine.studies.hypotheses import Expected
from trine.studies.measured import COUNTED, Series, load_machines
from trine.studies.validate import MIB, TARGETS, CollectiveValidation, Compared, Statistics
from trine.studies.validation import grouped, markdown, page_text, write_with_pictures
from trine.units import format_time


def summary_text(validation: CollectiveValidation, machines: int | None = None) -> str:
    """Totals against the targets, then machine, collective and size band, the worst first.

    ``machines``: how many of the latter.
    """
    lines = [validation.headline, "", f"{'':40} {'sizes':12} {_COLUMNS}", *_totals_lines(validation)]
    left_out = validation.left_out
    if left_out is not None and left_out.compared:
        lines += ["", "each family of machines predicted by parameters fitted without it:", *_totals_lines(left_out)]
    lines += [line for note in validation.notes for line in ("", f"note: {note}")]
    groups = validation.groups()
    lines += ["", f"{'machine':20} {'collective':14} {'sizes':15} {_COLUMNS}  worst"]
    lines += [
        f"{machine:20} {op:14} {band:15} {_numbers(stats)}  {stats.at.error:+.0%} at {place(stats.at)}"
        for machine, op, band, stats in groups[:machines]
    ]
    if machines is not None and len(groups) > machines:
        lines.append(f"... and {len(groups) - machines} better ones: --all shows them")
    lines += ["", *(f"not predicted: {name} ({count} series): {why}" for (name, why), count in skipped(validation))]
    return "\n".join(lines).rstrip()


def _totals_lines(validation: CollectiveValidation) -> list[str]:
    return [f"{name:40} {band:12} {_numbers(s)}  {met(s, band)}" for name, band, s in validation.totals()]


_HEAD = ("points", "median", "p90", "bias", "inside", "width")
_COLUMNS = f"{' '.join(f'{name:>6}' for name in _HEAD[:-1])} {_HEAD[-1]:>5}"


def _cells(s: Statistics) -> tuple[str, ...]:
    return f"{s.count}", f"{s.median:.1%}", f"{s.p90:.1%}", f"{s.bias:+.1%}", f"{s.inside:.0%}", f"{s.width:.2f}"


def _numbers(stats: Statistics) -> str:
    *cells, width = _cells(stats)
    return f"{' '.join(f'{cell:>6}' for cell in cells)} {width:>5}"


def met(stats: Statistics, band: str) -> str:
    """Whether the targets are met, and which are not."""
    return "meets the targets" if stats.meets(band) else f"misses: {', '.join(stats.missed(band))}"


def place(each: Compared) -> str:
    """Size and GPUs of a point."""
    return f"{format_size(each.point.size_bytes)}, {each.series.num_gpus} GPUs"


def skipped(validation: CollectiveValidation) -> list[tuple[tuple[str, str], int]]:
    """((machine, why), number of series) of what was not predicted."""
    return sorted(Counter((series.machine.name, why) for series, why in validation.skipped).items())


def verdicts(validation: CollectiveValidation) -> list[tuple[str, int, int]]:
    """(quality, series that the rule of :func:`trine.studies.check.check_log` calls suspicious, all), by quality.

    Without the causes that are named after a part or an option: predicting those for every series takes minutes.
    """

    def quality_of(each: Compared) -> str:
        return "counted" if each.point.quality in COUNTED else each.point.quality

    found = grouped(validation.compared, lambda each: (each.series.number, quality_of(each)))
    answers: dict[str, list[bool]] = {}
    for (_, quality), points in found.items():
        expected = Expected(
            sizes=tuple(x.point.size_bytes for x in points), usual=tuple(x.predicted for x in points), causes=()
        )
        found_slow = check_curve(expected, [x.point.time_ps for x in points]).suspicious_from is not None
        answers.setdefault(quality, []).append(found_slow)
    return [(quality, sum(answers[quality]), len(answers[quality])) for quality in sorted(answers)]


PAGE = "collective-accuracy.md"
ERRORS_PICTURE, CURVES_PICTURE = "collective-accuracy-errors.png", "collective-accuracy-curves.png"
NUM_WORST = 20


def write_report(validation: CollectiveValidation, folder: str | Path) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written."""
    pictures = {
        ERRORS_PICTURE: lambda path: plot_errors(validation, path),
        CURVES_PICTURE: lambda path: plot_curves(validation, path),
    }
    return write_with_pictures(folder, PAGE, page(validation), pictures)


def page(validation: CollectiveValidation) -> str:
    """The page in Markdown."""
    left_out = []
    if validation.left_out is not None:
        left_out = ["### Leave-one-machine-out", _LEFT_OUT_TEXT, _totals_table(validation.left_out)]
    left_out += [f"Note: {note}." for note in validation.notes]
    targets = (
        f"{band}: median error at most {m:.0%}, 90th percentile {p:.0%}, {s:.0%} inside a band of width {w} or less"
        for band, (m, p, s, w) in TARGETS.items()
    )
    return page_text(
        PAGE,
        headline=validation.headline,
        targets=f"Targets: {'; '.join(targets)}.",
        totals=_totals_table(validation),
        left_out="".join(f"{block}\n\n" for block in left_out),
        groups=_groups_table(validation),
        num_worst=NUM_WORST,
        worst=_worst_table(validation),
        verdicts=markdown(("points", "suspicious", "series"), verdicts(validation)),
        reasons=_reasons_table(validation),
        skipped=_skipped_table(validation),
        machines=_machines_table(validation),
    )


_LEFT_OUT_TEXT = """Each family of machines predicted by parameters that were fitted without it
(`benchmarks/fit_collectives.py --leave`), machines of the split `fit` only; the held-out ones had no part in any."""


def _totals_table(validation: CollectiveValidation) -> str:
    rows = [(name, band, *_cells(s), met(s, band)) for name, band, s in validation.totals()]
    return markdown(("machines", "sizes", *_HEAD, "targets"), rows)


def _groups_table(validation: CollectiveValidation) -> str:
    rows = [
        (machine, op, band, *_cells(stats), f"{stats.at.error:+.0%} at {place(stats.at)}")
        for machine, op, band, stats in validation.groups()
    ]
    return markdown(("machine", "collective", "sizes", *_HEAD, "worst"), rows)


def _worst_table(validation: CollectiveValidation) -> str:
    rows = [
        (
            each.series.name, format_size(each.point.size_bytes), format_time(each.point.time_ps),
            format_time(each.predicted.time_ps), f"{each.error:+.0%}",
            f"{each.predicted.algorithm}/{each.predicted.protocol}", each.series.observed or "-",
        )
        for each in validation.worst(NUM_WORST)
    ]  # fmt: skip
    head = ("series", "size", "measured", "predicted", "error", "predicted choice", "library's choice")
    return markdown(head, rows)


def _reasons_table(validation: CollectiveValidation) -> str:
    points = (x for x in validation.compared if x.point.quality not in COUNTED)
    found = Counter((x.series.machine.name, x.point.quality, x.point.reason) for x in points)
    rows = [(name, quality, count, why) for (name, quality, why), count in sorted(found.items())]
    return markdown(("machine", "quality", "points", "reason"), rows)


def _skipped_table(validation: CollectiveValidation) -> str:
    rows = [(name, count, why) for (name, why), count in skipped(validation)]
    return markdown(("machine", "series", "reason"), rows) if rows else "Everything was predicted."


def _machines_table(validation: CollectiveValidation) -> str:
    series = [*{x.series.number: x.series for x in validation.compared}.values(), *(s for s, _ in validation.skipped)]
    by_machine = grouped(series, lambda each: each.machine.name)
    rows = [
        (name, machine.family, machine.split, machine.cluster or "-", machine.launch, _sources(by_machine[name]))
        for name, machine in load_machines().items()
        if name in by_machine
    ]
    return markdown(("machine", "family", "split", "cluster", "launch", "sources"), rows)


def _sources(series: Iterable[Series]) -> str:
    sources = dict.fromkeys(each.source for each in series)
    return "; ".join(text.replace("|", "/").removeprefix("https://").removeprefix("github:") for text in sources)


#: Machines and collectives whose curves are drawn, where they are among those compared.
CURVES = (
    ("aic-a100", "all_reduce", 8), ("aic-h100", "all_reduce", 8), ("aic-b200", "all_reduce", 8),
    ("aic-h100", "all_to_all", 8), ("aic-rtx-pro-6000", "all_reduce", 8), ("vtrain-v100", "all_reduce", 8),
    ("mi300x-8-aac8", "all_reduce", 8), ("mi355x-8", "all_reduce", 8), ("h100-2x8", "all_reduce", 16),
)  # fmt: skip


def plot_errors(validation: CollectiveValidation, path: Path) -> None:
    """Predicted / measured time over the size, one dot a point; held-out machines and what does not count apart."""
    figure, axis = subplots(figsize=(10, 4.6))
    kinds = (
        ("not counted", "#BBBBBB", [x for x in validation.compared if x.point.quality not in COUNTED]),
        ("one node", "#0072B2", [x for x in validation.counted if x.series.num_nodes <= 1]),
        ("several nodes", "#D55E00", [x for x in validation.counted if x.series.num_nodes > 1]),
    )
    for name, colour, points in kinds:
        axis.scatter([x.point.size_bytes for x in points], [1 + x.error for x in points], s=6, color=colour, lw=0,
                     alpha=0.6, label=f"{name} ({len(points)})")  # fmt: skip
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
    """Bus bandwidth over the size of some series: measured dots, predicted line and band."""
    found = [pair for name in CURVES if (pair := series_named(validation, *name)) is not None]
    figure, axes = subplots(-(-max(1, len(found)) // 3), 3, figsize=(11, 3.1 * -(-max(1, len(found)) // 3)),
                             squeeze=False)  # fmt: skip
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (series, points) in zip(axes.flat, found, strict=False):
        _curve(axis, points)
        axis.set_title(series.name, fontsize=9)
    axes.flat[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _curve(axis: Any, points: list[Compared]) -> None:
    sizes = [x.point.size_bytes for x in points]
    moved = [x.predicted.sent_bytes * x.predicted.bus_factor * 1e3 for x in points]
    times = ([x.predicted.high_ps for x in points], [x.predicted.low_ps for x in points],
             [x.predicted.time_ps for x in points], [x.point.time_ps for x in points])  # fmt: skip
    low, high, predicted, measured = ([m / t for m, t in zip(moved, each, strict=True)] for each in times)
    axis.fill_between(sizes, low, high, color="#56B4E9", alpha=0.3, lw=0, label="band")
    axis.plot(sizes, predicted, color="black", lw=1, label="predicted")
    colours = ["#009E73" if x.point.quality in COUNTED else "#BBBBBB" for x in points]
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
    """A series and its points in ascending size, the newest run of those that fit; None if there is none."""
    asked = machine, op, gpus
    mine = (x for x in validation.compared if (x.series.machine.name, x.series.op, x.series.num_gpus) == asked)
    found = grouped(mine, lambda each: each.series.number)
    if not found:
        return None
    newest = found[max(found)]
    return newest[0].series, sorted(newest, key=lambda each: each.point.size_bytes)
