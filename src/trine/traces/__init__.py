"""Reading and writing traces: one step of a job on one GPU, from the formats that profilers write."""

from trine.traces.capture import Capture, capture, capture_function
from trine.traces.capture_target import load_function
from trine.traces.inspect import Difference, TraceDescription, compare, describe
from trine.traces.load import READERS, Reader, bundled, load
from trine.traces.native import save

__all__ = [
    "READERS",
    "Capture",
    "Difference",
    "Reader",
    "TraceDescription",
    "bundled",
    "capture",
    "capture_function",
    "compare",
    "describe",
    "load",
    "load_function",
    "save",
]
