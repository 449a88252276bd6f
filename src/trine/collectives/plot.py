"""Pictures of a collective: time and bus bandwidth over the size (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trine.errors import InputError
from trine.results.picture import COLOURS, check_ending, log_scale, save, subplots

if TYPE_CHECKING:
    from trine.collectives.ask import CollectiveAnswer


def size_axis(axis: Any, sizes: list[int]) -> None:
    """A logarithmic axis of bytes with K, M and G at its ticks."""
    from trine.collectives.sizes import format_size

    axis.set_xscale("log", base=2)
    step = max(1, -(-len(sizes) // 10))
    shown = sizes[::step]
    axis.set_xticks(shown, [format_size(size) for size in shown])
    axis.xaxis.minorticks_off()
    axis.set_xlabel("size (bytes)")


def check_plot(path: str, sizes: Sequence[int]) -> None:
    """Refuse before any work what cannot be drawn: InputError for fewer than two sizes or another kind of file."""
    if len([size for size in sizes if size > 0]) < 2:
        raise InputError("a picture needs at least two sizes, such as --size 1K:1G", field="plot")
    check_ending(path)


def plot_collective(answer: CollectiveAnswer, path: str) -> None:
    """Write the picture to ``path``, PNG, SVG or PDF by its ending.

    Raises
    ------
    InputError: fewer than two positive sizes, or a file that cannot be written.
    """
    check_plot(path, [row.size_bytes for row in answer.rows])
    rows = [row for row in answer.rows if row.size_bytes > 0]
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
    figure.suptitle(f"{answer.op} of {len(answer.group)} ranks, {answer.cluster.name}", fontsize=11)
    save(figure, path)
