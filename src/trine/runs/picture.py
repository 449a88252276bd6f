"""A picture of a measured run: what each rank does in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trine.results.axes import tidy, title, write_in_full
from trine.results.picture import COLOURS, subplots
from trine.runs.measured_run import MeasuredRun
from trine.runs.waits import RankWaits

_PARTS = (("computes", "compute_ps"), ("transfers", "transfer_ps"), ("waits for another rank", "waiting_ps"))
_PS_PER_MS = 10**9


def draw_ranks(run: MeasuredRun, waits: Sequence[RankWaits], verdict: str) -> Any:
    """Return a figure with one bar per rank; parts overlap in time, so a bar may be longer than the step."""
    figure, axes = subplots(figsize=(9, max(2.5, 0.32 * len(waits) + 1.8)))
    labels = [str(row.rank) for row in waits]
    left = [0.0] * len(waits)
    for (name, attribute), color in zip(_PARTS, COLOURS, strict=False):
        widths = [getattr(row, attribute) / _PS_PER_MS for row in waits]
        axes.barh(labels, widths, left=left, label=name, color=color)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.axvline(run.step_ps / _PS_PER_MS, color="black", linewidth=1, linestyle="--", label="step")
    axes.invert_yaxis()
    axes.set_xlabel("time per step (ms); communication may overlap with computation")
    axes.set_ylabel("rank")
    title(axes, verdict)
    tidy(axes, "x")
    write_in_full(axes.xaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False, fontsize=8)
    return figure
