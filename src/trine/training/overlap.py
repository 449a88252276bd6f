"""One job with ideal, modelled and no overlap: the savings of overlap, and the cost of contention."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from trine.common.arguments import takes
from trine.common.evidence import Evidence
from trine.common.observer import ignore, observing
from trine.common.units import format_time
from trine.parallel.plan import OVERLAPS, Plan
from trine.results import Result
from trine.results.plot import breakdown
from trine.results.report import Report, Row, Table
from trine.results.text import wrapped_at
from trine.training import simulate
from trine.training.options import SimulateOptions, observed

if TYPE_CHECKING:
    from trine.graph.workload import Workload


@dataclass(frozen=True, kw_only=True, repr=False)
class OverlapRange(Report):
    """Three results of one job: ideal overlap, overlap with contention, and no overlap."""

    SCHEMA: ClassVar[str] = "overlap"

    ideal: Result
    modelled: Result
    none: Result

    @property
    def saved_ps(self) -> int:
        """Savings of overlap: the step without it, less the step with contention. Negative if overlap slows it down."""
        return self.none.step_time_ps - self.modelled.step_time_ps

    @property
    def cost_ps(self) -> int:
        """Cost of contention: the step with contention, less the step with ideal overlap."""
        return self.modelled.step_time_ps - self.ideal.step_time_ps

    def details(self) -> str:
        """Return the three steps, the savings and the cost of contention."""
        return "\n".join(line for text in self._sentences() for line in wrapped_at("", text, 0))

    def _sentences(self) -> tuple[str, str]:
        ideal, modelled, none = (format_time(getattr(self, name).step_time_ps) for name in OVERLAPS)
        return (
            f"overlap  step {ideal} if it costs nothing, {modelled} with contention, {none} without overlap",
            f"overlap saves {_share(self.saved_ps, self.none.step_time_ps)}; "
            f"contention costs {_share(self.cost_ps, self.ideal.step_time_ps)}",
        )

    @property
    def headline(self) -> str:
        """Times of the three steps."""
        return self._sentences()[0]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self.modelled.evidence

    @property
    def notes(self) -> tuple[str, ...]:
        return self.modelled.notes

    def tables(self) -> dict[str, Table]:
        """Return ``steps``: the slowest rank's time breakdown with each kind of overlap."""
        parts = ("step_time_s", "compute_s", "communication_s", "exposed_communication_s", "bubble_s", "idle_s")
        rows = []
        for name in OVERLAPS:
            rows.append({"overlap": name, **{part: getattr(getattr(self, name), part) for part in parts}})
        return {"steps": rows}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``breakdown``: the three steps side by side."""
        return {"breakdown": partial(breakdown, [getattr(self, name) for name in OVERLAPS], list(OVERLAPS))}

    def document(self) -> Row:
        """Return the ``overlap`` block of a result's JSON."""
        steps = {f"{name}_step_s": getattr(self, name).step_time_s for name in OVERLAPS}
        return {**steps, "saved_s": self.saved_ps / 1e12, "contention_cost_s": self.cost_ps / 1e12}


@takes(SimulateOptions)
@observed
def overlap_range(workload: Workload | str | os.PathLike[str], plan: Plan, *, options: SimulateOptions) -> OverlapRange:
    """Simulate ``plan`` with each kind of overlap; for ``options``, see :func:`trine.simulate`.

    ``on_job`` is called once. Raises the errors of simulate, and PlanError for a job on one GPU, which has no overlap.
    """
    plans = {name: replace(plan, overlap=name) for name in reversed(OVERLAPS)}
    runs = {}
    for name, variant in plans.items():
        is_modelled = name == "modelled"
        with observing(on_job=None if is_modelled else ignore):
            runs[name] = simulate(workload, variant, options=replace(options, compare=options.compare and is_modelled))
    return OverlapRange(**runs)


def _share(ps: int, whole_ps: int) -> str:
    return f"{format_time(ps)} ({100 * ps / whole_ps:.1f} %)" if whole_ps else format_time(ps)
