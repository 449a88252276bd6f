"""Pictures of the case studies (extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trine.collectives.plot import COLOURS, ENDINGS, pyplot
from trine.collectives.sizes import format_size
from trine.errors import InputError
from trine.studies.loadstore_cases.case import CaseStudy, Panel


def draw(study: CaseStudy, path: Path) -> None:
    """Draw all panels of ``study`` beside each other.

    Raises
    ------
    InputError: another ending than .png, .svg or .pdf, or a file that cannot be written. MissingExtraError.
    """
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"a picture is a file of {', '.join(ENDINGS)}", file=path)
    plt = pyplot()
    count = len(study.panels)
    figure, axes = plt.subplots(1, count, figsize=(6.0 * count, 4.0), layout="constrained", squeeze=False)
    for axis, panel in zip(axes.flat, study.panels, strict=True):
        _panel(axis, panel)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=path) from None
    finally:
        plt.close(figure)


def _panel(axis: Any, panel: Panel) -> None:
    from matplotlib import ticker

    for curve in panel.curves:
        axis.plot(curve.x, curve.y, curve.style, color=COLOURS[curve.colour % len(COLOURS)], label=curve.label,
                  markersize=4.5, linewidth=1.3)  # fmt: skip
    if "x" in panel.log:
        axis.set_xscale("log", base=2)
        ticks = sorted({x for curve in panel.curves for x in curve.x})
        shown = ticks[:: max(1, -(-len(ticks) // 8))]
        axis.set_xticks(shown, [format_size(int(x)) if panel.sizes else f"{x:g}" for x in shown])
        axis.minorticks_off()
    if "y" in panel.log:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
