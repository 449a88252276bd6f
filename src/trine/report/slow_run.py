"""The pages of measured runs: ``trine check FOLDER``, and ``trine compare``."""

from __future__ import annotations

from collections.abc import Sequence

from trine.report.blocks import Bar, Bars, Block, Cell, Head, Table
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, numbers, rows, section, text
from trine.report.run_blocks import RunBlocks

#: Most ranks in the bars, and in a sentence.
_MAX_RANKS, _SHOWN_RANKS = 256, 12


def check_trace_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine check FOLDER`` for traces: causes, waits of each rank, timeline."""
    causes = rows(document, "causes")
    blocks: list[Block] = []
    if causes:
        blocks.append(_table_of_causes(causes))
    if rows(document, "ranks"):
        blocks.append(_bars_of_ranks(document))
    if run.timeline is not None:
        blocks.append(run.timeline)
    verdict = _sentence(text(document, "verdict"))
    slow = PageSection(key="slow", question="Why so slow?", answer=verdict, blocks=tuple(blocks))
    return Page(
        title=f"Measured run {text(document, 'folder')}", answer=verdict, subject="check",
        version=text(document, "version"), facts=_facts_of_causes(document, causes),
        sections=(slow, certainty(document, command)),
    )  # fmt: skip


def _facts_of_causes(document: Document, causes: list[Document]) -> tuple[Fact, ...]:
    """Return the step's time and its first cause."""
    first = causes[0] if causes else {}
    return (
        Fact(name="Step", value=number(document, "step_s"), unit="s"),
        Fact(name="Cause", value=text(first, "kind") or "none", tone="bad" if causes else "good"),
        Fact(name="Rank", value=_ranks(first) if causes else "–"),
        Fact(name="Gain of its removal", value=number(first, "gain_s"), unit="s"),
    )


def _table_of_causes(causes: list[Document]) -> Table:
    columns = (
        Head(name="cause"),
        Head(name="ranks"),
        Head(name="slowdown", unit="number"),
        Head(name="gain", unit="s"),
        Head(name="of the step", unit="share"),
        Head(name="most in"),
    )
    cells: list[tuple[Cell, ...]] = []
    for cause in causes:
        numbers_of_cause = [number(cause, key) for key in ("slowdown", "gain_s", "share")]
        cells.append((text(cause, "kind"), _ranks(cause), *numbers_of_cause, text(cause, "operator")))
    return Table(title="Causes", columns=columns, rows=tuple(cells), marked=(0,))


def check_hang_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine check FOLDER`` for dumps of the flight recorder: blocked collectives."""
    found = rows(document, "hangs")
    verdict = _sentence(text(document, "verdict"))
    blocks = (_table_of_hangs(found),) if found else ()
    hangs = PageSection(key="hang", question="Why does it hang?", answer=verdict, blocks=blocks)
    return Page(
        title=f"Dumps in {text(document, 'folder')}", answer=verdict, subject="check",
        version=text(document, "version"), sections=(hangs, certainty(document, command)),
    )  # fmt: skip


def _table_of_hangs(found: list[Document]) -> Table:
    columns = (
        Head(name="reason"),
        Head(name="ranks"),
        Head(name="collective"),
        Head(name="group"),
        Head(name="waiting ranks"),
        Head(name="waited", unit="s"),
    )
    cells: list[tuple[Cell, ...]] = []
    for hang in found:
        collective = f"{text(hang, 'operation')} {text(hang, 'number')}"
        waiting = _ranks(hang, "waiting")
        cells.append(
            (text(hang, "kind"), _ranks(hang), collective, text(hang, "group"), waiting, number(hang, "waited_s"))
        )
    return Table(title="Blocked collectives", columns=columns, rows=tuple(cells), marked=(0,))


def measured_comparison_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine compare`` with a measured run: both times, terms, both timelines."""
    blocks: list[Block] = [_table_of_terms(document)]
    parts = []
    for name, value in numbers(section(document, "aligned")).items():
        parts.append((name, value, "compute" if name == "kernel" else "other"))
    if parts:
        bar = Bar(name="B", parts=tuple(parts))
        blocks.append(Bars(title="Kernel time of B by alignment", unit="share", bars=(bar,)))
    if run.timeline is not None:
        blocks.append(run.timeline)
    return _comparison(document, command, blocks)


def _table_of_terms(document: Document) -> Table:
    columns = (Head(name="term"), Head(name="ranks"), Head(name="effect", unit="s"), Head(name="most in"))
    cells: list[tuple[Cell, ...]] = []
    for term in rows(document, "terms"):
        cells.append((text(term, "kind"), _ranks(term), number(term, "effect_s"), text(term, "operator")))
    cells.append(("unexplained", "", number(document, "unexplained_s"), ""))
    note = "Effects are replays of B with the durations of A, one term at a time; they may overlap."
    title = "Terms, with the effect of removing each"
    return Table(title=title, columns=columns, rows=tuple(cells), marked=(0,), note=note)


def comparison_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine compare`` for two answers: terms and inputs."""
    bars = []
    for term in sorted(rows(document, "terms"), key=lambda row: -abs(amount(row, "difference_s"))):
        for name, key, colour in (("A", "a_s", "first"), ("B", "b_s", "second")):
            bars.append(Bar(name=f"{text(term, 'term')}, {name}", parts=((name, amount(term, key), colour),)))
    blocks: list[Block] = [Bars(title="Terms of both times", unit="s", bars=tuple(bars), max_rows=24)]
    inputs: list[tuple[Cell, ...]] = []
    for row in rows(document, "inputs"):
        inputs.append((text(row, "input"), text(row, "a") or "–", text(row, "b") or "–"))
    if inputs:
        columns = (Head(name="input"), Head(name="A"), Head(name="B"))
        blocks.append(Table(title="Inputs that differ", rows=tuple(inputs), columns=columns))
    return _comparison(document, command, blocks)


def _comparison(document: Document, command: str, blocks: Sequence[Block]) -> Page:
    names = f"{text(document, 'a')} and {text(document, 'b')}"
    verdict = text(document, "verdict")
    answer = _sentence(verdict) if verdict else _difference(document)
    facts = (
        Fact(name="A", value=number(document, "a_s"), unit="s", note=text(document, "a")),
        Fact(name="B", value=number(document, "b_s"), unit="s", note=text(document, "b")),
        Fact(name="B less A", value=number(document, "difference_s"), unit="s"),
    )
    difference = PageSection(key="difference", question="Why do they differ?", answer=answer, blocks=tuple(blocks))
    return Page(title=names, answer=answer, subject="compare", version=text(document, "version"), facts=facts,
                sections=(difference, certainty(document, command)))  # fmt: skip


def _difference(document: Document) -> str:
    change, base = amount(document, "difference_s"), amount(document, "a_s")
    if not change:
        return "The times are equal."
    word = "slower" if change > 0 else "faster"
    share = f" by {abs(change) / base:.1%}" if base else ""
    return f"B is {word}{share}."


def _bars_of_ranks(document: Document) -> Bars:
    bars = []
    for row in rows(document, "ranks")[:_MAX_RANKS]:
        parts = (
            ("computes", amount(row, "compute_s"), "compute"),
            ("transfers", amount(row, "transfer_s"), "communication"),
            ("waits", amount(row, "waiting_s"), "idle"),
        )
        waited = amount(row, "waited_for_s")
        note = f"others wait {waited * 1e3:.3g} ms for it" if waited else ""
        bars.append(Bar(name=f"rank {text(row, 'rank')}", parts=parts, note=note))
    return Bars(
        title="Time of each rank per step", unit="s", bars=tuple(bars), limit=number(document, "step_s"),
        limit_name="step", max_rows=16, note="Communication may overlap with computation.",
    )  # fmt: skip


def _ranks(row: Document, key: str = "ranks") -> str:
    """Return the ranks of a row as words; a row without ranks is about all of them."""
    value = row.get(key)
    found = [str(each) for each in value if isinstance(each, int)] if isinstance(value, list) else []
    if not found:
        return "all"
    words = ", ".join(found[:_SHOWN_RANKS])
    return words if len(found) <= _SHOWN_RANKS else f"{words} and {len(found) - _SHOWN_RANKS} more"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "." if words else ""
