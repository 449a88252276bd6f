"""The page of a replayed GPU: ``trine eidolon run``."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Block, Column, Table
from trine.report.certainty import certainty
from trine.report.inside_gpu import inside_section
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, section, text

#: Counts of the run: names and keys.
_COUNTS = (
    ("reads of flags", "flag_reads"), ("other reads", "non_flag_reads"), ("writes of peers", "writes_delivered"),
    ("writes after the end", "writes_late"), ("wavefronts that wait", "waiting_wavefronts"), ("wake-ups", "wakeups"),
    ("wake-ups without a change", "spurious_wakeups"), ("monitors that were full", "monitor_full"),
)  # fmt: skip


def eidolon_page(document: Document, command: str) -> Page:
    """Return the page of one GPU whose peers' writes are replayed."""
    inside = section(document, "inside")
    gpu = section(inside, "gpu")
    run = {**inside, "wavefronts": gpu.get("wavefronts", {}), "bottleneck": inside.get("bottleneck", {})}
    facts = (
        Fact(name="Time", value=number(document, "time_s"), unit="s"),
        Fact(name="Longest wait for flags", value=number(document, "wait_s"), unit="s"),
        Fact(name="Reads of flags", value=number(document, "flag_reads"), unit="count"),
        Fact(name="Interval of polls", value=number(document, "polling_interval_s"), unit="s"),
    )
    return Page(
        title=f"{text(document, 'kernel')} on {text(document, 'gpu_model')}, {text(document, 'cluster')}",
        answer=_answer(document), subject="eidolon run", version=text(document, "version"), facts=facts,
        sections=(_peers(document), inside_section(run), certainty(document, command)),
    )  # fmt: skip


def _answer(document: Document) -> str:
    time, wait = amount(document, "time_s"), amount(document, "wait_s")
    share = f", {100 * wait / time:.0f} % of it waiting for flags of its peers" if time else ""
    return f"The kernel takes {format_time(time * PS_PER_S)}{share}."


def _peers(document: Document) -> PageSection:
    found = tuple((name, number(document, key)) for name, key in _COUNTS if number(document, key) is not None)
    columns = (Column(name="event"), Column(name="count", unit="count"))
    blocks: tuple[Block, ...] = (
        (Table(title="Reads, writes and wake-ups", columns=columns, rows=found),) if found else ()
    )
    options = section(document, "options")
    words = text(options, "writes_from_words")
    answer = f"{words[:1].upper()}{words[1:]}." if words else "The peers' writes are replayed."
    return PageSection(key="peers", question="What do peers send?", answer=answer, blocks=tuple(blocks))
