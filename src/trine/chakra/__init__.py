"""Chakra execution traces, as ASTRA-sim takes them: read and simulated, and written from any job."""

from trine.chakra.graph import trace_graph
from trine.chakra.job import trace_job
from trine.chakra.programs import Roofline
from trine.chakra.read import read_chakra
from trine.chakra.simulate import simulate_chakra
from trine.chakra.trace import ChakraTrace
from trine.chakra.write import ChakraFiles, write_chakra

__all__ = [
    "ChakraFiles",
    "ChakraTrace",
    "Roofline",
    "read_chakra",
    "simulate_chakra",
    "trace_graph",
    "trace_job",
    "write_chakra",
]
