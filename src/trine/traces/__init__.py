"""Reading and writing traces: one step of a job on one GPU, from the formats that profilers write.

What only some runs need is imported when it is first used: the tracer, comparison, and writing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trine.traces.load import READERS, Reader, bundled, load

if TYPE_CHECKING:
    from trine.traces.capture_target import load_function
    from trine.traces.inspect import Difference, TraceDescription, compare, describe
    from trine.traces.native import save
    from trine.traces.tracer import Capture, capture, capture_function

#: public name -> module that defines it; no module is called like one of the names
_LATER = {
    "Capture": "trine.traces.tracer",
    "Difference": "trine.traces.inspect",
    "TraceDescription": "trine.traces.inspect",
    "capture": "trine.traces.tracer",
    "capture_function": "trine.traces.tracer",
    "compare": "trine.traces.inspect",
    "describe": "trine.traces.inspect",
    "load_function": "trine.traces.capture_target",
    "save": "trine.traces.native",
}

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


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'trine.traces' has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value
