"""The page of decentralised training: ``trine hop``."""

from __future__ import annotations

from trine.report.blocks import Bar, Bars, Block, Head, Table
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text

#: Parts of a worker's time: words, key and colour.
_PARTS = (
    ("computing", "computing_s", "compute"), ("waiting for updates", "waiting_for_updates_s", "communication"),
    ("waiting for tokens", "waiting_for_tokens_s", "bubble"),
)  # fmt: skip
_SHARES = ("computing", "waiting_for_updates", "waiting_for_tokens")


def hop_page(document: Document, command: str) -> Page:
    """Return the page: who waits for whom, and how old the updates are."""
    graph, protocol = section(document, "graph"), section(document, "protocol")
    facts = (
        Fact(name="Iterations per second", value=number(document, "iterations_per_s"), unit="number", note="of all"),
        Fact(name="Time", value=number(document, "end_s"), unit="s"),
        Fact(name="Workers compute", value=number(section(document, "shares"), "computing"), unit="share"),
        Fact(name="Updates missed", value=number(document, "missed_updates"), unit="count",
             note=f"of {amount(document, 'sent_updates'):,.0f} sent"),
    )  # fmt: skip
    title = (
        f"{amount(graph, 'workers'):.0f} workers in a {text(graph, 'name')} graph: backup "
        f"{amount(protocol, 'backup'):.0f}, staleness {amount(protocol, 'staleness'):.0f}"
    )
    return Page(
        title=title, answer=_answer(document), subject="hop", version=text(document, "version"), facts=facts,
        sections=(_waits(document), certainty(document, command)),
    )  # fmt: skip


def _answer(document: Document) -> str:
    shares = section(document, "shares")
    words = f"{amount(document, 'iterations_per_s'):.3g} iterations per second of all workers together"
    waits = [name for name in _SHARES[1:] if amount(shares, name) >= 0.005]
    if not waits:
        return f"{words}; nobody waits."
    most = max(waits, key=lambda name: amount(shares, name))
    return f"{words}; {100 * amount(shares, most):.0f} % of their time is {most.replace('_', ' ')}."


def _waits(document: Document) -> PageSection:
    workers = rows(document, "workers")
    bars = []
    for place, row in enumerate(workers):
        trained = amount(row, "trained")
        parts = tuple((name, amount(row, key), colour) for name, key, colour in _PARTS)
        bars.append(Bar(name=f"worker {place}", parts=parts, note=f"{trained:,.0f} iterations"))
    blocks: list[Block] = [Bars(title="Time of each worker", unit="s", bars=tuple(bars), max_rows=64)]
    ages = section(document, "staleness")
    found = [(f"{age} iterations", amount(ages, age)) for age in sorted(ages, key=int)]
    if found:
        columns = (Head(name="age"), Head(name="updates", unit="count"))
        blocks.append(Table(title="Age of the updates that workers use", columns=columns, rows=tuple(found)))
    return PageSection(key="waits", question="Who waits?", answer=_slowest(workers), blocks=tuple(blocks))


def _slowest(workers: list[Document]) -> str:
    if not workers:
        return ""
    per_iteration = [amount(row, "computing_s") / max(amount(row, "trained"), 1) for row in workers]
    slowest = max(range(len(workers)), key=lambda place: per_iteration[place])
    usual = sorted(per_iteration)[len(per_iteration) // 2]
    if usual and per_iteration[slowest] > 1.02 * usual:
        factor = per_iteration[slowest] / usual
        return f"Worker {slowest} computes {factor:.2f} times as long as the usual worker; the others wait for it."
    return "All workers compute equally long; waits come from the links and the protocol."
