"""Pictures of the case studies (extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trine.collectives.sizes import format_size
from trine.results.picture import COLOURS, check_ending, log_scale, save, subplots
from trine.studies.loadstore_cases.case import CaseStudy, Panel


def draw(study: CaseStudy, path: Path) -> None:
    """Draw all panels of ``study`` beside each other.

    Raises
    ------
    InputError: another ending than .png, .svg or .pdf, or a file that cannot be written. MissingExtraError.
    """
    check_ending(path)
    count = len(study.panels)
    figure, axes = subplots(1, count, figsize=(6.0 * count, 4.0), squeeze=False)
    for axis, panel in zip(axes.flat, study.panels, strict=True):
        _panel(axis, panel)
    save(figure, path)


def _panel(axis: Any, panel: Panel) -> None:
    for curve in panel.curves:
        axis.plot(curve.x, curve.y, curve.style, color=COLOURS[curve.colour % len(COLOURS)], label=curve.label,
                  markersize=4.5, linewidth=1.3)  # fmt: skip
    if "x" in panel.log:
        axis.set_xscale("log", base=2)
        ticks = sorted({x for curve in panel.curves for x in curve.x})
        shown = ticks[:: max(1, -(-len(ticks) // 8))]
        axis.set_xticks(shown, [format_size(int(x)) if panel.sizes else f"{x:g}" for x in shown])
        axis.xaxis.minorticks_off()
    if "y" in panel.log:
        log_scale(axis)
    axis.set_xlabel(f"{panel.x_label} (bytes)" if panel.sizes else panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, framealpha=0.8, edgecolor="none")
