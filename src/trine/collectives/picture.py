"""Pictures of a collective: time and bus bandwidth over the size (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import format_size
from trine.errors import InputError
from trine.results.axes import heading, tidy, write_in_full
from trine.results.picture import COLOURS, check_ending, log_scale, subplots


def size_axis(axis: Any, sizes: list[int]) -> None:
    """Make the x axis logarithmic, in bytes with K, M and G at its ticks."""
    axis.set_xscale("log", base=2)
    step = max(1, -(-len(sizes) // 10))
    ticks = sizes[::step]
    axis.set_xticks(ticks, [format_size(size) for size in ticks])
    axis.xaxis.minorticks_off()
    axis.set_xlabel("size (bytes)")


def check_plot(path: str, sizes: Sequence[int]) -> None:
    """Raise InputError before the simulation for fewer than two sizes or an unsupported file ending."""
    _check_sizes(sizes)
    check_ending(path)


def _check_sizes(sizes: Sequence[int]) -> None:
    if len([size for size in sizes if size > 0]) < 2:
        raise InputError("a picture needs at least two sizes, such as --size 1K:1G", field="plot")


def draw_sizes(answers: Sequence[CollectiveTime], title: str) -> Any:
    """Draw time and bus bandwidth over the size, with the band; return the figure.

    Raises InputError for fewer than two positive sizes.
    """
    _check_sizes([row.size_bytes for row in answers])
    rows = [row for row in answers if row.size_bytes > 0]
    figure, (times, rates) = subplots(1, 2, figsize=(11, 4.4))
    sizes = [row.size_bytes for row in rows]
    if any(row.low_ps < row.high_ps for row in rows):
        lows = [r.low_ps / 1e6 for r in rows]
        highs = [r.high_ps / 1e6 for r in rows]
        times.fill_between(
            sizes, lows, highs, color="#56B4E9", alpha=0.3, lw=0,
            label="band (80 % expected inside)",
        )  # fmt: skip
    times.plot(sizes, [row.time_ps / 1e6 for row in rows], color="black", lw=1, zorder=2)
    rates.plot(sizes, [row.busbw_bytes_per_s / 1e9 for row in rows], color="black", lw=1, zorder=2)
    names = list(dict.fromkeys((row.algorithm, row.protocol) for row in rows))
    for name, colour in zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False):
        points = [row for row in rows if (row.algorithm, row.protocol) == name]
        x = [row.size_bytes for row in points]
        style = {"s": 22, "color": colour, "zorder": 3, "label": "/".join(name)}
        times.scatter(x, [row.time_ps / 1e6 for row in points], **style)
        rates.scatter(x, [row.busbw_bytes_per_s / 1e9 for row in points], **style)
    times.set_ylabel("time (µs)")
    rates.set_ylabel("bus bandwidth (GB/s)")
    rates.set_ylim(bottom=0)
    for axis in (times, rates):
        size_axis(axis, sizes)
        tidy(axis, "both")
    log_scale(times)
    times.legend(frameon=False, fontsize=8)
    write_in_full(rates.yaxis)
    heading(figure, title)
    return figure
