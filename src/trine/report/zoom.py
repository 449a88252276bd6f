"""The section "Do both levels agree?": a collective or operator of a step, also load by load, after ``--zoom``."""

from __future__ import annotations

from dataclasses import replace
from shlex import join, quote, split

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Head, Table, TimelineBlock
from trine.report.page import PageSection
from trine.report.reading import Document, amount, rows, section, text

_QUESTION = "Do both levels agree?"


def with_zoom(block: TimelineBlock, document: Document, command: str) -> TimelineBlock:
    """Return a timeline whose collectives name the command that zooms into them, and the zoom that was run."""
    zoomed = zoom_section(document)
    return replace(
        block,
        command=_without_zoom(command),
        zoomed="" if zoomed is None else _zoomed_word(document),
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
        return _operator_section(section(document, "operator_zoom"))
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
    causes = _causes(zoomed, f"{text(zoomed, 'verdict').capitalize()}.")
    return PageSection(key="zoom", question=_QUESTION, answer=answer, blocks=(causes,))


def _causes(zoomed: Document, note: str) -> Table:
    found = []
    for cause in rows(zoomed, "causes"):
        found.append((text(cause, "name"), amount(cause, "time_s"), text(cause, "why")))
    return Table(
        title="Difference by cause",
        columns=(Head(name="Cause"), Head(name="Load by load - operator level", unit="s"), Head(name="Meaning")),
        rows=tuple(found),
        note=note,
    )


def _zoomed_word(document: Document) -> str:
    """Return the word of the timeline for the collective or operator that the answer has at both levels."""
    operator = section(section(document, "operator_zoom"), "operator")
    if operator:
        return ",".join(filter(None, (text(operator, "name"), text(operator, "layer"))))
    return quote(_place(section(document, "zoom")))


def _operator_section(zoomed: Document) -> PageSection | None:
    """Return both times of an operator, the parts of its kernels, and the causes of the difference."""
    if not zoomed:
        return None
    operator, step = section(zoomed, "operator"), section(zoomed, "step")
    times = [format_time(amount(zoomed, key) * PS_PER_S) for key in ("operator_s", "loadstore_s")]
    change = format_time(abs(amount(step, "change_s")) * PS_PER_S)
    direction = "longer" if amount(step, "change_s") > 0 else "shorter"
    place = f" of {text(operator, 'layer')}" if text(operator, "layer") else ""
    answer = (
        f"{text(operator, 'name')}{place} takes {times[0]} at the operator level and {times[1]} load by load. If all "
        f"{amount(step, 'count'):,.0f} of its kind took that, the step would be about {change} {direction}."
    )
    found = []
    for number, kernel in enumerate(rows(zoomed, "kernels"), 1):
        for part in rows(kernel, "parts"):
            found.append((f"{number}: {text(kernel, 'shape')}", text(part, "name"), amount(part, "time_s"),
                          text(part, "why")))  # fmt: skip
    columns = (Head(name="Kernel"), Head(name="Part"), Head(name="Time", unit="s"), Head(name="Meaning"))
    extensions = "; ".join(text(kernel, "extension") for kernel in rows(zoomed, "kernels") if text(kernel, "extension"))
    parts = Table(
        title="Parts of the time load by load", columns=columns, rows=tuple(found),
        note=f"{extensions.capitalize()}." if extensions else "",
    )  # fmt: skip
    causes = _causes(zoomed, "The operator level's time is of a measured kernel, which is not split.")
    return PageSection(key="zoom", question=_QUESTION, answer=answer, blocks=(causes, parts))
