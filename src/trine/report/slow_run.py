"""The pages of measured runs: ``trine check FOLDER``, and ``trine compare``."""

from __future__ import annotations

from collections.abc import Sequence

from trine.report.blocks import Bar, Bars, Block, Cell, Column, Table
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, numbers, rows, section, text
from trine.report.run_blocks import RunBlocks

_MAX_RANKS = 256


def check_trace_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine check FOLDER`` for traces: causes, waits of each rank, timeline."""
    causes = rows(document, "causes")
    first = causes[0] if causes else {}
    facts = (
        Fact(name="Step", value=number(document, "step_s"), unit="s"),
        Fact(name="Cause", value=text(first, "kind") or "none", tone="bad" if causes else "good"),
        Fact(name="Rank", value=_ranks(first) if causes else "–"),
        Fact(name="Gain of its removal", value=number(first, "gain_s"), unit="s"),
    )
    table_rows: list[tuple[Cell, ...]] = []
    for cause in causes:
        table_rows.append((text(cause, "kind"), _ranks(cause), number(cause, "slowdown"), number(cause, "gain_s"),
                           number(cause, "share"), text(cause, "operator")))  # fmt: skip
    columns = (
        Column(name="cause"), Column(name="ranks"), Column(name="slowdown", unit="number"),
        Column(name="gain", unit="s"), Column(name="of the step", unit="share"), Column(name="most in"),
    )  # fmt: skip
    why: list[Block] = []
    if table_rows:
        why.append(Table(title="Causes", columns=columns, rows=tuple(table_rows), marked=(0,)))
    why += [_bars_of_ranks(document)] if rows(document, "ranks") else []
    why += [run.timeline] if run.timeline is not None else []
    return Page(
        title=f"Measured run {text(document, 'folder')}", answer=_sentence(text(document, "verdict")), subject="check",
        version=text(document, "version"), facts=facts,
        sections=(
            PageSection(key="slow", question="Why so slow?", answer=_sentence(text(document, "verdict")),
                        blocks=tuple(why)),
            certainty(document, command),
        ),
    )  # fmt: skip


def check_hang_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine check FOLDER`` for dumps of the flight recorder: blocked collectives."""
    table_rows: list[tuple[Cell, ...]] = []
    for hang in rows(document, "hangs"):
        table_rows.append((text(hang, "kind"), _ranks(hang), f"{text(hang, 'operation')} {text(hang, 'number')}",
                           text(hang, "group"), _ranks(hang, "waiting"), number(hang, "waited_s")))  # fmt: skip
    columns = (Column(name="reason"), Column(name="ranks"), Column(name="collective"), Column(name="group"),
               Column(name="waiting ranks"), Column(name="waited", unit="s"))  # fmt: skip
    table = Table(title="Blocked collectives", columns=columns, rows=tuple(table_rows), marked=(0,))
    verdict = _sentence(text(document, "verdict"))
    hangs = PageSection(key="hang", question="Why does it hang?", answer=verdict,
                        blocks=(table,) if table_rows else ())  # fmt: skip
    return Page(title=f"Dumps in {text(document, 'folder')}", answer=verdict, subject="check",
                version=text(document, "version"), sections=(hangs, certainty(document, command)))  # fmt: skip


def measured_comparison_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine compare`` with a measured run: both times, terms, both timelines."""
    table_rows: list[tuple[Cell, ...]] = []
    for term in rows(document, "terms"):
        table_rows.append((text(term, "kind"), _ranks(term), number(term, "effect_s"), text(term, "operator")))
    table_rows.append(("unexplained", "", number(document, "unexplained_s"), ""))
    columns = (Column(name="term"), Column(name="ranks"), Column(name="effect", unit="s"), Column(name="most in"))
    note = "Effects are replays of B with the durations of A, one term at a time; they may overlap."
    table = Table(title="Terms, with the effect of removing each", columns=columns, rows=tuple(table_rows), marked=(0,),
                  note=note)  # fmt: skip
    aligned = numbers(section(document, "aligned"))
    parts = tuple((name, value, "compute" if name == "kernel" else "other") for name, value in aligned.items())
    alignment = Bars(title="Kernel time of B by alignment", unit="share", bars=(Bar(name="B", parts=parts),))
    blocks = (table, *([alignment] if parts else []), *([run.timeline] if run.timeline is not None else []))
    return _comparison(document, command, blocks)


def comparison_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of ``trine compare`` for two answers: terms and inputs."""
    bars = []
    for term in sorted(rows(document, "terms"), key=lambda row: -abs(amount(row, "difference_s"))):
        parts = (("A", amount(term, "a_s"), "first"), ("B", amount(term, "b_s"), "second"))
        bars += [Bar(name=f"{text(term, 'term')}, {name}", parts=((name, value, colour),))
                 for name, value, colour in parts]  # fmt: skip
    terms = Bars(title="Terms of both times", unit="s", bars=tuple(bars), max_rows=24)
    inputs: list[tuple[Cell, ...]] = []
    for row in rows(document, "inputs"):
        inputs.append((text(row, "input"), text(row, "a") or "–", text(row, "b") or "–"))
    table = Table(title="Inputs that differ", rows=tuple(inputs),
                  columns=(Column(name="input"), Column(name="A"), Column(name="B")))  # fmt: skip
    return _comparison(document, command, (terms, *([table] if inputs else [])))


def _comparison(document: Document, command: str, blocks: Sequence[Block]) -> Page:
    names = f"{text(document, 'a')} and {text(document, 'b')}"
    verdict = text(document, "verdict")
    answer = f"{verdict}." if verdict else _difference(document)
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
    share = f" by {abs(change) / base:.1%}" if base else ""
    return f"B is {'slower' if change > 0 else 'faster'}{share}." if change else "The times are equal."


def _bars_of_ranks(document: Document) -> Bars:
    bars = []
    for row in rows(document, "ranks")[:_MAX_RANKS]:
        parts = (("computes", amount(row, "compute_s"), "compute"),
                 ("transfers", amount(row, "transfer_s"), "communication"),
                 ("waits", amount(row, "waiting_s"), "idle"))  # fmt: skip
        waited = amount(row, "waited_for_s")
        note = f"others wait {waited * 1e3:.3g} ms for it" if waited else ""
        bars.append(Bar(name=f"rank {text(row, 'rank')}", parts=parts, note=note))
    return Bars(title="Time of each rank per step", unit="s", bars=tuple(bars), limit=number(document, "step_s"),
                limit_name="step", max_rows=16, note="Communication may overlap with computation.")  # fmt: skip


def _ranks(row: Document, key: str = "ranks") -> str:
    value = row.get(key)
    found = [str(each) for each in value if isinstance(each, int)] if isinstance(value, list) else []
    return ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "") or "all"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "." if words else ""
