"""The page of the machines for a served model: ``trine size --serve``."""

from __future__ import annotations

from trine.report.blocks import Bar, Bars, Block, Cell, Head, Table
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text

_AXES = ("tp", "pp", "ep", "attention_dp")


def serving_size_page(document: Document, command: str) -> Page:
    """Return the page: the GPUs of each machine type that answer the requests, with their times."""
    machines = rows(document, "machines")
    chosen = [row for row in machines if not text(row, "problem") and section(row, "point")]
    rate, prompt, output = (amount(document, key) for key in ("requests_per_second", "input_tokens", "output_tokens"))
    engine = text(document, "engine")
    part = PageSection(
        key="machine", question="Which machine?", answer=_remark(document, chosen), blocks=_blocks(machines, chosen)
    )
    return Page(
        title=f"{rate:,g} requests/s of {prompt:,.0f} + {output:,.0f} tokens with {engine}", answer=_answer(chosen),
        subject="size", version=text(document, "version"), facts=_facts(chosen),
        sections=(part, certainty(document, command)),
    )  # fmt: skip


def _answer(chosen: list[Document]) -> str:
    if not chosen:
        return "No machine answers these requests within the limits."
    count = amount(chosen[0], "num_gpus")
    gpus, verb = ("GPU", "answers") if count == 1 else ("GPUs", "answer")
    return f"{count:,.0f} {gpus} of {text(chosen[0], 'cluster')} {verb} the requests."


def _remark(document: Document, chosen: list[Document]) -> str:
    if not chosen:
        return "The table states why."
    share = amount(document, "utilisation")
    has_price = number(chosen[0], "dollars_per_hour") is not None
    first = "The lowest price comes first." if has_price else "The fewest GPUs come first."
    return f"{first} Requests use {100 * share:.0f} % of the throughput, so that few of them wait."


def _facts(chosen: list[Document]) -> tuple[Fact, ...]:
    if not chosen:
        return ()
    best, point = chosen[0], section(chosen[0], "point")
    note = f"{amount(point, 'concurrency'):,.0f} in flight on each copy"
    return (
        Fact(name="Requests per second at most", value=number(best, "requests_per_s"), unit="number", note=note),
        Fact(name="Time to the first token", value=number(point, "ttft_s"), unit="s"),
        Fact(name="Time per further token", value=number(point, "tpot_s"), unit="s"),
        Fact(name="Output of a GPU", value=number(point, "tokens_per_s_per_gpu"), unit="tokens/s"),
    )


def _blocks(machines: list[Document], chosen: list[Document]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if len(chosen) > 1:
        bars = []
        for row in chosen:
            bars.append(Bar(name=text(row, "cluster"), parts=(("GPUs", amount(row, "num_gpus"), "first"),)))
        blocks.append(Bars(title="GPUs of each machine type", unit="count", bars=tuple(bars)))
    has_price = any(number(row, "dollars_per_hour") is not None for row in machines)
    prices = (Head(name="$ per hour", unit="number"), Head(name="$ per million tokens", unit="number"))
    columns = (
        Head(name="machine"), Head(name="GPUs", unit="count"), Head(name="copies", unit="count"),
        Head(name="first token", unit="s"), Head(name="further token", unit="s"),
        Head(name="requests/s", unit="number"), *(prices if has_price else ()),
        Head(name="layout of a copy, or problem"),
    )  # fmt: skip
    found: list[tuple[Cell, ...]] = []
    dimmed = []
    for row in machines:
        point, problem = section(row, "point"), text(row, "problem")
        if problem:
            dimmed.append(len(found))
        costs = (number(row, "dollars_per_hour"), number(row, "dollars_per_million_tokens"))
        found.append(
            (text(row, "cluster"), number(row, "num_gpus"), number(point, "copies"), number(point, "ttft_s"),
             number(point, "tpot_s"), number(row, "requests_per_s"), *(costs if has_price else ()),
             problem or _layout(point))
        )  # fmt: skip
    table = Table(title="Machine types", columns=columns, rows=tuple(found), dimmed=tuple(dimmed))
    return (*blocks, table)


def _layout(point: Document) -> str:
    degrees = []
    for axis in _AXES:
        if amount(point, axis) > 1:
            degrees.append(f"{axis.replace('_', ' ')} {amount(point, axis):.0f}")
    return ", ".join([" × ".join(degrees) or "1 GPU", text(point, "precision")])
