"""What follows from a run: metrics, and the result in every form that people and programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.evidence import Evidence
from trine.results.result import Result
from trine.results.run import Simulator

if TYPE_CHECKING:
    from trine.results.plot import plot_breakdown, plot_timeline

__all__ = ["Evidence", "Result", "Simulator", "plot_breakdown", "plot_timeline"]


def __getattr__(name: str) -> object:
    if name not in ("plot_breakdown", "plot_timeline"):
        raise AttributeError(f"module 'trine.results' has no attribute {name!r}")
    from trine.results import plot

    return getattr(plot, name)
