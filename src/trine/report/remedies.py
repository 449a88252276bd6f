"""The section "What would help?": inputs that decide the step, and options that save memory, if they were asked for."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Bar, Bars, Block, Cell, Column, Table
from trine.report.memory_colours import MEMORY_COLOURS
from trine.report.page import PageSection
from trine.report.reading import Document, amount, number, rows, section, text


def remedies(document: Document) -> PageSection | None:
    """Return the section; None if the answer has neither ``--sensitivity`` nor ``--explain-memory``."""
    inputs = rows(section(document, "sensitivity"), "inputs")
    explained = section(document, "memory_explained")
    blocks: list[Block] = []
    if inputs:
        blocks += [_effects(inputs), _ends(inputs)]
    if explained:
        blocks += [_held(explained), _options(explained)]
    if not blocks:
        return None
    return PageSection(key="help", question="What would help?", answer=_answer(inputs, explained), blocks=tuple(blocks))


def _answer(inputs: list[Document], explained: Document) -> str:
    words = []
    if inputs:
        top = max(inputs, key=lambda row: amount(row, "effect_s"))
        moved = format_time(amount(top, "effect_s") * PS_PER_S)
        words.append(f"{text(top, 'input').capitalize()} decide most: their likely range moves the step by {moved}.")
    options = [row for row in rows(explained, "options") if number(row, "needed_bytes") is not None]
    if options:
        best = min(options, key=lambda row: amount(row, "needed_bytes"))
        words.append(f"{text(best, 'option').capitalize()} saves the most memory.")
    return " ".join(words)


def _effects(inputs: list[Document]) -> Bars:
    ranked = sorted(inputs, key=lambda row: -amount(row, "effect_s"))
    bars = tuple(Bar(name=text(row, "input"), parts=(("", amount(row, "effect_s"), "first"),)) for row in ranked)
    return Bars(title="Effect of each input's likely range on the step", unit="s", bars=bars)


def _ends(inputs: list[Document]) -> Table:
    columns = (
        Column(name="input"), Column(name="used"), Column(name="low"), Column(name="high"),
        Column(name="step at low", unit="s"), Column(name="step at high", unit="s"), Column(name="source of the range"),
    )  # fmt: skip
    found = tuple(
        (text(row, "input"), text(row, "value"), text(row, "low"), text(row, "high"), number(row, "step_at_low_s"),
         number(row, "step_at_high_s"), text(row, "source"))
        for row in inputs
    )  # fmt: skip
    return Table(title="The step at both ends of each range", columns=columns, rows=found)


def _held(explained: Document) -> Bars:
    bars = tuple(
        Bar(
            name=text(row, "module"), note=text(row, "since"),
            parts=((text(row, "category"), amount(row, "bytes"), MEMORY_COLOURS.get(text(row, "category"), "other")),),
        )
        for row in rows(explained, "held")
    )  # fmt: skip
    return Bars(
        title=f"Memory by module at the peak, {text(explained, 'at')}",
        unit="bytes",
        bars=bars,
        total=number(explained, "allocated_bytes"),
    )


def _options(explained: Document) -> Table:
    columns = (
        Column(name="option"), Column(name="memory needed", unit="bytes"), Column(name="change", unit="bytes"),
        Column(name="verdict"),
    )  # fmt: skip
    now = amount(explained, "needed_bytes")
    found: list[tuple[Cell, ...]] = []
    dimmed: list[int] = []
    for row in rows(explained, "options"):
        needed = number(row, "needed_bytes")
        change = None if needed is None else needed - now
        verdict = text(row, "verdict") or text(row, "why_not")
        if verdict != "fits":
            dimmed.append(len(found))
        found.append((text(row, "option"), needed, change, verdict))
    return Table(title="Memory with one option changed", columns=columns, rows=tuple(found), dimmed=tuple(dimmed))
