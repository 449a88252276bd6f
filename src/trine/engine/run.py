"""Run a task graph: when does each task become ready, start and end?"""

from __future__ import annotations

from collections.abc import Callable

from trine._jit import without_collector
from trine.engine.deadlock import deadlock
from trine.engine.validate import validate
from trine.errors import InputError, nearest
from trine.model.taskgraph import Records, TaskGraph
from trine.network.models import Network, QueueModel, is_compiled, network_model

#: Called with (tasks that have ended, tasks in all, simulated time in ps), a few times a second.
Progress = Callable[[int, int, int], None]

ENGINES = ("compiled", "reference")


def run(
    graph: TaskGraph,
    *,
    network: str | Network = "fair",
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Records:
    """Simulate ``graph`` and return one record a task.

    Parameters
    ----------
    network: ``fair``, ``equal``, ``fifo``, the name of a plug-in's model, or a NetworkModel or QueueModel of your own;
        the last two are plain Python and need ``engine="reference"``.
    engine: ``compiled``, or ``reference``, its plain-Python twin; both give the same picoseconds.
    progress: called a few times a second with (tasks ended, tasks in all, now in ps).
    on_compile: called once before kernels are compiled, which happens on the first run of an installation only.

    Raises InputError for a graph that is not well formed, DeadlockError when tasks wait for each other for ever, and
    SimulationError when the simulated time grows beyond about 106 days.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}", field="engine")
    model = network_model(network)
    validate(graph)
    if isinstance(model, QueueModel) and graph.link_latency_ps is None:
        raise InputError(
            f"the network {model.name!r} carries messages link by link: the graph must have the latency of each link",
            field="link_latency_ps",
        )
    if engine == "reference":
        from trine.engine.reference import simulate

        records = simulate(graph, model, progress, on_compile)
    else:
        if not is_compiled(network):
            name = network if isinstance(network, str) else model.name
            raise InputError(
                f"{name!r} is not built in: it is plain Python and runs with engine='reference' only", field="network"
            )
        with without_collector():
            from trine.engine.compiled import simulate

            records = simulate(graph, model, progress, on_compile)
    if graph.num_tasks and records.end_ps.min() < 0:
        raise deadlock(graph, records.end_ps, records.ready_ps)
    return records
