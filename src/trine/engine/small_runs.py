"""Small runs use the reference engine, which gives the same records.

In the time that numba needs to import and load its kernels, the reference engine simulates thousands of tasks; in the
time to compile them (once per installation), hundreds of thousands. So runs below a bound known in advance never wait
for either, until the reference engine has used its budget for this process.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from trine.engine.models import Network
from trine.errors import SimulationError
from trine.graph.taskgraph import Records, TaskGraph

#: Budget of tasks for the reference engine, over all runs of a process: about 0.3 s, the time to load compiled kernels.
MAX_TASKS = 40_000
#: Links of flows that the reference engine may visit to share bandwidth, per run: at most 0.4 s, if all share one link.
MAX_SHARED = 100_000
_COMPILED = "trine.engine.compiled"

_left = MAX_TASKS


def by_twin(graph: TaskGraph, model: Network) -> Records | None:
    """Return the records of a small run; None to use the compiled engine: the run is too large or it is loaded."""
    global _left
    if graph.num_tasks > min(_left, MAX_TASKS) or _COMPILED in sys.modules:
        return None
    from trine.engine.reference import SharingLimit, simulate

    _left -= graph.num_tasks
    try:
        records = simulate(graph, model, MAX_SHARED)
    except (SharingLimit, SimulationError):  # the compiled engine reports the error
        return None
    return replace(records, engine="compiled")
