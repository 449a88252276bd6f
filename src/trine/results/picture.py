"""Shared code of all pictures (extra ``plot``): figures without display or global state, endings, colours, saving."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import Any

from trine.common.outputs import save_figure
from trine.errors import InputError, MissingExtraError

#: Dots per inch of a thumbnail: half a screen wide.
THUMBNAIL_DPI = 60
ENDINGS = (".png", ".svg", ".pdf")
#: Okabe and Ito, 2008: distinguishable for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999")


def matplotlib() -> Any:
    """Return matplotlib with the modules that pictures use. Raises MissingExtraError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib import cm, colors, figure, patches, ticker  # noqa: F401
        from matplotlib.backends import backend_agg  # noqa: F401
    except ImportError:
        raise MissingExtraError("drawing", "plot", "matplotlib") from None
    return mpl


def subplots(
    rows: int = 1, cols: int = 1, *, figsize: tuple[float, float], layout: str = "constrained", **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its axes, like ``pyplot.subplots``, but leave pyplot and its backend untouched."""
    figure = matplotlib().figure.Figure(figsize=figsize, layout=layout)
    matplotlib().backends.backend_agg.FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, cols, **options)


def check_ending(path: str | Path) -> None:
    """Raise InputError if the file name has no picture ending."""
    if not str(path).lower().endswith(ENDINGS):
        raise InputError(f"a picture is a file of {', '.join(ENDINGS)}", file=path)


def in_full(value: float) -> str:
    """Return a number of at most six digits with separators, never as a power of ten: ``2,000,000``, ``0.00002``."""
    if abs(value) >= 1e6:
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:.12f}".rstrip("0")
    return f"{value:,.6g}"


def log_scale(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers as ticks, also within one decade; call it last."""
    ticker = matplotlib().ticker
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5) if high < 1e5 * low else (1,)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: in_full(value)))
    axes.yaxis.set_minor_formatter("")


def thumbnail(figure: Any, name: str) -> str:
    """Return a small picture as an HTML image with its bytes inside. name: what it shows, for readers who hear it."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=THUMBNAIL_DPI)
    encoded = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{escape(name, quote=True)}" src="data:image/png;base64,{encoded}"/>'


def save(figure: Any, path: str | Path) -> None:
    """Write the picture without a date, so that equal results give equal bytes.

    Raises InputError if the file cannot be written.
    """
    save_figure(figure, path, dpi=150)
