"""The page of a training step: ``train``, ``run`` and ``chakra run``."""

from __future__ import annotations

from trine.common.units import format_bytes, format_time
from trine.report.certainty import certainty
from trine.report.fit import fit_section
from trine.report.links import links_section
from trine.report.page import Fact, Page
from trine.report.reading import Document, amount, number, section, text
from trine.report.remedies import remedies
from trine.report.run_blocks import NO_RUN, RunBlocks
from trine.report.slow import slow_section
from trine.report.step import AXES, fullest_memory, step_ps
from trine.report.zoom import zoom_section

_TONES = {"fits": "good", "tight": "warn", "does not fit": "bad"}


def training_page(document: Document, command: str, run: RunBlocks = NO_RUN) -> Page:
    """Return the page of a step. run: blocks of the run itself; none if the answer comes from a file."""
    sections = [fit_section(document, run), slow_section(document, run, command), links_section(document, run)]
    sections += [each for each in (zoom_section(document), remedies(document)) if each is not None]
    sections.append(certainty(document, command))
    return Page(
        title=title(document), answer=_answer(document), subject=text(document, "command") or "train",
        version=text(document, "version"), facts=_facts(document), sections=tuple(sections),
    )  # fmt: skip


def title(document: Document) -> str:
    """Return workload, machine and layout in words."""
    plan = section(document, "plan")
    name = text(plan, "workload") or text(plan, "name") or "job"
    gpus, gpu = amount(plan, "num_ranks"), text(plan, "gpu") or text(plan, "trace_gpu") or "GPU"
    words = f"{name} on {gpus:,.0f} × {gpu}" if gpus else name
    if text(plan, "cluster"):
        words += f" ({text(plan, 'cluster')})"
    axes = [f"{axis} {amount(plan, axis):.0f}" for axis in AXES if amount(plan, axis) > 1]
    facts = [" × ".join(axes)] if axes else []
    if amount(plan, "global_batch"):
        facts.append(f"global batch {amount(plan, 'global_batch'):,.0f}")
    if text(plan, "schedule") not in ("", "None"):
        facts.append(text(plan, "schedule"))
    return f"{words}: {', '.join(facts)}" if facts else words


def _answer(document: Document) -> str:
    words = f"A step takes {format_time(step_ps(document))}"
    memory = fullest_memory(document)
    margin = number(memory, "margin_bytes")
    verdict = text(document, "memory_verdict")
    if margin is None or not verdict:
        return f"{words}."
    if verdict == "does not fit":
        return f"{words}, but the job does not fit: {format_bytes(abs(margin))} of memory are missing."
    tight = ", but it is tight" if verdict == "tight" else ""
    return f"{words}. The job fits in memory{tight}: {format_bytes(abs(margin))} are left on the fullest GPU."


def _facts(document: Document) -> tuple[Fact, ...]:
    facts = [_ranged(document, "Step time", "step_time_s", "s", ("step_time_low_s", "step_time_high_s"))]
    for name, key, unit in (("Throughput", "tokens_per_s", "tokens/s"), ("Throughput", "samples_per_s", "samples/s")):
        if number(document, key) is not None and len(facts) == 1:
            low, high = key.replace("_per_s", "_low_per_s"), key.replace("_per_s", "_high_per_s")
            facts.append(_ranged(document, name, key, unit, (low, high)))
    if number(document, "mfu") is not None:
        facts.append(_ranged(document, "MFU", "mfu", "share", ("mfu_low", "mfu_high")))
    memory = fullest_memory(document)
    if number(memory, "needed_bytes") is not None:
        capacity = number(memory, "capacity_bytes")
        of = f"of {format_bytes(capacity)}, " if capacity else ""
        facts.append(
            Fact(
                name="Memory of the fullest GPU", value=number(memory, "needed_bytes"), unit="bytes",
                low=number(memory, "needed_low_bytes"), high=number(memory, "needed_high_bytes"),
                note=f"{of}rank {text(document, 'memory_rank')}", tone=_TONES.get(text(memory, "verdict"), ""),
            )
        )  # fmt: skip
    return tuple(facts)


def _ranged(document: Document, name: str, key: str, unit: str, ends: tuple[str, str]) -> Fact:
    low, high = (number(document, end) for end in ends)
    return Fact(name=name, value=number(document, key), unit=unit, low=low, high=high)
