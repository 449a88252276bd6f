"""The section "How sure?": evidence, assumptions, effects left out, and how to repeat the answer."""

from __future__ import annotations

from trine.common.evidence import EVIDENCE
from trine.report.blocks import Block, CommandLine, Item, Items, Table, Text
from trine.report.blocks import Column as TableColumn
from trine.report.page import PageSection
from trine.report.reading import Document, number, rows, section, text, texts

_CITATION = "Cite trine as its CITATION.cff says; trine.cite(result) in Python lists the works behind a result."


def certainty(document: Document, command: str, extra: tuple[Block, ...] = ()) -> PageSection:
    """Return the section for any answer. command: the line that repeats it, "" if unknown. extra: further blocks."""
    evidence = rows(document, "evidence")
    blocks: list[Block] = [*extra]
    warnings = texts(document, "warnings")
    if warnings:
        blocks.append(Items(title="Warnings", items=tuple(Item(tag="warning", text=line) for line in warnings)))
    if evidence:
        blocks.append(Items(title="What the numbers rest on", items=tuple(_evidence_item(row) for row in evidence)))
    missing = texts(document, "not_modelled")
    if missing:
        items = tuple(Item(tag="left out", text=line) for line in missing)
        blocks.append(Items(title="Effects left out", items=items))
    notes = texts(document, "notes")
    if notes:
        blocks.append(Items(title="Notes", items=tuple(Item(tag="note", text=line) for line in notes)))
    settings = _settings(document)
    if settings is not None:
        blocks.append(settings)
    if command:
        blocks.append(CommandLine(title="Repeat this answer", line=command))
    blocks.append(Text(lines=(_simulator(document), _CITATION)))
    return PageSection(key="sure", question="How sure?", answer=_answer(document, evidence), blocks=tuple(blocks))


def _answer(document: Document, evidence: list[Document]) -> str:
    band = text(document, "step_time_band")
    if band:
        return f"The likely range is {band[:1].lower()}{band[1:]}." if not band[0].isdigit() else f"{band}."
    kinds = [text(row, "kind") for row in evidence]
    counts = [f"{kinds.count(kind)} {kind}" for kind in EVIDENCE if kind in kinds]
    if counts:
        return f"The numbers rest on {len(kinds)} statements: {', '.join(counts)}."
    return "The answer states its assumptions in the notes."


def _evidence_item(row: Document) -> Item:
    share, detail = number(row, "share"), text(row, "detail")
    part = "" if share is None else f" ({100 * share:.0f} % of the time)"
    return Item(tag=text(row, "kind"), text=f"{text(row, 'what')}{part}{f': {detail}' if detail else ''}")


def _settings(document: Document) -> Table | None:
    plan = section(document, "plan") or section(document, "question")
    lines = []
    for name, value in plan.items():
        if isinstance(value, bool):
            lines.append((name.replace("_", " "), "yes" if value else "no"))
        elif isinstance(value, str | int | float) and value != "":
            lines.append((name.replace("_", " "), str(value)))
    if not lines:
        return None
    columns = (TableColumn(name="setting"), TableColumn(name="value"))
    return Table(title="Settings", columns=columns, rows=tuple(lines), max_rows=10)


def _simulator(document: Document) -> str:
    run = section(document, "simulator")
    version = text(run, "version") or text(document, "version")
    events = number(run, "events")
    words = f"Computed by trine {version}"
    if events is not None:
        words += f", engine {text(run, 'engine')}, {events:,.0f} events"
    return words + "."
