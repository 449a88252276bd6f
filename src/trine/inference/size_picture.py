"""The picture of ``size --serve``: the GPUs of each machine type, and dollars per million tokens with a price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trine.inference.screen import number_words
from trine.results.axes import heading, tidy, write_in_full
from trine.results.picture import COLOURS, subplots
from trine.results.text import gpus_words

if TYPE_CHECKING:
    from trine.inference.served_machine import ServedMachine


def draw_size(title: str, machines: Sequence[ServedMachine]) -> Any:
    """Return the figure with a bar for each machine type that has an answer, the first on top."""
    has_price = machines[0].dollars_per_million_tokens is not None
    height = 1.6 + 0.5 * len(machines)
    columns = 2 if has_price else 1
    figure, axes = subplots(1, columns, figsize=(7.5 * columns, height), squeeze=False)
    counts = [float(each.num_gpus) for each in machines]
    layouts = [f"{gpus_words(each.num_gpus)}: {each.deployment}" for each in machines]
    _draw_bars(axes[0][0], counts, layouts, [each.cluster for each in machines])
    axes[0][0].xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].set_xlabel("GPUs")
    if has_price:
        dollars = [each.dollars_per_million_tokens or 0.0 for each in machines]
        words = [f"${number_words(value)}" for value in dollars]
        _draw_bars(axes[0][1], dollars, words, [each.cluster for each in machines])
        axes[0][1].set_xlabel("dollars per million output tokens at the stated rate")
    heading(figure, title)
    return figure


def _draw_bars(axes: Any, values: Sequence[float], words: Sequence[str], names: Sequence[str]) -> None:
    """Draw horizontal bars with words behind them."""
    for row, (value, text) in enumerate(zip(values, words, strict=True)):
        axes.barh(row, value, color=COLOURS[0])
        axes.annotate(text, (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(values))
    write_in_full(axes.xaxis)
    tidy(axes, "x")
