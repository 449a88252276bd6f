"""The picture of ``plan --serve``: tokens/s per GPU against tokens/s per user, and the front of the best points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trine.results.axes import tidy, title, write_in_full
from trine.results.picture import COLOURS, subplots

if TYPE_CHECKING:
    from trine.inference.serving_points import ServingPoint


def draw_front(
    heading: str,
    simulated: Sequence[ServingPoint],
    front: Sequence[ServingPoint],
    best: ServingPoint,
    names: Sequence[tuple[ServingPoint, str]],
) -> Any:
    """Return the figure of all simulated points, the front, and the best point.

    heading: the title. names: points that carry a text.
    """
    figure, axes = subplots(figsize=(7.5, 4.8))
    others = [each for each in simulated if each not in front]
    axes.scatter(*_rates(others), s=18, color=COLOURS[6], label="simulated")
    axes.plot(*_rates(front), "o-", markersize=4, color=COLOURS[0], label="no point has more of both")
    rightmost = max(each.per_user for each in front)
    for point, words in names:
        # The front falls to the right, so there is room above it; words near the right edge end there.
        is_right = point.per_user > 0.75 * rightmost
        axes.annotate(
            words, (point.per_user, point.per_gpu), xytext=(10, 32 if is_right else 18), textcoords="offset points",
            ha="right" if is_right else "left", fontsize=7,
            arrowprops={"arrowstyle": "-", "color": "#777777", "linewidth": 0.6, "shrinkB": 4},
        )  # fmt: skip
    axes.plot(best.per_user, best.per_gpu, "*", markersize=14, color=COLOURS[3], label="first")
    axes.margins(x=0.06, y=0.1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    write_in_full(axes.yaxis)
    axes.set_xlabel("tokens per second of one user (1 / TPOT)")
    axes.set_ylabel("tokens per second of each GPU")
    title(axes, heading)
    tidy(axes, "both")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _rates(points: Iterable[ServingPoint]) -> tuple[list[float], list[float]]:
    points = list(points)
    return [each.per_user for each in points], [each.per_gpu for each in points]
