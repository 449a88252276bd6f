"""The page of a search for layouts: ``trine plan``."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    ChartAxis,
    ChartPoint,
    CommandLine,
    Head,
    Item,
    Items,
    Points,
    Table,
)
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text

_AXES = ("dp", "tp", "pp", "cp", "ep")


def plan_page(document: Document, command: str) -> Page:
    """Return the page: the ranking, time against memory, and the difference of the first and another layout."""
    layouts = rows(document, "layouts")
    sections = [_ranking(document, layouts)]
    if rows(document, "terms"):
        sections.append(_difference(document, layouts))
    sections.append(certainty(document, command))
    return Page(
        title=_title(document), answer=_answer(document, layouts), subject="plan", version=text(document, "version"),
        facts=_facts(layouts), sections=tuple(sections),
    )  # fmt: skip


def layout_name(row: Document) -> str:
    """Return a layout in words: ``dp 8 × cp 2, zero1, micro-batch 1``."""
    axes = [f"{axis} {amount(row, axis):.0f}" for axis in _AXES if amount(row, axis) > 1]
    words = [" × ".join(axes) or "1 GPU"]
    for key in ("schedule", "sharding", "recompute", "offload"):
        if text(row, key) not in ("", "none"):
            words.append({"recompute": "recompute {}", "offload": "offload {}"}.get(key, "{}").format(text(row, key)))
    if amount(row, "virtual_stages") > 1:
        words.append(f"{amount(row, 'virtual_stages'):.0f} virtual stages")
    if row.get("sequence_parallel") is True:
        words.append("sequence parallel")
    if amount(row, "micro_batch"):
        words.append(f"micro-batch {amount(row, 'micro_batch'):.0f}")
    return ", ".join(words)


def _title(document: Document) -> str:
    words = f"Layouts of {text(document, 'model')} on {amount(document, 'num_gpus'):,.0f} × {text(document, 'gpu')}"
    return f"{words} ({text(document, 'cluster')}), global batch {amount(document, 'global_batch'):,.0f}"


def _answer(document: Document, layouts: list[Document]) -> str:
    if not layouts:
        return "No layout fits."
    best = (
        f"The fastest layout is {layout_name(layouts[0])}: {format_time(amount(layouts[0], 'step_time_s') * PS_PER_S)}."
    )
    tied = amount(document, "num_tied")
    return f"{best} {tied:.0f} layouts tie within 2 %." if tied > 1 else best


def _facts(layouts: list[Document]) -> tuple[Fact, ...]:
    if not layouts:
        return ()
    best = layouts[0]
    step = Fact(
        name="Step time", value=number(best, "step_time_s"), unit="s", low=number(best, "step_time_low_s"),
        high=number(best, "step_time_high_s"),
    )  # fmt: skip
    memory = Fact(name="Memory", value=number(best, "memory_bytes"), unit="bytes", note=text(best, "memory_verdict"))
    return (
        step, Fact(name="Throughput", value=number(best, "tokens_per_s"), unit="tokens/s"),
        Fact(name="MFU", value=number(best, "mfu"), unit="share"),
        memory,
    )  # fmt: skip


def _ranking(document: Document, layouts: list[Document]) -> PageSection:
    blocks: list[Block] = [_table(layouts)]
    drawn = [row for row in layouts if amount(row, "step_time_s") > 0 and number(row, "memory_bytes") is not None]
    if len(drawn) > 1:
        blocks.append(_points(drawn))
    line = text(document, "train_command")
    if line:
        blocks.append(CommandLine(title="Simulate the best layout", line=line))
    rejected = rows(document, "rejected")
    if rejected:
        items = tuple(Item(tag=f"{amount(row, 'layouts'):,.0f}", text=text(row, "reason")) for row in rejected)
        blocks.append(Items(title="Layouts that were not simulated", items=items))
    answer = (
        f"{amount(document, 'num_simulated'):,.0f} of {amount(document, 'num_layouts'):,.0f} layouts were simulated; "
        "the others are slower by an estimate or a bound, or do not fit."
    )
    return PageSection(key="layout", question="Which layout?", answer=answer, blocks=tuple(blocks))


def _table(layouts: list[Document]) -> Table:
    columns = (
        Head(name="layout"), Head(name="step", unit="s", scale="time"), Head(name="low", unit="s", scale="time"),
        Head(name="high", unit="s", scale="time"), Head(name="throughput", unit="tokens/s"),
        Head(name="MFU", unit="share"), Head(name="memory", unit="bytes"), Head(name="verdict"),
    )  # fmt: skip
    found: list[tuple[Cell, ...]] = []
    for row in layouts:
        numbers = [number(row, key) for key in ("step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s")]
        found.append(
            (_row_name(row), *numbers, number(row, "mfu"), number(row, "memory_bytes"), text(row, "memory_verdict"))
        )
    dimmed = tuple(place for place, row in enumerate(layouts) if text(row, "memory_verdict") == "does not fit")
    return Table(title="Ranking", columns=columns, rows=tuple(found), marked=(0,) if found else (), dimmed=dimmed)


def _points(layouts: list[Document]) -> Points:
    points = tuple(
        ChartPoint(
            x=amount(row, "memory_bytes"), y=amount(row, "step_time_s"), name=_row_name(row),
            hollow=text(row, "memory_verdict") == "does not fit", colour="first" if place == 0 else "compute",
            label="best" if place == 0 else "", detail=text(row, "memory_verdict"),
        )
        for place, row in enumerate(layouts)
    )  # fmt: skip
    return Points(
        title="Time against memory", x_axis=ChartAxis(title="memory per GPU", unit="bytes"),
        y_axis=ChartAxis(title="step time", unit="s"), points=points,
        x_limit=number(layouts[0], "memory_capacity_bytes"), limit_name="capacity",
        note="Hollow points do not fit.",
    )  # fmt: skip


def _row_name(row: Document) -> str:
    return layout_name(row) + (" (estimated)" if row.get("is_estimated") is True else "")


def _compared(document: Document, layouts: list[Document]) -> list[Document]:
    """Return the first layout, and the one whose terms the answer has: the given or the next simulated one."""
    given = section(document, "given")
    others = [given] if given else [row for row in layouts[1:] if row.get("is_estimated") is not True]
    return [*layouts[:1], *others[:1]]


def _difference(document: Document, layouts: list[Document]) -> PageSection:
    terms = rows(document, "terms")
    bars = tuple(
        Bar(name=f"{text(row, 'term')}: {name}", parts=(("", amount(row, key), colour),))
        for row in terms
        if text(row, "term") != "step" and max(amount(row, "first_s"), amount(row, "second_s")) > 0
        for name, key, colour in (("first", "first_s", "first"), ("second", "second_s", "second"))
    )
    columns = (
        Head(name="term"), Head(name="first", unit="s", scale="time"),
        Head(name="second", unit="s", scale="time"), Head(name="difference", unit="s", scale="time"),
    )  # fmt: skip
    found = tuple(
        (text(row, "term"), number(row, "first_s"), number(row, "second_s"), number(row, "difference_s"))
        for row in terms
    )
    names = " against ".join(layout_name(row) for row in _compared(document, layouts))
    moved = [row for row in terms if text(row, "term") != "step"]
    largest = max(moved, key=lambda row: abs(amount(row, "difference_s")), default=None)
    answer = f"{names}."
    if largest is not None:
        change = format_time(abs(amount(largest, "difference_s")) * PS_PER_S)
        answer += f" The largest difference is {text(largest, 'term')}: {change}."
    marked = tuple(place for place, row in enumerate(terms) if text(row, "term") == "step")
    blocks = (
        Bars(title="Parts of the step", unit="s", bars=bars, max_rows=24),
        Table(title="Terms of both", columns=columns, rows=found, marked=marked),
    )
    return PageSection(key="difference", question="Why is the first faster?", answer=answer, blocks=blocks)
