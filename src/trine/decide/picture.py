"""Pictures of decisions: the terms of two times side by side, and machine types by GPUs and days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trine.common.units import format_time
from trine.decide.cost import Range
from trine.decide.term import Term
from trine.results.axes import is_geometric, number, tick_at, tidy, time_scale, title, write_in_full
from trine.results.picture import COLOURS, log_scale, subplots

if TYPE_CHECKING:
    from trine.decide.machine_size import MachineSize

#: Terms in the picture, those that differ most.
MAX_TERMS = 12
#: Half the distance between the bars of A and B, and their height.
_SHIFT, _HEIGHT = 0.2, 0.36


def draw_terms(heading: str, names: tuple[str, str], terms: Sequence[Term]) -> Any:
    """Return the figure of the terms of two times, the one that differs most on top. Terms of no time are left out.

    heading: the title. names: of A and B.
    """
    by_difference = sorted(terms, key=lambda term: -abs(term.difference_ps))
    shown = [term for term in by_difference if term.a_ps or term.b_ps][:MAX_TERMS]
    scale = time_scale(max((max(term.a_ps, term.b_ps) for term in shown), default=0))
    figure, axes = subplots(figsize=(7.5, 1.6 + 0.42 * max(len(shown), 1)))
    rows = range(len(shown))
    of_a = [term.a_ps / scale.divisor for term in shown]
    of_b = [term.b_ps / scale.divisor for term in shown]
    axes.barh([row - _SHIFT for row in rows], of_a, height=_HEIGHT, color=COLOURS[0], label=names[0])
    axes.barh([row + _SHIFT for row in rows], of_b, height=_HEIGHT, color=COLOURS[3], label=names[1])
    for row, term in enumerate(shown):
        words = _difference_words(term.difference_ps)
        axes.annotate(f" {words}", (max(of_a[row], of_b[row]), row), va="center", fontsize=8)
    axes.set_yticks(list(rows), [term.name for term in shown])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time ({scale.words}); numbers: B - A")
    write_in_full(axes.xaxis)
    title(axes, heading)
    tidy(axes, "x")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _difference_words(difference_ps: int) -> str:
    """Return a difference with its sign and a unit of its own, or ``equal``."""
    if not difference_ps:
        return "equal"
    sign = "+" if difference_ps > 0 else "-"
    return f"{sign}{format_time(abs(difference_ps))}"


def draw_machines(heading: str, machines: Sequence[MachineSize], limit_days: float | None) -> Any:
    """Return the figure of machine types: expected days with their likely range, over the number of GPUs.

    heading: the title. machines: in the order of the answer; the first one is named as the answer, types without an
    answer are left out. Hollow: the likely range ends after ``limit_days``, which is a line.
    """
    figure, axes = subplots(figsize=(7.5, 4.8))
    counts: list[int] = []
    for machine in machines:
        if machine.cost is not None:
            _draw_machine(axes, machine, machine.cost.expected_days, is_first=not counts)
            counts.append(machine.num_gpus)
    if limit_days is not None:
        axes.axhline(limit_days, color="black", linewidth=1, linestyle="--")
        axes.annotate(
            f"limit: {limit_days:g} days ", (1, limit_days), xycoords=("axes fraction", "data"), ha="right",
            va="bottom", fontsize=8,
        )  # fmt: skip
    axes.margins(x=0.15, y=0.2)
    if is_geometric(counts):
        axes.set_xscale("log")
    if counts:
        tick_at(axes.xaxis, counts)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("time with failures (days)")
    title(axes, heading)
    tidy(axes, "both")
    log_scale(axes)
    return figure


def _draw_machine(axes: Any, machine: MachineSize, days: Range, *, is_first: bool) -> None:
    colour = COLOURS[3] if is_first else COLOURS[0]
    low = days.value if days.low is None else days.low
    high = days.value if days.high is None else days.high
    fill = "white" if machine.late else colour
    size, weight, ending = (8, "bold", " (answer)") if is_first else (6, "normal", "")
    axes.errorbar(
        [machine.num_gpus], [days.value], yerr=[[days.value - low], [high - days.value]], fmt="o", color=colour,
        markerfacecolor=fill, markersize=size, capsize=3, linewidth=1,
    )  # fmt: skip
    axes.annotate(
        f"{machine.cluster}: {number(days.value)} days{ending}", (machine.num_gpus, days.value), xytext=(8, 3),
        textcoords="offset points", fontsize=8, fontweight=weight,
    )  # fmt: skip
