"""Small runs by the plain-Python twin of the engine, which gives the same records.

Importing numba and loading its kernels takes as long as the twin takes for thousands of tasks, and compiling them, once
for an installation, as long as it takes for hundreds of thousands. So what is small by a bound that is known before the
run never waits for either, until the twin has had its share of this process.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from trine.engine.models import Network
from trine.engine.reference import SharingLimit, simulate
from trine.errors import SimulationError
from trine.graph.taskgraph import Progress, Records, TaskGraph

#: Tasks of all runs of a process that the twin may have: about 0.3 s, for which the compiled loop is there.
MOST_TASKS = 40_000
#: Links of flows that the twin may look at to share them, in one run: at most 0.4 s, where all flows meet on one link.
MOST_SHARED = 100_000
_COMPILED = "trine.engine.compiled"

_left = MOST_TASKS


def by_twin(graph: TaskGraph, model: Network, progress: Progress | None) -> Records | None:
    """The records of a small run; None where the compiled loop is to run it: it is larger, or the loop is there."""
    global _left
    if graph.num_tasks > min(_left, MOST_TASKS) or _COMPILED in sys.modules:
        return None
    _left -= graph.num_tasks
    try:
        records = simulate(graph, model, progress, most_shared=MOST_SHARED)
    except (SharingLimit, SimulationError):  # what is wrong is for the compiled loop to say, in its words
        return None
    return replace(records, engine="compiled")
