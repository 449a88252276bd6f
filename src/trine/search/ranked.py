"""A layout in the ranking of a search."""

from __future__ import annotations

from typing import NamedTuple

from trine.search.space import Layout
from trine.search.worker import Outcome


class Ranked(NamedTuple):
    """A layout and its outcome, simulated or estimated.

    bound_ps: the lower bound of its time; screened_ps: the screen's estimate. Either is 0 if it is unknown.
    """

    layout: Layout
    outcome: Outcome
    bound_ps: int
    screened_ps: int = 0

    @property
    def order(self) -> tuple[object, ...]:
        """The key of the ranking: time, then the layout."""
        return (self.outcome.step_ps, self.layout.key)
