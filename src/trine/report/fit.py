"""The section "How long, and does it fit?" of a training step."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Bar, Bars, Block, Head, Table
from trine.report.memory_colours import MEMORY_COLOURS
from trine.report.page import PageSection
from trine.report.reading import Document, amount, number, numbers, rows, section, text
from trine.report.run_blocks import RunBlocks
from trine.report.step import AXES, RANK_PARTS, fullest_memory, one_per_class, step_ps

#: Words and colours of idle time by cause.
_IDLE_WORDS = {"bubble": "pipeline bubble", "launch": "waiting for launches", "wait": "other waits"}
_IDLE = {"bubble": "bubble", "launch": "launch", "input_copy": "input", "offload": "offload"}


def fit_section(document: Document, run: RunBlocks) -> PageSection:
    """Return the section: breakdown of the slowest rank, memory of the fullest rank."""
    blocks = (_breakdown(document), *memory_blocks(document, run))
    return PageSection(
        key="fit", question="How long, and does it fit?", answer=_where_time_goes(document), blocks=blocks
    )


def memory_blocks(document: Document, run: RunBlocks) -> tuple[Block, ...]:
    """Return the memory of the fullest rank at its peak and over time, and of all ranks."""
    blocks: list[Block] = []
    memory = fullest_memory(document)
    if memory:
        blocks.append(_memory_peak(document, memory))
    if run.memory is not None:
        blocks.append(run.memory)
    if len(rows(document, "memory")) > 1:
        blocks.append(_memory_table(document))
    return tuple(blocks)


def _where_time_goes(document: Document) -> str:
    step = step_ps(document)
    if not step:
        return ""
    parts = {
        "computation": amount(document, "compute_s"),
        "exposed communication": amount(document, "exposed_communication_s"),
        "the pipeline bubble": amount(document, "bubble_s"),
        "other idle time": amount(document, "idle_s"),
    }
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    words = [f"{name} {100 * time * PS_PER_S / step:.0f} %" for name, time in ranked if time * PS_PER_S > 0.005 * step]
    hidden = amount(document, "communication_s") - amount(document, "exposed_communication_s")
    sentence = f"Of the slowest rank's step: {', '.join(words)}."
    if hidden * PS_PER_S > 0.005 * step:
        sentence += f" A further {format_time(hidden * PS_PER_S)} of communication hides behind computation."
    return sentence


def _breakdown(document: Document) -> Bars:
    terms = section(document, "terms")
    found: list[tuple[str, float, str]] = []
    for name, time in numbers(section(terms, "compute_s")).items():
        found.append((name, time, name if name in ("forward", "backward", "recompute", "optimizer") else "compute"))
    for axis, time in numbers(section(terms, "exposed_s")).items():
        words = f"exposed {axis} communication" if axis in AXES else "exposed messages"
        found.append((words, time, axis if axis in AXES else "communication"))
    for name, time in numbers(section(terms, "idle_s")).items():
        found.append((_IDLE_WORDS.get(name, name.replace("_", " ")), time, _IDLE.get(name, "idle")))
    if not found:
        found = [(name, amount(document, key), colour) for name, key, colour in RANK_PARTS]
    ranked = sorted((part for part in found if part[1] > 0), key=lambda part: -part[1])
    bars = tuple(Bar(name=name, parts=((name, time, colour),)) for name, time, colour in ranked)
    return Bars(
        title=f"Where the step of rank {text(document, 'slowest_rank')} goes, the slowest",
        unit="s",
        bars=bars,
        total=amount(document, "step_time_s") or None,
    )


def _memory_peak(document: Document, memory: Document) -> Bars:
    """Return the memory needed by the fullest rank: tensors at their peak, the allocator's extra, context."""
    parts = []
    sizes = numbers(section(memory, "by_category_bytes"))
    for name, size in sorted(sizes.items(), key=lambda part: -part[1]):
        if size > 0:
            parts.append((name.replace("_", " "), size, MEMORY_COLOURS.get(name, "other")))
    extra = amount(memory, "reserved_bytes") - sum(sizes.values())
    if extra > 0:
        parts.append(("reserved, not in use", extra, "idle"))
    if amount(memory, "outside_bytes"):
        parts.append(("context and communicators", amount(memory, "outside_bytes"), "launch"))
    bars = [Bar(name=f"rank {text(document, 'memory_rank')}", parts=tuple(parts))]
    bars += [Bar(name=name, parts=(("", size, colour),)) for name, size, colour in parts]
    capacity = number(memory, "capacity_bytes")
    return Bars(
        title="Memory of the fullest rank at its peak",
        unit="bytes",
        bars=tuple(bars),
        total=capacity,
        limit=capacity,
        limit_name="capacity",
        note="Shares are of the capacity." if capacity else "",
    )


def _memory_table(document: Document) -> Table:
    columns = (
        Head(name="rank"), Head(name="peak of tensors", unit="bytes"), Head(name="needed", unit="bytes"),
        Head(name="capacity", unit="bytes"), Head(name="left", unit="bytes"), Head(name="verdict"),
    )  # fmt: skip
    found = [
        (text(row, "rank"), number(row, "peak_bytes"), number(row, "needed_bytes"), number(row, "capacity_bytes"),
         number(row, "margin_bytes"), text(row, "verdict"))
        for row in one_per_class(document, rows(document, "memory"))
    ]  # fmt: skip
    dimmed = tuple(place for place, row in enumerate(found) if row[5] == "does not fit")
    return Table(title="Memory by rank, one per class", columns=columns, rows=tuple(found), dimmed=dimmed)
