"""Picture of an experiment: one result against one field, coloured by another."""

from __future__ import annotations

from typing import Any

from trine.errors import InputError
from trine.results.frames import Row
from trine.results.picture import COLOURS, subplots

_MAX_TITLE = 90


def draw(rows: list[Row], x: str, y: str, color: str | None, title: str) -> Any:
    """Return a figure with ``y`` against ``x``: a line per value of ``color``.

    Raises InputError: no point has numbers in ``y``.
    """
    rows = [row for row in rows if row["status"] == "done" and _number(row[y]) is not None and row[x] is not None]
    if not rows:
        raise InputError("no point has a number", field=y)
    figure, axes = subplots(figsize=(7.0, 4.5))
    places = _places(rows, x)
    series: dict[object, list[Row]] = {}
    for row in rows:
        series.setdefault(None if color is None else row[color], []).append(row)
    for number, (value, members) in enumerate(series.items()):
        _line(axes, members, (x, y), places, COLOURS[number % len(COLOURS)], None if color is None else str(value))
    if color is not None:
        axes.legend(title=color)
    if any(_number(row[x]) is None for row in rows):
        axes.set_xticks(list(places.values()), [str(value) for value in places])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0 if min(float(str(row[y])) for row in rows) >= 0 else None)
    axes.set_title(title[:_MAX_TITLE], fontsize=9)
    axes.grid(alpha=0.3)
    return figure


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _places(rows: list[Row], x: str) -> dict[object, float]:
    """Return the horizontal place of each value: the number itself, or the order of appearance of texts."""
    values = dict.fromkeys(row[x] for row in rows)
    if all(_number(value) is not None for value in values):
        return {value: float(str(value)) for value in values}
    return {value: float(position) for position, value in enumerate(values)}


def _line(
    axes: Any, rows: list[Row], names: tuple[str, str], places: dict[object, float], colour: str, label: str | None
) -> None:
    """Draw a line through the smallest of the values at each place, and all values as points."""
    x, y = names
    points = sorted((places[row[x]], float(str(row[y]))) for row in rows)
    axes.plot(*zip(*points, strict=True), "o", markersize=4, color=colour, alpha=0.6)
    lowest = dict(reversed(points))
    axes.plot(sorted(lowest), [lowest[place] for place in sorted(lowest)], color=colour, label=label)
