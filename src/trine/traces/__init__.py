"""Reading and writing traces: one step of a job on one GPU, from the formats that profilers write."""

from trine.traces.load import bundled, load

__all__ = ["bundled", "load"]
