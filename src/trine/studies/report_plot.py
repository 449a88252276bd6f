"""Pictures of a validation (extra ``plot``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trine.collectives.plot import size_axis
from trine.results.picture import save, subplots
from trine.studies.measured import COUNTED, Series
from trine.studies.validate import MIB, Compared, Validation

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
