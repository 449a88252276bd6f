"""The picture of an experiment: one result against one field, a line for each value of a third column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trine.experiments.spec import ExperimentSpec
from trine.results.axes import axis_of, is_geometric, number, tick_at, tidy, title, write_in_full
from trine.results.picture import COLOURS, subplots

#: Results whose highest value is the best; of all others the lowest is.
_RATES = ("_per_s", "_GBps", "mfu", "efficiency", "throughput", "speedup")
#: Commands whose points are rival answers to one question, so that one of them is the best.
_RIVALS = ("train", "plan", "size", "infer")
#: Settings named in the title, in this order, before the machine.
_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "sharding", "batch", "global_batch", "micro_batch", "software")
_MACHINE = ("cluster", "nodes", "fabric", "topology", "gpu_model")
_SUBJECT = ("workload", "model", "op", "kernel")


class DrawnPoint(NamedTuple):
    """A point of the picture. group: its value of the third column, or None. fits: whether the job fits in memory."""

    x: Any
    y: float
    group: Any
    fits: bool


def draw_points(spec: ExperimentSpec, names: Sequence[str], points: Sequence[DrawnPoint]) -> Any:
    """Return the figure of points: a line through the best of each group at each x.

    names: columns of x and y, and of the groups if there are any. Points of jobs that do not fit are hollow,
    and on no line. The best point is named for the commands of :data:`_RIVALS`.
    """
    x_name, y_name = names[:2]
    y_axis = axis_of(y_name)
    is_rate = any(y_name.endswith(ending) for ending in _RATES)
    place_of, is_text = _places([point.x for point in points])
    figure, axes = subplots(figsize=(7.5, 4.8))
    groups = list(dict.fromkeys(point.group for point in points))
    for index, group in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        members = [point for point in points if point.group == group]
        _draw_group(axes, members, place_of, y_axis.divisor, is_rate, colour, str(group))
    if spec.command in _RIVALS:
        _name_best(axes, points, place_of, y_axis.divisor, is_rate)
    if is_text:
        axes.set_xticks(list(place_of.values()), [str(value) for value in place_of])
    else:
        numbers = list(place_of.values())
        if is_geometric(numbers):
            axes.set_xscale("log", base=2)
        tick_at(axes.xaxis, numbers)
    hollow = sum(not point.fits for point in points)
    note = f"\nhollow: {hollow:,} point{'' if hollow == 1 else 's'} whose job does not fit in memory" if hollow else ""
    axes.set_xlabel(axis_of(x_name).words + note)
    axes.set_ylabel(y_axis.words)
    write_in_full(axes.yaxis)
    axes.margins(x=0.08, y=0.15)
    if min(point.y for point in points) >= 0:
        axes.set_ylim(bottom=0)
    if len(names) > 2:
        axes.legend(title=axis_of(names[2]).words, frameon=False, fontsize=8, title_fontsize=8)
    title(axes, title_of(spec, names))
    tidy(axes, "both")
    return figure


def title_of(spec: ExperimentSpec, names: Sequence[str]) -> str:
    """Return the title: the command, its subject, the settings that all points share, and the machine."""
    settings = {name: value for name, value in spec.settings.items() if name not in names}
    subject = [str(settings[name]).removeprefix("model:") for name in _SUBJECT if name in settings]
    layout = [f"{settings['gpus']} GPUs"] if settings.get("gpus") is not None else []
    layout += [f"{name.replace('_', '-')} {settings[name]}" for name in _LAYOUT if settings.get(name) is not None]
    machine = [str(settings[name]) for name in _MACHINE if settings.get(name) is not None]
    if "nodes" in settings and "cluster" in settings:
        machine = [f"{settings['nodes']} x {settings['cluster']}"]
    others = [name for name in spec.vary if name not in names]
    parts = [" ".join([spec.command, *subject]), ", ".join(layout), " ".join(machine)]
    text = " · ".join(part for part in parts if part)
    return text + (f"\nall values of {', '.join(map(str, others))}" if others else "")


def _places(values: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """Return the place of each value on the x axis, and whether the values are words, in the order of the points."""
    distinct = list(dict.fromkeys(values))
    is_text = not all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    if is_text:
        return {value: float(index) for index, value in enumerate(distinct)}, True
    return {value: float(value) for value in distinct}, False


def _draw_group(
    axes: Any,
    members: Sequence[DrawnPoint],
    place_of: Mapping[Any, float],
    divisor: float,
    is_rate: bool,
    colour: str,
    name: str,
) -> None:
    """Draw the points of a group, filled or hollow, and the line through its best points that fit."""
    best: dict[float, float] = {}
    choose = max if is_rate else min
    for point in members:
        place, height = place_of[point.x], point.y / divisor
        face = colour if point.fits else "none"
        axes.plot([place], [height], "o", markersize=5, color=colour, markerfacecolor=face, alpha=0.75)
        if point.fits:
            best[place] = choose(best.get(place, height), height)
    places = sorted(best)
    axes.plot(places, [best[place] for place in places], color=colour, label=name)


def _name_best(
    axes: Any, points: Sequence[DrawnPoint], place_of: Mapping[Any, float], divisor: float, is_rate: bool
) -> None:
    """Mark the best point that fits, and write its value beside it."""
    candidates = [point for point in points if point.fits]
    if not candidates:
        return
    choose = max if is_rate else min
    best = choose(candidates, key=lambda point: point.y)
    place, height = place_of[best.x], best.y / divisor
    axes.plot([place], [height], "o", markersize=11, color="black", markerfacecolor="none", markeredgewidth=1.2)
    axes.annotate(
        f"best: {number(height)}", (place, height), xytext=(8, 8 if is_rate else -15), textcoords="offset points",
        fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip
