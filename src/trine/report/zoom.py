"""The section "Do both levels agree?": one collective of a step, also load by load, if ``--zoom`` asked for it."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_time
from trine.report.blocks import Head, Table
from trine.report.page import PageSection
from trine.report.reading import Document, amount, rows, section, text


def zoom_section(document: Document) -> PageSection | None:
    """Return both times, the causes of their difference and the effect on the step; None without ``--zoom``."""
    zoomed = section(document, "zoom")
    if not zoomed:
        return None
    collective = section(section(zoomed, "detail"), "collective")
    where = text(collective, "layer") or text(collective, "axis")
    operator, loadstore = (format_time(amount(zoomed, key) * PS_PER_S) for key in ("operator_s", "loadstore_s"))
    effect = section(zoomed, "step")
    change = format_time(abs(amount(effect, "change_s")) * PS_PER_S)
    direction = "longer" if amount(effect, "change_s") > 0 else "shorter"
    answer = (
        f"{text(collective, 'kind')} of {where} takes {operator} at the operator level and {loadstore} load by load. "
        f"If all {amount(effect, 'count'):,.0f} of its kind took that, the step would be about {change} {direction}."
    )
    causes = Table(
        title="Difference by cause",
        columns=(Head(name="Cause"), Head(name="Load by load - operator level", unit="s"), Head(name="Meaning")),
        rows=tuple(
            (text(cause, "name"), amount(cause, "time_s"), text(cause, "why")) for cause in rows(zoomed, "causes")
        ),
        note=f"{text(zoomed, 'verdict').capitalize()}.",
    )
    return PageSection(key="zoom", question="Do both levels agree?", answer=answer, blocks=(causes,))
