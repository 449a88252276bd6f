"""Metrics of a run, and the result as text, JSON, tables, timelines and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.common.evidence import Evidence
    from trine.results.plot import plot_breakdown, plot_timeline
    from trine.results.result import Result
    from trine.results.run import Simulator

__all__ = ["Evidence", "Result", "Simulator", "plot_breakdown", "plot_timeline"]

_HOMES = {
    "Evidence": "trine.common.evidence",
    "Result": "trine.results.result",
    "Simulator": "trine.results.run",
    "plot_breakdown": "trine.results.plot",
    "plot_timeline": "trine.results.plot",
}

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _HOMES)
