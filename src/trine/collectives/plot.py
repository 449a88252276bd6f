"""Pictures of a collective: time and bus bandwidth over the size (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import format_size
from trine.errors import InputError
from trine.results.picture import COLOURS, check_ending, log_scale, subplots


def size_axis(axis: Any, sizes: list[int]) -> None:
    """Make the x axis logarithmic, in bytes with K, M and G at its ticks."""
    axis.set_xscale("log", base=2)
    step = max(1, -(-len(sizes) // 10))
    shown = sizes[::step]
    axis.set_xticks(shown, [format_size(size) for size in shown])
    axis.xaxis.minorticks_off()
    axis.set_xlabel("size (bytes)")


def check_plot(path: str, sizes: Sequence[int]) -> None:
    """Refuse before any work what cannot be drawn: InputError for fewer than two sizes or another kind of file."""
    _check_sizes(sizes)
    check_ending(path)


def _check_sizes(sizes: Sequence[int]) -> None:
    if len([size for size in sizes if size > 0]) < 2:
        raise InputError("a picture needs at least two sizes, such as --size 1K:1G", field="plot")


def draw_sizes(answered: Sequence[CollectiveTime], title: str) -> Any:
    """Draw time and bus bandwidth over the size, with the band; return the figure.

    Raises InputError for fewer than two positive sizes.
    """
    _check_sizes([row.size_bytes for row in answered])
    rows = [row for row in answered if row.size_bytes > 0]
    figure, (times, rates) = subplots(1, 2, figsize=(11, 4.4))
    sizes = [row.size_bytes for row in rows]
    if any(row.low_ps < row.high_ps for row in rows):
        times.fill_between(
            sizes, [r.low_ps / 1e6 for r in rows], [r.high_ps / 1e6 for r in rows], color="#56B4E9", alpha=0.3, lw=0,
            label="band (80 % expected inside)",
        )  # fmt: skip
    times.plot(sizes, [row.time_ps / 1e6 for row in rows], color="black", lw=1, zorder=2)
    rates.plot(sizes, [row.busbw_bytes_per_s / 1e9 for row in rows], color="black", lw=1, zorder=2)
    names = list(dict.fromkeys((row.algorithm, row.protocol) for row in rows))
    for name, colour in zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False):
        mine = [row for row in rows if (row.algorithm, row.protocol) == name]
        where = [row.size_bytes for row in mine]
        style = {"s": 22, "color": colour, "zorder": 3, "label": "/".join(name)}
        times.scatter(where, [row.time_ps / 1e6 for row in mine], **style)
        rates.scatter(where, [row.busbw_bytes_per_s / 1e9 for row in mine], **style)
    times.set_ylabel("time (µs)")
    rates.set_ylabel("bus bandwidth (GB/s)")
    rates.set_ylim(bottom=0)
    for axis in (times, rates):
        size_axis(axis, sizes)
        axis.grid(alpha=0.3)
    log_scale(times)
    times.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure
