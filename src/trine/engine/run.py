"""Simulation of a task graph: the times at which each task becomes ready, starts and ends."""

from __future__ import annotations

from trine.common.arguments import named_arguments
from trine.common.collector import without_collector
from trine.common.observer import OnCompile, Progress, observing
from trine.engine.circuit_model import CircuitModel
from trine.engine.models import Network, NetworkModel, QueueModel, is_compiled, network_model, why_unfolded
from trine.engine.small_runs import by_twin
from trine.engine.validate import validate
from trine.errors import InputError, nearest
from trine.graph.taskgraph import Records, TaskGraph

ENGINES = ("compiled", "reference")


@named_arguments
def run(
    graph: TaskGraph,
    *,
    network: str | Network = "fair",
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
) -> Records:
    """Simulate ``graph`` and return one record per task.

    Parameters
    ----------
    network: ``fair``, ``equal``, ``fifo``, ``circuit`` (use CircuitSwitching of circuit_model.py to change its
        numbers), the name of a plug-in's model, or a custom NetworkModel, QueueModel or CircuitModel. Plug-ins and
        custom models are plain Python and need ``engine="reference"``.
    engine: ``compiled``, or ``reference``, its plain-Python equivalent; both give the same picoseconds.
    progress: called a few times per second with (ended tasks, all tasks, current time in ps).
    on_compile: called once before kernels are compiled, which happens only on the first run of an installation.

    Raises InputError for a malformed graph, or one whose transfers represent more flows than the network supports;
    DeadlockError if tasks wait for each other forever; SimulationError if the simulated time exceeds about 106 days or
    a stream regains more speed than it has lost.
    """
    model = checked_model(graph, network, engine)
    with observing(progress=progress, on_compile=on_compile):
        if engine == "reference":
            from trine.engine.reference import simulate

            records = simulate(graph, model)
        else:
            records = by_twin(graph, model) or _compiled(graph, model)
    if graph.num_tasks and records.end_ps.min() < 0:
        from trine.engine.describe import deadlock

        raise deadlock(graph, records.end_ps, records.ready_ps)
    return records


def _compiled(graph: TaskGraph, model: Network) -> Records:
    with without_collector():
        from trine.engine.compiled import simulate

        return simulate(graph, model)


def checked_model(graph: TaskGraph, network: str | Network, engine: str) -> Network:
    """Return the network model; raise InputError if it or the engine cannot run ``graph``."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}", field="engine")
    model = network_model(network)
    validate(graph)
    if isinstance(model, QueueModel) and graph.link_latency_ps is None:
        raise InputError(
            f"the network {model.name!r} carries messages link by link: the graph must have the latency of each link",
            field="link_latency_ps",
        )
    if isinstance(model, CircuitModel):
        from trine.engine.circuits import check_circuits

        check_circuits(graph)
    if graph.route_cap_bytes_per_s is not None and not isinstance(model, NetworkModel):
        raise InputError(f"the network {model.name!r} cannot limit the rate of a transfer", field="network")
    why = why_unfolded(model)
    if why is not None and graph.route_counts is not None and (graph.route_counts != 1).any():
        raise InputError(f"transfers of the graph stand for many flows each, but {why}", field="route_counts")
    if engine == "compiled" and not is_compiled(network):
        name = network if isinstance(network, str) else model.name
        raise InputError(
            f"{name!r} is not built in: it is plain Python and runs with engine='reference' only", field="network"
        )
    return model
