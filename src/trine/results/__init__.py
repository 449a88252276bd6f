"""What follows from a run: metrics, and the result in every form that people and programs read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trine.evidence import Evidence
    from trine.results.plot import plot_breakdown, plot_timeline
    from trine.results.result import Result
    from trine.results.run import Simulator

__all__ = ["Evidence", "Result", "Simulator", "plot_breakdown", "plot_timeline"]

_HOMES = {
    "Evidence": "trine.evidence",
    "Result": "trine.results.result",
    "Simulator": "trine.results.run",
    "plot_breakdown": "trine.results.plot",
    "plot_timeline": "trine.results.plot",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'trine.results' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
