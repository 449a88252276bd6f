"""The page of a sizing: ``trine size``."""

from __future__ import annotations

from trine.report.blocks import Block, Cell, CommandLine, Head, Table
from trine.report.certainty import certainty
from trine.report.layouts import layout_name
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text


def size_page(document: Document, command: str) -> Page:
    """Return the page: machine types, their smallest number of GPUs, days and dollars."""
    machines = rows(document, "machines")
    chosen = [row for row in machines if not text(row, "problem") and section(row, "cost")]
    answer = PageSection(
        key="machine", question="Which machine?", answer=_remark(chosen), blocks=_blocks(document, machines)
    )
    return Page(
        title=_title(document), answer=_answer(chosen), subject="size", version=text(document, "version"),
        facts=_facts(chosen), sections=(answer, certainty(document, command)),
    )  # fmt: skip


def _title(document: Document) -> str:
    name = text(document, "model").removeprefix("model:")
    days = number(document, "days")
    limit = f" in {days:g} days" if days is not None else ""
    return f"{name} on {amount(document, 'tokens') / 1e9:,.0f} billion tokens{limit}"


def _answer(chosen: list[Document]) -> str:
    if not chosen:
        return "No machine trains the model within the limits."
    best = chosen[0]
    if amount(best, "gpus") == 1:
        return f"One GPU of {text(best, 'cluster')} is enough."
    return f"{amount(best, 'gpus'):,.0f} GPUs of {text(best, 'cluster')} are enough."


def _remark(chosen: list[Document]) -> str:
    if not chosen:
        return "The table states why."
    unused = text(chosen[0], "unused")
    return f"{unused[:1].upper()}{unused[1:]}." if unused else "The machine type with the fewest GPUs comes first."


def _facts(chosen: list[Document]) -> tuple[Fact, ...]:
    if not chosen:
        return ()
    cost = section(chosen[0], "cost")
    facts = [_ranged("Time with failures", cost, "expected_days", "days")]
    if number(cost, "expected_usd") is not None:
        facts.append(_ranged("Cost", cost, "expected_usd", "usd"))
    facts.append(_ranged("GPU-hours", cost, "expected_gpu_hours", "count"))
    facts.append(_ranged("Energy of the GPUs", cost, "kwh", "kWh"))
    return tuple(facts)


def _ranged(name: str, cost: Document, key: str, unit: str) -> Fact:
    ends = number(cost, f"{key}_low"), number(cost, f"{key}_high")
    return Fact(name=name, value=number(cost, key), unit=unit, low=ends[0], high=ends[1])


def _blocks(document: Document, machines: list[Document]) -> tuple[Block, ...]:
    columns = (
        Head(name="machine"), Head(name="GPUs", unit="count"), Head(name="global batch", unit="count"),
        Head(name="time", unit="days"), Head(name="low", unit="days"), Head(name="high", unit="days"),
        Head(name="GPU-hours", unit="count"), Head(name="cost", unit="usd"), Head(name="layout or problem"),
    )  # fmt: skip
    found: list[tuple[Cell, ...]] = []
    dimmed = []
    for row in machines:
        cost, problem = section(row, "cost"), text(row, "problem") or text(row, "late")
        if problem:
            dimmed.append(len(found))
        numbers = [number(cost, key) for key in ("days", "days_low", "days_high", "gpu_hours", "usd")]
        words = problem or layout_name(section(row, "layout"))
        found.append((text(row, "cluster"), number(row, "gpus"), number(row, "global_batch"), *numbers, words))
    blocks: list[Block] = [Table(title="Machine types", columns=columns, rows=tuple(found), dimmed=tuple(dimmed))]
    line = text(document, "train_command")
    if line:
        blocks.append(CommandLine(title="Simulate the layout", line=line))
    return tuple(blocks)
