"""Reading and writing traces: one step of a job on one GPU, from the formats that profilers write.

The tracer, the comparison of traces and writing are imported on first use: most runs do without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy
from trine.workload.load import load
from trine.workload.readers import READERS, TraceReader, bundled

if TYPE_CHECKING:
    from trine.workload.inspect import Difference, TraceDescription, compare, describe
    from trine.workload.native import save
    from trine.workload.synthesis.model import synthesize
    from trine.workload.synthesis.model_names import known_models
    from trine.workload.tracing.target import load_function
    from trine.workload.tracing.tracer import Capture, capture, capture_function

#: public name -> module that defines it; no module is called like one of the names
_LATER = {
    "Capture": "trine.workload.tracing.tracer",
    "Difference": "trine.workload.inspect",
    "TraceDescription": "trine.workload.inspect",
    "capture": "trine.workload.tracing.tracer",
    "capture_function": "trine.workload.tracing.tracer",
    "compare": "trine.workload.inspect",
    "describe": "trine.workload.inspect",
    "known_models": "trine.workload.synthesis.model_names",
    "load_function": "trine.workload.tracing.target",
    "save": "trine.workload.native",
    "synthesize": "trine.workload.synthesis.model",
}

__all__ = [
    "READERS", "Capture", "Difference", "TraceDescription", "TraceReader", "bundled", "capture", "capture_function",
    "compare", "describe", "known_models", "load", "load_function", "save", "synthesize",
]  # fmt: skip

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _LATER)
