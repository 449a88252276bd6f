"""What follows from a run: metrics, and the result in every form that people and programs read."""

from trine.results.plot import plot_breakdown, plot_timeline
from trine.results.result import Evidence, Result, Simulator

__all__ = ["Evidence", "Result", "Simulator", "plot_breakdown", "plot_timeline"]
