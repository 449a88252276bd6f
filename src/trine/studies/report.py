"""The report of a validation: text for the terminal, JSON, and a page with pictures for the documentation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from trine.collectives.sizes import format_size
from trine.studies.measured import COUNTED, Series, load_machines
from trine.studies.validate import TARGETS, Compared, Statistics, Validation
from trine.units import format_time

PAGE = "collective-accuracy.md"
ERRORS_PICTURE, CURVES_PICTURE = "collective-accuracy-errors.png", "collective-accuracy-curves.png"
NUM_WORST = 20


def summary_text(validation: Validation, machines: int | None = None) -> str:
    """Totals against the targets, then machine, collective and size band, the worst first."""
    lines = [_head(validation), "", f"{'':40} {'sizes':12} {_COLUMNS}"]
    lines += [
        f"{name:40} {band:12} {_numbers(stats)}  {_met(stats, band)}" for name, band, stats in validation.totals()
    ]
    groups = validation.groups()
    lines += ["", f"{'machine':20} {'collective':14} {'sizes':15} {_COLUMNS}  worst"]
    lines += [
        f"{machine:20} {op:14} {band:15} {_numbers(stats)}  {stats.worst.error:+.0%} at {_place(stats.worst)}"
        for machine, op, band, stats in groups[:machines]
    ]
    if machines is not None and len(groups) > machines:
        lines.append(f"... and {len(groups) - machines} better ones: --all shows them")
    lines += ["", *(f"not predicted: {name} ({count} series): {why}" for (name, why), count in _skipped(validation))]
    return "\n".join(lines).rstrip()


_COLUMNS = f"{'points':>6} {'median':>6} {'p90':>6} {'bias':>6} {'inside':>6} {'width':>5}"


def _head(validation: Validation) -> str:
    points = validation.compared
    return (
        f"{len(points)} points of {len({x.series.number for x in points})} series predicted, "
        f"{len(validation.counted)} count; error = predicted / measured time - 1"
    )


def _numbers(s: Statistics) -> str:
    return f"{s.num_points:>6} {s.median:>6.1%} {s.p90:>6.1%} {s.bias:>+6.1%} {s.inside:>6.0%} {s.width:>5.2f}"


def _met(stats: Statistics, band: str) -> str:
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


def _place(each: Compared) -> str:
    return f"{format_size(each.point.size_bytes)}, {each.series.num_gpus} GPUs"


def _skipped(validation: Validation) -> list[tuple[tuple[str, str], int]]:
    return sorted(Counter((series.machine.name, why) for series, why in validation.skipped).items())


# -- JSON ------------------------------------------------------------------------------------------------------------


def report_json(validation: Validation) -> dict[str, Any]:
    """``totals``, ``groups`` (worst first), ``points`` and ``skipped``; times in us, errors as parts of one."""
    from trine import __version__

    return {
        "trine_version": __version__,
        "targets": {band: dict(zip(_TARGET_KEYS, values, strict=True)) for band, values in TARGETS.items()},
        "totals": [
            {"machines": name, "sizes": band, **_stats_json(stats), "meets_targets": stats.meets(band)}
            for name, band, stats in validation.totals()
        ],
        "groups": [
            {"machine": machine, "op": op, "sizes": band, **_stats_json(stats)}
            for machine, op, band, stats in validation.groups()
        ],
        "points": [_point_json(each) for each in validation.compared],
        "skipped": [{"series": series.name, "why": why} for series, why in validation.skipped],
    }


_TARGET_KEYS = ("median_error_max", "p90_error_max", "share_inside_min", "median_width_max")


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


# -- the page --------------------------------------------------------------------------------------------------------


def write_report(validation: Validation, folder: str | Path, left_out: Validation | None = None) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written.

    ``left_out``: the same measurements predicted by models fitted without their machine.
    """
    from trine.studies.report_plot import plot_curves, plot_errors

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot_errors(validation, folder / ERRORS_PICTURE)
    plot_curves(validation, folder / CURVES_PICTURE)
    (folder / PAGE).write_text(page(validation, left_out), encoding="utf-8")
    return [folder / name for name in (PAGE, ERRORS_PICTURE, CURVES_PICTURE)]


def page(validation: Validation, left_out: Validation | None = None) -> str:
    """The page in Markdown."""
    blocks = [_INTRO, f"{_head(validation)}.", "## Totals and targets", _TARGETS_TEXT, _totals_table(validation)]
    if left_out is not None:
        blocks += ["### Leave-one-machine-out", _LEFT_OUT_TEXT, _totals_table(left_out)]
    blocks += [
        f"![Predicted over measured time by size]({ERRORS_PICTURE})",
        f"![Measured bus bandwidth and the predicted band]({CURVES_PICTURE})",
        "## By machine, collective and size, worst first", _groups_table(validation),
        f"## The {NUM_WORST} worst series", _worst_table(validation),
        "## What does not count, and why", _reasons_table(validation),
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
_LEFT_OUT_TEXT = "Each family of machines predicted by parameters that were fitted without it."
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
    rows = [f"| {name} | {band} | {_cells(s)} | {_met(s, band)} |" for name, band, s in validation.totals()]
    return _table("| machines | sizes | points | median | p90 | bias | inside | width | targets |", rows)


def _groups_table(validation: Validation) -> str:
    rows = [
        f"| {machine} | {op} | {band} | {_cells(stats)} | {stats.worst.error:+.0%} at {_place(stats.worst)} |"
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


def _reasons_table(validation: Validation) -> str:
    found: Counter[tuple[str, str, str]] = Counter()
    for each in validation.compared:
        if each.point.quality not in COUNTED:
            found[each.series.machine.name, each.point.quality, each.point.reason] += 1
    rows = [f"| {name} | {quality} | {count} | {why} |" for (name, quality, why), count in sorted(found.items())]
    return _table("| machine | quality | points | reason |", rows)


def _skipped_table(validation: Validation) -> str:
    rows = [f"| {name} | {count} | {why} |" for (name, why), count in _skipped(validation)]
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
