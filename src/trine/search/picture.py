"""The picture of a search: step time against memory, with the layouts that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trine.common.units import PS_PER_S
from trine.results.axes import number, tidy, title, write_in_full
from trine.results.memory import DOES_NOT_FIT
from trine.results.picture import COLOURS, subplots

if TYPE_CHECKING:
    from trine.search.ranked import Ranked

GIB = 1 << 30
#: Layouts that carry the number of their row in the answer's table.
SHOWN = 10


def draw_layouts(
    heading: str, simulated: Sequence[Ranked], frontier: Sequence[Ranked], ranked: Sequence[Ranked], name: str
) -> Any:
    """Return the figure of simulated layouts, and of estimated ones of the answer.

    heading: the title. frontier: layouts that no other beats in both time and memory. ranked: the best layouts, the
    recommended one first; it is named ``name`` in the picture, the next ones by their number in the table. Layouts
    that do not fit in memory are hollow, estimated ones are crosses; a line stands at the GPU's capacity.
    """
    best = ranked[0]
    figure, axes = subplots(figsize=(7.5, 4.8))
    shown = [each for each in simulated if each.outcome.memory_bytes is not None and not each.outcome.refused]
    fitting = [each for each in shown if each.outcome.verdict != DOES_NOT_FIT]
    too_large = [each for each in shown if each.outcome.verdict == DOES_NOT_FIT]
    axes.scatter(*_places(fitting), s=25, color=COLOURS[6], label="simulated")
    if too_large:
        axes.scatter(
            *_places(too_large), s=25, facecolors="none", edgecolors=COLOURS[6], label="does not fit in memory"
        )
    estimated = [each for each in ranked if each.outcome.is_estimated and each.outcome.memory_bytes is not None]
    if estimated:
        axes.scatter(*_places(estimated), s=25, marker="x", color=COLOURS[6], label="estimated")
    in_order = sorted(frontier, key=lambda each: each.outcome.memory_bytes or 0)
    if in_order:
        axes.plot(*_places(in_order), "o-", markersize=6, color=COLOURS[0], label="no layout has less of both")
    axes.plot(*_places([best]), "*", markersize=15, color=COLOURS[3], label="first")
    for index, each in enumerate(ranked[1:SHOWN], start=2):
        where = (_places([each])[0][0], _places([each])[1][0])
        axes.annotate(str(index), where, xytext=(5, 3), textcoords="offset points", fontsize=8)
    place = (_places([best])[0][0], _places([best])[1][0])
    axes.annotate(
        f"{name}: {number(place[1])} s", place, xytext=(0, -18), textcoords="offset points", ha="center", fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip
    capacity_bytes = best.outcome.capacity_bytes
    if capacity_bytes:
        axes.axvline(capacity_bytes / GIB, color="black", linewidth=1, linestyle="--")
        axes.annotate(
            f"{capacity_bytes / GIB:.4g} GiB of the GPU ", (capacity_bytes / GIB, 1),
            xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top", fontsize=8,
        )  # fmt: skip
    axes.margins(x=0.12, y=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("memory of the fullest GPU (GiB)")
    axes.set_ylabel("step time (s)")
    write_in_full(axes.yaxis)
    title(axes, heading)
    tidy(axes, "both")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _places(layouts: Sequence[Ranked]) -> tuple[list[float], list[float]]:
    """Return memory in GiB and step times in seconds."""
    memory = [(each.outcome.memory_bytes or 0) / GIB for each in layouts]
    return memory, [each.outcome.step_ps / PS_PER_S for each in layouts]
