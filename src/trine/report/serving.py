"""Pages of served models: ``trine infer``, ``plan --serve`` and ``size --serve``."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    ChartAxis,
    ChartLine,
    ChartPoint,
    CommandLine,
    Head,
    Points,
    Table,
)
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text
from trine.report.run_blocks import RunBlocks
from trine.report.serving_timeline import PART_COLOURS


def infer_page(document: Document, command: str, run: RunBlocks) -> Page:
    """Return the page of a served model: parts of its steps, memory, evidence, and a timeline of single steps."""
    question = section(document, "question")
    title = (
        f"{text(document, 'model')} ({text(document, 'precision')}) on {amount(document, 'gpus'):.0f} × "
        f"{text(document, 'gpu')}, {text(document, 'engine')}: {amount(question, 'input_tokens'):,.0f} + "
        f"{amount(question, 'output_tokens'):,.0f} tokens"
    )
    facts = [
        _ranged(document, name, key, unit)
        for name, key, unit in (
            ("Time to first token", "ttft_s", "s"), ("Time per output token", "tpot_s", "s"),
            ("Throughput", "output_tokens_per_s", "tokens/s"), ("Per user", "tokens_per_s_per_user", "tokens/s"),
        )
        if number(section(document, key), "value") is not None
    ]  # fmt: skip
    return Page(
        title=title, answer=_infer_answer(document), subject="infer", version=text(document, "version"),
        facts=tuple(facts), sections=(_steps(document, run), certainty(document, command)),
    )  # fmt: skip


def _ranged(document: Document, name: str, key: str, unit: str) -> Fact:
    value = section(document, key)
    return Fact(
        name=name, value=number(value, "value"), unit=unit, low=number(value, "low"), high=number(value, "high")
    )


def _infer_answer(document: Document) -> str:
    tpot = number(section(document, "tpot_s"), "value")
    ttft = number(section(document, "ttft_s"), "value")
    words = []
    if ttft is not None:
        words.append(f"the first token comes after {format_time(ttft * PS_PER_S)}")
    if tpot is not None:
        words.append(f"each further one after {format_time(tpot * PS_PER_S)}")
    running = amount(document, "running")
    sentence = " and ".join(words) or "the engine serves the model"
    load = f" with {running:,.0f} requests in flight" if running else ""
    return f"{sentence[:1].upper()}{sentence[1:]}{load}."


def _part_bar(row: Document) -> Bar:
    name = text(row, "name")
    return Bar(name=name, parts=(("", amount(row, "seconds"), PART_COLOURS.get(name, "other")),))


def _steps(document: Document, run: RunBlocks) -> PageSection:
    blocks: list[Block] = []
    for name, key, total in (("decode", "decode_parts", "decode_step_s"), ("prefill", "prefill_parts", "prefill_s")):
        parts = sorted(rows(document, key), key=lambda row: -amount(row, "seconds"))
        bars = tuple(_part_bar(row) for row in parts if amount(row, "seconds") > 0)
        if bars:
            blocks.append(
                Bars(title=f"A {name} step by part", unit="s", bars=bars, total=number(document, total) or None)
            )
    memory = (
        ("weights", "weights_bytes", "weights"), ("activations", "activations_bytes", "activations"),
        ("KV cache", "kv_bytes", "state"),
    )  # fmt: skip
    parts_of_gpu = tuple((name, amount(document, key), colour) for name, key, colour in memory if amount(document, key))
    if parts_of_gpu:
        bars = (Bar(name="a replica", parts=parts_of_gpu),)
        bars += tuple(Bar(name=name, parts=(("", size, colour),)) for name, size, colour in parts_of_gpu)
        blocks.append(Bars(title="Memory", unit="bytes", bars=bars))
    if run.timeline is not None:
        blocks.append(run.timeline)
    limit = (
        f" The KV cache holds {amount(document, 'kv_capacity_tokens'):,.0f} tokens: at most "
        f"{amount(document, 'largest_concurrency'):,.0f} requests at a time."
        if amount(document, "kv_capacity_tokens")
        else ""
    )
    bound = text(document, "bound")
    answer = f"A decode step is bound by {bound}.{limit}" if bound else limit.strip()
    return PageSection(key="serving", question="Serving?", answer=answer, blocks=tuple(blocks))


def serving_plan_page(document: Document, command: str) -> Page:
    """Return the page of a serving plan: throughput against latency, and the deployments of the front."""
    layouts, front = rows(document, "layouts"), rows(document, "front")
    best = layouts[0] if layouts else {}
    answer = "No deployment meets the limits."
    if best:
        rate = amount(best, "tokens_per_s_per_gpu")
        answer = f"{deployment_name(best)} serves the most: {rate:,.0f} tokens/s per GPU."
    title = (
        f"Deployments of {text(document, 'model')} on {amount(document, 'num_gpus'):.0f} × {text(document, 'gpu')}, "
        f"{text(document, 'engine')}: {amount(document, 'input_tokens'):,.0f} + "
        f"{amount(document, 'output_tokens'):,.0f} tokens"
    )
    blocks: list[Block] = []
    if len(front) > 1:
        blocks.append(_front(front, layouts))
    blocks.append(_deployments("Best deployment of each layout", layouts))
    line = text(document, "infer_command")
    if line:
        blocks.append(CommandLine(title="Simulate the best deployment", line=line))
    words = (
        f"{amount(document, 'num_simulated'):,.0f} of {amount(document, 'num_points'):,.0f} points were simulated; "
        f"{len(front)} of them are on the front of throughput and latency."
    )
    facts = (
        Fact(name="Throughput", value=number(best, "tokens_per_s_per_gpu"), unit="tokens/s", note="per GPU"),
        Fact(name="Per user", value=number(best, "tokens_per_s_per_user"), unit="tokens/s"),
        Fact(name="Time to first token", value=number(best, "ttft_s"), unit="s"),
        Fact(name="Time per output token", value=number(best, "tpot_s"), unit="s"),
    )
    layout = PageSection(key="layout", question="Which layout?", answer=words, blocks=tuple(blocks))
    return Page(
        title=title, answer=answer, subject="plan --serve", version=text(document, "version"),
        facts=facts if best else (), sections=(layout, certainty(document, command)),
    )  # fmt: skip


def deployment_name(row: Document) -> str:
    """Return a deployment in words: ``tp 2, fp8, 4 copies, 64 in flight``."""
    axes = [f"{axis} {amount(row, axis):.0f}" for axis in ("tp", "pp", "ep") if amount(row, axis) > 1]
    words = [" × ".join(axes) or "1 GPU", text(row, "precision")]
    copies = amount(row, "copies")
    if copies > 1:
        words.append(f"{copies:.0f} copies")
    if amount(row, "concurrency"):
        words.append(f"{amount(row, 'concurrency'):,.0f} in flight")
    return ", ".join(word for word in words if word)


def _front(front: list[Document], layouts: list[Document]) -> Points:
    ranked = sorted(front, key=lambda row: amount(row, "tokens_per_s_per_user"))
    best = layouts[0] if layouts else {}
    points = tuple(
        ChartPoint(
            x=amount(row, "tokens_per_s_per_user"), y=amount(row, "tokens_per_s_per_gpu"), name=deployment_name(row),
            label="most throughput" if row == best else "", colour="first",
            detail=f"first token {format_time(amount(row, 'ttft_s') * PS_PER_S)}",
        )
        for row in ranked
    )  # fmt: skip
    line = tuple((point.x, point.y) for point in points)
    return Points(
        title="Throughput against speed for each user",
        x_axis=ChartAxis(title="tokens per second and user", unit="number"),
        y_axis=ChartAxis(title="tokens per second and GPU", unit="number"),
        points=points,
        lines=(ChartLine(name="", points=line, colour="first"),),
    )


def _deployments(title: str, found: list[Document]) -> Table:
    columns = (
        Head(name="deployment"), Head(name="first token", unit="s"), Head(name="per output token", unit="s"),
        Head(name="end to end", unit="s"), Head(name="per user", unit="tokens/s"),
        Head(name="per GPU", unit="tokens/s"), Head(name="all", unit="tokens/s"), Head(name="bound by"),
    )  # fmt: skip
    keys = ("ttft_s", "tpot_s", "end_to_end_s", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "output_tokens_per_s")
    table_rows: list[tuple[Cell, ...]] = []
    for row in found:
        table_rows.append((deployment_name(row), *(number(row, key) for key in keys), text(row, "bound")))
    return Table(title=title, columns=columns, rows=tuple(table_rows), marked=(0,) if found else ())
