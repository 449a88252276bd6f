"""The section "Why so slow?" of a training step."""

from __future__ import annotations

from trine.report.blocks import Bar, Bars, Block, Choice, Text, TimelineBlock
from trine.report.page import PageSection
from trine.report.reading import Document, amount, numbers, rows, section, text
from trine.report.run_blocks import RunBlocks
from trine.report.shares import share_views
from trine.report.zoom import with_zoom

_PATH_COLOURS = {
    "compute": "compute", "communication": "communication", "launch": "launch", "offload": "offload",
    "input_copy": "input", "wait": "idle",
}  # fmt: skip


def slow_section(document: Document, run: RunBlocks, command: str = "") -> PageSection:
    """Return the section: timeline, critical path, and the time by rank, stage, layer and operator.

    command: the line that repeats the answer.
    """
    blocks: list[Block] = []
    if isinstance(run.timeline, TimelineBlock):
        blocks.append(with_zoom(run.timeline, document, command))
    elif run.timeline is not None:
        blocks.append(run.timeline)
    path = _critical_path(document)
    if path is not None:
        blocks.append(path)
    views = share_views(document)
    if views:
        blocks.append(Choice(title="Time by rank, stage, layer and operator", options=views))
    if run.roofline is not None:
        blocks.append(run.roofline)
    if run.timeline is None:
        blocks.append(Text(lines=("The timeline is in reports that the run itself writes: add --report FILE to it.",)))
    return PageSection(key="slow", question="Why so slow?", answer=_bottleneck(document), blocks=tuple(blocks))


def _bottleneck(document: Document) -> str:
    path, step = numbers(section(document, "critical_path")), amount(document, "step_time_s")
    operators = sorted(rows(document, "operators"), key=lambda row: -amount(row, "compute_s"))
    if not path or not step:
        return ""
    name, time = max(path.items(), key=lambda part: part[1])
    sentence = f"{100 * time / step:.0f} % of the critical path is {name.removesuffix('_s').replace('_', ' ')}."
    total = sum(amount(row, "compute_s") for row in operators)
    if operators and total:
        top = operators[0]
        sentence += (
            f" The longest operator is {text(top, 'operator')}: {100 * amount(top, 'compute_s') / total:.0f} % of the "
            "compute time."
        )
    return sentence


def _critical_path(document: Document) -> Bars | None:
    path = numbers(section(document, "critical_path"))
    bars = []
    for key, time in sorted(path.items(), key=lambda part: -part[1]):
        name = key.removesuffix("_s")
        if time > 0:
            bars.append(Bar(name=name.replace("_", " "), parts=(("", time, _PATH_COLOURS.get(name, "other")),)))
    if not bars:
        return None
    total = amount(document, "step_time_s") or None
    return Bars(title="The critical path", unit="s", bars=tuple(bars), total=total)
