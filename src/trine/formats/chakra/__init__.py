"""Chakra execution traces, the input format of ASTRA-sim: read, simulate, and write them for any job.

Modules are imported on first use, so that help pages stay fast.
"""

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.formats.chakra.job import trace_job
    from trine.formats.chakra.programs import NodeRoofline
    from trine.formats.chakra.read import read_chakra
    from trine.formats.chakra.simulate import simulate_chakra
    from trine.formats.chakra.task_graph import trace_graph
    from trine.formats.chakra.trace import ChakraTrace
    from trine.formats.chakra.write import ChakraFiles, write_chakra

_MODULES = {
    "ChakraFiles": "trine.formats.chakra.write",
    "ChakraTrace": "trine.formats.chakra.trace",
    "NodeRoofline": "trine.formats.chakra.programs",
    "read_chakra": "trine.formats.chakra.read",
    "simulate_chakra": "trine.formats.chakra.simulate",
    "trace_graph": "trine.formats.chakra.simulate",
    "trace_job": "trine.formats.chakra.job",
    "write_chakra": "trine.formats.chakra.write",
}

__all__ = [
    "ChakraFiles", "ChakraTrace", "NodeRoofline", "read_chakra", "simulate_chakra", "trace_graph", "trace_job",
    "write_chakra",
]  # fmt: skip

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _MODULES)
