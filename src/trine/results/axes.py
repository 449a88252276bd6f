"""Words, units, ticks and style of the axes of all pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from trine.results.picture import in_full, matplotlib

#: Endings of column names: unit as written, and how many of the column's units one of it has. The first match counts.
_UNITS = (
    ("_per_s", "per second", 1.0),
    ("_ps", "s", 1e12),
    ("_us", "µs", 1.0),
    ("_ms", "ms", 1.0),
    ("_s", "s", 1.0),
    ("_days", "days", 1.0),
    ("_bytes", "GiB", float(1 << 30)),
    ("_GBps", "GB/s", 1.0),
    ("_j", "J", 1.0),
    ("_w", "W", 1.0),
    ("_kwh", "kWh", 1.0),
)
_MICROSECONDS = re.compile(r"(?<=\d) us\b")
#: Units of times in ps, the largest first.
_TIME_UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"))
#: Words of columns whose name is no phrase.
_WORDS = {
    "mfu": "MFU (share of the peak)",
    "usd": "cost ($)",
    "gpus": "GPUs",
    "dp": "data-parallel degree (dp)",
    "tp": "tensor-parallel degree (tp)",
    "pp": "pipeline stages (pp)",
    "cp": "context-parallel degree (cp)",
    "ep": "expert-parallel degree (ep)",
    "batch": "batch of a replica",
    "global_batch": "global batch",
    "micro_batch": "micro-batch",
    "algbw": "algorithm bandwidth",
    "busbw": "bus bandwidth",
}
#: Numbers of a field from this ratio of largest to smallest stand on a logarithmic axis; doubled ones always do.
_WIDE_RATIO = 16
_MAX_TICKS = 16


class AxisWords(NamedTuple):
    """Words of an axis with their unit, and the divisor that turns the column's numbers into that unit."""

    words: str
    divisor: float


def axis_of(column: str) -> AxisWords:
    """Return the axis of a column of an answer: ``step_time_s`` is ``step time (s)``, ``peak_bytes`` is in GiB."""
    if column in _WORDS:
        return AxisWords(_WORDS[column], 1.0)
    for ending, unit, divisor in _UNITS:
        if column.endswith(ending) and len(column) > len(ending):
            stem = column.removesuffix(ending)
            words = _WORDS.get(stem, stem.replace("_", " ").replace(".", " "))
            return AxisWords(f"{words} {unit}" if ending == "_per_s" else f"{words} ({unit})", divisor)
    return AxisWords(column.replace("_", " "), 1.0)


def time_scale(longest_ps: int) -> AxisWords:
    """Return the unit of an axis of times in ps: the largest unit that ``longest_ps`` has at least one of."""
    for divisor, unit in _TIME_UNITS:
        if longest_ps >= divisor:
            return AxisWords(unit, divisor)
    return AxisWords("ps", 1.0)


def is_geometric(values: Sequence[float]) -> bool:
    """Return whether numbers belong on a logarithmic axis: three or more, positive, and doubled or widely spread."""
    distinct = sorted(set(values))
    if len(distinct) < 3 or distinct[0] <= 0:
        return False
    pairs = pairwise(distinct)
    return distinct[-1] / distinct[0] >= _WIDE_RATIO or all(after == 2 * before for before, after in pairs)


def tick_at(axis: Any, values: Sequence[float]) -> None:
    """Put the ticks of an axis of matplotlib at these numbers, at most 16, written in full."""
    ticker = matplotlib().ticker
    distinct = sorted(set(values))
    step = -(-len(distinct) // _MAX_TICKS)
    shown = distinct[::step]
    axis.set_major_locator(ticker.FixedLocator(shown))
    axis.set_major_formatter(ticker.FixedFormatter([in_full(value) for value in shown]))
    axis.set_minor_locator(ticker.NullLocator())


def write_in_full(axis: Any) -> None:
    """Write the numbers of an axis of matplotlib with separators, never as powers of ten."""
    axis.set_major_formatter(matplotlib().ticker.FuncFormatter(lambda value, _: in_full(value)))


def number(value: float) -> str:
    """Return a number of four digits, or all digits of a larger one: ``1.866``, ``280,936``."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def tidy(axes: Any, grid: str) -> None:
    """Leave out the upper and right border, and draw a light grid behind the data. grid: ``x``, ``y`` or ``both``."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color="#EEEEEE")


def title(axes: Any, text: str) -> None:
    """Write the title of a picture: model, layout and machine, on the left, wrapped."""
    axes.set_title(with_micro_sign(text), fontsize=9, loc="left", wrap=True)


def heading(figure: Any, text: str) -> None:
    """Write the title above several pairs of axes, on the left, wrapped."""
    figure.suptitle(with_micro_sign(text), fontsize=9, x=0.01, ha="left", wrap=True)


def with_micro_sign(text: str) -> str:
    """Return words of an answer for a picture: ``4.5 us``, as terminals show it, becomes ``4.5 µs`` as on the axes."""
    return _MICROSECONDS.sub(" µs", text)
