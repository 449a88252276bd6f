"""trine: how long a deep-learning job takes on many GPUs, and why.

The public names below are resolved when first used: importing trine is fast and imports neither numba nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

#: public name -> module that defines it
_PUBLIC = {
    "Calibration": "trine.compute",
    "Cluster": "trine.cluster",
    "CollectiveOptions": "trine.model.collective",
    "Collectives": "trine.collectives.library",
    "DeadlockError": "trine.errors",
    "EidolonOptions": "trine.eidolon.options",
    "HopProtocol": "trine.parallel.hop",
    "InputError": "trine.errors",
    "LoadStoreCosts": "trine.collectives.loadstore",
    "LoadStoreOptions": "trine.collectives.loadstore",
    "Operator": "trine.model.workload",
    "Plan": "trine.parallel.plan",
    "PlanError": "trine.errors",
    "Records": "trine.model.taskgraph",
    "Result": "trine.results",
    "SimulationError": "trine.errors",
    "SpecError": "trine.errors",
    "Stragglers": "trine.parallel.stragglers",
    "TaskGraph": "trine.model.taskgraph",
    "TaskGraphBuilder": "trine.model.builder",
    "Tensor": "trine.model.workload",
    "TraceError": "trine.errors",
    "TrineError": "trine.errors",
    "UnitError": "trine.errors",
    "Workload": "trine.model.workload",
    "WriteTable": "trine.eidolon.writes",
    "build_topology": "trine.cluster",
    "calibrate": "trine.compute",
    "capture": "trine.traces",
    "collective": "trine.collectives.ask",
    "collective_time": "trine.collectives.library",
    "compare_fidelity": "trine.collectives.loadstore",
    "hop": "trine.studies.hop",
    "load": "trine.traces",
    "load_cluster": "trine.cluster",
    "load_gpu": "trine.cluster",
    "loadstore_collective": "trine.collectives.loadstore",
    "overlap_range": "trine.studies.overlap",
    "run": "trine.engine",
    "run_eidolon": "trine.eidolon.run",
    "save": "trine.traces",
    "simulate": "trine.simulation",
    "synthesize": "trine.traces",
}

if TYPE_CHECKING:
    from trine.cluster import Cluster, build_topology, load_cluster, load_gpu
    from trine.collectives.ask import collective
    from trine.collectives.library import Collectives, collective_time
    from trine.collectives.loadstore import (
        LoadStoreCosts,
        LoadStoreOptions,
        compare_fidelity,
        loadstore_collective,
    )
    from trine.compute import Calibration, calibrate
    from trine.eidolon.options import EidolonOptions
    from trine.eidolon.run import run_eidolon
    from trine.eidolon.writes import WriteTable
    from trine.engine.run import run
    from trine.errors import (
        DeadlockError,
        InputError,
        PlanError,
        SimulationError,
        SpecError,
        TraceError,
        TrineError,
        UnitError,
    )
    from trine.model.builder import TaskGraphBuilder
    from trine.model.collective import CollectiveOptions
    from trine.model.taskgraph import Records, TaskGraph
    from trine.model.workload import Operator, Tensor, Workload
    from trine.parallel.hop import HopProtocol
    from trine.parallel.plan import Plan
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result
    from trine.simulation import simulate
    from trine.studies.hop import hop
    from trine.studies.overlap import overlap_range
    from trine.traces.load import load
    from trine.traces.native import save
    from trine.traces.synthesize_model import synthesize
    from trine.traces.tracer import capture

__all__ = [
    "Calibration",
    "Cluster",
    "CollectiveOptions",
    "Collectives",
    "DeadlockError",
    "EidolonOptions",
    "HopProtocol",
    "InputError",
    "LoadStoreCosts",
    "LoadStoreOptions",
    "Operator",
    "Plan",
    "PlanError",
    "Records",
    "Result",
    "SimulationError",
    "SpecError",
    "Stragglers",
    "TaskGraph",
    "TaskGraphBuilder",
    "Tensor",
    "TraceError",
    "TrineError",
    "UnitError",
    "Workload",
    "WriteTable",
    "build_topology",
    "calibrate",
    "capture",
    "collective",
    "collective_time",
    "compare_fidelity",
    "hop",
    "load",
    "load_cluster",
    "load_gpu",
    "loadstore_collective",
    "overlap_range",
    "run",
    "run_eidolon",
    "save",
    "simulate",
    "synthesize",
]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'trine' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
