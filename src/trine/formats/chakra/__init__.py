"""Chakra execution traces, as ASTRA-sim takes them: read and simulated, and written from any job.

What runs is imported when it is first asked for: the options of a help page import none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trine.formats.chakra.graph import trace_graph
    from trine.formats.chakra.job import trace_job
    from trine.formats.chakra.programs import NodeRoofline
    from trine.formats.chakra.read import read_chakra
    from trine.formats.chakra.simulate import simulate_chakra
    from trine.formats.chakra.trace import ChakraTrace
    from trine.formats.chakra.write import ChakraFiles, write_chakra

_MODULES = {
    "ChakraFiles": "write",
    "ChakraTrace": "trace",
    "NodeRoofline": "programs",
    "read_chakra": "read",
    "simulate_chakra": "simulate",
    "trace_graph": "graph",
    "trace_job": "job",
    "write_chakra": "write",
}

__all__ = [
    "ChakraFiles",
    "ChakraTrace",
    "NodeRoofline",
    "read_chakra",
    "simulate_chakra",
    "trace_graph",
    "trace_job",
    "write_chakra",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
