"""The section "Do both levels agree?": one collective of a step, also load by load, if ``--zoom`` asked for it."""

from __future__ import annotations

from dataclasses import replace
from shlex import join, quote, split

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Head, Table, TimelineBlock
from trine.report.page import PageSection
from trine.report.reading import Document, amount, rows, section, text


def with_zoom(block: TimelineBlock, document: Document, command: str) -> TimelineBlock:
    """Return a timeline whose collectives name the command that zooms into them, and the zoom that was run."""
    zoomed = zoom_section(document)
    return replace(
        block,
        command=_without_zoom(command),
        zoomed="" if zoomed is None else quote(_place(section(document, "zoom"))),
        zoom_answer="" if zoomed is None else zoomed.answer,
    )


def _without_zoom(command: str) -> str:
    """Return a command line without its ``--zoom``, which may appear once."""
    try:
        words = split(command)
    except ValueError:  # a line from a file that is no shell's
        return ""
    kept = []
    is_value = False
    for word in words:
        if not is_value and word != "--zoom" and not word.startswith("--zoom="):
            kept.append(word)
        is_value = word == "--zoom"
    return join(kept)


def _place(zoomed: Document) -> str:
    """Return the layer of a zoom's collective, or the axis of one without a layer."""
    collective = section(section(zoomed, "detail"), "collective")
    return text(collective, "layer") or text(collective, "axis")


def zoom_section(document: Document) -> PageSection | None:
    """Return both times, the causes of their difference and the effect on the step; None without ``--zoom``."""
    zoomed = section(document, "zoom")
    if not zoomed:
        return None
    collective = section(section(zoomed, "detail"), "collective")
    where = _place(zoomed)
    operator, loadstore = (format_time(amount(zoomed, key) * PS_PER_S) for key in ("operator_s", "loadstore_s"))
    effect = section(zoomed, "step")
    change = format_time(abs(amount(effect, "change_s")) * PS_PER_S)
    direction = "longer" if amount(effect, "change_s") > 0 else "shorter"
    answer = (
        f"{text(collective, 'kind')} of {where} takes {operator} at the operator level and {loadstore} load by load. "
        f"If all {amount(effect, 'count'):,.0f} of its kind took that, the step would be about {change} {direction}."
    )
    found = []
    for cause in rows(zoomed, "causes"):
        found.append((text(cause, "name"), amount(cause, "time_s"), text(cause, "why")))
    causes = Table(
        title="Difference by cause",
        columns=(Head(name="Cause"), Head(name="Load by load - operator level", unit="s"), Head(name="Meaning")),
        rows=tuple(found),
        note=f"{text(zoomed, 'verdict').capitalize()}.",
    )
    return PageSection(key="zoom", question="Do both levels agree?", answer=answer, blocks=(causes,))
