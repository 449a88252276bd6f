"""The page of an experiment: ``trine sweep`` and ``--vary``."""

from __future__ import annotations

from trine.report.blocks import Block, ChartAxis, ChartLine, ChartPoint, Choice, Item, Items, Points
from trine.report.certainty import certainty
from trine.report.generic import table_of_rows, unit_of
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, text, texts

#: Numbers that are drawn, the first that the points have first.
MEASURES = (
    "step_time_s", "time_us", "time_s", "tpot_s", "ttft_s", "tokens_per_s", "tokens_per_s_per_gpu", "busbw_GBps", "mfu",
    "memory_needed_bytes", "memory_peak_bytes",
)  # fmt: skip
_SERIES = ("first", "second", "optimizer", "tp", "state", "launch", "forward", "bubble")
#: Columns of the table that come first, and those that no reader needs.
_HIDDEN = frozenset({
    "point", "key", "status", "reason", "cluster_fingerprint", "trine_version", "step_time_band", "mfu_definition",
})  # fmt: skip


def sweep_page(document: Document, command: str) -> Page:
    """Return the page: each number against the first field that varies, one line per value of the others."""
    fields = texts(document, "fields")
    points = _answered(document)
    section = PageSection(
        key="layout", question="Which point?", answer=_best(points, fields),
        blocks=(*_charts(points, fields), *_tables(document, fields)),
    )  # fmt: skip
    num_points, num_failed = amount(document, "points"), amount(document, "failed")
    answer = f"{amount(document, 'done'):,.0f} of {num_points:,.0f} points are answered."
    if num_failed:
        answer += f" {num_failed:,.0f} failed."
    facts = (
        Fact(name="Points", value=num_points, unit="count"),
        Fact(name="Answered", value=amount(document, "done"), unit="count"),
        Fact(name="Failed", value=num_failed, unit="count", tone="bad" if num_failed else ""),
        Fact(name="Varied", value=", ".join(fields) or "–"),
    )
    return Page(
        title=f"{text(document, 'question') or 'experiment'} at {num_points:,.0f} points",
        answer=answer, subject=text(document, "command") or "sweep", version=text(document, "version"), facts=facts,
        sections=(section, certainty(document, command)),
    )  # fmt: skip


def _answered(document: Document) -> list[Document]:
    """Return the points with an answer."""
    points = []
    for row in rows(document, "rows"):
        if text(row, "status") in ("done", ""):
            points.append(row)
    return points


def _charts(points: list[Document], fields: list[str]) -> list[Block]:
    """Return a chart for each number that several points have, to choose from; none without a varied field."""
    charts = []
    for measure in MEASURES:
        if fields and len(_with_number(points, measure)) > 1:
            charts.append((unit_of(measure)[0], _chart(points, fields, measure)))
    if not charts:
        return []
    return [Choice(title=f"Against {fields[0].replace('_', ' ')}", options=tuple(charts))]


def _tables(document: Document, fields: list[str]) -> list[Block]:
    """Return the table of answered points, varied fields first, without columns that are the same in all of them.

    The points that failed follow with their reasons.
    """
    shown = []
    for row in _answered(document):
        shown.append({key: value for key, value in row.items() if key not in _HIDDEN})
    ordered = []
    for row in _only_varying(shown, fields):
        first = {field: row.get(field) for field in fields}
        ordered.append({**first, **row})
    table = table_of_rows("Points", ordered)
    blocks: list[Block] = [] if table is None else [table]
    failed = []
    for row in rows(document, "rows"):
        if text(row, "reason"):
            failed.append(Item(tag=_words(row, fields), text=text(row, "reason")))
    if failed:
        blocks.append(Items(title="Points without an answer", items=tuple(failed)))
    return blocks


def _only_varying(points: list[dict[str, object]], fields: list[str]) -> list[dict[str, object]]:
    """Return the points without values that are the same in all of them."""
    if len(points) < 2:
        return points
    first = points[0]
    kept = set(fields)
    for row in points:
        for key in row.keys() | first.keys():
            if row.get(key) != first.get(key):
                kept.add(key)
    varying = []
    for row in points:
        varying.append({key: value for key, value in row.items() if key in kept})
    return varying


def _with_number(points: list[Document], measure: str) -> list[Document]:
    """Return the points that have a number of this name."""
    return [row for row in points if number(row, measure) is not None]


def _fits(row: Document) -> bool:
    return text(row, "memory_verdict") != "does not fit"


def _words(row: Document, fields: list[str]) -> str:
    """Return a point's values of some fields as words."""
    return ", ".join(f"{field} {text(row, field)}" for field in fields)


def _best(points: list[Document], fields: list[str]) -> str:
    """Return the sentence about the best point, by the first number that the points have."""
    measure = next((each for each in MEASURES if _with_number(points, each)), None)
    if measure is None:
        return "The points have no common number to compare."
    fitting = [row for row in points if _fits(row)] or points
    known = _with_number(fitting, measure)
    is_rate = "_per_s" in measure or measure in ("busbw_GBps", "mfu")
    choose = max if is_rate else min
    chosen = choose(known, key=lambda row: amount(row, measure))
    best = "highest" if is_rate else "lowest"
    return f"The {best} {unit_of(measure)[0]} of the points that fit is at {_words(chosen, fields)}."


def _chart(points: list[Document], fields: list[str], measure: str) -> Points:
    """Return a number against the first field: a line for each combination of the other fields."""
    name, unit, factor = unit_of(measure)
    if not unit:
        unit = "share" if measure == "mfu" else "number"
    series: dict[str, list[Document]] = {}
    for row in _with_number(points, measure):
        series.setdefault(_words(row, fields[1:]), []).append(row)
    positions = _positions(points, fields[0])
    drawn, lines = [], []
    for place, (words, rows_of_series) in enumerate(series.items()):
        colour = _SERIES[place % len(_SERIES)]
        ends = []
        for row in rows_of_series:
            x, y = positions.get(text(row, fields[0]), 0.0), amount(row, measure) * factor
            ends.append((x, y))
            drawn.append(
                ChartPoint(
                    x=x, y=y, colour=colour, name=_words(row, fields), hollow=not _fits(row),
                    detail=text(row, "memory_verdict"),
                )
            )  # fmt: skip
        lines.append(ChartLine(name=words, points=tuple(sorted(ends)), colour=colour))
    ticks = tuple(positions.values())
    x_axis = ChartAxis(
        title=fields[0].replace("_", " "), unit="number", log=_are_numbers(positions) and _is_wide(ticks), ticks=ticks,
        labels=tuple(positions),
    )  # fmt: skip
    y_axis = ChartAxis(title=name, unit=unit)
    return Points(title="", x_axis=x_axis, y_axis=y_axis, points=tuple(drawn), lines=tuple(lines))


def _positions(points: list[Document], field: str) -> dict[str, float]:
    """Return the x position of each value of a field: the number itself, or 1, 2, 3 for words."""
    words = list(dict.fromkeys(text(row, field) for row in points))
    try:
        return {word: float(word) for word in words}
    except ValueError:
        return {word: place + 1.0 for place, word in enumerate(words)}


def _are_numbers(positions: dict[str, float]) -> bool:
    try:
        return all(float(word) == x for word, x in positions.items())
    except ValueError:
        return False


def _is_wide(values: tuple[float, ...]) -> bool:
    return len(values) > 2 and min(values) > 0 and max(values) >= 8 * min(values)
