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
    from trine.traces.synthesize_model import synthesize
    from trine.traces.synthesize_models import known_models
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
    "known_models": "trine.traces.synthesize_models",
    "load_function": "trine.traces.capture_target",
    "save": "trine.traces.native",
    "synthesize": "trine.traces.synthesize_model",
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
    "known_models",
    "load",
    "load_function",
    "save",
    "synthesize",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'trine.traces' has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value
