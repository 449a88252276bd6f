"""The page about a validation, with its pictures, for the documentation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trine.collectives.sizes import format_size
from trine.outputs import write_text
from trine.studies.measured import COUNTED, load_machines
from trine.studies.report import head, met, place, skipped, verdicts
from trine.studies.validate import TARGETS, Statistics, Validation
from trine.units import format_time

PAGE = "collective-accuracy.md"
ERRORS_PICTURE, CURVES_PICTURE = "collective-accuracy-errors.png", "collective-accuracy-curves.png"
NUM_WORST = 20


def write_report(
    validation: Validation, folder: str | Path, left_out: Validation | None = None, doubt: str = ""
) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written.

    ``left_out``: the same measurements predicted by models fitted without their machine.
    """
    from trine.studies.report_plot import plot_curves, plot_errors

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot_errors(validation, folder / ERRORS_PICTURE)
    plot_curves(validation, folder / CURVES_PICTURE)
    write_text(folder / PAGE, page(validation, left_out, doubt))  # last: it names the pictures
    return [folder / name for name in (PAGE, ERRORS_PICTURE, CURVES_PICTURE)]


def page(validation: Validation, left_out: Validation | None = None, doubt: str = "") -> str:
    """The page in Markdown."""
    blocks = [_INTRO, f"{head(validation)}.", "## Totals and targets", _TARGETS_TEXT, _totals_table(validation)]
    if left_out is not None:
        blocks += ["### Leave-one-machine-out", _LEFT_OUT_TEXT, _totals_table(left_out)]
    if doubt:
        blocks.append(f"Note: {doubt}.")
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
