"""The picture of ``trine infer``: the step by part, and the throughput of a user against that of a GPU over loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trine.inference.screen import seconds_words, shown_parts, step_title
from trine.results.axes import tidy, title, write_in_full
from trine.results.picture import COLOURS, subplots

if TYPE_CHECKING:
    from trine.inference.numbers import ServingNumbers

#: Loads of the curve; the last one is the largest concurrency.
_MAX_LOADS = 12
#: Smallest distance of two labels, as a share of an axis.
_LABEL_ROOM = 0.04
#: End of an axis over its largest value, with room for a label.
_HEADROOM = 1.1


def loads_of(answer: ServingNumbers) -> list[int]:
    """Return requests in flight, the fewest first: one in each lane, doubled up to the most that fit."""
    layout, most = answer.job.layout, answer.largest_concurrency
    requests = layout.attention_dp * layout.pp
    doubled: list[int] = []
    while 1.4 * requests < most and len(doubled) < _MAX_LOADS - 1:  # none is close to the most that fit
        doubled.append(requests)
        requests *= 2
    return [*doubled, most]


def draw_answer(answer: ServingNumbers, headline: str, curve: Sequence[ServingNumbers]) -> Any:
    """Return the figure: parts of the step on the left; all loads (``curve``) with the asked one on the right."""
    figure, (left, right) = subplots(1, 2, figsize=(11, 4.4))
    _draw_parts(left, answer)
    _draw_loads(right, answer, curve)
    figure.suptitle(headline, fontsize=9, x=0.01, ha="left", wrap=True)
    return figure


def _draw_parts(axes: Any, answer: ServingNumbers) -> None:
    """Draw a bar for each part of the step, the longest on top."""
    parts = shown_parts(answer)
    longest = max(part.seconds for part in parts)
    for row, part in enumerate(parts):
        axes.barh(row, part.seconds * 1e3, color=COLOURS[0])
        words = f"{seconds_words(part.seconds)}, {part.share:.0%}"
        axes.annotate(words, (part.seconds * 1e3, row), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=7)  # fmt: skip
    axes.set_yticks(range(len(parts)), [part.name for part in parts])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1e3 * 1.3)
    write_in_full(axes.xaxis)
    axes.set_xlabel("time (ms)")
    title(axes, step_title(answer))
    tidy(axes, "x")


def _draw_loads(axes: Any, answer: ServingNumbers, curve: Sequence[ServingNumbers]) -> None:
    """Draw the curve over loads and the asked load."""
    is_prefill = answer.job.phase == "prefill"
    what = "batch" if answer.job.batch is not None else "requests in flight"
    points = [_point(each) for each in curve]
    axes.plot(*zip(*points, strict=True), "o-", markersize=4, color=COLOURS[0], label=f"{what} as labelled")
    for each, point in _labelled(curve, points):
        axes.annotate(f"{each.requests:,}", point, xytext=(4, 5), textcoords="offset points", fontsize=7)
    axes.plot(*_point(answer), "*", markersize=14, color=COLOURS[3], label=f"{what}: {answer.requests:,}")
    rightmost, highest = _largest([*points, _point(answer)])
    axes.set_xlim(0, _HEADROOM * rightmost)
    axes.set_ylim(0, _HEADROOM * highest)
    write_in_full(axes.xaxis)
    write_in_full(axes.yaxis)
    axes.set_xlabel("latency of a prompt (ms)" if is_prefill else "tokens per second of one user")
    axes.set_ylabel("prompt tokens per second of each GPU" if is_prefill else "tokens per second of each GPU")
    title(axes, f"up to the {answer.largest_concurrency:,} requests that fit ({answer.limit})")
    tidy(axes, "both")
    axes.legend(frameon=False, fontsize=8)


def _labelled(
    curve: Sequence[ServingNumbers], points: Sequence[tuple[float, float]]
) -> Iterator[tuple[ServingNumbers, tuple[float, float]]]:
    """Yield the points with room for a label: those far enough from the labelled one before."""
    widths = [largest * _LABEL_ROOM for largest in _largest(points)]
    last: tuple[float, float] | None = None
    for each, point in zip(curve, points, strict=True):
        if last is None or any(abs(point[axis] - last[axis]) >= widths[axis] for axis in (0, 1)):
            last = point
            yield each, point


def _largest(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the largest value on each axis."""
    return max(x for x, _ in points), max(y for _, y in points)


def _point(answer: ServingNumbers) -> tuple[float, float]:
    """Return the place of an answer on both axes."""
    if answer.job.phase == "prefill":
        return answer.end_to_end_s.value * 1e3, answer.input_tokens_per_s_per_gpu.value
    return answer.tokens_per_s_per_user.value, answer.tokens_per_s_per_gpu.value
