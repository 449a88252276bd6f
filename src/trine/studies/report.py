"""A validation as text for the terminal, as pictures (extra ``plot``), and as a page of the documentation."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from trine.collectives.plot import size_axis
from trine.collectives.sizes import format_size
from trine.outputs import write_text
from trine.results.picture import save, subplots
from trine.studies.check import check_curve
from trine.studies.hypotheses import Expected
from trine.studies.measured import COUNTED, Series, load_machines
from trine.studies.validate import MIB, TARGETS, Compared, Statistics, Validation
from trine.units import format_time


def summary_text(validation: Validation, machines: int | None = None) -> str:
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


PAGE = "collective-accuracy.md"
ERRORS_PICTURE, CURVES_PICTURE = "collective-accuracy-errors.png", "collective-accuracy-curves.png"
NUM_WORST = 20


def write_report(validation: Validation, folder: str | Path) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot_errors(validation, folder / ERRORS_PICTURE)
    plot_curves(validation, folder / CURVES_PICTURE)
    write_text(folder / PAGE, page(validation))  # last: it names the pictures
    return [folder / name for name in (PAGE, ERRORS_PICTURE, CURVES_PICTURE)]


def page(validation: Validation) -> str:
    """The page in Markdown."""
    blocks = [_INTRO, f"{validation.headline}.", "## Totals and targets", _TARGETS_TEXT, _totals_table(validation)]
    if validation.left_out is not None:
        blocks += ["### Leave-one-machine-out", _LEFT_OUT_TEXT, _totals_table(validation.left_out)]
    blocks += [f"Note: {note}." for note in validation.notes]
    blocks += [
        f"![Predicted over measured time by size]({ERRORS_PICTURE})",
        f"![Measured bus bandwidth and the predicted band]({CURVES_PICTURE})",
        "## By machine, collective and size, worst first", _groups_table(validation),
        f"## The {NUM_WORST} worst series", _worst_table(validation),
        "## What `trine check` would say", _verdicts_text(validation),
        "## What does not count, and why", _REASONS_TEXT, _reasons_table(validation),
        "## Not predicted", _skipped_table(validation),
        "## Machines", _MACHINES_TEXT, _machines_table(validation),
    ]  # fmt: skip
    return "\n\n".join(blocks) + "\n"


_INTRO = """# How far predicted collectives are from measured ones

Written by `trine validate collectives --report docs/background` (`make validation`); do not edit. Measured: nccl-tests
and rccl-tests tables that others published, and the profiles of aiconfigurator, vidur and vTrain
(`src/trine/presets/measured`, with licences; `benchmarks/bundle_measurements.py` says how they were thinned). None was
measured by us. Error: predicted / measured time - 1. *Inside*: share of measurements in the stated band; *width*: the
band's high / low. A point weighs 1 / (runs of the same machine, collective, GPUs and settings), so that one machine
with four library versions counts once."""
_TARGETS_TEXT = "Targets: " + "; ".join(
    f"{band}: median error at most {m:.0%}, 90th percentile {p:.0%}, {s:.0%} inside a band of width {w} or less"
    for band, (m, p, s, w) in TARGETS.items()
) + "."  # fmt: skip
_REASONS_TEXT = """Said by hand in `machines.yaml`, from what the source or the curve itself shows. Two of the reasons
were found only when a first comparison had pointed at the rows: those of rtx-6000d-2x8 and of send_recv of vidur."""
_VERDICTS_TEXT = """The rule of `trine check` on the same series, without the causes that are named after a
part or an option ([with them](../guides/check.md#how-often-it-is-right)). Suspicious among the counted: false alarms,
or rather machines that the model takes to be faster than they are. Among the degraded: what should be found."""
_LEFT_OUT_TEXT = """Each family of machines predicted by parameters that were fitted without it
(`benchmarks/fit_collectives.py --leave`), machines of the split `fit` only; the held-out ones had no part in any."""
_MACHINES_TEXT = (
    "Split: parameters may be fitted on `fit` machines only. Family: what leave-one-machine-out leaves out."
)


def _table(header: str, rows: list[str]) -> str:
    columns = header.count("|") - 1
    return "\n".join([header, "|" + "---|" * columns, *rows])


def _cells(stats: Statistics) -> str:
    return (
        f"{stats.num_points} | {stats.median:.1%} | {stats.p90:.1%} | {stats.bias:+.1%} | {stats.inside:.0%} | "
        f"{stats.width:.2f}"
    )


def _totals_table(validation: Validation) -> str:
    rows = [f"| {name} | {band} | {_cells(s)} | {met(s, band)} |" for name, band, s in validation.totals()]
    return _table("| machines | sizes | points | median | p90 | bias | inside | width | targets |", rows)


def _groups_table(validation: Validation) -> str:
    rows = [
        f"| {machine} | {op} | {band} | {_cells(stats)} | {stats.worst.error:+.0%} at {place(stats.worst)} |"
        for machine, op, band, stats in validation.groups()
    ]
    return _table("| machine | collective | sizes | points | median | p90 | bias | inside | width | worst |", rows)


def _worst_table(validation: Validation) -> str:
    rows = [
        f"| {each.series.name} | {format_size(each.point.size_bytes)} | {format_time(each.point.time_ps)} | "
        f"{format_time(each.predicted.time_ps)} | {each.error:+.0%} | "
        f"{each.predicted.algorithm}/{each.predicted.protocol} | {each.series.observed or '-'} |"
        for each in validation.worst(NUM_WORST)
    ]
    return _table("| series | size | measured | predicted | error | predicted choice | library's choice |", rows)


def _verdicts_text(validation: Validation) -> str:
    rows = [f"| {quality} | {suspicious} | {total} |" for quality, suspicious, total in verdicts(validation)]
    return "\n\n".join((_VERDICTS_TEXT, _table("| points | suspicious | series |", rows)))


def _reasons_table(validation: Validation) -> str:
    found: Counter[tuple[str, str, str]] = Counter()
    for each in validation.compared:
        if each.point.quality not in COUNTED:
            found[each.series.machine.name, each.point.quality, each.point.reason] += 1
    rows = [f"| {name} | {quality} | {count} | {why} |" for (name, quality, why), count in sorted(found.items())]
    return _table("| machine | quality | points | reason |", rows)


def _skipped_table(validation: Validation) -> str:
    rows = [f"| {name} | {count} | {why} |" for (name, why), count in skipped(validation)]
    return _table("| machine | series | reason |", rows) if rows else "Everything was predicted."


def _machines_table(validation: Validation) -> str:
    series = [*{x.series.number: x.series for x in validation.compared}.values(), *(s for s, _ in validation.skipped)]
    sources: dict[str, list[str]] = {}
    for each in series:
        known = sources.setdefault(each.machine.name, [])
        if each.source not in known:
            known.append(each.source)
    rows = []
    for name, machine in load_machines().items():
        if name in sources:
            rows.append(
                f"| {name} | {machine.family} | {machine.split} | {machine.cluster or '-'} | {machine.launch} | "
                f"{'; '.join(_short(source) for source in sources[name])} |"
            )
    return _table("| machine | family | split | cluster | launch | sources |", rows)


def _short(source: str) -> str:
    return source.replace("|", "/").removeprefix("https://").removeprefix("github:")


#: Machines and collectives whose curves are drawn, where they are among those compared.
CURVES = (
    ("aic-a100", "all_reduce", 8), ("aic-h100", "all_reduce", 8), ("aic-b200", "all_reduce", 8),
    ("aic-h100", "all_to_all", 8), ("aic-rtx-pro-6000", "all_reduce", 8), ("vtrain-v100", "all_reduce", 8),
    ("mi300x-8-aac8", "all_reduce", 8), ("mi355x-8", "all_reduce", 8), ("h100-2x8", "all_reduce", 16),
)  # fmt: skip


def plot_errors(validation: Validation, path: Path) -> None:
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


def plot_curves(validation: Validation, path: Path) -> None:
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


def series_named(validation: Validation, machine: str, op: str, gpus: int) -> tuple[Series, list[Compared]] | None:
    """A series and its points in ascending size, the newest run of those that fit; None if there is none."""
    found: dict[int, list[Compared]] = {}
    for each in validation.compared:
        if (each.series.machine.name, each.series.op, each.series.num_gpus) == (machine, op, gpus):
            found.setdefault(each.series.number, []).append(each)
    if not found:
        return None
    number = max(found)
    return found[number][0].series, sorted(found[number], key=lambda each: each.point.size_bytes)
