"""What all pictures share (extra ``plot``): matplotlib without a display, endings, colours, and how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trine.errors import InputError, MissingExtraError
from trine.outputs import save_figure

ENDINGS = (".png", ".svg", ".pdf")
#: Okabe and Ito, 2008: apart for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999")


def pyplot() -> Any:
    """Return matplotlib.pyplot without a display. Raises MissingExtraError where it is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise MissingExtraError("drawing", "plot", "matplotlib") from None
    return plt


def check_ending(path: str | Path) -> None:
    """Raise InputError for what is no picture."""
    if not str(path).lower().endswith(ENDINGS):
        raise InputError(f"a picture is a file of {', '.join(ENDINGS)}", file=path)


def log_scale(axes: Any) -> None:
    """A logarithmic vertical axis whose ticks are numbers, also within one decade; call it when all has been drawn."""
    from matplotlib import ticker

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5) if high < 1e5 * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def save(figure: Any, plt: Any, path: str | Path) -> None:
    """Write the picture without the date, so that the same result gives the same bytes.

    Raises InputError where the file cannot be written.
    """
    try:
        save_figure(figure, path, dpi=150)
    finally:
        plt.close(figure)
