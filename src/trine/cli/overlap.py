"""``--overlap range``: the three kinds of overlap in one answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trine.graph.workload import Workload
    from trine.parallel.plan import Plan
    from trine.results import Result
    from trine.studies.overlap import OverlapRange

RANGE = "range"


class OverlapAnswer:
    """Simulates once, or three times where ``asked`` is ``range``; then the modelled result is the answer."""

    def __init__(self, asked: str | None) -> None:
        self.is_range = asked is not None and asked.lower() == RANGE
        self.option = "modelled" if self.is_range else asked
        self.found: OverlapRange | None = None

    def simulate(self, workload: Workload | str | os.PathLike[str], plan: Plan, **options: Any) -> Result:
        """What :func:`trine.simulate` answers."""
        from trine.simulation import simulate
        from trine.studies.overlap import overlap_range

        if not self.is_range:
            return simulate(workload, plan, **options)
        self.found = overlap_range(workload, plan, **options)
        return self.found.modelled

    def summary(self, result: Result) -> str:
        """The result's summary, below the range."""
        return result.summary() if self.found is None else f"{self.found.summary()}\n{result.summary()}"

    def document(self, result: Result) -> dict[str, object]:
        """The result's keys, with the range."""
        content = result.document()
        return content if self.found is None else {**content, "overlap": self.found.document()}
