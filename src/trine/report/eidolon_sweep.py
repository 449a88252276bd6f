"""The page of ``trine eidolon sweep``: growth of flag reads, and the point from which mwait pays."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Block, ChartAxis, ChartLine, ChartPoint, Head, Points, Table
from trine.report.certainty import certainty
from trine.report.generic import table_of_rows
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, text

_COLOURS = ("forward", "communication", "optimizer", "bubble", "weights", "recompute")
#: Fields that tell two runs apart besides the wake-up time.
_VARIED = ("kernel", "rows", "cols", "inner", "peers", "issue_seed", "sync")
#: Results of a run in the table.
_SHOWN = ("wakeup_s", "time_s", "flag_reads", "wait_s", "wakeups", "spurious_wakeups")


def eidolon_sweep_page(document: Document, command: str) -> Page:
    """Return the page: reads and times over wake-up times, and the fits."""
    runs, fits = rows(document, "runs"), rows(document, "fits")
    note = "" if document.get("finished", True) else "stopped"
    facts = [Fact(name="Runs", value=len(runs), unit="count", note=note)]
    for fit in fits[:3]:
        name = ", ".join(word for word in ("mwait pays from", text(fit, "name")) if word)
        facts.append(Fact(name=name, value=number(fit, "break_even_s"), unit="s", note="wake-up time"))
    kernels = dict.fromkeys(text(run, "kernel") for run in runs)
    return Page(
        title=f"{', '.join(kernels)}: {len(runs)} runs", answer=_answer(fits), subject="eidolon sweep",
        version=text(document, "version"), facts=tuple(facts),
        sections=(_growth(runs, fits), certainty(document, command)),
    )  # fmt: skip


def _answer(fits: list[Document]) -> str:
    if not fits:
        return "The sweep has no pair of ways to wait to compare."
    fit = max(fits, key=lambda each: amount(each, "saved"))
    point = format_time(amount(fit, "break_even_s") * PS_PER_S)
    words = (
        f"mwait reads less from a wake-up time of {point} on, and saves up to "
        f"{100 * amount(fit, 'saved'):.0f} % of the flag reads."
    )
    return f"With {text(fit, 'name')}, {words}" if text(fit, "name") else words


def _growth(runs: list[Document], fits: list[Document]) -> PageSection:
    varied = []
    for key in _VARIED:
        if len({text(run, key) for run in runs}) > 1:
            varied.append(key)
    of_line: dict[str, list[Document]] = {}
    for run in runs:
        of_line.setdefault(_name(run, varied), []).append(run)
    blocks: list[Block] = []
    for title, key, unit in (("Reads of flags", "flag_reads", "count"), ("Time", "time_s", "s")):
        blocks.append(_chart(of_line, title, key, unit))
    columns = (
        Head(name="runs"), Head(name="reads per second of wake-up", unit="count"), Head(name="R²", unit="number"),
        Head(name="mwait pays from", unit="s"), Head(name="saved reads", unit="share"),
    )  # fmt: skip
    found = tuple(
        (text(fit, "name") or "all", number(fit, "slope_per_s"), number(fit, "r2"), number(fit, "break_even_s"),
         number(fit, "saved"))
        for fit in fits
    )  # fmt: skip
    if found:
        blocks.append(Table(title="Growth of flag reads while a wavefront spins", columns=columns, rows=found))
    shown = []
    for run in runs:
        shown.append({key: run[key] for key in (*varied, *_SHOWN) if key in run})
    table = table_of_rows("Runs", shown)
    if table is not None:
        blocks.append(table)
    answer = "A wavefront that spins reads its flag again and again; one that waits by mwait reads it when it changes."
    return PageSection(key="growth", question="From when does mwait pay?", answer=answer, blocks=tuple(blocks))


def _name(run: Document, varied: list[str]) -> str:
    """Return the varied fields of a run in words."""
    words = []
    for key in varied:
        explains_itself = key in ("sync", "kernel")
        words.append(text(run, key) if explains_itself else f"{text(run, key)} {key}")
    return ", ".join(words) or "all runs"


def _chart(of_line: dict[str, list[Document]], title: str, key: str, unit: str) -> Points:
    points, lines, legend = [], [], []
    for place, (name, runs) in enumerate(of_line.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        ordered = sorted(runs, key=lambda run: amount(run, "wakeup_s"))
        path = tuple((amount(run, "wakeup_s"), amount(run, key)) for run in ordered)
        lines.append(ChartLine(name="", points=path, colour=colour))
        legend.append((name, colour))
        for x, y in path:
            points.append(ChartPoint(x=x, y=y, name=name, colour=colour, size=0.05))
    return Points(
        title=f"{title} over the wake-up time", x_axis=ChartAxis(title="wake-up time", unit="s"),
        y_axis=ChartAxis(title=title.lower(), unit=unit), points=tuple(points), lines=tuple(lines),
        legend=tuple(legend),
    )  # fmt: skip
