"""Chakra execution traces, as ASTRA-sim takes them: read and simulated, and written from any job."""

from trine.formats.chakra.graph import trace_graph
from trine.formats.chakra.job import trace_job
from trine.formats.chakra.programs import NodeRoofline
from trine.formats.chakra.read import read_chakra
from trine.formats.chakra.simulate import simulate_chakra
from trine.formats.chakra.trace import ChakraTrace
from trine.formats.chakra.write import ChakraFiles, write_chakra

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
