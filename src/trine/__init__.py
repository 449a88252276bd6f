"""trine: how long a deep-learning job takes on many GPUs, and why.

The public names below are resolved when first used: importing trine is fast and imports neither numba nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy
from trine.common._version import __version__ as __version__

#: module -> the public names that it defines
_HOMES = {
    "trine.check.fit_cluster": "fit_cluster",
    "trine.cluster": "Cluster build_topology load_cluster load_gpu",
    "trine.gpu.kernels.moe.options": "MoeOptions",
    "trine.gpu.collective": "LoadStoreCosts LoadStoreOptions compare_fidelity loadstore_collective",
    "trine.collectives.nccl": "Collectives collective_time",
    "trine.collectives.options": "CollectiveOptions",
    "trine.collectives.query": "collective",
    "trine.compute": "Calibration calibrate",
    "trine.engine": "run",
    "trine.errors": "DeadlockError InputError PlanError SimulationError SpecError TraceError TrineError UnitError",
    "trine.experiments.experiment": "Experiment",
    "trine.experiments.spec": "ExperimentSpec",
    "trine.experiments.sweeps": "sweep",
    "trine.graph.builder": "TaskGraphBuilder",
    "trine.graph.taskgraph": "Records TaskGraph",
    "trine.graph.workload": "Operator Tensor Workload",
    "trine.decentralised.protocol": "HopProtocol",
    "trine.decide.compare": "compare",
    "trine.decide.cost": "run_cost",
    "trine.decide.failures": "Failures",
    "trine.decide.sensitivity": "sensitivity",
    "trine.decide.size": "size",
    "trine.decide.support": "support",
    "trine.inference.infer": "infer",
    "trine.inference.plan_serving": "plan_serving",
    "trine.inference.serving_goal": "ServingGoal",
    "trine.inference.sizing": "size_serving",
    "trine.inference.stack_fit": "calibrate_serving",
    "trine.inference.step_time": "StepLayout step_time",
    "trine.parallel.plan": "Plan",
    "trine.parallel.stragglers": "Stragglers",
    "trine.gpu.replay.options": "EidolonOptions",
    "trine.gpu.replay.run": "run_eidolon",
    "trine.gpu.replay.writes": "WriteTable",
    "trine.results": "Result",
    "trine.results.citations": "cite",
    "trine.search.plan": "plan",
    "trine.training": "simulate",
    "trine.gpu.detail.detail": "kernel_detail",
    "trine.gpu.detail.choice": "DetailOptions",
    "trine.decentralised.study": "hop",
    "trine.training.neighbour": "simulate_shared",
    "trine.training.overlap": "overlap_range",
    "trine.training.step_fit": "calibrate_step",
    "trine.workload": "capture load save synthesize",
}
_PUBLIC = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from trine.check.fit_cluster import fit_cluster
    from trine.cluster import Cluster, build_topology, load_cluster, load_gpu
    from trine.collectives.nccl import Collectives, collective_time
    from trine.collectives.options import CollectiveOptions
    from trine.collectives.query import collective
    from trine.compute import Calibration, calibrate
    from trine.decentralised.protocol import HopProtocol
    from trine.decentralised.study import hop
    from trine.decide.compare import compare
    from trine.decide.cost import run_cost
    from trine.decide.failures import Failures
    from trine.decide.sensitivity import sensitivity
    from trine.decide.size import size
    from trine.decide.support import support
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
    from trine.experiments.experiment import Experiment
    from trine.experiments.spec import ExperimentSpec
    from trine.experiments.sweeps import sweep
    from trine.gpu.collective import (
        LoadStoreCosts,
        LoadStoreOptions,
        compare_fidelity,
        loadstore_collective,
    )
    from trine.gpu.detail.choice import DetailOptions
    from trine.gpu.detail.detail import kernel_detail
    from trine.gpu.kernels.moe.options import MoeOptions
    from trine.gpu.replay.options import EidolonOptions
    from trine.gpu.replay.run import run_eidolon
    from trine.gpu.replay.writes import WriteTable
    from trine.graph.builder import TaskGraphBuilder
    from trine.graph.taskgraph import Records, TaskGraph
    from trine.graph.workload import Operator, Tensor, Workload
    from trine.inference.infer import infer
    from trine.inference.plan_serving import plan_serving
    from trine.inference.serving_goal import ServingGoal
    from trine.inference.sizing import size_serving
    from trine.inference.stack_fit import calibrate_serving
    from trine.inference.step_time import StepLayout, step_time
    from trine.parallel.plan import Plan
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result
    from trine.results.citations import cite
    from trine.search.plan import plan
    from trine.training import simulate
    from trine.training.neighbour import simulate_shared
    from trine.training.overlap import overlap_range
    from trine.training.step_fit import calibrate_step
    from trine.workload.load import load
    from trine.workload.native import save
    from trine.workload.synthesis.model import synthesize
    from trine.workload.tracing.tracer import capture

__all__ = [
    "Calibration", "Cluster", "CollectiveOptions", "Collectives", "DeadlockError", "DetailOptions", "EidolonOptions",
    "Experiment", "ExperimentSpec", "Failures", "HopProtocol", "InputError", "LoadStoreCosts", "LoadStoreOptions",
    "MoeOptions", "Operator", "Plan", "PlanError", "Records", "Result", "ServingGoal", "SimulationError", "SpecError",
    "StepLayout", "Stragglers", "TaskGraph", "TaskGraphBuilder", "Tensor", "TraceError", "TrineError", "UnitError",
    "Workload", "WriteTable", "build_topology", "calibrate", "calibrate_serving", "calibrate_step", "capture", "cite",
    "collective", "collective_time", "compare", "compare_fidelity", "fit_cluster", "hop", "infer", "kernel_detail",
    "load", "load_cluster", "load_gpu", "loadstore_collective", "overlap_range", "plan", "plan_serving", "run",
    "run_cost", "run_eidolon", "save", "sensitivity", "simulate", "simulate_shared", "size", "size_serving",
    "step_time", "support", "sweep", "synthesize",
]  # fmt: skip


if not TYPE_CHECKING:  # or type checkers would take any name for one of trine's
    __getattr__ = lazy(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return ["__version__", *sorted(__all__)]
