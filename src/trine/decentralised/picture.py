"""A picture of decentralised training: the time of each worker, and the age of the updates that workers average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.results.axes import heading, tidy, time_scale, title, write_in_full
from trine.results.picture import COLOURS, subplots

#: Most workers with a bar: more do not fit on a page.
MAX_WORKERS = 64
_COMPUTING, _WAITING_FOR_UPDATES, _WAITING_FOR_TOKENS = COLOURS[5], COLOURS[1], COLOURS[3]
_MISSED = COLOURS[6]


class WorkerTimes(NamedTuple):
    """Times of the workers of a run in ps, each int64[workers]."""

    computing: Int64
    waiting_for_updates: Int64
    waiting_for_tokens: Int64
    end: Int64


def draw_workers(text: str, worker_times: WorkerTimes, staleness: Mapping[int, int], num_missed: int) -> Any:
    """Return the figure: a bar of each worker's time, and a bar for each age of the averaged updates.

    text: the title. staleness: age in iterations -> number of updates. num_missed: averages without an update. Of
    more than 64 workers, those that compute longest are shown.
    """
    shown = _shown_workers(worker_times.computing)
    figure, (times, ages) = subplots(1, 2, figsize=(10, 2.2 + 0.27 * len(shown)), width_ratios=(3, 2))
    _draw_times(times, worker_times, shown)
    counts = {_age_words(age): count for age, count in staleness.items()}
    _draw_ages(ages, counts, num_missed, len(shown))
    heading(figure, text)
    return figure


def _shown_workers(computing_ps: Int64) -> Int64:
    """Return the workers with a bar, in order."""
    longest_first = np.argsort(-computing_ps, kind="stable")
    return np.sort(longest_first[:MAX_WORKERS])


def _draw_times(axes: Any, times: WorkerTimes, shown: Int64) -> None:
    parts = (
        ("computing", times.computing, _COMPUTING),
        ("waiting for updates", times.waiting_for_updates, _WAITING_FOR_UPDATES),
        ("waiting for tokens", times.waiting_for_tokens, _WAITING_FOR_TOKENS),
    )
    end_ps = int(times.end.max())
    scale = time_scale(end_ps)
    places = np.arange(len(shown))
    left = np.zeros(len(shown))
    for name, time_ps, colour in parts:
        widths = time_ps[shown] / scale.divisor
        if widths.any():
            axes.barh(places, widths, 0.72, left=left, color=colour, linewidth=0, label=name)
        left = left + widths
    axes.set_yticks(places, [f"worker {worker}" for worker in shown.tolist()], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1.02 * end_ps / scale.divisor)
    axes.set_xlabel(f"time ({scale.words})")
    write_in_full(axes.xaxis)
    num_workers = len(times.computing)
    left_out = "" if len(shown) == num_workers else f": the {len(shown)} of {num_workers:,} that compute longest"
    title(axes, f"Time of each worker{left_out}")
    tidy(axes, "x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 * 4.4 / axes.figure.get_figheight()), ncols=3,
                frameon=False, fontsize=8)  # fmt: skip


def _draw_ages(axes: Any, counts: dict[str, int], num_missed: int, num_bars: int) -> None:
    """Draw the share of each age in all averages, with bars as high as those of ``num_bars`` workers beside them."""
    colours = [COLOURS[0]] * len(counts)
    if num_missed:
        counts["missed"] = num_missed
        colours.append(_MISSED)
    total = sum(counts.values())
    places = range(len(counts))
    shares = [100 * count / total for count in counts.values()]
    bars = axes.barh(places, shares, 0.72, color=colours, linewidth=0)
    axes.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=3, fontsize=8)
    axes.set_yticks(places, list(counts), fontsize=8)
    axes.set_ylim(max(len(counts), num_bars) - 0.4, -0.6)
    axes.set_xlim(0, 118)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("share of the updates that workers average (%)")
    title(axes, "Age of the updates")
    tidy(axes, "x")


def _age_words(age: int) -> str:
    if age == 0:
        return "same iteration"
    return "1 iteration old" if age == 1 else f"{age} iterations old"
