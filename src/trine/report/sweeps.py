"""The page of an experiment: ``trine sweep`` and ``--vary``."""

from __future__ import annotations

from trine.report.blocks import Block, ChartAxis, ChartLine, ChartPoint, Choice, Points
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
_HIDDEN = frozenset({"point", "key", "status", "reason", "cluster_fingerprint", "trine_version"})


def sweep_page(document: Document, command: str) -> Page:
    """Return the page: each number against the first field that varies, one line per value of the others."""
    fields = texts(document, "fields")
    points = [row for row in rows(document, "rows") if text(row, "status") in ("done", "")]
    charts = tuple(
        (unit_of(measure)[0], _chart(points, fields, measure))
        for measure in MEASURES
        if fields and sum(number(row, measure) is not None for row in points) > 1
    )
    blocks: list[Block] = []
    if charts:
        blocks.append(Choice(title=f"Against {fields[0].replace('_', ' ')}", options=charts))
    shown = [{key: value for key, value in row.items() if key not in _HIDDEN} for row in rows(document, "rows")]
    order = [{**{field: row.get(field) for field in fields}, **row} for row in _only_varying(shown, fields)]
    table = table_of_rows("Points", order)
    if table is not None:
        blocks.append(table)
    failed = amount(document, "failed")
    answer = f"{amount(document, 'done'):,.0f} of {amount(document, 'points'):,.0f} points are answered."
    if failed:
        answer += f" {failed:,.0f} failed."
    section = PageSection(key="layout", question="Which point?", answer=_best(points, fields), blocks=tuple(blocks))
    facts = (
        Fact(name="Points", value=amount(document, "points"), unit="count"),
        Fact(name="Answered", value=amount(document, "done"), unit="count"),
        Fact(name="Failed", value=failed, unit="count", tone="bad" if failed else ""),
        Fact(name="Varied", value=", ".join(fields) or "–"),
    )
    return Page(
        title=f"{text(document, 'question') or 'experiment'} at {amount(document, 'points'):,.0f} points",
        answer=answer, subject=text(document, "command") or "sweep", version=text(document, "version"), facts=facts,
        sections=(section, certainty(document, command)),
    )  # fmt: skip


def _only_varying(points: list[dict[str, object]], fields: list[str]) -> list[dict[str, object]]:
    """Return the points without values that are the same in all of them."""
    if len(points) < 2:
        return points
    keys = {key for row in points for key in row}
    varying = {key for key in keys if any(row.get(key) != points[0].get(key) for row in points)}
    return [{key: value for key, value in row.items() if key in varying or key in fields} for row in points]


def _best(points: list[Document], fields: list[str]) -> str:
    measure = next((each for each in MEASURES if any(number(row, each) is not None for row in points)), None)
    if measure is None:
        return "The points have no common number to compare."
    fitting = [row for row in points if text(row, "memory_verdict") != "does not fit"] or points
    known = [row for row in fitting if number(row, measure) is not None]
    is_rate = "_per_s" in measure or measure in ("busbw_GBps", "mfu")
    chosen = (max if is_rate else min)(known, key=lambda row: amount(row, measure))
    words = ", ".join(f"{field} {text(chosen, field)}" for field in fields)
    name = unit_of(measure)[0]
    return f"The {'highest' if is_rate else 'lowest'} {name} of the points that fit is at {words}."


def _chart(points: list[Document], fields: list[str], measure: str) -> Points:
    name, unit, factor = unit_of(measure)
    unit = {"": "share" if measure == "mfu" else "number"}.get(unit, unit)
    series: dict[str, list[Document]] = {}
    for row in points:
        if number(row, measure) is not None:
            series.setdefault(", ".join(f"{field} {text(row, field)}" for field in fields[1:]), []).append(row)
    positions = _positions(points, fields[0])
    drawn, lines = [], []
    for place, (words, of_series) in enumerate(series.items()):
        colour = _SERIES[place % len(_SERIES)]
        ends = sorted((positions.get(text(row, fields[0]), 0.0), amount(row, measure) * factor) for row in of_series)
        lines.append(ChartLine(name=words, points=tuple(ends), colour=colour))
        for row in of_series:
            drawn.append(
                ChartPoint(
                    x=positions.get(text(row, fields[0]), 0.0), y=amount(row, measure) * factor, colour=colour,
                    name=", ".join(f"{field} {text(row, field)}" for field in fields),
                    hollow=text(row, "memory_verdict") == "does not fit", detail=text(row, "memory_verdict"),
                )
            )  # fmt: skip
    ticks = tuple(positions.values())
    axis = ChartAxis(
        title=fields[0].replace("_", " "), unit="number", log=_are_numbers(positions) and _is_wide(ticks), ticks=ticks,
        labels=tuple(positions),
    )  # fmt: skip
    y_axis = ChartAxis(title=name, unit=unit)
    return Points(title="", x_axis=axis, y_axis=y_axis, points=tuple(drawn), lines=tuple(lines))


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
